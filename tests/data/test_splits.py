"""Splits equal those of the paper's code (golden values from running it)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_spt.data import splits


def test_permutation_of_ten_has_the_published_head():
  assert splits.random_permutation(10, 42)[:6].tolist() == [2, 6, 1, 8, 4, 5]


def test_cifar_holdout_is_the_published_one():
  split = splits.holdout_split(50_000)
  assert {name: len(positions) for name, positions in split.items()} == {'train': 45_000, 'validation': 5_000}
  assert split['train'][:8].tolist() == [37542, 44491, 216, 43688, 41558, 32245, 27206, 10863]
  assert split['validation'][:6].tolist() == [17408, 40845, 3378, 22188, 44921, 7244]


def test_pathfinder_split_is_the_published_one():
  split = splits.random_split(200_000)
  sizes = {name: len(positions) for name, positions in split.items()}
  assert sizes == {'train': 160_000, 'validation': 20_000, 'test': 20_000}
  assert split['train'][:6].tolist() == [37542, 143173, 127710, 58234, 152906, 31060]
  assert split['validation'][:4].tolist() == [122036, 135593, 30913, 110858]
  assert split['test'][:4].tolist() == [143170, 45464, 153084, 73281]


def test_mnist_holdout_is_the_published_one():
  split = splits.holdout_split(60_000)
  assert split['train'][:5].tolist() == [37542, 43087, 2992, 25810, 39634]
  assert split['validation'][:5].tolist() == [33841, 37977, 40521, 16882, 50296]


@settings(deadline=None, max_examples=50)
@given(n=st.integers(0, 500), seed=st.integers(0, 2**32 - 1))
def test_permutation_is_a_permutation(n, seed):
  assert np.array_equal(np.sort(splits.random_permutation(n, seed)), np.arange(n))


@settings(deadline=None, max_examples=50)
@given(n=st.integers(10, 500), kind=st.sampled_from(['holdout', 'random', 'shuffled', 'grouped']))
def test_splits_share_the_file_without_overlap(n, kind):
  parts = splits.split_positions(kind, {'counts': {'train': n, 'test': 3}, 'groups': {'train': [1] * n}})
  from_train = np.concatenate([positions for file, positions in parts.values() if file == 'train'])
  assert np.array_equal(np.sort(from_train), np.arange(n))
  assert all(len(positions) for _, positions in parts.values())


def test_stratified_splits_have_the_same_share_of_every_class():
  labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3], [200, 43, 3, 2]))
  metadata = {'counts': {'train': len(labels)}, 'train_labels': labels.tolist(), 'source': 'x'}
  parts = {name: at for name, (_, at) in splits.split_positions('stratified', metadata).items()}
  assert np.array_equal(np.sort(np.concatenate([*parts.values()])), np.arange(len(labels)))
  counts = {name: np.bincount(labels[at], minlength=4).tolist() for name, at in parts.items()}
  assert counts == {'train': [160, 35, 1, 2], 'validation': [20, 4, 1, 0], 'test': [20, 4, 1, 0]}
  with pytest.raises(ValueError, match="does not note the classes.*splits='stratified' needs"):
    splits.split_positions('stratified', metadata | {'train_labels': []})


def test_files_keep_their_order():
  parts = splits.split_positions('files', {'counts': {'train': 4, 'validation': 2, 'test': 3}})
  assert {name: (file, positions.tolist()) for name, (file, positions) in parts.items()} == {
    'train': ('train', [0, 1, 2, 3]),
    'validation': ('validation', [0, 1]),
    'test': ('test', [0, 1, 2]),
  }


def test_reused_splits_validate_on_the_test_file():
  parts = splits.split_positions('reused', {'counts': {'train': 4, 'test': 3}})
  assert {name: (file, positions.tolist()) for name, (file, positions) in parts.items()} == {
    'train': ('train', [0, 1, 2, 3]),
    'validation': ('test', [0, 1, 2]),
    'test': ('test', [0, 1, 2]),
  }


@pytest.mark.parametrize(('n', 'sizes'), [(7870, (5509, 1180, 1181)), (7949, (5564, 1192, 1193))])
def test_published_sizes_of_bidmc(n, sizes):
  parts = splits.split_positions('shuffled', {'counts': {'train': n}})
  assert tuple(len(positions) for _, positions in parts.values()) == sizes


@pytest.mark.parametrize(
  ('n', 'heads'),
  [
    (10, ([9, 1, 6, 7, 3], [8], [2, 4])),
    (7870, ([2019, 3705, 161, 1319, 457], [2606, 4812, 7379, 2402, 4523], [651, 1977, 4534, 620, 6048])),
    (7949, ([4225, 7371, 6695, 6492, 1427], [1700, 470, 6409, 1775, 4008], [1864, 7060, 2455, 6584, 130])),
  ],
)
def test_shuffled_split_is_that_of_scikit_learn(n, heads):
  """Heads of the splits that scikit-learn 1.9.1 makes."""
  actual = splits.shuffled_split(n)
  assert tuple(actual[name][:5].tolist() for name in ('train', 'validation', 'test')) == heads


def test_groups_stay_whole():
  groups = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
  actual = splits.grouped_split(groups)
  owner = np.repeat(np.arange(14), groups)
  order = splits.random_permutation(14, 42)
  for name, chosen in (('train', order[:10]), ('validation', order[10:12]), ('test', order[12:])):
    expected = np.concatenate([np.flatnonzero(owner == group) for group in chosen])
    assert np.array_equal(actual[name], expected)
  with pytest.raises(ValueError, match='from x.ts .*protocol=paper'):
    splits.split_positions('grouped', {'counts': {'train': 9}, 'source': 'x.ts', 'groups': {}})
  ours = {'counts': {'train': 9}, 'source': 'own files train.npz', 'request': {'from': 'npz'}}
  with pytest.raises(ValueError, match='save the group number of each example as `groups` in train.npz, and'):
    splits.split_positions('grouped', ours)


@pytest.mark.parametrize('groups', [splits.LEAST_GROUPS - 1, splits.LEAST_GROUPS])
def test_so_many_groups_give_three_splits(groups):
  parts = splits.grouped_split([2] * groups)
  assert all(len(positions) for positions in parts.values()) == (groups == splits.LEAST_GROUPS)


def test_wrong_arguments_are_named():
  with pytest.raises(ValueError, match="kind 'thirds' are unknown"):
    splits.split_positions('thirds', {'counts': {'train': 3}})
