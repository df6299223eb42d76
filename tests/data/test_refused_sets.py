"""Sets that are missing, changed, damaged or unfit for their task are refused. Failed reads are repeated."""

import dataclasses
import errno
import json
import re
import shutil
import types

import numpy as np
import pytest

from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared, tasks
from lra_spt.errors import DataError, FileAccessError
from lra_spt.files import checksums


def test_missing_data_names_folder_and_command(tmp_path):
  with pytest.raises(
    FileNotFoundError, match=rf'{tmp_path}/cifar10.*`lra-spt prepare cifar10 --data_dir {tmp_path}`'
  ):
    examples_lib.open_split('image', 'train', tmp_path)


@pytest.mark.parametrize(
  'damage', ['truncated', 'missing', 'changed', 'metadata', 'foreign', 'older', 'unnamed']
)
def test_damaged_data_is_refused_with_advice(byte_task, byte_set, tmp_path, damage):
  folder = prepared.dataset_folder(tmp_path, byte_task.dataset)
  shutil.copytree(prepared.dataset_folder(byte_set[0], byte_task.dataset), folder)
  shard = next(folder.glob('*.array_record-*'))
  if damage == 'truncated':
    shard.write_bytes(shard.read_bytes()[:-1])
  elif damage == 'missing':
    shard.unlink()
  elif damage == 'changed':  # the file of another preparation may have the same size
    shard.write_bytes(shard.read_bytes()[:-1] + b'?')
  elif damage == 'older':
    metadata = json.loads((folder / 'metadata.json').read_text())
    (folder / 'metadata.json').write_text(json.dumps({k: v for k, v in metadata.items() if k != 'sha256'}))
  elif damage == 'unnamed':  # without checksums, every file would pass
    metadata = json.loads((folder / 'metadata.json').read_text())
    (folder / 'metadata.json').write_text(json.dumps(metadata | {'sha256': {}}))
  elif damage == 'metadata':
    (folder / 'metadata.json').write_text('{"files": ')
  else:
    (folder / 'metadata.json').write_text('{}')
  with pytest.raises(ValueError, match=rf'remove {folder} and make it with `lra-spt demo --data_dir'):
    examples_lib.open_split(byte_task, 'train', tmp_path)


TENSOR = 'tensorflow_datasets.core.features.tensor_feature.Tensor'


@pytest.mark.parametrize(
  'features, what',
  [
    ({'pythonClassName': 'hostile.X'}, "the class 'hostile.X'"),
    ({'pythonClassName': ['hostile.X']}, "the class ['hostile.X']"),
    ({'python_class_name': 'hostile.X', 'featuresDict': {}}, "the key 'python_class_name'"),
    ({'type': 'hostile.X', 'content': {}}, "the key 'type'"),
    ({'featuresDict': {'features': {'inputs': {'pythonClassName': 'hostile.X'}}}}, "the class 'hostile.X'"),
    ({'featuresDict': {'features': {'x': {'pythonClassName': TENSOR}}}}, "the key 'x'"),
    ({'pythonClassName': TENSOR, 'jsonFeature': {'json': '{"type": "hostile.X"}'}}, "the key 'jsonFeature'"),
  ],
)
def test_no_module_that_a_set_names_is_imported(byte_task, byte_set, tmp_path, monkeypatch, features, what):
  """TFDS accepts several spellings of a class and imports its module."""
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / 'hostile.py').write_text('raise SystemExit(9)')
  folder = prepared.dataset_folder(tmp_path, byte_task.dataset)
  shutil.copytree(prepared.dataset_folder(byte_set[0], byte_task.dataset), folder)
  (folder / 'features.json').write_text(json.dumps(features))
  prepared.seal(folder)
  with pytest.raises(DataError, match=re.escape(f'features.json has {what}, which no prepared set has')):
    examples_lib.open_split(byte_task, 'train', tmp_path)


def test_a_set_is_hashed_once_and_again_when_a_file_may_have_changed(
  byte_task, byte_set, tmp_path, monkeypatch
):
  folder = prepared.dataset_folder(tmp_path, byte_task.dataset)
  shutil.copytree(prepared.dataset_folder(byte_set[0], byte_task.dataset), folder)
  (folder / prepared.CHECKED).unlink(missing_ok=True)
  hashed, of_file = [], checksums.of_file

  def count(path):
    if path.suffix != '.json':  # JSON files are small, and hashed every time
      hashed.append(path.name)
    return of_file(path)

  monkeypatch.setattr(checksums, 'of_file', count)
  names = sorted(path.name for path in folder.glob('*.array_record-*'))
  prepared.read_metadata(folder, '')
  assert sorted(hashed) == names
  prepared.read_metadata(folder, '')
  assert sorted(hashed) == names
  content = (folder / names[0]).read_bytes()
  (folder / 'new').write_bytes(content)
  (folder / 'new').rename(folder / names[0])
  prepared.read_metadata(folder, '')
  assert sorted(hashed) == sorted([*names, names[0]])
  (folder / prepared.CHECKED).write_text('[1')
  prepared.read_metadata(folder, '')
  assert len(hashed) == 2 * len(names) + 1


