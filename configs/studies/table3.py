"""Table 3: speech, colour images and vital signs; S4 and Transformers from scratch and self-pretrained.

  lra-spt study configs/studies/table3.py --workdir=runs/table3 --dry_run
  lra-spt study configs/studies/table3.py --workdir=runs/table3

24 runs with 36 stages, at most 8.1 million steps and 85.1 EFLOP: 9.8 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-22). Not run so far.
"""

from configs.studies import of_paper
from lra_spt.studies.study import Study


def get_study():
  return Study(
    'table3',
    'Table 3: Speech Commands, sCIFAR and BIDMC',
    of_paper.cells(of_paper.rows(3)),
    about='Does what holds on the Long Range Arena hold on other long sequences? Accuracies, and '
    'R\u00b2 on BIDMC.',
  )
