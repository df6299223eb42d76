"""Pairs of papers from tiny copies of LRA's layouts, from damaged ones, and from real papers."""

import collections
import io
import tarfile
import time

import numpy as np
import pytest

from data_prep.sources import retrieval
from lra_spt.data import examples, prepared, tasks
from tests.data_prep.raw_sets import ACCEPT, nothing_is_left

REFUSE = dict.fromkeys(ACCEPT, False)
LENGTH = 12
# (label as written, text1, text2). Papers repeat, also within a pair. Quotation marks are plain characters.
LONG = 'A paper that is cut.'
PAIRS = {
  'train': [
    ('1.0', LONG, '"Quotes" of a paper'),
    ('0.0', 'no "end', LONG),
    ('1.0', LONG, LONG),
    ('0', '"open', 'caf\u00e9 \u8a9e'),
    ('1', '  ', "l'ami\xa0\u2028x"),
  ],
  'validation': [('0.0', 'QZ', '"'), ('1.0', LONG, 'eleven char')],
  'test': [('1.0', 'twelve chars', 'e')],
}
FILES = {'train': 'train', 'validation': 'eval', 'test': 'test'}
PLACES = ('', 'tsv_data', 'lra_release/tsv_data', 'lra_release/lra_release/tsv_data')


def content(file):
  rows = (f'{label}\tP00-{i}\tP01-{i}\t{a}\t{b}\n' for i, (label, a, b) in enumerate(PAIRS[file]))
  return ''.join(rows).encode()


def pack(archive, members):
  """Writes members (name, content), or TarInfo objects, as a gzipped tar."""
  with tarfile.open(archive, 'w:gz') as tar:
    for member in members:
      if isinstance(member, tarfile.TarInfo):
        tar.addfile(member)
      else:
        info = tarfile.TarInfo(member[0])
        info.size = len(member[1])
        tar.addfile(info, io.BytesIO(member[1]))
  return archive


@pytest.fixture
def layout(tmp_path):
  """Writes LRA's files into a folder or the archive, some with `changed` contents, and returns raw_dir."""

  def write(place=PLACES[-1], packed=False, changed=None):
    contents = {file: content(file) for file in FILES} | (changed or {})
    raw = tmp_path / 'raw'
    raw.mkdir(exist_ok=True)
    named = [(f'new_aan_pairs.{FILES[file]}.tsv', text) for file, text in contents.items() if text != 'none']
    if packed:
      # In the release, these files are among others, in any order.
      other = [
        ('lra_release/lra_release/tsv_data/._new_aan_pairs.test.tsv', b'\0'),
        ('lra_release/lra_release/pathfinder32/imgs/0/sample_0.png', b'\x89PNG'),
      ]
      pack(raw / 'lra_release.gz', other + [(f'{place}/{name}', text) for name, text in reversed(named)])
    else:
      (raw / place).mkdir(parents=True, exist_ok=True)
      for name, text in named:
        (raw / place / name).write_bytes(text)
    return raw

  return write


def prepare(tmp_path, raw, **options):
  return retrieval.prepare_retrieval(tmp_path / 'data', raw_dir=raw, **ACCEPT | {'length': LENGTH} | options)


def reference():
  """The vocabulary, and {file: [(ids of text1, ids of text2, label)]}, from lists of characters."""
  documents = [text[: LENGTH - 1] for _, *texts in PAIRS['train'] for text in texts]
  counts = collections.Counter(character for text in documents for character in text)
  vocabulary = ['<mask>', '<pad>', '<unk>', '<eos>', *sorted(counts, key=lambda c: (-counts[c], c))]

  def encode(text):
    return [vocabulary.index(c) if c in counts else 2 for c in text[: LENGTH - 1]] + [3]

  return vocabulary, {
    file: [(encode(a), encode(b), int(float(label))) for label, a, b in rows] for file, rows in PAIRS.items()
  }


def open_all(tmp_path, length=LENGTH):
  task = tasks.get_task('retrieval').with_inputs(length=length)
  return {split: examples.open_split(task, split, tmp_path / 'data') for split in examples.SPLITS}


