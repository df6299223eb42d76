"""Uncertainty of what many runs say together: gains, differences of gaps, rankings, rates of success.

An estimate is a signed sum of the scores of one or more cells: two for a gain, four for a difference of gaps,
two per model for a mean gain. A score is the mean of one number per test example (whether it was answered
correctly), per group where examples belong together, or of jackknife values (`jackknife.score_units`). All
cells are tested on the same examples and have the same seeds. `draws` resamples two sources of chance:

* Examples are drawn with replacement, the same ones for all seeds and cells: a paired bootstrap (Efron and
  Tibshirani 1993, An Introduction to the Bootstrap). Deviations are stretched by t / z sqrt(N / (N - 1)),
  the expanded percentile interval (Hesterberg 2015, Am. Stat. 69:371), which matters for few groups.
* Seeds are too few for that: drawn with replacement, two to five of them have a variance too small by
  (S - 1) / S and tails far too light. Runs of different cells are independent even if their seeds have the
  same number, so the variances of their means add up, with Satterthwaite's degrees of freedom (1946,
  Biometrics 2:110) as in Welch's test; the draws are from Student's t with these. Runs of one model on parts
  of the same data may be correlated through their seed; the interval of their difference is then too wide.

Drawing both (Owen 2007, Ann. Appl. Stat. 1:386, the pigeonhole bootstrap) would count the chance of a single
(seed, example) up to three times. It is already part of the means of the seeds, so deviations of examples are
shrunk to the variance V_examples - V_both on which all seeds agree (as in `statistics.pooled`).

Coverage was measured on 2,000 simulated studies each (tests/report/test_bootstrap.py: answers by thresholds,
300 examples, seeds that differ not at all, a little or much). 95 % intervals of gains and of differences of
gaps contain the truth in 95 to 97.5 % with 1, 3 and 5 seeds, and in 97.5 to 99 % with 2; in 93.5 to 98 %
where seeds of one cell differ four times as much as those of others. Of mean gains over 2 to 6 models that
are zero, 2.5 to 5 % are significant (600 studies each). The pigeonhole bootstrap covers the truth in 98 to 99
% where seeds do not differ; where they differ much, in 76 % with 2 seeds, 84 % with 3 and 90 % with 5. With
one seed all this is about the runs, not about the ways of training.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from lra_spt.report.statistics.intervals import LEVEL, ConfidenceInterval, normal_quantile, t_quantile, wilson

# With this number the limits are the order statistics 250 and 9,750, and each draw counts 0.0002 in p. (With
# 1,999 draws one draw beyond 0 gave p = 0.002, which Holm finds significant among at most 25 comparisons,
# whatever else is drawn.)
RESAMPLES = 9999
POWER = 0.8
CHANCE_P = 1e-6
SEED = 20240501
CHUNK = 4_000_000  # numbers of resampled examples held at once


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
  """A signed sum of scores, and where its variance comes from.

  mean: over all seeds. example_N: deviations of the examples' means over seeds. count: S, the number of
  seeds. seeds, examples, both: the variance of `mean` from each source; the first two include `both`. For one
  seed `seeds` and `both` are 0. seed_degrees: degrees of freedom of `seeds`.
  """

  mean: float
  example_N: np.ndarray
  count: int
  seeds: float
  examples: float
  both: float
  seed_degrees: float

  @property
  def shared(self) -> float:
    """The part of the variance from examples on which all seeds agree."""
    return max(0.0, self.examples - self.both)

  @property
  def degrees(self) -> float:
    """Degrees of freedom of seeds + shared."""
    return _satterthwaite((self.seeds, self.shared), (self.seed_degrees, len(self.example_N) - 1))


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
  """interval: percentiles of the draws. p: two-sided, for no difference; it is at most 0.05 exactly if the
  interval excludes 0. parts: where the variance comes from."""

  interval: ConfidenceInterval
  p: float
  parts: Parts


def parts(cells: Sequence, signs: Sequence[int] = (1,)) -> Parts:
  """The Parts of a signed sum of scores.

  Args:
    cells: K arrays float or bool [S, N], numbers per seed and test example, N >= 2.
    signs: K times 1 or -1.
  """
  cells_KSN = np.asarray(cells, np.float64)
  _, seeds, examples = cells_KSN.shape
  values_SN = np.einsum('ksn,k->sn', cells_KSN, np.asarray(signs, np.float64))
  mean_S, mean_N = values_SN.mean(1), values_SN.mean(0)
  mean = float(mean_S.mean())
  example_N = mean_N - mean
  of_examples = float(example_N @ example_N) / (examples - 1) / examples
  if seeds == 1:
    return Parts(mean, example_N, 1, 0.0, of_examples, 0.0, 0.0)
  rest_SN = values_SN - mean_S[:, None] - example_N
  both = float((rest_SN**2).sum()) / ((seeds - 1) * (examples - 1)) / (seeds * examples)
  of_cells_K = cells_KSN.mean(2).var(1, ddof=1) / seeds
  degrees = _satterthwaite(of_cells_K, [seeds - 1] * len(of_cells_K))
  return Parts(mean, example_N, seeds, float(of_cells_K.sum()), of_examples, both, degrees)


def _satterthwaite(variances, degrees):
  """Degrees of freedom of a sum of independent variances; those of the last where all are 0."""
  total = sum(variances)
  # Shares of the total, because the squared variances of a meaningless R2 overflow.
  squares = sum((v / total) ** 2 / d for v, d in zip(variances, degrees, strict=True) if v > 0)
  return float(1 / squares) if squares > 0 else float(degrees[-1])


def draws(of: Sequence[Parts], *, stream: int = 0, resamples: int = RESAMPLES):
  """Resampled sums of scores (see above), the same at every call.

  Args:
    of: P Parts, all on the same test examples. Their seeds vary independently.
    stream: selects the random numbers; Parts on other test examples take another stream.

  Returns:
    float64 [resamples, P].
  """
  count = len(of[0].example_N)
  stretch = math.sqrt(count / (count - 1)) * t_quantile(count - 1) / normal_quantile()
  scale_P = [stretch * math.sqrt(p.shared / p.examples) if p.examples > 0 else 0.0 for p in of]
  example_NP = np.stack([scale * p.example_N for scale, p in zip(scale_P, of, strict=True)], 1)
  size_P = np.maximum(np.abs(example_NP).max(0) / 1e30, 1.0)  # float32, in which sums are fast, ends at 3e38
  example_NP = (example_NP / size_P).astype(np.float32)
  rng = np.random.default_rng([SEED, stream])
  times_RN = np.empty((max(1, CHUNK // count), count), np.float32)
  drawn_BP = np.empty((resamples, len(of)))
  for start in range(0, resamples, len(times_RN)):
    now_RN = times_RN[: resamples - start]
    drawn_RN = rng.integers(count, size=now_RN.shape, dtype=np.int32)
    for times_N, drawn_N in zip(now_RN, drawn_RN, strict=True):
      times_N[:] = np.bincount(drawn_N, minlength=count)
    drawn_BP[start : start + len(now_RN)] = now_RN @ example_NP / count * size_P
  for number, p in enumerate(of):
    if p.seeds > 0:
      noise = np.random.default_rng([SEED, stream, *_bits(abs(p.mean), p.seeds)])
      t_B = noise.permutation(_t_quantiles(p.seed_degrees, resamples))
      # With the sign of the sum, so that the opposite sum has the opposite draws.
      drawn_BP[:, number] += math.copysign(math.sqrt(p.seeds), p.mean) * t_B
  return drawn_BP + np.array([p.mean for p in of])


@functools.lru_cache(maxsize=64)
def _t_quantiles(degrees, count):
  """Evenly spread quantiles of Student's t: with few degrees of freedom the ends of random ones are wild."""
  from scipy import special  # slow to import

  upper = special.stdtrit(degrees, (np.arange(count // 2, count) + 0.5) / count)
  return np.concatenate([-upper[::-1][: count // 2], upper])


def _bits(*values):
  """Whole numbers that differ where the values do; so noise does not depend on what else is drawn."""
  with np.errstate(over='ignore'):
    return np.array(values, np.float32).view(np.uint32).tolist()


def estimates(of: Sequence[Parts], bounds, *, what='test examples', stream=0, resamples=RESAMPLES):
  """An Estimate of each of several Parts on the same test examples.

  The limits are the order statistics of `draws` that leave out 2.5 % on each side, cut at `bounds`; p is
  twice the smaller share of draws beyond 0, with one added to numerator and denominator (Davison and Hinkley
  1997, Bootstrap Methods, section 4.4). If no draw lies beyond 0, the draws only say that p is at most
  2 / (RESAMPLES + 1); p is then that of Student's t with the same variance, if that is smaller. If values do
  not vary at all, an estimate is still not certain: the limits are then those of Wilson for 0 of N, and p is
  that of the sign test.

  Args:
    of: P Parts.
    bounds: (smallest, largest) possible value of all, or of each [P, 2].
    what: the name of the units.
  """
  if not of:
    return []
  drawn_BP = np.sort(draws(of, stream=stream, resamples=resamples), axis=0)
  edge = round((1 - LEVEL) / 2 * (resamples + 1))
  made, bounds_P2 = [], np.broadcast_to(np.asarray(bounds, np.float64), (len(of), 2))
  for p, drawn_B, (smallest, largest) in zip(of, drawn_BP.T, bounds_P2, strict=True):
    count = len(p.example_N)
    seeds = f't over {p.count} seeds' if p.count > 1 else 'one seed'
    method = f'bootstrap over the {count:,} {what}, {seeds}'
    low, high = drawn_B[edge - 1], drawn_B[-edge]
    beyond = min(np.sum(drawn_B <= 0), np.sum(drawn_B >= 0))
    value = min(1.0, 2 * (1 + float(beyond)) / (resamples + 1))
    if p.seeds + p.shared <= 0:
      reach = wilson(0, count).high * max(abs(smallest), abs(largest))
      low, high = p.mean - reach, p.mean + reach
      value = 1.0 if low <= 0 <= high else min(1.0, max(2 / (resamples + 1), 2 * 0.5**count))
    elif not beyond:
      value = min(value, _t_tails(p.mean / math.sqrt(p.seeds + p.shared), p.degrees))
    limits = (float(min(max(limit, smallest), largest)) for limit in (low, high))
    made.append(Estimate(ConfidenceInterval(p.mean, *limits, method), value, p))
  return made


def _t_tails(t, degrees):
  from scipy import special  # slow to import

  return 2 * float(special.stdtr(degrees, -abs(t)))


def kendall(x, y):
  """Kendall's tau-b of two rankings (Kendall 1945, Biometrika 33:239), as `scipy.stats.kendalltau`.

  Args:
    x, y: float [..., M], scores of M >= 2 models.

  Returns:
    float64 [...]: 1 for the same order, -1 for the opposite; NaN where all models tie.
  """
  x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
  first, second = np.triu_indices(x.shape[-1], 1)
  sign_x, sign_y = (np.sign(v[..., first] - v[..., second]) for v in (x, y))
  with np.errstate(invalid='ignore', divide='ignore'):
    return (sign_x * sign_y).sum(-1) / np.sqrt((sign_x**2).sum(-1) * (sign_y**2).sum(-1))


def rank_stabilities(rankings) -> list[ConfidenceInterval]:
  """Means over tasks of Kendall's tau-b between the scores of the same models in two ways of training.

  Args:
    rankings: for every ranking a list of tasks; for every task two lists of Parts, in the order of the models
      and on the same test examples.

  Returns:
    For every ranking the mean and the percentiles of the means of `draws`; a draw without any order counts 0.
    The limits are no confidence interval: noise can only disturb an order, and a draw has the noise of the
    runs and its own, so the limits are too close to 0. NaN if no task has an order.
  """
  taus, drawn, together = [[] for _ in rankings], [[] for _ in rankings], {}
  for place, tasks in enumerate(rankings):
    for number, (before, after) in enumerate(tasks):
      tau = float(kendall(*([p.mean for p in side] for side in (before, after))))
      if not math.isnan(tau):
        taus[place].append(tau)
        together.setdefault((number, len(before[0].example_N)), []).append((place, before, after))
  for (number, _), same in together.items():  # resampled once, which takes longer than the sums
    of = [p for _, before, after in same for p in (*before, *after)]
    ends = np.cumsum([len(side) for _, *sides in same for side in sides])[:-1]
    sides = np.split(draws(of, stream=number), ends, axis=1)
    for (place, *_), before_BP, after_BP in zip(same, sides[::2], sides[1::2], strict=True):
      drawn[place].append(np.nan_to_num(kendall(before_BP, after_BP)))
  return list(map(_order, taus, drawn))


def _order(taus, drawn) -> ConfidenceInterval:
  """The interval of the mean of taus from their draws; NaN without any."""
  if not taus:
    return ConfidenceInterval(math.nan, math.nan, math.nan, 'no order to compare')
  drawn_B = np.sort(np.mean(drawn, axis=0))
  edge = round((1 - LEVEL) / 2 * (len(drawn_B) + 1))
  low, high = float(drawn_B[edge - 1]), float(drawn_B[-edge])
  return ConfidenceInterval(sum(taus) / len(taus), low, high, 'bootstrap over test examples and seeds')


def beats_chance(correct: int, total: int, chance: float) -> bool:
  """True if so many right answers are too many for a constant answer: P(X >= correct) < 1e-6 for X ~
  Binomial(total, chance), the one-sided binomial test."""
  from scipy import special  # slow to import

  return correct > 0 and chance < 1 and float(special.bdtrc(correct - 1, total, chance)) < CHANCE_P


def holm(p_values: Sequence[float], more: int = 0) -> list[float]:
  """Adjusted p values of several comparisons (Holm 1979, Scand. J. Stat. 6:65), in their order.

  The k-th smallest of m is multiplied by m - k + 1. An adjusted p is never below that of a smaller p, and
  never above 1. The chance that any of the comparisons without a difference has an adjusted p of at most 0.05
  is at most 5 %.

  Args:
    p_values: of the comparisons.
    more: the number of further comparisons that are planned; their p is not known yet and counts as 1.
  """
  order = sorted(range(len(p_values)), key=lambda i: p_values[i])
  adjusted, largest = [0.0] * len(p_values), 0.0
  for rank, i in enumerate(order):
    largest = max(largest, min(1.0, (len(p_values) + more - rank) * p_values[i]))
    adjusted[i] = largest
  return adjusted


def smallest_difference(of: Sequence[Parts], seeds: int | None = None, comparisons: int = 1) -> float:
  """The smallest true difference that a two-sided test at 5 % finds with a probability of 80 %.

  It is (t_0.975 + t_0.8) sqrt(V), Bloom 1995, Evaluation Review 19:547. V is the variance with this number of
  seeds, between / seeds + (shared + own / seeds) / N. For one seed and accuracies, shared + own is the share
  of discordant answers less the squared gain, which gives the formula of Connor 1987, Biometrics 43:207.
  Degrees of freedom are those of Satterthwaite, as in `Parts`.

  Args:
    of: Parts of gains, on the same test examples and with equally many seeds; their variances are averaged.
      Parts of one seed say something about two runs only.
    seeds: the planned number of seeds, if `of` has several; None: as many as the first of `of`.
    comparisons: the number of gains among which it is the clearest (Holm).
  """
  have = of[0].count
  seeds = have if seeds is None else seeds
  mean = {name: sum(getattr(p, name) for p in of) / len(of) for name in ('seeds', 'shared', 'seed_degrees')}
  of_seeds = mean['seeds'] * have / seeds
  seed_degrees = mean['seed_degrees'] * (seeds - 1) / max(1, have - 1)
  degrees = _satterthwaite((of_seeds, mean['shared']), (seed_degrees, len(of[0].example_N) - 1))
  quantiles = t_quantile(degrees, 1 - (1 - LEVEL) / comparisons) + t_quantile(degrees, 2 * POWER - 1)
  return quantiles * math.sqrt(of_seeds + mean['shared'])
