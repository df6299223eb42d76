"""Uncertainty: intervals for scores and for paired gains, over test examples and over seeds.

A score is the mean of one number per unit: whether a test example was answered correctly (accuracy), or
another of `jackknife.score_units`. Accuracies, gains and limits are fractions (0.5 is 50 %). Two sources of
chance are kept apart:

* The test examples, or the groups of those that belong together, are a sample: `wilson` and `grouped_share`
  (one accuracy), `tango` and `mcnemar` (two runs, same examples), `r2_interval` (one R2), `bounded_interval`
  (others).
* The seed (initialisation, order of examples, masks) is a sample too: `pooled` over several seeds.
"""

import dataclasses
import math
from statistics import NormalDist

import numpy as np

LEVEL = 0.95
LARGEST_EXPONENT = 20  # a limit of R2 below -exp(20) says nothing


@dataclasses.dataclass(frozen=True)
class ConfidenceInterval:
  """An estimate with the limits of its confidence interval, NaN where nothing is known of them; `method` says
  in words how they were computed."""

  estimate: float
  low: float
  high: float
  method: str

  @property
  def known(self):
    return math.isfinite(self.low) and math.isfinite(self.high)

  @property
  def excludes_zero(self):
    return self.low > 0 or self.high < 0


@dataclasses.dataclass(frozen=True)
class Paired:
  """Two runs on the same test examples: how many only one got right, accuracy of b minus a, exact p."""

  only_a: int
  only_b: int
  interval: ConfidenceInterval
  p: float


def normal_quantile():
  """Two-sided normal quantile: 1.960 for LEVEL 0.95."""
  return NormalDist().inv_cdf(0.5 + LEVEL / 2)


def t_quantile(degrees, level=LEVEL):
  """Two-sided quantile of Student's t: 2.776 for 4 degrees of freedom, level 0.95."""
  from scipy import special  # slow to import

  return float(special.stdtrit(degrees, 0.5 + level / 2))


def wilson(correct, total):
  """Wilson's score interval for one accuracy (Wilson 1927, JASA 22:209): |x/n - p| <= z sqrt(p(1-p)/n).

  Args: correct, total: whole numbers, 0 <= correct <= total, total >= 1.
  """
  z2 = normal_quantile() ** 2
  return _score_interval(correct / total, total, z2, 'Wilson score interval over the test examples')


def _score_interval(share, total, z2, method):
  centre = (share + z2 / (2 * total)) / (1 + z2 / total)
  half = math.sqrt(z2 * (share * (1 - share) / total + z2 / (4 * total * total))) / (1 + z2 / total)
  # Rounding may leave the limit a hair on the wrong side of the estimate when all or none are correct.
  low = 0.0 if share == 0 else max(0.0, centre - half)
  high = 1.0 if share == 1 else min(1.0, centre + half)
  return ConfidenceInterval(share, low, high, method)


def group_units(right_N, group_N) -> np.ndarray | None:
  """One number per group of test examples, whose mean is the accuracy and whose spread is its error.

  Groups of unequal size make the accuracy a ratio; the units are its linearisation (Cochran 1977, Sampling
  Techniques, section 6.3), mean + (right_g - mean count_g) G / N.

  Args:
    right_N: bool [N]. group_N: [N], which examples belong together.

  Returns:
    float64 [G], in the order of the groups' numbers; None of fewer than two.
  """
  place_N = np.unique(group_N, return_inverse=True)[1]
  right_G, count_G = np.bincount(place_N, np.asarray(right_N, float)), np.bincount(place_N)
  if len(count_G) < 2:
    return None
  mean = right_G.sum() / len(place_N)
  return mean + (right_G - mean * count_G) * len(count_G) / len(place_N)


def effective_examples(units_G, examples) -> float:
  """Returns how many independent examples would give an accuracy as exactly as these groups, from its
  `group_units` (Kish 1965, Survey Sampling, section 8.2): at least one per group, at most `examples`."""
  share = float(np.mean(units_G))
  variance = float(np.var(units_G, ddof=1)) / len(units_G)
  if variance == 0:
    return float(len(units_G) if share in (0.0, 1.0) else examples)
  return min(max(share * (1 - share) / variance, len(units_G)), examples)


