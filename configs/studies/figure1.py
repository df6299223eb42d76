"""Figure 1: Transformers and S4 on the Long Range Arena, from scratch and self-pretrained.

  lra-spt study configs/studies/figure1.py --workdir=runs/figure1 --dry_run
  lra-spt study configs/studies/figure1.py --workdir=runs/figure1

38 runs with 57 stages, at most 31.4 million steps and 284 EFLOP: 33 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-22). Not run so far.
The runs are those of Tables 1 and 2.

With --config.protocol=paper, attention reads padding, Text's test set picks checkpoints, and pretraining on
Text and Retrieval has no output layer; docs/studies.md lists all changes.
"""

from configs.studies import of_paper
from lra_spt.studies.study import Study

SHOWN = (
  (1, 'Transformer'),
  (1, 'Transformers + Masked SPT'),
  (2, 'Transformers + Rotary'),
  (2, 'Transformers + Rotary + Masked SPT'),
  (2, 'S4'),
  (2, 'S4 + Masked SPT'),
)


def get_study():
  rows = [row for table, approach in SHOWN for row in of_paper.rows(table) if row.approach == approach]
  return Study(
    'figure1',
    'Figure 1: from scratch and self-pretrained',
    of_paper.cells(rows),
    about='How far apart are Transformers and S4 when both are trained from scratch, and how far when both '
    'are first pretrained on their own training inputs?',
    averages=True,
    show='bars',
  )
