"""Dense attention: all L x M scores at once, gradients by automatic differentiation; for tests."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_spt.ops.attention.bias import by_distance
from lra_spt.ops.attention.decay import bias_of_pairs, running_sums
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
  log_decay_BMHX=None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
  """See `attention`; memory grows with L * M."""
  call = {'kv_lengths_B': kv_lengths_B, 'kv_starts_B': kv_starts_B, 'q_offset': q_offset, 'bias_HR': bias_HR}
  weights_BHLM, _, logsumexp_BHL = _softmax(
    q_BLHK, k_BMHK, pattern=pattern, log_decay_BMHX=log_decay_BMHX, **call
  )
  v_BMHV, dtype = v_BMHV.astype(weights_BHLM.dtype), q_BLHK.dtype
  out_BLHV = jnp.einsum('bhlm,bmhv->blhv', weights_BHLM, v_BMHV).astype(dtype)
  return (out_BLHV, jnp.swapaxes(logsumexp_BHL, 1, 2)) if return_logsumexp else out_BLHV


def reference_weights(
  q_BLHK, k_BMHK, *, pattern, kv_lengths_B=None, bias_HR=None, log_decay_BMHX=None
) -> jax.Array:
  """See `attention_weights`."""
  call = {'kv_lengths_B': kv_lengths_B, 'bias_HR': bias_HR, 'log_decay_BMHX': log_decay_BMHX}
  weights_BHLM, visible_BHLM, _ = _softmax(q_BLHK, k_BMHK, pattern=pattern, **call)
  least = jnp.finfo(weights_BHLM.dtype).tiny  # a weight that rounds to 0 is not that of a hidden key
  return jnp.where(visible_BHLM, jnp.maximum(weights_BHLM, least), 0)


def _softmax(
  q_BLHK,
  k_BMHK,
  *,
  pattern,
  kv_lengths_B=None,
  kv_starts_B=None,
  q_offset=0,
  bias_HR=None,
  log_decay_BMHX=None,
):
  """Returns the weights and which keys are visible, [B, H, L, M], and the logsumexp of scores, [B, H, L]."""
  dtype = np.promote_types(q_BLHK.dtype, np.float32)
  (_, length, _, width), keys = q_BLHK.shape, k_BMHK.shape[1]
  q, k = q_BLHK.astype(dtype), k_BMHK.astype(dtype)
  scores_BHLM = jnp.einsum('blhk,bmhk->bhlm', q, k) * width**-0.5
  if bias_HR is not None:
    distance_LM = np.arange(keys)[None] - np.arange(length)[:, None] - jnp.asarray(q_offset, jnp.int32)
    scores_BHLM += by_distance(bias_HR.astype(dtype), distance_LM)[None]
  if log_decay_BMHX is not None:
    sums_BHMX = jnp.swapaxes(running_sums(log_decay_BMHX.astype(dtype)), 1, 2)
    sums_BHXL = jnp.swapaxes(lax.dynamic_slice_in_dim(sums_BHMX, q_offset, length, axis=2), 2, 3)
    scores_BHLM += jnp.swapaxes(jax.vmap(jax.vmap(bias_of_pairs))(sums_BHXL, sums_BHMX), 2, 3)

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
  logsumexp_BHL1 = jnp.where(visible_BHLM.any(-1, keepdims=True), largest + jnp.log(total), -jnp.inf)
  return weights_BHLM / total, visible_BHLM, logsumexp_BHL1[..., 0]
