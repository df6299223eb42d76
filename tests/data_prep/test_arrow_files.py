"""Parquet and Arrow files give the same set as an .npz file with the same values. Errors name the row."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from data_prep import arrays, arrow_files
from data_prep.sources import npz, npz_files
from lra_spt import errors
from lra_spt.data import prepared

RNG = np.random.default_rng(0)
COUNT = 12
LENGTHS = RNG.integers(1, 7, COUNT)
VALUES = RNG.normal(0, 1, (COUNT, 6, 2)).astype(np.float32)
BYTES = RNG.integers(0, 256, (COUNT, 6)).astype(np.uint8)
IDS = RNG.integers(4, 9, (COUNT, 6))
LABELS = np.arange(COUNT) % 3
OF_POSITIONS = np.arange(6 * COUNT).reshape(COUNT, 6) % 3
INSIDE = np.arange(6) < LENGTHS[:, None]


def cut(rows):
  return [row[:length].tolist() for row, length in zip(rows, LENGTHS, strict=True)]


def lists(kind, depth=1):
  for _ in range(depth):
    kind = pa.list_(kind)
  return kind


FORMS = {  # arrays of train.npz, and the columns of the same examples
  'values': (
    {'inputs': BYTES, 'labels': LABELS},
    {'inputs': pa.array(BYTES.tolist(), lists(pa.uint8())), 'labels': LABELS},
  ),
  'values of fixed size': (
    {'inputs': VALUES, 'labels': LABELS},
    {'inputs': pa.FixedShapeTensorArray.from_numpy_ndarray(VALUES.reshape(COUNT, 12)), 'labels': LABELS}
    | {'inputs': pa.array(VALUES.tolist(), pa.list_(pa.list_(pa.float32(), 2), 6))},
  ),
  'tensors': (
    {'inputs': VALUES[..., 0], 'labels': LABELS},
    {
      'inputs': pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(VALUES[..., 0])),
      'labels': LABELS,
    },
  ),
  'values of differing lengths': (
    {'inputs': VALUES, 'lengths': LENGTHS, 'labels': RNG.normal(size=COUNT)},
    {'inputs': pa.array(cut(VALUES), lists(pa.float32(), 2))},
  ),
  'token ids': (
    {'inputs': IDS, 'lengths': LENGTHS, 'labels': LABELS},
    {'inputs': pa.array(cut(IDS), pa.large_list(pa.int64())), 'labels': LABELS},
  ),
  'labels of positions': (
    {'inputs': VALUES, 'lengths': LENGTHS, 'labels': np.where(INSIDE, OF_POSITIONS, -1)},
    {
      'inputs': pa.array(cut(VALUES), lists(pa.float32(), 2)),
      'labels': pa.array(cut(OF_POSITIONS), lists(pa.int8())),
    },
  ),
  'labels of tokens': (
    {'inputs': IDS.reshape(-1), 'offsets': 6 * np.arange(COUNT + 1), 'labels': OF_POSITIONS.reshape(-1)},
    {'inputs': pa.array(IDS.tolist()), 'labels': pa.array(OF_POSITIONS.tolist())},
  ),
  'several labels': (
    {'inputs': BYTES, 'labels': OF_POSITIONS[:, :2] == LABELS[:, None]},
    {
      'inputs': pa.array(BYTES.tolist(), lists(pa.uint8())),
      'labels': pa.array((OF_POSITIONS[:, :2] == LABELS[:, None]).tolist()),
    },
  ),
  'several numbers': (
    {'inputs': BYTES, 'labels': VALUES[:, 0].astype(np.float64)},
    {
      'inputs': pa.array(BYTES.tolist(), lists(pa.uint8())),
      'labels': pa.array(VALUES[:, 0].astype(np.float64).tolist()),
    },
  ),
  'examples without a label': (
    {'inputs': BYTES, 'labels': np.where(LABELS == 2, -1, LABELS)},
    {
      'inputs': pa.array(BYTES.tolist(), lists(pa.uint8())),
      'labels': pa.array([None if label == 2 else int(label) for label in LABELS]),
    },
  ),
  'groups': (
    {'inputs': BYTES, 'labels': LABELS, 'groups': np.arange(COUNT) % 5},
    {
      'inputs': pa.array(BYTES.tolist(), lists(pa.uint8())),
      'labels': LABELS,
      'groups': np.arange(COUNT) % 5,
    },
  ),
}  # fmt: skip
FORMS['values of differing lengths'][1]['labels'] = FORMS['values of differing lengths'][0]['labels']


def save(path, columns, rows=5):
  """Writes a file in batches of 5 rows."""
  path.parent.mkdir(parents=True, exist_ok=True)
  table = pa.table(columns)
  if path.suffix == '.parquet':
    pyarrow.parquet.write_table(table, path, row_group_size=rows)
    return
  with pa.ipc.new_file(path, table.schema) as file:
    file.write_table(table, max_chunksize=rows)


def described(folder, data_dir):
  metadata = prepared.read_metadata(npz.prepare_npz(data_dir, dataset='mine', raw_dir=folder), '')
  keys = 'fingerprint', 'shape', 'statistics', 'groups', 'train_labels', 'labelled', 'classes', 'dtype'
  return {key: metadata.get(key) for key in keys}


@pytest.mark.parametrize('form', FORMS)
def test_they_give_the_set_of_an_npz_file(tmp_path, monkeypatch, form):
  monkeypatch.setattr(arrays, 'BLOCK_BYTES', 200)  # several batches of a row group
  in_npz, columns = FORMS[form]
  (tmp_path / 'npz').mkdir()
  np.savez(tmp_path / 'npz' / 'train.npz', **in_npz)
  save(tmp_path / 'parquet' / 'train.parquet', columns)
  save(tmp_path / 'arrow' / 'train.arrow', columns)
  if form != 'groups':  # a group may not be in several parts
    table = pa.table(columns)
    for k, (start, end) in enumerate(((0, 7), (7, COUNT))):
      part = table.slice(start, end - start)
      save(
        tmp_path / 'parts' / 'train' / f'{k}.arrow', dict(zip(part.schema.names, part.columns, strict=True))
      )
  actual = {path.name: described(path, tmp_path / f'{path.name}_set') for path in [*tmp_path.iterdir()]}
  assert len(actual) == (3 if form == 'groups' else 4)
  for one in actual.values():
    assert one == actual['npz']


def test_memory_does_not_grow_with_the_inputs(tmp_path, monkeypatch):
  """The file has 4 MiB of values in one row group."""
  monkeypatch.setattr(arrays, 'BLOCK_BYTES', 2**18)
  monkeypatch.setattr(arrow_files, '_BUFFER', 2**16)
  values = np.random.default_rng(0).normal(size=(64, 2**14)).astype(np.float32)
  column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 2**14)
  save(tmp_path / 'train.parquet', {'inputs': column, 'labels': np.arange(64) % 2}, rows=64)
  wanted = values.sum(1, dtype=np.float64)
  del values, column
  usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
  pa.set_memory_pool(pool)
  try:
    part = npz_files.read_any(tmp_path / 'train.parquet')
    actual = [inputs.sum(dtype=np.float64) for inputs, _ in part.examples(np.float32)]
  finally:
    pa.set_memory_pool(usual)
  np.testing.assert_allclose(actual, wanted)
  assert 2**18 < pool.max_memory() < 2**21


def column(rows, kind=None):
  return {'inputs': pa.array(rows, kind), 'labels': pa.array([0, 1] * (len(rows) // 2))}


FLOATS = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
WRONG = [
  ({'labels': LABELS}, r'train\.parquet has no inputs; it has labels'),
  ({'inputs': pa.array(IDS.tolist())}, r'train\.parquet has no labels .*; it has inputs, offsets'),
  (column([1, 2, 3, 4]), r'inputs are int64; make every row a list of uint8'),
  (column([['a'], ['b']]), r'inputs are list<\w+: string>; make every row a list'),
  (column(FLOATS), r'inputs are list<\w+: double>; make every row a list of uint8, int16 or float32, or of'),
  (column([[[5]], [[6]]]), r'inputs are list<.*int64>.*; make every row a list'),
  (column([[5], [6], [], [7]]), r'train\.parquet: row 2 of inputs is empty; give it a position'),
  (column([[5], None, [6], [7]]), r'row 1 of inputs has a missing value \(null\); fill it'),
  (column([[5], [6], [7, 8, None], [9]]), r'row 2 of inputs has a missing value \(null\)'),
  (column([[5], [6], [7, 1], [9]]), r'train\.parquet: input 2 holds the id 1, but 0 and 1 are'),
  (column([[0.0], [1.0], [2.0, np.nan], [3.0]], lists(pa.float32())), r'input 2 holds a number that is not'),
  (
    column([[[0.0, 1.0]], [[2.0, 3.0], [4.0]]], lists(pa.float32(), 2)),
    r'row 1 of inputs has lists of differing lengths; give every position as many channels',
  ),
  (
    column([[[0.0, 1.0]], [[2.0, 3.0]], [[4.0]], [[5.0]]], lists(pa.float32(), 2)),
    r'row 2 of inputs has 1 channels, and row 0 has 2; give every position as many',
  ),
  (
    {'inputs': pa.array([[5, 6], [7]]), 'labels': pa.array([[0, 1], [1, 0]])},
    r'row 1 of labels has 2 numbers, and not 1, the positions of its input; correct it',
  ),
  (
    {'inputs': pa.array([[5, 6], [7]]), 'labels': pa.array([[0.0, 1.0], [1.0]])},
    r'row 1 of labels has 1 numbers, and not 2, as many as row 0; correct it',
  ),
  (column([[5], [6]]) | {'id': ['a', 'b']}, r'has the column id, which is not read; leave it out, or call'),
  (column([], lists(pa.int64())), r'train\.parquet has no rows; give it some, or leave the file out'),
]  # fmt: skip


@pytest.mark.parametrize(('columns', 'reason'), WRONG)
def test_wrong_columns_are_named(tmp_path, monkeypatch, columns, reason):
  monkeypatch.setattr(arrays, 'BLOCK_BYTES', 32)  # batches of one or two rows
  save(tmp_path / 'raw' / 'train.parquet', columns, rows=2)
  with pytest.raises(errors.DataError, match=reason) as raised:
    npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=tmp_path / 'raw')
  assert '\n' not in str(raised.value)
  assert not [*(tmp_path / 'data').rglob('*')]


@pytest.mark.parametrize('suffix', arrow_files.SUFFIXES)
def test_truncated_files_are_named(tmp_path, suffix):
  save(path := tmp_path / 'raw' / f'train{suffix}', FORMS['values'][1])
  content = path.read_bytes()
  for size in (0, 10, len(content) // 2, len(content) - 3):
    path.write_bytes(content[:size])
    with pytest.raises(errors.DataError, match=rf'train\{suffix} is not a readable \w+ file \(.+\); save it'):
      npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=tmp_path / 'raw')


@pytest.mark.parametrize('suffix', arrow_files.SUFFIXES)
def test_damage_ends_in_a_sentence_or_in_values(tmp_path, suffix):
  """One byte is inverted. Parquet and Arrow notice some of these, and none crashes the process."""
  save(path := tmp_path / f'train{suffix}', FORMS['labels of positions'][1])
  content, noticed = path.read_bytes(), 0
  for place in range(5, len(content), max(1, len(content) // 60)):
    path.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
    try:
      arrow_files.of_file(path)
    except errors.DataError:
      noticed += 1
  assert noticed


def test_other_dtypes_and_two_files_of_one_name_are_named(tmp_path):
  for name, dtype in (('a', np.uint8), ('b', np.int16)):
    rows = pa.array(BYTES.astype(dtype).tolist(), lists(pa.from_numpy_dtype(dtype)))
    save(tmp_path / 'raw' / 'train' / f'{name}.parquet', {'inputs': rows, 'labels': LABELS})
  with pytest.raises(errors.DataError, match=r'b\.parquet has inputs int16, but \S*a\.parquet uint8; make'):
    npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=tmp_path / 'raw')
  save(tmp_path / 'raw' / 'train.arrow', FORMS['values'][1])
  with pytest.raises(errors.DataError, match=r'holds train\.arrow and the folder train; move one'):
    npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=tmp_path / 'raw')


def test_other_files_have_the_form_of_the_training_file(tmp_path):
  """All training inputs have one length but a test input has another, so the set has no single length."""
  rows = VALUES[..., 0].tolist()
  save(tmp_path / 'raw' / 'train.parquet', {'inputs': pa.array(rows, lists(pa.float32())), 'labels': LABELS})
  rows[3] = rows[3][:2]
  save(tmp_path / 'raw' / 'test.parquet', {'inputs': pa.array(rows, lists(pa.float32())), 'labels': LABELS})
  assert described(tmp_path / 'raw', tmp_path / 'data')['shape'] == [0, 1]
