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

# What a damaged archive, or an array in one, raises.
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
  """Makes whatever a damaged archive raises within a DataError '{what} ({reason}); {advice}.'."""
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
  """An open archive; whoever reads it stands within `naming_damage`."""
  with raw_files.opened(path) as raw, zipfile.ZipFile(raw) as archive:
    yield archive


@contextlib.contextmanager
def member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str, most: int) -> Iterator[BinaryIO]:
  """A member, open for reading; its checksum is looked at when its last byte is read.

  Args:
    archive: from `opened`.
    info: which member.
    where: it, for messages.
    most: bytes that it may have.

  Raises:
    DataError: it is larger.
    zipfile.BadZipFile, ...: it is damaged, see `naming_damage`.
  """
  raw_files.check_size(where, info.file_size, most)
  # The other kinds of compression may take any amount of memory.
  if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
    raise zipfile.BadZipFile(f'it is compressed by method {info.compress_type}')
  with touching(where, 'read'), archive.open(info) as content:
    yield content
