"""IMDb reviews from tiny copies of the official layouts, from damaged ones, and from the real reviews."""

import collections
import hashlib
import tarfile

import numpy as np
import pytest

from data_prep.sources import text
from lra_spt.cli import main as cli
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared, splits, tasks, tokenizers
from tests import token_ids
from tests.data_prep.raw_sets import ACCEPT, nothing_is_left

# Ordered by number, as the set is. Names and the order of writing differ.
REVIEWS = {
  ('train', 'neg'): [('2_4', 'No.<br />No'), ('10_1', 'no \u2014 NO'), ('11_3', 'x' * 40)],
  ('train', 'pos'): [('0_10', 'Yes\r\n'), ('9_7', 'yes, caf\u00e9')],
  ('test', 'neg'): [('1_2', 'oh no'), ('3_1', 'no\tno')],
  ('test', 'pos'): [('0_8', '\u201cyes\u201d'), ('12_9', 'oh yes')],
}
COUNTS = {'train': 5, 'test': 4}
ARCHIVE = 'aclImdb_v1.tar.gz'


def reviews(file):
  """(text, label) in the order of the set."""
  return [(body, label) for label, part in enumerate(('neg', 'pos')) for _, body in REVIEWS[file, part]]


@pytest.fixture
def layout(tmp_path):
  """Writes one of the official layouts and returns raw_dir."""

  def write(packed=False):
    raw = tmp_path / 'raw'
    folder = raw / 'aclImdb'
    for (file, part), entries in REVIEWS.items():
      (folder / file / part).mkdir(parents=True)
      for name, body in reversed(entries):
        (folder / file / part / f'{name}.txt').write_bytes(body.encode())
    (folder / 'train' / 'unsup').mkdir()
    (folder / 'train' / 'unsup' / '0_0.txt').write_text('without a label')
    (folder / 'train' / 'pos' / '.DS_Store').write_bytes(b'\0')
    (folder / 'README').write_text('hello')
    if packed:
      with tarfile.open(raw / ARCHIVE, 'w:gz') as tar:
        tar.add(folder, folder.name)
      folder.rename(tmp_path / 'elsewhere')
    return raw

  return write


def prepare(tmp_path, raw, **options):
  return text.prepare_text(tmp_path / 'data', raw_dir=raw, **ACCEPT, **options)


@pytest.mark.parametrize('packed', [False, True])
def test_both_layouts_give_the_same_set(tmp_path, layout, packed):
  folder = prepare(tmp_path, layout(packed), length=16, minimum=2)
  metadata = prepared.read_metadata(folder, '')
  assert (metadata['counts'], metadata['verified'], metadata['longest']) == (COUNTS, False, 16)
  counts = collections.Counter(character for body, _ in reviews('train') for character in body[:15])
  vocabulary = metadata['vocabulary']
  assert vocabulary == list(tokenizers.build_vocabulary(counts, minimum=2))
  assert vocabulary[:4] == ['<mask>', '<pad>', '<unk>', '<eos>']
  assert {'x', ' ', 'N', 'e'} <= set(vocabulary)
  assert not {'\u2014', '\u00e9', 't'} & set(vocabulary)
  digest = hashlib.sha256()
  for file in ('train', 'test'):
    source = examples_lib.open_source(str(folder), file)
    assert len(source) == COUNTS[file]
    for i, (body, label) in enumerate(reviews(file)):
      ids = token_ids.encode(list(body), vocabulary, 16)
      assert np.array_equal(source[i]['inputs'], ids)
      assert source[i]['label'] == label
      digest.update(f'{file}:{i}:{label}:{ids.shape}:'.encode() + ids.tobytes())
  assert metadata['fingerprint'] == digest.hexdigest()


def test_archives_are_verified_and_folders_cannot_be(tmp_path, layout, make_official):
  raw = layout()
  with pytest.raises(ValueError, match='cannot be verified because no official.*--accept_unverified'):
    text.prepare_text(tmp_path / 'data', raw_dir=raw)
  archive = raw / ARCHIVE
  with tarfile.open(archive, 'w:gz') as tar:
    tar.add(raw / 'aclImdb', 'aclImdb')
  with pytest.raises(ValueError, match='is not the official file .SHA256'):
    text.prepare_text(tmp_path / 'data', raw_dir=raw)
  make_official(archive)
  with pytest.raises(
    ValueError, match='has 5 of 25,000 train, 4 of 25,000 test examples; .*--accept_incomplete'
  ):
    text.prepare_text(tmp_path / 'data', raw_dir=raw)
  folder = text.prepare_text(tmp_path / 'data', raw_dir=raw, accept_incomplete=True)
  assert prepared.read_metadata(folder, '')['verified'] is True


