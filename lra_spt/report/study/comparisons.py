"""The conclusions of a table as data: gains, their means and changes, leads, differences, rankings, power."""

import dataclasses
import math

from lra_spt.report.statistics import bootstrap
from lra_spt.report.statistics import intervals as statistics

LEVEL = 0.05


def mean_score(cell, seeds) -> float:
  """The mean over the runs of a cell with these seeds."""
  values = [run.value for run in cell.runs if run.seed in seeds]
  return sum(values) / len(values)


class _Estimated:
  """A comparison with an estimate, and with its p after Holm over all comparisons of its kind, run or
  planned."""

  interval = property(lambda self: self.estimate.interval)
  significant = property(lambda self: self.adjusted <= LEVEL)

  @property
  def direction(self):
    """'better' or 'worse', '' if it is not significant."""
    return '' if not self.significant else 'better' if self.interval.estimate > 0 else 'worse'

  @property
  def verdict(self):
    """`direction`, or 'not significant'. With one seed it says that it holds for the two runs only."""
    single = 'this run ' if len(self.seeds) == 1 else ''
    return f'{single}{self.direction}' if self.significant else 'not significant'


class _OfPairs(_Estimated):
  """A comparison of `pairs`, alike in regime, forms, test set and, but for those of a chart, in place."""

  score = property(lambda self: self.pairs[0].score)
  place = property(lambda self: self.pairs[0].place)
  regime = property(lambda self: self.pairs[0].regime)
  form = property(lambda self: self.pairs[0].form)
  unit_name = property(lambda self: self.pairs[0].unit_name)
  test_set = property(lambda self: self.pairs[0].test_set)


class _OfTwo(_OfPairs):
  """The difference of two Pairs' gains; `ways` are the words for a positive and a negative one."""

  ways = ('larger', 'smaller')
  bounds = property(lambda self: tuple(2 * bound for bound in self.pairs[0].bounds))

  @property
  def verdict(self):
    """One of `ways`, or 'not significant'. With one seed it says that it holds for the runs only."""
    if not self.significant:
      return 'not significant'
    return self.ways[self.interval.estimate < 0] + (' (runs)' if len(self.seeds) == 1 else '')


@dataclasses.dataclass(frozen=True, eq=False)
class Pair(_Estimated):
  """A pretrained TableCell and the scratch one of the same model, with common seeds and test examples.

  name: of the model. place: the column, with the task where several columns have one. estimate: of the gain.
  main: True if `scratch` is the first of its baselines; another one is trained differently, for example for
  the steps of both stages. single: the paired test, if there is one seed and the scores are accuracies of
  independent examples; else None.
  """

  name: str
  place: str
  scratch: object
  pretrained: object
  seeds: tuple[int, ...]
  test_set: str
  estimate: bootstrap.Estimate
  adjusted: float = math.nan
  main: bool = True
  single: statistics.Paired | None = None

  score = property(lambda self: self.pretrained.score)
  regime = property(lambda self: self.pretrained.regime)
  protocol = property(lambda self: self.pretrained.runs[0].protocol)
  bounds = property(lambda self: self.score.gain_bounds)
  unit_name = property(lambda self: self.pretrained.runs[0].unit_name)

  @property
  def form(self):
    """The form of `scratch` where readers need it: 'causal form', or 'bidirectional form' if `pretrained` has
    the other; '' of two bidirectional ones."""
    if self.scratch.causal:
      return 'causal form'
    return 'bidirectional form' if self.pretrained.causal else ''

  def values(self):
    """(scratch, pretrained): mean scores over the common seeds."""
    return tuple(mean_score(cell, self.seeds) for cell in (self.scratch, self.pretrained))


@dataclasses.dataclass(frozen=True, eq=False)
class MeanGain(_OfPairs):
  """The mean gain of all models of a place by a regime, over the seeds that all of them have.

  pairs: two or more models, alike in place, regime and forms. before, after: mean scores.
  """

  pairs: tuple[Pair, ...]
  seeds: tuple[int, ...]
  before: float
  after: float
  estimate: bootstrap.Estimate
  adjusted: float = math.nan

  bounds = property(lambda self: self.pairs[0].bounds)


