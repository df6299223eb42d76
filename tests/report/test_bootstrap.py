"""Gains, gaps and rankings agree with scipy or independent code, have symmetries, and intervals cover."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lra_spt.report.statistics import bootstrap
from lra_spt.report.statistics import intervals as statistics

GAIN, GAP = (1, -1), (1, -1, -1, 1)


def cells(rng, count, seeds, examples, seed_sd, ability=0.3):
  """Answers bool [S, N] of each cell. One is right if the run's skill exceeds the example's difficulty."""
  asked_N = rng.normal(size=examples)
  return [
    rng.normal(0, 0.4, examples) + rng.normal(0, 0.6, (seeds, examples)) + rng.normal(0, seed_sd, (seeds, 1))
    > asked_N - ability
    for _ in range(count)
  ]


def estimate(of_cells, signs, bounds=(-2, 2), **options):
  return bootstrap.estimates([bootstrap.parts(of_cells, signs)], bounds, **options)[0]


@pytest.mark.parametrize(
  ('seeds', 'seed_sd', 'signs'), [(1, 0.0, GAP), (3, 0.05, GAP), (5, 0.05, GAIN), (5, 0.2, GAP)]
)
def test_95_percent_intervals_cover(seeds, seed_sd, signs):
  """The models of 2,000 simulated studies are alike, so that the true difference is 0."""
  rng = np.random.default_rng(seeds)
  studies = [bootstrap.parts(cells(rng, len(signs), seeds, 200, seed_sd), signs) for _ in range(2000)]
  actual = bootstrap.estimates(studies, (-2, 2), resamples=999)
  held = np.mean([one.interval.low <= 0 <= one.interval.high for one in actual])
  assert 0.93 <= held <= 0.97
  assert all((one.p <= 0.05) == one.interval.excludes_zero for one in actual)
  # p is below a level in about that share of studies at most.
  for level in (0.01, 0.05, 0.2):
    assert np.mean([one.p <= level for one in actual]) <= level + 0.015


@pytest.mark.parametrize('seed_sd', [0.0, 0.2])
def test_two_seeds_cover_at_least_as_often(seed_sd):
  rng = np.random.default_rng(0)
  studies = [bootstrap.parts(cells(rng, 2, 2, 200, seed_sd), GAIN) for _ in range(1000)]
  actual = bootstrap.estimates(studies, (-1, 1), resamples=999)
  assert np.mean([one.interval.low <= 0 <= one.interval.high for one in actual]) >= 0.95


def test_one_seed_is_the_paired_bootstrap():
  """The interval equals scipy's percentile bootstrap and is close to Tango's score interval."""
  a, b = cells(np.random.default_rng(3), 2, 1, 400, 0.0)
  actual = estimate([a, b], GAIN, (-1, 1)).interval
  difference_N = a[0].astype(float) - b[0]
  theirs = stats.bootstrap(
    (difference_N,), np.mean, n_resamples=4000, method='percentile', random_state=np.random.default_rng(0)
  ).confidence_interval
  assert (actual.low, actual.high) == pytest.approx((theirs.low, theirs.high), abs=0.008)
  tango = statistics.paired(b[0], a[0]).interval
  assert (actual.low, actual.high) == pytest.approx((tango.low, tango.high), abs=0.008)
  assert actual.estimate == tango.estimate


def test_seeds_alone_are_welchs_test():
  """If all examples of a run are alike, only seeds vary, and the interval is scipy's Welch interval."""
  rng = np.random.default_rng(5)
  a_S, b_S = rng.normal(0.6, 0.05, 5), rng.normal(0.5, 0.1, 5)
  sides = [np.repeat(side_S[:, None], 50, 1) for side_S in (a_S, b_S)]
  actual = estimate(sides, GAIN, resamples=19999)
  welch = stats.ttest_ind(a_S, b_S, equal_var=False)
  limits = welch.confidence_interval(0.95)
  assert (actual.interval.low, actual.interval.high) == pytest.approx((limits.low, limits.high), abs=0.005)
  assert actual.p == pytest.approx(welch.pvalue, abs=0.01)
  assert actual.parts.seed_degrees == pytest.approx(welch.df)


def test_a_gap_is_the_difference_of_gains():
  of_cells = cells(np.random.default_rng(1), 4, 3, 300, 0.1)
  by_hand = np.mean(of_cells[0]) - np.mean(of_cells[1]) - np.mean(of_cells[2]) + np.mean(of_cells[3])
  assert estimate(of_cells, GAP).interval.estimate == pytest.approx(by_hand)


