"""Bodies of the kernels of triton.py.

A program owns one tile of queries (or of keys) of one head and visits the tiles of keys (or of queries) that
the pattern pairs with it. Letters: T and S the queries and keys of a tile, K the head dimension rounded up to
a power of two. Scores are in units of log 2, because the hardware has an exponential to base 2.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from lra_spt.ops.attention.patterns import UNBOUNDED, Interval

_HIDDEN = -1e30  # score of a hidden key; finite, so that differences of scores are never NaN
_FLOOR = -1e20  # start of the running maximum: exp2(_HIDDEN - _FLOOR) is 0 in rows that see no key


@dataclasses.dataclass(frozen=True)
class KernelLaunch:
  """Constants of a compiled kernel."""

  pattern: Interval  # for a `BlockTable`, the pattern within its blocks
  length: int
  keys: int
  width: int  # head dimension of the arrays
  tile_q: int
  tile_k: int
  interpret: bool

  @property
  def scale(self):
    return self.width**-0.5

  @property
  def log2_scale(self):
    return self.scale * math.log2(math.e)


# Operands of all kernels. `limits_ref`, int32 [3]: first visible key, one past the last, position of the
# first query. `list_ref`, None or int32: the count of tiles to visit, then their numbers. References with
# 'all' in their name hold the rows of all tiles, others those of the program's tile.


def forward_kernel(limits_ref, list_ref, q_ref, k_all_ref, v_all_ref, out_ref, logsumexp_ref, *, job):
  """Output and logsumexp of a tile of queries: the running softmax of Milakov & Gimelshein (2018)."""
  rows = _filled(job.length, job.tile_q, pl.program_id(0))
  q_TK = _load(q_ref, job, rows)

  def key_tile(k0, carry, visible_TS, keys):
    largest_T1, total_T1, out_TK = carry
    k_SK, v_SK = (_load(ref.at[pl.ds(k0, job.tile_k)], job, keys) for ref in (k_all_ref, v_all_ref))
    scores_TS = _shown(_dot(q_TK, k_SK, contract=(1, 1)), visible_TS)
    new_largest_T1 = jnp.maximum(largest_T1, scores_TS.max(axis=1, keepdims=True) * job.log2_scale)
    weights_TS = _exp2(scores_TS * job.log2_scale - new_largest_T1, job)
    shrink_T1 = _exp2(largest_T1 - new_largest_T1, job)
    total_T1 = total_T1 * shrink_T1 + weights_TS.sum(axis=1, keepdims=True)
    out_TK = out_TK * shrink_T1 + _dot(weights_TS.astype(v_SK.dtype), v_SK)
    return new_largest_T1, total_T1, out_TK

  start = _fill(_FLOOR, job.tile_q, 1), _fill(0, job.tile_q, 1), _fill(0, *q_TK.shape)
  largest_T1, total_T1, out_TK = _over_key_tiles(key_tile, start, limits_ref, list_ref, job)
  seen_T1 = total_T1 > 0
  total_T1 = jnp.where(seen_T1, total_T1, 1)
  _store(out_ref, out_TK / total_T1, job, rows)
  logsumexp_T1 = jnp.where(seen_T1, largest_T1 + jnp.log2(total_T1), 0)
  plgpu.store(logsumexp_ref, logsumexp_T1.reshape(-1), mask=_below(rows, job.tile_q))


def d_queries_kernel(
  limits_ref, list_ref, q_ref, d_out_ref, logsumexp_ref, delta_ref, k_all_ref, v_all_ref, dq_ref, *, job
):
  """Gradient of a tile of queries, by recomputing its weights (Dao et al. 2022, appendix B.4)."""
  rows = _filled(job.length, job.tile_q, pl.program_id(0))
  q_TK, d_out_TK = _load(q_ref, job, rows), _load(d_out_ref, job, rows)
  logsumexp_T1, delta_T1 = (_load_vector(ref, rows)[:, None] for ref in (logsumexp_ref, delta_ref))

  def key_tile(k0, dq_TK, visible_TS, keys):
    k_SK, v_SK = (_load(ref.at[pl.ds(k0, job.tile_k)], job, keys) for ref in (k_all_ref, v_all_ref))
    scores_TS = _shown(_dot(q_TK, k_SK, contract=(1, 1)), visible_TS)
    weights_TS = _exp2(scores_TS * job.log2_scale - logsumexp_T1, job)
    d_scores_TS = weights_TS * (_dot(d_out_TK, v_SK, contract=(1, 1)) - delta_T1)
    return dq_TK + _dot(d_scores_TS.astype(k_SK.dtype), k_SK)

  dq_TK = _over_key_tiles(key_tile, _fill(0, *q_TK.shape), limits_ref, list_ref, job)
  _store(dq_ref, dq_TK * job.scale, job, rows)


def d_keys_kernel(
  limits_ref, list_ref, q_all_ref, d_out_all_ref, logsumexp_all_ref, delta_all_ref, k_ref, v_ref,
  dk_ref, dv_ref, *, job
):  # fmt: skip
  """Gradients of a tile of keys and its values; scores are transposed, [keys, queries].

  Queries beyond the end of the array are read as zeros, so they add nothing to either gradient.
  """
  keys = _filled(job.keys, job.tile_k, pl.program_id(0))
  k_SK, v_SK = _load(k_ref, job, keys), _load(v_ref, job, keys)

  def query_tile(q0, carry, visible_ST, rows):
    dk_SK, dv_SK = carry
    here = pl.ds(q0, job.tile_q)
    q_TK, d_out_TK = (_load(ref.at[here], job, rows) for ref in (q_all_ref, d_out_all_ref))
    logsumexp_1T, delta_1T = (
      _load_vector(ref.at[here], rows)[None, :] for ref in (logsumexp_all_ref, delta_all_ref)
    )
    scores_ST = _shown(_dot(k_SK, q_TK, contract=(1, 1)), visible_ST)
    weights_ST = _exp2(scores_ST * job.log2_scale - logsumexp_1T, job)
    dv_SK += _dot(weights_ST.astype(d_out_TK.dtype), d_out_TK)
    d_scores_ST = weights_ST * (_dot(v_SK, d_out_TK, contract=(1, 1)) - delta_1T)
    return dk_SK + _dot(d_scores_ST.astype(q_TK.dtype), q_TK), dv_SK

  start = _fill(0, *k_SK.shape), _fill(0, *k_SK.shape)
  dk_SK, dv_SK = _over_query_tiles(query_tile, start, limits_ref, list_ref, job)
  _store(dk_ref, dk_SK * job.scale, job, keys)
  _store(dv_ref, dv_SK, job, keys)


def _over_key_tiles(step, carry, limits_ref, list_ref, job):
  """Folds step(first key, carry, visible [T, S] or None, keys or None) over the key tiles of this program's
  queries. `keys` is the number of keys that exist in the tile, None for all."""
  low, high, offset = (limits_ref[i] for i in range(3))
  q0 = offset + pl.program_id(0) * job.tile_q
  q_T = q0 + lax.iota(jnp.int32, job.tile_q)
  first_T1 = jnp.maximum(_spread(job.pattern.first(q_T), q_T), low)[:, None]
  end_T1 = jnp.minimum(_spread(job.pattern.end(q_T), q_T), high)[:, None]

  def tile(number, carry, masked):
    k0 = number * job.tile_k
    if not masked:
      return step(k0, carry, None, None)
    k_1S = (k0 + lax.iota(jnp.int32, job.tile_k))[None, :]
    return step(k0, carry, (k_1S >= first_T1) & (k_1S < end_T1), _filled(job.keys, job.tile_k, number))

  if list_ref is not None:
    return _fold_list(tile, carry, list_ref)
  q1 = jnp.minimum(q0 + job.tile_q, offset + job.length)
  some, all_ = job.pattern.seen_by_any(q0, q1), job.pattern.seen_by_all(q0, q1)
  return _fold_interval(tile, carry, some, all_, low, high, job.tile_k)


def _over_query_tiles(step, carry, limits_ref, list_ref, job):
  """Folds step(first query, carry, visible [S, T] or None, queries or None) over the query tiles of this
  program's keys. Queries are counted from the first of the array."""
  low, high, offset = (limits_ref[i] for i in range(3))
  k0 = pl.program_id(0) * job.tile_k
  k_S = k0 + lax.iota(jnp.int32, job.tile_k)
  first_S1 = (_spread(job.pattern.first_query(k_S), k_S) - offset)[:, None]
  end_S = _spread(job.pattern.end_query(k_S), k_S) - offset
  end_S1 = jnp.where((k_S >= low) & (k_S < high), end_S, -UNBOUNDED)[:, None]

  def tile(number, carry, masked):
    q0 = number * job.tile_q
    if not masked:
      return step(q0, carry, None, None)
    q_1T = (q0 + lax.iota(jnp.int32, job.tile_q))[None, :]
    return step(q0, carry, (q_1T >= first_S1) & (q_1T < end_S1), _filled(job.length, job.tile_q, number))

  if list_ref is not None:
    return _fold_list(tile, carry, list_ref)
  shown0, shown1 = jnp.maximum(k0, low), jnp.minimum(k0 + job.tile_k, high)
  some_first, some_end = (x - offset for x in job.pattern.seeing_any(shown0, shown1))
  all_first, all_end = (x - offset for x in job.pattern.seeing_all(k0, k0 + job.tile_k))
  some = some_first, jnp.where(shown0 < shown1, some_end, 0)
  all_ = all_first, jnp.where(shown1 - shown0 == job.tile_k, all_end, 0)
  return _fold_interval(tile, carry, some, all_, 0, job.length, job.tile_q)


