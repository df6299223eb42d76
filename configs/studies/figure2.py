"""Figure 2: S4 and DLR from structured and random values, from scratch and self-pretrained, on average.

  lra-spt study configs/studies/figure2.py --workdir=runs/figure2 --dry_run
  lra-spt study configs/studies/figure2.py --workdir=runs/figure2

32 runs with 48 stages, at most 12.7 million steps and 11.0 EFLOP: 1.3 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-25). Not run so far.
Runs, numbers and averages are those of Table 7, whose folder of stages it can share (--stages); the page
draws them as bars. Expect 84.5 % for S4 and 83.4 % for DLR, self-pretrained from structured values.

With --config.protocol=paper, Text's test set picks checkpoints, DLR reads padding, and DLR from random values
trains on PathX after its cosine schedule; docs/studies.md lists all changes.
"""

from configs.studies import of_paper, table7
from lra_spt.studies.study import Study


def get_study():
  return Study(
    'figure2',
    'Figure 2: initialisation, on average over four tasks',
    of_paper.cells(of_paper.rows(7)),
    about=table7.ABOUT,
    averages=True,
    show='bars',
  )
