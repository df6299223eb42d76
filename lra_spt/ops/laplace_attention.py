"""Laplace attention, in tiles of queries. Each weight depends on its own score alone: no sum over keys
normalises it, so tiles are independent of each other.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

_TILE = 128  # queries whose scores are in memory at a time


def laplace_attention(
  q_BLK: jax.Array,
  k_BMK: jax.Array,
  v_BMV: jax.Array,
  bias_R: jax.Array,
  *,
  chunk: int = 0,
  causal: bool = False,
  lengths_B: jax.Array | None = None,
  q_offset: int | jax.Array = 0,
) -> jax.Array:
  """y_t = sum over visible keys s of f(q_t k_s / n_t + bias) v_s, where n_t is the number of keys that t
  sees, at least 1, f(a) = (1 + erf((a - m) / (sqrt(2) d))) / 2, m = sqrt(1/2) and d = sqrt(1/(4 pi)) (Ma et
  al. 2022, arXiv 2209.10655, section 3.3).

  Products run in the dtype of the arrays, f in float32; scores of hidden keys are computed too. Works under
  jit, vmap, scan and shard_map; the backward pass recomputes the scores of each tile.

  Args:
    q_BLK: queries, floating point.
    k_BMK, v_BMV: keys and values, same dtype.
    bias_R: float32 [2D + 1], added by the distance from query to key, from -D (keys before) to D; no query
      and key may be farther apart.
    chunk: queries see only the keys of their own chunk of this many positions; requires L = M and no
      q_offset. 0: all keys.
    causal: queries see only keys up to their own position.
    lengths_B: int32 [B]; keys at positions >= length are hidden. None shows all M.
    q_offset: position of the first query, an int or an int32 scalar.

  Returns:
    Array [B, L, V] of the dtype of the queries; queries that see no key get 0.
  """
  B, L, K = q_BLK.shape
  M = k_BMK.shape[1]
  if lengths_B is None:
    lengths_B = jnp.full(B, M, jnp.int32)
  if 0 < chunk < M:
    # Each chunk becomes a row; the last one is padded.
    count = -(-M // chunk)
    chunks = [
      jnp.pad(x, ((0, 0), (0, count * chunk - M), (0, 0))).reshape(B * count, chunk, -1)
      for x in (q_BLK, k_BMK, v_BMV)
    ]
    starts_C = jnp.arange(count, dtype=jnp.int32) * chunk
    lengths_BC = jnp.clip(lengths_B[:, None] - starts_C[None], 0, chunk)
    y_NTV = laplace_attention(*chunks, bias_R, causal=causal, lengths_B=lengths_BC.reshape(-1))
    return y_NTV.reshape(B, count * chunk, -1)[:, :L]
  tile = min(_TILE, L)
  count = -(-L // tile)
  q_BLK = jnp.pad(q_BLK, ((0, 0), (0, count * tile - L), (0, 0)))
  q_CBTK = q_BLK.reshape(B, count, tile, K).swapaxes(0, 1)
  # Padding queries may lie farther from keys than any distance that has a bias.
  farthest = bias_R.shape[0] // 2
  bias_R = jnp.pad(bias_R, (tile, 0))
  s_1M = jnp.arange(M, dtype=jnp.int32)[None]

  @functools.partial(jax.checkpoint, prevent_cse=False)
  def attend(item):
    start, q_BTK = item
    t_T1 = start + jnp.arange(tile, dtype=jnp.int32)[:, None]
    visible_BTM = jnp.broadcast_to(s_1M[None] < lengths_B[:, None, None], (B, tile, M))
    keys_BT1 = lengths_B[:, None, None]
    if causal:
      visible_BTM &= (s_1M <= t_T1)[None]
      keys_BT1 = jnp.minimum(keys_BT1, (t_T1 + 1)[None])
    scores_BTM = jnp.einsum('btk,bmk->btm', q_BTK, k_BMK, preferred_element_type=jnp.float32)
    bias_Y = lax.dynamic_slice_in_dim(bias_R, farthest + 1 - start, M + tile - 1)
    scores_BTM = scores_BTM / jnp.maximum(keys_BT1, 1).astype(jnp.float32) + _diagonals(bias_Y, tile)[None]
    weights_BTM = jnp.where(visible_BTM, laplace(scores_BTM), 0).astype(v_BMV.dtype)
    out_BTV = jnp.einsum('btm,bmv->btv', weights_BTM, v_BMV, preferred_element_type=jnp.float32)
    return out_BTV.astype(q_BTK.dtype)

  starts_C = jnp.arange(count, dtype=jnp.int32) * tile + jnp.asarray(q_offset, jnp.int32)
  y_CBTV = checkpoint_name(lax.map(attend, (starts_C, q_CBTK)), 'mixer')
  return y_CBTV.swapaxes(0, 1).reshape(B, count * tile, -1)[:, :L]


def laplace(x: jax.Array) -> jax.Array:
  """(1 + erf((x - sqrt(1/2)) sqrt(2 pi))) / 2, accurate for small results, where 1 + erf cancels."""
  return 0.5 * lax.erfc((math.sqrt(0.5) - x) * np.float32(math.sqrt(2 * math.pi)))


def _diagonals(bias_Y, tile):
  """[T, M] with bias_Y[T - 1 + s - t] at t, s. It is made by reshapes, because the gradient of a gather adds
  in an order that may change."""
  size = bias_Y.shape[0] + 1  # M + T
  # Rows of M + T numbers are laid end to end and cut into rows one shorter: each starts one place earlier.
  rows = jnp.broadcast_to(jnp.pad(bias_Y, (0, 1))[None], (tile, size)).reshape(-1)[: tile * (size - 1)]
  return rows.reshape(tile, size - 1)[:, tile - 1 :]
