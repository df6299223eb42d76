"""Compares files with the official ones."""

import hashlib
import pathlib
from collections.abc import Mapping

from data_prep import raw_files
from lra_spt.errors import DataError

# {number of hexadecimal digits of a checksum: algorithm}. MD5 guards against damage, not against malice.
ALGORITHMS = {32: 'MD5', 64: 'SHA256'}


def digest(path: pathlib.Path, algorithm: str) -> str:
  """The checksum of a file in hexadecimal digits."""
  with raw_files.opened(path) as file:
    return hashlib.file_digest(file, algorithm).hexdigest()


def check(path: pathlib.Path, checksum: str | None, accept_unverified: bool) -> bool:
  """Compares a file with an official checksum; returns True if they agree.

  Args:
    path: the file.
    checksum: the official one, MD5 or SHA256 in hexadecimal digits; None if there is none.
    accept_unverified: return False where an error would be raised.

  Raises:
    DataError: the checksum differs or is not known, and `accept_unverified` is False.
  """
  if checksum is None:
    if accept_unverified:
      return False
    raise DataError(
      f'{path} cannot be verified because no official checksum of it exists; give the official archive '
      'instead, or pass --accept_unverified to use it as it is.'
    )
  algorithm = ALGORITHMS[len(checksum)]
  actual = digest(path, algorithm)
  if actual != checksum and not accept_unverified:
    raise DataError(
      f'{path} is not the official file ({algorithm} {actual} instead of {checksum}); get it again, or pass '
      '--accept_unverified to use it as it is.'
    )
  return actual == checksum


def check_counts(
  where,
  actual: Mapping[str, int],
  official: Mapping[str, int],
  *,
  accept_unverified: bool,
  accept_incomplete: bool,
) -> bool:
  """Compares and prints numbers of examples; returns True if they equal the official ones.

  Args:
    where: the folder or archive, for messages.
    actual, official: {file: examples}.
    accept_unverified: accept more than the official ones.
    accept_incomplete: accept fewer than the official ones.

  Raises:
    DataError: a file has fewer or more, and that is not accepted.
  """
  counts = ', '.join(f'{actual[file]:,} of {official[file]:,} {file}' for file in official)
  says = f'{where} has {counts} examples'
  if any(actual[file] < official[file] for file in official) and not accept_incomplete:
    raise DataError(f'{says}; get it again, or pass --accept_incomplete to use what there is.')
  if any(actual[file] > official[file] for file in official) and not accept_unverified:
    raise DataError(f'{says}; get it again, or pass --accept_unverified to use it as it is.')
  print(f'{says}.')
  return all(actual[file] == official[file] for file in official)
