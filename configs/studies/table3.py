"""Table 3: speech, colour images and vital signs; S4 and Transformers from scratch and self-pretrained.

  lra-spt study configs/studies/table3.py --workdir=runs/table3 --dry_run
  lra-spt study configs/studies/table3.py --workdir=runs/table3

24 runs with 36 stages, at most 7.2 million steps and 83.9 EFLOP: 9.7 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-29). Not run so far.

With --config.protocol=paper, the splits of BIDMC share patients and its signals and labels lie in [-1, 1];
every time step of Speech Commands is normalised by itself, its pretraining keeps the worst checkpoint, and S4
trains on after its cosine schedule; docs/studies.md lists all changes.
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
