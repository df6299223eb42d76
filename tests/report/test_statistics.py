import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from lra_spt.report.statistics import intervals as statistics


def counts():
  """(both, only_a, only_b, neither) with at least one example."""
  return st.tuples(*[st.integers(0, 60)] * 4).filter(any)


def lists_of(both, only_a, only_b, neither):
  a_N = np.repeat([True, True, False, False], (both, only_a, only_b, neither))
  b_N = np.repeat([True, False, True, False], (both, only_a, only_b, neither))
  return a_N, b_N


@pytest.mark.parametrize(
  'correct, total, low, high',
  [
    # Newcombe 1998, Stat. Med. 17:857, Table I, method 3.
    (81, 263, 0.2553, 0.3662),
    (15, 148, 0.0624, 0.1605),
    (0, 20, 0.0, 0.1611),
    (1, 29, 0.0061, 0.1718),
  ],
)
def test_wilson_agrees_with_published_examples(correct, total, low, high):
  interval = statistics.wilson(correct, total)
  assert interval.estimate == correct / total
  assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_symmetric_and_bounded(case):
  correct, total = case
  interval = statistics.wilson(correct, total)
  mirrored = statistics.wilson(total - correct, total)
  assert 0 <= interval.low <= interval.estimate <= interval.high <= 1
  assert interval.low == pytest.approx(1 - mirrored.high, abs=1e-12)


def test_quantiles():
  assert statistics.normal_quantile() == pytest.approx(1.959964, abs=1e-6)
  tabled = {1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262, 30: 2.042}
  assert {d: round(statistics.t_quantile(d), 3) for d in tabled} == tabled


def test_mcnemar_by_hand():
  # 14 discordant examples, 2 on the smaller side: 2 (1 + 14 + 91) / 2^14.
  assert statistics.mcnemar(2, 12) == pytest.approx(2 * 106 / 2**14)
  assert statistics.mcnemar(12, 2) == statistics.mcnemar(2, 12)
  assert statistics.mcnemar(5, 5) == 1 == statistics.mcnemar(0, 0)


@pytest.mark.parametrize('only_a, only_b', [(0, 3), (100, 140), (3000, 3300), (900, 1300), (0, 25_000)])
def test_mcnemar_is_the_binomial_tail(only_a, only_b):
  tail = special.bdtr(min(only_a, only_b), only_a + only_b, 0.5)
  assert statistics.mcnemar(only_a, only_b) == pytest.approx(2 * tail, rel=1e-9)


@pytest.mark.parametrize('only_a, only_b, total', [(2, 12, 50), (20, 40, 160), (0, 5, 30), (7, 0, 40)])
def test_tango_limits_solve_the_score_equation(only_a, only_b, total):
  """At both limits the score equals the quantile. The restricted estimate in it is found by search here."""
  interval = statistics.tango(only_a, only_b, total)
  for d in (interval.low, interval.high):
    q = np.linspace(max(0, -d) + 1e-9, (1 - d) / 2 - 1e-9, 400_001)
    likelihood = (
      only_a * np.log(q) + only_b * np.log(q + d) + (total - only_a - only_b) * np.log(1 - 2 * q - d)
    )
    q = q[likelihood.argmax()]
    score = (only_b - only_a - total * d) / math.sqrt(total * (2 * q + d * (1 - d)))
    assert abs(score) == pytest.approx(1.959964, abs=2e-3)


@given(counts())
@settings(deadline=None)
def test_paired_is_antisymmetric_bounded_and_agrees_with_mcnemar(case):
  a_N, b_N = lists_of(*case)
  result, swapped = statistics.paired(a_N, b_N), statistics.paired(b_N, a_N)
  assert (result.only_a, result.only_b) == case[1:3]
  interval = result.interval
  assert -1 <= interval.low <= interval.estimate <= interval.high <= 1
  assert interval.estimate == pytest.approx(b_N.mean() - a_N.mean())
  assert interval.low == pytest.approx(-swapped.interval.high, abs=1e-9)
  assert 0 < result.p <= 1
  assert result.p == swapped.p
  discordant = result.only_a + result.only_b
  z = abs(result.only_b - result.only_a) / math.sqrt(discordant) if discordant else 0.0
  if abs(z - 1.959964) > 1e-3:
    assert interval.excludes_zero == (z > 1.959964)


