"""The examples of a prepared set: one split of one task, with random access."""

import contextlib
import functools
import hashlib
import sys
import time
import warnings

import numpy as np
import tqdm
from google.protobuf import message

from lra_spt.data import fitting, prepared
from lra_spt.data import splits as splits_lib
from lra_spt.data.parts import UNLABELLED
from lra_spt.data.tasks import Task, Tokens, get_task, preparation
from lra_spt.errors import DataError, FileAccessError, one_line, too_many_open_files, touching

SPLITS = splits_lib.SPLITS
# A split of at most this many bytes stays in memory after decoding, so that later epochs cost one copy.
CACHE_BYTES = 2 * 2**30
CHUNK = 1024  # examples that `position_statistics` reads at a time
PAUSES = (1.0, 4.0, 10.0)  # seconds between attempts to read a shard; after the last one it is an error
_DECODED = ('inputs', 'lengths', 'label')


def _hex(*parts: bytes) -> str:
  digest = hashlib.sha256()
  for part in parts:
    digest.update(part)
  return digest.hexdigest()


def luminance(rgb: np.ndarray) -> np.ndarray:
  """ITU-R 601-2 luma in the integer arithmetic of Pillow's `convert('L')`: uint8 [..., 3] -> uint8 [...]."""
  wide = rgb.astype(np.uint32)
  return ((wide[..., 0] * 19595 + wide[..., 1] * 38470 + wide[..., 2] * 7471 + 0x8000) >> 16).astype(np.uint8)


