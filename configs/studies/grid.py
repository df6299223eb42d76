"""The search of appendix C.1: learning rates and batch sizes by validation, then fresh seeds for the test.

  lra-spt study configs/studies/grid.py:task=image,model=transformer_rotary --workdir=runs/grid --dry_run
  lra-spt study configs/studies/grid.py:task=image,model=transformer_rotary --workdir=runs/grid

66 runs with 90 stages, at most 24.6 million steps and 21.9 EFLOP: 2.5 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-22). Not run so far.

The ranges are those of the paper: learning rates 1e-3, 5e-4 and 1e-4, batch sizes 8, 32 and 128. The paper
does not say how it searched them. Here pretraining is searched first, with the finetuning of the config, and
then finetuning, after the best pretraining. The seeds that are tested take no part in the search.
Arguments: task and model.

--config.protocol=paper changes what docs/studies.md says of the task and the model; on Text the test set then
chooses the values too.
"""

import itertools

from configs.rows import MODELS
from configs.studies import of_paper
from lra_spt.config import loading as config
from lra_spt.report.published import TASK_NAMES
from lra_spt.studies.study import Cell, Search, Study

RATES, BATCHES = (1e-3, 5e-4, 1e-4), (8, 32, 128)
SEEDS = (1, 2, 3)


def _round(stage):
  return tuple(
    {f'{stage}.optimizer.lr': rate, f'{stage}.batch_size': batch}
    for rate, batch in itertools.product(RATES, BATCHES)
  )


def get_study(arg=''):
  """The study of 'task=...,model=...'; default: task=image,model=transformer_rotary."""
  choice = config.arguments(
    arg,
    task=('image', *(task for task in of_paper.CONFIGS if task != 'image')),
    model=('transformer_rotary', *(model for model in MODELS if model != 'transformer_rotary')),
  )
  return Study(
    'grid',
    f'The search of appendix C.1: {choice.model} on {TASK_NAMES[choice.task]}',
    [
      Cell(
        f'{choice.model}, {name}',
        TASK_NAMES[choice.task],
        of_paper.config(choice.task, choice.model, regime, causal),
      )
      for name, regime, causal in (
        ('scratch', 'scratch', False),
        ('masked', 'masked', False),
        ('scratch, causal form', 'scratch', True),
        ('causal', 'causal', True),
      )
    ],
    about='What do hyperparameters that validation chooses among the same values for all give, tested with '
    'seeds that had no part in the choice?',
    seeds=SEEDS,
    search=Search((_round('pretrain'), _round('finetune'))),
  )