@dataclasses.dataclass(frozen=True, eq=False)
class Gap(_OfTwo):
  """The loss of one model's lead over another by self-pretraining.

  pairs: leader and other, alike in place, regime and forms; the leader is ahead in the mean of both ways of
  training. (If the leader were the model that is ahead from scratch, chance alone would make leads smaller.)
  before, after: the lead over the common seeds. estimate: of before - after.
  """

  pairs: tuple[Pair, Pair]
  seeds: tuple[int, ...]
  before: float
  after: float
  estimate: bootstrap.Estimate
  adjusted: float = math.nan

  ways = ('smaller', 'larger')
  leader = property(lambda self: self.pairs[0])
  other = property(lambda self: self.pairs[1])


@dataclasses.dataclass(frozen=True, eq=False)
class Growth(_OfTwo):
  """A gain at a place of a study's chart and the gain at its right end, such as with few and with all labels.

  pairs: here and end, of the same model and regime. gain, end_gain: over the common seeds. estimate: of
  gain - end_gain.
  """

  pairs: tuple[Pair, Pair]
  seeds: tuple[int, ...]
  gain: float
  end_gain: float
  estimate: bootstrap.Estimate
  adjusted: float = math.nan

  here = property(lambda self: self.pairs[0])
  end = property(lambda self: self.pairs[1])


@dataclasses.dataclass(frozen=True, eq=False)
class Difference(_Estimated):
  """Two models that were trained alike, on common seeds and test examples. estimate: of first - second."""

  cells: tuple
  names: tuple[str, str]
  place: str
  seeds: tuple[int, ...]
  test_set: str
  estimate: bootstrap.Estimate
  adjusted: float = math.nan

  score = property(lambda self: self.cells[0].score)
  bounds = property(lambda self: self.score.gain_bounds)
  unit_name = property(lambda self: self.cells[0].runs[0].unit_name)
  training = property(lambda self: self.cells[0].training)


@dataclasses.dataclass(frozen=True)
class Ranking:
  """Kendall's tau-b between the order of the models from scratch and after a kind of self-pretraining, as the
  mean over `places`. form: see `Pair`. models, seeds: (fewest, most) in a place and in a cell."""

  regime: str
  form: str
  places: tuple[str, ...]
  models: tuple[int, int]
  seeds: tuple[int, int]
  tau: statistics.ConfidenceInterval


@dataclasses.dataclass(frozen=True)
class Smallest:
  """The smallest gains that the runs of a place can show. now: a single gain, with the present seeds. among:
  the clearest of all planned gains. more: {seeds: a single gain} with more seeds."""

  place: str
  score: object
  examples: int
  what: str
  seeds: int
  now: float
  among: float
  more: dict[int, float]


@dataclasses.dataclass(frozen=True)
class Success:
  """`beating` of `total` seeds of a cell beat the constant answer, which has the score `chance`. A seed that
  met numbers that are not finite does not beat it. rate: with Wilson's interval over the seeds."""

  cell: object
  place: str
  chance: float
  beating: int
  total: int
  rate: statistics.ConfidenceInterval


@dataclasses.dataclass(frozen=True)
class StudyFindings:
  """apart: a sentence per comparison that could not be made. mismatched: True if differing test examples were
  the reason for one of them. unrun: {kind, such as 'pairs': the number of further planned comparisons}, which
  the adjusted p counts too."""

  pairs: tuple[Pair, ...]
  means: tuple[MeanGain, ...]
  growths: tuple[Growth, ...]
  gaps: tuple[Gap, ...]
  differences: tuple[Difference, ...]
  rankings: tuple[Ranking, ...]
  smallest: tuple[Smallest, ...]
  successes: tuple[Success, ...]
  apart: tuple[str, ...]
  mismatched: bool
  unrun: dict[str, int]

  def of_model(self, model: str) -> 'StudyFindings':
    """The findings about one model: its gains, and its differences from others that were trained alike."""
    return dataclasses.replace(
      self,
      pairs=tuple(pair for pair in self.pairs if pair.pretrained.arm.model == model),
      means=(),
      gaps=(),
      differences=tuple(one for one in self.differences if model in (c.arm.model for c in one.cells)),
      rankings=(),
      successes=tuple(one for one in self.successes if one.cell.arm.model == model),
    )
