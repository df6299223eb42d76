"""BigBird: blocks of keys around one's own, at both ends and at random (Zaheer et al. 2020, arXiv 2007.14062;
published code: `google-research/long-range-arena`, commit cd31e5c, `bigbird_attention.py`)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_spt.distributed.sharding import rows_island
from lra_spt.errors import ConfigError
from lra_spt.models.projections import HeadProjections
from lra_spt.models.registry import NotNegative, Positive, register_mixer
from lra_spt.ops.attention import BlockTable, HeadTables, attention, attention_weights
from lra_spt.ops.attention.patterns import visible_pairs
from lra_spt.ops.attention.sharded import sharded_attention

_REACH = 1024  # random blocks are drawn from this many positions, as published


@register_mixer('bigbird')
class BigBird(HeadProjections):
  """Softmax attention by blocks of positions: t, in block i, sees the keys of the blocks S_i,

      y_t = sum over s in S_i of a_ts v_s, a_ts = softmax over s of q_t . k_s / sqrt(K),
      S_i = {first, i - 1, i, i + 1, last} and `random_blocks` others.

  As published, the random blocks are drawn from those of the first 1,024 positions, and the first and the
  last block see everything. Every head has its own draw, all from `table_seed`. In the published code the
  seed is the number of the layer; here all layers share it. Only valid positions are seen.

  The causal form is ours: a query sees the first block, its own, the one before it, and random ones before
  those, always up to its own position. (The published code attends to all positions of these blocks.)

  Under protocol.long_range_arena_code the bidirectional form pads the sequence with 1 to `block` positions,
  which count as valid: each of them adds 1 to the sum of weights of every query. The last block is the one
  that they complete.

  Options heads and head_dim: see `HeadProjections`; attention, the implementation: see
  `lra_spt.ops.attention`.

  Args:
    block: positions of a block, published 64.
    random_blocks: random blocks of a query block, published 3. If fewer are left, it sees all of them.
    table_seed: the seed of NumPy's RandomState, from which the heads draw one after the other.
    shared_table: all heads use the first one's draw, as a mesh that splits positions needs.

  Raises:
    ConfigError: an option is out of range.
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    causal: bool,
    protocol,
    rngs: nnx.Rngs,
    heads: int = 4,
    head_dim: int = 0,
    block: Positive = 64,
    random_blocks: NotNegative = 3,
    table_seed: NotNegative = 0,
    shared_table: bool = False,
    attention: str = '',
    dtype=jnp.float32,
  ):
    super().__init__(width, heads, head_dim, ('query', 'key', 'value'), dtype=dtype, rngs=rngs)
    if table_seed >= 2**32:
      raise ConfigError(f'model.mixer.table_seed is {table_seed}; choose a seed from 0 to 2^32 - 1')
    self.causal, self.block = causal, block
    self.filled = protocol.long_range_arena_code and not causal
    blocks = length // block + 1 if self.filled else -(-length // block)
    drawn = random_table(blocks, block, random_blocks, 1 if shared_table else heads, table_seed, causal)
    tables = tuple(BlockTable(block, _rows(blocks, rows, causal), causal) for rows in drawn)
    self.pattern = tables[0] if shared_table else HeadTables(tables)
    self.implementation = attention or None

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # as published, no attention dropout
    arrays = self.project(x_BLD, 'query', 'key', 'value')
    if self.filled:
      return self.merge(rows_island(self._with_padding)(*arrays, lengths_B))
    y_BLHK = sharded_attention(
      *arrays, pattern=self.pattern, kv_lengths_B=lengths_B, implementation=self.implementation
    )
    return self.merge(y_BLHK)

  def attention_weights(self, x_BLD: jax.Array, *, lengths_B=None) -> jax.Array | None:
    """a_ts of every head, [B, H, L, L], see `lra_spt.ops.attention.attention_weights`; None for the
    bidirectional form of the published code, which attends to padding."""
    if self.filled:
      return None
    return attention_weights(
      *self.project(x_BLD, 'query', 'key'), pattern=self.pattern, kv_lengths_B=lengths_B
    )

  def _with_padding(self, q_BLHK, k_BLHK, v_BLHK, lengths_B):
    """Attends to padding that counts as valid. Its keys and values are 0, so all scores with it are 0."""
    call = {'pattern': self.pattern, 'kv_lengths_B': lengths_B, 'implementation': self.implementation}
    y_BLHK, logsumexp_BLH = attention(q_BLHK, k_BLHK, v_BLHK, return_logsumexp=True, **call)
    count = self.block - q_BLHK.shape[1] % self.block
    share_BLH = jax.nn.sigmoid(logsumexp_BLH - np.float32(np.log(count)))  # weight of the other positions
    return y_BLHK * share_BLH[..., None].astype(y_BLHK.dtype)

  def flops(self, length: int) -> int:
    """Scores and weighted sum: 4 K operations per head and visible pair of query and key."""
    heads = 1 if isinstance(self.pattern, HeadTables) else self.heads
    return 4 * self.head_dim * heads * visible_pairs(self.pattern, length, length)


def random_table(
  blocks: int, block: int, count: int, heads: int, seed: int, causal: bool = False
) -> list[list[list[int]]]:
  """Draws random key blocks for the query blocks of every head, from query block 1 on.

  In the bidirectional form, whose draws are the published ones, the last query block has none, because it
  sees everything. If fewer than `count` blocks can be drawn, it draws all of them.
  """
  draw = np.random.RandomState(seed).permutation  # the same numbers in every version of NumPy
  reach = min(blocks * block, _REACH)
  last = reach // block - 1 if reach > 2 * block else blocks - 1

  def candidates(i):
    if causal:
      return range(1, i - 1)
    if i == 1:
      choices = range(3, last + 1)
    elif i == 2:
      choices = range(4, last + 1)
    elif i == blocks - 3:
      choices = range(1, last - 3)
    elif i == blocks - 2:
      choices = range(1, last - 2)
    elif i - 2 > last:
      choices = range(1, last + 1)
    elif i + 1 == last:
      choices = range(1, i - 1)
    else:
      choices = (*range(1, i - 1), *range(i + 2, last + 1))
    return [j for j in choices if 1 <= j <= blocks - 2]

  def row(i):
    return [int(j) for j in draw(np.asarray(candidates(i), np.int64))[:count]]

  return [[row(i) for i in range(1, blocks - (not causal))] for _ in range(heads)]


def _rows(blocks, drawn, causal):
  """All key blocks of every query block, ascending."""
  rows = []
  for i in range(blocks):
    others = drawn[i - 1] if 0 < i <= len(drawn) else []
    if causal:
      row = {0, i - 1, i, *others}
    elif i in (0, blocks - 1):
      row = range(blocks)
    else:
      row = {0, i - 1, i, i + 1, blocks - 1, *others}
    rows.append(tuple(sorted(j for j in row if 0 <= j < blocks)))
  return tuple(rows)