@pytest.mark.parametrize('place', PLACES)
@pytest.mark.parametrize('packed', [False, True])
def test_all_layouts_give_the_same_set(tmp_path, layout, place, packed):
  if packed and not place.startswith('lra'):
    place = f'./{place or "tsv_data"}'
  folder = prepare(tmp_path, layout(place, packed))
  metadata = prepared.read_metadata(folder, '')
  vocabulary, expected = reference()
  assert metadata['counts'] == {'train': 5, 'validation': 2, 'test': 1}
  assert (metadata['verified'], metadata['longest'], metadata['documents']) == (False, LENGTH, 2)
  assert metadata['vocabulary'] == vocabulary
  assert metadata['characters'] == len(vocabulary) - 4
  assert {'"', '\u00e9', '\u8a9e', '\u2028', '\xa0'} <= set(vocabulary)
  assert not {'Z', '\t', '\n'} & set(vocabulary)
  for split, part in open_all(tmp_path).items():
    batch = part.gather(np.arange(len(part)))
    assert batch['inputs'].shape == (len(expected[split]), 2, LENGTH)
    assert batch['lengths'].tolist() == [[len(a), len(b)] for a, b, _ in expected[split]]
    assert batch['label'].tolist() == [label for *_, label in expected[split]]
    rows = [[ids + [1] * (LENGTH - len(ids)) for ids in pair] for *pair, _ in expected[split]]
    assert batch['inputs'].tolist() == rows
  assert 2 in expected['validation'][0][0]


def test_lines_may_end_as_on_windows_and_the_last_one_not_at_all(tmp_path, layout):
  changed = {file: content(file).replace(b'\n', b'\r\n') for file in FILES}
  first = prepare(tmp_path, layout())
  second = prepare(tmp_path, layout(changed=changed | {'test': content('test')[:-1]}), dataset='windows')
  assert prepared.read_metadata(first, '')['fingerprint'] == prepared.read_metadata(second, '')['fingerprint']


def test_the_most_frequent_characters_have_ids(tmp_path, layout, monkeypatch):
  vocabulary, expected = reference()
  ids = [i for *pair, _ in expected['train'] for document in pair for i in document]
  share = round(100 * np.mean([i >= 10 for i in ids]))
  with pytest.raises(ValueError, match=f'training texts in .*raw {share} % .* have the 10 ids; are these'):
    prepare(tmp_path, layout(place=''), vocabulary=10)
  assert nothing_is_left(tmp_path)
  monkeypatch.setattr(retrieval, 'MOST_UNKNOWN', 0.9)
  metadata = prepared.read_metadata(prepare(tmp_path, tmp_path / 'raw', vocabulary=10), '')
  assert metadata['vocabulary'] == vocabulary[:10]
  assert metadata['characters'] == len(vocabulary) - 4
  inputs = open_all(tmp_path)['train'].gather([1])['inputs']
  first, _, _ = expected['train'][1]
  assert inputs[0, 0, : len(first)].tolist() == [i if i < 10 else 2 for i in first]


def test_a_vocabulary_has_at_most_256_ids_and_fits_the_task(tmp_path, layout):
  many = ''.join(map(chr, range(0x4E00, 0x4E00 + 300)))
  raw = layout(changed={'train': f'0.0\ta\tb\t{many}\tx\n'.encode()})
  with pytest.raises(ValueError, match='304|does not fit into bytes'):
    prepare(tmp_path, raw, length=400, vocabulary=1000)
  assert nothing_is_left(tmp_path)
  raw = layout(changed={'train': f'0.0\ta\tb\t{many[:150]}\tx\n'.encode()})
  prepare(tmp_path, raw, length=400, vocabulary=200, dataset='retrieval')
  with pytest.raises(ValueError, match=r'has 155 token ids, but task .retrieval. has 99'):
    open_all(tmp_path, 400)


def test_row_counts_are_what_is_known_of_the_official_files(tmp_path, layout, change_entry):
  raw = layout()
  with pytest.raises(ValueError, match='has 5 of 147,086 train, 2 of 18,090 valid.*--accept_incomplete'):
    prepare(tmp_path, raw, **REFUSE)
  assert nothing_is_left(tmp_path)
  change_entry('retrieval', counts={'train': 5, 'validation': 2, 'test': 1})
  metadata = prepared.read_metadata(prepare(tmp_path, raw, **REFUSE), '')
  assert metadata['verified'] is True
  assert metadata['verification'] == 'row counts (no official checksums exist)'


def test_a_missing_file_is_named(tmp_path, layout):
  raw = layout(changed={'validation': 'none'})
  with pytest.raises(FileNotFoundError, match=r'tsv_data lacks new_aan_pairs\.eval\.tsv: put'):
    prepare(tmp_path, raw)
  assert nothing_is_left(tmp_path)


