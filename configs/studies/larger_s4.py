"""Appendix C.1.2: S4 with as many parameters as the Transformer, on ListOps and Text.

  lra-spt study configs/studies/larger_s4.py --workdir=runs/larger_s4 --dry_run
  lra-spt study configs/studies/larger_s4.py --workdir=runs/larger_s4

8 runs with 12 stages, at most 1.1 million steps and 3.02 EFLOP: 0.35 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-29). Not run so far.
The paper says that larger S4, from scratch and self-pretrained, were not better, and prints no numbers for
them. Their widths are ours: with them S4 has the 13 million parameters of the Transformer of Table 2. The
smaller models are those of Table 2.

With --config.protocol=paper, Text's test set picks checkpoints, its pretraining has no output layer, and
BatchNorm counts padding; docs/studies.md lists all changes.
"""

from configs.studies import of_paper
from lra_spt.report import published
from lra_spt.studies.study import Cell, Study

WIDTHS = {'listops': 808, 'text': 952}


def get_study():
  rows = [row for row in of_paper.rows(2) if row.model == 's4' and row.task in WIDTHS]
  return Study(
    'larger_s4',
    'Appendix C.1.2: larger S4',
    [*of_paper.cells(rows), *map(_larger, rows)],
    about='Would S4 be better if it were as large as the Transformer?',
  )


def _larger(row):
  width = WIDTHS[row.task]
  return Cell(
    row.approach.replace('S4', 'S4, larger'),
    published.TASK_NAMES[row.task],
    of_paper.config(row.task, row.model, row.regime),
    {'model.width': width, 'model.mixer.copies': width},  # every channel has a system of its own, as there
    note='no number in the paper, which says that it is not better than the smaller model',
  )
