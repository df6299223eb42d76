"""Multi-head self-attention as a mixer (Vaswani et al. 2017, arXiv 1706.03762; rotary positions: Su et al.
2021, arXiv 2104.09864; paper section 3.1-3.2; published code: `IdoAmos/not-from-scratch`, commit f919137,
`src/models/sequence/mha.py`, `local_attention/local_attention.py`)."""

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.errors import ConfigError
from lra_spt.models.layers import check_heads, linear
from lra_spt.models.registry import NotNegative, register_mixer
from lra_spt.ops.attention import Causal, Full, Neighbours, attention_weights
from lra_spt.ops.attention.patterns import visible_pairs
from lra_spt.ops.attention.sharded import sharded_attention
from lra_spt.ops.rotary import rotary


@register_mixer('attention')
class Attention(nnx.Module):
  """Softmax attention with H heads of K = D / H dimensions:

      y_t = W_o [sum over s of a_ts v_s, head by head] + b_o,
      a_ts = softmax over s of q_t . k_s / sqrt(K),

  over the positions s that t sees; q, k and v are linear in x.

  Args:
    heads: H.
    rotary: rotary position encoding of queries and keys.
    rotary_dimensions: the number of the K dimensions that are rotated, the first ones; 0: all.
    block: a query sees the keys of its own block of this many positions, of `back` blocks before and, unless
      causal, of `forward` blocks after. 0: it sees every key or, if causal, those up to its own position.
    attention: the implementation, see `lra_spt.ops.attention`; '': by platform.

  Under protocol.tied_qkvo_init the four projections start from one set of weights, and under
  protocol.attend_to_padding valid positions attend to padding, both as published.
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    causal: bool,
    protocol,
    rngs: nnx.Rngs,
    heads: int,
    rotary: bool = False,
    rotary_dimensions: int = 0,
    block: NotNegative = 0,
    back: NotNegative = 1,
    forward: NotNegative = 1,
    attention: str = '',
    dtype=jnp.float32,
  ):
    check_heads(heads, width)
    if rotary and not rotary_dimensions and width // heads % 2:
      raise ConfigError(
        f'rotary positions need an even head dimension, but model.width / heads is {width // heads}; change '
        'one of them'
      )
    if rotary_dimensions and not rotary:
      raise ConfigError(
        f'model.mixer.rotary_dimensions is {rotary_dimensions} without model.mixer.rotary; set it, or leave '
        'this out'
      )
    if rotary_dimensions % 2 or not 0 <= rotary_dimensions <= width // heads:
      raise ConfigError(
        f'model.mixer.rotary_dimensions is {rotary_dimensions}; choose an even number up to the '
        f'{width // heads} dimensions of a head, or 0 for all'
      )
    self.heads, self.rotary, self.causal = heads, rotary, causal
    self.turned = rotary_dimensions or None
    if block:
      self.pattern = Neighbours(block, back, 0 if causal else forward, causal)
    else:
      self.pattern = Causal() if causal else Full()
    self.attend_to_padding = protocol.attend_to_padding
    self.implementation = attention or None
    names = ('query', 'key', 'value', 'out')
    keys = [rngs.params()] * 4 if protocol.tied_qkvo_init else [rngs.params() for _ in names]
    for name, key in zip(names, keys, strict=True):
      setattr(self, name, linear(width, width, dtype=dtype, rngs=nnx.Rngs(key)))

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the paper's models use no attention dropout
    q_BLHK, k_BLHK, v_BLHK = self._projected(x_BLD, self.query, self.key, self.value)
    seen = self._seen(lengths_B)
    y_BLHK = sharded_attention(q_BLHK, k_BLHK, v_BLHK, implementation=self.implementation, **seen)
    return self.out(y_BLHK.reshape(x_BLD.shape))

  def attention_weights(self, x_BLD: jax.Array, *, lengths_B=None) -> jax.Array:
    """a_ts of every head, [B, H, L, L], see `lra_spt.ops.attention.attention_weights`."""
    q_BLHK, k_BLHK = self._projected(x_BLD, self.query, self.key)
    return attention_weights(q_BLHK, k_BLHK, **self._seen(lengths_B))

  def _projected(self, x_BLD, *projections):
    """Returns the projections [B, L, H, K] of x, those of queries and keys turned by their positions."""
    heads = (*x_BLD.shape[:2], self.heads, x_BLD.shape[2] // self.heads)
    q_BLHK, k_BLHK, *v_BLHK = (projection(x_BLD).reshape(heads) for projection in projections)
    if self.rotary:
      q_BLHK, k_BLHK = rotary(q_BLHK, turned=self.turned), rotary(k_BLHK, turned=self.turned)
    return q_BLHK, k_BLHK, *v_BLHK

  def _seen(self, lengths_B):
    """Returns which keys a query sees, as arguments of attention."""
    return {'pattern': self.pattern, 'kv_lengths_B': None if self.attend_to_padding else lengths_B}

  def flops(self, length: int) -> int:
    """Scores and weighted sum: 4 K operations per head and visible pair of query and key."""
    return 4 * self.query.kernel.shape[-1] * visible_pairs(self.pattern, length, length)
