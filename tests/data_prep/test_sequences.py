"""Rules that read only the input solve the generated tasks of recall, copying and state tracking."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import prepare
from data_prep.sources.sequences import draw
from lra_spt.data import generated, tasks
from lra_spt.data.examples import open_splits
from lra_spt.errors import ConfigError
from lra_spt.report.datasets import inspect

FIRST = 4  # the id of the first symbol


def recall(ids, pairs):
  """After the pairs, a key at an even place is a question. All other places have random symbols."""
  value_of = dict(zip(ids[0 : 2 * pairs : 2], ids[1 : 2 * pairs : 2], strict=True))
  return {t: value_of[ids[t]] - 64 for t in range(2 * pairs, len(ids)) if ids[t] in value_of}


def copying(ids, count):
  symbols = [i for i in ids if i < 16]
  assert len(symbols) == count
  return dict(zip(range(16 * count, 17 * count), symbols, strict=True))


def product(ids, group):
  """Permutations act on a list one after the other."""
  size = {'parity': 2, 's3': 3, 'a5': 5}[group]
  even = lambda p: sum(a > b for a, b in itertools.combinations(p, 2)) % 2 == 0  # noqa: E731
  elements = [p for p in itertools.permutations(range(size)) if group != 'a5' or even(p)]
  state, answers = tuple(range(size)), []
  for i in ids:
    state = tuple(state[k] for k in elements[i])
    answers.append(elements.index(state))
  return answers


NAMES = st.one_of(
  st.integers(1, 64).map('recall_{}'.format),
  st.integers(1, 20).map('copying_{}'.format),
  st.integers(8, 70).map('induction_{}'.format),
  st.builds('{}_{}'.format, st.sampled_from(['parity', 's3', 'a5']), st.integers(2, 40)),
)


@settings(deadline=None, max_examples=80)
@given(NAMES, st.integers(0, 3), st.sampled_from(['train', 'test', 'test_2x', 'test_4x']), st.integers(0, 99))
def test_the_rule_solves_each_task(name, seed, file, index):
  family, number = generated.parts_of(name)
  task = tasks.get_task(name)
  if file not in ('train', 'test', *dict(task.longer)):
    return
  stored, label = draw(name, seed, file, index)
  assert stored.dtype == np.uint8
  assert len(stored) == task.length * int(file[5:-1] if '_' in file else 1)
  ids = (stored.astype(int) - FIRST).tolist()
  assert 0 <= min(ids)
  assert max(ids) < task.vocabulary - FIRST
  again, same = draw(name, seed, file, index)
  np.testing.assert_array_equal(stored, again)
  np.testing.assert_array_equal(label, same)
  if family == 'induction':
    assert ids[-1] == 16
    assert label == ids[ids.index(16) + 1]
    return
  assert label.min() >= -1
  assert label.max() < task.classes
  if family == 'recall':
    answers = recall(ids, number)
    asked = np.flatnonzero(label >= 0)
    assert len(asked) == number
    assert [answers[t] for t in asked] == label[asked].tolist()
  elif family == 'copying':
    assert copying(ids, number) == {t: label[t] for t in np.flatnonzero(label >= 0)}
  else:
    assert product(ids, family) == label.tolist()


def test_a_product_is_that_of_a_group():
  """The identity is element 0, and an element times its inverse gives it."""
  ids, label = draw('a5_40', 0, 'train', 0)
  assert label[0] == ids[0] - FIRST
  assert product([0, 7, 0], 'a5') == [0, 7, 7]
  assert {product([7, k], 'a5')[1] for k in range(60)} == set(range(60))


def test_longer_test_splits(tmp_path):
  prepare.prepare('s3_8', tmp_path, examples=20)
  splits = open_splits('s3_8', tmp_path)
  lengths = {name: (len(part), part.task.length) for name, part in splits.items()}
  assert lengths == {
    'train': (20, 8),
    'validation': (1000, 8),
    'test': (2000, 8),
    'test_2x': (1000, 16),
    'test_4x': (1000, 32),
  }
  batch = splits['test_4x'].gather([3])
  stored, label = draw('s3_8', 0, 'test_4x', 3)
  np.testing.assert_array_equal(batch['inputs'][0], stored)
  np.testing.assert_array_equal(batch['label'][0], label)
  assert (
    inspect.inspect_set(tasks.get_task('s3_8'), tmp_path).contents['test'].class_counts(6).sum() == 16_000
  )


@pytest.mark.parametrize(
  'name, sentence', [('recall_65', 'has 65 pairs; choose recall_1 to recall_64'), ('recall_0', 'no task')]
)
def test_a_difficulty_that_does_not_exist(name, sentence):
  with pytest.raises(ConfigError, match=sentence):
    tasks.get_task(name)
