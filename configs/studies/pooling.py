"""Appendix C.1.1: pooling on PathX, of Transformers of LRA's size from scratch and self-pretrained.

  lra-spt study configs/studies/pooling.py --workdir=runs/pooling --dry_run
  lra-spt study configs/studies/pooling.py --workdir=runs/pooling

9 runs with 11 stages, at most 14.4 million steps and 311 EFLOP: 36 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-29). Not run so far.
The paper says that pooling mattered most on PathX, and that training from scratch stayed at chance with each.
It prints numbers with maximum pooling (Table 1): 87.73 % after masked and 88.05 % after causal
self-pretraining. The three ways of pooling share their pretraining.

With --config.protocol=paper, projections of attention start as copies of one matrix, and validation of
pretraining draws new masks; docs/studies.md lists all changes.
"""

from configs.studies import of_paper
from lra_spt.report.published import PAPER
from lra_spt.studies.study import Cell, Published, Study

POOLS = ('mean', 'max', 'last')
CHANCE = Published(None, '\u00d7', f'{PAPER}, appendix C.1.1')


def get_study():
  printed = [row for row in of_paper.rows(1) if row.model == 'transformer' and row.task == 'pathx']
  return Study(
    'pooling',
    'Appendix C.1.1: pooling on PathX',
    [_cell(row, pool) for row in printed for pool in POOLS],
    about='Does it matter whether the head reads the mean of all positions, their maximum or the last?',
  )


def _cell(row, pool):
  config = of_paper.config('pathx', 'transformer', row.regime, row.causal)
  numbers = {'max': of_paper.as_published(row)} if row.value else dict.fromkeys(POOLS, CHANCE)
  return Cell(row.approach, pool, config, {'finetune.pool': pool}, published=numbers.get(pool))
