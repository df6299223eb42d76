"""A set of your own from NumPy's .npz files: train.npz and, optionally, validation.npz and test.npz.

Every file holds `labels`, [N]: whole numbers 0 to classes - 1, or real numbers for a regression. Labels of
positions are whole numbers [N, L], with -1 where a position does not count; those of concatenated token ids
are [all tokens]. Inputs have one of three forms:

- values: `inputs`, uint8, int16 or float32 [N, L] or [N, L, C]; optionally `lengths`, [N], of which example n
  has the first lengths[n] positions (bytes and int16 then have the shape [N, L, C], also for one channel);
- token ids: `inputs`, whole numbers [N, L], and `lengths`, [N], of which row n holds the first lengths[n];
- concatenated token ids: `inputs`, [all tokens], and `offsets`, [N + 1]: example n is
  inputs[offsets[n]:offsets[n + 1]].

Optionally, `groups`, [N], gives every example a whole number; examples with the same number belong together,
such as the recordings of one patient. They are stored one after another, a task with splits='grouped' keeps
them in one split, and confidence intervals count groups. All examples of a group must be in one file.

Ids 0 and 1 are `<mask>` and `<pad>` and occur in no input; 2 and 3 are meant for `<unk>` and `<eos>`.
train.npz may name all ids with `vocabulary`, an array of strings. Everything is read into memory.

    np.savez('raw/train.npz', inputs=x_NL, labels=y_N)
    lra-spt prepare npz --name waves --raw_dir raw --data_dir data

The metadata then hold `statistics`: mean and standard deviation of the training values, as a task needs them.
"""

import dataclasses
import functools
import itertools
import os
import pathlib

import numpy as np

from data_prep import builders, raw_files, verification, zips
from data_prep import labels as labels_lib
from lra_spt.data import scorable, splits, tokenizers
from lra_spt.errors import DataError, MissingFile, counted, touching

KEYS = ('inputs', 'labels', 'lengths', 'offsets', 'groups', 'vocabulary')
DTYPES = ('uint8', 'int16', 'float32')


@dataclasses.dataclass(frozen=True)
class Part:
  """The content of one file.

  Attributes:
    inputs: values [N, L] or [N, L, C], or all token ids concatenated [tokens].
    labels: int64 or float32 [N], or of positions int32 [N, L], of token ids concatenated [tokens].
    offsets: of token ids, int64 [N + 1]; None for values.
    lengths: of values of differing lengths, int64 [N], else None.
    groups: int64 [N], equal for examples that belong together; None if the file has none.
    vocabulary: names of token ids, if the file has them.
  """

  inputs: np.ndarray
  labels: np.ndarray
  offsets: np.ndarray | None
  lengths: np.ndarray | None
  groups: np.ndarray | None
  vocabulary: tuple[str, ...]

  def __len__(self):
    return len(self.inputs) if self.offsets is None else len(self.offsets) - 1

  @property
  def per_position(self) -> bool:
    """True if every position has a label."""
    return self.labels.dtype == np.int32

  @property
  def shape(self) -> tuple[int, ...] | None:
    """The shape of a set with such examples, see `builders.Source`."""
    if self.offsets is not None:
      return None
    return self.inputs.shape[1:] if self.lengths is None else (0, self.inputs.shape[2])

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
    for n in self.order.tolist():
      label = self._row(self.labels, n) if self.per_position else self.labels[n].item()
      yield self._row(self.inputs, n).astype(dtype), label

  def _row(self, values, n):
    """The positions of example n."""
    if self.offsets is not None:
      return values[self.offsets[n] : self.offsets[n + 1]]
    return values[n] if self.lengths is None else values[n, : self.lengths[n]]


