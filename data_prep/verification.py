"""Checksums, and archives read without writing anything to disk."""

import hashlib
import pathlib
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence


def md5_of(path: pathlib.Path) -> str:
  """MD5 of a file (what CIFAR-10's authors publish; it guards against damage, not against malice)."""
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'md5').hexdigest()


def check(path: pathlib.Path, md5: str | None, accept_unverified: bool) -> bool:
  """Whether a file is the official one.

  Args:
    path: the file.
    md5: the official checksum; None if there is none.
    accept_unverified: return False instead of refusing.

  Raises:
    ValueError: the file is not the official one, or that cannot be known, and `accept_unverified` is not set.
  """
  if md5 is not None and md5_of(path) == md5:
    return True
  if accept_unverified:
    return False
  if md5 is None:
    raise ValueError(
      f'{path} cannot be verified because no official checksum of it exists; give the official archive '
      'instead, or pass --accept_unverified to use it as it is.'
    )
  raise ValueError(
    f'{path} is not the official file (MD5 {md5_of(path)} instead of {md5}); get it again, or pass '
    '--accept_unverified to use it as it is.'
  )


def read_matching(archive: pathlib.Path, wanted: Callable[[str], bool]) -> Mapping[str, bytes]:
  """Files of a tar archive, read into memory: nothing is unpacked, so no member can write anywhere.

  Args:
    archive: .tar or .tar.gz.
    wanted: says of a file's name in the archive whether it is wanted.

  Returns:
    {name: content}, in the order of the archive.

  Raises:
    ValueError: the archive is damaged.
  """
  found = {}
  try:
    with tarfile.open(archive) as tar:
      for member in tar:
        name = str(pathlib.PurePosixPath(member.name))
        if member.isfile() and wanted(name):
          found[name] = tar.extractfile(member).read()
  except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
    raise ValueError(f'{archive} is not a readable tar archive ({error}); get it again.') from None
  return found


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
    raise ValueError(f'{archive} has no {", ".join(f"{folder}/{name}" for name in missing)}; get it again.')
  return found
