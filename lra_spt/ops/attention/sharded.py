"""Self-attention of sequences whose positions are split over the mesh axis 'seq'.

Shard i of n holds the S = L / n positions from i S on. Shards exchange data in one of three ways, which
depends on the reach of the pattern:

  neighbours   each shard gets the keys and values that the pattern shows beyond its ends from the shards that
               hold them, by one permutation per side and shard;
  heads        shards exchange positions for heads (Jacobs et al. 2023, DeepSpeed-Ulysses), so that each one
               attends with H / n heads over whole sequences: one exchange before, one after;
  gather       if n does not divide the heads, every shard gets all keys and values.

Each shard then calls `attention` with local positions.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_spt.distributed.sharding import rows_island, sequence_shards
from lra_spt.errors import ConfigError
from lra_spt.ops.attention import attention
from lra_spt.ops.attention.patterns import (
  BlockTable,
  Full,
  HeadTables,
  Neighbours,
  Pattern,
  Window,
)


def sharded_attention(
  q_BLHK: jax.Array,
  k_BLHK: jax.Array,
  v_BLHV: jax.Array,
  *,
  pattern: Pattern | HeadTables,
  kv_lengths_B: jax.Array | None = None,
  bias_HR: jax.Array | None = None,
  log_decay_BLHX: jax.Array | None = None,
  implementation: str | None = None,
) -> jax.Array:
  """`attention` of whole sequences on the current mesh: rows over ('data', 'fsdp'), positions over 'seq'.

  Args:
    q_BLHK, k_BLHK, v_BLHV: queries, keys and values at the same L positions.
    pattern, kv_lengths_B, bias_HR, log_decay_BLHX, implementation: see `attention`; positions and lengths are
      those of whole sequences.

  Returns:
    Array [B, L, H, V] of the queries' dtype, split like the queries.

  Raises:
    ConfigError: the mesh's 'seq' does not divide L or, for a `BlockTable`, H; for `HeadTables`, 'seq' is not
      1.
    ValueError: as for `attention`.
  """
  length, heads = q_BLHK.shape[1:3]
  shards = sequence_shards(length)
  attend = functools.partial(attention, pattern=pattern, implementation=implementation)
  if shards == 1:
    local = lambda q, k, v, log_decay, lengths_B, bias_HR: attend(  # noqa: E731
      q, k, v, kv_lengths_B=lengths_B, bias_HR=bias_HR, log_decay_BMHX=log_decay
    )
  else:
    local = functools.partial(_way(pattern, length, heads, shards), attend, pattern, shards)
  island = rows_island(local, split=(0, 1, 2, 3), whole=(5,))
  return island(q_BLHK, k_BLHK, v_BLHV, log_decay_BLHX, kv_lengths_B, bias_HR)


def _way(pattern, length, heads, shards):
  """Chooses the function below that moves the fewest bytes and, among equals, over the shortest distance."""
  size = length // shards
  if isinstance(pattern, Window | Neighbours):
    left, right = _reach(pattern, size, shards)
    one_neighbour = left <= size and right <= size
    if left + right < length - size and (one_neighbour or heads % shards):
      return _with_neighbours
  if isinstance(pattern, HeadTables):
    raise ConfigError(
      f'runtime.mesh.seq is {shards}, but this attention has one table per head, which needs seq = 1; choose '
      '1, or one table for all heads'
    )
  if heads % shards == 0:
    return _by_heads
  if isinstance(pattern, BlockTable):
    raise ConfigError(
      f'runtime.mesh.seq is {shards}, which does not divide the {heads} heads of this attention with a '
      'BlockTable; choose a divisor'
    )
  return _gathered


def _reach(pattern, size, shards):
  """(left, right): the most keys that any shard of `size` positions sees before its first and after its last
  position."""
  edges = [_needed(pattern, i * size, size, shards) for i in range(shards)]
  return (
    max(i * size - first for i, (first, _) in enumerate(edges)),
    max(end - (i + 1) * size for i, (_, end) in enumerate(edges)),
  )


def _needed(pattern, start, size, shards):
  """The keys [first, end) that the shard from position `start` on needs."""
  first, end = pattern.seen_by_any(start, start + size)
  return max(first, 0), min(end, size * shards)


def _by_heads(attend, pattern, shards, q_BSHK, k_BSHK, v_BSHV, log_decay_BSHX, lengths_B, bias_HR):
  exchange = functools.partial(lax.all_to_all, axis_name='seq', split_axis=2, concat_axis=1, tiled=True)
  q, k, v = _together(exchange, q_BSHK, k_BSHK, v_BSHV)
  if bias_HR is not None:
    heads = len(bias_HR) // shards
    bias_HR = lax.dynamic_slice_in_dim(bias_HR, lax.axis_index('seq') * heads, heads)
  log_decay = None if log_decay_BSHX is None else exchange(log_decay_BSHX)
  y_BLHV = attend(q, k, v, kv_lengths_B=lengths_B, bias_HR=bias_HR, log_decay_BMHX=log_decay)
  return lax.all_to_all(y_BLHV, 'seq', split_axis=1, concat_axis=2, tiled=True)


def _gathered(attend, pattern, shards, q_BSHK, k_BSHK, v_BSHV, log_decay_BSHX, lengths_B, bias_HR):
  gather = functools.partial(lax.all_gather, axis_name='seq', axis=1, tiled=True)
  k, v = _together(gather, k_BSHK, v_BSHV)
  log_decay = None if log_decay_BSHX is None else gather(log_decay_BSHX)
  anywhere = isinstance(pattern, Full) and bias_HR is None and log_decay is None
  q_offset = 0 if anywhere else lax.axis_index('seq') * q_BSHK.shape[1]
  shown = {'kv_lengths_B': lengths_B, 'q_offset': q_offset}
  return attend(q_BSHK, k, v, bias_HR=bias_HR, log_decay_BMHX=log_decay, **shown)


def _with_neighbours(attend, pattern, shards, q_BSHK, k_BSHK, v_BSHV, log_decay_BSHX, lengths_B, bias_HR):
  if log_decay_BSHX is not None:
    raise ConfigError(
      f'runtime.mesh.seq is {shards}, but local attention with decays needs seq = 1; choose 1'
    )
  batch, size = q_BSHK.shape[:2]
  left, right = _reach(pattern, size, shards)
  k, v = _together(lambda x: _extended(x, left, right, shards), k_BSHK, v_BSHV)
  start = lax.axis_index('seq') * size
  starts_B = None
  if isinstance(pattern, Window) or size % pattern.block == 0:
    origin, q_offset = start - left, left  # known when tracing, and a multiple of the block
    if left:  # hides the zeros that the first shards got in place of keys before the sequence
      starts_B = jnp.broadcast_to(jnp.maximum(-origin, 0), (batch,))
  else:
    # Local positions must fall into blocks as global ones do, so they start where a block starts.
    origin = jnp.maximum(pattern.first(start), 0)
    q_offset = start - origin
    spans = (_needed(pattern, i * size, size, shards) for i in range(shards))
    longest = max(end - first for first, end in spans)
    # Without this padding, a slice that reaches beyond the end would be shifted back.
    k, v = (jnp.pad(x, ((0, 0), (0, left), (0, 0), (0, 0))) for x in (k, v))
    k, v = (lax.dynamic_slice_in_dim(x, origin - (start - left), longest, axis=1) for x in (k, v))
  if right and lengths_B is None:  # hides the zeros that the last shards got in place of keys after the end
    lengths_B = jnp.full(batch, size * shards, jnp.int32)
  if lengths_B is not None:
    lengths_B = jnp.clip(lengths_B - origin, 0, k.shape[1])
  edges = {'kv_starts_B': starts_B, 'kv_lengths_B': lengths_B}
  return attend(q_BSHK, k, v, q_offset=q_offset, bias_HR=bias_HR, **edges)


def _together(move, *arrays):
  """Applies `move` to several arrays [B, S, H, any] at once, as one array."""
  ends = np.cumsum([x.shape[-1] for x in arrays])[:-1]
  return jnp.split(move(jnp.concatenate(arrays, axis=-1)), ends, axis=-1)


def _extended(x_BSHK, left, right, shards):
  """x with `left` more positions before the shard's and `right` more after, zeros beyond the sequence."""
  size = x_BSHK.shape[1]
  before = [
    _from(x_BSHK[:, size - part :], -hop, shards) for hop, part in enumerate(_parts(left, size), start=1)
  ]
  after = [_from(x_BSHK[:, :part], hop, shards) for hop, part in enumerate(_parts(right, size), start=1)]
  return jnp.concatenate([*reversed(before), x_BSHK, *after], axis=1)


def _parts(reach, size):
  """The number of positions that each of the next shards gives."""
  return [min(size, reach - begin) for begin in range(0, reach, size)]


def _from(x, distance, shards):
  """The x of the shard that is `distance` shards after this one (before, if negative)."""
  pairs = [(source, source - distance) for source in range(shards) if 0 <= source - distance < shards]
  return lax.ppermute(x, 'seq', pairs)
