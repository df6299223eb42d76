"""ListOps: an independent oracle for every label, LRA's distribution, and LRA's files."""

import io
import random
import statistics
import tarfile

import numpy as np
import pytest
from scipy import stats

from data_prep import catalogue
from data_prep.sources import listops, listops_tsv
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared, tokenizers
from tests import token_ids
from tests.data_prep.raw_sets import ACCEPT

SMALL = listops.TreeShape(max_depth=5, max_args=4, min_length=3, max_length=30)


def evaluate(text):
  """Value of a token string, by recursive descent over its text; shares nothing with the generator."""
  tokens = iter(text.split())

  def value(token):
    if token.isdigit():
      return int(token)
    arguments = []
    while (token_inside := next(tokens)) != 'X':
      arguments.append(value(token_inside))
    assert len(arguments) >= 2
    return {
      '[MIN': min,
      '[MAX': max,
      '[MED': lambda values: int(statistics.median(values)),
      '[SM': lambda values: sum(values) % 10,
    }[token](arguments)

  result = value(next(tokens))
  assert next(tokens, None) is None
  return result


def lra_length(rng, depth, max_depth=10, max_args=10):
  """Length of a tree of LRA's recursive definition, written from its description."""
  if depth == max_depth or rng.random() > 0.25:
    return 1
  return 2 + sum(lra_length(rng, depth + 1, max_depth, max_args) for _ in range(rng.randint(2, max_args)))


@pytest.fixture(scope='module')
def trees(tmp_path_factory):
  return listops.generate_trees(4000, tmp_path_factory.mktemp('chunks'), seed=1, workers=1)


def test_oracle_agrees_with_every_label(trees):
  for tree, label in zip(*trees, strict=True):
    assert evaluate(token_ids.listops_text(tree)) == label


def test_oracle_agrees_on_small_trees(tmp_path):
  for tree, label in zip(*listops.generate_trees(3000, tmp_path, seed=5, shape=SMALL), strict=True):
    assert evaluate(token_ids.listops_text(tree)) == label


def test_lengths_are_distributed_as_in_lra(trees):
  rng, reference = random.Random(0), []
  while len(reference) < 1000:
    length = lra_length(rng, 1)
    if 500 < length < 2000:
      reference.append(length)
  lengths = [len(tree) for tree in trees[0]]
  assert 500 < min(lengths)
  assert max(lengths) < 2000
  assert stats.ks_2samp(lengths, reference).pvalue > 0.01


def test_labels_are_distributed_as_measured_on_lras_generator(trees):
  measured = np.array([249, 146, 125, 115, 152, 131, 107, 112, 127, 236])
  counts = np.bincount(trees[1], minlength=10)
  assert stats.chi2_contingency([counts, measured]).pvalue > 0.01


def test_tokens_and_depth_of_trees(trees):
  counts = np.bincount(np.concatenate(trees[0]), minlength=15)
  assert len(counts) == 15
  assert counts[:4].sum() == counts[4]
  assert np.allclose(counts[:4] / counts[4], 0.25, atol=0.01)  # operators are uniform
  assert np.allclose(counts[5:] / counts[5:].sum(), 0.1, atol=0.005)  # digits are uniform
  deepest = max(int(np.cumsum((tree < 4).astype(int) - (tree == 4)).max()) for tree in trees[0])
  assert deepest == 9  # the root is at depth 1 and depth 10 holds digits only


def test_trees_are_distinct(tmp_path, trees):
  assert len({tree.tobytes() for tree in trees[0]}) == len(trees[0])
  small, _ = listops.generate_trees(3000, tmp_path, shape=SMALL)
  assert len({tree.tobytes() for tree in small}) == 3000


