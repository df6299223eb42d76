"""Table 2: larger Transformers and S4, scratch and masked self-pretraining; SPADE, MEGA; random Pythia.

  lra-spt study configs/studies/table2.py --workdir=runs/table2 --dry_run
  lra-spt study configs/studies/table2.py --workdir=runs/table2

43 runs with 56 stages, at most 23.6 million steps and 201 EFLOP: 23 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-25). Not run so far.
"""

from configs.studies import of_paper
from lra_spt.studies.study import Study


def get_study():
  return Study(
    'table2',
    'Table 2: Long Range Arena, Transformers and S4',
    of_paper.cells(of_paper.rows(2)),
    about='With self-pretraining, do Transformers with rotary positions match S4? Averages leave out '
    'PathX-256, as the paper does.',
    averages=True,
  )
