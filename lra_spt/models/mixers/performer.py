"""Performer: attention by random features of the softmax, FAVOR+, or by ReLU features (Choromanski et al.
2021, arXiv 2009.14794; published code: `google-research/long-range-arena`, commit cd31e5c,
`performer_attention.py`)."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_spt.models.kernel_attention import KernelAttention
from lra_spt.models.registry import Positive, register_mixer


@register_mixer('performer')
class Performer(KernelAttention):
  """Attention by products of features, per head:

      y_t = sum over s of f(q_t) . f(k_s) v_s / R_t, R_t = sum over s of f(q_t) . f(k_s),
      f(x) = relu(x) + 0.001 ('relu'), or
      f(x) = (exp(p_m . x' - |x'|^2 / 2 - c) + 1e-6) / sqrt(M) for m = 1 .. M ('favor'),

  over all s, or over s <= t in the causal form; both are published.

  The Long Range Arena used 'relu' on all tasks except ListOps. 'favor' is the paper's form: x' = x / K^(1/4),
  and p_m is random. The mean of f(q) . f(k) is then proportional to exp(q . k / sqrt(K)), apart from the
  1e-6. c is the largest p_m . x': for each query over m, for keys over m and all valid positions. In the
  causal form c is 0 for keys, where the published code takes the maximum over all positions. Padding does not
  enter the sums; in the published code it does.

  Options heads and head_dim: see `HeadProjections`.

  Args:
    features: 'relu' or 'favor'.
    random_features: M of 'favor'; the paper's is 256, the Long Range Arena's on ListOps 2.
    redraw: in training, p is drawn again at every step, once for all rows of a batch; each piece into which
      runtime.microbatches splits a batch has its own. Evaluation uses the initial draw; the published code
      draws there too.

  Raises:
    ConfigError: an option is out of range.
  """

  shared_draws = "the random features of features='favor', as published"

  def __init__(
    self,
    width: int,
    *,
    length: int,
    causal: bool,
    protocol,
    rngs: nnx.Rngs,
    heads: int = 4,
    head_dim: int = 0,
    features: Literal['relu', 'favor'] = 'relu',
    random_features: Positive = 256,
    redraw: bool = True,
    dtype=jnp.float32,
  ):
    del length, protocol  # sums know no length, and nothing departs from good practice
    super().__init__(width, heads, head_dim, causal, dtype=dtype, rngs=rngs)
    self.redraw = redraw
    self.random = features == 'favor'
    if self.random:
      self.directions = nnx.Variable(orthogonal_directions(rngs.params(), random_features, self.head_dim))

  @property
  def feature_count(self) -> int:
    return self.directions.shape[-2] if self.random else self.head_dim

  def features(self, q_BLHK, k_BLHK, valid_BL, key):
    q_BLHK, k_BLHK = q_BLHK.astype(jnp.float32), k_BLHK.astype(jnp.float32)
    if not self.random:
      return jax.nn.relu(q_BLHK) + 1e-3, jax.nn.relu(k_BLHK) + 1e-3
    p_MK = self.directions[...]
    if self.redraw and key is not None:
      p_MK = orthogonal_directions(key, *p_MK.shape)
    (q_BLHM, q_norm_BLH1), (k_BLHM, k_norm_BLH1) = (_projected(x, p_MK) for x in (q_BLHK, k_BLHK))
    q_BLHM = q_BLHM - jnp.max(q_BLHM, axis=-1, keepdims=True)
    if valid_BL is not None:
      k_BLHM = jnp.where(valid_BL[..., None, None], k_BLHM, -jnp.inf)
    exponents = (q_BLHM - q_norm_BLH1, k_BLHM - k_norm_BLH1 - self.key_shift(k_BLHM))
    return tuple(np.float32(len(p_MK) ** -0.5) * (jnp.exp(x) + 1e-6) for x in exponents)

  def key_shift(self, k_BLHM):
    """c of keys, from their products p . x', which are -inf at padding."""
    if self.causal:
      return jnp.zeros((1,) * 4)
    largest_B1H1 = jnp.max(k_BLHM, axis=(1, 3), keepdims=True)
    return jnp.where(jnp.isfinite(largest_B1H1), largest_B1H1, 0.0)  # all may be padding

  def quotient(self, y, r):
    return y / jnp.where(jnp.abs(r) <= 1e-6, r + 2e-6, r) if self.random else y / jnp.where(r == 0, 1.0, r)

  def flops(self, length: int) -> int:
    """The operations of the sums, and 4 per position, head, dimension of K and random feature."""
    random = 4 * self.feature_count * self.head_dim if self.random else 0
    return super().flops(length) + length * self.heads * random


def orthogonal_directions(key: jax.Array, count: int, size: int) -> jax.Array:
  """Draws normal vectors, float32 [count, size], that are orthogonal to each other in groups of `size`."""
  blocks, lengths = jax.random.split(key)
  normal = jax.random.normal(blocks, (-(-count // size), size, size))
  rows = jnp.linalg.qr(normal)[0].reshape(-1, size)[:count]
  norms = jnp.linalg.norm(jax.random.normal(lengths, (count, size)), axis=1, keepdims=True)
  return rows * norms


def _projected(x_BLHK, p_MK):
  """p . x' [B, L, H, M] and |x'|^2 / 2 [B, L, H, 1]."""
  x_BLHK = x_BLHK * np.float32(x_BLHK.shape[-1] ** -0.25)
  return jnp.einsum('blhk,mk->blhm', x_BLHK, p_MK), jnp.sum(x_BLHK**2, axis=-1, keepdims=True) / 2