few = st.tuples(st.integers(1, 4), st.integers(2, 30), st.integers(0, 2**32 - 1))


@given(few)
@settings(deadline=None, max_examples=40)
def test_other_way_round_is_the_opposite(case):
  seeds, examples, seed = case
  a, b, c, d = cells(np.random.default_rng(seed), 4, seeds, examples, 0.3)
  one, other = estimate([a, b, c, d], GAP, resamples=199), estimate([b, a, d, c], GAP, resamples=199)
  assert one.interval.estimate == pytest.approx(-other.interval.estimate, abs=1e-12)
  if one.interval.estimate:
    assert (one.interval.low, one.interval.high) == pytest.approx(
      (-other.interval.high, -other.interval.low), abs=1e-6
    )
    assert one.p == other.p


@given(few)
@settings(deadline=None, max_examples=40)
def test_an_error_that_both_models_make_does_not_change_the_gap(case):
  """The error is one of each example, in one way of training."""
  seeds, examples, seed = case
  rng = np.random.default_rng(seed)
  of_cells = [side.astype(float) for side in cells(rng, 4, seeds, examples, 0.3)]
  common_N = rng.normal(size=examples)
  common_N -= common_N.mean()
  plain = bootstrap.parts(of_cells, GAP)
  moved = bootstrap.parts([side + common_N * (number < 2) for number, side in enumerate(of_cells)], GAP)
  for name in ('mean', 'seeds', 'examples', 'both'):
    assert getattr(plain, name) == pytest.approx(getattr(moved, name), abs=1e-12)


def test_order_of_examples_and_company_change_nothing_but_the_resampling():
  rng = np.random.default_rng(2)
  of_cells = cells(rng, 4, 5, 500, 0.1)
  order_N, order_S = rng.permutation(500), rng.permutation(5)
  actual = estimate(of_cells, GAP).interval
  moved = estimate([side[order_S][:, order_N] for side in of_cells], GAP).interval
  assert moved.estimate == pytest.approx(actual.estimate)
  assert (moved.low, moved.high) == pytest.approx((actual.low, actual.high), abs=0.01)  # the width is 0.11
  other = bootstrap.parts(cells(rng, 2, 5, 500, 0.1), GAIN)
  beside = bootstrap.estimates([other, bootstrap.parts(of_cells, GAP)], (-2, 2))[1].interval
  assert (beside.low, beside.high) == pytest.approx((actual.low, actual.high), abs=1e-6)
  assert estimate(of_cells, GAP).interval == actual


def test_p_of_a_plain_difference_is_not_cut_off_by_the_number_of_resamples():
  rng = np.random.default_rng(0)
  a, b = rng.random((5, 1000)) < 0.9, rng.random((5, 1000)) < 0.5
  actual = estimate([a, b], GAIN)
  assert actual.interval.excludes_zero
  assert actual.p < 1e-4  # counting 9,999 resamples could not go below 0.0002


def test_the_interval_has_a_width_where_all_answers_are_alike():
  same = np.ones((1, 100), bool)
  actual = estimate([same, same], GAIN, (-1, 1))
  assert actual.p == 1
  assert actual.interval.high == pytest.approx(statistics.wilson(0, 100).high)
  assert actual.interval.low == -actual.interval.high
  for count, p in ((3, 0.25), (8, 2 / 2**8), (100, 2 / 10_000)):  # sign test, or the least that draws show
    none, all_right = np.zeros((1, count), bool), np.ones((1, count), bool)
    assert estimate([all_right, none], GAIN, (-1, 1)).p == p


def test_groups_are_the_units_of_accuracy():
  rng = np.random.default_rng(4)
  group_N = np.sort(rng.integers(0, 12, 300))
  right_N = rng.random(300) < 0.5 + 0.4 * (group_N % 2)
  units_G = statistics.group_units(right_N, 5 * group_N)
  assert units_G.mean() == pytest.approx(right_N.mean())
  # The jackknife of the ratio, written out.
  without_G = np.array([right_N[group_N != g].mean() for g in range(12)])
  jackknife = 11 / 12 * np.sum((without_G - without_G.mean()) ** 2)
  assert units_G.var(ddof=1) / 12 == pytest.approx(jackknife, rel=0.1)
  one_each = statistics.group_units(right_N, np.arange(300))
  np.testing.assert_allclose(one_each, right_N, atol=1e-12)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=8))