@given(counts(), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_paired_does_not_depend_on_the_order_of_examples(case, seed):
  a_N, b_N = lists_of(*case)
  order = np.random.default_rng(seed).permutation(a_N.size)
  assert statistics.paired(a_N[order], b_N[order]) == statistics.paired(a_N, b_N)


def test_identical_predictions_leave_no_zero_width():
  interval = statistics.paired(np.ones(100, bool), np.ones(100, bool)).interval
  assert interval.low == pytest.approx(-interval.high)
  # z^2 / (n + z^2), the Wilson limit of 0 of 100.
  assert interval.high == pytest.approx(statistics.wilson(0, 100).high, abs=1e-9)


def half_of_given_seeds(values):
  """Returns half the width of the interval that takes the seeds as fixed and only the examples as random."""
  within = sum(np.var(v) / (len(v) - 1) for v in values) / len(values) ** 2
  return statistics.t_quantile(min(map(len, values)) - 1) * math.sqrt(within)


def test_pooled_by_hand_with_test_examples_of_their_own():
  """The means of seeds are 0.1, 0.3, 0.2: mean 0.2, sd 0.1. t with 2 degrees of freedom is 4.3027."""
  values = [np.repeat([1, 0], (right, 1000 - right)) for right in (100, 300, 200)]
  pooled = statistics.pooled(values, False, (0, 1))
  assert pooled.estimate == pytest.approx(0.2)
  half = 4.302653 * 0.1 / math.sqrt(3)
  assert pooled.high == pytest.approx(0.2 + half, abs=1e-6)
  assert pooled.low == 0  # cut at the smallest possible value


def test_pooled_by_hand_with_shared_test_examples():
  values_SN = np.array([[1, 0, 0, 0], [1, 1, 1, 0]], float)
  # Seed means 0.25, 0.75; example means 1, 0.5, 0.5, 0; grand mean 0.5, all 8 squared deviations 0.25.
  seeds, examples, both = 0.125 / 2, 0.125 / 3, 8 * 0.25 / 64
  variance = seeds + examples - both
  degrees = variance**2 / (seeds**2 / 1 + (variance - seeds) ** 2 / 3)
  half = statistics.t_quantile(degrees) * math.sqrt(variance)
  pooled = statistics.pooled(values_SN, True, (-9, 9))
  assert pooled.low == pytest.approx(0.5 - half)
  assert pooled.high == pytest.approx(0.5 + half)


@given(
  st.lists(st.lists(st.sampled_from([-1, 0, 1]), min_size=6, max_size=6), min_size=2, max_size=5),
  st.booleans(),
  st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_pooled_holds_its_properties(values, same, random):
  interval, half = statistics.pooled(values, same, (-1, 1)), half_of_given_seeds(values)
  assert -1 <= interval.low <= interval.estimate <= interval.high <= 1
  assert interval.low <= max(-1, interval.estimate - half) + 1e-12
  assert interval.high >= min(1, interval.estimate + half) - 1e-12
  negated = statistics.pooled(-np.array(values), same, (-1, 1))
  assert interval.low == pytest.approx(-negated.high, abs=1e-12)
  order = random.sample(range(6), 6)
  shuffled = [[row[i] for i in order] for row in random.sample(values, len(values))]
  again = statistics.pooled(shuffled, same, (-1, 1))
  assert (again.low, again.high) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_coverage_of_wilson_and_tango():
  """95 % intervals of 1,500 simulated samples hold the truth in 93 to 97.5 % of them."""
  rng = np.random.default_rng(0)
  held = [
    interval.low <= 0.3 <= interval.high
    for interval in (statistics.wilson(int(k), 150) for k in rng.binomial(150, 0.3, 1500))
  ]
  assert 0.93 <= np.mean(held) <= 0.975
  draws = rng.multinomial(150, [0.3, 0.1, 0.18, 0.42], 1500)
  held = [
    interval.low <= 0.08 <= interval.high
    for interval in (statistics.tango(int(a), int(b), 150) for _, a, b, _ in draws)
  ]
  assert 0.93 <= np.mean(held) <= 0.975


@pytest.mark.parametrize('groups, size', [(8, 25), (40, 10)])
def test_coverage_of_an_accuracy_over_groups(groups, size):
  """In 1,000 simulated samples groups differ, also in size. Intervals that ignore groups miss too often."""
  rng = np.random.default_rng(2)
  held, narrow = [], []
  for _ in range(1000):
    count_G = rng.integers(size // 2, 2 * size, groups)
    group_N = np.repeat(np.arange(groups), count_G)
    right_N = rng.random(len(group_N)) < rng.beta(3, 2, groups)[group_N]
    units_G = statistics.group_units(right_N, group_N)
    interval = statistics.grouped_share(units_G, len(right_N))
    alone = statistics.wilson(int(right_N.sum()), len(right_N))
    held.append(interval.low <= 0.6 <= interval.high)
    narrow.append(alone.low <= 0.6 <= alone.high)
  assert 0.91 <= np.mean(held) <= 0.98
  assert np.mean(narrow) < 0.8


def test_groups_that_are_alike_inside_count_once():
  right_G = np.repeat([True, False], (30, 10))
  many = statistics.group_units(np.repeat(right_G, 7), np.repeat(np.arange(40), 7))
  assert statistics.effective_examples(many, 280) == 40
  once = statistics.wilson(30, 40)
  actual = statistics.grouped_share(many, 280)
  assert actual.low == pytest.approx(once.low, abs=0.01)
  assert actual.high == pytest.approx(once.high, abs=0.01)
  assert statistics.group_units(right_G, np.zeros(40)) is None


@pytest.mark.parametrize('right, expected', [(1.0, 5), (0.0, 5), (0.5, 50)])
def test_groups_without_spread(right, expected):
  """If all answers are right or all wrong, groups count; if all groups are alike, examples count."""
  right_N = np.tile(np.arange(10) < 10 * right, 5)
  units_G = statistics.group_units(right_N, np.repeat(np.arange(5), 10))
  assert statistics.effective_examples(units_G, 50) == expected
  interval = statistics.grouped_share(units_G, 50)
  assert 0 <= interval.low <= right <= interval.high <= 1
  assert interval.high - interval.low > 0.1


@pytest.mark.parametrize('same', [True, False])
def test_coverage_of_the_pooled_interval(same):
  """The pooled interval covers if seeds and examples vary. That of fixed seeds does not cover then."""
  rng = np.random.default_rng(1)
  seeds, n, repeats = 5, 200, 1000
  for seed_sd, lowest in ((0.0, 0.94), (0.05, 0.92)):
    held, narrow = [], []
    for _ in range(repeats):
      values_SN = (
        rng.normal(0, seed_sd, (seeds, 1))
        + rng.normal(0, 0.3, (1 if same else seeds, n))
        + rng.normal(0, 0.4, (seeds, n))
      )
      pooled = statistics.pooled(values_SN, same, (-99, 99))
      held.append(pooled.low <= 0 <= pooled.high)
      narrow.append(abs(pooled.estimate) <= half_of_given_seeds(values_SN))
    assert lowest <= np.mean(held) <= 0.995
    if seed_sd:
      assert np.mean(narrow) < 0.85


def test_agreeing_seeds_do_not_hide_the_error_of_few_examples():
  values = list(itertools.repeat(np.repeat([1.0, 0.0], (12, 28)), 3))
  for same in (True, False):
    pooled = statistics.pooled(values, same, (0, 1))
    assert pooled.high - pooled.low > 0.15
