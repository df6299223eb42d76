"""Batches: `indices(seed, step)` on one side, `gather(positions)` on the other, nothing stored between them.

Batch number s is a pure function of (seed, s): after a crash, or on another number of processes, the stream
goes on from any step without an iterator state. Row r of a global batch is the same example for any number of
processes; each process loads only the rows that its devices hold.
"""

import functools
import hashlib
import sys
import warnings

import grain
import numpy as np

from lra_spt.data import splits as splits_lib
from lra_spt.data import storage
from lra_spt.data.tasks import Task, get_task

SPLITS = ('train', 'validation', 'test')
# Decoded examples stay in memory when a split has at most this many bytes: later epochs then cost one copy.
CACHE_BYTES = 2 * 2**30


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
  """One split of one task, random access. Make it with `open_split`.

  Attributes:
    task, split: what this is.
    fingerprint: sha256 over all stored examples of the set in order (hex).
    split_fingerprint: sha256 over the positions of all three splits (hex), equal for the three splits of a
      task.
    indices: int32 [len], the example's position in the stored file, by position in this split.
    metadata: of the prepared set, see `storage.read_metadata`.
  """

  def __init__(
    self, task: Task, split: str, source, indices: np.ndarray, metadata: dict, split_fingerprint: str
  ):
    self.task = task
    self.split = split
    self.indices = indices.astype(np.int32)
    self.metadata = metadata
    self.fingerprint = metadata['fingerprint']
    self.split_fingerprint = split_fingerprint
    self._source = source
    self._row = (task.length,) if task.channels <= 1 else (task.length, task.channels)
    self._cache = None
    if len(indices) * int(np.prod(self._row)) <= CACHE_BYTES:
      # Pages of np.zeros are claimed only when written, so a few evaluated examples cost only their own
      # memory.
      self._cache = (
        np.zeros((len(indices), *self._row), np.uint8),
        np.zeros(len(indices), np.int32),
        np.zeros(len(indices), np.int32),
        np.zeros(len(indices), bool),
      )

  def __len__(self) -> int:
    return len(self.indices)

  def _decode(self, positions):
    """Reads from disk: inputs uint8 [B, ...], lengths int32 [B], labels int32 [B]."""
    records = self._source.__getitems__(self.indices[positions].tolist())
    labels = np.asarray([record['label'] for record in records], np.int32)
    if self.task.modality == 'tokens':
      inputs = np.full((len(records), *self._row), self.task.pad_id, np.uint8)
      lengths = np.asarray([len(record['inputs']) for record in records], np.int32)
      for row, record in zip(inputs, records, strict=True):
        row[: len(record['inputs'])] = record['inputs']
      return inputs, lengths, labels
    inputs = np.stack([record['inputs'] for record in records])
    if self.task.grayscale:
      inputs = luminance(inputs)
    return inputs, np.full(len(records), self.task.length, np.int32), labels

  def _load(self, positions):
    if self._cache is None:
      return self._decode(positions)
    inputs, lengths, labels, present = self._cache
    missing = np.unique(positions[~present[positions]])
    if len(missing):
      # Two threads may decode the same example; both write the same bytes, and the flag comes last.
      inputs[missing], lengths[missing], labels[missing] = self._decode(missing)
      present[missing] = True
    return inputs[positions], lengths[positions], labels[positions]

  def gather(self, positions) -> dict[str, np.ndarray]:
    """The examples at these positions of the split, as a batch.

    Args:
      positions: integers [B], 0 <= position < len(self), repeats allowed.

    Returns:
      inputs: uint8 [B, L] (token ids padded with `task.pad_id`, or bytes) or [B, L, C] for more than one
        channel;
      lengths: int32 [B]; label: int32 [B]; weight: float32 [B] of ones; index: int32 [B], the position in the
      stored file.

    Raises:
      IndexError: a position outside the split.
    """
    positions = np.asarray(positions, np.int64).reshape(-1)
    if len(positions) and not (0 <= positions.min() and positions.max() < len(self)):
      raise IndexError(
        f'Positions {positions.min()}..{positions.max()} were asked of the {self.split} split of '
        f'{self.task.name}, which has {len(self):,} examples.'
      )
    if not len(positions):
      return {
        'inputs': np.zeros((0, *self._row), np.uint8),
        'lengths': np.zeros(0, np.int32),
        'label': np.zeros(0, np.int32),
        'weight': np.zeros(0, np.float32),
        'index': np.zeros(0, np.int32),
      }
    inputs, lengths, labels = self._load(positions)
    return {
      'inputs': inputs,
      'lengths': lengths,
      'label': labels,
      'weight': np.ones(len(positions), np.float32),
      'index': self.indices[positions],
    }


def _check_fits(task: Task, metadata: dict, folder):
  shape = (
    None
    if task.modality == 'tokens'
    else (
      [task.length]
      if task.channels == 1 and not task.grayscale
      else [task.length, 3 if task.grayscale else task.channels]
    )
  )
  found = metadata.get('shape')
  if found != shape:
    raise ValueError(
      f'Task {task.name!r} reads examples of shape {shape}, but those in {folder} have shape {found}; '
      'use another data_dir or correct the task.'
    )
  if metadata.get('longest', 0) > task.length:
    raise ValueError(
      f'The data set in {folder} has examples of {metadata["longest"]} positions, but task '
      f'{task.name!r} ends at {task.length}; raise the length of the task.'
    )
  if len(metadata.get('vocabulary', ())) > task.vocabulary:
    raise ValueError(
      f'The data set in {folder} has {len(metadata["vocabulary"])} token ids, but task {task.name!r} '
      f'has {task.vocabulary}; correct the vocabulary of the task.'
    )
  if metadata.get('classes', task.classes) != task.classes:
    raise ValueError(
      f'The data set in {folder} has {metadata["classes"]} classes, but task {task.name!r} has '
      f'{task.classes}; correct the task.'
    )


