"""The planned analysis of `configs/studies/questions.py`: one primary interval per question."""

import numpy as np

from lra_spt.report.statistics import bootstrap, intervals

COLUMNS = {'pathfinder': 'Pathfinder', 'text': 'Text', 'image': 'Image'}
ROTARY, S4, DLR, RANDOM = 'Transformer + Rotary', 'S4', 'DLR', 'DLR random'
RESAMPLES, SEED = 9_999, 20261129
HIGH = 0.85  # accuracy of a run that has clearly left chance


def primaries(table) -> dict[str, dict]:
  """The primary estimates of all questions whose cells are whole, in units of accuracy.

  Args:
    table: `lra_spt.report.study.table.ResultTable` of the study.

  Returns:
    {name: estimate, low, high, method}: 'pathfinder' is how much smaller the lead of S4 over the rotary
    Transformer is after self-pretraining, 'text' and 'image' are mean gains of three models, 'random' is how
    much smaller the lead of DLR over DLR with random initialisation is after self-pretraining.
  """
  answers = {}
  lead = _cells(table, 'pathfinder', (S4, 'scratch'), (ROTARY, 'scratch'), (S4, 'masked'), (ROTARY, 'masked'))
  if lead:
    scores = [[run.value for run in cell.runs] for cell in lead]
    answers['pathfinder'] = over_seeds(scores, (1, -1, -1, 1))
    answers['high'] = {arm: _share(cell) for arm, cell in (('scratch', lead[1]), ('masked', lead[3]))}
  for column in ('text', 'image'):
    arms = [(model, arm) for model in (ROTARY, S4, DLR) for arm in ('scratch', 'masked')]
    if cells := _cells(table, column, *arms):
      answers[column] = _estimate(cells, (-1, 1) * 3, scale=1 / 3)
  arms = (DLR, 'scratch'), (RANDOM, 'scratch'), (DLR, 'masked'), (RANDOM, 'masked')
  if cells := _cells(table, 'image', *arms):
    answers['random'] = _estimate(cells, (1, -1, -1, 1))
  return answers


def over_seeds(scores, signs, resamples=RESAMPLES) -> dict:
  """A signed sum of means over seeds, with the 2.5 and 97.5 percentiles of resampled seeds.

  The seeds of each cell are drawn with replacement, independently of the other cells (percentile bootstrap,
  Efron and Tibshirani 1993, chapter 13). It assumes no normal distribution: scores here are bimodal. With S
  seeds the interval is too narrow by about a factor sqrt((S - 1) / S).

  Args:
    scores: a list of float [S] per cell; cells may have different numbers of seeds.
    signs: 1 or -1 per cell.
  """
  rng = np.random.default_rng(SEED)
  drawn_R = np.zeros(resamples)
  for sign, score_S in zip(signs, scores, strict=True):
    chosen_RS = rng.integers(len(score_S), size=(resamples, len(score_S)))
    drawn_R += sign * np.asarray(score_S)[chosen_RS].mean(1)
  low, high = np.quantile(drawn_R, (0.025, 0.975))
  estimate = sum(sign * np.mean(score_S) for sign, score_S in zip(signs, scores, strict=True))
  return {
    'estimate': float(estimate),
    'low': float(low),
    'high': float(high),
    'method': 'percentile bootstrap over seeds',
  }


def _cells(table, column, *arms) -> list | None:
  """The cells of these (model, arm), or None while one of them lacks a run."""
  cells = [table.cells.get((f'{model}, {arm}', COLUMNS[column])) for model, arm in arms]
  return None if any(cell is None or cell.open or not cell.runs for cell in cells) else cells


def _estimate(cells, signs, scale=1.0) -> dict:
  """A signed sum of accuracies over common seeds and test examples, by the method of all reports."""
  units = [scale * np.stack([run.units for run in cell.runs]) for cell in cells]
  made = bootstrap.estimates([bootstrap.parts(units, signs)], (-2, 2))[0].interval
  return {'estimate': made.estimate, 'low': made.low, 'high': made.high, 'method': made.method}


def _share(cell) -> dict:
  """The number of seeds above `HIGH`, with Wilson's interval of their share."""
  above = sum(run.value > HIGH for run in cell.runs)
  rate = intervals.wilson(above, len(cell.runs))
  return {'above': above, 'seeds': len(cell.runs), 'low': rate.low, 'high': rate.high}
