"""Patterns of attention: they define which keys a query sees.

Patterns are frozen and hashable and hold only Python numbers. Queries and keys are at integer positions that
count from the first key. In all patterns of the paper, the keys that a query sees form one interval whose
ends never move back as the query moves on. Two functions of the query and their two inverses define such a
pattern, and an implementation derives from them what it needs for a tile. `BlockTable` is the other kind: any
layout of blocks.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_spt.errors import ConfigError

# A position or a number of keys: Python ints where known, int32 arrays (of NumPy or jax) otherwise.
Position = int | np.ndarray | jax.Array

UNBOUNDED = 2**30  # the end of an interval without a bound; sums with positions still fit int32
WIDEST = 2**29  # most tokens that a bounded interval may span, for the same reason


class Interval:
  """A pattern whose query at q sees the keys first(q) <= k < end(q), both non-decreasing in q. The interval
  may extend beyond the existing keys, below 0 and above."""

  def first(self, q: Position) -> Position:
    """The first key that the query at q sees."""
    raise NotImplementedError

  def end(self, q: Position) -> Position:
    """One past the last key that the query at q sees."""
    raise NotImplementedError

  def first_query(self, k: Position) -> Position:
    """The first query that sees the key at k."""
    raise NotImplementedError

  def end_query(self, k: Position) -> Position:
    """One past the last query that sees the key at k."""
    raise NotImplementedError

  def seen_by_any(self, q0: Position, q1: Position) -> tuple[Position, Position]:
    """The keys [first, end) seen by at least one of the queries q0 <= q < q1."""
    return self.first(q0), self.end(q1 - 1)

  def seen_by_all(self, q0: Position, q1: Position) -> tuple[Position, Position]:
    """The keys [first, end) seen by every query of q0 <= q < q1: no mask is needed inside."""
    return self.first(q1 - 1), self.end(q0)

  def seeing_any(self, k0: Position, k1: Position) -> tuple[Position, Position]:
    """The queries [first, end) that see at least one of the keys k0 <= k < k1."""
    return self.first_query(k0), self.end_query(k1 - 1)

  def seeing_all(self, k0: Position, k1: Position) -> tuple[Position, Position]:
    """The queries [first, end) that see every key of k0 <= k < k1."""
    return self.first_query(k1 - 1), self.end_query(k0)

  def visible(self, q: Position, k: Position):
    """Boolean mask for arrays of positions of one shape: True where query q sees key k."""
    return (k >= self.first(q)) & (k < self.end(q))


@dataclasses.dataclass(frozen=True)
class Full(Interval):
  """Every query sees every key."""

  def first(self, q):
    return -UNBOUNDED

  def end(self, q):
    return UNBOUNDED

  def first_query(self, k):
    return -UNBOUNDED

  def end_query(self, k):
    return UNBOUNDED


@dataclasses.dataclass(frozen=True)
class Causal(Interval):
  """A query sees the keys at its own position and before."""

  def first(self, q):
    return -UNBOUNDED

  def end(self, q):
    return q + 1

  def first_query(self, k):
    return k

  def end_query(self, k):
    return UNBOUNDED


@dataclasses.dataclass(frozen=True)
class Window(Interval):
  """A query sees `left` keys before its own position, its own, and `right` keys after."""

  left: int
  right: int

  def __post_init__(self):
    if not 0 <= self.left <= WIDEST or not 0 <= self.right <= WIDEST:
      raise ConfigError(
        f'{self}: left and right must be 0 to {WIDEST:,} tokens; change the window or radius of the mixer'
      )

  def first(self, q):
    return q - self.left

  def end(self, q):
    return q + self.right + 1

  def first_query(self, k):
    return k - self.right

  def end_query(self, k):
    return k + self.left + 1


@dataclasses.dataclass(frozen=True)
class Neighbours(Interval):
  """A query sees its own block of `block` tokens, `back` blocks before and `forward` blocks after (paper,
  section 2, with 4096, 1, 1; published code, local_attention.py). With `causal`, it sees only those keys up
  to its own position, and forward is 0."""

  block: int
  back: int = 1
  forward: int = 1
  causal: bool = False

  def __post_init__(self):
    if self.block < 1 or self.back < 0 or self.forward < 0:
      raise ValueError(f'{self}: block must be at least 1, back and forward at least 0')
    if self.block * (self.back + self.forward + 1) > WIDEST:
      raise ConfigError(
        f'{self} spans more than {WIDEST:,} tokens; choose a smaller block for the mixer, or fewer blocks'
      )
    if self.causal and self.forward:
      raise ValueError(f'{self}: a causal pattern sees no block after its own; set forward=0')

  def first(self, q):
    return (q // self.block - self.back) * self.block

  def end(self, q):
    return q + 1 if self.causal else (q // self.block + self.forward + 1) * self.block

  def first_query(self, k):
    return k if self.causal else (k // self.block - self.forward) * self.block

  def end_query(self, k):
    return (k // self.block + self.back + 1) * self.block


@dataclasses.dataclass(frozen=True)
class BlockTable:
  """Any block-sparse layout: queries of block i see the key blocks table[i], in ascending order.

  Blocks hold `block` tokens; the last ones may be shorter. With `causal`, a query sees only those keys of the
  blocks that are not after it. Queries start at position 0.
  """

  block: int
  table: tuple[tuple[int, ...], ...]
  causal: bool = False

  def __post_init__(self):
    if self.block < 1 or not self.table:
      raise ValueError(
        f'BlockTable has blocks of {self.block} tokens and {len(self.table)} rows; both must be at least 1'
      )
    for i, row in enumerate(self.table):
      if any(a >= b for a, b in zip(row, row[1:], strict=False)) or (row and row[0] < 0):
        raise ValueError(f'BlockTable row {i} is {row}; list key blocks from 0 on, ascending, each once')

  @classmethod
  def from_mask(cls, block: int, mask_QK, causal: bool = False) -> 'BlockTable':
    """Makes a table from a boolean matrix [query blocks, key blocks]."""
    rows = tuple(tuple(int(k) for k in np.flatnonzero(row)) for row in np.asarray(mask_QK, bool))
    return cls(block, rows, causal)

  def mask(self, key_blocks: int) -> np.ndarray:
    """The table as a matrix, bool [query blocks, key_blocks]."""
    mask_QK = np.zeros((len(self.table), key_blocks), bool)
    for i, row in enumerate(self.table):
      mask_QK[i, [k for k in row if k < key_blocks]] = True
    return mask_QK

  def visible(self, q: Position, k: Position):
    """Boolean mask for arrays of positions of one shape, k >= 0: True where query q sees key k."""
    mask = self.mask(1 + max((row[-1] for row in self.table if row), default=0))
    rows, columns = q // self.block, k // self.block
    known = (rows < mask.shape[0]) & (columns < mask.shape[1])
    if isinstance(q, np.ndarray):
      seen = mask[np.minimum(rows, mask.shape[0] - 1), np.minimum(columns, mask.shape[1] - 1)]
    else:
      seen = jnp.asarray(mask).at[rows, columns].get(mode='clip')
    return seen & known & (k <= q) if self.causal else seen & known


@dataclasses.dataclass(frozen=True)
class HeadTables:
  """A `BlockTable` for every head."""

  tables: tuple[BlockTable, ...]

  def __post_init__(self):
    if not self.tables:
      raise ValueError('HeadTables has no table; give one for every head')


Pattern = Interval | BlockTable  # of one head


def visible_pairs(pattern: Pattern | HeadTables, queries: int, keys: int) -> int:
  """The number of (query, key) pairs that the pattern shows among the first `queries` queries and `keys`
  keys. For `HeadTables` it is the sum over heads."""
  if isinstance(pattern, HeadTables):
    return sum(visible_pairs(table, queries, keys) for table in pattern.tables)
  if isinstance(pattern, BlockTable):
    block, total = pattern.block, 0
    for i, row in enumerate(pattern.table):
      q = np.arange(i * block, min((i + 1) * block, queries))
      for k0 in (b * block for b in row if b * block < keys):
        k1 = min(k0 + block, keys)
        total += int(np.clip(q + 1 - k0, 0, k1 - k0).sum()) if pattern.causal else len(q) * (k1 - k0)
    return total
  q = np.arange(queries, dtype=np.int64)
  first, end = (np.broadcast_to(np.clip(edge(q), 0, keys), q.shape) for edge in (pattern.first, pattern.end))
  return int(np.maximum(end - first, 0).sum())


def shown_keys(kv_starts_B, kv_lengths_B, batch: int, keys: int) -> tuple[jax.Array, jax.Array]:
  """The first key that each row shows and one past the last, int32 [B], clipped to the existing keys.

  None for the starts or the lengths hides no key.
  """
  limits = 0 if kv_starts_B is None else kv_starts_B, keys if kv_lengths_B is None else kv_lengths_B
  start_B, end_B = (jnp.clip(jnp.asarray(x, jnp.int32), 0, keys) for x in limits)
  return jnp.broadcast_to(start_B, (batch,)), jnp.broadcast_to(end_B, (batch,))


def dense_mask(pattern: Pattern, length: int, keys: int, q_offset=0) -> jax.Array:
  """The pattern as a matrix, bool [length, keys]: True where the query sees the key. For small sizes."""
  q_LM = jnp.asarray(q_offset, jnp.int32) + lax.broadcasted_iota(jnp.int32, (length, keys), 0)
  k_LM = lax.broadcasted_iota(jnp.int32, (length, keys), 1)
  return jnp.broadcast_to(pattern.visible(q_LM, k_LM), q_LM.shape)
