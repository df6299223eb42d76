"""One file of a user, or a folder in its place; `data_prep.sources.npz` describes what they hold."""

import dataclasses
import pathlib

import numpy as np

from data_prep import arrays, arrow_files, raw_files
from data_prep import labels as labels_lib
from lra_spt.data import tokenizers
from lra_spt.data.parts import UNLABELLED
from lra_spt.errors import DataError, touching

KEYS = ('inputs', 'labels', 'lengths', 'offsets', 'groups', 'vocabulary')
DTYPES = ('uint8', 'int16', 'float32')
SUFFIXES = ('.npz', *arrow_files.SUFFIXES)


@dataclasses.dataclass(frozen=True)
class Part:
  """The content of one file, or of a folder in its place.

  Attributes:
    inputs: values [N, L] or [N, L, C], token ids [N, L], or all examples in a row: token ids [tokens], values
      [positions] or [positions, C].
    bounds: int64 [N + 1]: example n has the elements bounds[n] to bounds[n + 1] of the inputs.
    row: the shape of an example before it is cut to its length: (L,) or (L, C), with -1 for L in a row.
    labels: see `labels.of_file`; of positions int32 [N, L] or, in a row, [positions].
    lengths: positions of each example, int64 [N]; None if all have L, or they are tokens in a row.
    groups: int64 [N], equal for examples that belong together; None if the file has none.
    vocabulary: names of token ids, if the file has them.
    largest: the largest token id; 0 for values.
    parts: the files of a folder, whose labels (those of positions in a row) and groups are concatenated here;
      `inputs`, `bounds` and `lengths` are those of the first.
  """

  inputs: arrays.Stored
  bounds: np.ndarray
  row: tuple[int, ...]
  labels: np.ndarray
  lengths: np.ndarray | None
  groups: np.ndarray | None
  vocabulary: tuple[str, ...]
  largest: int = 0
  parts: tuple['Part', ...] = ()

  def __len__(self):
    return sum(map(len, self.parts)) if self.parts else len(self.bounds) - 1

  @property
  def per_position(self) -> bool:
    """True if every position has a label."""
    return self.labels.dtype == np.int32

  @property
  def label_width(self) -> int:
    """K of labels [N, K] that are no labels of positions, else 0."""
    return self.labels.shape[1] if self.labels.ndim == 2 and not self.per_position else 0

  @property
  def kind(self) -> str:
    """The dtype of values, or 'tokens'."""
    return 'tokens' if self.largest else self.inputs.dtype.name

  @property
  def shape(self) -> tuple[int, ...] | None:
    """The shape of a set with such examples, see `builders.Source`."""
    if self.largest:
      return None
    return self.row if self.lengths is None else (0, self.row[1])

  def together(self) -> tuple[np.ndarray, list[int]]:
    """Positions [N] of the examples ordered by group, and the size of each group. Groups, and examples within
    a group, keep the order of their first occurrence."""
    _, first, group = np.unique(self.groups, return_index=True, return_inverse=True)
    return np.argsort(first[group], kind='stable'), np.bincount(group)[np.argsort(first)].tolist()

  @property
  def order(self) -> np.ndarray:
    """Positions [N] of the examples as they are stored, group by group where there are groups."""
    return np.arange(len(self)) if self.groups is None else self.together()[0]

  def examples(self, dtype):
    """Yields (inputs, label) in this order."""
    if self.parts:
      for part in self.parts:
        yield from part.examples(dtype)
      return
    order = self.order
    moved = order if (order != np.arange(len(order))).any() else None
    pieces = self.inputs.pieces(self.bounds, moved)
    for n, piece in zip(order.tolist(), pieces, strict=True):
      label = self._of_positions(n) if self.per_position else self.labels[n]
      row = piece.reshape(self.row)
      yield (row if self.lengths is None else row[: self.lengths[n]]).astype(dtype), label

  def _of_positions(self, n):
    """The labels of the positions of example n."""
    if self.labels.ndim == 1:
      begin, end = self.bounds[n : n + 2] // (1 if self.largest else self.inputs.width)
      return self.labels[begin:end]
    return self.labels[n] if self.lengths is None else self.labels[n, : self.lengths[n]]


