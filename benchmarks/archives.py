"""The planned analysis of `configs/studies/archives.py`: mean gains of self-pretraining, with intervals."""

import numpy as np

from configs.studies import archives
from lra_spt.report.statistics import intervals

OVER = {'tied': 'scratch', 'equal': 'scratch, steps of finetuning'}  # name: arm that a gain is over


def primaries(table) -> dict[str, dict]:
  """Gains of masked self-pretraining in accuracy, while their cells are whole.

  The gain of a seed is its mean over all sets with classes and over models. The interval is Student's, over
  seeds: it holds for these sets, and says nothing about others.

  Args:
    table: `lra_spt.report.study.table.ResultTable` of the study.

  Returns:
    {name: estimate, low, high, method}: 'tied' over training from scratch for as many steps as both stages,
    the primary one, and 'equal' over that for as many steps as finetuning; of each model '<name> <model>'.
  """
  gains_of = {}
  for name, arm in OVER.items():
    gains = {model: _gains(table, model, arm) for model in archives.MODELS.values()}
    gains = {model: gain_S for model, gain_S in gains.items() if gain_S is not None}
    if len(gains) == len(archives.MODELS):
      gains_of[name] = student(np.mean([*gains.values()], axis=0))
    gains_of |= {f'{name} {model}': student(gain_S) for model, gain_S in gains.items()}
  return gains_of


def student(values_S) -> dict:
  """The mean of values per seed, float [S], with Student's interval."""
  mean, seeds = np.mean(values_S), len(values_S)
  half = intervals.t_quantile(seeds - 1) * np.std(values_S, ddof=1) / np.sqrt(seeds)
  limits = {'estimate': mean, 'low': mean - half, 'high': mean + half}
  return {key: float(value) for key, value in limits.items()} | {'method': "Student's t over seeds"}


def _gains(table, model, arm):
  """The gain of each seed, float [S], mean over the sets with classes; None while a run is missing."""
  gains = []
  for column in archives.CLASSES.values():
    cells = [table.cells.get((f'{model}, {one}', column)) for one in ('masked', arm)]
    if any(cell is None or cell.open or not cell.runs for cell in cells):
      return None
    after_S, before_S = ([run.value for run in cell.runs] for cell in cells)
    gains.append(np.subtract(after_S, before_S))
  return np.mean(gains, axis=0)
