"""PaTH attention: softmax attention in which products of Householder-like matrices between key and query take
the place of positions (Yang et al. 2025, arXiv 2505.16381).

Positions are processed in chunks. Within a chunk the products have the form of the delta rule, with the same
triangular system, and each chunk has one matrix by which queries pass it on the way to earlier keys. Memory
grows with the length, time with its square.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from lra_spt.ops.delta_rule import unit_inverse

CHUNK = 64


def path_attention(
  q_BLHK: jax.Array,
  k_BLHK: jax.Array,
  v_BLHP: jax.Array,
  w_BLHK: jax.Array,
  beta_BLH: jax.Array,
  hidden_BLH: jax.Array | None = None,
  *,
  direction: str = 'forward',
  chunk: int | None = None,
) -> jax.Array:
  """Softmax over s <= t of q_t^T M_t M_{t-1} ... M_{s+1} k_s / sqrt(K), times v, where M_r = I - beta_r w_r
  w_r^T. The score of a position with itself is q_t . k_t / sqrt(K).

  Differentiable in reverse mode; the backward pass keeps only the arguments and repeats the forward pass.
  Works under jit, vmap, scan, checkpoint and shard_map. Scores between chunks, and products with v, run in
  the dtype of v and accumulate in float32; all other products are float32.

  Args:
    w_BLHK: vectors of norm 1, or 0, which leaves queries as they are.
    beta_BLH: float32, from 0 to 2.
    hidden_BLH: bool; True: only the position itself sees this key, as needed for padding. None: none is
      hidden.
    direction: 'forward' (causal), or 'backward': over s >= t, with M_t M_{t+1} ... M_{s-1}.
    chunk: T, positions per chunk, a power of two; it need not divide the length. None: 64.

  Returns:
    y float32 [B, L, H, P].
  """
  B, L, H, _ = q_BLHK.shape
  hidden_BLH = jnp.zeros((B, L, H), bool) if hidden_BLH is None else hidden_BLH
  arrays = (q_BLHK, k_BLHK, v_BLHP, w_BLHK, beta_BLH, hidden_BLH)
  backward = direction == 'backward'
  if backward:
    arrays = [jnp.flip(x, 1) for x in arrays]
  chunk = CHUNK if chunk is None else chunk
  y_BLHP = _attend(min(chunk, 1 << (L - 1).bit_length()), *arrays)
  return checkpoint_name(jnp.flip(y_BLHP, 1) if backward else y_BLHP, 'mixer')


@functools.partial(jax.checkpoint, static_argnums=(0,))
def _attend(chunk, q_BLHK, k_BLHK, v_BLHP, w_BLHK, beta_BLH, hidden_BLH):
  (B, L, H, K), dtype = q_BLHK.shape, v_BLHP.dtype

  def chunked(x_BLH):  # [C, B, H, T, ...]
    x_BLH = jnp.pad(x_BLH, ((0, 0), (0, -L % chunk)) + ((0, 0),) * (x_BLH.ndim - 2))
    return jnp.moveaxis(x_BLH.reshape(B, -1, chunk, *x_BLH.shape[2:]), (1, 3), (0, 2))

  q, k, v, w, beta, hidden = (chunked(x) for x in (q_BLHK, k_BLHK, v_BLHP, w_BLHK, beta_BLH, hidden_BLH))
  q, k, w = (x.astype(jnp.float32) for x in (q, k, w))
  lower = np.tril(np.ones((chunk, chunk), bool))[(None,) * 3]
  strict, self_ = np.tril(lower, -1), np.eye(chunk, dtype=bool)[(None,) * 3]
  across = functools.partial(jnp.swapaxes, axis1=-1, axis2=-2)
  weighted = beta[..., None] * w
  inverse = unit_inverse(jnp.where(strict, _exact(weighted, across(w)), 0.0))
  keys_in = _exact(inverse, jnp.where(strict, _exact(weighted, across(k)), 0.0))
  through = _exact(inverse, weighted)
  seen_w = jnp.where(lower, _exact(q, across(w)), 0.0)
  scale = K**-0.5
  local = scale * (_exact(q, across(k)) - _exact(seen_w, keys_in))
  visible = lower & (self_ | ~hidden[..., None, :])
  local = jnp.where(visible, local, -jnp.inf)
  q = scale * (q - _exact(seen_w, through))  # at the beginning of its chunk
  k = k - _exact(across(keys_in), w)  # at the end of its chunk
  passing = _exact(across(w), through)

  @jax.checkpoint
  def row(of_queries):
    i, q_BHTK, local_BHTS, own_BHSP = of_queries
    top_BHT1 = jnp.max(local_BHTS, -1, keepdims=True)
    weights = jnp.exp(local_BHTS - top_BHT1)
    start = q_BHTK, top_BHT1, weights.sum(-1, keepdims=True), _product(weights.astype(dtype), own_BHSP)

    def step(carry, of_keys):
      q_BHTK, top, total, y = carry
      j, k_BHSK, v_BHSP, hidden_BHS, passing_BHKK = of_keys
      scores = _product(q_BHTK.astype(dtype), across(k_BHSK).astype(dtype))
      scores = jnp.where((j < i) & ~hidden_BHS[:, :, None], scores, -jnp.inf)
      higher = jnp.maximum(top, scores.max(-1, keepdims=True))
      weights, old = jnp.exp(scores - higher), jnp.exp(top - higher)
      y = y * old + _product(weights.astype(dtype), v_BHSP)
      passed = jnp.where(j < i, q_BHTK - _exact(q_BHTK, passing_BHKK), q_BHTK)
      return (passed, higher, total * old + weights.sum(-1, keepdims=True), y), None

    chunks = jnp.arange(len(k), dtype=jnp.int32), k, v, hidden, passing
    (_, _, total, y_BHTP), _ = lax.scan(step, start, chunks, reverse=True)
    return y_BHTP / total

  y_CBHTP = lax.map(row, (jnp.arange(len(q), dtype=jnp.int32), q, local, v))
  return jnp.moveaxis(y_CBHTP, (0, 2), (1, 3)).reshape(B, -1, H, v.shape[-1])[:, :L]


def _exact(x, y):
  return jnp.matmul(x, y, precision='highest')


def _product(x, y):
  return jnp.matmul(x, y, preferred_element_type=jnp.float32)
