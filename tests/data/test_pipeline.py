"""The stream of batches has a fixed order and covers every example; damaged data are refused."""

import dataclasses
import errno
import itertools
import json
import re
import shutil
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data_prep import builders
from data_prep.builders import tfds
from lra_spt.data import examples as examples_lib
from lra_spt.data import pipeline, prepared, splits, tasks
from lra_spt.errors import DataError, FileAccessError
from lra_spt.files import checksums

quick = settings(deadline=None, max_examples=20)


def take(iterator, count):
  return list(itertools.islice(iterator, count))


def same(a, b):
  return a.keys() == b.keys() and all(
    np.array_equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in a
  )


@pytest.fixture(scope='module')
def train(byte_task, byte_set):
  return examples_lib.open_split(byte_task, 'train', byte_set[0])


def test_values_come_back_exactly(byte_task, byte_set):
  data_dir, content = byte_set
  inputs, labels = content['train']
  for split, positions in splits.random_split(53).items():
    examples = examples_lib.open_split(byte_task, split, data_dir)
    batch = examples.gather(np.arange(len(examples)))
    assert np.array_equal(batch['index'], positions)
    assert np.array_equal(batch['inputs'], np.stack(inputs)[positions])
    assert np.array_equal(batch['label'], np.asarray(labels)[positions])
    assert np.array_equal(batch['lengths'], np.full(len(positions), 16))
    assert np.array_equal(batch['weight'], np.ones(len(positions)))
    types = {'inputs': 'uint8', 'lengths': 'int32', 'label': 'int32', 'weight': 'float32', 'index': 'int32'}
    assert {key: str(value.dtype) for key, value in batch.items()} == types


def test_tokens_are_padded(token_task, token_set):
  data_dir, content = token_set
  for split in examples_lib.SPLITS:
    inputs, labels = content[split]
    examples = examples_lib.open_split(token_task, split, data_dir)
    batch = examples.gather(np.arange(len(inputs)))
    assert batch['inputs'].shape == (len(inputs), 12)
    assert batch['label'].tolist() == labels
    for row, length, expected in zip(batch['inputs'], batch['lengths'], inputs, strict=True):
      assert np.array_equal(row[:length], expected)
      assert (row[length:] == token_task.inputs.pad_id).all()


def test_gray_and_colour_read_the_same_set(gray_task, rgb_set):
  data_dir, content = rgb_set
  colour = gray_task.with_inputs(mean=(0.5,) * 3, std=(0.5,) * 3, grayscale=False)
  rgb = examples_lib.open_split(colour, 'test', data_dir).gather(np.arange(7))
  gray = examples_lib.open_split(gray_task, 'test', data_dir).gather(np.arange(7))
  assert np.array_equal(rgb['inputs'], np.stack(content['test'][0]))
  assert np.array_equal(gray['inputs'], examples_lib.luminance(rgb['inputs']))
  assert np.array_equal(rgb['label'], gray['label'])
  tokens = examples_lib.open_split(gray_task.with_byte_tokens(), 'test', data_dir).gather(np.arange(7))
  assert all(np.array_equal(tokens[name], gray[name]) for name in gray)


def test_luminance_is_pillows():
  rgb = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
  rgb[0, :3] = [[0, 0, 0], [255, 255, 255], [255, 0, 255]]
  assert np.array_equal(examples_lib.luminance(rgb), np.asarray(Image.fromarray(rgb).convert('L')))


def test_holdout_is_taken_from_the_training_file(gray_task, rgb_set):
  parts = {split: examples_lib.open_split(gray_task, split, rgb_set[0]) for split in examples_lib.SPLITS}
  assert {split: len(examples) for split, examples in parts.items()} == {
    'train': 45,
    'validation': 5,
    'test': 7,
  }
  together = np.concatenate([parts['train'].indices, parts['validation'].indices])
  assert np.array_equal(np.sort(together), np.arange(50))


def test_reading_without_the_cache_gives_the_same(byte_task, byte_set, train, monkeypatch):
  monkeypatch.setattr(examples_lib, 'CACHE_BYTES', 0)
  uncached = examples_lib.open_split(byte_task, 'train', byte_set[0])
  positions = np.array([3, 0, 3, 41])
  assert same(uncached.gather(positions), train.gather(positions))
  assert same(train.gather(positions), train.gather(positions))
  assert train.gather([])['inputs'].shape == (0, 16)


def test_forgotten_examples_are_read_again(byte_task, byte_set, train):
  examples, positions = examples_lib.open_split(byte_task, 'train', byte_set[0]), np.array([3, 0, 41])
  examples.gather(positions)
  examples.forget()
  assert examples._cache is None
  assert same(examples.gather(positions), train.gather(positions))


