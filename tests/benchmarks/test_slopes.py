"""benchmarks/slopes.py: slopes of powers, and a row at toy size."""

import pytest

from benchmarks import slopes
from benchmarks.slopes import Size


def test_a_power_has_its_slope():
  sizes = [1, 2, 4, 8]
  assert slopes.slope(sizes, [3 * size**1.5 for size in sizes]) == 1.5
  assert slopes.slope(sizes, [1.0, 2.0, 4.0, None]) == 1.0  # one that was not run
  assert slopes.slope(sizes, [1.0, 2.0, None, None]) is None


@pytest.mark.parametrize('axis', slopes.AXES)
def test_along_an_axis_all_else_stays(axis):
  sizes = slopes.AXES[axis]
  assert len({size._replace(**{axis: 0}) for size in sizes}) == 1
  numbers = [getattr(size, axis) for size in sizes]
  assert numbers == sorted(set(numbers))


@pytest.mark.slow
def test_a_row():
  sizes = [Size(1, length, 32, 1) for length in (128, 256, 512)]
  row = slopes.measured('attention', 'length', sizes, longest=0.0)
  assert row['sizes'] == [128, 256, 512]
  assert row['milliseconds'][0] > 0
  assert row['milliseconds'][1:] == [None, None]  # the first took too long
  assert row['slopes']['milliseconds'] is None
  assert 1 < row['slopes']['gigaflops'] < 2  # between what is linear and attention
  assert min(row['temporary_megabytes']) > 0


def test_members_are_runs_of_one_size():
  row = slopes.measured('attention', 'members', [Size(2, 128, 32, 1, n) for n in (1, 2, 4)])
  assert row['sizes'] == [1, 2, 4]
  assert min(row['milliseconds']) > 0
  assert row['slopes']['gigaflops'] == pytest.approx(1, abs=0.01)
