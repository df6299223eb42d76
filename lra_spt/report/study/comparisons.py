"""What a study can say, as data: gains, their means and changes, leads, rankings, power."""

import dataclasses
import math

from lra_spt.report.statistics import bootstrap as gaps
from lra_spt.report.statistics import intervals as statistics

LEVEL = 0.05


def mean_score(cell, seeds) -> float:
  """Of the runs of a cell with these seeds."""
  values = [run.value for run in cell.runs if run.seed in seeds]
  return sum(values) / len(values)


class _Estimated:
  """What comparisons have in common: an estimate, and its p after Holm over all of their kind, run or not."""

  interval = property(lambda self: self.estimate.interval)
  significant = property(lambda self: self.adjusted <= LEVEL)


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
  way = property(lambda self: self.ways[self.interval.estimate < 0])

  @property
  def verdict(self):
    """The way, '' where that is not significant; with one seed on the runs."""
    if not self.significant:
      return ''
    return self.way + (' (runs)' if len(self.seeds) == 1 else '')


@dataclasses.dataclass(frozen=True, eq=False)
class Pair(_Estimated):
  """A pretrained TableCell and the scratch one of the same model, with common seeds and test examples.

  name: of the model, as the rows of the study call it. place: task and, where it is another, the column.
  estimate: of the gain; adjusted: its p after Holm over all gains of the study. main: whether `scratch` is
  the first of several scratch cells; another one is trained otherwise, for example as long as both stages.
  """

  name: str
  place: str
  scratch: object
  pretrained: object
  seeds: tuple[int, ...]
  test_set: str
  estimate: gaps.Estimate
  adjusted: float = math.nan
  main: bool = True

  score = property(lambda self: self.pretrained.score)
  regime = property(lambda self: self.pretrained.runs[0].regime)
  task = property(lambda self: self.pretrained.runs[0].task)
  protocol = property(lambda self: self.pretrained.runs[0].protocol)
  bounds = property(lambda self: self.score.gain_bounds)
  unit_name = property(lambda self: self.pretrained.runs[0].unit_name)

  @property
  def form(self):
    """Of `scratch` where it has to be said: 'causal form', or 'bidirectional form' where `pretrained` has the
    other; '' of two bidirectional ones."""
    if self.scratch.arm.causal:
      return 'causal form'
    return 'bidirectional form' if self.pretrained.arm.causal else ''

  @property
  def direction(self):
    """'better' or 'worse', '' where that is not significant."""
    return '' if not self.significant else 'better' if self.interval.estimate > 0 else 'worse'

  @property
  def verdict(self):
    """On the two ways of training; with one seed only on the two runs."""
    single = 'this run ' if len(self.seeds) == 1 else ''
    return f'{single}{self.direction}' if self.significant else 'not significant'

  def values(self):
    """(scratch, pretrained): mean scores over the common seeds."""
    return tuple(mean_score(cell, self.seeds) for cell in (self.scratch, self.pretrained))


@dataclasses.dataclass(frozen=True, eq=False)
class MeanGain(_OfPairs):
  """The mean gain of all models of a place by a regime, over the seeds that all of them have.

  pairs: of these models, two or more, alike in place, regime and forms. before, after: mean scores. estimate:
  of the gain; adjusted: its p after Holm over the means of the study.
  """

  pairs: tuple[Pair, ...]
  seeds: tuple[int, ...]
  before: float
  after: float
  estimate: gaps.Estimate
  adjusted: float = math.nan

  bounds = property(lambda self: self.pairs[0].bounds)
  direction = Pair.direction
  verdict = Pair.verdict


@dataclasses.dataclass(frozen=True, eq=False)
class Gap(_OfTwo):
  """How much smaller the lead of one model over another is after self-pretraining than from scratch.

  pairs: leader and other, alike in place, regime and forms; the leader is ahead in the mean of both ways of
  training. (Were it the one ahead from scratch, chance alone would make leads smaller.) before, after: the
  lead over the common seeds. estimate: of before - after; adjusted: its p after Holm over all of them.
  """

  pairs: tuple[Pair, Pair]
  seeds: tuple[int, ...]
  before: float
  after: float
  estimate: gaps.Estimate
  adjusted: float = math.nan

  ways = ('smaller', 'larger')
  leader = property(lambda self: self.pairs[0])
  other = property(lambda self: self.pairs[1])


@dataclasses.dataclass(frozen=True, eq=False)
class Growth(_OfTwo):
  """How much larger a gain is at a place of a study's chart than at its right end, as with fewer labels than
  all.

  pairs: here and end, of the same model and regime, in places apart. gain, end_gain: theirs over the common
  seeds. estimate: of gain - end_gain; adjusted: its p after Holm over all of them.
  """

  pairs: tuple[Pair, Pair]
  seeds: tuple[int, ...]
  gain: float
  end_gain: float
  estimate: gaps.Estimate
  adjusted: float = math.nan

  here = property(lambda self: self.pairs[0])
  end = property(lambda self: self.pairs[1])


@dataclasses.dataclass(frozen=True)
class Ranking:
  """Kendall's tau-b between the models' order from scratch and after a kind of self-pretraining, mean over
  `places`; form: as of their Pairs; models, seeds: (fewest, most) in a place and in a cell."""

  regime: str
  form: str
  places: tuple[str, ...]
  models: tuple[int, int]
  seeds: tuple[int, int]
  tau: statistics.ConfidenceInterval


@dataclasses.dataclass(frozen=True)
class Smallest:
  """The smallest gains that runs of a place can tell: alone with the seeds there are, as the clearest of all
  gains that the study plans, and {seeds: gain} alone with more, empty where one seed says nothing of what
  seeds do."""

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
  """Of how many seeds, of `total`, a run beats the constant answer; one that met numbers that are not finite
  does not. rate: with Wilson's interval over the seeds."""

  cell: object
  place: str
  chance: float
  beating: int
  total: int
  rate: statistics.ConfidenceInterval


@dataclasses.dataclass(frozen=True)
class StudyFindings:
  """apart: a sentence per comparison that could not be made, and why. unrun: {kind, such as 'pairs': how many
  more the study plans}, for which p counts too."""

  pairs: tuple[Pair, ...]
  means: tuple[MeanGain, ...]
  growths: tuple[Growth, ...]
  gaps: tuple[Gap, ...]
  rankings: tuple[Ranking, ...]
  smallest: tuple[Smallest, ...]
  successes: tuple[Success, ...]
  apart: tuple[str, ...]
  unrun: dict[str, int]