def test_a_batch_can_be_changed_without_changing_the_data(train):
  before = train.gather([0, 1])
  changed = train.gather([0, 1])
  changed['inputs'][:] = 0
  assert same(train.gather([0, 1]), before)


def test_positions_outside_the_split_are_refused(train):
  with pytest.raises(IndexError, match='which has 43 examples'):
    train.gather([43])


STORED = {
  'tokens': {'shape': None},
  'bytes': {'shape': (16,)},
  'sound': {'shape': (16,), 'dtype': np.int16},
  'signals': {'shape': (8, 2), 'dtype': np.float32, 'classes': 0},
  'pairs': {'shape': None, 'documents': 2},
}


@pytest.mark.parametrize('kind', STORED)
def test_records_are_read_as_tfds_reads_them(kind, tmp_path, monkeypatch):
  """Records are read in any order, from any shard, and repeatedly. Labels include 0 and -0."""
  monkeypatch.setattr(builders, 'SHARD_BYTES', 400)
  rng, form = np.random.default_rng(0), {'dtype': np.uint8, 'classes': 3, 'documents': 1} | STORED[kind]

  def draw():
    bits = rng.integers(0, 100, (form['shape'] or (int(rng.integers(1, 30)),))).astype(np.float32) - 50
    return bits.astype(np.int16).astype(form['dtype'])

  inputs = [(draw(), draw()) if form['documents'] == 2 else draw() for _ in range(40)]
  labels = [i % 3 if form['classes'] else (i - 20) * -0.25 for i in range(40)]
  source = builders.Source(
    description='random', citation='none', files={'train': lambda: zip(inputs, labels, strict=True)},
    counts={'train': 40}, origin='random numbers', verified=False, **form)  # fmt: skip
  folder = builders.prepare_set(kind, tmp_path, {}, lambda work: source)
  assert len(list(folder.glob('*.array_record-*'))) > 1
  ours, theirs = (
    examples_lib.open_source(str(folder), 'train'),
    tfds.builder_from_directory(folder).as_data_source(split='train'),
  )
  assert len(ours) == len(theirs) == 40
  order = rng.integers(0, 40, 70)
  for index, example in zip(order.tolist(), ours.read(order), strict=True):
    assert example.keys() == theirs[index].keys()
    for name, expected in theirs[index].items():
      assert np.asarray(example[name]).dtype.kind == np.asarray(expected).dtype.kind
      assert np.array_equal(example[name], expected)
    assert np.array_equal(ours[index]['inputs'], example['inputs'])
    assert example['inputs'].dtype == form['dtype']
    assert example['label'] == labels[index]


@quick
@given(n=st.integers(1, 60), seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 3))
def test_every_epoch_is_a_permutation(n, seed, epoch):
  positions = pipeline.train_indices(n, seed, epoch, n)
  assert np.array_equal(np.sort(positions), np.arange(n))


def test_epochs_and_seeds_differ():
  epochs = [tuple(pipeline.train_indices(50, seed, epoch, 50)) for seed in (0, 1) for epoch in (0, 1)]
  assert len(set(epochs)) == 4


@quick
@given(batch_size=st.integers(1, 70), step=st.integers(0, 20))
def test_the_stream_does_not_depend_on_the_batch_size(batch_size, step):
  whole = np.concatenate(
    [pipeline.train_indices(43, 5, s, 1) for s in range(step * batch_size, (step + 1) * batch_size)]
  )
  assert np.array_equal(pipeline.train_indices(43, 5, step, batch_size), whole)


def test_batches_start_at_any_step_with_any_number_of_threads(train):
  whole = take(pipeline.train_batches(train, batch_size=10, seed=3), 9)
  for start, threads in ((0, 0), (4, 1), (7, 3)):
    part = take(
      pipeline.train_batches(train, batch_size=10, seed=3, start_step=start, threads=threads), 9 - start
    )
    assert all(same(a, b) for a, b in zip(part, whole[start:], strict=True))
  expected = [train.indices[pipeline.train_indices(43, 3, step, 10)] for step in range(9)]
  assert np.array_equal([batch['index'] for batch in whole], expected)


