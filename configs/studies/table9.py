"""Table 9: the Image task over model sizes of 100 thousand to 10 million parameters.

  lra-spt study configs/studies/table9.py --workdir=runs/table9 --dry_run
  lra-spt study configs/studies/table9.py --workdir=runs/table9

20 runs of 30 stages and at most 4.2 million steps, 5.59 EFLOP (--dry_run, 2026-11-22): 0.65 days on
one accelerator at 100 TFLOP/s. Not run so far.
The paper prints no sizes: those of the Transformer of 100 thousand (that of Table 1) and of both models of 3
million (those of Table 2) follow from its other tables, the others are ours, after the number of parameters.
"""

from configs.studies import of_paper
from lra_spt.studies.study import Cell, Study

SIZES = {  # printed size: width and depth of the Transformer (whose feed-forward is twice as wide), of S4
  '100K': ((64, 3), (64, 6)),
  '300K': ((96, 4), (128, 6)),
  '1M': ((160, 5), (256, 6)),
  '3M': ((256, 6), (512, 6)),
  '10M': ((448, 6), (896, 6)),
}


def get_study():
  return Study(
    'table9',
    'Table 9: Image over model sizes',
    [_cell(row) for row in of_paper.rows(9)],
    about='Does self-pretraining help models of every size?',
  )


def _cell(row):
  transformer = row.model == 'transformer_rotary'
  width, depth = SIZES[row.parameters][0 if transformer else 1]
  overrides = {'model.width': width, 'model.depth': depth}
  if transformer:
    overrides['model.feed_forward'] = 2 * width
  return Cell(
    row.approach,
    row.parameters,
    of_paper.config(row.task, row.model, row.regime),
    overrides,
    published=of_paper.as_published(row),
  )