def test_trees_depend_on_the_seed_and_not_on_workers_chunks_or_count(tmp_path, trees, monkeypatch):
  monkeypatch.setattr(listops, '_CHUNK', 500)
  alone, labels = listops.generate_trees(1200, tmp_path / 'two', seed=1, workers=2)
  assert all(np.array_equal(a, b) for a, b in zip(alone, trees[0][:1200], strict=True))
  assert np.array_equal(labels, trees[1][:1200])
  other, _ = listops.generate_trees(10, tmp_path / 'other', seed=2)
  assert not any(np.array_equal(a, b) for a, b in zip(other, alone[:10], strict=True))


def test_grown_chunks_are_reused_after_an_interruption(tmp_path, monkeypatch):
  grown = []

  def interrupted(seed, number, shape):
    grown.append(number)
    if grown == [0, 1, 2]:
      raise KeyboardInterrupt
    return grow_stretch(seed, number, shape)

  grow_stretch = listops._grow_stretch
  monkeypatch.setattr(listops, '_CHUNK', 1000)
  monkeypatch.setattr(listops, '_grow_stretch', interrupted)
  sizes = {'train': 1300, 'validation': 100, 'test': 100}
  with pytest.raises(KeyboardInterrupt):
    listops.prepare_listops(tmp_path, sizes=sizes, seed=4, workers=1)
  assert not prepared.dataset_folder(tmp_path, 'listops').exists()
  folder = listops.prepare_listops(tmp_path, sizes=sizes, seed=4, workers=1)
  assert grown == [0, 1, 2, 2]
  assert [path.name for path in folder.parent.iterdir() if not path.name.startswith('.')] == [
    prepared.VERSION
  ]
  whole = listops.prepare_listops(tmp_path / 'other', sizes=sizes, seed=4, workers=1)
  fingerprints = [prepared.read_metadata(path, '')['fingerprint'] for path in (folder, whole)]
  assert fingerprints[0] == fingerprints[1]


def test_impossible_shapes_are_refused(tmp_path):
  with pytest.raises(ValueError, match='some length'):
    listops.TreeShape(min_length=5, max_length=6)
  digits = listops.TreeShape(max_depth=1, min_length=0, max_length=3)
  with pytest.raises(ValueError, match='Only 10 of 1,000 distinct ListOps trees'):
    listops.generate_trees(1000, tmp_path, shape=digits)
  assert len(listops.generate_trees(10, tmp_path, shape=digits)[0]) == 10


def test_sizes():
  entry = catalogue.SETS['listops']
  assert entry.counts_for(None) == entry.counts_for(96_000) == entry.counts
  assert entry.counts_for(200) == {'train': 200, 'validation': 100, 'test': 100}
  with pytest.raises(ValueError, match='at least 1'):
    entry.counts_for(0)


def test_generated_set_holds_the_trees_as_ids(tmp_path, token_task_of):
  sizes = {'train': 60, 'validation': 10, 'test': 20}
  folder = listops.prepare_listops(
    tmp_path, dataset='demo_listops', sizes=sizes, seed=3, shape=SMALL, length=24, workers=1
  )
  metadata = prepared.read_metadata(folder, '')
  vocabulary = metadata['vocabulary']
  assert vocabulary[:4] == list(tokenizers.SPECIAL_TOKENS)
  assert sorted(vocabulary[4:]) == sorted(tokenizers.LISTOPS_TOKENS)
  assert metadata['counts'] == sizes
  assert metadata['generator']['seed'] == 3
  trees, labels = listops.generate_trees(90, tmp_path / 'chunks', seed=3, shape=SMALL)
  occurrences = np.bincount(np.concatenate(trees[:60]), minlength=15)
  ranks = [int(occurrences[tokenizers.LISTOPS_TOKENS.index(token)]) for token in vocabulary[4:]]
  assert ranks == sorted(ranks, reverse=True)
  task = token_task_of('demo_listops', 24)
  starts = {'train': 0, 'validation': 60, 'test': 70}
  for split, size in sizes.items():
    batch = examples_lib.open_split(task, split, tmp_path).gather(np.arange(size))
    start = starts[split]
    assert np.array_equal(batch['label'], labels[start : start + size])
    for row, length, tree in zip(batch['inputs'], batch['lengths'], trees[start : start + size], strict=True):
      expected = token_ids.encode(token_ids.listops_text(tree).split(), vocabulary, 24)
      assert np.array_equal(row[:length], expected)
      assert row[length - 1] == tokenizers.END


