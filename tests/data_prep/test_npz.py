"""A user's .npz files become a set: values are stored as they are, and wrong files are refused."""

import dataclasses
import io
import shutil
import zipfile

import numpy as np
import pytest

from data_prep.sources import npz, npz_files
from lra_spt import errors
from lra_spt.cli import main as cli
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared, tasks, tokenizers
from tests.data_prep.npz_files import BYTES, LABELS, changed, save

IDS = [[7, 4, 3], [5, 3], [6, 6, 6, 6, 3]]
FLAT, ENDS = np.concatenate(IDS), np.cumsum([0, *map(len, IDS)])


def stored(folder, file='train'):
  source = examples_lib.open_source(str(folder), file)
  return [(source[i]['inputs'], source[i]['label']) for i in range(len(source))]


@pytest.mark.parametrize('dtype', npz_files.DTYPES)
@pytest.mark.parametrize('shape', [(4, 6), (4, 6, 1), (4, 6, 3)])
def test_values_are_stored_as_they_are(tmp_path, dtype, shape):
  x = np.random.default_rng(1).normal(5, 20, shape).astype(dtype)
  raw = save(tmp_path / 'raw', inputs=x, labels=np.array([0, 1, 1, 0], np.uint8))
  save(raw, 'test', inputs=x[:2], labels=np.array([1, 1]))
  folder = npz.prepare_npz(tmp_path, dataset='mine', raw_dir=raw)
  metadata = prepared.read_metadata(folder, '')
  assert (metadata['counts'], metadata['classes']) == ({'train': 4, 'test': 2}, 2)
  assert (metadata['dtype'], metadata['verified']) == (dtype, False)
  x = x.reshape(4, 6) if shape[2:] == (1,) else x
  assert metadata['shape'] == list(x.shape[1:])
  for (actual, label), expected, of in zip(stored(folder), x, [0, 1, 1, 0], strict=True):
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual, expected)
    assert label == of
  of_channel = x.reshape(24, -1).astype(np.float64)
  np.testing.assert_allclose(metadata['statistics']['train']['mean'], of_channel.mean(0), rtol=1e-12)
  np.testing.assert_allclose(metadata['statistics']['train']['std'], of_channel.std(0), rtol=1e-12)


def test_a_channel_that_never_varies_is_told_and_becomes_zero(tmp_path, capsys):
  x = np.random.default_rng(1).normal(5, 20, (300, 32, 3)).astype(np.float32)
  x[..., 1] = 3
  raw = save(tmp_path / 'raw', inputs=x, labels=np.arange(300) % 2)
  line = 'Channel 1 of mine never varies in the training file: normalised, it is 0 and tells a model nothing.'
  for _ in range(2):  # the second time, the set is already prepared
    folder = npz.prepare_npz(tmp_path, dataset='mine', raw_dir=raw)
    first, last = capsys.readouterr().out.splitlines()
    assert (first, last[-2:]) == (line, ').')
  inputs = tasks.Values(32, channels=3, dtype='float32', measured=True)
  measured = prepared.read_metadata(folder, '')['statistics']
  read = tasks.Task('mine', 'mine', inputs, tasks.Classes(2)).with_measured(measured).inputs
  normalised = (x / read.scale - np.float32(read.mean)) / np.float32(read.std)
  assert not normalised[..., 1].any()
  np.testing.assert_allclose(normalised[..., [0, 2]].std((0, 1)), 1, rtol=1e-5)
  x[..., 2] = 0.1
  raw = save(tmp_path / 'raw', inputs=x, labels=np.arange(300) % 2)
  npz.prepare_npz(tmp_path / 'other', dataset='mine', raw_dir=raw)
  assert capsys.readouterr().out.startswith('Each of the channels 1, 2 of mine never varies')


