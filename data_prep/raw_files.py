"""Opens and checks files from outside; no other module of data_prep opens them.

Only plain files are opened, so that a pipe or a device cannot block a preparation. Files and rows that are
much longer than the official ones are not read.
"""

import contextlib
import errno
import io
import math
import os
import pathlib
import stat
import warnings
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from lra_spt.errors import DataError, touching

_KINDS = {
  stat.S_IFIFO: 'a pipe',
  stat.S_IFSOCK: 'a socket',
  stat.S_IFCHR: 'a device',
  stat.S_IFBLK: 'a device',
}


@contextlib.contextmanager
def opened(path, most: int | None = None) -> Iterator[io.BufferedReader]:
  """Opens a plain file for reading bytes.

  Args:
    path: the file; links are followed.
    most: largest number of bytes; None for archives, whose members have limits.

  Raises:
    DataError: it is a pipe, socket or device, too large, or its name cannot be printed.
    FileAccessError: the operating system refuses to open or read it.
  """
  path = pathlib.Path(path)
  if not path.name.isprintable():
    raise DataError(
      f'{str(path.parent)} holds a file called {shown(path.name)!r}, which is not a valid name; remove it.'
    )
  with touching(path, 'read'):
    _check(path, os.stat(path), most)
    # It may become a pipe between these two lines, so opening must not block either.
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), 'rb')
  with file:
    _check(path, os.fstat(file.fileno()), most)
    try:
      yield file
    except OSError as error:
      if error.errno is None:
        raise  # an error of the content
      with touching(path, 'read'):
        raise


def _check(path, state, most):
  if stat.S_ISDIR(state.st_mode):
    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
  kind = _KINDS.get(stat.S_IFMT(state.st_mode))
  if kind:
    raise DataError(f'{path} is {kind} instead of a plain file; put the file itself there.')
  check_size(path, state.st_size, most)


def check_size(where, size: int, most: int | None):
  """Raises a DataError if `where` has more than `most` bytes."""
  if most is not None and size > most:
    raise DataError(f'{where} has {size:,} bytes, but such a file has at most {most:,}; get it again.')


def read(path, most: int) -> bytes:
  """The content of a plain file of at most `most` bytes; raises the errors of `opened`."""
  with opened(path, most) as file:
    return file.read()


def rows(file: BinaryIO, where, longest: int) -> Iterator[bytes]:
  """Yields the rows of an open file, with their line ends.

  Args:
    file: from `opened`.
    where: name of the file, for messages.
    longest: largest number of bytes of a row with its line end.

  Raises:
    DataError: a row is longer; the message names the file and the row, from 1.
  """
  number = 1
  while row := file.readline(longest + 1):
    if len(row) > longest:
      raise DataError(f'{where}, row {number:,}, has more than {longest:,} bytes; get the file again.')
    yield row
    number += 1


def array_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
  """Reads a .npy header: the shape of the array, True if it is stored column by column, and its dtype.

  Raises:
    ValueError: it is no such header, or belongs to an array of objects.
  """
  version = np.lib.format.read_magic(file)
  headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
  if version not in headers:
    raise ValueError(f'it is written in version {version}')
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('error')  # NumPy would warn and repair a header
      shape, by_column, dtype = headers[version](file)
  except Exception as error:  # parsing a damaged header as Python can raise almost any error
    raise ValueError(f'its header is damaged: {error}') from None
  if dtype.hasobject:
    raise ValueError('Object arrays are not read')
  if min(shape, default=0) < 0:
    raise ValueError(f'it holds an array of shape {shape}')
  return shape, by_column, dtype


def array_size(file: BinaryIO) -> int:
  """Reads a .npy header and returns the bytes of its array, before memory for it is allocated; raises the
  errors of `array_header`."""
  shape, _, dtype = array_header(file)
  return math.prod(shape) * dtype.itemsize


def shown(text: str) -> str:
  """A text from a file for a message: at most 200 characters on one line, without control characters."""
  text = ''.join(character if character.isprintable() else ' ' for character in text[:201])
  return text if len(text) <= 200 else f'{text[:200]}...'