def grouped_share(units_G, examples, what='groups'):
  """Interval of one accuracy from its `group_units`: Wilson's for `effective_examples`, with Student's t of
  G - 1 degrees of freedom (Korn and Graubard 1998, Survey Methodology 24:193)."""
  z2 = t_quantile(len(units_G) - 1) ** 2
  total = effective_examples(units_G, examples)
  return _score_interval(
    float(np.mean(units_G)), total, z2, f'Wilson score interval over {len(units_G):,} {what}'
  )


def tango(only_a, only_b, total):
  """Tango's score interval for a paired difference of accuracies, b minus a (Tango 1998, Stat. Med. 17:891).

  It holds the differences d with |only_b - only_a - n d| <= z sqrt(n (2 q + d (1 - d))), where q is the
  maximum likelihood estimate of P(only a right) under the difference d: the larger root of
  2 n q^2 - (only_a + only_b - (2 n - only_b + only_a) d) q - only_a d (1 - d) = 0.
  It excludes 0 exactly when McNemar's z = (only_b - only_a) / sqrt(only_a + only_b) exceeds the normal
  quantile.

  Args: only_a, only_b: examples that only a, only b answered correctly; total: all test examples n >= 1.
  """
  z = normal_quantile()
  estimate = (only_b - only_a) / total

  def score(d):  # falls from above z to below -z as d goes from -1 to 1
    half_b = (only_a + only_b - (2 * total - only_b + only_a) * d) / 2
    q = (half_b + math.sqrt(max(0.0, half_b**2 + 2 * total * only_a * d * (1 - d)))) / (2 * total)
    spread = total * (2 * q + d * (1 - d))
    distance = only_b - only_a - total * d
    if spread <= 0:
      return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(spread)

  def root(inner, outer, target):  # the limit lies between the estimate and -1 or 1
    for _ in range(60):
      middle = (inner + outer) / 2
      inside = abs(score(middle)) <= target
      inner, outer = (middle, outer) if inside else (inner, middle)
    return inner

  return ConfidenceInterval(
    estimate,
    root(estimate, -1.0, z),
    root(estimate, 1.0, z),
    "Tango's score interval over the paired test examples",
  )


def mcnemar(only_a, only_b):
  """Exact two-sided p of McNemar's test: 2 P(X <= min) for X ~ Binomial(only_a + only_b, 1/2), at most 1.

  Source: McNemar 1947, Psychometrika 12:153; the exact form as in Agresti, Categorical Data Analysis, 10.1.
  """
  total, ways, outcomes = only_a + only_b, 1, 0  # in whole numbers: exact, and without a library to import
  for right in range(min(only_a, only_b) + 1):
    outcomes += ways
    ways = ways * (total - right) // (right + 1)
  return min(1.0, 2 * outcomes / 2**total)


def paired(correct_a_N, correct_b_N):
  """Compares two runs on the same test examples, b minus a.

  Args: correct_a_N, correct_b_N: bool [N], whether each run answered example i correctly, in the same order.
  Returns: Paired.
  """
  a_N, b_N = np.asarray(correct_a_N, bool), np.asarray(correct_b_N, bool)
  only_a, only_b = int(np.sum(a_N & ~b_N)), int(np.sum(b_N & ~a_N))
  return Paired(only_a, only_b, tango(only_a, only_b, a_N.size), mcnemar(only_a, only_b))


def r2_interval(units_G, what='test examples'):
  """The interval of one R2 from its jackknife units: Student's t with G - 1 degrees of freedom, of
  log(1 - R2).

  log(1 - R2) is closer to normal than R2, and keeps the limits below 1. In simulations
  (tests/report/test_r2.py) the interval holds the truth in 94 % of cases with 30 or more independent units,
  in 90 to 93 % with 6 to 50 groups that differ. The lower limit is -inf where it says nothing."""
  share, deviation = 1 - float(np.mean(units_G)), float(np.std(units_G, ddof=1))
  half = t_quantile(len(units_G) - 1) * deviation / math.sqrt(len(units_G))
  method = f'jackknife over the {len(units_G):,} {what}, t interval for log(1 - R\u00b2)'
  if share <= 0:
    return ConfidenceInterval(1.0, 1.0, 1.0, method)
  # Two or three groups that differ wildly bound nothing, and no float may hold the lower limit.
  low = 1 - share * math.exp(half / share) if half / share < LARGEST_EXPONENT else -math.inf
  return ConfidenceInterval(1 - share, low, 1 - share * math.exp(-half / share), method)