def read(path: pathlib.Path) -> Part:
  """Reads and checks one file.

  Raises:
    DataError: it is no .npz file, or its arrays are not those of this module's docstring; the message names
      the file, the array and, if possible, the example.
    FileAccessError: it cannot be read.
  """
  arrays = _arrays(path)
  inputs, labels = arrays['inputs'], labels_lib.of_file(arrays, path)
  vocabulary = arrays.get('vocabulary', np.zeros(0, str))
  if vocabulary.ndim != 1 or vocabulary.dtype.kind != 'U':
    raise DataError(f'{path}: vocabulary is {_kind(vocabulary)}; make it a row of strings.')
  offsets = lengths = None
  if 'lengths' in arrays and (inputs.ndim == 3 or inputs.dtype.kind == 'f'):
    inputs, lengths = _values_with_lengths(inputs, arrays['lengths'], path)
  elif 'lengths' in arrays or 'offsets' in arrays:
    inputs, offsets = _tokens(arrays, path)
    if labels.ndim == 2:
      labels = labels[np.arange(labels.shape[1]) < np.diff(offsets)[:, None]]
  else:
    inputs = _values(inputs, path)
  count = len(inputs) if offsets is None else len(offsets) - 1
  if labels.dtype != np.int32 and count != len(labels):
    raise DataError(f'{path} has {count:,} inputs, but {len(labels):,} labels; give every input one label.')
  groups = _groups(arrays.get('groups'), count, path)
  return Part(inputs, labels, offsets, lengths, groups, tuple(vocabulary.tolist()))


def _arrays(path):
  arrays, memory = {}, os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  with (
    zips.naming_damage(f'{path} is not a readable .npz file of plain arrays', 'save it again'),
    zips.opened(path) as archive,
  ):
    infos = archive.infolist()
    raw_files.check_size(path, sum(info.file_size for info in infos), memory)
    for info in infos:
      name, where = info.filename.removesuffix('.npy'), f'{path}/{raw_files.shown(info.filename)}'
      if name in arrays:
        raise ValueError(f'it holds {raw_files.shown(name)} twice')
      with zips.member(archive, info, where, memory) as content:
        expected = raw_files.array_size(content)
        if content.tell() + expected != info.file_size:
          raise ValueError(f'{raw_files.shown(name)} does not have the {expected:,} bytes that it declares')
      with zips.member(archive, info, where, memory) as content:
        arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
  if missing := [name for name in KEYS[:2] if name not in arrays]:
    raise DataError(
      f'{path} has no {" and no ".join(missing)}; it has {raw_files.shown(", ".join(arrays)) or "nothing"}.'
    )
  if unknown := [name for name in arrays if name not in KEYS]:
    raise DataError(
      f'{path} has {raw_files.shown(", ".join(unknown))}, which is not read; leave it out, or call it one '
      f'of {", ".join(KEYS)}.'
    )
  if 'lengths' in arrays and 'offsets' in arrays:
    raise DataError(f'{path} has lengths and offsets; give lengths for a table of ids, offsets for one row.')
  return arrays


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


def _values(inputs, path):
  if inputs.ndim not in (2, 3) or 0 in inputs.shape:
    raise DataError(
      f'{path}: inputs are {_kind(inputs)}; make values [examples, positions] or [examples, positions, '
      'channels], or give lengths or offsets with token ids.'
    )
  if inputs.dtype.name not in DTYPES:
    raise DataError(
      f'{path}: inputs are {_kind(inputs)}; convert values to {", ".join(DTYPES[:-1])} or {DTYPES[-1]}, or '
      'give lengths with token ids.'
    )
  if inputs.dtype.kind == 'f':
    finite = np.isfinite(inputs).all(axis=tuple(range(1, inputs.ndim)))
    if not finite.all():
      raise DataError(
        f'{path}: input {np.argmin(finite)} holds a number that is not finite; correct or leave it out.'
      )
  return inputs[..., 0] if inputs.shape[2:] == (1,) else inputs


