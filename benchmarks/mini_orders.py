"""Orders and leads of models in a study of ours: how far the order is the printed one, and how sure both are.

Printed numbers come from one or several runs at full size, without intervals, so they are taken as fixed.
"""

import math
import zlib

import numpy as np

from lra_spt.report import published
from lra_spt.report.pages import leaderboard
from lra_spt.report.statistics import bootstrap
from lra_spt.report.study import findings


def agreement(cells: list[dict], units: dict | None = None) -> list[dict]:
  """How far models have the order here that is printed of them at full size: Kendall's tau-b by task and way
  of training, of three models and more; of the means, and of each seed by itself. 0 where all tie. low and
  high: of 95 % of resamples of seeds and test examples, see `gaps.rank_agreement`.

  Args:
    cells: lines of `export.study_lines`.
    units: {(row, column): [S, N] numbers per seed and test example}; without those of a model the limits of
      its orders are None.
  """
  numbers, found = _printed(), {}
  for cell in cells:
    if cell['state'] or cell['causal']:  # seeds are missing; the tables of the paper have few causal models
      continue
    key = cell['model'], cell['regime'], cell['task'].removesuffix('_mini')
    if key in numbers:
      same = found.setdefault((cell['column'], cell['regime']), {})
      same.setdefault(cell['model'], (cell, numbers[key]))  # the first of several arms
  return [
    {'column': column, 'regime': regime} | _agreed(of) | _limits(of, units or {}, column)
    for (column, regime), of in found.items()
    if len(of) >= findings.FEWEST_MODELS
  ]


def _agreed(of) -> dict:
  """of: {model: (cell, printed number)}."""
  printed = [number for _, number in of.values()]
  of_seed = [dict(zip(cell['seeds'], cell['scores'], strict=True)) for cell, _ in of.values()]
  common = set.intersection(*map(set, of_seed))

  def tau(scores):
    found = float(bootstrap.kendall(scores, printed))
    return 0.0 if math.isnan(found) else round(found, 3)  # models that all tie have no order

  return {
    'models': {model: {'mini': cell['score'], 'printed': number} for model, (cell, number) in of.items()},
    'tau': tau([cell['score'] for cell, _ in of.values()]),
    'of_seeds': [tau([scores[seed] for scores in of_seed]) for seed in sorted(common)],
  }


def _limits(of, units, column) -> dict:
  """Of tau; None where a model has no answers, or others to other examples."""
  cells = [units.get((cell['row'], cell['column'])) for cell, _ in of.values()]
  if any(cell is None for cell in cells) or len({np.shape(cell)[1] for cell in cells}) > 1:
    return {'low': None, 'high': None}
  printed = [number for _, number in of.values()]
  stream = zlib.crc32(column.encode())
  interval = bootstrap.rank_agreement([bootstrap.parts([cell]) for cell in cells], printed, stream=stream)
  return {key: None if math.isnan(end) else round(end, 3) for key, end in _ends(interval).items()}


def _ends(interval) -> dict:
  return {'low': interval.low, 'high': interval.high}


def _printed() -> dict[tuple[str, str, str], float]:
  """{(model, regime, task): number} of the paper; of S5 and LRU those that the field repeats."""
  field = {
    (row.model.lower(), row.regime, task): value
    for row in leaderboard.rows()
    if row.model in ('S5', 'LRU')
    for task, value in row.values.items()
  }
  paper = [row for row in published.ROWS if row.table in (1, 2, 7) and not row.causal]
  return field | {(row.model, row.regime, row.task): row.value for row in paper if row.value is not None}


def leads(found) -> list[dict]:
  """Of every comparisons.Gap the limits of the lead itself, from scratch (before) and after self-pretraining,
  as gains have theirs: {'before': {'low', 'high'}, 'after': ...}, in their order."""
  by_set, limits = {}, {}
  for gap in found:
    for when, cell in (('before', 'scratch'), ('after', 'pretrained')):
      sides = (getattr(pair, cell) for pair in gap.pairs)
      of = [[run.units for run in _with(side, gap.seeds)] for side in sides]
      by_set.setdefault(gap.test_set, []).append((gap, when, bootstrap.parts(of, (1, -1))))
  for test_set, same in by_set.items():
    bounds = [gap.score.gain_bounds for gap, _, _ in same]
    made = bootstrap.estimates([parts for *_, parts in same], bounds, stream=zlib.crc32(test_set.encode()))
    for (gap, when, _), one in zip(same, made, strict=True):
      limits.setdefault(id(gap), {})[when] = _ends(one.interval)
  return [limits[id(gap)] for gap in found]


def _with(cell, seeds):
  """The runs of these seeds, in their order."""
  return sorted((run for run in cell.runs if run.seed in seeds), key=lambda run: run.seed)
