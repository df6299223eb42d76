"""Parquet and Arrow files of a user, with a row per example; they are read in batches of rows.

A file becomes the arrays of an .npz file in the form "in a row" (`data_prep.sources.npz`), because every list
has its own length.
"""

import contextlib
import functools
import io
import pathlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
import tqdm

from data_prep import arrays, raw_files, zips
from lra_spt.data.parts import UNLABELLED
from lra_spt.errors import DataError

SUFFIXES = ('.parquet', '.arrow')
COLUMNS = ('inputs', 'labels', 'groups')
VALUES = ('uint8', 'int16', 'float32')  # other whole numbers are token ids
_BUFFER = 2**20  # bytes of a column that are read at a time


def of_file(path: pathlib.Path) -> dict[str, np.ndarray | arrays.Stored]:
  """Returns the arrays of a file, {name: array}.

  `inputs` is `Stored`: token ids [tokens], or values [positions, C]. `offsets`, `labels` and `groups` are in
  memory; labels of positions have the shape [positions].

  Raises:
    DataError: it is no such file, it is damaged, or its rows differ in kind; the message names the row, from
      0.
    FileAccessError: it cannot be read.
  """
  columns, lengths, kind = {}, {}, None
  bar = tqdm.tqdm(desc=f'reading {path.name}', unit=' rows', unit_scale=True, disable=None)
  with _naming_damage(path), contextlib.closing(_batches(path)) as batches, bar:
    for first, batch in batches:
      if unknown := [name for name in batch.schema.names if name not in COLUMNS]:
        raise DataError(
          f'{path} has the column {raw_files.shown(", ".join(unknown))}, which is not read; leave it out, or '
          f'call it one of {", ".join(COLUMNS)}.'
        )
      for name, column in zip(batch.schema.names, batch.columns, strict=True):
        place = functools.partial(_place, path, name, first)
        values, length_N = _flat(column, place, name == 'labels')
        lengths.setdefault(name, []).append(length_N)
        if name != arrays.INPUTS:
          columns.setdefault(name, []).append(values)
        else:
          kind = _checked(values, length_N, kind, column.type, place, path)
      bar.update(len(batch))
  if not lengths:
    raise DataError(f'{path} has no rows; give it some, or leave the file out.')
  columns = {name: np.concatenate(parts) for name, parts in columns.items()}
  if kind is None:
    return columns
  length_N = np.concatenate(lengths[arrays.INPUTS])
  offsets = np.concatenate([[0], np.cumsum(length_N)])
  if lengths.get('labels', [None])[0] is not None:
    columns['labels'] = _of_lists(columns['labels'], np.concatenate(lengths['labels']), length_N, path)
  dtype, channels = kind
  opened = functools.partial(_opened, path)
  shape = (int(offsets[-1]), *channels)
  inputs = arrays.Stored(path, shape, dtype, by_column=False, opened=opened, seekable=False)
  return {arrays.INPUTS: inputs, 'offsets': offsets, **columns}


def _checked(values, length_N, kind, arrow_type, place, path):
  """Checks the inputs of a batch and returns their kind: the dtype, and (C,) for values or () for ids.

  kind: that of the earlier batches, or None.
  """
  is_value = values.dtype.name in VALUES
  if length_N is None or not (is_value or (values.dtype.kind in 'iu' and values.ndim == 1)):
    raise DataError(
      f'{path}: inputs are {arrow_type}; make every row a list of {", ".join(VALUES[:-1])} or {VALUES[-1]}, '
      'or of token ids of 32 or 64 bits.'
    )
  if not length_N.all():
    raise DataError(f'{place(np.argmin(length_N))} is empty; give it a position, or leave the row out.')
  here = values.dtype, (values.shape[1:] or (1,)) if is_value else ()
  if kind not in (None, here):
    raise DataError(
      f'{place(0)} has {here[1][0]} channels, and row 0 has {kind[1][0]}; give every position as many.'
    )
  return here


def _place(path, name, first, row):
  return f'{path}: row {first + row:,} of {name}'


@contextlib.contextmanager
def _naming_damage(path):
  kind = 'Parquet' if path.suffix == '.parquet' else 'Arrow'
  with zips.naming_damage(f'{path} is not a readable {kind} file', 'save it again'):
    try:
      yield
    except pa.ArrowException as error:  # some kinds are errors of values, others are not
      raise ValueError(str(error)) from error


