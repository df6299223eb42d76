"""Damaged or edited prepared sets are refused in one sentence."""

import errno
import json
import shutil

import numpy as np
import pytest

from data_prep.sources import stripes
from lra_spt.cli import main as cli
from lra_spt.data import examples as examples_lib
from lra_spt.data import fingerprints, prepared, tasks
from lra_spt.errors import DataError, FileAccessError, UserError
from lra_spt.files import checksums

FILES = (prepared.METADATA, prepared.INFO, prepared.FEATURES)
DAMAGES = {
  'list': b'[1]',
  'empty': b'',
  'null': b'\0',
  'garbage': bytes(range(256)),
  'brackets': b'[' * 1_000_000,
  'object': b'{}',
}


@pytest.fixture(scope='module')
def task():
  inputs = tasks.Tokens(12, vocabulary=9)
  return tasks.Task('frail', 'frail', inputs, tasks.Classes(10), prepare_command='lra-spt demo')


@pytest.fixture(scope='module')
def whole(make_set):
  vocabulary = ('<mask>', '<pad>', '<unk>', '<eos>', *'abcde')
  counts = {'train': 12, 'validation': 5, 'test': 6}
  return make_set('frail', counts, None, vocabulary=vocabulary)[0]


@pytest.fixture
def folder(whole, tmp_path):
  """A copy of the set."""
  shutil.copytree(whole / 'frail', tmp_path / 'frail', ignore=shutil.ignore_patterns('.*'))
  return prepared.dataset_folder(tmp_path, 'frail')


def unseal(folder, **changes):
  """Removes the checksums of the metadata, so that later checks are reached."""
  metadata = json.loads((folder / prepared.METADATA).read_text())
  metadata.pop(checksums.KEY)
  (folder / prepared.METADATA).write_text(json.dumps(metadata | changes))


def read(folder, task):
  """Reads every example."""
  for split in examples_lib.SPLITS:
    examples = examples_lib.open_split(task, split, folder.parent.parent)
    examples.gather(np.arange(len(examples)))


def refusal(folder, task):
  with pytest.raises(UserError) as raised:
    read(folder, task)
  assert str(folder) in str(raised.value)
  assert '\n' not in str(raised.value)
  assert len(str(raised.value)) < 1000
  return str(raised.value)


def test_a_whole_set_is_read(folder, task):
  read(folder, task)
  metadata = prepared.read_metadata(folder, '', thorough=True)
  assert {*metadata['sha256']} == {*metadata['files'], prepared.INFO, prepared.FEATURES}
  fingerprints.check(folder, metadata)


@pytest.mark.parametrize('damage', DAMAGES)
@pytest.mark.parametrize('name', FILES)
def test_damaged_json_is_refused(folder, task, name, damage):
  (folder / name).write_bytes(DAMAGES[damage])
  refusal(folder, task)


@pytest.mark.parametrize('name', FILES)
def test_edited_json_is_refused(folder, task, name):
  text = (folder / name).read_text()
  for old, new in (('"12', '"11'), ('uint8', 'int16'), ('"train"', '"trair"'), ('10', '11'), (': 5', ': 4')):
    if old in text:
      (folder / name).write_text(text.replace(old, new, 1))
      refusal(folder, task)
  (folder / name).write_text(text)
  read(folder, task)


@pytest.mark.parametrize(
  'changes',
  [
    {'counts': {'train': '12'}},
    {'counts': [12]},
    {'files': {'../../x': 3}},
    {'files': {'a': None}},
    {'files': None},
    {'request': []},
    {'longest': None},
    {'shape': 'none'},
    {'groups': {'train': [3]}},
    {'groups': {'train': ['12']}},
    {'groups': {'train': 12}},
    {'statistics': {'train': {'mean': 'x'}}},
    {'statistics': {'train': {'mean': [0.5]}}},
    {'vocabulary': 3},
    {'verified': 'yes'},
    {'sha256': [1]},
    {'sha256': {'a': 1}},
    {'sha256': {'a': 'b'}},
  ],
)
def test_wrong_values_are_refused(folder, task, changes):
  unseal(folder, **changes)
  assert 'metadata.json' in refusal(folder, task)


def test_a_set_without_checksums_is_refused(folder, task):
  unseal(folder)
  assert 'has no checksums; remove' in refusal(folder, task)


@pytest.mark.parametrize(
  'name, old, new',
  [
    (prepared.INFO, '"12"', '"13"'),
    (prepared.INFO, '"12"', '"-3"'),
    (prepared.INFO, '{DATASET}', '../{DATASET}'),
    (prepared.INFO, '"splits"', '"splitz"'),
    (prepared.FEATURES, '"inputs"', '"input"'),
    (prepared.FEATURES, 'uint8', 'uint9'),
    (prepared.FEATURES, 'uint8', 'int64'),
    (prepared.FEATURES, '"-1"', '"7"'),
  ],
)
def test_what_tfds_reads_is_refused_without_digests_too(folder, name, old, new):
  path, metadata = folder / name, prepared.read_metadata(folder, '')
  assert old in path.read_text()
  path.write_text(path.read_text().replace(old, new, 1))
  with pytest.raises(DataError) as raised:
    fingerprints.recomputed(folder, metadata)
  assert str(folder) in str(raised.value)


def test_other_examples_have_another_fingerprint(folder):
  metadata = prepared.read_metadata(folder, '')
  with pytest.raises(DataError, match='are not those that were prepared'):
    fingerprints.check(folder, metadata | {'fingerprint': '0' * 64})
  with pytest.raises(DataError, match='examples in train instead of 11'):
    fingerprints.check(folder, metadata | {'counts': metadata['counts'] | {'train': 11}})
  with pytest.raises(DataError, match=r'The longest example in .* has 11 positions, but 13 are recorded'):
    fingerprints.check(folder, metadata | {'longest': 13})


def test_inspect_computes_the_fingerprint_again(tmp_path, capsys):
  stripes.prepare_stripes(tmp_path, examples=20)
  folder = prepared.dataset_folder(tmp_path, 'stripes')
  flags = ['inspect', 'stripes', f'--data_dir={tmp_path}', '--examples=1']
  assert cli.main([*flags, '--sample=3']) == 0
  assert '(as recorded)' in capsys.readouterr().out
  assert cli.main(flags) == 0
  assert '(recomputed)' in capsys.readouterr().out
  unseal(folder, fingerprint='0' * 64)
  prepared.seal(folder)
  assert cli.main(flags) == 2
  assert 'are not those that were prepared' in capsys.readouterr().err


def test_a_shard_that_may_not_be_read_is_not_damaged(folder, task, monkeypatch):
  """ArrayRecord's reader would read such a shard as empty."""
  examples_lib.open_split(task, 'train', folder.parent.parent)  # verifies its checksums
  opening = open

  def refuse(path, *arguments, **options):
    if '.array_record' in str(path):
      raise PermissionError(errno.EACCES, 'Permission denied', str(path))
    return opening(path, *arguments, **options)

  monkeypatch.setattr('builtins.open', refuse)
  with pytest.raises(FileAccessError, match='array_record.* could not be read: permission is denied'):
    examples_lib.open_split(task, 'train', folder.parent.parent)
