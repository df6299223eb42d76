"""Text: IMDb reviews (Maas et al., 2011) as characters, from the official archive or the unpacked folder.

As in the published code:

- only labelled reviews are used, in pretraining too;
- the text is unchanged, with its `<br />`;
- a token is a Unicode character, and a review is cut to 4,095 and `<eos>`;
- characters that occur at least 15 times in the cut training reviews have ids.

The paper's text has 2,048 positions; all its published configs have 4,096.

The set has the two official files, train and test. Within a file negative reviews (label 0) come first, each
half in the order of the numbers in the file names. The task decides which examples validate: `Task.splits`.
"""

import functools
import pathlib
import re
import sys
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tqdm

from data_prep import archives, builders, catalogue, finding, raw_files, verification
from lra_spt.data import tokenizers
from lra_spt.errors import DataError, MissingFile

FOLDER = catalogue.SETS['text'].archives[0].unpacked
FILES = ('train', 'test')
CLASSES = ('neg', 'pos')
# Ratings of the reviews of a class: 1 to 4, or 7 to 10.
RATINGS = {'neg': range(1, 5), 'pos': range(7, 11)}
LENGTH = 4096
MINIMUM = 15
# Largest number of bytes of a review; the longest has 13,704 characters.
MOST = 2**20
_NAME = re.compile(r'(\d+)_(\d+)\.txt', flags=re.ASCII)


def _from_archive(path: pathlib.Path):
  """{(file, class): {file name: content}} of the archive."""
  parts = {f'{FOLDER}/{file}/{label}': (file, label) for file in FILES for label in CLASSES}

  def wanted(name):
    folder, _, base = name.rpartition('/')
    return folder in parts and not base.startswith('.')

  reviews = {key: {} for key in parts.values()}
  for name, content in archives.contents(path, wanted, MOST):
    folder, _, base = name.rpartition('/')
    reviews[parts[folder]][base] = content
  return reviews


def _from_folder(path: pathlib.Path):
  """{(file, class): {file name: content}} of the unpacked folder."""
  reviews = {}
  for file in FILES:
    for label in CLASSES:
      folder = path / file / label
      if not folder.is_dir():
        raise MissingFile(f'{path} lacks {file}/{label}: {finding.advice("text")}.')
      names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith('.'))
      bar = tqdm.tqdm(names, desc=f'reading {file}/{label}', unit=' reviews', disable=None, mininterval=0.5)
      reviews[file, label] = {name: raw_files.read(folder / name, MOST) for name in bar}
  return reviews


def parse_name(name: str, label: str, where: str) -> tuple[int, int]:
  """Number and rating of a review from its file name, `<number>_<rating>.txt`.

  Args:
    name: name of the file.
    label: 'neg' or 'pos', which determines the possible ratings.
    where: the file, for messages.

  Raises:
    DataError: the name has another form, or the rating belongs to the other class.
  """
  match = _NAME.fullmatch(name)
  if match is None:
    raise DataError(
      f'{where} is not called <number>_<rating>.txt like a review; remove it, or get the reviews again.'
    )
  number, rating = int(match[1]), int(match[2])
  if rating not in RATINGS[label]:
    raise DataError(
      f'{where} has the rating {rating}, but those of {label} run from {RATINGS[label][0]} to '
      f'{RATINGS[label][-1]}; get the reviews again.'
    )
  return number, rating


def parse_review(content: bytes, where: str) -> str:
  """The text of a review, unchanged.

  Raises:
    DataError: it is empty or not UTF-8, or has a NUL byte; the message names the file.
  """
  if not content.strip():
    raise DataError(f'{where} is empty; get it again.')
  if b'\0' in content:
    position = content.index(b'\0')
    raise DataError(f'{where} has a NUL byte at position {position}, so it is damaged; get it again.')
  try:
    return content.decode('utf-8')
  except UnicodeDecodeError as error:
    raise DataError(f'{where} is not UTF-8 ({error.reason} at byte {error.start}); get it again.') from None


def build_vocabulary(texts, minimum: int = MINIMUM) -> tuple[str, ...]:
  """Special tokens and the characters that occur at least `minimum` times, most frequent first."""
  occurrences = np.zeros(sys.maxunicode + 1, np.int64)
  for text in texts:
    np.add.at(occurrences, tokenizers.code_points(text), 1)
  counts = {chr(point): int(occurrences[point]) for point in np.flatnonzero(occurrences)}
  return tokenizers.build_vocabulary(counts, minimum)