@quick
@given(batch_size=st.integers(1, 12), data=st.data())
def test_processes_together_hold_the_global_batch(train, batch_size, data):
  owners = np.array(data.draw(st.lists(st.integers(0, 2), min_size=batch_size, max_size=batch_size)))
  kind = data.draw(st.sampled_from(['train', 'evaluate']))

  def batches(rows=None):
    if kind == 'train':
      return take(pipeline.train_batches(train, batch_size=batch_size, seed=1, rows=rows, threads=0), 3)
    return list(pipeline.evaluation_batches(train, batch_size=batch_size, rows=rows, threads=0))

  whole = batches()
  for process in range(3):
    rows = np.flatnonzero(owners == process)
    for mine, everybody in zip(batches(rows), whole, strict=True):
      assert same(mine, {key: value[rows] for key, value in everybody.items()})


@quick
@given(batch_size=st.integers(1, 60), threads=st.integers(0, 2))
def test_evaluation_covers_each_example_once(train, batch_size, threads):
  batches = list(pipeline.evaluation_batches(train, batch_size=batch_size, threads=threads))
  assert {batch['inputs'].shape for batch in batches} == {(batch_size, 16)}
  weights = np.concatenate([batch['weight'] for batch in batches])
  index = np.concatenate([batch['index'] for batch in batches])
  assert np.array_equal(index[weights > 0], train.indices)
  assert weights.sum() == len(train)
  kept = list(pipeline.evaluation_batches(train, batch_size=batch_size, threads=threads, drop_last=True))
  assert len(kept) == len(train) // batch_size
  assert all(batch['weight'].all() for batch in kept)


def test_wrong_rows_and_seeds_are_refused(train):
  with pytest.raises(ValueError, match='rows run from 0 to 3'):
    pipeline.train_batches(train, batch_size=4, seed=0, rows=[4])
  with pytest.raises(ValueError, match='data seed is -1'):
    pipeline.train_batches(train, batch_size=4, seed=-1)
  with pytest.raises(ValueError, match='at least one'):
    pipeline.train_indices(0, 0, 0, 1)


def test_fingerprints_follow_data_and_splits(make_set, byte_task, byte_set, train):
  validation = examples_lib.open_split(byte_task, 'validation', byte_set[0])
  assert validation.fingerprint == train.fingerprint
  assert validation.split_fingerprint == train.split_fingerprint
  data_dir = make_set('tiny_bytes', {'train': 53}, (16,), classes=2)[0]
  again = examples_lib.open_split(byte_task, 'train', data_dir)
  assert (again.fingerprint, again.split_fingerprint) == (train.fingerprint, train.split_fingerprint)
  data_dir = make_set('tiny_bytes', {'train': 54}, (16,), classes=2)[0]
  more = examples_lib.open_split(byte_task, 'train', data_dir)
  assert more.fingerprint != train.fingerprint
  assert more.split_fingerprint != train.split_fingerprint


def test_missing_data_names_folder_and_command(tmp_path):
  with pytest.raises(
    FileNotFoundError, match=rf'{tmp_path}/cifar10.*`lra-spt prepare cifar10 --data_dir {tmp_path}`'
  ):
    examples_lib.open_split('image', 'train', tmp_path)


def test_unknown_split_is_named(byte_task, byte_set):
  with pytest.raises(ValueError, match="no split 'dev'; choose one of train, validation, test"):
    examples_lib.open_split(byte_task, 'dev', byte_set[0])


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
    for found, wanted in zip(source.read(np.arange(3)), expected, strict=True):
      np.testing.assert_array_equal(found['inputs'], wanted['inputs'])
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


def test_metadata_tells_the_origin(byte_task, byte_set):
  metadata = json.loads(
    (prepared.dataset_folder(byte_set[0], byte_task.dataset) / 'metadata.json').read_text()
  )
  assert metadata['source'] == 'random numbers'
  assert metadata['verified'] is False
  assert metadata['counts'] == {'train': 53}
  assert len(metadata['fingerprint']) == 64


def test_parts_lie_within_larger_parts_and_hold_the_classes_as_drawn(make_set, byte_task_of):
  folder, _ = make_set('parts', {'train': 2000}, (4,))
  train = examples_lib.open_split(byte_task_of('parts', 4, 10), 'train', folder)
  parts = [train.part(fraction) for fraction in (0.005, 0.05, 0.5, 1.0)]
  assert [len(part) for part in parts] == [8, 80, 800, 1600]
  for small, large in zip(parts, parts[1:], strict=False):
    assert set(small.indices) < set(large.indices)
  order = np.random.RandomState(42).permutation(1600)[:80]  # as in the published code
  assert sorted(parts[1].indices) == sorted(train.indices[order])
  share = np.bincount(parts[2].gather(np.arange(800))['label'], minlength=10) / 800
  whole = np.bincount(train.gather(np.arange(1600))['label'], minlength=10) / 1600
  assert np.abs(share - whole).max() < 4 * np.sqrt(0.1 * 0.9 / 800)
