"""Attention as Pallas kernels for NVIDIA GPUs, lowered through Triton.

One kernel computes the output, one the gradient of the queries, one the gradients of keys and values. A
kernel visits only tiles with visible pairs, and masks only tiles that also have hidden ones. On a CPU the
same kernels run interpreted, for tests.

The backward pass computes the weights twice, once by tiles of queries and once by tiles of keys. A single
kernel would add to the gradient of the queries in an order that changes from run to run.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from lra_spt.distributed.sharding import platform
from lra_spt.ops.attention import refusals
from lra_spt.ops.attention import triton_kernels as kernels
from lra_spt.ops.attention.patterns import UNBOUNDED, BlockTable, Causal, Full, Pattern, shown_keys

WIDEST = 128  # head dimension
_SMALLEST = 16  # tiles and head dimensions below would leave tensor cores unused


@dataclasses.dataclass(frozen=True)
class Tile:
  """A tile: its size, and how a program computes it."""

  queries: int  # a power of two, at least 16
  keys: int  # a power of two, at least 16
  warps: int = 4  # of a program
  stages: int = 2  # of the pipeline of loads


class KernelTiles(NamedTuple):
  """The tile of each kernel."""

  forward: Tile  # output
  d_queries: Tile  # gradient of queries
  d_keys: Tile  # gradients of keys and values


# By kind of device (empty: any), head dimension (rounded up to a power of two) and bytes per number. Entries
# for any device fit the shared memory of every GPU since Ampere (compiled for three of them), but their speed
# has not been measured. `python -m benchmarks accelerator --parts=tune` measures them and others, and prints
# the lines to add here for its device.
_TILES = {
  ('', 16, 2): KernelTiles(Tile(128, 64, 4, 3), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
  ('', 32, 2): KernelTiles(Tile(128, 64, 4, 3), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
  ('', 64, 2): KernelTiles(Tile(128, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
  ('', 128, 2): KernelTiles(Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(32, 64, 8, 2)),
  ('', 16, 4): KernelTiles(Tile(128, 64, 4, 3), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
  ('', 32, 4): KernelTiles(Tile(128, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
  ('', 64, 4): KernelTiles(Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(32, 64, 4, 2)),
  ('', 128, 4): KernelTiles(Tile(64, 32, 4, 2), Tile(32, 32, 4, 2), Tile(32, 32, 4, 2)),
}


@dataclasses.dataclass(frozen=True)
class TritonPlan:
  """Constants of the three kernels of a call."""

  pattern: Pattern
  tiles: KernelTiles
  interpret: bool


def refuses(q_BLHK, k_BMHK, v_BMHK, *, pattern, q_offset, return_logsumexp=False, bias_HR=None) -> str | None:
  """Returns why the kernels cannot run this call, as one clause, or None."""
  del k_BMHK, q_offset
  if platform() == 'tpu':
    return 'runs on GPUs, and interpreted on CPUs'
  if reason := refusals.of_call(q_BLHK, v_BMHK, return_logsumexp, bias_HR, refusals.SIXTEEN_AND_32_BITS):
    return reason
  if q_BLHK.shape[-1] > WIDEST:
    return f'takes head dimensions up to {WIDEST}, not {q_BLHK.shape[-1]}'
  if isinstance(pattern, BlockTable) and pattern.block % _SMALLEST:
    return f'needs blocks of a multiple of {_SMALLEST} tokens in a BlockTable, not {pattern.block}'
  if (capability := refusals.capability()) is not None and capability < 8:
    return 'needs an NVIDIA GPU of compute capability 8.0 (Ampere) or newer'
  return None


def triton_attention(
  q_BLHK,
  k_BMHK,
  v_BMHK,
  *,
  pattern,
  kv_lengths_B=None,
  kv_starts_B=None,
  q_offset=0,
  tiles: KernelTiles | None = None,
  interpret: bool | None = None,
) -> jax.Array:
  """See `attention`.

  Products of float32 arrays follow `jax.default_matmul_precision`: TF32 unless that is 'highest', which makes
  them exact. Products of bfloat16 and float16 arrays add up in float32.

  Args:
    tiles: replaces the sizes of `_TILES`. Tiles larger than the arrays or a table's blocks are cut to them.
    interpret: run in the interpreter, without a GPU. None: on CPUs.
  """
  plan = plan_for(pattern, q_BLHK, k_BMHK, tiles, interpret)
  limits_B3 = limits_of(q_BLHK, k_BMHK, kv_starts_B, kv_lengths_B, q_offset)
  return _attend(plan, q_BLHK, k_BMHK, v_BMHK, limits_B3)


def plan_for(pattern, q_BLHK, k_BMHK, tiles=None, interpret=None) -> TritonPlan:
  """The constants of a call; see `triton_attention`."""
  tiles = tiles or tiles_for(q_BLHK.shape[-1], q_BLHK.dtype)
  tiles = KernelTiles(*(_fitted(tile, q_BLHK.shape[1], k_BMHK.shape[1], pattern) for tile in tiles))
  return TritonPlan(pattern, tiles, platform() == 'cpu' if interpret is None else interpret)


def limits_of(q_BLHK, k_BMHK, kv_starts_B, kv_lengths_B, q_offset) -> jax.Array:
  """int32 [B, 3]: the first visible key, one past the last, the position of the first query."""
  batch, keys = k_BMHK.shape[:2]
  offset_B = jnp.broadcast_to(jnp.asarray(q_offset, jnp.int32), (batch,))
  return jnp.stack([*shown_keys(kv_starts_B, kv_lengths_B, batch, keys), offset_B], axis=1)


def tiles_for(width: int, dtype) -> KernelTiles:
  """The tiles for a head dimension and dtype on the device for which the program is compiled."""
  device = jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
  key = _power_of_two(width), jnp.dtype(dtype).itemsize
  return _TILES.get((device.device_kind, *key), _TILES['', *key])


def _power_of_two(size):
  return max(_SMALLEST, 1 << (size - 1).bit_length())


def _fitted(tile, length, keys, pattern):
  """The tile, cut to the size of the arrays and, for a BlockTable, to a divisor of its blocks."""
  most = pattern.block & -pattern.block if isinstance(pattern, BlockTable) else UNBOUNDED
  sizes = (min(size, _power_of_two(n), most) for size, n in ((tile.queries, length), (tile.keys, keys)))
  return Tile(*sizes, tile.warps, tile.stages)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, q_BLHK, k_BMHK, v_BMHK, limits_B3):
  return _attend_forward(plan, q_BLHK, k_BMHK, v_BMHK, limits_B3)[0]


def _attend_forward(plan, q_BLHK, k_BMHK, v_BMHK, limits_B3):
  batch, length, heads, _ = q_BLHK.shape
  logsumexp_BHL = jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)
  results = _launch(
    kernels.forward_kernel, plan, plan.tiles.forward, limits_B3, (q_BLHK,), (k_BMHK, v_BMHK),
    of_queries=(q_BLHK, logsumexp_BHL),
  )  # fmt: skip
  out_BLHK, logsumexp_BHL = checkpoint_name(results, 'mixer')
  return out_BLHK, (q_BLHK, k_BMHK, v_BMHK, limits_B3, out_BLHK, logsumexp_BHL)


def attend_backward(plan: TritonPlan, saved, d_out_BLHK):
  """The gradients of q, k and v, and None for the limits.

  saved: q, k, v, limits [B, 3], output, and logsumexp float32 [B, H, L] in units of log 2.
  """
  q_BLHK, k_BMHK, v_BMHK, limits_B3, out_BLHK, logsumexp_BHL = saved
  # The softmax has the gradient dS = P * (dP - delta) with delta = sum over keys of P * dP = out . d_out.
  delta_BLH = jnp.sum(out_BLHK.astype(jnp.float32) * d_out_BLHK.astype(jnp.float32), axis=-1)
  queries = q_BLHK, d_out_BLHK, logsumexp_BHL, jnp.swapaxes(delta_BLH, 1, 2)
  launch = functools.partial(_launch, plan=plan, limits_B3=limits_B3, queries=queries, keys=(k_BMHK, v_BMHK))
  (dq_BLHK,) = launch(kernels.d_queries_kernel, tile=plan.tiles.d_queries, of_queries=(q_BLHK,))
  dk_BMHK, dv_BMHK = launch(kernels.d_keys_kernel, tile=plan.tiles.d_keys, of_keys=(k_BMHK, v_BMHK))
  return dq_BLHK, dk_BMHK, dv_BMHK, None


_attend.defvjp(_attend_forward, attend_backward)


def _launch(kernel, plan, tile, limits_B3, queries, keys, of_queries=(), of_keys=()):
  """Runs a kernel. Each program owns a tile of queries if the outputs are `of_queries`, else a tile of keys.

  Programs of one head follow each other, so that the arrays that they all read stay in the L2 cache.
  """
  length, total = queries[0].shape[1], keys[0].shape[1]
  pattern, lists = plan.pattern, None
  if isinstance(pattern, BlockTable):
    lists = jnp.asarray(visit_lists(pattern, length, total, tile, by_keys=bool(of_keys)))
    pattern = Causal() if pattern.causal else Full()
  job = kernels.KernelLaunch(
    pattern, length, total, queries[0].shape[-1], tile.queries, tile.keys, plan.interpret
  )
  owned = functools.partial(_spec, size=tile.keys if of_keys else tile.queries, whole=False)
  walked = functools.partial(_spec, size=tile.queries if of_keys else tile.keys, whole=True)
  batch, _, heads, _ = queries[0].shape
  tiles = pl.cdiv(total, tile.keys) if of_keys else pl.cdiv(length, tile.queries)
  outputs = of_queries + of_keys
  return pl.pallas_call(
    functools.partial(kernel, job=job),
    grid=(tiles, heads, batch),
    in_specs=[
      pl.BlockSpec((None, 3), lambda i, h, b: (b, 0)),
      None if lists is None else pl.BlockSpec((None, lists.shape[1]), lambda i, h, b: (i, 0)),
      *map(walked if of_keys else owned, queries),
      *map(owned if of_keys else walked, keys),
    ],
    out_specs=[owned(x) for x in outputs],
    out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs],
    compiler_params=plgpu.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
    interpret=plan.interpret,
    name=f'attention_{kernel.__name__}',
  )(limits_B3, lists, *queries, *keys)


def _spec(x, size, whole):
  """The block of one head that a program reads: a tile of `size` rows, or all rows if `whole`."""
  if x.ndim == 3:  # [B, H, L]
    if whole:
      return pl.BlockSpec((None, None, pl.cdiv(x.shape[2], size) * size), lambda i, h, b: (b, h, 0))
    return pl.BlockSpec((None, None, size), lambda i, h, b: (b, h, i))
  width = _power_of_two(x.shape[3])
  if whole:
    return pl.BlockSpec((None, pl.cdiv(x.shape[1], size) * size, None, width), lambda i, h, b: (b, 0, h, 0))
  return pl.BlockSpec((None, size, None, width), lambda i, h, b: (b, i, h, 0))


@functools.lru_cache(maxsize=64)
def visit_lists(pattern: BlockTable, length: int, keys: int, tile: Tile, by_keys: bool) -> np.ndarray:
  """int32 [tiles, 1 + most]: for each query tile the count of key tiles that it visits, then their numbers.
  With `by_keys`, the same for each key tile and the query tiles that it visits."""
  q0, k0 = (np.arange(pl.cdiv(n, size)) * size for n, size in ((length, tile.queries), (keys, tile.keys)))
  mask = pattern.mask(pl.cdiv(keys, pattern.block))
  rows = q0 // pattern.block
  seen = mask[np.minimum(rows, len(mask) - 1)][:, k0 // pattern.block] & (rows < len(mask))[:, None]
  if pattern.causal:
    seen &= k0[None, :] < q0[:, None] + tile.queries
  seen = seen.T if by_keys else seen
  counts = seen.sum(axis=1)
  numbers = np.argsort(~seen, axis=1, kind='stable')[:, : max(counts.max(), 1)]
  return np.concatenate([counts[:, None], numbers], axis=1).astype(np.int32)