class Examples:
  """One split of one task, with random access. `open_split` makes it.

  Attributes:
    task: the task of the examples.
    split: 'train', 'validation' or 'test'.
    file: the stored file that the split reads.
    fingerprint: SHA-256 over all stored examples of the set in order (hex).
    split_fingerprint: SHA-256 over the positions of all three splits (hex); equal for all splits of a task.
    indices: int32 [len], positions in the stored file by position in this split.
    metadata: of the prepared set, see `prepared.read_metadata`.
  """

  def __init__(
    self,
    task: Task,
    split: str,
    file: str,
    source,
    indices: np.ndarray,
    metadata: dict,
    split_fingerprint: str,
  ):
    self.task = task
    self.split = split
    self.file = file
    self.indices = indices.astype(np.int32)
    self.metadata = metadata
    self.fingerprint = metadata['fingerprint']
    self.split_fingerprint = split_fingerprint
    self._source = source
    self._cache = self._present = None
    stored = task.batch(len(indices))
    if stored['inputs'].nbytes + stored['label'].nbytes <= CACHE_BYTES:
      # np.zeros takes memory only for pages that are written, so a few examples cost only their share.
      self._cache = {name: np.zeros(stored[name].shape, stored[name].dtype) for name in _DECODED}
      self._present = np.zeros(len(indices), bool)

  def __len__(self) -> int:
    return len(self.indices)

  def _decode(self, positions):
    """Reads inputs, lengths and labels of these positions from disk."""
    task = self.task
    records = self._source.read(self.indices[positions])
    shapes = task.batch(len(records))
    decoded = {name: np.zeros(shapes[name].shape, shapes[name].dtype) for name in _DECODED}
    if task.label_width:
      np.stack([record['label'] for record in records], out=decoded['label'])
    elif task.per_position:
      decoded['label'][:] = UNLABELLED
      for label_L, record in zip(decoded['label'], records, strict=True):
        label_L[: len(record['label'])] = record['label']
    else:
      decoded['label'][:] = [record['label'] for record in records]
    inputs, lengths = decoded['inputs'], decoded['lengths']
    if isinstance(task.inputs, Tokens):
      inputs[:] = task.inputs.pad_id
      rows = inputs.reshape(len(records), task.documents, task.length)
      ends = lengths.reshape(len(records), task.documents)
      for i, record in enumerate(records):
        ids = record['inputs']
        documents = np.split(ids, [record['second_begins']]) if task.documents == 2 else [ids]
        for k, document in enumerate(documents):
          rows[i, k, : len(document)] = document
          ends[i, k] = len(document)
      return decoded
    if task.inputs.padded:
      for i, record in enumerate(records):
        values, lengths[i] = record['inputs'], len(record['inputs'])
        inputs[i, : len(values)] = values.reshape(-1, *task.row[1:])
      return decoded
    if fitting.grayscale(task):
      inputs[:] = luminance(np.stack([record['inputs'] for record in records]))
    else:
      np.stack([record['inputs'] for record in records], out=inputs)
    lengths[:] = task.length
    return decoded

  def _load(self, positions):
    cache = self._cache
    if cache is None:
      return self._decode(positions)
    missing = np.unique(positions[~self._present[positions]])
    if len(missing):
      # Two threads may decode the same example; both write the same bytes, and the flag comes last.
      for name, values in self._decode(missing).items():
        cache[name][missing] = values
      self._present[missing] = True
    return {name: values[positions] for name, values in cache.items()}

  def groups(self, index) -> np.ndarray | None:
    """The group of each example, such as the patient of a window.

    Args:
      index: integers [N], as in batches.

    Returns:
      int32 [N], or None for a set without groups.
    """
    sizes = (self.metadata.get('groups') or {}).get(self.file)
    if not sizes:
      return None
    return np.searchsorted(np.cumsum(sizes), index, side='right').astype(np.int32)

  def part(self, fraction: float) -> 'Examples':
    """A fraction of the split, at least one example; smaller parts are subsets of larger ones.

    As in the published code (train.py:736-764) it is the first int(fraction * len) examples of one
    permutation, which does not depend on the seed.

    Args:
      fraction: above 0; 1 returns the split itself.
    """
    if fraction == 1:
      return self
    order = np.random.RandomState(42).permutation(len(self))
    return self._some(np.sort(order[: max(1, int(fraction * len(self)))]))

  @property
  def labelled(self) -> 'Examples':
    """The split without examples that have no label; itself if all have one."""
    known = self.metadata.get('labelled')
    if self.file != 'train' or not known or (has := np.isin(self.indices, known)).all():
      return self
    return self._some(np.flatnonzero(has))

  def _some(self, chosen) -> 'Examples':
    """The examples at these positions of the split."""
    return Examples(
      self.task,
      self.split,
      self.file,
      self._source,
      self.indices[chosen],
      self.metadata,
      self.split_fingerprint,
    )

  def forget(self) -> None:
    """Frees the memory of decoded examples; from now on they are read from disk."""
    self._cache = None

  def gather(self, positions) -> dict[str, np.ndarray]:
    """The examples at these positions of the split, as a batch.

    Args:
      positions: integers [B], 0 <= position < len(self), repeats allowed.

    Returns:
      A dict with the shapes and dtypes of `task.batch(B)`: inputs [B, *task.row] in the storage dtype (token
      ids padded with `pad_id`); lengths int32 [B], or [B, 2] for pairs; label int32 or float32 [B], bool or
      float32 [B, K] for several labels or dimensions, or int32 [B, L] with -1 for positions that do not
      count; weight float32 [B], all ones; index int32 [B], the position in the stored file. Examples without
      a label have -1 or NaN.

    Raises:
      IndexError: a position lies outside the split.
    """
    positions = np.asarray(positions, np.int64).reshape(-1)
    if len(positions) and not (0 <= positions.min() and positions.max() < len(self)):
      raise IndexError(
        f'Positions {positions.min()}..{positions.max()} were asked of the {self.split} split of '
        f'{self.task.name}, which has {len(self):,} examples.'
      )
    if not len(positions):
      return {name: np.zeros(part.shape, part.dtype) for name, part in self.task.batch(0).items()}
    return self._load(positions) | {
      'weight': np.ones(len(positions), np.float32),
      'index': self.indices[positions],
    }