def read(path: pathlib.Path) -> Part:
  """Reads and checks one file, or a folder of .npy files; all of it but the inputs stays in memory.

  Raises:
    DataError: it is no such file, or its arrays are not as `sources.npz` describes; the message names the
      file, the array and, if possible, the example.
    FileAccessError: it cannot be read.
  """
  given = _arrays(path)
  inputs, labels = given['inputs'], labels_lib.of_file(given, path)
  vocabulary = given.get('vocabulary', np.zeros(0, str))
  if vocabulary.ndim != 1 or vocabulary.dtype.kind != 'U':
    raise DataError(f'{path}: vocabulary is {_kind(vocabulary)}; make it a row of strings.')
  lengths, largest = None, 0
  if 'offsets' in given and (inputs.dtype.kind == 'f' or (inputs.ndim == 2 and inputs.dtype.name in DTYPES)):
    bounds = _values_in_a_row(inputs, path, given['offsets']) * inputs.width
    lengths, row = np.diff(bounds) // inputs.width, (-1, inputs.width)
  elif 'lengths' in given and (inputs.ndim == 3 or inputs.dtype.kind == 'f'):
    lengths = _values(inputs, path, given['lengths'])
    row = (*inputs.shape[1:], 1)[:2]
  elif 'lengths' in given or 'offsets' in given:
    (lengths, bounds, largest), row = _tokens(given, path), (-1,)
  else:
    _values(inputs, path)
    row = inputs.shape[1:2] if inputs.shape[2:] in ((), (1,)) else inputs.shape[1:]
  if 'offsets' not in given:
    bounds = np.arange(len(inputs) + 1) * inputs.width
  count = len(bounds) - 1
  if labels.ndim == 2 and labels.dtype == np.int32 and lengths is not None:
    labels = np.where(_within(lengths, labels.shape[1]), labels, np.int32(UNLABELLED))
  if labels.dtype != np.int32 and count != len(labels):
    raise DataError(f'{path} has {count:,} inputs, but {len(labels):,} labels; give every input one label.')
  groups = _groups(given.get('groups'), count, path)
  return Part(inputs, bounds, row, labels, lengths, groups, tuple(vocabulary.tolist()), largest)


def read_any(path: pathlib.Path) -> Part:
  """Reads and checks a file, a folder of .npy files, or a folder of other files, one after another.

  Raises:
    DataError: the files of a folder differ in form, or see `read` and `names_in`.
  """
  names = names_in(path)
  if not names or names[0].endswith('.npy'):
    return read(path)
  parts = {path / name: read(path / name) for name in names}
  check_alike(parts)
  check_groups(parts, {part: part for part in parts})
  first, *_ = parts.values()

  def joined(name):
    pieces = [getattr(part, name) for part in parts.values()]
    if pieces[0] is None:
      return None
    return np.concatenate([array.reshape(-1) if first.per_position else array for array in pieces])

  return dataclasses.replace(
    first,
    **{name: joined(name) for name in ('labels', 'groups')},
    largest=max(part.largest for part in parts.values()),
    parts=tuple(parts.values()),
  )


def names_in(path: pathlib.Path) -> list[str]:
  """The names of the files in a folder, all of one kind; none for a path that is a file by its name.

  Raises:
    DataError: there are no such files, or others.
  """
  if path.suffix in SUFFIXES:
    return []
  with touching(path, 'read'):
    names = sorted(entry.name for entry in path.iterdir())
  kinds = {pathlib.PurePath(name).suffix for name in names}
  if len(kinds) != 1 or not kinds <= {'.npy', *SUFFIXES}:
    content = raw_files.shown(', '.join(names)) or 'nothing'
    raise DataError(
      f'{path} holds {content}; put either inputs.npy, labels.npy and so on there, or files of one kind '
      f'among {", ".join(SUFFIXES)}, and nothing else.'
    )
  return names


