"""Table 8: a fixed number of epochs, divided between self-pretraining and finetuning.

  lra-spt study configs/studies/table8.py --workdir=runs/table8 --dry_run
  lra-spt study configs/studies/table8.py --workdir=runs/table8

24 runs with 44 stages, at most 2.4 million steps and 6.24 EFLOP: 0.72 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-22). Not run so far.

The paper gives pretraining 0, 20, 40 and 60 % of the epochs. Shares of 80 and 90 % are ours; there the warmup
is the same fraction of finetuning as at 60 %, because the configs' own warmup would outlast finetuning.

With --config.protocol=paper, Text trains on all 25,000 reviews, so with 11 % more steps, and its test set
picks checkpoints; docs/studies.md lists all changes.
"""

from configs.studies import of_paper
from lra_spt.config import loading as config_lib
from lra_spt.report import published
from lra_spt.studies.study import Cell, Study

EPOCHS = {'image': 150, 'text': 30}  # of both stages together (appendix D)
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
MODELS = {'transformer_rotary': 'Transformer + Rotary', 's4': 'S4'}


def get_study():
  printed = {(row.task, row.model, row.pretraining_share): row for row in of_paper.rows(8)}
  return Study(
    'table8',
    'Table 8: the same number of epochs with and without self-pretraining',
    [
      _cell(task, model, share, printed.get((task, model, share)))
      for task in EPOCHS
      for model in MODELS
      for share in SHARES
    ],
    about='Is it the pretraining that helps, or only longer training? All runs of a row see their training '
    'examples equally often: 150 epochs on Image and 30 on Text, of which pretraining gets a share.',
  )


def _cell(task, model, share, row):
  total = EPOCHS[task]
  overrides = {'finetune.epochs': float(total - round(share * total))}
  if share:
    overrides['pretrain.epochs'] = float(round(share * total))
  config = of_paper.config(task, model, 'masked' if share else 'scratch')
  if share > 0.6:
    warmup = config_lib.load(config).finetune.schedule.warmup_steps
    overrides['finetune.schedule.warmup_steps'] = round(warmup * (1 - share) / 0.4)
  return Cell(
    f'{published.TASK_NAMES[task]}, {MODELS[model]}',
    f'{share:.0%} pretraining',
    config,
    overrides,
    published=row and of_paper.as_published(row),
  )