@pytest.mark.parametrize(
  'labels, made',
  [
    (LABELS, '4 classes'),
    (LABELS.astype(float), 'regression on 4 distinct values'),
    (np.full(12, 2.5), 'regression on 1 distinct value'),
  ],
)
def test_the_last_line_says_what_was_made(tmp_path, capsys, labels, made):
  raw = save(tmp_path / 'raw', **changed(labels=labels))
  for _ in range(2):
    npz.prepare_npz(tmp_path, dataset='mine', raw_dir=raw)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f' (12 train; {made}; own files train.npz).')


@pytest.mark.parametrize(('dtype', 'channels'), [('float32', 1), ('float32', 0), ('int16', 3), ('uint8', 1)])
def test_values_may_differ_in_length(tmp_path, dtype, channels):
  lengths = np.array([2, 5, 6, 1])
  x = np.random.default_rng(1).integers(1, 99, (4, 6, channels or 1)).astype(dtype)
  x = np.where((np.arange(6) < lengths[:, None])[..., None], x, np.array(255, dtype))
  if dtype == 'float32':
    x[0, 2:] = np.nan  # values beyond a length are not read
  inputs = x if channels else x[..., 0]
  raw = save(tmp_path / 'raw', inputs=inputs, lengths=lengths, labels=np.arange(4) % 2)
  folder = npz.prepare_npz(tmp_path, dataset='mine', raw_dir=raw)
  metadata = prepared.read_metadata(folder, '')
  assert (metadata['shape'], metadata['longest']) == ([0, channels or 1], 6)
  assert metadata['train_labels'] == [0, 1, 0, 1]
  for (actual, _), row, length in zip(stored(folder), x, lengths, strict=True):
    np.testing.assert_array_equal(actual, row[:length])
  valid = np.concatenate([row[:length] for row, length in zip(x, lengths, strict=True)]).astype(float)
  np.testing.assert_allclose(metadata['statistics']['train']['mean'], valid.mean(0), rtol=1e-6)
  values = tasks.Values(8, channels=channels or 1, dtype=dtype, measured=True, padded=True)
  task = tasks.Task('mine', 'mine', values, tasks.Classes(2))
  batch = examples_lib.open_split(task, 'train', tmp_path).gather(np.arange(4))
  np.testing.assert_array_equal(batch['lengths'], lengths)
  expected = np.zeros((4, 8, channels or 1), dtype)
  expected[:, :6] = np.where((np.arange(6) < lengths[:, None])[..., None], x, 0)
  np.testing.assert_array_equal(batch['inputs'], expected.reshape(batch['inputs'].shape))
  full = dataclasses.replace(task, inputs=dataclasses.replace(values, padded=False))
  with pytest.raises(errors.DataError, match='shape'):
    examples_lib.open_split(full, 'train', tmp_path)


def test_real_labels_are_measured(tmp_path):
  labels = np.array([3.0, 5.0, 10.0, 2.0])
  raw = save(tmp_path / 'raw', inputs=np.zeros((4, 6), np.uint8), labels=labels)
  save(raw, 'test', inputs=np.zeros((4, 6), np.uint8), labels=labels + 90)
  actual = prepared.read_metadata(npz.prepare_npz(tmp_path, dataset='mine', raw_dir=raw), '')['statistics']
  assert actual['labels'] == {'mean': [5.0], 'std': [labels.std()], 'least': [2.0], 'largest': [10.0]}


def test_groups_that_are_together_already_stay_in_order(tmp_path):
  arrays = {'inputs': FLAT, 'offsets': ENDS, 'labels': np.arange(3), 'groups': np.array([9, 4, 4], np.uint8)}
  folder = npz.prepare_npz(tmp_path, dataset='mine', raw_dir=save(tmp_path / 'raw', **arrays))
  assert prepared.read_metadata(folder, '')['groups'] == {'train': [1, 2]}
  assert [ids.tolist() for ids, _ in stored(folder)] == IDS
  arrays['groups'] = np.array([9, 4, 9])
  folder = npz.prepare_npz(tmp_path / 'b', dataset='mine', raw_dir=save(tmp_path / 'raw', **arrays))
  assert prepared.read_metadata(folder, '')['groups'] == {'train': [2, 1]}
  assert [(ids.tolist(), label) for ids, label in stored(folder)] == [(IDS[k], k) for k in (0, 2, 1)]


