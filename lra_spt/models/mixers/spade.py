"""SPADE: local attention in every layer, and a state-space model in the first one (Zuo et al. 2022,
arXiv 2212.08136; published code: `microsoft/EfficientLongSequenceModeling`, commit 0819294,
`spade-modules/{spade_layer,local_attention}.py`).
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from lra_spt.errors import ConfigError
from lra_spt.models.layers import linear
from lra_spt.models.mixers.s4 import S4
from lra_spt.models.projections import HeadProjections
from lra_spt.models.registry import register_mixer
from lra_spt.ops.attention import Window, attention_weights
from lra_spt.ops.attention.patterns import visible_pairs
from lra_spt.ops.attention.sharded import sharded_attention


@register_mixer('spade')
class Spade(HeadProjections):
  """Attention to the valid positions at most `radius` away, and in the first layer the convolution of S4:

      a_t = sum over s of softmax over s of (q_t . k_s / sqrt(K) + bias(s - t)) v_s,
      y = W [LayerNorm(c), LayerNorm(a)] + b, c = K * x + D x, in the first layer, y = a in the others,

  with a learned bias per head and bucket of distances (T5), and c without the layers that follow it in S4.
  In the causal form a and c see only earlier positions and their own. Both forms are published.

  The published code is that of a language model; the code for the Long Range Arena was not released. Two
  choices are ours: every layer has its own biases, where the published code shares those of the first; and W,
  b, both norms and the state-space model exist in every layer, although only the first uses them.

  Options heads and head_dim: see `HeadProjections`; attention and convolution, the implementations: see
  `lra_spt.ops.attention` and `lra_spt.ops.fft_conv`.

  Args:
    radius: the largest distance that a position sees, published 128 and more.
    buckets, max_distance: number of buckets of distances, a multiple of 4; distances from max_distance on
      share a bucket. Published 32, 128.
    state_size: N of S4, see `lra_spt.models.mixers.s4`.
    freeze_s4: K and D keep their initial values, as published; otherwise all of S4 learns at the stage's
      rate.
    depth, layer: depth of the model, and the number of the layer from 0.

  Raises:
    ConfigError: an option is out of range.
  """

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
    radius: int = 128,
    buckets: int = 32,
    max_distance: int = 128,
    state_size: int = 64,
    freeze_s4: bool = True,
    depth: int = 1,
    layer: int | jax.Array = 0,
    attention: str = '',
    convolution: str = '',
    dtype=jnp.float32,
  ):
    names = ('query', 'key', 'value')
    super().__init__(width, heads, head_dim, names, gain=0.5**0.5, dtype=dtype, rngs=rngs)
    if radius < 0 or buckets < 4 or buckets % 4 or max_distance <= buckets // 2:
      raise ConfigError(
        f'model.mixer has radius={radius}, buckets={buckets}, max_distance={max_distance}; choose 0 or more, '
        'a multiple of 4, and more than half of it'
      )
    self.causal, self.depth = causal, depth
    self.pattern = Window(radius, 0 if causal else radius)
    radius = min(radius, length)  # no two positions are farther apart
    self.bucket_of = tuple(t5_buckets(np.arange(-radius, radius + 1), buckets, max_distance, causal).tolist())
    self.bias = nnx.Param(jax.random.normal(rngs.params(), (buckets, heads)))
    self.is_first = nnx.Variable(jnp.asarray(layer) == 0)
    self.s4 = S4(
      width,
      length=length,
      causal=causal,
      protocol=protocol,
      state_size=state_size,
      gate='none',
      convolution=convolution,
      rngs=rngs,
    )
    self.s4.output = _Identity()
    if freeze_s4:
      for module in (self.s4, self.s4.kernel):
        for name, value in list(vars(module).items()):
          if isinstance(value, nnx.Param):
            setattr(module, name, nnx.Variable(value.get_value()))
    norm = functools.partial(nnx.LayerNorm, width, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
    self.local_norm, self.global_norm = norm(), norm()
    self.combine = linear(2 * width, width, dtype=dtype, rngs=rngs)
    self.implementation = attention or None

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # no attention dropout, as in the other Transformers
    y_BLHK = sharded_attention(
      *self.project(x_BLD, 'query', 'key', 'value'),
      pattern=self.pattern,
      kv_lengths_B=lengths_B,
      bias_HR=self._bias_HR,
      implementation=self.implementation,
    )
    local_BLD = self.merge(y_BLHK)
    graphdef, state = nnx.split((self.s4, self.global_norm, self.local_norm, self.combine))

    def both(state, x_BLD, local_BLD, lengths_B):
      s4, global_norm, local_norm, combine = nnx.merge(graphdef, state)
      normed = global_norm(s4(x_BLD, lengths_B=lengths_B)), local_norm(local_BLD.astype(jnp.float32))
      return combine(jnp.concatenate(normed, axis=-1)).astype(local_BLD.dtype)

    alone = lambda state, x_BLD, local_BLD, lengths_B: local_BLD  # noqa: E731
    return lax.cond(self.is_first[...], both, alone, state, x_BLD, local_BLD, lengths_B)

  def attention_weights(self, x_BLD: jax.Array, *, lengths_B=None) -> jax.Array:
    """The weight of v_s in a_t, [B, H, L, L], see `lra_spt.ops.attention.attention_weights`."""
    call = {'pattern': self.pattern, 'kv_lengths_B': lengths_B, 'bias_HR': self._bias_HR}
    return attention_weights(*self.project(x_BLD, 'query', 'key'), **call)

  @property
  def _bias_HR(self):
    return self.bias[...][np.asarray(self.bucket_of)].T

  def flops(self, length: int) -> int:
    """Scores and weighted sum: 4 K operations per head and visible pair of query and key. Each layer also has
    an equal share of what only the first one computes. The other layers do not use W, whose weights
    `Model.flops` counts in every layer, so these are subtracted."""
    pairs = visible_pairs(self.pattern, length, length)
    unused = 2 * length * math.prod(self.combine.kernel.shape[-2:]) * (self.depth - 1)
    return 4 * self.heads * self.head_dim * pairs + (self.s4.flops(length) - unused) // self.depth


class _Identity(nnx.Module):
  """Returns the convolution unchanged."""

  def __call__(self, y_BLD, *, deterministic=True, rngs=None):
    return y_BLD


def t5_buckets(distance: np.ndarray, buckets: int, max_distance: int, causal: bool) -> np.ndarray:
  """The bucket of each distance from query to key (Raffel et al. 2020, arXiv 1910.10683, section 2.1): one
  bucket for every short distance, then wider and wider ones. Unless causal, the second half of the buckets is
  for keys after the query."""
  if causal:
    side, n = 0, np.maximum(-distance, 0)
  else:
    buckets //= 2
    side, n = np.where(distance > 0, buckets, 0), np.abs(distance)
  exact = buckets // 2
  share = np.log(np.maximum(n, 1) / exact) / np.log(max_distance / exact)
  wide = exact + (share * (buckets - exact)).astype(np.int64)
  return side + np.where(n < exact, n, np.minimum(wide, buckets - 1))
