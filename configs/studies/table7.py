"""Table 7: structured against random initialisation of S4 and DLR. Figure 2 shows its averages.

  lra-spt study configs/studies/table7.py --workdir=runs/table7 --dry_run
  lra-spt study configs/studies/table7.py --workdir=runs/table7

32 runs with 48 stages, at most 12.7 million steps and 11.0 EFLOP: 1.3 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-25). Not run so far.

With --config.protocol=paper, Text's test set picks checkpoints, DLR reads padding, and DLR from random values
trains on PathX after its cosine schedule; docs/studies.md lists all changes.
"""

from configs.studies import of_paper
from lra_spt.studies.study import Study

ABOUT = (
  'Are the priors that are built into S4 and DLR needed when a model is pretrained on its own inputs? The '
  'last column is the mean over the four tasks. For three rows the paper prints other averages than its '
  'numbers have: S4 + Rand Init + SPT 82.75, DLR + Rand Init + SPT 80.47 and DLR + SPT 83.37.'
)


def get_study():
  return Study(
    'table7',
    'Table 7: structured and random initialisation',
    of_paper.cells(of_paper.rows(7)),
    about=ABOUT,
    averages=True,
  )
