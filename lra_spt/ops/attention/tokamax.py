"""Attention on NVIDIA GPUs by the kernels of tokamax, an optional package: pip install 'lra_spt[gpu]'.

Its kernels show each query one interval of keys and skip tiles outside. Such masks have no public name in
tokamax, so setup.py bounds its version. On CPUs tokamax computes dense scores in XLA, for tests.
"""

import importlib.util

import jax
import jax.numpy as jnp

from lra_spt.distributed.sharding import platform
from lra_spt.ops.attention import refusals
from lra_spt.ops.attention.patterns import UNBOUNDED, BlockTable, shown_keys


def refuses(q_BLHK, k_BMHK, v_BMHK, *, pattern, q_offset, return_logsumexp=False, bias_HR=None) -> str | None:
  """Returns why `tokamax_attention` cannot run this call, as one clause, or None."""
  del k_BMHK, q_offset
  if platform() == 'tpu':
    return 'runs on GPUs, and dense on CPUs'
  if reason := refusals.of_call(q_BLHK, v_BMHK, return_logsumexp, bias_HR, refusals.SIXTEEN_AND_32_BITS):
    return reason
  if isinstance(pattern, BlockTable):
    return 'shows one interval of keys per query, so it has no BlockTable'
  if jax.__version_info__ < (0, 11):
    return f'needs jax 0.11 or newer, not {jax.__version__}'
  if importlib.util.find_spec('tokamax') is None:
    return "needs the package tokamax: pip install 'lra_spt[gpu]'"
  if (capability := refusals.capability()) is not None and not 8 <= capability < 11:
    return 'needs an NVIDIA GPU of compute capability 8.0 to 10.x'
  return None


def tokamax_attention(
  q_BLHK,
  k_BMHK,
  v_BMHK,
  *,
  pattern,
  kv_lengths_B=None,
  kv_starts_B=None,
  q_offset=0,
  kernel: str | None = None,
) -> jax.Array:
  """See `attention`. Products of float32 arrays follow `jax.default_matmul_precision` as in `triton`.

  Args:
    kernel: 'mosaic_gpu', 'triton' or 'xla', in tokamax. None: on Hopper and Blackwell the first, whose
      gradients need these; on older GPUs the second; on CPUs the third.
  """
  from tokamax._src.ops.attention import api, base

  (batch, length), keys = q_BLHK.shape[:2], k_BMHK.shape[1]
  q_1L = jnp.asarray(q_offset, jnp.int32) + jnp.arange(length, dtype=jnp.int32)[None]
  start_B, end_B = shown_keys(kv_starts_B, kv_lengths_B, batch, keys)
  start_BL = jnp.broadcast_to(jnp.maximum(pattern.first(q_1L), start_B[:, None]), (batch, length))
  end_BL = jnp.broadcast_to(jnp.minimum(pattern.end(q_1L), end_B[:, None]), (batch, length))
  sees_BL = start_BL < end_BL
  # Kernels divide by the sum of weights, so queries that see no key see key 0 here, and get 0 below.
  start_BL, end_BL = jnp.where(sees_BL, start_BL, 0), jnp.where(sees_BL, end_BL, 1)
  bounded = kv_starts_B is not None, kv_lengths_B is not None
  everything = pattern.first(0) == -UNBOUNDED and pattern.end(0) == UNBOUNDED and not any(bounded)
  mask = base.Mask() if everything else base.Mask(k_start=start_BL[:, None], k_end=end_BL[:, None])
  if kernel is None:
    older = (refusals.capability() or 9) < 9
    kernel = 'xla' if platform() == 'cpu' else 'triton' if older else 'mosaic_gpu'
  exact = jax.config.jax_default_matmul_precision in ('highest', 'float32')
  precision = jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT
  out_BLHK = api.IMPLEMENTATIONS[kernel](q_BLHK, k_BMHK, v_BMHK, mask=mask, precision=precision)
  return jnp.where(sees_BL[..., None, None], out_BLHK, 0)
