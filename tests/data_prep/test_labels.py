"""Labels of .npz files: none, one, several or several numbers for an example, and labels that are refused."""

import numpy as np
import pytest

from data_prep.sources.npz import prepare_npz
from lra_spt.data import examples, prepared, set_tasks
from lra_spt.data.parts import Classes, MultiLabel, PerPosition, Real
from lra_spt.errors import DataError

RNG = np.random.default_rng(0)
X = RNG.integers(0, 9, (60, 4)).astype(np.uint8)
CLASSES = np.arange(60) % 3
SEVERAL = RNG.random((60, 3)) < 0.5
NUMBERS = RNG.normal(size=(60, 2)).astype(np.float32)


def prepare(folder, train, **others):
  """Prepares a set from labels; the files of `others` have a few examples."""
  (folder / 'raw').mkdir(exist_ok=True)
  for file, labels in {'train': train, **others}.items():
    np.savez(folder / 'raw' / f'{file}.npz', inputs=X[: len(labels)], labels=labels)
  made = prepare_npz(folder / 'data', dataset='own', raw_dir=folder / 'raw')
  return prepared.read_metadata(made, ''), set_tasks.task_of('own', folder / 'data')


def missing(labels, some):
  """Returns the labels with those of `some` examples removed."""
  labels = labels.copy()
  labels[some] = np.nan if labels.dtype.kind == 'f' else -1
  return labels


@pytest.mark.parametrize(
  'labels, wanted',
  [
    (SEVERAL, MultiLabel(3)),
    (NUMBERS, Real(measured=True, dimensions=2)),
    (NUMBERS[:, :1], Real(measured=True)),
    (np.tile(CLASSES[:, None], 4), PerPosition(3)),
  ],
)
def test_labels_are_stored_and_described(tmp_path, labels, wanted):
  metadata, task = prepare(tmp_path, labels)
  assert task.labels == wanted
  assert 'labelled' not in metadata
  batch = examples.open_split(task, 'train', tmp_path / 'data').gather(np.arange(48))
  stored = labels[:, 0] if labels.shape[1] == 1 else labels
  np.testing.assert_array_equal(batch['label'], stored[batch['index']])
  assert batch['label'].dtype == task.batch()['label'].dtype
  if task.regression:
    measured = task.with_measured(metadata['statistics']).labels
    np.testing.assert_allclose(np.atleast_1d(measured.mean), labels.mean(0), rtol=1e-5)
    np.testing.assert_allclose(np.reshape(measured.range, (-1, 2))[:, 1], labels.max(0), rtol=1e-6)


@pytest.mark.parametrize('labels', [CLASSES, NUMBERS, NUMBERS[:, 0], np.tile(CLASSES[:, None], 4)])
def test_examples_without_a_label_are_in_the_training_split_alone(tmp_path, labels):
  none = np.arange(60) % 5 < 3
  metadata, task = prepare(tmp_path, missing(labels, none))
  assert metadata['labelled'] == np.flatnonzero(~none).tolist()
  data = examples.open_splits(task, tmp_path / 'data')
  assert sorted(np.concatenate([split.indices for split in data.values()])) == list(range(60))
  for split in ('validation', 'test'):
    assert len(data[split])
    assert data[split].labelled is data[split]
    assert not none[data[split].indices].any()
  train = data['train']
  np.testing.assert_array_equal(train.labelled.indices, train.indices[~none[train.indices]])
  np.testing.assert_array_equal(train.labelled.gather([0, 1])['label'], labels[train.labelled.indices[:2]])
  if task.regression:
    np.testing.assert_allclose(metadata['statistics']['labels']['mean'], labels[~none].mean(0), rtol=1e-5)