def _arrays(path):
  if names := names_in(path):
    given = {name.removesuffix('.npy'): path / name for name in names}
    given = {name: arrays.of_npy(file) if name in KEYS else None for name, file in given.items()}
  else:
    given = arrays.of_npz(path) if path.suffix == '.npz' else arrow_files.of_file(path)
  if missing := [name for name in KEYS[:2] if name not in given]:
    how = ' (training examples without a label have -1, or NaN in a regression)' * ('labels' in missing)
    raise DataError(
      f'{path} has no {" and no ".join(missing)}{how}; it has '
      f'{raw_files.shown(", ".join(given)) or "nothing"}.'
    )
  if unknown := [name for name in given if name not in KEYS]:
    raise DataError(
      f'{path} has {raw_files.shown(", ".join(unknown))}, which is not read; leave it out, or call it one '
      f'of {", ".join(KEYS)}.'
    )
  if 'lengths' in given and 'offsets' in given:
    raise DataError(f'{path} has lengths and offsets; give lengths for a table of ids, offsets for one row.')
  return given


def _kind(array):
  return f'{array.dtype} {list(array.shape)}'


def _groups(groups, count, path):
  if groups is None:
    return None
  if groups.dtype.kind not in 'iu' or groups.ndim != 1:
    raise DataError(f'{path}: groups are {_kind(groups)}; make them a row of whole numbers, one per example.')
  if len(groups) != count:
    raise DataError(f'{path} has {count:,} inputs, but {len(groups):,} groups; give every input one group.')
  return groups.astype(np.int64)


def _values(inputs, path, lengths=None):
  """Checks the values within the length of each example. Returns checked lengths, or None without lengths."""
  if inputs.ndim not in (2, 3) or 0 in inputs.shape:
    raise DataError(
      f'{path}: inputs are {_kind(inputs)}; make values [examples, positions] or [examples, positions, '
      'channels], or give lengths or offsets with token ids.'
    )
  if lengths is not None:
    lengths = _lengths(lengths, *inputs.shape[:2], path)
  if inputs.dtype.name not in DTYPES:
    raise DataError(
      f'{path}: inputs are {_kind(inputs)}; convert values to {", ".join(DTYPES[:-1])} or {DTYPES[-1]}, or '
      'give lengths with token ids.'
    )
  for first, block in inputs.blocks() if inputs.dtype.kind == 'f' else ():
    finite = np.isfinite(block).reshape(len(block), inputs.shape[1], -1).all(2)
    if lengths is not None:
      finite |= ~_within(lengths[first : first + len(block)], inputs.shape[1])
    if not finite.all():
      raise DataError(
        f'{path}: input {first + np.argmin(finite.all(1))} holds a number that is not finite; correct or '
        'leave it out.'
      )
  return lengths


def _within(lengths, most):
  """True for the positions of each example, bool [n, most]."""
  return np.arange(most) < lengths[:, None]


def _row(numbers, name, path):
  if numbers.dtype.kind not in 'iu' or numbers.ndim != 1:
    raise DataError(f'{path}: {name} are {_kind(numbers)}; make them a row of whole numbers.')
  return numbers.astype(np.int64)


def _lengths(lengths, count, most, path):
  """Checked lengths, int64 [N]."""
  lengths = _row(lengths, 'lengths', path)
  if len(lengths) != count:
    raise DataError(f'{path} has {count:,} inputs, but {len(lengths):,} lengths; give every input one.')
  if len(wrong := np.flatnonzero((lengths < 1) | (lengths > most))):
    raise DataError(
      f'{path}: length {wrong[0]} is {lengths[wrong[0]]}, but inputs have 1 to {most:,} positions.'
    )
  return lengths


def _offsets(offsets, count, what, path):
  """Checked offsets, int64 [N + 1]."""
  bounds = _row(offsets, 'offsets', path)
  if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != count or (np.diff(bounds) < 1).any():
    raise DataError(
      f'{path}: offsets do not rise from 0 to {count:,}, the number of {what}; give where every example '
      'begins, and the end.'
    )
  return bounds


