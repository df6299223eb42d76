"""Groups of a user's examples are kept apart and counted; sets that cannot keep them apart are refused."""

import numpy as np
import pytest

from data_prep.sources import npz
from lra_spt import errors
from lra_spt.cli import main as cli
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared, tasks
from lra_spt.report.runs import run as runs
from tests.data_prep.npz_files import save


@pytest.mark.parametrize(
  ('files', 'message'),
  [
    ({'train': [1, 1, 2, 2]}, "train.npz has 2 groups, and splits='grouped' needs 7"),
    ({'train': [1] * 4}, "train.npz has 1 group, and splits='grouped' needs 7"),
    ({'train': [1, 1, 2, 2], 'validation': [3] * 4, 'test': [4] * 4}, 'test.npz has one group'),
    ({'train': [1, 1, 2, 2], 'validation': [3] * 4, 'test': [4, 4, 5, 5]}, ''),
  ],
)
def test_a_caution_names_few_groups(tmp_path, capsys, files, message):
  for file, groups in files.items():
    save(
      tmp_path / 'raw',
      file,
      inputs=np.eye(4, dtype=np.uint8),
      labels=np.arange(4) % 2,
      groups=np.array(groups),
    )
  npz.prepare_npz(tmp_path, dataset='mine', raw_dir=tmp_path / 'raw')
  printed = capsys.readouterr().out
  assert message in printed
  assert (' group' in printed) == bool(message)


@pytest.mark.parametrize(
  ('files', 'sentences'),
  [
    ({'train': np.arange(15.0)}, ['one example in the validation split', 'one example in the test split']),
    ({'train': np.arange(15) % 4}, ['accuracy is 0 or 100 %', 'accuracy is 0 or 100 %']),
    (
      {'train': np.arange(10.0), 'test': np.full(12, 97.3)},
      ['in the validation split', 'test.npz do not vary'],
    ),
    (
      {'train': np.arange(12.0), 'validation': np.full(3, 0.1), 'test': [1.0]},
      ['validation.npz do not vary', ''],
    ),
    ({'train': np.arange(40.0)}, []),
  ],
)
def test_scores_that_no_run_can_have_are_named(tmp_path, capsys, files, sentences):
  rng = np.random.default_rng(0)
  for file, labels in files.items():
    inputs = rng.integers(0, 256, (len(labels), 64)).astype(np.uint8)  # copies would add a sentence
    raw = save(tmp_path / 'raw', file, inputs=inputs, labels=labels)
  npz.prepare_npz(tmp_path, dataset='mine', raw_dir=raw)
  lines = capsys.readouterr().out.splitlines()[:-1]
  assert len(lines) == len(sentences)
  for line, sentence in zip(lines, sentences, strict=True):
    assert sentence in line
    assert 'prepare' in line


# This is the example of `lra_spt.data.tasks`.
BIRDS = tasks.Task(
  'birds', 'birds', tasks.Values(6, (0.0,), (0.1,), 'int16'), tasks.Classes(12),
  groups=tasks.Groups('singer', 'recordings'), splits='grouped',
)  # fmt: skip


def recordings(singers, seed=0):
  """Recordings of these singers; the first value is the number of the recording, the second the singer."""
  x = np.random.default_rng(seed).integers(0, 99, (len(singers), 6)).astype(np.int16)
  x[:, 0], x[:, 1] = np.arange(len(x)), singers
  return {'inputs': x, 'labels': np.arange(len(x)) % 12, 'groups': np.asarray(singers)}


def test_groups_are_kept_apart_and_counted_by_intervals(tmp_path, monkeypatch):
  monkeypatch.setattr(tasks, 'TASKS', tasks.TASKS | {'birds': BIRDS})
  singers = np.random.default_rng(3).integers(-10, 10, 200) * 7
  arrays = recordings(singers)
  folder = npz.prepare_npz(tmp_path, dataset='birds', raw_dir=save(tmp_path / 'raw', **arrays))
  assert sum(prepared.read_metadata(folder, '')['groups']['train']) == 200
  of_split = {}
  for name, split in examples_lib.open_splits(BIRDS, tmp_path).items():
    batch = split.gather(np.arange(len(split)))
    number = batch['inputs'][:, 0]
    np.testing.assert_array_equal(batch['inputs'], arrays['inputs'][number])
    np.testing.assert_array_equal(batch['label'], arrays['labels'][number])
    group, singer = split.groups(batch['index']), singers[number]
    assert len({*zip(group.tolist(), singer.tolist(), strict=True)}) == len({*group}) == len({*singer})
    for one in {*group.tolist()}:  # in the order of the file
      assert (np.diff(number[group == one]) > 0).all()
    of_split[name] = {*singer.tolist()}
  assert sum(map(len, of_split.values())) == len(set.union(*of_split.values())) == len({*singers.tolist()})
  np.savez(
    tmp_path / 'p.npz', index=batch['index'], label=batch['label'], prediction=(number % 2) * number % 12
  )
  command = ['record', '--task=birds', '--model=mine', '--regime=scratch', f'--predictions={tmp_path}/p.npz']
  assert cli.main([*command, f'--out={tmp_path}/W', f'--data_dir={tmp_path}']) == 0
  run = runs.read_run(tmp_path / 'W')
  np.testing.assert_array_equal(run.group_N, np.sort(group))  # by index
  assert run.units.shape == (len(of_split['test']),)
  assert run.unit_name == 'singers'


def test_groups_of_files_of_their_own(tmp_path):
  raw = save(tmp_path / 'raw', **recordings([5, 6] * 6))
  save(raw, 'test', **recordings([7, 8, 7], seed=1))
  folder = npz.prepare_npz(tmp_path, dataset='mine', raw_dir=raw)
  assert prepared.read_metadata(folder, '')['groups'] == {'train': [6, 6], 'test': [2, 1]}
  save(raw, 'test', **recordings([7, 8, 6]))
  with pytest.raises(
    errors.DataError, match=r'test\.npz has examples of the group 6, and so has .*train\.npz; '
  ):
    npz.prepare_npz(tmp_path / 'b', dataset='mine', raw_dir=raw)
  save(raw, 'test', **{name: array for name, array in recordings([7, 8, 7]).items() if name != 'groups'})
  with pytest.raises(
    errors.DataError, match=r'test\.npz has no groups, but .*train\.npz has; give all files'
  ):
    npz.prepare_npz(tmp_path / 'b', dataset='mine', raw_dir=raw)


def test_sets_with_too_few_groups_or_none_say_what_is_missing(tmp_path):
  raw = save(tmp_path / 'raw', **recordings([5, 6] * 6))
  npz.prepare_npz(tmp_path, dataset='birds', raw_dir=raw)
  with pytest.raises(
    errors.DataError, match='validation split .* is empty; prepare 7 groups or more, instead of 2'
  ):
    examples_lib.open_split(BIRDS, 'validation', tmp_path)
  save(raw, **{name: array for name, array in recordings([5, 6] * 6).items() if name != 'groups'})
  npz.prepare_npz(tmp_path / 'b', dataset='birds', raw_dir=raw)
  with pytest.raises(
    errors.DataError, match='save the group number of each example as `groups` in train.npz'
  ):
    examples_lib.open_split(BIRDS, 'validation', tmp_path / 'b')
