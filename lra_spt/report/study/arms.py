"""Arms: all seeds of one way to train one model, with their score and its interval."""

import dataclasses

import numpy as np

from lra_spt.data import measures
from lra_spt.report.published import PublishedRow, published_row
from lra_spt.report.runs.run import RECORDED, FinishedRun
from lra_spt.report.statistics import intervals as statistics


@dataclasses.dataclass(frozen=True)
class Arm:
  """Runs that differ in their seeds only. score: the mean on the test set."""

  runs: tuple[FinishedRun, ...]
  score: statistics.ConfidenceInterval

  first = property(lambda self: self.runs[0])
  name = property(lambda self: self.first.arm)
  model = property(lambda self: self.first.model)
  regime = property(lambda self: self.first.regime)
  causal = property(lambda self: self.first.causal)
  pretrained = property(lambda self: self.first.pretrained)
  seeds = property(lambda self: tuple(run.seed for run in self.runs))
  recorded = property(lambda self: any(run.recorded for run in self.runs))

  @property
  def shown(self) -> str:
    """Its score as text, marked where it was recorded."""
    return self.first.score.show(self.score.estimate) + f' {RECORDED}' * self.recorded

  def mean(self, value):
    """`mean` over its runs."""
    return mean(self.runs, value)


def arm_of(runs) -> Arm:
  """The Arm of runs with a score that differ in their seeds only."""
  return Arm(tuple(runs), _interval(runs))


def published_of(run) -> PublishedRow | None:
  """The number of the paper for the model, regime and form of a run."""
  key = run.published
  return published_row(key['task'], key['model'], run.regime, run.causal) if key else None


def mean(runs, value):
  """Mean of value(run) over one or more seeds; None when one of them does not know it."""
  values = [value(run) for run in runs]
  return None if None in values else sum(values) / len(values)


def _interval(runs):
  first, known = runs[0], all(run.units is not None for run in runs)
  if len(runs) == 1:
    grouped = first.group_N is not None
    return statistics.score_interval(
      first.score, first.value, first.examples, first.units, grouped, first.unit_name
    )
  if known:
    return statistics.pooled(
      [run.units for run in runs], same_test_set(runs), first.score.bounds, first.unit_name
    )
  # Only the scores are known, so each seed is treated as if it had its own test examples.
  units = [
    np.arange(run.examples) < round(run.value * run.examples) if run.score.counts else np.array([run.value])
    for run in runs
  ]
  return statistics.pooled(units, False, first.score.bounds, first.unit_name)


def same_test_set(runs) -> bool:
  """True if all runs were tested on the same examples: equal indices, labels, groups and fingerprints."""
  prints = {str((run.result.get('fingerprints') or {}).get('data')) for run in runs}
  return len(prints) == 1 and all(_tested_alike(run, runs[0]) for run in runs)


def _tested_alike(run, other):
  if run.predictions is None or other.predictions is None:
    return False
  parts = [(*one.predictions[:2], one.group_N) for one in (run, other)]
  return all(a is b or np.array_equal(a, b) for a, b in zip(*parts, strict=True))


def constant_score(run) -> float | None:
  """The score of the best constant answer on the test examples of a run; None when it is not known."""
  if run.score.key in measures.CONSTANTS:
    return measures.CONSTANTS[run.score.key]
  if run.predictions is None:
    return run.test.get('majority') if run.score.counts else None
  return measures.constant(run.score.key, run.predictions[1])


def score_text(run) -> str:
  """'test accuracy 75.3 % (always the most frequent class: 27.0 %)', or why there is no score."""
  if run.why_unscored:
    return f'no test {run.score.name}: {run.why_unscored}'
  constant = constant_score(run)
  shown = '' if constant is None else f' ({run.score.constant}: {run.score.show(constant)})'
  return f'test {run.score.name} {run.score.show(run.value)}{shown}'


def duration(seconds) -> str:
  """Seconds in the two largest units that are not zero; None -> a dash."""
  if seconds is None:
    return '\u2013'
  if seconds < 60:
    return f'{seconds:.1f} s' if seconds < 10 else f'{seconds:.0f} s'
  if seconds >= 1000 * 3600:
    days = seconds / 86400
    return f'{days:,.0f} days' if days < 1000 else f'{days / 365.25:,.3g} years'
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours} h {minutes:02d} min' if hours else f'{minutes} min {rest:02d} s'


def scaled(number, unit='') -> str:
  """1.2e15 -> '1.20 P' + unit; None -> a dash."""
  if number is None:
    return '\u2013'
  for factor, prefix in ((1e18, 'E'), (1e15, 'P'), (1e12, 'T'), (1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    if abs(number) >= factor:
      return f'{number / factor:.3g} {prefix}{unit}'
  return f'{number:.3g} {unit}'.strip()
