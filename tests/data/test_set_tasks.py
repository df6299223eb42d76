"""A prepared set defines a task of its name, without a Python file."""

import numpy as np
import pytest

from data_prep.sources import npz
from lra_spt import errors
from lra_spt.cli import main as cli
from lra_spt.data import tasks
from lra_spt.data.examples import open_splits
from lra_spt.data.parts import Classes, Groups, PerPosition, Real, Tokens, Values
from lra_spt.studies import compare

RNG = np.random.default_rng(0)
COUNT = 60
LENGTHS = np.arange(COUNT) % 6 + 3
VALUES = RNG.normal(3, 2, (COUNT, 8, 2)).astype(np.float32)
CLASSES = np.arange(COUNT) % 4


def prepare(tmp_path, test=False, **actual):
  (tmp_path / 'raw').mkdir()
  for file in ('train', 'test') if test else ('train',):
    np.savez(tmp_path / 'raw' / f'{file}.npz', **actual)
  npz.prepare_npz(tmp_path, dataset='mine', raw_dir=tmp_path / 'raw')
  return tasks.get_task('mine', tmp_path)


@pytest.mark.parametrize(
  ('actual', 'inputs', 'labels', 'splits'),
  [
    (
      {'inputs': VALUES, 'labels': CLASSES},
      Values(8, channels=2, dtype='float32', measured=True),
      Classes(4),
      'stratified',
    ),
    (
      {'inputs': VALUES, 'labels': CLASSES, 'test': True},
      Values(8, channels=2, dtype='float32', measured=True),
      Classes(4),
      'stratified',
    ),
    (
      {'inputs': VALUES[..., 0], 'labels': RNG.normal(size=COUNT), 'test': True},
      Values(8, dtype='float32', measured=True),
      Real(measured=True),
      'holdout',
    ),
    (
      {'inputs': VALUES[..., :1], 'lengths': LENGTHS, 'labels': RNG.normal(size=COUNT)},
      Values(8, dtype='float32', measured=True, padded=True),
      Real(measured=True),
      'random',
    ),
    (
      {'inputs': RNG.integers(4, 9, (COUNT, 8)), 'lengths': LENGTHS, 'labels': CLASSES},
      Tokens(8, 9),
      Classes(4),
      'stratified',
    ),
    (
      {'inputs': VALUES, 'labels': CLASSES, 'groups': np.arange(COUNT) // 5},
      Values(8, channels=2, dtype='float32', measured=True),
      Classes(4),
      'grouped',
    ),
    (
      {'inputs': VALUES, 'labels': RNG.integers(0, 3, (COUNT, 8))},
      Values(8, channels=2, dtype='float32', measured=True),
      PerPosition(3),
      'random',
    ),
  ],
)
def test_a_set_says_what_its_task_is(tmp_path, actual, inputs, labels, splits):
  task = prepare(tmp_path, **actual)
  assert (task.name, task.inputs, task.labels, task.splits) == ('mine', inputs, labels, splits)
  assert task.groups == (Groups('group', 'examples') if 'groups' in actual else None)
  assert tasks.is_own(task)
  parts = open_splits('mine', tmp_path)
  assert sum(len(part) for part in parts.values()) == COUNT * (1 + actual.get('test', False))
  batch = parts['validation'].gather([0, 1])
  assert batch['inputs'].shape == (2, *task.row)
  if splits == 'stratified' and actual.get('test'):
    label = parts['validation'].gather(np.arange(len(parts['validation'])))['label']
    np.testing.assert_array_equal(np.bincount(label), [3] * 4)  # a fifth of 15 per class


def test_a_registered_task_comes_first(tmp_path, monkeypatch):
  prepare(tmp_path, inputs=VALUES, labels=CLASSES)
  ours = tasks.Task('mine', 'mine', Values(8, (0.0, 0.0), (1.0, 1.0), 'float32'), Classes(4), splits='random')
  monkeypatch.setattr(tasks, 'TASKS', tasks.TASKS | {'mine': ours})
  assert tasks.get_task('mine', tmp_path) == ours


def test_a_set_that_is_not_there_or_damaged_is_named(tmp_path):
  for name in ('nothing', '../mine', ''):
    with pytest.raises(
      errors.ConfigError, match=f'There is no task {name!r}, and no prepared set of this name'
    ):
      tasks.get_task(name, tmp_path)
  prepare(tmp_path, inputs=VALUES, labels=CLASSES)
  path = tmp_path / 'mine' / '1.0.0' / 'metadata.json'
  path.write_text(path.read_text().replace('"classes": 4', '"classes": 5'))
  with pytest.raises(errors.DamagedFile, match='was edited or damaged .*; remove .* and prepare it again'):
    tasks.get_task('mine', tmp_path)


def test_compare_takes_the_name_of_a_set(tmp_path, monkeypatch):
  prepare(tmp_path, inputs=VALUES, labels=CLASSES)
  monkeypatch.setenv(tasks.DATA_DIR, str(tmp_path))
  assert compare.load(['mamba2'], 'mine').columns == ['mine']
  with pytest.raises(errors.ConfigError, match="has no task 'yours': choose from listops"):
    compare.load(['mamba2'], 'yours')


def test_inspect_takes_the_name_of_a_set(tmp_path, capsys):
  prepare(tmp_path, inputs=VALUES, labels=CLASSES, test=True)
  assert cli.main(['inspect', 'mine', f'--data_dir={tmp_path}']) == 0
  assert 'the same share of every class' in capsys.readouterr().out
  assert cli.main(['inspect', 'yours', f'--data_dir={tmp_path}']) == 2
  assert f"no data set or task 'yours', and no such set in {tmp_path}" in capsys.readouterr().err