def test_labelled_examples_are_split_as_if_there_were_no_others(tmp_path):
  (tmp_path / 'a').mkdir()
  (tmp_path / 'b').mkdir()
  none = np.arange(60) >= 30
  _, task = prepare(tmp_path / 'a', missing(CLASSES, none))
  prepare(tmp_path / 'b', CLASSES[:30])
  assert task.splits == 'stratified'
  some, whole = (examples.open_splits(task, tmp_path / folder / 'data') for folder in 'ab')
  for split in ('validation', 'test'):
    np.testing.assert_array_equal(some[split].indices, whole[split].indices)
  np.testing.assert_array_equal(some['train'].labelled.indices, whole['train'].indices)


def test_unlabelled_examples_are_split_with_their_group(tmp_path):
  """Pretraining reads no unlabelled example of a group of the test split."""
  (tmp_path / 'raw').mkdir()
  none, group_N = np.arange(60) % 2 == 0, np.arange(60) // 5
  np.savez(tmp_path / 'raw' / 'train.npz', inputs=X, labels=missing(CLASSES, none), groups=group_N)
  prepare_npz(tmp_path / 'data', dataset='own', raw_dir=tmp_path / 'raw')
  task = set_tasks.task_of('own', tmp_path / 'data')
  assert task.splits == 'grouped'
  data = examples.open_splits(task, tmp_path / 'data')
  of_split = {split: {*group_N[part.indices].tolist()} for split, part in data.items()}
  assert not of_split['train'] & (of_split['validation'] | of_split['test'])
  assert not none[np.concatenate([data['validation'].indices, data['test'].indices])].any()
  assert none[data['train'].indices].any()
  assert not none[data['train'].labelled.indices].any()


@pytest.mark.parametrize(
  'labels, others, sentence',
  [
    (missing(CLASSES, slice(None)), {}, 'train.npz has no example with a label'),
    (missing(NUMBERS, slice(None)), {}, 'train.npz has no example with a label'),
    (CLASSES, {'test': missing(CLASSES[:9], [2])}, 'test.npz: example 2 has no label, which only training'),
    (
      np.tile(CLASSES[:, None], 4),
      {'test': missing(np.tile(CLASSES[:9, None], 4), [2])},
      'own: example 2 of test has no position that counts',
    ),
    (np.where(np.arange(2) + np.arange(60)[:, None] == 5, np.nan, NUMBERS), {}, 'label 4 is not a finite'),
    (SEVERAL | np.array([False, True, False]), {}, 'all examples have label 1, so there is nothing to learn'),
    (SEVERAL, {'test': SEVERAL[:9, :2]}, 'the label width 2, but .*train.npz 3'),
    (SEVERAL.astype(np.int64), {}, 'give each position a whole number, or each example one label, several'),
    (CLASSES - 2, {}, 'label 0 is -2; number the classes from 0, or give -1 for no label'),
  ],
)
def test_what_is_refused(tmp_path, labels, others, sentence):
  with pytest.raises(DataError, match=sentence):
    prepare(tmp_path, labels, **others)
  assert not (tmp_path / 'data' / 'own' / prepared.VERSION).exists()


def test_a_file_without_labels_is_told_how_to_say_so(tmp_path):
  (tmp_path / 'raw').mkdir()
  np.savez(tmp_path / 'raw' / 'train.npz', inputs=X)
  with pytest.raises(DataError, match=r'no labels \(training examples without a label have -1'):
    prepare_npz(tmp_path / 'data', dataset='own', raw_dir=tmp_path / 'raw')


@pytest.mark.parametrize(
  'labels, have', [(SEVERAL, r'labels=MultiLabel\(3\)'), (NUMBERS, r'labels=Real\(dimensions=2')]
)
def test_a_task_with_other_labels_is_refused(tmp_path, labels, have):
  _, task = prepare(tmp_path, labels)
  other = Classes(3) if labels is SEVERAL else Real(measured=True)
  with pytest.raises(DataError, match=have):
    examples.open_split(type(task)('other', 'own', task.inputs, other, 'random'), 'train', tmp_path / 'data')