def test_rows_of_tokens_and_tokens_in_a_row_give_the_same_set(tmp_path):
  rows = np.full((3, 5), 1)  # values beyond a length are not read
  for row, ids in zip(rows, IDS, strict=True):
    row[: len(ids)] = ids
  labels = np.array([0.5, -1.0, 3.25])
  by_length = save(tmp_path / 'a', inputs=rows, lengths=np.array([3, 2, 5]), labels=labels)
  by_offset = save(tmp_path / 'b', inputs=FLAT, offsets=ENDS, labels=labels)
  folders = [npz.prepare_npz(raw, dataset='mine', raw_dir=raw) for raw in (by_length, by_offset)]
  actual = [prepared.read_metadata(folder, '') for folder in folders]
  assert actual[0]['fingerprint'] == actual[1]['fingerprint']
  assert (actual[0]['classes'], actual[0]['dtype'], actual[0]['longest']) == (0, 'uint8', 5)
  assert actual[0]['vocabulary'] == [*tokenizers.SPECIAL_TOKENS, '4', '5', '6', '7']
  assert actual[0]['statistics'].keys() == {'labels'}
  for (ids, label), expected, of in zip(stored(folders[1]), IDS, labels, strict=True):
    assert ids.tolist() == expected
    assert label == of


def test_ids_beyond_bytes_take_more(tmp_path):
  raw = save(tmp_path / 'raw', inputs=np.array([300, 4, 5]), offsets=np.array([0, 1, 3]), labels=np.arange(2))
  folder = npz.prepare_npz(tmp_path, dataset='mine', raw_dir=raw)
  assert prepared.read_metadata(folder, '')['dtype'] == 'int32'
  assert stored(folder)[0][0].tolist() == [300]


def test_ids_may_have_names(tmp_path):
  vocabulary = np.array([*tokenizers.SPECIAL_TOKENS, *'abcde'])
  raw = save(tmp_path / 'raw', inputs=FLAT, offsets=ENDS, labels=np.arange(3), vocabulary=vocabulary)
  folder = npz.prepare_npz(tmp_path, dataset='mine', raw_dir=raw)
  assert prepared.read_metadata(folder, '')['vocabulary'] == vocabulary.tolist()


def ragged(**changes):
  return changed(**{'inputs': FLAT, 'offsets': ENDS, 'labels': np.arange(3)} | changes)