@settings(deadline=None)
def test_tau_is_scipys(pairs):
  x, y = zip(*pairs, strict=True)
  theirs = stats.kendalltau(x, y).statistic
  assert float(bootstrap.kendall(x, y)) == pytest.approx(theirs, nan_ok=True)
  both = bootstrap.kendall(np.array([x, y]), np.array([y, y]))
  assert both[0] == pytest.approx(theirs, nan_ok=True)


def test_a_clear_order_is_stable_and_a_noisy_one_is_not():
  rng = np.random.default_rng(0)

  def side(abilities):
    return [bootstrap.parts(cells(rng, 1, 3, 1000, 0.02, ability)) for ability in abilities]

  flat = bootstrap.parts([np.ones((2, 50))])
  rankings = [
    [(side((0, 1, 2)), side((0.5, 1.5, 2.5)))],
    [(side((0, 1, 2)), side((2, 1, 0)))] * 2,
    [(side((0, 0, 0, 0)), side((0, 0, 0, 0)))],
    [([flat] * 3, [flat] * 3)],
  ]
  clear, turned, noisy, none = bootstrap.rank_stabilities(rankings)
  assert (clear.estimate, clear.low, clear.high) == (1, 1, 1)
  assert (turned.estimate, turned.low, turned.high) == (-1, -1, -1)
  assert noisy.low < 0 < noisy.high
  assert math.isnan(none.estimate)
  assert bootstrap.rank_stabilities(rankings[2:3]) == [noisy]  # alone and with others


def test_beating_chance_is_the_binomial_test():
  for correct in (500, 560, 574, 575, 576, 577, 600):
    p = stats.binomtest(correct, 1000, 0.5, alternative='greater').pvalue
    assert bootstrap.beats_chance(correct, 1000, 0.5) == (p < 1e-6)
  assert not bootstrap.beats_chance(0, 10, 0.5)
  assert not bootstrap.beats_chance(10, 10, 1.0)


def test_holm_by_hand():
  """Holm multiplies the p values 0.01, 0.04, 0.03, 0.005 by 3, 1, 2, 4; a larger p is not adjusted below a
  smaller one."""
  assert bootstrap.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
  assert bootstrap.holm([]) == []
  assert bootstrap.holm([0.01, 0.04], 2) == pytest.approx([0.04, 0.12])  # two more are not known yet


@given(st.lists(st.floats(0, 1), max_size=6), st.integers(0, 4))
def test_holm_counts_what_is_not_known_as_no_difference(p_values, more):
  assert bootstrap.holm(p_values, more) == pytest.approx(
    bootstrap.holm([*p_values, *[1.0] * more])[: len(p_values)]
  )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_as_its_step_down_procedure_does(p_values):
  """The independent code goes through the ordered p values and stops at the first above level / (number
  left)."""
  adjusted = bootstrap.holm(p_values)
  for level in (0.01, 0.05, 0.3):
    rejected, left = set(), len(p_values)
    for i in sorted(range(len(p_values)), key=p_values.__getitem__):
      if p_values[i] * left > level:
        break
      rejected.add(i)
      left -= 1
    assert rejected == {i for i, p in enumerate(adjusted) if p <= level}


def test_smallest_difference_by_hand_and_by_power():
  """For one seed it is (1.96 + 0.84) sqrt(discordance / N). For several, simulated tests find it in about 80
  %."""
  a = np.repeat([1, 0, 1, 0], [300, 300, 200, 200])[None]
  b = np.repeat([1, 0, 0, 1], [300, 300, 200, 200])[None]
  one = bootstrap.smallest_difference([bootstrap.parts([a, b], GAIN)])
  assert one == pytest.approx((1.96 + 0.8416) * math.sqrt(0.4 / 1000), rel=0.01)
  rng = np.random.default_rng(0)
  seeds, sd, N = 5, 0.03, 400

  def gain(difference):
    shared_N = rng.normal(0, 0.3, N)
    return [
      difference + shared_N + rng.normal(0, 0.4, (seeds, N)) + rng.normal(0, sd, (seeds, 1)),
      rng.normal(0, sd, (seeds, 1)) + rng.normal(0, 0.4, (seeds, N)),
    ]

  actual = bootstrap.smallest_difference([bootstrap.parts(gain(0), GAIN) for _ in range(300)])
  estimates = bootstrap.estimates(
    [bootstrap.parts(gain(actual), GAIN) for _ in range(600)], (-9, 9), resamples=399
  )
  assert np.mean([one.p <= 0.05 for one in estimates]) == pytest.approx(0.8, abs=0.06)
  many = bootstrap.smallest_difference([bootstrap.parts(gain(0), GAIN) for _ in range(100)], 20)
  assert many < actual
