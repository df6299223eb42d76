"""Dense attention: all L x M scores at once, gradients by automatic differentiation; for tests."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_spt.ops.attention.bias import by_distance
from lra_spt.ops.attention.patterns import dense_mask


def refuses(q_BLHK, k_BMHK, v_BMHV, *, pattern, q_offset, return_logsumexp=False, bias_HR=None) -> None:
  """Returns None: this implementation runs every call on every platform."""


def reference_attention(
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
) -> jax.Array | tuple[jax.Array, jax.Array]:
  """See `attention`; memory grows with L * M."""
  dtype = np.promote_types(q_BLHK.dtype, np.float32)
  (_, length, _, width), keys = q_BLHK.shape, k_BMHK.shape[1]
  q, k, v = (x.astype(dtype) for x in (q_BLHK, k_BMHK, v_BMHV))
  scores_BHLM = jnp.einsum('blhk,bmhk->bhlm', q, k) * width**-0.5
  if bias_HR is not None:
    distance_LM = np.arange(keys)[None] - np.arange(length)[:, None] - jnp.asarray(q_offset, jnp.int32)
    scores_BHLM += by_distance(bias_HR.astype(dtype), distance_LM)[None]

  visible_LM = dense_mask(pattern, length, keys, q_offset)
  visible_BHLM = jnp.broadcast_to(visible_LM[None, None], scores_BHLM.shape)
  k_BHLM = lax.broadcasted_iota(jnp.int32, scores_BHLM.shape, 3)
  for edges_B, inside in ((kv_lengths_B, jnp.less), (kv_starts_B, jnp.greater_equal)):
    if edges_B is not None:
      edges_B111 = edges_B.astype(jnp.int32)[:, None, None, None]
      visible_BHLM &= inside(k_BHLM, jnp.broadcast_to(edges_B111, k_BHLM.shape))

  # Hidden scores are replaced before and after exp: rows without a visible key have weights and gradients 0.
  scores_BHLM = jnp.where(visible_BHLM, scores_BHLM, jnp.finfo(dtype).min)
  largest = lax.stop_gradient(scores_BHLM.max(axis=-1, keepdims=True))
  weights_BHLM = jnp.where(visible_BHLM, jnp.exp(scores_BHLM - largest), 0)
  total = jnp.maximum(weights_BHLM.sum(axis=-1, keepdims=True), jnp.finfo(dtype).tiny)
  out_BLHV = jnp.einsum('bhlm,bmhv->blhv', weights_BHLM / total, v).astype(q_BLHK.dtype)
  if not return_logsumexp:
    return out_BLHV
  logsumexp_BHL1 = jnp.where(visible_BHLM.any(-1, keepdims=True), largest + jnp.log(total), -jnp.inf)
  return out_BLHV, jnp.swapaxes(logsumexp_BHL1[..., 0], 1, 2)
