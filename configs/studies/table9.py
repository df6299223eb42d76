"""Table 9: the Image task with model sizes from 100 thousand to 10 million parameters.

  lra-spt study configs/studies/table9.py --workdir=runs/table9 --dry_run
  lra-spt study configs/studies/table9.py --workdir=runs/table9

20 runs with 30 stages, at most 4.2 million steps and 5.51 EFLOP: 0.64 days on one accelerator at 100 TFLOP/s
(estimate of --dry_run, 2026-11-29). Not run so far.

The paper prints no dimensions for these models. The Transformer of 100 thousand parameters (that of Table 1)
and both models of 3 million (those of Table 2) follow from its other tables; the others are ours, chosen to
match the number of parameters. Footnote 6 says that S4 could hardly be scaled up without more states: here
they are an eighth of the width, as in Table 2, in even numbers.

With --config.protocol=paper, weight decay acts on every parameter, and the lowest error instead of the best
R² picks the checkpoint of pretraining; docs/studies.md lists all changes.
"""

from configs.studies import of_paper
from lra_spt.studies.study import Cell, Study

SIZES = {  # printed size: width and depth of the Transformer (whose feed-forward is twice as wide), of S4
  '100K': ((64, 3), (84, 6)),
  '300K': ((96, 4), (148, 6)),
  '1M': ((160, 5), (272, 6)),
  '3M': ((256, 6), (512, 6)),
  '10M': ((448, 6), (864, 6)),
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
  else:
    overrides['model.mixer.state_size'] = 2 * (width // 16)
  return Cell(
    row.approach,
    row.parameters,
    of_paper.config(row.task, row.model, row.regime),
    overrides,
    published=of_paper.as_published(row),
  )
