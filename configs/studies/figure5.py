"""Figure 5: training accuracy of Transformers on Image and Text over their epochs, in both stages.

  lra-spt study configs/studies/figure5.py --workdir=runs/figure5 --dry_run
  lra-spt study configs/studies/figure5.py --workdir=runs/figure5

4 runs with 6 stages, at most 0.5 million steps and 2.66 EFLOP: 0.31 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-22). Not run so far.
Accuracy is measured on 2,000 training examples whenever the validation set is evaluated. Denoising on Image
restores values (L1 loss), so it has no accuracy: the figure shows its R² there.

With --config.protocol=paper, attention reads padding, Text trains on all 25,000 reviews, its test set picks
checkpoints, and its pretraining has no output layer; docs/studies.md lists all changes.
"""

from configs.studies import of_paper
from lra_spt.report import published
from lra_spt.studies.study import Cell, Study

EPOCHS = {'image': 150, 'text': 30}
ARMS = {'from scratch': 'scratch', 'self-pretrained': 'masked'}


def get_study():
  return Study(
    'figure5',
    'Figure 5: training accuracy over epochs',
    [_cell(task, arm) for arm in ARMS for task in EPOCHS],
    about='How soon is the denoising task solved, and how much faster does a pretrained model '
    'learn the labels?',
    show='curves',
  )


def _cell(task, arm):
  regime, epochs = ARMS[arm], float(EPOCHS[task])
  overrides = {'finetune.epochs': epochs, 'runtime.training_examples': 2000}
  if regime != 'scratch':
    overrides['pretrain.epochs'] = epochs
  return Cell(
    f'Transformer + Rotary, {arm}',
    published.TASK_NAMES[task],
    of_paper.config(task, 'transformer_rotary', regime),
    overrides,
  )