def _batches(path, columns=None) -> Iterator[tuple[int, pa.RecordBatch]]:
  """Yields (number of the first row, rows). Parquet gives about `arrays.BLOCK_BYTES` at a time, Arrow the
  batches of the file."""
  first = 0
  with raw_files.opened(path) as file:
    for batch in _of_parquet(file, columns) if path.suffix == '.parquet' else _of_arrow(file):
      yield first, batch if columns is None else batch.select(columns)
      first += len(batch)


def _of_parquet(file, columns):
  # With `pre_buffer` whole columns of a row group would be read at once.
  opened = pyarrow.parquet.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)
  head = opened.metadata
  groups = [head.row_group(i) for i in range(head.num_row_groups)]
  # Bytes in the file tell nothing: equal values take almost none there.
  values = sum(group.column(j).num_values for group in groups for j in range(group.num_columns))
  rows = arrays.BLOCK_BYTES * head.num_rows // max(1, 8 * values)
  yield from opened.iter_batches(batch_size=max(1, rows), columns=columns, use_threads=False)


def _of_arrow(file):
  opened = pa.ipc.open_file(file)
  for i in range(opened.num_record_batches):
    batch = opened.get_batch(i)
    batch.validate(full=True)  # else damaged offsets would be followed
    yield batch


@contextlib.contextmanager
def _opened(path):
  """The values of all inputs as a file of bytes."""

  def pieces():
    for first, batch in batches:
      values, _ = _flat(batch.column(0), functools.partial(_place, path, arrays.INPUTS, first))
      yield memoryview(np.ascontiguousarray(values)).cast('B')

  with _naming_damage(path), contextlib.closing(_batches(path, [arrays.INPUTS])) as batches:
    yield io.BufferedReader(_Joined(pieces()))


class _Joined(io.RawIOBase):
  """Pieces of memory, one after another, as a file."""

  def __init__(self, pieces):
    self._pieces, self._rest = pieces, memoryview(b'')

  def readable(self):
    return True

  def readinto(self, buffer):
    while not len(self._rest):
      if (piece := next(self._pieces, None)) is None:
        return 0
      self._rest = piece
    count = min(len(buffer), len(self._rest))
    buffer[:count], self._rest = self._rest[:count], self._rest[count:]
    return count


def _is_list(kind) -> bool:
  return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _flat(column, place, may_lack=False):
  """The values of a column, and the lengths of its lists.

  Args:
    column: n rows of numbers, lists of numbers, or lists of lists of C numbers.
    place: function that returns the name of a row of the column.
    may_lack: a number may be missing, which then becomes -1 or NaN.

  Returns:
    The values, [n], [elements] or [elements, C]; and the lengths of the lists, int64 [n], None without lists.

  Raises:
    DataError: something is missing, or C varies.
  """
  column = column.storage if isinstance(column, pa.ExtensionArray) else column
  row_of = np.arange(len(column))
  lengths_N, widths = None, ()
  for depth in range(2):
    if not _is_list(column.type):
      break
    _refuse_missing(column, row_of, place)
    length = pa.compute.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    if depth == 0:
      lengths_N = length
    elif len(length):
      if (wrong := np.flatnonzero(length != length[0])).size or not length[0]:
        row = row_of[wrong[0]] if wrong.size else 0
        raise DataError(f'{place(row)} has lists of differing lengths; give every position as many channels.')
      widths = (int(length[0]),)
    row_of, column = np.repeat(row_of, length), column.flatten()
  if may_lack and lengths_N is None and column.null_count and pa.types.is_primitive(column.type):
    if not pa.types.is_boolean(column.type):
      column = column.fill_null(float('nan') if pa.types.is_floating(column.type) else UNLABELLED)
  _refuse_missing(column, row_of, place)
  values = column.to_numpy(zero_copy_only=False)
  return values.reshape(-1, *widths), lengths_N


def _refuse_missing(column, row_of, place):
  if column.null_count:
    row = row_of[np.argmin(column.is_valid().to_numpy(zero_copy_only=False))]
    raise DataError(f'{place(row)} has a missing value (null); fill it, or leave the row out.')


def _of_lists(values, labels_N, inputs_N, path):
  """Returns labels that are lists of labels_N numbers: [positions] for classes of positions, else [N, K]."""
  per_position = values.dtype.kind in 'iu'
  wanted_N = inputs_N if per_position else np.full(len(labels_N), labels_N[0])
  if (wrong := np.flatnonzero(labels_N != wanted_N)).size:
    row = wrong[0]
    why = 'the positions of its input' if per_position else 'as many as row 0'
    raise DataError(
      f'{_place(path, "labels", 0, row)} has {labels_N[row]:,} numbers, and not {wanted_N[row]:,}, {why}; '
      f'correct it.'
    )
  return values if per_position else values.reshape(len(labels_N), -1)