ROWS = {
  'train': [('( ( ( [MAX 4 ) ( ( ( [SM 2 ) 9 ) ] ) ) ] )', 4), ('( ( ( [MIN 1 ) 2 ) ] )', 1)],
  'validation': [('( ( ( [MED 5 ) 8 ) ] )', 6)],
  'test': [('( ( ( [MAX 0 ) 3 ) ] )', 3)],
}


@pytest.fixture
def raw(tmp_path):
  """LRA's files, with a few rows."""
  folder = tmp_path / 'raw' / 'listops-1000'
  folder.mkdir(parents=True)
  for file, rows in ROWS.items():
    lines = ['Source\tTarget', *(f'{source}\t{target}' for source, target in rows)]
    (folder / listops_tsv.FILES[file]).write_text('\n'.join(lines) + '\n')
  return folder


def test_lras_files_are_imported(tmp_path, raw, token_task_of):
  with pytest.raises(ValueError, match='has 2 of 96,000 train, 1 of 2,000 val.*--accept_incomplete'):
    listops.prepare_listops(tmp_path / 'data', raw_dir=raw.parent)
  folder = listops.prepare_listops(tmp_path / 'data', raw_dir=raw.parent, **ACCEPT)
  metadata = prepared.read_metadata(folder, '')
  assert metadata['verified'] is False
  task = token_task_of('listops', 2048)
  batch = examples_lib.open_split(task, 'train', tmp_path / 'data').gather([0, 1])
  tokens = [metadata['vocabulary'][i] for i in batch['inputs'][0, : batch['lengths'][0]]]
  assert tokens == ['[MAX', '4', '[SM', '2', '9', 'X', 'X', '<eos>']
  assert batch['label'].tolist() == [4, 1]


def test_files_of_lras_sizes_count_as_verified(tmp_path, raw, change_entry):
  change_entry('listops', counts={'train': 2, 'validation': 1, 'test': 1})
  folder = listops.prepare_listops(tmp_path / 'data', raw_dir=raw)
  assert prepared.read_metadata(folder, '')['verified'] is True
  change_entry('listops', counts={'train': 1, 'validation': 1, 'test': 1})
  with pytest.raises(ValueError, match='has 2 of 1 train, .*; get it again, or pass --accept_unverified'):
    listops.prepare_listops(tmp_path / 'more', raw_dir=raw, accept_incomplete=True)


def test_lras_archive_is_read_without_unpacking(tmp_path, raw):
  of_folder = listops.prepare_listops(tmp_path / 'data', raw_dir=raw, **ACCEPT)
  with tarfile.open(tmp_path / 'lra_release.gz', 'w:gz') as tar:
    for folder in ('lra_release/elsewhere', 'lra_release/listops-1000'):
      for name in listops_tsv.FILES.values():
        content = (raw / name).read_bytes() if 'listops' in folder else b'not this one'
        member = tarfile.TarInfo(f'{folder}/{name}')
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
  of_archive = listops.prepare_listops(tmp_path / 'other', raw_dir=tmp_path, **ACCEPT)
  prints = [prepared.read_metadata(folder, '')['fingerprint'] for folder in (of_folder, of_archive)]
  assert prints[0] == prints[1]