@pytest.mark.parametrize('packed', [False, True])
@pytest.mark.parametrize(
  'row, reason',
  [
    (b'0.0\tP1\tP2\tone text', 'has 4 tab-separated fields instead of 5'),
    (b'0.0\tP1\tP2\ta\tb\tc', 'has 6 tab-separated fields'),
    (b'', 'has 1 tab-separated fields'),
    (b'2.0\tP1\tP2\ta\tb', "has the label '2.0' instead of 0.0 or 1.0"),
    (b'nan\tP1\tP2\ta\tb', "has the label 'nan'"),
    (b'x\tP1\tP2\ta\tb', "has the label 'x'"),
    (b'\tP1\tP2\ta\tb', "has the label ''"),
    (b'\xc2\xb2\tP1\tP2\ta\tb', "has the label '\u00b2'"),
    (b'-0.0\tP1\tP2\ta\tb', "has the label '-0.0'"),
    (b'0.0\tP1\tP2\t\tb', 'has an empty text1'),
    (b'0.0\tP1\tP2\ta\t', 'has an empty text2'),
    (b'0.0\tP1\tP2\ta\tb\0c', 'has a NUL byte at position 13'),
    (b'0.0\tP1\tP2\ta\tcaf\xe9', 'is not UTF-8 .unexpected end of data at byte 15|is not UTF-8 .invalid'),
  ],
)
def test_damaged_rows_are_named(tmp_path, layout, packed, row, reason):
  raw = layout(packed=packed, changed={'validation': content('validation') + row + b'\n'})
  where = raw / ('lra_release.gz' if packed else PLACES[-1].removesuffix('/tsv_data'))
  start = f'^{where}/tsv_data/new_aan_pairs.eval.tsv, row 3, '.replace('.', r'\.')
  with pytest.raises(ValueError, match=f'{start}({reason}).*; get ') as raised:
    prepare(tmp_path, raw)
  assert '\n' not in str(raised.value)
  assert nothing_is_left(tmp_path)


@pytest.mark.parametrize('packed', [False, True])
def test_empty_files_are_named(tmp_path, layout, packed):
  raw = layout(packed=packed, changed={'train': b'', 'test': b''})
  with pytest.raises(ValueError, match=r'has no rows in new_aan_pairs\.train\.tsv and new_aan_pairs\.test'):
    prepare(tmp_path, raw)
  assert nothing_is_left(tmp_path)


def test_a_paper_is_kept_once(layout):
  texts, pairs = retrieval._read(layout(packed=True) / 'lra_release.gz', LENGTH)
  assert (
    len(texts)
    == len(set(texts))
    == len({text[: LENGTH - 1] for rows in PAIRS.values() for _, *both in rows for text in both})
  )
  label, first, second = pairs['train'][2]
  assert (label, first, texts[first]) == (1, second, LONG[: LENGTH - 1])


@pytest.mark.slow
def test_real_papers(tmp_path, unpacked):
  raw = unpacked('aan')
  start = time.perf_counter()
  retrieval.prepare_retrieval(tmp_path / 'data', raw_dir=raw, **ACCEPT)
  seconds = time.perf_counter() - start
  assert seconds < 60  # 20,710 pairs; 4 s were measured
  metadata = prepared.read_metadata(prepared.dataset_folder(tmp_path / 'data', 'retrieval'), '')
  # These are fewer and other texts than the official ones, with more characters. 95 of them have ids.
  assert metadata['counts'] == {'train': 16_568, 'validation': 2_071, 'test': 2_071}
  assert (len(metadata['vocabulary']), metadata['characters'], metadata['longest']) == (99, 495, 4000)
  parts = open_all(tmp_path, 4000)
  batch = {split: part.gather(np.arange(2_000)) for split, part in parts.items()}
  for rows in batch.values():
    assert 0.45 < rows['label'].mean() < 0.55
    assert rows['lengths'].min() > 1_900
    assert np.mean(rows['lengths'] == 4000) > 0.95
    assert np.mean(rows['inputs'] == 2) < 1e-3
  # Whole rows against a reader of our own.
  vocabulary = metadata['vocabulary']
  known = {character: i for i, character in enumerate(vocabulary)}
  path = next(raw.rglob('new_aan_pairs.eval.tsv'))
  rows = path.read_bytes().decode().split('\n')
  for i in (0, 1, 700, 1_999):
    label, _, _, *both = rows[i].split('\t')
    assert batch['validation']['label'][i] == float(label)
    for k, text in enumerate(both):
      ids = [known.get(character, 2) for character in text[:3999]] + [3]
      assert batch['validation']['inputs'][i, k, : len(ids)].tolist() == ids
      assert batch['validation']['lengths'][i, k] == len(ids)