def _fold_interval(tile, carry, some, all_, low, high, size):
  """Folds tile(number, carry, masked) over the tiles of `size` positions that reach into the interval `some`.
  Tiles inside the interval `all_` need no mask. Both intervals are cut to low <= position < high."""
  some_first, some_end, all_first, all_end = (jnp.clip(x, low, high) for x in (*some, *all_))
  first = lax.div(some_first, size)
  end = jnp.maximum(lax.div(some_end + (size - 1), size), first)
  clear_first = jnp.clip(lax.div(all_first + (size - 1), size), first, end)
  clear_end = jnp.clip(lax.div(all_end, size), clear_first, end)
  # The order of tiles is free, so one loop visits the masked tiles of both margins.
  left = clear_first - first

  def margin(i, carry):
    return tile(jnp.where(i < left, first + i, clear_end + (i - left)), carry, True)

  carry = lax.fori_loop(0, left + (end - clear_end), margin, carry)
  return lax.fori_loop(clear_first, clear_end, lambda number, carry: tile(number, carry, False), carry)


def _fold_list(tile, carry, list_ref):
  return lax.fori_loop(0, list_ref[0], lambda i, carry: tile(list_ref[i + 1], carry, True), carry)


def _filled(total, size, number):
  """The number of positions of tile `number` that exist; None if the tiles fit the array exactly."""
  return None if total % size == 0 else total - number * size


