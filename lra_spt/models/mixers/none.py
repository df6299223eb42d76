"""No mixing: the mixer of the bag of tokens, see `lra_spt.models.controls`."""

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.models.registry import register_mixer


@register_mixer('none')
class NoMixing(nnx.Module):
  """No position sees another:

      y = 0,

  so the causal and the bidirectional form are the same.
  """

  def __init__(self, width: int, *, length: int, causal: bool, protocol, rngs: nnx.Rngs, dtype=jnp.float32):
    del width, length, protocol, rngs, dtype
    self.causal = causal

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del lengths_B, deterministic, rngs
    return jnp.zeros_like(x_BLD)