def _values_with_lengths(inputs, lengths, path):
  """Values [N, L, C] whose padding is 0, and their lengths."""
  if inputs.ndim not in (2, 3) or 0 in inputs.shape:
    _values(inputs, path)  # raises
  lengths = _lengths(lengths, *inputs.shape[:2], path)
  inputs = inputs.reshape(*inputs.shape[:2], -1)
  within = np.arange(inputs.shape[1]) < lengths[:, None]
  inputs = np.where(within[..., None], inputs, np.zeros((), inputs.dtype))
  return _values(inputs, path).reshape(inputs.shape), lengths


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


def _tokens(arrays, path):
  """All ids in a row, and where examples begin and end."""
  inputs = arrays['inputs']
  name, dimensions = ('lengths', 2) if 'lengths' in arrays else ('offsets', 1)
  bounds = arrays[name]
  if inputs.dtype.kind not in 'iu' or inputs.ndim != dimensions:
    form = '[examples, positions]' if dimensions == 2 else 'in one row'
    raise DataError(f'{path}: inputs are {_kind(inputs)}; with {name}, give whole numbers {form}.')
  if name == 'lengths':
    bounds = _lengths(bounds, *inputs.shape, path)
    inputs = inputs[np.arange(inputs.shape[1]) < bounds[:, None]]
    bounds = np.concatenate([[0], np.cumsum(bounds)])
  else:
    bounds = _row(bounds, name, path)
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != len(inputs) or (np.diff(bounds) < 1).any():
      raise DataError(
        f'{path}: offsets do not rise from 0 to {len(inputs):,}, the number of tokens; give where every '
        'example begins, and the end.'
      )
  if len(wrong := np.flatnonzero(inputs < 2)):
    example = np.searchsorted(bounds, wrong[0], 'right') - 1
    raise DataError(
      f'{path}: input {example} holds the id {inputs[wrong[0]]}, but 0 and 1 are <mask> and <pad>; number '
      f'your tokens from {len(tokenizers.SPECIAL_TOKENS)}.'
    )
  if len(inputs) and inputs.max() >= 2**31:
    raise DataError(f'{path}: the id {inputs.max()} is too large; number your tokens without gaps.')
  return inputs.astype(np.int32), bounds


def _load(paths, dataset):
  parts = {file: read(path) for file, path in paths.items()}
  train = parts['train']
  for file, part in parts.items():
    for what, of in (
      ('labels', lambda part: part.labels.dtype.name),
      ('inputs', lambda part: 'tokens' if part.offsets is not None else part.inputs.dtype.name),
      ('shape', lambda part: part.shape and list(part.shape)),
    ):
      if of(part) != of(train):
        raise DataError(
          f'{paths[file]} has {what} {of(part)}, but {paths["train"]} {of(train)}; make all files alike.'
        )
  _check_groups(parts, paths)
  classes = labels_lib.classes(parts, paths)
  by_class = classes and not train.per_position
  for sentence in _remarks(parts, paths):
    print(sentence)
  tokens, vocabulary = train.offsets is not None, ()
  if tokens:
    vocabulary = _vocabulary(parts, paths)
    dtype, shape = np.uint8 if len(vocabulary) <= 256 else np.int32, None
  else:
    dtype, shape = train.inputs.dtype.type, train.shape
  return builders.Source(
    description=f'{dataset}: a set of the user.',
    citation='',
    files={file: functools.partial(part.examples, dtype) for file, part in parts.items()},
    counts={file: len(part) for file, part in parts.items()},
    classes=classes,
    per_position=train.per_position,
    shape=shape,
    dtype=dtype,
    groups=None if train.groups is None else {file: part.together()[1] for file, part in parts.items()},
    statistics=not tokens,
    origin=f'own files {", ".join(path.name for path in paths.values())}',
    verified=False,
    extra={
      'verification': 'none',
      'distinct_labels': len(np.unique(np.concatenate([part.labels for part in parts.values()]))),
      **({'vocabulary': list(vocabulary)} if tokens else {}),
      **({'train_labels': train.labels[train.order].tolist()} if by_class and len(parts) == 1 else {}),
    },
  )