def _below(count, size):
  """A mask [size], True for the first `count`; None for None."""
  return None if count is None else lax.iota(jnp.int32, size) < count


def _mask(ref, job, count):
  """A mask of the elements of a [rows, K] tile that exist; None if all do."""
  rows, width = ref.shape
  mask = None if count is None else jnp.broadcast_to(_below(count, rows)[:, None], ref.shape)
  if width == job.width:
    return mask
  columns = jnp.broadcast_to(_below(job.width, width)[None, :], ref.shape)
  return columns if mask is None else mask & columns


def _load(ref, job, count):
  """Reads a tile [rows, K], with 0 for elements that do not exist."""
  mask = _mask(ref, job, count)
  return plgpu.load(ref, mask=mask, other=None if mask is None else 0.0)


def _load_vector(ref, count):
  mask = _below(count, *ref.shape)
  return plgpu.load(ref, mask=mask, other=None if mask is None else 0.0)


def _store(ref, x, job, count):
  plgpu.store(ref, x.astype(ref.dtype), mask=_mask(ref, job, count))


def _dot(a, b, contract=(1, 0)):
  dimensions = ((contract[0],), (contract[1],)), ((), ())
  return lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _exp2(x, job):
  """2**x by one instruction. XLA's default takes four, to be right for results below 2**-126 too."""
  if job.interpret:
    return jnp.exp2(x)
  same = [jax.ShapeDtypeStruct(x.shape, x.dtype)]
  asm = 'ex2.approx.ftz.f32 $0, $1;'
  return plgpu.elementwise_inline_asm(asm, args=[x], constraints='=f,f', pack=1, result_shape_dtypes=same)[0]


def _shown(scores, visible):
  return scores if visible is None else jnp.where(visible, scores, _HIDDEN)


def _spread(x, like):
  return jnp.broadcast_to(jnp.asarray(x, like.dtype), like.shape)


def _fill(value, *shape):
  return jnp.full(shape, value, jnp.float32)