@pytest.mark.parametrize(
  'arrays, reason',
  [
    (changed(labels=None), r'has no labels \(.*\); it has inputs\.'),
    (changed(inputs=None, x=BYTES), r'has no inputs; it has labels, x\.'),
    (changed(length=LABELS), 'has length, which is not read; leave it out, or call it one of inputs, la'),
    (ragged(lengths=LABELS), 'has lengths and offsets'),
    (changed(inputs=BYTES.astype(np.int64)), r'inputs are int64 \[12, 64\]; convert values to uint8, int16'),
    (changed(inputs=BYTES.astype(np.float64)), r'inputs are float64 \[12, 64\]; convert'),
    (changed(inputs=BYTES.astype(str)), r'inputs are <U3 \[12, 64\]; convert'),
    (changed(inputs=BYTES[0]), r'inputs are uint8 \[64\]; make values \[examples, positions\]'),
    (changed(inputs=BYTES[:, :0]), r'inputs are uint8 \[12, 0\]; make'),
    (changed(inputs=BYTES.reshape(12, 4, 4, 4)), r'inputs are uint8 \[12, 4, 4, 4\]'),
    (changed(inputs=np.where(BYTES == BYTES[3, 5], np.float32('nan'), BYTES.astype(np.float32))),
     r'input \d+ holds a number that is not finite'),
    (changed(inputs=BYTES[:11]), 'has 11 inputs, but 12 labels'),
    (changed(inputs=np.array([None] * 12)), r'not a readable \.npz file of plain arrays \(Object'),
    (changed(labels=LABELS + 1), 'has no example of class 0, but one of class 4; number the classes'),
    (changed(labels=2 * LABELS), 'has no example of class 1, but one of class 6'),
    (changed(labels=LABELS - 2), r'label 0 is -2; number the classes from 0'),
    (changed(labels=0 * LABELS), 'has labels of one class only'),
    (changed(labels=LABELS == 0), r'labels are bool \[12\]; make them a row of whole or real numbers'),
    (changed(labels=LABELS[:, None]), r'labels are int64 \[12, 1\]'),
    (changed(labels=LABELS[:0], inputs=BYTES[:0]), 'has no examples; give it some, or leave the file out'),
    (ragged(labels=[], inputs=FLAT[:0], offsets=[0]), 'has no examples; give it some'),
    (changed(labels=np.where(LABELS == 2, np.inf, 1.0)),
     'label 2 is not a finite number'),
    (changed(labels=np.full(12, 1e300)), 'label 0 is not a finite number of 32 bits'),
    (changed(lengths=LABELS), 'length 0 is 0, but inputs have 1 to 64 positions'),
    (changed(lengths=LABELS[:3] + 1), 'has 12 inputs, but 3 lengths'),
    (changed(lengths=LABELS / 2), r'lengths are float64 \[12\]; make them a row of whole numbers'),
    (changed(inputs=BYTES[:, 0], lengths=LABELS + 1), 'with lengths, give whole numbers'),
    (changed(inputs=BYTES.astype(np.float32), lengths=LABELS), 'length 0 is 0, but inputs have 1 to 64'),
    (ragged(inputs=FLAT[None]), r'inputs are int64 \[1, 10\]; with offsets, give whole numbers in one row'),
    (ragged(offsets=ENDS[:-1]), 'offsets do not rise from 0 to 10'),
    (ragged(offsets=ENDS[[0, 2, 1, 3]]), 'offsets do not rise'),
    (ragged(inputs=np.where(FLAT == 5, 1, FLAT)), 'input 1 holds the id 1, but 0 and 1 are <mask> and <pad>'),
    (ragged(labels=np.arange(2)), 'has 3 inputs, but 2 labels'),
    (ragged(vocabulary=np.array(['a', 'b'])), 'names 2 ids, but the id 7 occurs; name all of them'),
    (changed(groups=LABELS / 2), r'groups are float64 \[12\]; make them a row of whole numbers, one per ex'),
    (changed(groups=LABELS > 1), r'groups are bool \[12\]; make'),
    (changed(groups=LABELS[:, None]), r'groups are int64 \[12, 1\]; make'),
    (changed(groups=LABELS[:11]), 'has 12 inputs, but 11 groups; give every input one group'),
    (ragged(groups=np.arange(10)), 'has 3 inputs, but 10 groups; give every input one group'),
    (ragged(vocabulary=np.arange(9)), r'vocabulary is int64 \[9\]; make it a row of strings'),
  ],
)  # fmt: skip
def test_wrong_files_are_named(tmp_path, arrays, reason):
  raw = save(tmp_path / 'raw', **arrays)
  with pytest.raises(errors.DataError, match=reason) as raised:
    npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=raw)
  assert str(raised.value).startswith(f'{raw}/train.npz')
  assert '\n' not in str(raised.value)
  assert not list((tmp_path / 'data').iterdir())


