"""SGConv: structured global convolution (Li et al. 2022, arXiv 2210.09298, "What Makes Convolutional Models
Great on Long Sequence Modeling?"; published code: `ctlllll/SGConv`, commit 97862df,
`gconv_standalone.py`)."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_spt.errors import ConfigError
from lra_spt.models.registry import ParameterGroup, Positive, register_mixer
from lra_spt.models.ssm import LongConvolution, of_channels


class MultiscaleKernel(nnx.Module):
  """Kernels of J pieces k_j of d values each, stretched to increasing lengths and weighted:

      K = [w_0 k_0, w_1 k_1, w_2 stretch(k_2, 2), w_3 stretch(k_3, 4), ...] / |K| at the start ('cat'), or
      K = (w_0 k_0 + w_1 stretch(k_1, 2) + w_2 stretch(k_2, 4) + ...) / |K| at the start ('sum'),
      w_j = decay^(J-1-j), decay of each channel.

  With 'cat' the pieces follow each other, d 2^(J-1) lags in all, with the smallest J that covers `length`;
  with 'sum' all begin at lag 0. The kernel is divided by its initial L2 norm.

  Parameter (float32): pieces [S, D, J, d], which start as N(0, 1). Not trained: norm [S, D, 1], the L2 norms
  of the kernels from the initial pieces (published: from the first forward pass).

  Args:
    kernel_dim: d.
    decay_min, decay_max: decays of the first and the last channel, with equal steps between.
    mode: 'cat' or 'sum'.
    interpolation: between the values of a stretched piece: 'linear', around half-pixel centres, or 'nearest'.
    kernel_lr: constant learning rate of the pieces, which have weight decay, as published; 0.0: the stage's
      rate.
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    directions: int,
    rngs: nnx.Rngs,
    kernel_dim: Positive = 32,
    decay_min: float = 2.0,
    decay_max: float = 2.0,
    mode: Literal['cat', 'sum'] = 'cat',
    interpolation: Literal['linear', 'nearest'] = 'linear',
    kernel_lr: float = 1e-3,
  ):
    if not 0 < decay_min <= decay_max:
      raise ConfigError(
        f'model.mixer.decay_min is {decay_min} and decay_max is {decay_max}; they must be positive, '
        'decay_min at most decay_max'
      )
    self.width, self.decay_range, self.mode = width, (decay_min, decay_max), mode
    self.is_linear = interpolation == 'linear'
    count = 1 + max(0, math.ceil(math.log2(length / kernel_dim)))
    self.pieces = nnx.Param(
      jax.random.normal(rngs.params(), (directions, width, count, kernel_dim)),
      ssm=True,
      group=ParameterGroup(kernel_lr or None, decay=True),
    )
    self.norm = nnx.Variable(jnp.zeros((directions, width, 1)))
    self.redrawn()

  def redrawn(self) -> None:
    """Recomputes the norms from the current pieces; layers may be stacked along further axes before S."""
    self.norm[...] = jnp.linalg.norm(self._whole(self.pieces[...], None), axis=-1, keepdims=True)

  def __call__(self, length: int, channels: jax.Array | None = None) -> jax.Array:
    """Returns the kernels of all channels or of those given, float32 [S, D, L]. L is `length` or, if there
    are fewer, the number of lags."""
    pieces_SDJK, norm_SD1 = (of_channels(x[...], channels, 1) for x in (self.pieces, self.norm))
    return self._whole(pieces_SDJK, channels)[..., :length] / norm_SD1

  def _whole(self, pieces, channels):
    """Joins pieces [.., D, J, d] to kernels [.., D, lags], before the division by the norm."""
    count = pieces.shape[-2]
    decay_D = of_channels(np.linspace(*self.decay_range, self.width), channels)
    weight_DJ = jnp.power(jnp.float32(decay_D)[:, None], np.arange(count - 1, -1, -1, dtype=np.float32)[None])
    pieces = jnp.expand_dims(weight_DJ[..., None], range(pieces.ndim - 3)) * pieces
    first = 1 if self.mode == 'cat' else 0
    stretched = [stretch(pieces[..., j, :], 2 ** max(0, j - first), self.is_linear) for j in range(count)]
    if self.mode == 'cat':
      return jnp.concatenate(stretched, axis=-1)
    longest = stretched[-1].shape[-1]
    rest = [(0, 0)] * (pieces.ndim - 2)
    return sum(jnp.pad(x, [*rest, (0, longest - x.shape[-1])]) for x in stretched)


def stretch(x: jax.Array, factor: int, is_linear: bool) -> jax.Array:
  """[.., d] -> [.., factor d]: repeats every value `factor` times or, if `is_linear`, interpolates between
  half-pixel centres (output j at input (j + 1/2) / factor - 1/2), constant beyond the first and the last."""
  offset_F = np.float32((np.arange(factor) + 0.5) / factor - 0.5) * is_linear
  before = jnp.concatenate([x[..., :1], x[..., :-1]], axis=-1) - x
  after = jnp.concatenate([x[..., 1:], x[..., -1:]], axis=-1) - x
  axes = range(x.ndim)
  left_F, right_F = (jnp.expand_dims(np.maximum(f, 0), axes) for f in (-offset_F, offset_F))
  stretched = x[..., None] + left_F * before[..., None] + right_F * after[..., None]
  return stretched.reshape(*x.shape[:-1], -1)


@register_mixer('sgconv')
class SGConv(LongConvolution):
  """SGConv: long convolution, skip, GELU, dropout, Linear and, unless gate is 'none', GLU:

      y = GLU(W GELU(K * x + D x) + b).

  Padding is masked under every protocol. Both forms are published. Options: see `MultiscaleKernel`.

  Row: decay, mode and learning rate as published; the other values are ours and follow S4.
  """

  kernel_type = MultiscaleKernel
