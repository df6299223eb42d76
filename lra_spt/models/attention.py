"""Multi-head self-attention as a mixer (paper section 3.1-3.2; published code `mha.py`)."""

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.models.layers import linear
from lra_spt.models.registry import register_mixer
from lra_spt.ops.attention import Causal, Full, attention
from lra_spt.ops.rotary import rotary
from lra_spt.parallel import rows_island


@register_mixer('attention')
class Attention(nnx.Module):
  """Softmax attention with H heads of K = D / H dimensions, scale 1/sqrt(K), optionally with rotary position
  encoding on queries and keys.

  protocol.tied_qkvo_init starts the four projections from one set of weights, and protocol.attend_to_padding
  lets valid positions attend to padding, both as published.
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
    dtype=jnp.float32,
    implementation: str | None = None,
  ):
    if heads < 1 or width % heads:
      raise ValueError(
        f'model.width is {width}, which model.mixer.heads={heads} does not divide; choose heads that divide '
        'the width'
      )
    if rotary and width // heads % 2:
      raise ValueError(
        f'rotary positions need an even head dimension, but model.width / heads is {width // heads}; change '
        'one of them'
      )
    self.heads, self.rotary, self.causal = heads, rotary, causal
    self.attend_to_padding = protocol.attend_to_padding
    self.implementation = implementation
    names = ('query', 'key', 'value', 'out')
    keys = [rngs.params()] * 4 if protocol.tied_qkvo_init else [rngs.params() for _ in names]
    for name, key in zip(names, keys, strict=True):
      setattr(self, name, linear(width, width, dtype=dtype, rngs=nnx.Rngs(key)))

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the paper's models use no attention dropout
    B, L, D = x_BLD.shape
    q_BLHK, k_BLHK, v_BLHK = (
      p(x_BLD).reshape(B, L, self.heads, D // self.heads) for p in (self.query, self.key, self.value)
    )
    if self.rotary:
      q_BLHK, k_BLHK = rotary(q_BLHK), rotary(k_BLHK)
    pattern = Causal() if self.causal else Full()

    def attend(q_BLHK, k_BLHK, v_BLHK, lengths_B):
      return attention(
        q_BLHK, k_BLHK, v_BLHK, pattern=pattern, kv_lengths_B=lengths_B, implementation=self.implementation
      )

    y_BLHK = rows_island(attend)(q_BLHK, k_BLHK, v_BLHK, None if self.attend_to_padding else lengths_B)
    return self.out(y_BLHK.reshape(B, L, D))

  def flops(self, length: int) -> int:
    """Scores and weighted sum: two L x L x D products, half of them when causal."""
    width = self.query.kernel.shape[-1]
    return 4 * length * length * width // (2 if self.causal else 1)