@pytest.mark.parametrize(
  'arrays, reason',
  [
    (changed(labels=LABELS + 1), 'test.npz has the label 4, but the training labels end at 3'),
    (changed(labels=LABELS / 2), r'test\.npz has labels float32, but .*train\.npz int64; make all'),
    (changed(inputs=BYTES[:, :32]), r'test\.npz has shape \[32\], but .*train\.npz \[64\]'),
    (changed(inputs=BYTES.astype(np.int16)), r'test\.npz has inputs int16, but .*train\.npz uint8'),
    (ragged(), r'test\.npz has inputs tokens, but .*train\.npz uint8'),
  ],
)
def test_files_that_do_not_go_together_are_named(tmp_path, arrays, reason):
  raw = save(tmp_path / 'raw', **changed())
  save(raw, 'test', **arrays)
  with pytest.raises(errors.DataError, match=reason):
    npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=raw)


def single_array():
  np.save(file := io.BytesIO(), BYTES)
  return file.getvalue()


@pytest.mark.parametrize('content', [b'', b'text', b'PK\3\4', b'\x80\4]\x94.', single_array()])
def test_what_is_no_npz_file_is_named(tmp_path, content):
  (tmp_path / 'train.npz').write_bytes(content)
  with pytest.raises(errors.DataError, match=f'^{tmp_path}/train.npz is not a readable .npz file'):
    npz_files.read(tmp_path / 'train.npz')


def header(inputs):
  """A file whose array of inputs has another header; its checksums are right."""
  np.save(labels := io.BytesIO(), LABELS)
  np.save(whole := io.BytesIO(), BYTES)
  with zipfile.ZipFile(file := io.BytesIO(), 'w') as archive:
    archive.writestr('labels.npy', labels.getvalue())
    archive.writestr('inputs.npy', whole.getvalue().replace(b'(12, 64), ', inputs.ljust(10)))
  return file.getvalue()


@pytest.mark.parametrize(
  'inputs, reason',
  [
    (b'(12, 64((,', 'its header is damaged'),  # NumPy would try to read it as a header of Python 2
    (b'(12L, 64),', 'its header is damaged'),
    (b'(12, 9**9)', 'its header is damaged'),
    (b'(12, 65), ', 'inputs does not have the 780 bytes that it declares'),
    (b'(12, 63), ', 'inputs does not have the 756 bytes that it declares'),
    (b'(12,99999)', 'inputs does not have the 1,199,988 bytes that it declares'),
    (b'(9999999),', 'its header is damaged'),
    (b'(99, 99), ', 'inputs does not have the 9,801 bytes that it declares'),
    (b'(-2,-64), ', r'it holds an array of shape \(-2, -64\)'),
  ],
)
def test_arrays_are_no_larger_than_their_headers_say(tmp_path, inputs, reason):
  (tmp_path / 'train.npz').write_bytes(header(inputs))
  with pytest.raises(errors.DataError, match=f'train.npz is not a readable .npz file of .* \\({reason}'):
    npz_files.read(tmp_path / 'train.npz')


def test_missing_and_forbidden_files_are_named(tmp_path):
  with pytest.raises(
    errors.MissingFile, match=r'There is no .*none/train\.npz; save inputs and labels there'
  ):
    npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=tmp_path / 'none')
  (tmp_path / 'train.npz').mkdir()
  with pytest.raises(errors.FileAccessError, match=r'train\.npz could not be read: it is a folder'):
    npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=tmp_path)


def test_files_of_other_names_are_refused(tmp_path):
  raw = save(tmp_path / 'raw', **changed())
  shutil.copy(raw / 'train.npz', raw / 'val.npz')
  with pytest.raises(
    errors.DataError, match=r'holds val\.npz, which is not read; its files are called train\.npz, v'
  ):
    npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=raw)


def test_other_files_are_noticed(tmp_path):
  raw = save(tmp_path / 'raw', **changed())
  arguments = ['prepare', 'npz', '--name', 'mine', '--data_dir', str(tmp_path), '--raw_dir', str(raw)]
  assert cli.main(arguments) == 0
  assert cli.main(arguments) == 0
  save(raw, **changed(inputs=255 - BYTES))
  with pytest.raises(errors.DataError, match=r"already holds 'mine' made with files=\{'train'"):
    npz.prepare_npz(tmp_path, dataset='mine', raw_dir=raw)
