"""Linear maps into and out of heads, for the efficient Transformers of the Long Range Arena."""

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.errors import ConfigError
from lra_spt.models.layers import Linear


class HeadProjections(nnx.Module):
  """A mixer's linear maps between the width D and H heads of K dimensions: without biases and Xavier-uniform,
  as in google-research/long-range-arena, commit cd31e5c. Matrix products run in `dtype`.

  `gain` scales the range of the maps into heads. A mixer that returns the unchanged outputs of heads has no
  map `out`.

  Every such mixer has these options.

  Args:
    heads: H.
    head_dim: K; 0: width / heads.

  Raises:
    ConfigError: the sizes do not fit.
  """

  def __init__(
    self,
    width: int,
    heads: int,
    head_dim: int,
    names,
    *,
    gain: float = 1.0,
    out: bool = True,
    dtype=jnp.float32,
    rngs: nnx.Rngs,
  ):
    if heads < 1 or head_dim < 0:
      raise ConfigError(
        f'model.mixer has heads={heads}, head_dim={head_dim}; choose at least 1 head, and a head_dim of at '
        'least 1, or 0 for width / heads'
      )
    if not head_dim and width % heads:
      raise ConfigError(
        f'model.width is {width}, which model.mixer.heads={heads} does not divide; choose heads that divide '
        'the width, or set model.mixer.head_dim'
      )
    self.heads, self.head_dim = heads, head_dim or width // heads
    inner = self.heads * self.head_dim

    def projection(inputs, outputs, gain=1.0):
      init = nnx.initializers.variance_scaling(gain**2, 'fan_avg', 'uniform')
      return Linear(inputs, outputs, use_bias=False, dtype=dtype, kernel_init=init, rngs=rngs)

    for name in names:
      setattr(self, name, projection(width, inner, gain))
    if out:
      self.out = projection(inner, width)

  def project(self, x_BLD: jax.Array, *names: str) -> list[jax.Array]:
    """Applies the maps of these names to x: each [B, L, H, K]."""
    heads = (*x_BLD.shape[:2], self.heads, self.head_dim)
    return [getattr(self, name)(x_BLD).reshape(heads) for name in names]

  def merge(self, y_BLHK: jax.Array) -> jax.Array:
    """The output [B, L, D] from the outputs of heads."""
    return self.out(y_BLHK.reshape(*y_BLHK.shape[:2], -1))
