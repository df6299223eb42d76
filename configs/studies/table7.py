"""Table 7 (and Figure 2, its averages): structured against random initialisation of S4 and DLR.

  lra-spt study configs/studies/table7.py --workdir=runs/table7 --dry_run
  lra-spt study configs/studies/table7.py --workdir=runs/table7

32 runs with 48 stages, at most 12.7 million steps and 11.0 EFLOP: 1.3 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-25). Not run so far.
"""

from configs.studies import of_paper
from lra_spt.studies.study import Study


def get_study():
  return Study(
    'table7',
    'Table 7: structured and random initialisation',
    of_paper.cells(of_paper.rows(7)),
    about='Are the priors that are built into S4 and DLR needed when a model is pretrained on its own '
    'inputs? The paper averages the four tasks of a row (its Figure 2).',
  )
