"""benchmarks/epoch.py: examples of a split, a batch as training reads it, and parts that make an epoch."""

import pytest

from benchmarks import epoch
from lra_spt.data.tasks import get_task


@pytest.mark.parametrize(
  'task, train, validation',
  [('image', 45_000, 5_000), ('listops', 96_000, 2_000), ('pathfinder', 160_000, 20_000)],
)
def test_splits_of_the_published_sets(task, train, validation):
  counts = epoch.counts(get_task(task))
  assert (counts['train'], counts['validation']) == (train, validation)


def test_groups_are_split_by_their_share():
  counts = epoch.counts(get_task('bidmc_hr'))
  assert counts == {'train': 7_950 - 2 * 1_192, 'validation': 1_192}


@pytest.mark.parametrize('name', ['image', 'listops', 'retrieval', 'bidmc_hr'])
def test_a_batch_is_as_training_reads_it(name):
  task = get_task(name)
  batch, parts = epoch.random_batch(task, 3), task.batch(3)
  assert {key: (x.shape, x.dtype) for key, x in batch.items()} == {
    key: (part.shape, part.dtype) for key, part in parts.items()
  }
  assert batch['inputs'].std() > 1
  assert (batch['lengths'] == task.length).all()


def test_shares_of_an_epoch():
  row = epoch.measured('mini/image:model=transformer_rotary', rounds=1, positions=300)
  assert row['rows'] == 2
  assert row['examples'] == {'train': 8_000, 'validation': 2_000}  # evaluated every 250 steps of 32
  assert sum(row['shares'].values()) == pytest.approx(1, abs=1e-3)
  assert row['shares']['steps'] > row['shares']['evaluation'] > 0
  assert min(row['seconds'].values()) > 0
