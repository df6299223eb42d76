"""Appendix D: training accuracy of Transformers on PathX, from scratch and self-pretrained.

  lra-spt study configs/studies/pathx_training.py --workdir=runs/pathx_training --dry_run
  lra-spt study configs/studies/pathx_training.py --workdir=runs/pathx_training

2 runs with 3 stages, at most 0.1 million steps and 2.74 EFLOP: 0.32 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-29). Not run so far.
Expect a training accuracy of at most 52 % after 8 epochs from scratch (2 days on 4 GPUs), and of at least
78 % after a day of self-pretraining and a day of finetuning, for which 4 epochs each stand here. Table 2 has
the rotary Transformer at 84.72 % from scratch, so these are Transformers of LRA's size (Table 1).
Accuracy is measured on 2,000 training examples whenever the validation set is evaluated.

With --config.protocol=paper, projections of attention start as copies of one matrix, and validation of
pretraining draws new masks; docs/studies.md lists all changes.
"""

from configs.studies import of_paper
from lra_spt.studies.study import Cell, Study

EPOCHS = {  # of each stage
  'scratch': {'finetune.epochs': 8.0},
  'masked': {'pretrain.epochs': 4.0, 'finetune.epochs': 4.0},
}
NOTES = {  # what the paper says of training, not of the test
  'scratch': 'training accuracy in the paper: at most 52 %',
  'masked': 'training accuracy in the paper: at least 78 %',
}


def get_study():
  rows = [row for row in of_paper.rows(1) if (row.model, row.task) == ('transformer', 'pathx')]
  return Study(
    'pathx_training',
    'Appendix D: training accuracy on PathX',
    [_cell(row) for row in rows if row.regime in EPOCHS],
    about='Does a Transformer from scratch fail on PathX because it does not generalise, or because it '
    'cannot fit the training examples?',
    show='curves',
  )


def _cell(row):
  config = of_paper.config(row.task, row.model, row.regime)
  overrides = EPOCHS[row.regime] | {'runtime.training_examples': 2000}
  return Cell(row.approach, 'PathX', config, overrides, note=NOTES[row.regime])
