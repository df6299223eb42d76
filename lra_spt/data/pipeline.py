"""Batches: `indices(seed, step)` on one side, `gather(positions)` on the other, and no state between them.

Batch number s is a pure function of (seed, s): after a crash, or with another number of processes, the stream
continues from any step without an iterator state. Row r of a global batch is the same example for any number
of processes; each process loads only the rows that its devices hold.
"""

import functools
import sys

import numpy as np

from lra_spt.data.examples import Examples

# Grain is imported late, because it imports jax if that is installed, and a reader of our sets need not wait.


@functools.lru_cache(maxsize=8)
def _order(n: int, seed: int):
  if n < 1:
    raise ValueError(f'A stream over {n} examples was asked for; it needs at least one.')
  if not 0 <= seed < 2**32:
    raise ValueError(f'The data seed is {seed}; it must lie in [0, 2**32).')
  import grain

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


def _iterate(steps: range, load, threads):
  """Runs `load` over the steps in `threads` threads, a few batches ahead, in order."""
  import grain

  options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4 * threads)
  dataset = grain.MapDataset.range(steps.start, steps.stop)
  return iter(dataset.map(load).to_iter_dataset(options))


def train_batches(
  examples: Examples, *, batch_size: int, seed: int, start_step: int = 0, rows=None, threads: int = 4
):
  """Endless training batches from `start_step` on.

  Args:
    examples: from `open_split`.
    batch_size: rows of the global batch.
    seed: seed of the order; 0 <= seed < 2**32.
    start_step: number of the first batch.
    rows: rows of each global batch that this process needs, in this order; None for all.
    threads: number of threads that read ahead; 0 reads in the calling thread.

  Returns:
    An iterator of batches (see `Examples.gather`) with len(rows) rows.
  """
  rows, n = _rows(rows, batch_size), len(examples)
  _order(n, seed)

  def load(step):
    return examples.gather(_stream(n, seed, int(step), batch_size, rows))

  return _iterate(range(start_step, sys.maxsize // 2), load, threads)


def evaluation_batches(
  examples: Examples, *, batch_size: int, rows=None, drop_last: bool = False, threads: int = 4
):
  """All examples once, in order. Rows of weight 0, copies of the last example, fill up the last batch.

  Args:
    examples, batch_size, rows, threads: see `train_batches`.
    drop_last: leave the incomplete last batch out, as the paper's code does.

  Returns:
    An iterator of batches, all of the same shapes.
  """
  rows, n = np.asarray(_rows(rows, batch_size), np.int64), len(examples)
  count = n // batch_size if drop_last else -(-n // batch_size)

  def load(step):
    positions = int(step) * batch_size + rows
    batch = examples.gather(np.minimum(positions, n - 1))
    batch['weight'] = (positions < n).astype(np.float32)
    return batch

  return _iterate(range(count), load, threads)
