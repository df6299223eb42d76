"""Zip archives, read without writing anything to disk; members above a largest size are refused."""

import contextlib
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from data_prep import raw_files
from lra_spt.errors import DataError, UserError, touching

# Errors of a damaged archive, or of an array in one.
_DAMAGE = (
  zipfile.BadZipFile,
  zlib.error,
  struct.error,
  EOFError,
  KeyError,
  MemoryError,
  RuntimeError,
  ValueError,
)


@contextlib.contextmanager
def naming_damage(what: str, advice: str = 'get it again'):
  """Turns the errors of a damaged archive into a DataError '{what} ({reason}); {advice}.'."""
  try:
    yield
  except UserError:
    raise
  except _DAMAGE as error:
    reason = raw_files.shown(str(error).partition('\n')[0]).rstrip('.')
    raise DataError(f'{what} ({reason or type(error).__name__}); {advice}.') from None
  except OSError as error:
    if error.errno is not None:
      raise
    raise DataError(f'{what} ({raw_files.shown(str(error))}); {advice}.') from None


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[zipfile.ZipFile]:
  """Opens an archive; the caller reads it within `naming_damage`."""
  with raw_files.opened(path) as raw, zipfile.ZipFile(raw) as archive:
    yield archive


@contextlib.contextmanager
def member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str, most: int) -> Iterator[BinaryIO]:
  """Opens a member for reading; its checksum is compared when its last byte is read.

  Args:
    archive: from `opened`.
    info: the member.
    where: its name, for messages.
    most: largest number of bytes.

  Raises:
    DataError: it is larger.
    zipfile.BadZipFile, ...: it is damaged, see `naming_damage`.
  """
  raw_files.check_size(where, info.file_size, most)
  # Other kinds of compression may take any amount of memory.
  if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
    raise zipfile.BadZipFile(f'it is compressed by method {info.compress_type}')
  with touching(where, 'read'), archive.open(info) as content:
    yield content
