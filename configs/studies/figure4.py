"""Figure 4: convolution kernels of S4 after self-pretraining, compared with their initial values.

  lra-spt study configs/studies/figure4.py --workdir=runs/figure4 --dry_run
  lra-spt study configs/studies/figure4.py --workdir=runs/figure4

4 runs with 8 stages, at most 1.9 million steps and 1.92 EFLOP: 0.22 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-22). Not run so far.
The runs are those of "S4 + Masked SPT" in Table 2; the figure needs only their pretraining.

With --config.protocol=paper, Text's test set picks checkpoints, its pretraining has no output layer, and the
lowest error instead of the best R² picks the checkpoint on Image; docs/studies.md lists all changes.
"""

from configs.studies import of_paper
from lra_spt.studies.study import Study

TASKS = ('image', 'text', 'pathx', 'listops')


def get_study():
  printed = [row for row in of_paper.rows(2) if row.approach == 'S4 + Masked SPT' and row.task in TASKS]
  return Study(
    'figure4',
    'Figure 4: kernels of S4',
    of_paper.cells(printed),
    about='What do the kernels of S4 become when the data shape them? Each figure shows, by layer, the '
    'largest absolute value over channels at every lag, learned and initial.',
    show='kernels',
  )
