"""Table 1: Transformers of LRA's size from scratch and after self-pretraining, beside efficient ones.

  lra-spt study configs/studies/table1.py --workdir=runs/table1 --dry_run
  lra-spt study configs/studies/table1.py --workdir=runs/table1

60 runs with 72 stages, at most 46.4 million steps and 193 EFLOP: 22 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-22). Not run so far.

With --config.protocol=paper, attention reads padding, Text's test set picks checkpoints, pretraining on Text
and Retrieval has no output layer, and Local Attention, BigBird and Reformer compute what the code of LRA
computes; docs/studies.md lists all changes.
"""

from configs.studies import of_paper
from lra_spt.studies.study import Study


def get_study():
  return Study(
    'table1',
    'Table 1: Long Range Arena, models of its size',
    of_paper.cells(of_paper.rows(1)),
    about='Do Transformers of the size of Tay et al. (2020) reach other scores when each is first pretrained '
    'on its own training inputs? Above: from scratch; below: after masked and causal self-pretraining.',
    averages=True,
  )