class Reviews(NamedTuple):
  """The official reviews.

  Attributes:
    path: of the archive or folder.
    texts: {(file, class): reviews in the order of their numbers}.
    verified: True if they are known to be the official ones.
  """

  path: pathlib.Path
  texts: Mapping[tuple[str, str], list[str]]
  verified: bool


def read(raw_dir, accept_unverified: bool, accept_incomplete: bool, length: int) -> Reviews:
  """The first `length` - 1 characters of the official reviews; for other arguments see `prepare_text`."""
  path, archive = finding.require('text', raw_dir)
  packed = path.is_file()
  verified = verification.check(path, archive.sha256 if packed else None, accept_unverified)
  texts = {}
  for (file, label), contents in (_from_archive if packed else _from_folder)(path).items():
    if not contents:
      raise DataError(f'{path} has no reviews in {f"{FOLDER}/" * packed}{file}/{label}; get it again.')
    part = []
    for name, content in contents.items():
      where = f'{path}/{f"{FOLDER}/" * packed}{file}/{label}/{name}'
      part.append((parse_name(name, label, where), parse_review(content, where)[: length - 1]))
    part.sort()
    texts[file, label] = [text for _, text in part]
  verification.check_counts(
    path,
    {file: sum(len(texts[file, label]) for label in CLASSES) for file in FILES},
    catalogue.SETS['text'].counts,
    accept_unverified=accept_unverified,
    accept_incomplete=accept_incomplete,
  )
  return Reviews(path, texts, verified)


def source(original: Reviews, texts: Mapping[tuple[str, str], list[str]], minimum: int) -> builders.Source:
  """Returns the source of a set of all or some of the reviews that were found, {(file, class): texts}."""
  reviews = {}
  for (file, label), part in texts.items():
    reviews.setdefault(file, []).extend((text, CLASSES.index(label)) for text in part)
  vocabulary = build_vocabulary((text for text, _ in reviews['train']), minimum)
  if len(vocabulary) > 256:
    raise DataError(
      f'The training reviews in {original.path} have {len(vocabulary):,} frequent characters instead of '
      'about 130; are these the IMDb reviews?'
    )
  table = tokenizers.character_table(vocabulary)

  def examples(file):
    for text, label in reviews[file]:
      yield np.append(table[tokenizers.code_points(text)], np.uint8(tokenizers.END)), label

  return builders.Source(
    description='IMDb film reviews as ids of characters that end in <eos>; negative (0) or positive (1).',
    citation='Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011.',
    files={file: functools.partial(examples, file) for file in reviews},
    counts={file: len(part) for file, part in reviews.items()},
    classes=2,
    shape=None,
    origin=f'files {original.path.name}',
    verified=original.verified,
    extra={'vocabulary': list(vocabulary), 'verification': 'SHA256' if original.verified else 'none'},
  )


def prepare_text(
  data_dir,
  *,
  raw_dir=None,
  accept_unverified: bool = False,
  accept_incomplete: bool = False,
  dataset: str = 'text',
  length: int = LENGTH,
  minimum: int = MINIMUM,
):
  """Imports the IMDb reviews.

  Args:
    data_dir: folder for prepared sets.
    raw_dir: folder that holds the official archive or the unpacked folder, or is the unpacked folder.
    accept_unverified: import an archive that is not the official one, or the folder, whose files have no
      official checksums.
    accept_incomplete: import fewer reviews than the official ones.
    dataset: name of the set; a variant (another length) has its own.
    length: positions of the task, `<eos>` included; longer reviews are cut.
    minimum: a character with fewer occurrences in the training reviews becomes `<unk>`.

  Returns:
    The folder of the set.

  Raises:
    MissingFile, DataError, InUse: see `builders.prepare_set`; the message says where to get a missing file.
  """

  def load(work):
    del work  # takes seconds, not worth resuming
    reviews = read(raw_dir, accept_unverified, accept_incomplete, length)
    return source(reviews, reviews.texts, minimum)

  return builders.prepare_set(
    dataset, data_dir, {'from': 'files', 'length': length, 'minimum': minimum}, load
  )
