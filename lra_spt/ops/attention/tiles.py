"""Tiles of queries and keys: their sizes, and which of them a computation visits for a pattern.

Letters are those of blockwise.py: T and S are the queries and keys of a tile. Rows (one head of one sequence)
may show different ranges of keys. `shown` holds three ranges (first, end) of keys: those that this row shows,
those that any of the rows that advance with it shows, and those that all of them show.
"""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_spt.ops.attention.patterns import UNBOUNDED, BlockTable, Neighbours, Pattern, Window

_LANES = 16  # tiles are multiples of this where possible: whole vector registers
_SMALL = 128  # smaller tiles cost more in overhead than they save in hidden pairs


@dataclasses.dataclass(frozen=True)
class Tiles:
  """The largest tile, and the order of rows."""

  queries: int
  keys: int
  together: bool  # all rows advance together; otherwise one after the other


@dataclasses.dataclass(frozen=True)
class Grid:
  """Both lengths cut into equal tiles, the last of which reach beyond the arrays."""

  pattern: Pattern
  length: int
  keys: int
  tile_q: int
  tile_k: int

  @classmethod
  def of(cls, pattern: Pattern, length: int, keys: int, tiles: Tiles) -> 'Grid':
    return cls(pattern, length, keys, _size(pattern, length, tiles.queries), _size(pattern, keys, tiles.keys))

  @property
  def tiles_q(self):
    return -(-self.length // self.tile_q)

  @property
  def tiles_k(self):
    return -(-self.keys // self.tile_k)

  @property
  def looks_up(self):
    """True if one tile may hold several blocks of a table, so that its mask needs the table."""
    table = isinstance(self.pattern, BlockTable)
    return table and (self.tiles_k == 1 or any(self.pattern.block % x for x in (self.tile_q, self.tile_k)))


def _size(pattern, length, largest):
  """The number of positions per tile. Tiles end where blocks end, if this shrinks them by less than half;
  otherwise they cut `length` into as few equal parts as `largest` allows."""
  match pattern:
    case Window(left, right):
      largest = min(largest, max(_SMALL, left + right + 1))
    case Neighbours(block=block) | BlockTable(block=block) if block < length:
      # A tile of several blocks of a table visits every key that any of them sees: only for tiny blocks.
      small = 1 if isinstance(pattern, BlockTable) and block >= _LANES else _SMALL
      largest = min(largest, max(block, small))
      sizes = range(largest, largest // 2, -1)
      fitting = [size for size in sizes if block % size == 0 or size % block == 0]
      if fitting:
        return next((size for size in fitting if size % _LANES == 0), fitting[0])
  count = -(-length // largest)
  return -(-length // (_LANES * count)) * _LANES


def over_key_tiles(step, carry, grid, q_offset, index, shown):
  """Folds step(place, carry, masked) over the key tiles that query tile `index` sees; `masked` is True where
  it sees only a part of the tile."""
  if isinstance(grid.pattern, BlockTable):
    place_of, segments = _table_segments(grid, index, shown)
  else:
    place_of, segments = _interval_segments(grid, q_offset, index, shown)
  known = [all(isinstance(edge, int) for edge in segment[:2]) for segment in segments]
  if grid.tiles_k == 1:
    # A loop over one tile would not depend on its index: XLA would move the body out of the loop, and run it
    # even where the loop is empty.
    clear = any(sure and segment == (0, 1, False) for sure, segment in zip(known, segments, strict=True))
    return step(0, carry, masked=not clear)
  for sure, (begin, end, masked) in zip(known, segments, strict=True):
    if not sure or begin < end:
      carry = lax.fori_loop(begin, end, functools.partial(_step_at, step, place_of, masked), carry)
  return carry


def _step_at(step, place_of, masked, i, carry):
  return step(place_of(i), carry, masked=masked)


def _interval_segments(grid, q_offset, index, shown):
  """Ranges (begin, end, masked) of consecutive key tiles."""
  _, (earliest, longest), (latest, shortest) = shown
  first = q_offset + index * grid.tile_q
  any_first, any_end = grid.pattern.seen_by_any(first, first + grid.tile_q)
  all_first, all_end = grid.pattern.seen_by_all(first, first + grid.tile_q)
  start = _between(any_first, earliest, grid.keys) // grid.tile_k
  stop = -(-_between(any_end, 0, longest) // grid.tile_k)
  clear = _between(-(-_between(all_first, latest, grid.keys) // grid.tile_k), start, stop)
  unclear = _between(_between(all_end, 0, shortest) // grid.tile_k, clear, stop)
  return lambda place: place, ((start, clear, True), (clear, unclear, False), (unclear, stop, True))


def _table_segments(grid, index, shown):
  """Ranges (begin, end, masked) in the list of all visits: tiles that the table shows whole, then those that
  it shows in part."""
  _, (earliest, longest), _ = shown
  all_shown = isinstance(earliest, int) and isinstance(longest, int)  # no row hides keys
  visits = _visits(grid)
  edges = []
  for cut in (0, 1):
    of_segment = (2 * index + cut) * grid.tiles_k
    edges += [of_segment + earliest // grid.tile_k, of_segment - (-longest // grid.tile_k)]
  begin, end, begin_cut, end_cut = jnp.searchsorted(visits, jnp.stack(edges), method='compare_all')
  segments = ((begin, end, not all_shown), (begin_cut, end_cut, True))
  return lambda i: jnp.asarray(visits)[i] % grid.tiles_k, segments


def _visits(grid):
  """The visited tiles as ascending int32 numbers: (2 * query tile + cut) * tiles_k + key tile, where `cut` is
  1 if the table shows the tile only in part.

  There is one list for all query tiles, so its length is the number of visited tiles, even if a few queries
  see every key.
  """
  block, table, causal = grid.pattern.block, grid.pattern.table, grid.pattern.causal
  if 2 * (grid.tiles_q + 1) * grid.tiles_k > UNBOUNDED:
    raise ValueError(
      f'a BlockTable with blocks of {block} has {grid.tiles_q:,} x {grid.tiles_k:,} tiles here, too many to '
      'number; use larger blocks'
    )
  k0 = np.arange(grid.tiles_k) * grid.tile_k
  k1 = k0 + grid.tile_k
  blocks = -(-grid.keys // block)
  visits = []
  for index in range(grid.tiles_q):
    q0 = index * grid.tile_q
    q1 = min(q0 + grid.tile_q, grid.length)
    rows = range(q0 // block, -(-q1 // block))
    hits = np.zeros(blocks + 1, np.int64)  # the number of these rows that see each key block, then cumulated
    for row in table[rows.start : rows.stop]:
      hits[[1 + k for k in row if k < blocks]] += 1
    hits = np.cumsum(hits)
    b0, b1 = k0 // block, np.minimum(-(-k1 // block), blocks)
    seen = hits[b1] - hits[b0]
    visited = (seen > 0) & (not causal or k0 < q1)
    whole = (seen == len(rows) * (b1 - b0)) & (k1 <= grid.keys) & (not causal or k1 <= q0 + 1)
    for cut in (0, 1):
      visits.append((2 * index + cut) * grid.tiles_k + np.flatnonzero(visited & (whole != cut)))
  visits.append([2 * grid.tiles_q * grid.tiles_k])  # in no range; the list must not be empty
  return np.concatenate(visits).astype(np.int32)


def _between(x, low, high):
  """max(low, min(x, high)), a Python int if all three are."""
  if all(isinstance(value, int) for value in (x, low, high)):
    return max(low, min(x, high))
  return jnp.maximum(jnp.minimum(jnp.asarray(x, jnp.int32), high), low)


def visible(grid, q_offset, index, place, shown):
  """The mask [S, T] of one tile."""
  shape = (grid.tile_k, grid.tile_q)
  q_T = q_offset + index * grid.tile_q + lax.iota(jnp.int32, grid.tile_q)
  k_ST = place * grid.tile_k + lax.broadcasted_iota(jnp.int32, shape, 0)
  first, end = _edges(grid.pattern, q_T)
  (row_first, row_end), _, _ = shown
  # Divisions by the size of a block are done once per query, not once per pair.
  mask_ST = k_ST < _along_keys(jnp.minimum(end, row_end), shape)
  if not (isinstance(first, int) and isinstance(row_first, int)):
    mask_ST &= k_ST >= _along_keys(jnp.maximum(first, row_first), shape)
  if grid.looks_up:
    mask_ST &= grid.pattern.visible(_along_keys(q_T, shape), k_ST)
  return mask_ST


def _edges(pattern, q_T):
  """The interval (first, end) of the keys that each query sees; for a table, of those that its blocks may
  show."""
  if isinstance(pattern, BlockTable):
    return -UNBOUNDED, q_T + 1 if pattern.causal else UNBOUNDED
  return pattern.first(q_T), pattern.end(q_T)


def _along_keys(x, shape):
  """Repeats [T] or a scalar for every key of a tile: [S, T]."""
  return jnp.broadcast_to(x[None] if jnp.ndim(x) else x, shape)
