"""Checksums, and archives read without writing anything to disk."""

import contextlib
import hashlib
import pathlib
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from lra_spt.errors import DataError

# By the number of hexadecimal digits of a checksum. MD5 guards against damage, not against malice.
ALGORITHMS = {32: 'MD5', 64: 'SHA256'}


def check(path: pathlib.Path, checksum: str | None, accept_unverified: bool) -> bool:
  """Whether a file is the official one.

  Args:
    path: the file.
    checksum: the official one, MD5 or SHA256 in hexadecimal digits; None if there is none.
    accept_unverified: return False instead of refusing.

  Raises:
    ValueError: the file is not the official one, or that cannot be known, and `accept_unverified` is not set.
  """
  if checksum is None:
    if accept_unverified:
      return False
    raise DataError(
      f'{path} cannot be verified because no official checksum of it exists; give the official archive '
      'instead, or pass --accept_unverified to use it as it is.'
    )
  algorithm = ALGORITHMS[len(checksum)]
  with open(path, 'rb') as file:
    found = hashlib.file_digest(file, algorithm).hexdigest()
  if found != checksum and not accept_unverified:
    raise DataError(
      f'{path} is not the official file ({algorithm} {found} instead of {checksum}); get it again, or pass '
      '--accept_unverified to use it as it is.'
    )
  return found == checksum


def check_counts(where, found: Mapping[str, int], official: Mapping[str, int], accept_unverified) -> bool:
  """Whether files, of which no official checksums exist, have as many rows as the official ones.

  Args:
    where: their folder or archive, for messages.
    found, official: {file: rows}.
    accept_unverified: return False instead of refusing.

  Raises:
    ValueError: they have not, and `accept_unverified` is not set.
  """
  if found != official and not accept_unverified:
    rows = [' / '.join(f'{counts[file]:,}' for file in official) for counts in (found, official)]
    raise DataError(
      f'{where} has {rows[0]} rows ({" / ".join(official)}), the official release {rows[1]}; get it again, '
      'or pass --accept_unverified to use it as it is.'
    )
  return found == official


def read(path: pathlib.Path) -> bytes:
  """The content of a file that is listed as there.

  Raises:
    ValueError: it cannot be read.
  """
  try:
    return path.read_bytes()
  except OSError as error:
    raise DataError(f'{path} is not readable ({error.strerror}); get it again.') from None


@contextlib.contextmanager
def reading_tar(archive: pathlib.Path):
  """Makes whatever a damaged tar archive raises within a ValueError that names it."""
  try:
    yield
  except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
    # The lines after the first are what tarfile heard from every kind of compression it tried.
    reason = str(error).partition('\n')[0].rstrip(':')
    raise DataError(f'{archive} is not a readable tar archive ({reason}); get it again.') from None


def iterate_matching(archive: pathlib.Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
  """Files of a tar archive, one at a time: nothing is unpacked, so no member can write anywhere.

  Args:
    archive: .tar or .tar.gz.
    wanted: says of a file's name in the archive whether it is wanted.

  Yields:
    (name, content), in the order of the archive.

  Raises:
    ValueError: the archive is damaged.
  """
  with reading_tar(archive), tarfile.open(archive) as tar:
    for member in tar:
      name = str(pathlib.PurePosixPath(member.name))
      if member.isfile() and wanted(name):
        yield name, tar.extractfile(member).read()
      tar.members.clear()  # of 100,000 files they would be a good part of the memory


def read_matching(archive: pathlib.Path, wanted: Callable[[str], bool]) -> Mapping[str, bytes]:
  """{name: content} of what `iterate_matching` yields."""
  return dict(iterate_matching(archive, wanted))


def read_members(archive: pathlib.Path, folder: str, names: Sequence[str]) -> Mapping[str, bytes]:
  """The named files of one folder of a tar archive, as `read_matching` reads them.

  Args:
    archive: .tar or .tar.gz.
    folder: in the archive.
    names: of the wanted files in that folder.

  Raises:
    ValueError: the archive is damaged or lacks a file.
  """
  wanted = {f'{folder}/{name}': name for name in names}
  found = {wanted[name]: content for name, content in read_matching(archive, wanted.__contains__).items()}
  missing = [name for name in names if name not in found]
  if missing:
    raise DataError(f'{archive} has no {", ".join(f"{folder}/{name}" for name in missing)}; get it again.')
  return found
