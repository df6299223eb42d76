"""Retrieval: pairs of papers of the ACL Anthology Network as characters, from the files of LRA's release.

A file has no header; a row is a label, two ids and two texts, separated by tabs. As in LRA's code, a
quotation mark is a character. (The paper's code reads with pandas' defaults. There, a mark that opens a field
is syntax: it vanishes together with the next one, and tabs and line ends between them are text. That code
also stops at an empty field, which it takes for a missing value. Here, too, a row without a text is an error.
A text may consist of blanks.)

As in the paper's code, a token is a Unicode character, a text is cut to 3,999 and `<eos>`, and the
vocabulary consists of all characters, however rare, of the cut training pairs. With the special
tokens that code has 99 ids for the official texts. If other texts have more characters, the most frequent
ones get ids. (LRA's code takes bytes instead, the first 4,000.)

A paper occurs in many pairs and is in memory once. One process is therefore enough: it reads about as
fast as the disk or the archive delivers.
"""

import functools
import pathlib

import numpy as np

from data_prep import archives, builders, catalogue, finding, verification
from data_prep.sources.text import build_vocabulary
from lra_spt.data import tokenizers
from lra_spt.errors import DataError, MissingFile

NAMES = {
  'train': 'new_aan_pairs.train.tsv',
  'validation': 'new_aan_pairs.eval.tsv',
  'test': 'new_aan_pairs.test.tsv',
}
LENGTH = 4000
VOCABULARY = catalogue.SETS['retrieval'].published_vocabulary
# Largest share of characters without an id. It is 0.04 % for papers with all characters of their PDFs.
MOST_UNKNOWN = 0.01
# Largest number of bytes of a file and of a row, which has two texts of mostly 30,000 characters.
MOST, LONGEST = 2**36, 2**23
_LABELS = {'0.0': 0, '1.0': 1, '0': 0, '1': 1}


def _rows(path: pathlib.Path):
  """Yields (file, its place, row) for all rows of the folder or archive."""
  if path.is_dir():
    missing = [name for name in NAMES.values() if not (path / name).exists()]
    if missing:
      raise MissingFile(f'{path} lacks {" and ".join(missing)}: {finding.advice("retrieval")}.')
  files = {name: file for file, name in NAMES.items()}
  (archive,) = catalogue.SETS['retrieval'].archives
  for name, where, row in archives.rows(path, archive.unpacked, list(files), MOST, LONGEST):
    yield files[name], where, row


def parse_row(row: bytes, where: str) -> tuple[int, str, str]:
  """The label and the two unchanged texts of a row.

  Args:
    row: with or without its line end.
    where: file and row, for messages.

  Raises:
    DataError: the row has not five fields, another label than 0 or 1, an empty text or a NUL byte, or is not
      UTF-8; the message names file and row.
  """
  if b'\0' in row:
    raise DataError(f'{where} has a NUL byte at position {row.index(0)}, so it is damaged; get it again.')
  try:
    text = row.decode('utf-8')
  except UnicodeDecodeError as error:
    raise DataError(f'{where} is not UTF-8 ({error.reason} at byte {error.start}); get it again.') from None
  fields = text.removesuffix('\n').removesuffix('\r').split('\t')
  if len(fields) != 5:
    raise DataError(f'{where} has {len(fields)} tab-separated fields instead of 5; get the file again.')
  label, _, _, *texts = fields
  if label not in _LABELS:
    raise DataError(f'{where} has the label {label[:20]!r} instead of 0.0 or 1.0; get the file again.')
  if not all(texts):
    raise DataError(f'{where} has an empty text{texts.index("") + 1}; get the file again.')
  return _LABELS[label], *texts


def _read(path, length):
  """The distinct texts, cut to length - 1 characters, and {file: [(label, number of text1, of text2)]}."""
  texts, pairs = {}, {file: [] for file in NAMES}
  for file, where, row in _rows(path):
    label, *documents = parse_row(row, f'{where}, row {len(pairs[file]) + 1},')
    # Texts are numbered in the order of their first occurrence.
    first, second = (texts.setdefault(document[: length - 1], len(texts)) for document in documents)
    pairs[file].append((label, first, second))
  empty = [NAMES[file] for file in NAMES if not pairs[file]]
  if empty:
    raise DataError(f'{path} has no rows in {" and ".join(empty)}; get it again.')
  return list(texts), pairs


def _load(raw_dir, accept, length, size):
  path, _ = finding.require('retrieval', raw_dir)
  texts, pairs = _read(path, length)
  counts = {file: len(rows) for file, rows in pairs.items()}
  verified = verification.check_counts(path, counts, catalogue.SETS['retrieval'].counts, **accept)
  training = [i for _, *pair in pairs['train'] for i in pair]
  characters = build_vocabulary((texts[i] for i in training), minimum=1)
  vocabulary = characters[:size]
  table = tokenizers.character_table(vocabulary)
  documents = [np.append(table[tokenizers.code_points(text)], np.uint8(tokenizers.END)) for text in texts]
  unknown = sum(np.count_nonzero(documents[i] == tokenizers.UNKNOWN) for i in training)
  unknown /= sum(len(documents[i]) for i in training)
  if unknown > MOST_UNKNOWN:
    raise DataError(
      f'Of the training texts in {path} {100 * unknown:.0f} % is written in characters beyond the most '
      f'frequent, which have the {size} ids; are these papers of the ACL Anthology?'
    )

  def read(file):
    for label, first, second in pairs[file]:
      yield (documents[first], documents[second]), label

  return builders.Source(
    description='Pairs of papers as ids of characters that end in <eos>; one cites the other (1) or not (0).',
    citation='Radev et al., The ACL Anthology Network Corpus, 2009; Tay et al., Long Range Arena, ICLR 2021.',
    files={file: functools.partial(read, file) for file in NAMES},
    counts=counts,
    classes=2,
    shape=None,
    documents=2,
    origin=f'files {path.name}' if path.is_file() else 'files new_aan_pairs.{train,eval,test}.tsv',
    verified=verified,
    extra={
      'vocabulary': list(vocabulary),
      'characters': len(characters) - len(tokenizers.SPECIAL_TOKENS),
      'verification': 'row counts (no official checksums exist)' if verified else 'none',
    },
  )


def prepare_retrieval(
  data_dir,
  *,
  raw_dir=None,
  accept_unverified: bool = False,
  accept_incomplete: bool = False,
  dataset: str = 'retrieval',
  length: int = LENGTH,
  vocabulary: int = VOCABULARY,
):
  """Imports the pairs of papers.

  Args:
    data_dir: folder for prepared sets.
    raw_dir: folder that holds LRA's archive or the folder tsv_data with the three files, or is that folder.
    accept_unverified, accept_incomplete: import files with more, or with fewer, rows than the official ones.
    dataset: name of the set; a variant (another length) has its own name.
    length: positions of a document, `<eos>` included; longer texts are cut.
    vocabulary: the largest number of ids, special tokens included, at most 256; the rarest characters that
      exceed it become `<unk>`.

  Returns:
    The folder of the set.

  Raises:
    MissingFile, DataError, InUse: see `builders.prepare_set`; the message says where to get a missing file,
      or names a wrong row.
  """
  accept = {'accept_unverified': accept_unverified, 'accept_incomplete': accept_incomplete}
  return builders.prepare_set(
    dataset,
    data_dir,
    {'from': 'files', 'length': length, 'vocabulary': vocabulary},
    lambda work: _load(raw_dir, accept, length, vocabulary),
  )