@pytest.mark.parametrize(
  'row, reason',
  [
    ('( ( ( [MAX 4 ) 5 ) ] )', 'row 3, has 1 tab-separated fields'),
    ('( ( ( [MAX 4 ) 5 ) ] )\t5\t5', 'row 3, has 3 tab-separated fields'),
    ('( ( ( [AVG 4 ) 5 ) ] )\t5', r"row 3, has '\[AVG', which is not a ListOps token"),
    ('( )\t5', 'row 3, has no expression'),
    ('( ( [MAX 4 ) 5 )\t5', 'row 3, ends before its expression does'),
    ('] ] [MAX 1 2 [MIN\t2', 'row 3, closes a bracket that was not opened'),
    ('[MAX 1 ]\t1', 'row 3, has an operator of fewer than two arguments'),
    ('[MAX ]\t1', 'row 3, has an operator of fewer than two arguments'),
    (f'[MAX {"1 " * 11}]\t1', 'row 3, has an operator of more arguments than any official one'),
    (f'{"[SM 0 " * 10}0{" ]" * 10}\t0', 'row 3, has operators within more operators than any'),
    ('[MAX 4 5 ] 5\t5', 'row 3, goes on after its expression has ended'),
    ('[MAX 4 5 ]\t4', 'row 3, has the value 4, but its expression is 5'),
    (f'[MAX {"1 " * 1998}]\t1', "row 3, has 2,000 tokens, but LRA's have fewer than 2,000"),
    ('[MAX 4 5' + 40_000 * ' ' + ']\t4', 'row 3, has more than 32,768 bytes'),
    ('( ( ( [MAX 4 ) 5 ) ] )\t12', "row 3, has the value '12' instead of a digit"),
    ('( ( ( [MAX 4 ) 5 ) ] )\t', "row 3, has the value '' instead of a digit"),
  ],
)
def test_malformed_rows_are_named(tmp_path, raw, row, reason):
  path = raw / 'basic_train.tsv'
  path.write_text(f'Source\tTarget\n{ROWS["train"][0][0]}\t4\n{row}\n')
  with pytest.raises(ValueError, match=f'{path}, {reason}'):
    listops.prepare_listops(tmp_path / 'data', raw_dir=raw, **ACCEPT)
  assert not prepared.dataset_folder(tmp_path / 'data', 'listops').exists()


def test_wrong_headers_and_empty_files_are_named(tmp_path, raw):
  path = raw / 'basic_val.tsv'
  for content, reason in (
    (b'text,label\n', 'val.tsv, row 1, is not Source<TAB>Target'),
    (b'Source\tTarget\n( [MAX \xff ) ]\t1\n', 'val.tsv, row 2, has .\ufffd., which is not a ListOps token'),
    (b'Source\tTarget\n', r'listops-1000 has no rows in basic_val\.tsv'),
    (b'', r'listops-1000 has no rows in basic_val\.tsv'),
  ):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason):
      listops.prepare_listops(tmp_path / 'data', raw_dir=raw, **ACCEPT)
  path.unlink()
  with pytest.raises(FileNotFoundError, match=f'{raw} lacks basic_val.tsv: put lra_release.gz'):
    listops.prepare_listops(tmp_path / 'data', raw_dir=raw)


def test_values_of_official_trees_are_computed_again(trees):
  shape = listops.TreeShape()
  for tree, label in zip(trees[0][:300], trees[1][:300].tolist(), strict=True):
    row = f'{token_ids.listops_text(tree).replace("X", "]")}\t{label}\n'.encode()
    codes, value = listops_tsv.parse_row(row, shape, 'x')
    assert value == label
    assert np.array_equal(codes, tree)
    with pytest.raises(
      ValueError, match=f'^x has the value {(label + 1) % 10}, but its expression is {label};'
    ):
      listops_tsv.parse_row(row[:-2] + b'%d\n' % ((label + 1) % 10), shape, 'x')


@pytest.mark.slow
def test_oracle_agrees_with_every_label_of_the_full_set(tmp_path):
  trees, labels = listops.generate_trees(sum(catalogue.SETS['listops'].counts.values()), tmp_path)
  for tree, label in zip(trees, labels, strict=True):
    assert evaluate(token_ids.listops_text(tree)) == label
