"""The stream of batches has a fixed order and covers every example; damaged data are refused."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data_prep import builders
from data_prep.builders import tfds
from lra_spt.data import examples as examples_lib
from lra_spt.data import pipeline, prepared, splits

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
  whole = list(pipeline.evaluation_batches(train, batch_size=batch_size, threads=threads, drop_last=True))
  assert len(whole) == len(train) // batch_size
  assert all(batch['weight'].all() for batch in whole)


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


def test_unknown_split_is_named(byte_task, byte_set):
  with pytest.raises(ValueError, match="no split 'dev'; choose one of train, validation, test"):
    examples_lib.open_split(byte_task, 'dev', byte_set[0])


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