def bounded_interval(units_G, what='test examples'):
  """The interval of a score from 0 to 1, such as F1 or AUROC, from its jackknife units. It is Wilson's for
  the number of answers that would have the same variance, with Student's t of G - 1 degrees of freedom.

  In simulations (tests/report/test_jackknife.py) it holds the truth in 93 to 96 % of cases with 200 examples,
  or with 12 groups whose errors are alike."""
  share, units = float(np.mean(units_G)), len(units_G)
  variance = float(np.var(units_G, ddof=1)) / units
  total = max(1.0, share * (1 - share) / variance) if variance > 0 else units
  method = f'Wilson score interval with the jackknife variance over the {units:,} {what}'
  return _score_interval(share, total, t_quantile(units - 1) ** 2, method)


def score_interval(score, value, examples, units, grouped: bool, what) -> ConfidenceInterval:
  """Interval of one value of a `scores.Score`. units: its `jackknife.score_units`, or None if they are not
  known; then only an accuracy of independent examples has limits."""
  if score.counts and not grouped:
    return wilson(round(value * examples), examples)
  if units is None:
    kind = what if grouped else 'examples'
    kind += ' whose labels vary' if score.key == 'r2' else ''
    method = f'no interval without predictions of at least two {kind}'
    return ConfidenceInterval(value, math.nan, math.nan, method)
  if score.counts:
    return grouped_share(units, examples, what)
  return (r2_interval if score.key == 'r2' else bounded_interval)(units, what)


def pooled(values, same_examples, bounds, what='test examples'):
  """Mean over S >= 2 seeds with an interval that holds both chances: which seeds and which test examples.

  Args:
    values: S arrays float or bool [n_s]: per test example correct (0, 1), or correct b minus correct a (-1,
    0, 1); or other `jackknife.score_units`, or their differences.
    same_examples: whether all seeds were tested on the same examples in the same order.
    bounds: (smallest, largest) possible value; limits are cut there.
    what: how the units are called in `method`.

  With m_s the mean of seed s, v_s = var(values_s) / n_s and m the plain mean of the m_s, it is one of:

  * test examples drawn anew for every seed: the t interval over seed means, m +- t_{S-1} sd(m_s) / sqrt(S).
    The m_s are independent and each carries its own test-sampling error, so sd(m_s) holds both variances.
  * same test examples: sd(m_s) alone would miss the error that all seeds share. Two-way variance V = V_seeds
    + V_examples - V_both (Cameron, Gelbach and Miller 2011, J. Bus. Econ. Stat. 29:238) with V_seeds =
    var(m_s) / S, V_examples = var over examples of the mean over seeds / n, V_both = mean square of all S n
    deviations / (S n), V never below the larger of the first two; m +- t sqrt(V) with the degrees of freedom
    of Satterthwaite (1946, Biometrics 2:110) for V_seeds with S - 1 and V - V_seeds with n - 1.

  The interval is never narrower than that of the given seeds, m +- t sqrt(sum v_s) / S with min n_s - 1
  degrees of freedom, for which only the test examples are chance: few seeds can agree by luck.
  """
  values = [np.asarray(v, np.float64) for v in values]
  seeds = len(values)
  means_S = np.array([v.mean() for v in values])
  mean = float(means_S.mean())
  within = sum(float(v.var()) / max(1, v.size - 1) for v in values) / seeds**2
  seed_variance = float(means_S.var(ddof=1)) / seeds
  half_given = t_quantile(max(1, min(v.size for v in values) - 1)) * math.sqrt(within)
  if same_examples:
    values_SN = np.stack(values)
    n = values_SN.shape[1]
    example_variance = float(values_SN.mean(axis=0).var()) / max(1, n - 1)
    shared = float(((values_SN - mean) ** 2).sum()) / (seeds * n) ** 2
    variance = max(seed_variance + example_variance - shared, seed_variance, example_variance)
    of_seeds = seed_variance / variance if variance > 0 else 0.0
    degrees = 1 / (of_seeds**2 / (seeds - 1) + (1 - of_seeds) ** 2 / max(1, n - 1))
    method = f'two-way t interval over {seeds} seeds and the {what} they share'
  else:
    variance, degrees = seed_variance, seeds - 1
    method = f't interval over the means of {seeds} seeds, each with its own {what} ({seeds - 1} d.f.)'
  half = max(half_given, t_quantile(max(1, degrees)) * math.sqrt(variance))
  limits = (float(min(max(limit, bounds[0]), bounds[1])) for limit in (mean - half, mean + half))
  return ConfidenceInterval(mean, *limits, method)