def _values_in_a_row(inputs, path, offsets):
  """Checks values of all examples, [positions] or [positions, C]; returns checked offsets."""
  if inputs.dtype.name not in DTYPES or inputs.ndim > 2 or 0 in inputs.shape:
    raise DataError(
      f'{path}: inputs are {_kind(inputs)}; with offsets, give values [positions] or [positions, channels] '
      f'of {", ".join(DTYPES[:-1])} or {DTYPES[-1]}.'
    )
  bounds = _offsets(offsets, len(inputs), 'positions', path)
  for first, block in inputs.blocks() if inputs.dtype.kind == 'f' else ():
    finite = np.isfinite(block).reshape(len(block), -1).all(1)
    if not finite.all():
      example = np.searchsorted(bounds, first + np.argmin(finite), 'right') - 1
      raise DataError(f'{path}: input {example} holds a number that is not finite; correct or leave it out.')
  return bounds


def of_one_length(parts: dict) -> dict:
  """Returns the parts {file: Part} of a set. If all of them hold values in a row and all examples have one
  length, they become parts of a set with this length."""
  every = [part for whole in parts.values() for part in (whole.parts or (whole,))]
  if any(part.lengths is None or part.row[0] != -1 or part.largest for part in every):
    return parts
  if len(lengths := np.unique(np.concatenate([part.lengths for part in every]))) > 1:
    return parts

  def fixed(part):
    row = (int(lengths[0]), part.row[1])[: 2 if part.row[1] > 1 else 1]
    return dataclasses.replace(part, row=row, lengths=None, parts=tuple(map(fixed, part.parts)))

  return {file: fixed(part) for file, part in parts.items()}


def _tokens(given, path):
  """Checked lengths or None, offsets or None, and the largest id."""
  inputs, lengths = given['inputs'], None
  name, dimensions = ('lengths', 2) if 'lengths' in given else ('offsets', 1)
  if inputs.dtype.kind not in 'iu' or inputs.ndim != dimensions:
    form = '[examples, positions]' if dimensions == 2 else 'in one row'
    raise DataError(f'{path}: inputs are {_kind(inputs)}; with {name}, give whole numbers {form}.')
  if name == 'lengths':
    bounds = lengths = _lengths(given[name], *inputs.shape, path)
  else:
    bounds = _offsets(given[name], len(inputs), 'tokens', path)
  largest = 0
  for first, block in inputs.blocks():
    places = np.arange(first, first + len(block))
    examples = np.searchsorted(bounds, places, 'right') - 1
    if lengths is not None:
      within = _within(lengths[places], inputs.shape[1])
      examples, block = np.repeat(places, lengths[places]), block[within]
    if len(wrong := np.flatnonzero(block < 2)):
      raise DataError(
        f'{path}: input {examples[wrong[0]]} holds the id {block[wrong[0]]}, but 0 and 1 are <mask> and '
        f'<pad>; number your tokens from {len(tokenizers.SPECIAL_TOKENS)}.'
      )
    largest = max(largest, int(block.max()))
  if largest >= 2**31:
    raise DataError(f'{path}: the id {largest} is too large; number your tokens without gaps.')
  return lengths, None if lengths is not None else bounds, largest


def check_alike(parts):
  """Refuses files that differ in dtype or form; parts: {path: Part}."""
  first, *_ = parts
  for path, part in parts.items():
    for what, of in (
      ('labels', lambda part: part.labels.dtype.name),
      ('the label width', lambda part: part.label_width),
      ('inputs', lambda part: part.kind),
      ('shape', lambda part: part.shape and list(part.shape)),
    ):
      if of(part) != of(parts[first]):
        raise DataError(
          f'{path} has {what} {of(part)}, but {first} {of(parts[first])}; make all files alike.'
        )


def check_groups(parts, paths):
  """Refuses groups that only some of the files have, and a group that is in two files."""
  given = [file for file, part in parts.items() if part.groups is not None]
  if given and (without := [paths[file] for file in parts if file not in given]):
    raise DataError(f'{without[0]} has no groups, but {paths[given[0]]} has; give all files groups, or none.')
  of = {}
  for file in given:
    for group in np.unique(parts[file].groups).tolist():
      if group in of:
        raise DataError(
          f'{paths[file]} has examples of the group {group}, and so has {paths[of[group]]}; put all examples '
          'of a group into one file.'
        )
      of[group] = file
