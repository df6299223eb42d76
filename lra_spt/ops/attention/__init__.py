"""Softmax attention: one public function, several implementations that agree with each other."""

import jax
import jax.numpy as jnp

from lra_spt.ops.attention.blockwise import blockwise_attention
from lra_spt.ops.attention.patterns import Causal, Full, Pattern
from lra_spt.ops.attention.reference import reference_attention

__all__ = ['Causal', 'Full', 'Pattern', 'attention']

_IMPLEMENTATIONS = {'blockwise': blockwise_attention, 'reference': reference_attention}


def attention(
  q_BLHK: jax.Array,
  k_BMHK: jax.Array,
  v_BMHK: jax.Array,
  *,
  pattern: Pattern,
  kv_lengths_B: jax.Array | None = None,
  q_offset: int | jax.Array = 0,
  implementation: str | None = None,
) -> jax.Array:
  """softmax(q k^T / sqrt(K)) v over the keys that `pattern` shows to each query (Vaswani et al. 2017, 3.2.1).

  Works under jit, vmap, scan, checkpoint and shard_map (rows of the batch split over devices, all arrays
  alike); nothing in it knows a mesh. Differentiable once, in reverse mode, by q, k and v.

  Args:
    q_BLHK: queries, floating point.
    k_BMHK: keys, same dtype; M may differ from L.
    v_BMHK: values, shape and dtype of the keys.
    pattern: which keys a query sees: `Full()`, `Causal()`.
    kv_lengths_B: int32 [B]; keys at positions >= length are hidden. None shows all M.
    q_offset: position of the first query among the keys, an int or an int32 scalar.
    implementation: 'blockwise' (memory linear in L and M), 'reference' (dense, for tests) or None, which is
      'blockwise' on every platform.

  Returns:
    Array [B, L, H, K] of the queries' dtype; queries without any visible key get 0, and so do their
    gradients. Softmax statistics are float32 whatever the dtype (float64 for float64).

  Raises:
    ValueError: for an unknown implementation, or shapes or dtypes that do not fit together.
  """
  if implementation is not None and implementation not in _IMPLEMENTATIONS:
    known = ', '.join(_IMPLEMENTATIONS)
    raise ValueError(f'attention implementation {implementation!r} is unknown; choose {known}, or None')
  _check(q_BLHK, k_BMHK, v_BMHK, kv_lengths_B)
  attend = _IMPLEMENTATIONS[implementation or 'blockwise']
  return attend(q_BLHK, k_BMHK, v_BMHK, pattern=pattern, kv_lengths_B=kv_lengths_B, q_offset=q_offset)


def _check(q, k, v, lengths):
  """Raises ValueError where the arrays do not fit together."""
  if q.ndim != 4 or k.shape != v.shape or k.shape[:1] + k.shape[2:] != q.shape[:1] + q.shape[2:]:
    raise ValueError(
      f'attention got queries {q.shape}, keys {k.shape} and values {v.shape}; '
      'pass queries [B, L, H, K] and keys and values [B, M, H, K]'
    )
  if 0 in q.shape or 0 in k.shape:
    raise ValueError(
      f'attention got an empty array: queries {q.shape}, keys {k.shape}; every size must be at least 1'
    )
  if not q.dtype == k.dtype == v.dtype or not jnp.issubdtype(q.dtype, jnp.floating):
    raise ValueError(
      f'attention got queries of {q.dtype}, keys of {k.dtype} and values of {v.dtype}; '
      'cast them to one floating dtype'
    )
  if lengths is not None and (lengths.shape != q.shape[:1] or not jnp.issubdtype(lengths.dtype, jnp.integer)):
    raise ValueError(
      f'kv_lengths_B is {lengths.dtype} of shape {lengths.shape}; '
      f'pass int32 of shape {q.shape[:1]}, one length per row'
    )
