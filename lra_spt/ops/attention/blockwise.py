"""Attention in tiles, with memory linear in the length, in plain XLA operations.

Forward: the running softmax of Milakov & Gimelshein (2018) over tiles of keys; backward: the recomputation of
FlashAttention (Dao et al. 2022, appendix B.4) from the output and one logsumexp per query.

Score tiles are stored transposed, [keys, queries]. Maxima and sums over keys then run along the outer axis,
where XLA vectorises them, and every product gets the layouts that CPUs multiply fastest. For the backward
pass queries, keys and output gradients are stored in both layouts. Letters: N = B * H rows, each one head of
one sequence; T and S the queries and keys of a tile; V the width of values and outputs.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from lra_spt.distributed.sharding import platform
from lra_spt.ops.attention.bias import add_bias_gradient, bias_by_place, bias_of_tile
from lra_spt.ops.attention.decay import bias_of_pairs, gradient_of_pairs, running_sums
from lra_spt.ops.attention.tiles import Grid, Tiles, over_key_tiles, visible

_HIDDEN = -1e30  # score of a hidden key; finite, so that differences of scores are never NaN
_FLOOR = -1e20  # start of the running maximum: exp(_HIDDEN - _FLOOR) is 0 in rows that see no key


# On CPUs (measured by benchmarks/attention.py) one row is computed at a time: its tile of scores, 2 MB, stays
# in cache. Accelerators need all rows at once to be busy. Their tiles are smaller: B * H exist together.
_TILES = {'cpu': Tiles(512, 1024, together=False)}
_ACCELERATOR = Tiles(256, 512, together=True)


def refuses(q_BLHK, k_BMHK, v_BMHV, *, pattern, q_offset, return_logsumexp=False, bias_HR=None) -> None:
  """Returns None: this implementation runs every call on every platform."""


def blockwise_attention(
  q_BLHK,
  k_BMHK,
  v_BMHV,
  *,
  pattern,
  kv_lengths_B=None,
  kv_starts_B=None,
  q_offset=0,
  return_logsumexp=False,
  bias_HR=None,
  log_decay_BMHX=None,
  tiles=None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
  """See `attention`; `tiles` replaces the sizes chosen for the platform."""
  tiles = tiles or _TILES.get(platform(), _ACCELERATOR)
  keys = k_BMHK.shape[1]
  grid = Grid.of(pattern, q_BLHK.shape[1], keys, tiles)
  edges_B = tuple(
    None if x is None else jnp.clip(x.astype(jnp.int32), 0, keys) for x in (kv_starts_B, kv_lengths_B)
  )
  plan = _BlockwisePlan(grid, tiles.together, return_logsumexp)
  bias_HX = None if bias_HR is None else bias_by_place(grid, bias_HR, q_offset)
  sums = None
  if log_decay_BMHX is not None:
    sums_BMHX = running_sums(log_decay_BMHX)
    sums = lax.dynamic_slice_in_dim(sums_BMHX, q_offset, q_BLHK.shape[1], axis=1), sums_BMHX
  return _attend(plan, q_BLHK, k_BMHK, v_BMHV, bias_HX, sums, edges_B, jnp.asarray(q_offset, jnp.int32))


@dataclasses.dataclass(frozen=True)
class _BlockwisePlan:
  """The static part of a call."""

  grid: Grid
  together: bool  # all rows advance together
  return_logsumexp: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, q_BLHK, k_BMHK, v_BMHV, bias_HX, sums, edges_B, q_offset):
  return _attend_forward(plan, q_BLHK, k_BMHK, v_BMHV, bias_HX, sums, edges_B, q_offset)[0]


def _attend_forward(plan, q_BLHK, k_BMHK, v_BMHV, bias_HX, sums, edges_B, q_offset):
  grid = plan.grid
  arrays = (
    _rows(_scaled(q_BLHK), 'KL', grid.tile_q),
    _rows(k_BMHK, 'LK', grid.tile_k),
    _rows(v_BMHV, 'KL', grid.tile_k),
    _bias_rows(bias_HX, q_BLHK),
    _sums_rows(sums, grid),
  )
  row = functools.partial(_forward_row, grid, q_offset)
  out_NVL, logsumexp_NL = _each_row(row, arrays, edges_B, grid, plan.together)
  # These two are saved, so that rematerialisation does not repeat the loops (ExecutionSpec.remat).
  out_BLHV, logsumexp_NL = checkpoint_name((_unrows(out_NVL, q_BLHK), logsumexp_NL), 'mixer')
  saved = (q_BLHK, k_BMHK, v_BMHV, bias_HX, sums, out_BLHV, logsumexp_NL, edges_B, q_offset)
  if not plan.return_logsumexp:
    return out_BLHV, saved
  return (out_BLHV, _unrows(logsumexp_NL[:, None], q_BLHK, logsumexp_NL.dtype)[..., 0]), saved


def _attend_backward(plan, saved, cotangents):
  q_BLHK, k_BMHK, v_BMHV, bias_HX, sums, out_BLHV, logsumexp_NL, edges_B, q_offset = saved
  grid, wide = plan.grid, logsumexp_NL.dtype
  d_out_BLHV, d_logsumexp_BLH = cotangents if plan.return_logsumexp else (cotangents, None)
  # The gradient of the softmax is dS = P * (dP - delta) with delta = sum over keys of P * dP = out . d_out;
  # that of the logsumexp is P.
  delta_BLH1 = jnp.sum(out_BLHV.astype(wide) * d_out_BLHV.astype(wide), axis=-1, keepdims=True)
  if plan.return_logsumexp:
    delta_BLH1 = delta_BLH1 - d_logsumexp_BLH[..., None]
  delta_NL = jnp.squeeze(_rows(delta_BLH1, 'LK', grid.tile_q, dtype=wide), -1)
  blind_NL = jnp.isneginf(logsumexp_NL)
  logsumexp_NL = jnp.where(blind_NL, 0, logsumexp_NL)  # exp(_HIDDEN - 0) is 0: hidden keys have no weight
  if plan.return_logsumexp:
    delta_NL = jnp.where(blind_NL, 0, delta_NL)
  q_scaled = _scaled(q_BLHK)
  arrays = (
    *(_rows(x, layout, grid.tile_q) for x in (q_scaled, d_out_BLHV) for layout in ('LK', 'KL')),
    *(_rows(k_BMHK, layout, grid.tile_k) for layout in ('LK', 'KL')),
    _rows(v_BMHV, 'LK', grid.tile_k),
    logsumexp_NL,
    delta_NL,
    _bias_rows(bias_HX, q_BLHK),
    _sums_rows(sums, grid),
  )
  row = functools.partial(_backward_row, grid, q_offset)
  dq_NKL, dk_NMK, dv_NMV, d_bias_NX, d_sums = _each_row(row, arrays, edges_B, grid, plan.together)
  dq_BLHK = _unrows(dq_NKL * q_BLHK.shape[-1] ** -0.5, q_BLHK)
  dk_BMHK, dv_BMHV = (_unrows(jnp.swapaxes(x, 1, 2), k_BMHK) for x in (dk_NMK, dv_NMV))
  d_bias_HX = None
  if bias_HX is not None:
    d_bias_HX = d_bias_NX.reshape(-1, *bias_HX.shape).sum(axis=0).astype(bias_HX.dtype)
  if sums is not None:
    d_q_NXL, d_k_NMX = d_sums
    d_sums = _unrows(d_q_NXL, sums[0]), _unrows(jnp.swapaxes(d_k_NMX, 1, 2), sums[1])
  return dq_BLHK, dk_BMHK, dv_BMHV, d_bias_HX, d_sums, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _forward_row(grid, q_offset, arrays, shown):
  """The output [V, L] of one row, and the logsumexp [L] of its scores: -inf for queries that see no key."""
  q_KL, k_MK, v_VM, bias_X, sums = arrays
  wide = np.promote_types(q_KL.dtype, np.float32)

  def query_tile(index):
    q_KT = _cut(q_KL, index, grid.tile_q, 1)

    def key_tile(place, carry, masked):
      largest_T, total_T, out_VT = carry
      k_SK, v_VS = _cut(k_MK, place, grid.tile_k, 0), _cut(v_VM, place, grid.tile_k, 1)
      scores_ST = _dot(k_SK, q_KT, wide)
      if bias_X is not None:
        scores_ST += bias_of_tile(grid, bias_X, index, place).astype(wide)
      if sums is not None:
        scores_ST += bias_of_pairs(*_sums_of_tile(grid, sums, index, place)).astype(wide)
      if masked:
        scores_ST = jnp.where(visible(grid, q_offset, index, place, shown), scores_ST, _HIDDEN)
      new_largest_T = jnp.maximum(largest_T, scores_ST.max(axis=0))
      weights_ST = jnp.exp(scores_ST - _spread(new_largest_T, scores_ST))
      shrink_T = jnp.exp(largest_T - new_largest_T)
      total_T = total_T * shrink_T + weights_ST.sum(axis=0)
      out_VT = out_VT * _spread(shrink_T, out_VT) + _dot(v_VS, weights_ST.astype(v_VS.dtype), wide)
      return new_largest_T, total_T, out_VT

    size = q_KT.shape[1]
    start = (_fill(q_KT, _FLOOR, size), _fill(q_KT, 0, size), _fill(q_KT, 0, len(v_VM), size))
    largest_T, total_T, out_VT = over_key_tiles(key_tile, start, grid, q_offset, index, shown)
    seen_T = total_T > 0
    total_T = jnp.where(seen_T, total_T, 1)
    return out_VT / _spread(total_T, out_VT), jnp.where(seen_T, largest_T + jnp.log(total_T), -jnp.inf)

  out_JVT, logsumexp_JT = lax.map(query_tile, jnp.arange(grid.tiles_q, dtype=jnp.int32))
  return jnp.swapaxes(out_JVT, 0, 1).reshape(len(v_VM), -1), logsumexp_JT.reshape(-1)


def _backward_row(grid, q_offset, arrays, shown):
  """Gradients of one row: dq [K, L] of the scaled queries, dk [M, K], dv [M, V], [X] of the bias, and of the
  running sums."""
  q_LK, q_KL, d_out_LV, d_out_VL, k_MK, k_KM, v_MV, logsumexp_L, delta_L, bias_X, decay_sums = arrays
  wide = logsumexp_L.dtype

  def query_tile(index, carry):
    dq_KL, *sums = carry
    q_TK, d_out_TV = (_cut(x, index, grid.tile_q, 0) for x in (q_LK, d_out_LV))
    q_KT, d_out_VT = (_cut(x, index, grid.tile_q, 1) for x in (q_KL, d_out_VL))
    logsumexp_T, delta_T = (_cut(x, index, grid.tile_q, 0) for x in (logsumexp_L, delta_L))

    def key_tile(place, carry, masked):
      dq_KT, dk_MK, dv_MV, d_bias_X, d_decay_sums = carry
      k_SK, v_SV = (_cut(x, place, grid.tile_k, 0) for x in (k_MK, v_MV))
      scores_ST = _dot(k_SK, q_KT, wide)
      if bias_X is not None:
        scores_ST += bias_of_tile(grid, bias_X, index, place).astype(wide)
      if decay_sums is not None:
        sums_of_tile = _sums_of_tile(grid, decay_sums, index, place)
        scores_ST += bias_of_pairs(*sums_of_tile).astype(wide)
      if masked:
        scores_ST = jnp.where(visible(grid, q_offset, index, place, shown), scores_ST, _HIDDEN)
      weights_ST = jnp.exp(scores_ST - _spread(logsumexp_T, scores_ST))
      d_weights_ST = _dot(v_SV, d_out_VT, wide)
      d_scores_ST = weights_ST * (d_weights_ST - _spread(delta_T, scores_ST))
      if bias_X is not None:
        d_bias_X = add_bias_gradient(grid, d_bias_X, d_scores_ST, index, place)
      if decay_sums is not None:
        d_q_XT, d_k_SX = gradient_of_pairs(*sums_of_tile, d_scores_ST)
        d_q_XL, d_k_MX = d_decay_sums
        d_decay_sums = _add(d_q_XL, d_q_XT, index, axis=1), _add(d_k_MX, d_k_SX, place)
      d_scores_ST = d_scores_ST.astype(q_TK.dtype)
      dv_MV = _add(dv_MV, _dot(weights_ST.astype(q_TK.dtype), d_out_TV, wide), place)
      dk_MK = _add(dk_MK, _dot(d_scores_ST, q_TK, wide), place)
      dq_KT += _dot(_cut(k_KM, place, grid.tile_k, 1), d_scores_ST, wide)
      return dq_KT, dk_MK, dv_MV, d_bias_X, d_decay_sums

    start = (_fill(q_KT, 0, *q_KT.shape), *sums)
    dq_KT, *sums = over_key_tiles(key_tile, start, grid, q_offset, index, shown)
    return lax.dynamic_update_slice_in_dim(dq_KL, dq_KT, index * grid.tile_q, 1), *sums

  start = jax.tree.map(lambda x: _fill(q_KL, 0, *x.shape), (q_KL, k_MK, v_MV, bias_X, decay_sums))
  return lax.fori_loop(0, grid.tiles_q, query_tile, start)


def _each_row(function, arrays, edges_B, grid, together):
  """Maps function(arrays of one row, shown) over the leading axis N of all arrays; `shown`: see tiles.py."""
  copies = [None if x is None else jnp.repeat(x, arrays[0].shape[0] // x.shape[0]) for x in edges_B]
  all_keys = 0, grid.keys

  def over_rows(*reductions):
    pairs = zip(copies, all_keys, reductions, strict=True)
    return tuple(end if x is None else reduce(x) for x, end, reduce in pairs)

  def row(item):
    arrays, edges = item
    this_row = tuple(end if x is None else x for x, end in zip(edges, all_keys, strict=True))
    if not together:
      return function(arrays, shown=(this_row,) * 3)
    return function(arrays, shown=(this_row, over_rows(jnp.min, jnp.max), over_rows(jnp.max, jnp.min)))

  return jax.vmap(row)((arrays, copies)) if together else lax.map(row, (arrays, copies))


def _bias_rows(bias_HX, q_BLHK):
  """[H, X] -> [N, X]; None stays None."""
  return None if bias_HX is None else jnp.tile(bias_HX, (len(q_BLHK), 1))


def _sums_rows(sums, grid):
  """Running sums of queries [N, X, L'] and of keys [N, M', X]; None stays None."""
  return sums and (_rows(sums[0], 'KL', grid.tile_q), _rows(sums[1], 'LK', grid.tile_k))


def _sums_of_tile(grid, sums, index, place):
  return _cut(sums[0], index, grid.tile_q, 1), _cut(sums[1], place, grid.tile_k, 0)


def _scaled(q_BLHK):
  """Queries times 1/sqrt(K): K multiplications per query instead of M."""
  return q_BLHK * np.asarray(q_BLHK.shape[-1] ** -0.5, q_BLHK.dtype)


def _rows(x_BLHK, layout, tile, dtype=None):
  """[B, L, H, K] -> [N, L', K] or [N, K, L'], padded with 0 to a multiple L' of `tile`.

  On CPUs the result is float32 at least, because products of narrower numbers are slow there.
  """
  dtype = dtype or x_BLHK.dtype
  if platform() == 'cpu':
    dtype = np.promote_types(dtype, np.float32)
  batch, length, heads, width = x_BLHK.shape
  fill = -length % tile
  x_BLHK = jnp.pad(x_BLHK.astype(dtype), ((0, 0), (0, fill), (0, 0), (0, 0)))
  if layout == 'LK':
    return x_BLHK.transpose(0, 2, 1, 3).reshape(batch * heads, length + fill, width)
  return x_BLHK.transpose(0, 2, 3, 1).reshape(batch * heads, width, length + fill)


def _unrows(x_NKL, like_BLHX, dtype=None):
  """[N, K, L'] -> [B, L, H, K], without the padding, in `dtype` or, for None, that of `like_BLHX`."""
  batch, length, heads, _ = like_BLHX.shape
  x_BHKL = x_NKL.reshape(batch, heads, x_NKL.shape[1], -1)[..., :length]
  return x_BHKL.transpose(0, 3, 1, 2).astype(dtype or like_BLHX.dtype)


def _dot(a, b, dtype):
  return lax.dot(a, b, preferred_element_type=dtype)


def _cut(x, index, size, axis):
  return lax.dynamic_slice_in_dim(x, index * size, size, axis)


def _add(x, tile, place, axis=0):
  """Adds a tile to x at the tile `place` along this axis."""
  size = tile.shape[axis]
  return lax.dynamic_update_slice_in_dim(x, _cut(x, place, size, axis) + tile, place * size, axis)


def _spread(x_T, like_XT):
  return jnp.broadcast_to(x_T[None, :], like_XT.shape)


def _fill(like, value, *shape):
  """A constant in the dtype of statistics. `full_like` makes it vary over shard_map's axes as `like` does."""
  return lax.full_like(like, value, dtype=np.promote_types(like.dtype, np.float32), shape=shape)
