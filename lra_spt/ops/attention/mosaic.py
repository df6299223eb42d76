"""Attention on NVIDIA Hopper GPUs by a kernel of our own in Pallas' Mosaic GPU, to outlive `triton`.

**It has not run on a GPU yet**, so it runs only where a user names it. On CPUs it is interpreted, for tests.
Gradients come from the kernels of `triton`, until a backward pass can be tried on a GPU.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from lra_spt.distributed.sharding import platform
from lra_spt.ops.attention import refusals, triton
from lra_spt.ops.attention.patterns import WIDEST, BlockTable, Causal, Full, Pattern, Window

_ROWS = 64  # queries and keys of the smallest tile
_NARROWEST = 16  # head dimension: a row of 32 bytes is the least that copies and products take


@dataclasses.dataclass(frozen=True)
class _MosaicPlan:
  pattern: Pattern
  backward: triton.TritonPlan
  interpret: bool
  detect_races: bool


def refuses(q_BLHK, k_BMHK, v_BMHK, *, pattern, q_offset, return_logsumexp=False, bias_HR=None) -> str | None:
  """Returns why `mosaic_attention` cannot run this call, as one clause, or None."""
  options = {'return_logsumexp': return_logsumexp, 'bias_HR': bias_HR}
  if reason := triton.refuses(q_BLHK, k_BMHK, v_BMHK, pattern=pattern, q_offset=q_offset, **options):
    return reason
  if isinstance(pattern, BlockTable) and pattern.block % _ROWS:
    return f'needs blocks of a multiple of {_ROWS} tokens in a BlockTable, not {pattern.block}'
  if jax.__version_info__ < (0, 11):
    return f'needs jax 0.11 or newer, not {jax.__version__}'
  if refusals.capability() not in (None, 9.0):
    return 'needs an NVIDIA GPU of compute capability 9.0 (Hopper)'
  return None


def mosaic_attention(
  q_BLHK,
  k_BMHK,
  v_BMHK,
  *,
  pattern,
  kv_lengths_B=None,
  kv_starts_B=None,
  q_offset=0,
  interpret: bool | None = None,
  detect_races: bool = False,
) -> jax.Array:
  """See `attention`. Products of float32 arrays are rounded to TF32, whatever the precision.

  Args:
    interpret: run in the interpreter, without a GPU. None: on CPUs.
    detect_races: raise RuntimeError where the interpreter finds a race; docs/attention.md says which.
  """
  interpret = platform() == 'cpu' if interpret is None else interpret
  backward = triton.plan_for(pattern, q_BLHK, k_BMHK, interpret=interpret)
  limits_B3 = triton.limits_of(q_BLHK, k_BMHK, kv_starts_B, kv_lengths_B, q_offset)
  return _attend(_MosaicPlan(pattern, backward, interpret, detect_races), q_BLHK, k_BMHK, v_BMHK, limits_B3)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, q_BLHK, k_BMHK, v_BMHK, limits_B3):
  return _attend_forward(plan, q_BLHK, k_BMHK, v_BMHK, limits_B3)[0]


def _attend_forward(plan, q_BLHK, k_BMHK, v_BMHK, limits_B3):
  results = _run(plan, q_BLHK, k_BMHK, v_BMHK, limits_B3)
  out_BLHK, logsumexp_BHL = checkpoint_name(results, 'mixer')
  return out_BLHK, (q_BLHK, k_BMHK, v_BMHK, limits_B3, out_BLHK, logsumexp_BHL)


def _attend_backward(plan, saved, d_out_BLHK):
  return triton.attend_backward(plan.backward, saved, d_out_BLHK)


_attend.defvjp(_attend_forward, _attend_backward)


def _run(plan, q_BLHK, k_BMHK, v_BMHK, limits_B3):
  from lra_spt.ops.attention import mosaic_kernels

  (_, length, _, width), keys, pattern = q_BLHK.shape, k_BMHK.shape[1], plan.pattern
  # Both sizes divide the blocks of a table. Tiles in float32 take twice the shared memory.
  twice = not isinstance(pattern, BlockTable) or pattern.block % (2 * _ROWS) == 0
  tile_q = 2 * _ROWS if twice and length > _ROWS else _ROWS
  tile_k = 2 * _ROWS if twice and keys > _ROWS and q_BLHK.dtype != jnp.float32 else _ROWS
  lists = None
  if isinstance(pattern, BlockTable):
    lists = triton.visit_lists(pattern, length, keys, triton.Tile(tile_q, tile_k), by_keys=False)
    lists, pattern = jnp.asarray(lists), Causal() if pattern.causal else Full()
  if isinstance(pattern, Full):
    pattern = Window(WIDEST, WIDEST)  # the same here; of two edges without a bound jax finds no layout
  job = mosaic_kernels.MosaicLaunch(
    pattern, length, width, tile_q // _ROWS, tile_k, interpret=plan.interpret, detect_races=plan.detect_races
  )
  padded = max(_NARROWEST, 1 << (width - 1).bit_length())
  q_BLHK, k_BMHK, v_BMHK = (
    jnp.pad(x, ((0, 0), (0, -x.shape[1] % size), (0, 0), (0, padded - width)))
    for x, size in ((q_BLHK, tile_q), (k_BMHK, tile_k), (v_BMHK, tile_k))
  )
  v = jnp.moveaxis(v_BMHK, 1, 3) if v_BMHK.dtype == jnp.float32 else v_BMHK
  out_BLHK, logsumexp_BHL = mosaic_kernels.forward(job, limits_B3, lists, q_BLHK, k_BMHK, v)
  return out_BLHK[:, :length, :, :width], logsumexp_BHL[:, :, :length]