def test_changed_bytes_are_noticed_and_their_file_is_named(byte_task, byte_set, tmp_path):
  folder = prepared.dataset_folder(tmp_path, byte_task.dataset)
  shutil.copytree(prepared.dataset_folder(byte_set[0], byte_task.dataset), folder)
  shard = next(folder.glob('*.array_record-*'))
  content = bytearray(shard.read_bytes())
  content[100] ^= 1
  shard.write_bytes(content)
  source = examples_lib.open_source(str(folder), 'train')
  with pytest.raises(ValueError, match=rf'{shard} is damaged \(.*\); remove its folder'):
    source.read(np.arange(len(source)))


@pytest.mark.parametrize('error', [OSError(errno.ESTALE, 'Stale'), RuntimeError('read: Input/output error')])
@pytest.mark.parametrize('times', [2, 4])
def test_reads_that_fail_are_repeated(byte_task, byte_set, monkeypatch, capsys, error, times):
  """Network storage may fail for a moment, or for good."""
  folder = prepared.dataset_folder(byte_set[0], byte_task.dataset)
  expected = examples_lib.open_source(str(folder), 'train').read(np.arange(3))
  pauses, left = [], [times]
  monkeypatch.setattr(examples_lib.time, 'sleep', pauses.append)
  source = examples_lib.open_source(str(folder), 'train')

  def refusing(path, reader=source._open):
    opened = reader(path)

    def read(places):
      left[0] -= 1
      if left[0] >= 0:
        raise error
      return opened.read(places)

    return types.SimpleNamespace(read=read)

  source._open, source._readers = refusing, [refusing(path) for path in source._paths]
  if times > len(examples_lib.PAUSES):
    with pytest.raises(
      FileAccessError, match=r'array_record-\S+ could not be read: (Stale|Input).*check the disk'
    ):
      source.read(np.arange(3))
  else:
    for actual, wanted in zip(source.read(np.arange(3)), expected, strict=True):
      np.testing.assert_array_equal(actual['inputs'], wanted['inputs'])
  assert pauses == list(examples_lib.PAUSES[:times])
  assert capsys.readouterr().err.count('Reading it again in ') == len(pauses)


@pytest.mark.parametrize(
  'change, reason',
  [
    (lambda task: task.with_inputs(length=15), r'shape \[15\].*shape \[16\]'),
    (lambda task: dataclasses.replace(task, labels=tasks.Classes(3)), 'classes=2.*has 3'),
    (lambda task: dataclasses.replace(task, splits='holdout'), "no file 'test'"),
  ],
)
def test_a_task_that_does_not_fit_is_refused(byte_task, byte_set, change, reason):
  with pytest.raises(ValueError, match=reason):
    examples_lib.open_split(change(byte_task), 'train', byte_set[0])


@pytest.mark.parametrize(
  'changes, reason',
  [({'length': 5}, '12 positions.*reads at most 5'), ({'vocabulary': 7}, '8 token ids.*has 7')],
)
def test_a_token_task_that_is_too_small_is_refused(token_task, token_set, changes, reason):
  with pytest.raises(ValueError, match=reason):
    examples_lib.open_split(token_task.with_inputs(**changes), 'train', token_set[0])


@pytest.mark.parametrize(
  'kind, file, reason',
  [
    ('random', 'test', "for test in files.*'random'.*set splits='holdout'.*remove .*/tiny_spare/"),
    ('random', 'validation', 'for validation in files.*not read; remove .* and prepare the set without'),
    ('random', 'both', "for validation and test in files.*set splits='files'"),
    ('holdout', 'both', "for validation in files.*'holdout'.*set splits='files'"),
  ],
)
def test_files_that_the_splits_leave_unread_are_refused(make_set, byte_task, tmp_path, kind, file, reason):
  held = ('validation', 'test') if file == 'both' else (file,)
  make_set('tiny_spare', {'train': 20, **dict.fromkeys(held, 6)}, (16,), classes=2, data_dir=tmp_path)
  task = dataclasses.replace(byte_task, dataset='tiny_spare', splits=kind)
  with pytest.raises(DataError, match=reason):
    examples_lib.open_split(task, 'train', tmp_path)
  if file == 'both':  # the splits of published code may leave files unread
    for other in ('files', 'reused', 'shuffled'):
      examples_lib.open_split(dataclasses.replace(task, splits=other), 'train', tmp_path)


@pytest.mark.parametrize('held, kind', [((), 'random'), (('test',), 'holdout')])
def test_splits_by_files_without_the_files_say_what_fits(make_set, byte_task, tmp_path, held, kind):
  make_set('tiny_bare', {'train': 20, **dict.fromkeys(held, 6)}, (16,), classes=2, data_dir=tmp_path)
  task = dataclasses.replace(byte_task, dataset='tiny_bare', splits='files')
  with pytest.raises(DataError, match=f"validation split.*set splits='{kind}' in the task"):
    examples_lib.open_split(task, 'validation', tmp_path)
