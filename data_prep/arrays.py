"""Arrays of files, here .npz and .npy. Inputs are read piece by piece, so they may be larger than memory."""

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np
import tqdm

from data_prep import raw_files, zips

INPUTS = 'inputs'
BLOCK_BYTES = 32 * 2**20  # number of bytes that are read at a time


def _memory() -> int:
  return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')


@dataclasses.dataclass(frozen=True)
class Stored:
  """An array in a file, which is read when it is needed.

  Attributes:
    path: the file, for messages.
    shape, dtype: of the array.
    by_column: True if it is stored column by column (Fortran order).
    opened: function that returns a context, in which the file is open at the first byte of the array.
    seekable: True if the file can be read in any order without loss of time.
  """

  path: pathlib.Path
  shape: tuple[int, ...]
  dtype: np.dtype
  by_column: bool
  opened: Callable[[], contextlib.AbstractContextManager[BinaryIO]]
  seekable: bool

  def __len__(self) -> int:
    return self.shape[0]

  @property
  def ndim(self) -> int:
    """Number of dimensions."""
    return len(self.shape)

  @property
  def width(self) -> int:
    """Number of elements of a row."""
    return math.prod(self.shape[1:])

  def load(self) -> np.ndarray:
    """The whole array.

    Raises:
      DataError: it is larger than the memory of this machine, or damaged.
    """
    size = math.prod(self.shape) * self.dtype.itemsize
    raw_files.check_size(self.path, size, _memory())
    (flat,) = self._read(np.asarray([0, math.prod(self.shape)]))
    return flat.reshape(self.shape, order='F' if self.by_column else 'C')

  def pieces(self, bounds: np.ndarray, order: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Yields elements bounds[n] to bounds[n + 1] of the array, in rows one after another.

    Args:
      bounds: integers [N + 1], rising from 0 to the number of elements.
      order: the numbers n in the order to yield, [N]; None: 0 to N - 1. With an order, an array that is not
        `seekable` is loaded into memory.

    Raises:
      DataError: the file is damaged, or the array must be loaded and is larger than the memory.
    """
    if self.by_column or (order is not None and not self.seekable):
      flat = self.load().reshape(-1)
      for n in range(len(bounds) - 1) if order is None else order.tolist():
        yield flat[bounds[n] : bounds[n + 1]]
    else:
      yield from self._read(bounds, order)

  def _read(self, bounds, order=None):
    ends = (np.asarray(bounds) * self.dtype.itemsize).tolist()
    with _naming_damage(self.path), self.opened() as file:
      start = file.tell() if order is not None else 0
      for n in range(len(ends) - 1) if order is None else order.tolist():
        if order is not None:
          file.seek(start + ends[n])
        content = file.read(ends[n + 1] - ends[n])
        if len(content) < ends[n + 1] - ends[n]:
          raise ValueError('it ends too early')
        yield np.frombuffer(content, self.dtype)
      if order is None:
        file.read(1)  # a member of a zip archive compares its checksum at its end

  def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (number of the first row, rows [n, ...]) of the whole array, with a progress bar."""
    step = max(1, BLOCK_BYTES // max(1, self.width * self.dtype.itemsize))
    rows = np.asarray([*range(0, len(self), step), len(self)])
    bar = {'desc': f'checking {self.path.name}', 'unit': ' rows', 'unit_scale': True, 'disable': None}
    with tqdm.tqdm(total=len(self), **bar) as progress:
      for first, flat in zip(rows.tolist(), self.pieces(rows * self.width), strict=False):
        yield first, flat.reshape(-1, *self.shape[1:])
        progress.update(step)


def of_npz(path: pathlib.Path) -> dict[str, np.ndarray | Stored]:
  """{name: array} of a .npz file. The array INPUTS is `Stored`, the others are in memory.

  Raises:
    DataError: it is no .npz file of plain arrays, or the part that is read here is damaged.
    FileAccessError: it cannot be read.
  """
  arrays, memory = {}, _memory()
  with _naming_damage(path), zips.opened(path) as archive:
    infos = archive.infolist()
    others = [info.file_size for info in infos if _name(info) != INPUTS]
    raw_files.check_size(path, sum(others), memory)
    for info in infos:
      name, where = _name(info), f'{path}/{raw_files.shown(info.filename)}'
      if name in arrays:
        raise ValueError(f'it holds {raw_files.shown(name)} twice')
      with zips.member(archive, info, where, None) as content:
        shape, by_column, dtype = raw_files.array_header(content)
        expected = math.prod(shape) * dtype.itemsize
        if content.tell() + expected != info.file_size:
          raise ValueError(f'{raw_files.shown(name)} does not have the {expected:,} bytes that it declares')
      opened = functools.partial(_opened_member, path, info.filename)
      arrays[name] = stored = Stored(path, shape, dtype, by_column, opened, seekable=False)
      if name != INPUTS:
        arrays[name] = stored.load()
  return arrays


def _name(info):
  return info.filename.removesuffix('.npy')


@contextlib.contextmanager
def _opened_member(path, filename):
  with (
    zips.opened(path) as archive,
    zips.member(archive, archive.getinfo(filename), f'{path}/{raw_files.shown(filename)}', None) as content,
  ):
    raw_files.array_header(content)
    yield content


def of_npy(path: pathlib.Path) -> np.ndarray | Stored:
  """The array of a .npy file; `Stored` if its name is INPUTS, else in memory.

  Raises:
    DataError: it is no .npy file of a plain array, or truncated.
    FileAccessError: it cannot be read.
  """
  with _naming_damage(path), raw_files.opened(path) as file:
    shape, by_column, dtype = raw_files.array_header(file)
    size, expected = os.fstat(file.fileno()).st_size - file.tell(), math.prod(shape) * dtype.itemsize
    if size != expected:
      raise ValueError(f'it has {size:,} bytes of values, but declares {expected:,}')
  stored = Stored(path, shape, dtype, by_column, functools.partial(_opened_npy, path), seekable=True)
  return stored if path.stem == INPUTS else stored.load()


@contextlib.contextmanager
def _opened_npy(path):
  with raw_files.opened(path) as file:
    raw_files.array_header(file)
    yield file


def _naming_damage(path):
  kinds = {'.npz': '.npz file of plain arrays', '.npy': '.npy file of a plain array'}
  kind = kinds.get(path.suffix, f'{path.suffix} file')
  return zips.naming_damage(f'{path} is not a readable {kind}', 'save it again')
