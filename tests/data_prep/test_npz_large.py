"""Arrays may be larger than memory: folders of .npy files, or of parts, give the set of one .npz file."""

import collections
import os
import tracemalloc

import numpy as np
import pytest

from data_prep import arrays
from data_prep.sources import npz, npz_files
from lra_spt import errors
from lra_spt.data import prepared

RNG = np.random.default_rng(0)
COUNT = 12
LENGTHS = RNG.integers(1, 7, COUNT)
IDS = RNG.integers(4, 9, (COUNT, 6))
VALUES = RNG.normal(0, 1, (COUNT, 6, 2)).astype(np.float32)
LABELS = {'labels': np.arange(COUNT) % 3}
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
FORMS = {
  'values': {'inputs': VALUES, **LABELS},
  'values by column': {'inputs': np.asfortranarray(VALUES), **LABELS},
  'values with lengths': {'inputs': VALUES, 'lengths': LENGTHS, **LABELS},
  'values in a row': {'inputs': VALUES.reshape(-1, 2)[: OFFSETS[-1]], 'offsets': OFFSETS, **LABELS},
  'rows of tokens': {'inputs': IDS, 'lengths': LENGTHS, 'labels': RNG.normal(size=COUNT)},
  'tokens in a row': {'inputs': IDS.reshape(-1)[: OFFSETS[-1]], 'offsets': OFFSETS, **LABELS},
  'labels of positions': {
    'inputs': VALUES,
    'lengths': LENGTHS,
    'labels': np.where(np.arange(6) < LENGTHS[:, None], np.arange(6 * COUNT).reshape(COUNT, 6) % 3, -1),
  },
  'labels of tokens in a row': {
    'inputs': IDS.reshape(-1)[: OFFSETS[-1]],
    'offsets': OFFSETS,
    'labels': np.arange(OFFSETS[-1]) % 3,
  },
  'groups': {'inputs': VALUES[..., 0], 'groups': np.arange(COUNT) // 3 * 5 % 7, **LABELS},
}


def save_folder(raw, columns):
  (raw / 'train').mkdir(parents=True)
  for name, array in columns.items():
    np.save(raw / 'train' / f'{name}.npy', array)


def save_parts(raw, columns, edges=(0, 6, 9, COUNT)):
  """One .npz file for each part; groups of three lie within a part."""
  (raw / 'train').mkdir(parents=True)
  for k, (start, end) in enumerate(zip(edges, edges[1:], strict=False)):
    part = {name: array[start:end] for name, array in columns.items()}
    if 'offsets' in columns:
      first, *_, last = part['offsets'] = columns['offsets'][start : end + 1]
      part['inputs'], part['offsets'] = columns['inputs'][first:last], part['offsets'] - first
      if len(columns['labels']) == OFFSETS[-1]:
        part['labels'] = columns['labels'][first:last]
    np.savez_compressed(raw / 'train' / f'part_{k:03}.npz', **part)


def fingerprint(raw, data_dir):
  metadata = prepared.read_metadata(npz.prepare_npz(data_dir, dataset='mine', raw_dir=raw), '')
  return metadata['fingerprint'], metadata['statistics'], metadata['groups'], metadata.get('train_labels')


@pytest.mark.parametrize('form', FORMS)
def test_every_layout_gives_the_same_set(tmp_path, monkeypatch, form):
  monkeypatch.setattr(arrays, 'BLOCK_BYTES', 100)  # several blocks
  (tmp_path / 'whole').mkdir()
  np.savez(tmp_path / 'whole' / 'train.npz', **FORMS[form])
  save_folder(tmp_path / 'folder', FORMS[form])
  save_parts(tmp_path / 'parts', FORMS[form])
  actual = {
    name: fingerprint(tmp_path / name, tmp_path / f'{name}_set') for name in ('whole', 'folder', 'parts')
  }
  assert actual['whole'] == actual['folder'] == actual['parts']


def test_parts_of_tokens_may_have_lengths_or_offsets(tmp_path):
  parts = FORMS['rows of tokens'], FORMS['tokens in a row'] | {'labels': FORMS['rows of tokens']['labels']}
  (tmp_path / 'raw' / 'train').mkdir(parents=True)
  for k, part in enumerate(parts):
    np.savez(tmp_path / 'raw' / 'train' / f'{k}.npz', **part)
  folder = npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=tmp_path / 'raw')
  assert prepared.read_metadata(folder, '')['counts'] == {'train': 2 * COUNT}


def test_examples_of_a_group_are_put_together_from_a_folder(tmp_path):
  mixed = FORMS['values'] | {'groups': np.arange(COUNT) % 5}
  (tmp_path / 'whole').mkdir()
  np.savez(tmp_path / 'whole' / 'train.npz', **mixed)
  save_folder(tmp_path / 'folder', mixed)
  actual = [fingerprint(tmp_path / name, tmp_path / f'{name}_set') for name in ('whole', 'folder')]
  assert actual[0] == actual[1]
  assert actual[0][2] == {'train': [3, 3, 2, 2, 2]}