def position_statistics(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
  """Mean and standard deviation (with n - 1) of the stored values at every position and channel of a split.

  Returns:
    float64 [L, C] each.

  Raises:
    DataError: the split has only one example.
  """
  if len(examples) < 2:
    raise DataError(
      f'The {examples.split} split has only one example, too few for a standard deviation; prepare more.'
    )
  shape = (examples.task.length, examples.task.channels)
  total, squares = np.zeros(shape), np.zeros(shape)
  starts = range(0, len(examples), CHUNK)
  for start in tqdm.tqdm(starts, desc='statistics of every position', unit=' chunks', disable=None):
    positions = np.arange(start, min(start + CHUNK, len(examples)))
    values = examples.gather(positions)['inputs'].reshape(-1, *shape).astype(np.float64)
    total += values.sum(0)
    squares += (values**2).sum(0)
  mean = total / len(examples)
  variance = (squares - len(examples) * mean**2) / (len(examples) - 1)
  return mean, np.sqrt(np.maximum(variance, 0))


def open_split(task: Task | str, split: str, data_dir) -> Examples:
  """Opens one split of a prepared set.

  Args:
    task: a task or its name.
    split: 'train', 'validation' or 'test', or a longer test split of the task.
    data_dir: folder given to `lra-spt prepare`.

  Raises:
    MissingFile: the set is not there; the message names the command that makes it.
    ConfigError: the task is unknown.
    DataError: the split is unknown or empty, the set is damaged or does not fit the task, or the splits of
      the task do not read all of its files.
  """
  task = get_task(task, data_dir) if isinstance(task, str) else task
  longer = dict(task.longer)
  if split not in (*SPLITS, *longer):
    raise DataError(f'There is no split {split!r}; choose one of {", ".join((*SPLITS, *longer))}.')
  folder = prepared.dataset_folder(data_dir, task.dataset)
  command = preparation(task, data_dir)
  metadata = prepared.read_metadata(folder, f'make it with `{command}`')
  fitting.check_fits(task, metadata, folder)
  try:
    positions = splits_lib.split_positions(task.splits, metadata)
  except KeyError as error:
    raise DataError(
      f'The data set in {folder} has no file {error}, which task {task.name!r} needs; '
      f'remove {folder} and make it with `{command}`.'
    ) from None
  fitting.check_all_read(task, {file for file, _ in positions.values()}, metadata['counts'], folder)
  file, indices = (
    (split, np.arange(metadata['counts'].get(split, 0))) if split in longer else positions[split]
  )
  if not len(indices):
    other = 'holdout' if metadata['counts'].get('test') else 'random'
    remedy = f'set splits={other!r} in the task, or ' if task.splits == 'files' and split != 'train' else ''
    more = 'more examples'
    if task.splits == 'grouped':
      more = f'{splits_lib.LEAST_GROUPS} groups or more, instead of {len(metadata["groups"][file])}'
    raise DataError(f'The {split} split of task {task.name!r} in {folder} is empty; {remedy}prepare {more}.')
  split_fingerprint = _hex(
    *(
      part
      for name in SPLITS
      for part in (f'{name}:{positions[name][0]}:'.encode(), positions[name][1].astype('<i8').tobytes())
    )
  )
  source = open_source(str(folder), file)
  return Examples(task.for_split(split), split, file, source, indices, metadata, split_fingerprint)


def open_splits(task: Task | str, data_dir) -> dict[str, Examples]:
  """Opens all splits, {'train' | 'validation' | 'test': Examples}, and longer test splits of the task; raises
  the errors of `open_split`."""
  task = get_task(task, data_dir) if isinstance(task, str) else task
  return {split: open_split(task, split, data_dir) for split in (*SPLITS, *dict(task.longer))}


class _Stored:
  """The examples of one file, by position: {'inputs', 'label'} and, for pairs, 'second_begins'. Labels that
  are arrays have the dtype of the feature.

  TFDS's own data source returns the same, but several times slower: it starts threads for each batch and
  walks its description of features for each example. This class calls only its parser and its reader.
  """

  def __init__(self, paths, open_reader, sizes, parse, inputs, label_dtype):
    self._paths, self._open, self._parse = paths, open_reader, parse
    for path in paths:  # the reader would take a file without permission for an empty one
      with touching(path, 'read'), contextlib.suppress(FileNotFoundError), open(path, 'rb'):
        pass
    self._readers = [open_reader(path) for path in paths]
    if (counts := [reader.num_records() for reader in self._readers]) != sizes:
      raise ValueError(f'the files hold {counts} examples, not {sizes}')
    self._begins = np.cumsum([0, *sizes])
    self._shape, self._dtype = [-1 if size is None else size for size in inputs.shape], inputs.np_dtype
    self._label_dtype = label_dtype

  def __len__(self) -> int:
    return int(self._begins[-1])

  def __getitem__(self, index: int) -> dict:
    return self.read(np.asarray([index]))[0]

  def read(self, indices: np.ndarray) -> list[dict]:
    """The examples at these places of the file, in this order; raises a DataError if it is damaged."""
    shards = np.searchsorted(self._begins, indices, side='right') - 1
    records = np.empty(len(indices), object)
    for shard in np.unique(shards).tolist():
      here = shards == shard
      try:
        stored = self._records(shard, (indices[here] - self._begins[shard]).tolist())
        records[here] = [self._example(self._parse(record).features.feature) for record in stored]
      except FileAccessError:
        raise
      # A wrong checksum (the reader does not name the file) or other features.
      except (RuntimeError, IndexError, LookupError, ValueError, message.Error) as error:
        raise DataError(
          f'{self._paths[shard]} is damaged ({one_line(error)}); remove its folder and '
          'prepare the data set again.'
        ) from error
    return records.tolist()

  def _records(self, shard, places):
    """The records of a shard. It tries again, because network storage may refuse for a moment."""
    path = self._paths[shard]
    for pause in (*PAUSES, None):
      try:
        with touching(path, 'read'):
          return self._readers[shard].read(places)
      except FileAccessError as error:
        if pause is None:
          raise
        print(f'{error} Reading it again in {pause:g} s.', file=sys.stderr)
      time.sleep(pause)
      with contextlib.suppress(Exception):  # a reader that failed once may fail for ever
        self._readers[shard] = self._open(path)

  def _example(self, fields):
    stored = np.frombuffer(fields['inputs'].bytes_list.value[0], self._dtype)
    example = {'inputs': stored.reshape(self._shape)}
    if array := fields['label'].bytes_list.value:
      example['label'] = np.frombuffer(array[0], self._label_dtype)
    for name in fields.keys() - example.keys():
      (example[name],) = fields[name].int64_list.value or fields[name].float_list.value
    return example


def open_source(folder: str, file: str) -> _Stored:
  """The stored examples of one file of a prepared set.

  Raises:
    DataError: dataset_info.json or features.json is damaged, or does not fit the file.
    FileAccessError: a file of examples cannot be accessed.
  """
  with warnings.catch_warnings():
    # The imported packages raise it.
    warnings.simplefilter('ignore', DeprecationWarning)
    import tensorflow_datasets as tfds
    from array_record.python.array_record_module import ArrayRecordReader
    from tensorflow_datasets.proto import tf_example_pb2

    # The options of Grain and TFDS: without reading ahead, because examples are read in random order.
    options = {'options': 'readahead_buffer_size:0', 'file_reader_buffer_size': 2**15}
    open_reader = functools.partial(ArrayRecordReader, **options)
    parse = tf_example_pb2.Example.FromString
    try:
      info = tfds.builder_from_directory(folder).info
      split, inputs = info.splits[file], info.features['inputs']
      lengths, paths = split.shard_lengths, [str(path) for path in split.filepaths]
      return _Stored(paths, open_reader, lengths, parse, inputs, info.features['label'].np_dtype)
    except FileAccessError:
      raise
    except Exception as error:  # TFDS and protobuf each raise their own kinds
      if limited := too_many_open_files(error):
        raise limited from error
      raise DataError(
        f'{prepared.INFO} or {prepared.FEATURES} in {folder} is damaged ({one_line(error)}); remove the '
        'folder and prepare the data set again.'
      ) from error