def _check_groups(parts, paths):
  """Refuses files with and without groups, and a group that is in two files."""
  given = [file for file, part in parts.items() if part.groups is not None]
  if given and (without := [paths[file] for file in parts if file not in given]):
    raise DataError(f'{without[0]} has no groups, but {paths[given[0]]} has; give all files groups, or none.')
  for first, second in itertools.combinations(given, 2):
    if len(shared := np.intersect1d(parts[first].groups, parts[second].groups)):
      raise DataError(
        f'{paths[second]} has examples of the group {shared[0]}, and so has {paths[first]}; put all examples '
        'of a group into one file.'
      )


def _remarks(parts, paths):
  """Yields sentences on splits whose score says little or is not defined, as far as the files tell."""
  held = {split: (str(paths[split]), parts[split].labels) for split in scorable.MEANING if split in parts}
  train, kind = parts['train'], 'holdout' if 'test' in parts else 'random'
  if 'validation' not in parts and train.groups is None:
    cut = splits.split_positions(kind, {'counts': {file: len(part) for file, part in parts.items()}})
    for split in scorable.MEANING.keys() - held.keys():
      where = f'the {split} split that splits={kind!r} cuts from {paths["train"]}'
      held[split] = where, train.labels[cut[split][1]]
  for file, part in parts.items():
    count = 0 if part.groups is None else len(np.unique(part.groups))
    if count and len(parts) == 1 and count < splits.LEAST_GROUPS:
      yield (
        f"{paths[file]} has {counted(count, 'group')}, and splits='grouped' needs {splits.LEAST_GROUPS} to "
        'give every split one; give more groups, or validation.npz and test.npz with groups of their own.'
      )
    if count == 1 and file == 'test':
      yield (
        f'{paths[file]} has one group, so its score has no interval and no comparison; give two groups or '
        'more.'
      )
  for split, (where, label_N) in sorted(held.items(), reverse=True):
    if len(label_N):
      why = scorable.why_no_r2_of(label_N) if label_N.dtype.kind == 'f' else ''
      yield from scorable.remark(split, where, len(label_N), why)


def _vocabulary(parts, paths):
  named, most = parts['train'].vocabulary, max(int(part.inputs.max()) for part in parts.values())
  if not named:
    return (*tokenizers.SPECIAL_TOKENS, *map(str, range(len(tokenizers.SPECIAL_TOKENS), most + 1)))
  if len(named) <= most:
    raise DataError(f'{paths["train"]} names {len(named)} ids, but the id {most} occurs; name all of them.')
  return named


def prepare_npz(data_dir, *, dataset: str, raw_dir):
  """Imports .npz files; this module's docstring describes their content.

  Args:
    data_dir: folder for prepared sets.
    dataset: name of the set.
    raw_dir: folder of train.npz and, optionally, validation.npz and test.npz.

  Returns:
    The folder of the set.

  Raises:
    MissingFile: there is no train.npz.
    DataError: there are other .npz files, which would be ignored.
    UserError: as for `read` and `builders.prepare_set`, or the files do not fit together.
  """
  raw = pathlib.Path(raw_dir).expanduser()
  paths = {file: raw / f'{file}.npz' for file in builders.FILE_ORDER}
  with touching(raw, 'read'):
    others = sorted({path.name for path in raw.glob('*.npz')} - {path.name for path in paths.values()})
    paths = {file: path for file, path in paths.items() if path.exists()}
  if 'train' not in paths:
    raise MissingFile(f'There is no {raw / "train.npz"}; save inputs and labels there with numpy.savez.')
  if others:
    names = ', '.join(f'{file}.npz' for file in builders.FILE_ORDER)
    raise DataError(f'{raw} holds {", ".join(others)}, which is not read; its files are called {names}.')
  checksums = {file: verification.digest(path, 'SHA256') for file, path in paths.items()}
  return builders.prepare_set(
    dataset, data_dir, {'from': 'npz', 'files': checksums}, lambda work: _load(paths, dataset)
  )
