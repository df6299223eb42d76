"""The kernel of mosaic.py, for NVIDIA Hopper GPUs, by Pallas' Mosaic GPU. It needs jax 0.11.

A block of threads owns a tile of queries of one head. One of its warpgroups copies the visited tiles of keys
and values into shared memory, a ring of `stages` places each. The other ones multiply: each has 64 queries
and keeps their running softmax (Milakov & Gimelshein, 2018) in registers. jax's example `attention_mgpu` has
the same shape; its two warpgroups also take turns between products and exponentials.

Letters: T are the 64 queries of a warpgroup, S the keys of a tile, K the padded head dimension. Scores are in
units of log 2.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from lra_spt.ops.attention.patterns import Interval

ROWS = 64  # queries of a warpgroup: the height of one matrix instruction
_HIDDEN = -1e30  # as in triton_kernels.py
_FLOOR = -1e20


@dataclasses.dataclass(frozen=True)
class MosaicLaunch:
  """Constants of a compiled kernel.

  warpgroups: those that multiply; tile_k: keys of a tile; stages: places for tiles in shared memory; width:
  the head dimension before padding; interpret: run on a CPU; detect_races: look for races there.
  """

  pattern: Interval  # for a `BlockTable`, the pattern within its blocks
  length: int
  width: int
  warpgroups: int
  tile_k: int
  stages: int = 2
  interpret: bool = False
  detect_races: bool = False

  @property
  def tile_q(self):
    return self.warpgroups * ROWS

  @property
  def log2_scale(self):
    return self.width**-0.5 * math.log2(math.e)


def forward(job: MosaicLaunch, limits_B3, lists, q_BLHK, k_BMHK, v) -> tuple[jax.Array, jax.Array]:
  """Runs the kernel: (output [B, L, H, K], logsumexp float32 [B, H, L] in units of log 2, 0 without keys).

  Args:
    limits_B3: int32: the first visible key, one past the last, and the position of the first query.
    lists: None, or int32 [tiles of queries, 1 + most]: the count of key tiles to visit, then their numbers.
    q_BLHK, k_BMHK: L and M in whole tiles, K in powers of two from 16 on.
    v: [B, M, H, K]; in float32 [B, H, K, M], because tensor cores read 32-bit operands along the sum.
  """
  (batch, length, heads, width), dtype = q_BLHK.shape, q_BLHK.dtype
  outputs = [
    jax.ShapeDtypeStruct(q_BLHK.shape, dtype),
    jax.ShapeDtypeStruct((batch, heads, length), jnp.float32),
  ]

  @functools.partial(
    plgpu.kernel,
    out_type=outputs,
    grid=(heads, length // job.tile_q, batch),
    grid_names=('head', 'tile', 'row'),
    num_threads=job.warpgroups + 1,
    thread_name='warpgroup',
    compiler_params=plgpu.CompilerParams(approx_math=True),
    interpret=plgpu.InterpretGPUParams(detect_races=job.detect_races) if job.interpret else None,
  )
  def launch(limits_ref, *refs):
    list_ref, refs = (None, refs) if lists is None else (refs[0], refs[1:])
    of_keys = (job.tile_k, width), (width, job.tile_k) if wide else (job.tile_k, width)
    rings = [_shared((job.stages, *shape), dtype, width) for shape in of_keys]
    weights = _shared((job.warpgroups, ROWS, job.tile_k), dtype, width) if in_memory else None
    pl.run_scoped(
      lambda *scratch: _body(limits_ref, list_ref, *refs, *scratch, job=job),
      _shared((job.warpgroups, ROWS, width), dtype, width),
      *rings,
      weights,
      plgpu.SMEM((job.warpgroups, ROWS), jnp.float32),
      plgpu.Barrier(num_barriers=job.warpgroups),
      [plgpu.Barrier(num_barriers=job.stages)] * 2,
      [plgpu.Barrier(num_arrivals=job.warpgroups, num_barriers=job.stages)] * 2,
      collective_axes='warpgroup',
    )

  wide = dtype == jnp.float32
  in_memory = _weights_in_memory(job, dtype)
  return launch(limits_B3, *(() if lists is None else (lists,)), q_BLHK, k_BMHK, v)


def _weights_in_memory(job, dtype):
  """True if weights go to the second product through shared memory. The instruction takes 16-bit ones from
  registers too, which is faster, but the interpreter does not."""
  return job.interpret or dtype == jnp.float32


def _shared(shape, dtype, width):
  """Shared memory in the layout of matrix instructions. One swizzle serves both operands of a product, so the
  narrowest one, a row of values, sets it; operands in float32 have rows of keys instead."""
  size = jnp.dtype(dtype).itemsize
  swizzle = min(128, width * size)
  transforms = plgpu.TilingTransform((8, swizzle // size)), plgpu.SwizzleTransform(swizzle)
  return plgpu.SMEM(shape, dtype, transforms=transforms)


def _body(
  limits_ref, list_ref, q_ref, k_ref, v_ref, out_ref, logsumexp_ref,
  q_shared, k_ring, v_ring, weights_shared, logsumexp_shared, q_ready, ready, free, *, job
):  # fmt: skip
  head, tile, row = (lax.axis_index(name) for name in ('head', 'tile', 'row'))
  warpgroup = lax.axis_index('warpgroup')
  low, high, offset = (limits_ref[row, i] for i in range(3))
  q0 = offset + tile * job.tile_q
  if list_ref is None:  # phases of the loop: the step that ends it, and if its tiles need a mask
    first, clear_first, clear_end, end = _tiles(job, q0, low, high, offset)
    number_of = lambda i: first + i  # noqa: E731
    phases = (clear_first - first, True), (clear_end - first, False), (end - first, True)
  else:
    number_of = lambda i: list_ref[tile, i + 1]  # noqa: E731
    phases = ((list_ref[tile, 0], True),)
  steps = phases[-1][0]

  @pl.when(warpgroup == job.warpgroups)
  def _copy():
    if job.warpgroups == 2:  # the numbers of jax's example
      plgpu.set_max_registers(40, action='decrease')

    @pl.loop(0, steps)
    def _(i):
      k0, slot = number_of(i) * job.tile_k, lax.rem(i, job.stages)
      here = pl.ds(k0, job.tile_k)
      v_here = (row, head, slice(None), here) if v_ring.dtype == jnp.float32 else (row, here, head)
      for ref, index, ring, ready_, free_ in (
        (k_ref, (row, here, head), k_ring, ready[0], free[0]),
        (v_ref, v_here, v_ring, ready[1], free[1]),
      ):
        pl.when(i >= job.stages)(functools.partial(plgpu.barrier_wait, free_.at[slot]))
        plgpu.copy_gmem_to_smem(ref.at[index], ring.at[slot], ready_.at[slot])

  @pl.when(warpgroup < job.warpgroups)
  def _multiply():
    if job.warpgroups == 2:
      plgpu.set_max_registers(232, action='increase')
    q_TK = q_shared.at[warpgroup]
    mine = pl.ds(tile * job.tile_q + warpgroup * ROWS, ROWS)
    plgpu.copy_gmem_to_smem(q_ref.at[row, mine, head], q_TK, q_ready.at[warpgroup])
    plgpu.barrier_wait(q_ready.at[warpgroup])
    weights = None if weights_shared is None else weights_shared.at[warpgroup]
    visible = _visibility(job, q0 + warpgroup * ROWS, low, high)
    step = functools.partial(_key_tile, q_TK, k_ring, v_ring, weights, ready, free, visible, number_of, job)
    by_row = plgpu.Layout.WGMMA.reduce(1)
    carry = (
      plgpu.layout_cast(jnp.full((ROWS,), _FLOOR, jnp.float32), by_row),
      plgpu.layout_cast(jnp.zeros((ROWS,), jnp.float32), by_row),
      plgpu.layout_cast(jnp.zeros(q_TK.shape, jnp.float32), plgpu.Layout.WGMMA),
    )
    begin = jnp.int32(0)
    for stop, masked in phases:
      carry = lax.fori_loop(begin, stop, functools.partial(step, masked=masked), carry)
      begin = stop
    largest_T, total_T, out_TK = carry
    seen_T = total_T > 0
    total_T = jnp.where(seen_T, total_T, 1.0)
    q_TK[...] = (out_TK / lax.broadcast_in_dim(total_T, out_TK.shape, [0])).astype(q_TK.dtype)
    logsumexp_shared.at[warpgroup][...] = jnp.where(seen_T, largest_T + jnp.log2(total_T), 0.0)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(q_TK, out_ref.at[row, mine, head])
    plgpu.copy_smem_to_gmem(logsumexp_shared.at[warpgroup], logsumexp_ref.at[row, head, mine])
    plgpu.wait_smem_to_gmem(0)


def _key_tile(q_TK, k_ring, v_ring, weights, ready, free, visible, number_of, job, i, carry, *, masked):
  """Adds a tile of keys to the running softmax (largest score [T], sum of weights [T], output [T, K])."""
  largest_T, total_T, out_TK = carry
  slot = lax.rem(i, job.stages)
  plgpu.barrier_wait(ready[0].at[slot])
  scores_TS = _product(q_TK, k_ring.at[slot].transpose((1, 0)))
  plgpu.barrier_arrive(free[0].at[slot])
  spread = lambda x_T, like: lax.broadcast_in_dim(x_T, like.shape, [0])  # noqa: E731
  if masked:
    scores_TS = jnp.where(visible(number_of(i) * job.tile_k), scores_TS, _HIDDEN)
  new_largest_T = jnp.maximum(largest_T, scores_TS.max(axis=1) * job.log2_scale)
  shrink_T = jnp.exp2(largest_T - new_largest_T)
  weights_TS = jnp.exp2(scores_TS * job.log2_scale - spread(new_largest_T, scores_TS))
  total_T = total_T * shrink_T + weights_TS.sum(axis=1)
  out_TK = out_TK * spread(shrink_T, out_TK)
  weights_TS = weights_TS.astype(v_ring.dtype)
  plgpu.barrier_wait(ready[1].at[slot])
  v_SK = v_ring.at[slot]
  if v_ring.dtype == jnp.float32:
    v_SK = v_SK.transpose((1, 0))
  if weights is None:
    out_TK = pl.run_state(lambda ref: plgpu.wgmma(ref, weights_TS, v_SK))(plgpu.ACC.init(out_TK))
  else:
    weights[...] = weights_TS
    plgpu.commit_smem()
    out_TK = out_TK + _product(weights, v_SK)
  plgpu.barrier_arrive(free[1].at[slot])
  return new_largest_T, total_T, out_TK


def _product(a, b):
  """The product of two matrices in shared memory, float32 in registers."""

  def multiply(result):
    plgpu.wgmma(result, a, b)
    return result[...]

  return pl.run_scoped(multiply, plgpu.ACC((a.shape[0], b.shape[1]), jnp.float32))


def _visibility(job, q0, low, high):
  """Returns a function of the first key of a tile: bool [T, S], True where the query sees the key."""
  shape, layout = (ROWS, job.tile_k), plgpu.Layout.WGMMA
  q_T = q0 + plgpu.broadcasted_iota(jnp.int32, (ROWS,), 0, layout=layout.reduce(1))
  first, end = jnp.maximum(job.pattern.first(q_T), low), jnp.minimum(job.pattern.end(q_T), high)
  # A number, the edge of a pattern without a bound, becomes a vector, for which the compiler finds a layout.
  first, end = (lax.broadcast_in_dim(x if x.ndim else x + 0 * q_T, shape, [0]) for x in (first, end))

  def visible(k0):
    k_TS = k0 + plgpu.broadcasted_iota(jnp.int32, shape, 1, layout=layout)
    return (k_TS >= first) & (k_TS < end)

  return visible


def _tiles(job, q0, low, high, offset):
  """The visited tiles of keys as four numbers: the first; the first and one past the last that need no mask;
  one past the last."""
  q1, size = jnp.minimum(q0 + job.tile_q, offset + job.length), job.tile_k
  edges = *job.pattern.seen_by_any(q0, q1), *job.pattern.seen_by_all(q0, q1)
  some_first, some_end, all_first, all_end = (jnp.clip(jnp.int32(x), low, high) for x in edges)
  first = lax.div(some_first, size)
  end = jnp.maximum(lax.div(some_end + (size - 1), size), first)
  clear_first = jnp.clip(lax.div(all_first + (size - 1), size), first, end)
  return first, clear_first, jnp.clip(lax.div(all_end, size), clear_first, end), end