def open_split(task: Task | str, split: str, data_dir) -> Examples:
  """Opens one split of a prepared set.

  Args:
    task: a task or its name.
    split: 'train', 'validation' or 'test'.
    data_dir: folder given to `lra-spt prepare`.

  Raises:
    FileNotFoundError: the set is not there; says which command makes it.
    ValueError: unknown task or split, a damaged set, or one that the task does not fit.
  """
  task = get_task(task) if isinstance(task, str) else task
  if split not in SPLITS:
    raise ValueError(f'There is no split {split!r}; choose one of {", ".join(SPLITS)}.')
  folder = storage.dataset_folder(data_dir, task.dataset)
  command = task.prepare_command or f'lra-spt prepare {task.dataset} --data_dir {data_dir}'
  metadata = storage.read_metadata(folder, f'make it with `{command}`')
  _check_fits(task, metadata, folder)
  try:
    positions = splits_lib.split_positions(task.splits, metadata['counts'])
  except KeyError as error:
    raise ValueError(
      f'The data set in {folder} has no file {error}, which task {task.name!r} needs; '
      f'remove {folder} and make it with `{command}`.'
    ) from None
  file, indices = positions[split]
  if not len(indices):
    raise ValueError(f'The {split} split of task {task.name!r} in {folder} is empty; prepare more examples.')
  split_fingerprint = _hex(
    *(
      part
      for name in SPLITS
      for part in (f'{name}:{positions[name][0]}:'.encode(), positions[name][1].astype('<i8').tobytes())
    )
  )
  return Examples(task, split, _open_source(str(folder), file), indices, metadata, split_fingerprint)


def _open_source(folder: str, file: str):
  with warnings.catch_warnings():
    warnings.simplefilter(
      'ignore', DeprecationWarning
    )  # raised inside the imported packages, not by this project
    import tensorflow_datasets as tfds

    return tfds.builder_from_directory(folder).as_data_source(split=file)


@functools.lru_cache(maxsize=8)
def _order(n: int, seed: int):
  if n < 1:
    raise ValueError(f'A stream over {n} examples was asked for; it needs at least one.')
  if not 0 <= seed < 2**32:
    raise ValueError(f'The data seed is {seed}; it must lie in [0, 2**32).')
  return grain.MapDataset.range(n).seed(seed).shuffle().repeat()


def _stream(n, seed, step, batch_size, rows):
  order, first = _order(n, seed), step * batch_size
  return np.asarray([order[first + row] for row in rows], np.int32)


def train_indices(n: int, seed: int, step: int, batch_size: int) -> np.ndarray:
  """Positions of training batch number `step`: a pure function of the arguments.

  Consecutive batches run through one endless stream that shuffles anew every n examples (globally, each epoch
  being a permutation); a batch may hold the end of one epoch and the start of the next.

  Returns:
    int32 [batch_size].
  """
  return _stream(n, seed, step, batch_size, range(batch_size))


def _rows(rows, batch_size):
  rows = np.arange(batch_size) if rows is None else np.asarray(rows, np.int64).reshape(-1)
  if len(rows) and not (0 <= rows.min() and rows.max() < batch_size):
    raise ValueError(
      f'Rows {rows.min()}..{rows.max()} of a batch of {batch_size} were asked for; '
      f'rows run from 0 to {batch_size - 1}.'
    )
  return rows.tolist()


def _iterate(steps: grain.MapDataset, load, threads):
  """Runs `load` over the steps in `threads` threads, a few batches ahead, in order."""
  options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4 * threads)
  return iter(steps.map(load).to_iter_dataset(options))


def train_batches(
  examples: Examples, *, batch_size: int, seed: int, start_step: int = 0, rows=None, threads: int = 4
):
  """Endless training batches from `start_step` on.

  Args:
    examples: from `open_split`.
    batch_size: of the global batch.
    seed: of the order; 0 <= seed < 2**32.
    start_step: number of the first batch.
    rows: which rows of each global batch this process needs, in this order; None for all.
    threads: that read ahead; 0 reads in the calling thread.

  Returns:
    an iterator of batches (see `Examples.gather`) with len(rows) rows.
  """
  rows, n = _rows(rows, batch_size), len(examples)
  _order(n, seed)

  def load(step):
    return examples.gather(_stream(n, seed, int(step), batch_size, rows))

  return _iterate(grain.MapDataset.range(start_step, sys.maxsize // 2), load, threads)


def evaluation_batches(
  examples: Examples, *, batch_size: int, rows=None, drop_last: bool = False, threads: int = 4
):
  """All examples once, in order; the last batch is filled up with rows of weight 0 (copies of the last
  example).

  Args:
    examples, batch_size, rows, threads: as for `train_batches`.
    drop_last: leave the incomplete last batch out (what the paper's code did).

  Returns:
    an iterator of batches, all of the same shapes.
  """
  rows, n = np.asarray(_rows(rows, batch_size), np.int64), len(examples)
  count = n // batch_size if drop_last else -(-n // batch_size)

  def load(step):
    positions = int(step) * batch_size + rows
    batch = examples.gather(np.minimum(positions, n - 1))
    batch['weight'] = (positions < n).astype(np.float32)
    return batch

  return _iterate(grain.MapDataset.range(count), load, threads)