def test_missing_folders_are_named(tmp_path, layout):
  raw = layout()
  (raw / 'aclImdb' / 'test' / 'pos').rename(raw / 'gone')
  with pytest.raises(FileNotFoundError, match='lacks test/pos: put'):
    prepare(tmp_path, raw)
  (raw / 'aclImdb' / 'test' / 'pos').mkdir()
  with pytest.raises(ValueError, match='aclImdb has no reviews in test/pos'):
    prepare(tmp_path, raw)
  assert nothing_is_left(tmp_path)


@pytest.mark.parametrize('packed', [False, True])
@pytest.mark.parametrize(
  'name, content, reason',
  [
    ('5_9.txt', b'', 'is empty'),
    ('5_9.txt', b' \n', 'is empty'),
    ('5_9.txt', b'good\0bad', 'has a NUL byte at position 4'),
    ('5_9.txt', b'caf\xe9', 'is not UTF-8 .unexpected end of data at byte 3'),
    ('5_4.txt', b'good', 'has the rating 4, but those of pos run from 7 to 10'),
    ('5_11.txt', b'good', 'has the rating 11'),
    ('5.txt', b'good', 'is not called <number>_<rating>.txt'),
    ('5_9.txt.part', b'good', 'is not called'),
    ('\u0665_9.txt', b'good', 'is not called'),
  ],
)
def test_damaged_reviews_are_named(tmp_path, layout, packed, name, content, reason):
  raw = layout()
  folder = raw / 'aclImdb'
  (folder / 'train' / 'pos' / name).write_bytes(content)
  where = f'{folder}/train/pos/{name} '
  if packed:
    with tarfile.open(raw / ARCHIVE, 'w:gz') as tar:
      tar.add(folder, folder.name)
    where = f'{raw / ARCHIVE}/aclImdb/train/pos/{name} '
  with pytest.raises(ValueError, match=f'^{where}{reason}') as raised:
    prepare(tmp_path, raw)
  assert '\n' not in str(raised.value)
  assert nothing_is_left(tmp_path)


def test_other_texts_with_too_many_characters_are_refused(tmp_path, layout):
  raw = layout()
  many = ''.join(map(chr, range(0x4E00, 0x4E00 + 300)))
  (raw / 'aclImdb' / 'train' / 'pos' / '5_9.txt').write_text(many, encoding='utf-8')
  with pytest.raises(ValueError, match='frequent characters instead of about 130'):
    prepare(tmp_path, raw, minimum=1)
  assert nothing_is_left(tmp_path)


@pytest.mark.slow
def test_real_reviews_have_the_published_vocabulary(tmp_path, unpacked):
  raw = unpacked('aclImdb')
  arguments = ['prepare', 'text', '--data_dir', str(tmp_path), '--raw_dir', str(raw)]
  assert cli.main(arguments) == 2
  assert cli.main([*arguments, '--accept_unverified', '--accept_incomplete']) == 0
  metadata = prepared.read_metadata(prepared.dataset_folder(tmp_path, 'text'), '')
  vocabulary = metadata['vocabulary']
  assert len(vocabulary) == tasks.get_task('text').vocabulary == 135
  halved = prepare(tmp_path, raw, dataset='text_2048', length=2048)
  assert len(prepared.read_metadata(halved, '')['vocabulary']) == 130
  parts = {split: examples_lib.open_split('text', split, tmp_path) for split in examples_lib.SPLITS}
  assert {split: len(part) for split, part in parts.items()} == {
    'train': 22_500,
    'validation': 2_500,
    'test': 25_000,
  }
  assert np.array_equal(np.bincount(parts['test'].gather(np.arange(25_000))['label']), [12_500, 12_500])
  assert parts['validation'].indices.tolist() == splits.holdout_split(25_000)['validation'].tolist()
  assert 1_150 < parts['validation'].gather(np.arange(2_500))['label'].sum() < 1_350
  # Measured on the official texts: 16.6 % of the training reviews have more than 2,047 characters and 2.9 %
  # more than 4,095.
  lengths = np.concatenate(
    [parts[split].gather(np.arange(len(parts[split])))['lengths'] for split in ('train', 'validation')]
  )
  assert np.mean(lengths > 2048) == pytest.approx(0.166, abs=5e-4)
  assert np.mean(lengths == 4096) == pytest.approx(0.029, abs=5e-4)
  paths = sorted((raw / 'aclImdb' / 'test' / 'pos').iterdir(), key=lambda p: int(p.name.split('_')[0]))
  for i in (0, 1, 7_000, 12_499):
    row = parts['test'].gather([12_500 + i])
    body = paths[i].read_bytes().decode()
    assert np.array_equal(row['inputs'][0, : row['lengths'][0]], token_ids.encode(body, vocabulary, 4096))