def test_memory_does_not_grow_with_the_inputs(tmp_path, monkeypatch):
  monkeypatch.setattr(arrays, 'BLOCK_BYTES', 2**20)
  count, width = 64, 2**18
  (tmp_path / 'train').mkdir()
  array = np.lib.format.open_memmap(
    tmp_path / 'train' / 'inputs.npy', mode='w+', dtype=np.float32, shape=(count, width)
  )
  array[-1, -1] = 7  # the rest of the file is a hole, which takes no space
  del array
  np.save(tmp_path / 'train' / 'labels.npy', np.arange(count) % 2)
  tracemalloc.start()
  try:
    part = npz_files.read_any(tmp_path / 'train')
    ((last, label),) = collections.deque(part.examples(np.float32), maxlen=1)
    peak = tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
  assert (last[-1], last.sum(), label) == (7, 7, 1)
  assert peak < 2**23 < count * width * 4 / 4


def test_what_must_fit_into_memory_is_refused_if_it_does_not(tmp_path, monkeypatch):
  np.savez(tmp_path / 'train.npz', **FORMS['values'], groups=np.arange(COUNT) % 5)
  monkeypatch.setattr(os, 'sysconf', lambda name: {'SC_PAGE_SIZE': 10, 'SC_PHYS_PAGES': 50}[name])
  part = npz_files.read(tmp_path / 'train.npz')
  with pytest.raises(errors.DataError, match=r'train\.npz has 576 bytes, but such a file has at most 500'):
    next(part.examples(np.float32))
  monkeypatch.setattr(os, 'sysconf', lambda name: {'SC_PAGE_SIZE': 10, 'SC_PHYS_PAGES': 20}[name])
  with pytest.raises(errors.DataError, match=r'train\.npz has 448 bytes, but such a file has at most 200'):
    npz_files.read(tmp_path / 'train.npz')


def truncate(path):
  path.write_bytes(path.read_bytes()[:-40])


def flip(path):
  content = bytearray(path.read_bytes())
  content[150] ^= 255
  path.write_bytes(content)


def resave(**changes):
  def change(path):
    with np.load(path) as actual:
      np.savez(path, **{**actual, **changes})

  return change


@pytest.mark.parametrize(
  ('change', 'reason'),
  [
    (truncate, r'part_001\.npz is not a readable \.npz file .* \(File is not a zip file\); save it'),
    (flip, r'part_001\.npz is not a readable \.npz file of plain arrays \('),
    (resave(inputs=IDS[:3].astype(np.uint8)), r'part_001\.npz has inputs uint8, but \S*0\.npz float32'),
    (resave(labels=np.zeros(3)), r'part_001\.npz has labels float32, but \S*part_000\.npz int64'),
    (resave(inputs=VALUES[:3, :4]), r'part_001\.npz has shape \[4, 2\], but \S*part_000\.npz \[6, 2\]'),
    (resave(groups=np.arange(3)), r'part_000\.npz has no groups, but \S*part_001\.npz has'),
    (lambda path: path.rename(path.with_suffix('.npy')), r'train holds part_000\.npz, part_001\.npy, '),
    (lambda path: path.with_name('notes.txt').write_text('hello'), r'holds notes\.txt, .* nothing else'),
  ],
)  # fmt: skip
def test_wrong_parts_are_named(tmp_path, change, reason):
  save_parts(tmp_path / 'raw', FORMS['values'])
  change(tmp_path / 'raw' / 'train' / 'part_001.npz')
  with pytest.raises(errors.DataError, match=reason) as raised:
    npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=tmp_path / 'raw')
  assert '\n' not in str(raised.value)
  assert not [*(tmp_path / 'data').rglob('*')]


def test_a_group_in_two_parts_is_refused(tmp_path):
  save_parts(tmp_path / 'raw', FORMS['groups'], edges=(0, 5, COUNT))
  with pytest.raises(
    errors.DataError, match=r'part_001\.npz has examples of the group 5, and so has \S*part_000\.npz'
  ):
    npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=tmp_path / 'raw')


@pytest.mark.parametrize(
  ('change', 'reason'),
  [
    (truncate, r'inputs\.npy is not .*\(it has 536 bytes of values, but declares 576\); save'),
    (lambda path: path.write_bytes(b'text'), r'inputs\.npy is not a readable \.npy file of a plain array'),
    (lambda path: path.rename(path.with_name('x.npy')), 'train has no inputs; it has labels, x'),
    (lambda path: path.with_name('x.npy').write_bytes(b''), 'train has x, which is not read'),
    (lambda path: np.save(path, VALUES.astype(float)), r'train: inputs are float64 \[12, 6, 2\]; convert'),
    (lambda path: np.save(path, np.where(VALUES == VALUES[7, 1, 1], np.inf, VALUES).astype(np.float32)),
     'train: input 7 holds a number that is not finite'),
  ],
)  # fmt: skip
def test_wrong_folders_are_named(tmp_path, monkeypatch, change, reason):
  monkeypatch.setattr(arrays, 'BLOCK_BYTES', 100)
  save_folder(tmp_path / 'raw', FORMS['values'])
  change(tmp_path / 'raw' / 'train' / 'inputs.npy')
  with pytest.raises(errors.DataError, match=reason):
    npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=tmp_path / 'raw')


def test_a_file_and_a_folder_of_one_name_are_refused(tmp_path):
  save_folder(tmp_path, FORMS['values'])
  np.savez(tmp_path / 'train.npz', **FORMS['values'])
  with pytest.raises(
    errors.DataError, match=r'holds train\.npz and the folder train; move one of the two away'
  ):
    npz.prepare_npz(tmp_path / 'data', dataset='mine', raw_dir=tmp_path)
