"""LRA's files of ListOps: a header `Source<TAB>Target`, then one expression and its value per row.

No checksums are published, but a value follows from its expression, so every value is recomputed.
"""

import pathlib

import numpy as np

from data_prep import archives, catalogue
from data_prep.sources import listops_trees
from lra_spt.data import tokenizers
from lra_spt.errors import DataError

FILES = {'train': 'basic_train.tsv', 'validation': 'basic_val.tsv', 'test': 'basic_test.tsv'}
# Largest number of bytes of a file (some 600 MB) and of a row (3 to 11 for a token with parentheses).
MOST, LONGEST = 2**31, 2**15
_CODES = {token: code for code, token in enumerate(tokenizers.LISTOPS_TOKENS)}


def parse_row(row: bytes, shape, where: str) -> tuple[np.ndarray, int]:
  """A row of LRA's files, expression<TAB>value.

  Args:
    row: with or without its line end.
    shape: a `listops.TreeShape`, the limits of an expression.
    where: file and row, for messages.

  Returns:
    The codes, uint8 [tokens], and the recomputed value.

  Raises:
    DataError: it is malformed or beyond `shape`, or the value differs; the message begins with `where`.
  """
  fields = row.decode('utf-8', 'replace').rstrip('\r\n').split('\t')  # replaced characters are no tokens
  if len(fields) != 2:
    raise DataError(f'{where} has {len(fields)} tab-separated fields instead of 2; get the file again.')
  tokens = tokenizers.tokenize_listops(fields[0])
  codes = np.asarray([_CODES.get(token, len(_CODES)) for token in tokens], np.uint8)
  if not tokens:
    raise DataError(f'{where} has no expression; get the file again.')
  if codes.max() == len(_CODES):
    unknown = tokens[codes.argmax()]
    raise DataError(f'{where} has {unknown[:20]!r}, which is not a ListOps token; get the file again.')
  if len(tokens) >= shape.max_length:
    raise DataError(
      f"{where} has {len(tokens):,} tokens, but LRA's have fewer than {shape.max_length:,}; get the file "
      'again.'
    )
  if len(fields[1]) != 1 or not '0' <= fields[1] <= '9':
    raise DataError(f'{where} has the value {fields[1][:20]!r} instead of a digit; get the file again.')
  value = listops_trees.evaluate(codes, shape.max_depth, shape.max_args)
  if value < 0:
    raise DataError(f'{where} {listops_trees.WRONG[-1 - value]}; get the file again.')
  if value != int(fields[1]):
    raise DataError(f'{where} has the value {fields[1]}, but its expression is {value}; get the file again.')
  return codes, value


def read(place: pathlib.Path, shape):
  """The trees of all files.

  Args:
    place: LRA's archive, or the folder with the files.
    shape: a `listops.TreeShape`, the limits of a tree.

  Returns:
    {file: (list of uint8 arrays of codes, labels uint8 [rows])}.

  Raises:
    DataError: the archive is damaged, a row is malformed or a value is wrong; the message names file and row.
  """
  (archive,) = catalogue.SETS['listops'].archives
  files, trees, labels = {name: file for file, name in FILES.items()}, {}, {}
  for name, where, row in archives.rows(place, archive.unpacked, list(files), MOST, LONGEST):
    file = files[name]
    if file not in trees:
      trees[file], labels[file] = [], []
      if row.rstrip(b'\r\n') != b'Source\tTarget':
        raise DataError(f'{where}, row 1, is not Source<TAB>Target; is this a ListOps file of LRA?')
      continue
    codes, value = parse_row(row, shape, f'{where}, row {len(trees[file]) + 2},')
    trees[file].append(codes)
    labels[file].append(value)
  empty = [name for name, file in files.items() if not trees.get(file)]
  if empty:
    raise DataError(f'{place} has no rows in {" and ".join(empty)}; get it again.')
  return {file: (trees[file], np.asarray(labels[file], np.uint8)) for file in FILES}
