"""Intervals of R2 agree with a plain jackknife, have the right properties, and cover."""

import functools
import math

import numpy as np
import pytest

from lra_spt.data.measures import r2
from lra_spt.report.statistics import intervals as statistics
from lra_spt.report.statistics import jackknife

r2_units = functools.partial(jackknife.score_units, 'r2')


def drawn(seed, units, size=1, *, between=0.0, spread=0.0):
  """Draws (label, prediction, group) of `units` recordings of `size` windows. `between` is the sd of the
  error that the windows of a recording share; `spread` is how much recordings differ in the size of
  errors."""
  rng = np.random.default_rng(seed)
  group_N = np.repeat(np.arange(units), size)
  label_N = rng.normal(70, 4, units)[group_N] + rng.normal(0, 4, units * size)
  error_N = rng.normal(0, between, units)[group_N] + rng.normal(0, 2, units * size)
  return label_N, label_N + error_N * np.exp(spread * rng.normal(size=units))[group_N], group_N


def r2_of(label_N, prediction_N):
  return 1 - np.mean((label_N - prediction_N) ** 2) / np.var(label_N)


def test_r2_agrees_with_its_definition():
  label_N, prediction_N, _ = drawn(0, 40)
  assert r2(label_N, prediction_N) == pytest.approx(r2_of(label_N, prediction_N))
  assert r2(label_N, np.full(40, label_N.mean())) == pytest.approx(0)
  assert r2(label_N, label_N) == 1
  assert math.isnan(r2(np.ones(5), np.zeros(5)))


@pytest.mark.parametrize('units, size', [(40, 1), (6, 9)])
def test_units_are_the_jackknife(units, size):
  label_N, prediction_N, group_N = drawn(1, units, size, between=1.0)
  shuffle_N = np.random.default_rng(2).permutation(units * size)
  found_G = r2_units(label_N[shuffle_N], prediction_N[shuffle_N], 7 * group_N[shuffle_N] + 3)
  without = np.array([r2_of(label_N[group_N != g], prediction_N[group_N != g]) for g in range(units)])
  assert found_G.mean() == pytest.approx(r2_of(label_N, prediction_N))
  np.testing.assert_allclose(np.diff(found_G), -(units - 1) * np.diff(without), rtol=1e-6, atol=1e-9)
  # The variance of the mean of the units is Tukey's.
  tukey = (units - 1) / units * np.sum((without - without.mean()) ** 2)
  assert found_G.var(ddof=1) / units == pytest.approx(tukey)
  if size == 1:
    np.testing.assert_allclose(r2_units(label_N, prediction_N), found_G)


def test_units_do_not_depend_on_where_labels_lie():
  label_N, prediction_N, group_N = drawn(3, 8, 5)
  units = r2_units(label_N, prediction_N, group_N)
  moved = r2_units(1e6 + 3 * label_N, 1e6 + 3 * prediction_N, group_N)
  np.testing.assert_allclose(moved, units, rtol=1e-6)


@pytest.mark.parametrize(
  'case',
  [
    ([1.0], [1.0], None),
    ([1.0, 2.0, 3.0], [1.0, 2.0, 2.0], [4, 4, 4]),
    ([2.0] * 5, [1.0] * 5, None),
    ([1.0, 2.0, 2.0], [1.0, 1.0, 1.0], None),
  ],
)  # in the last case, labels do not vary without the first example
def test_too_little_to_compute(case):
  label_N, prediction_N, group_N = (None if part is None else np.array(part) for part in case)
  assert r2_units(label_N, prediction_N, group_N) is None


def test_interval_by_hand():
  """Units 0.8, 0.9, 1.0: R2 0.9, standard error 0.1 / sqrt(3); t with 2 degrees of freedom is 4.3027."""
  interval = statistics.r2_interval(np.array([0.8, 0.9, 1.0]), 'recordings')
  factor = math.exp(4.302653 * 0.1 / math.sqrt(3) / 0.1)
  assert interval.estimate == pytest.approx(0.9)
  assert interval.low == pytest.approx(1 - 0.1 * factor)
  assert interval.high == pytest.approx(1 - 0.1 / factor)
  assert '3 recordings' in interval.method
  perfect = statistics.r2_interval(np.ones(4))
  assert (perfect.low, perfect.estimate, perfect.high) == (1, 1, 1)


def test_two_groups_that_differ_wildly_bound_nothing():
  label_N, prediction_N = np.array([0, 100, 50, 50.001]), np.array([0, 100, 20, 80.0])
  interval = statistics.r2_interval(r2_units(label_N, prediction_N, np.array([0, 0, 1, 1])))
  assert interval.estimate == pytest.approx(1 - 1800 / 5000, abs=1e-4)
  assert interval.low == -math.inf
  assert not interval.known


def test_windows_of_one_recording_do_not_count_as_many():
  """If each of 20 recordings is repeated as 30 windows, the interval over groups stays the same."""
  label_N, prediction_N, group_N = drawn(5, 20)
  repeated = [np.repeat(part, 30) for part in (label_N, prediction_N, group_N)]
  once = statistics.r2_interval(r2_units(label_N, prediction_N))
  grouped = statistics.r2_interval(r2_units(*repeated))
  ignored = statistics.r2_interval(r2_units(*repeated[:2]))
  assert (grouped.low, grouped.high) == (pytest.approx(once.low), pytest.approx(once.high))
  assert ignored.high - ignored.low < (once.high - once.low) / 4


@pytest.mark.parametrize(
  'units, size, options, lowest',
  [
    (200, 1, {}, 0.93),
    (30, 1, {}, 0.92),
    (8, 40, {'between': 1.0}, 0.88),
    (8, 40, {'spread': 0.5}, 0.90),
    (6, 40, {'between': 3.0}, 0.90),
    (46, 25, {'between': 2.0, 'spread': 0.5}, 0.89),
  ],
)
def test_coverage(units, size, options, lowest):
  """In 600 simulated samples, intervals cover nearly 95 % where units are many or alike, else less."""
  truth = r2_of(*drawn(99, 100_000, 2, **options)[:2])
  held = 0
  for seed in range(600):
    label_N, prediction_N, group_N = drawn(seed, units, size, **options)
    interval = statistics.r2_interval(r2_units(label_N, prediction_N, group_N))
    held += interval.low <= truth <= interval.high
  assert lowest <= held / 600 <= 0.985
