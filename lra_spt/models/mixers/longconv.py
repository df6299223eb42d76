"""LongConv: convolutions with free kernels as long as the sequence (Fu et al. 2023, arXiv 2302.06646, "Simple
Hardware-Efficient Long Convolutions for Sequence Modeling"; published code: `HazyResearch/safari`, commit
02220c6, `long_conv.py`, `long_conv_kernel.py`)."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_spt.errors import ConfigError
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import LongConvolution, group, of_channels


class SquashedKernel(nnx.Module):
  """Kernels with free values k ("squash", soft thresholding):

      K_l = sign(k_l) max(|k_l| - threshold, 0).

  Parameter (float32): taps = k [S, E, length], E = kernels D, the first kernels of all channels before the
  second ones. Values within the threshold get no gradient, as published.

  Args:
    kernels: kernels per channel and direction; all their outputs are inputs of the linear map (published
      `channels`).
    threshold: threshold of the squash (published `kernel_lam`), not negative.
    kernel_dropout: rate at which single values of the squashed kernel are dropped in training. All rows of a
      batch share the dropped values; each piece into which runtime.microbatches splits a batch has its own.
    init: initial k: 'random' N(0, 0.002^2), or 'exp' N(0, 0.02^2) times exp(-l/length floor(D/2)^(d/D)) at
      lag l of channel d: the higher the channel, the shorter its memory.
    kernel_lr: constant learning rate of k, without weight decay; 0.0: the stage's rate.
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    directions: int,
    rngs: nnx.Rngs,
    kernels: Positive = 2,
    threshold: float = 0.003,
    kernel_dropout: float = 0.2,
    init: Literal['random', 'exp'] = 'random',
    kernel_lr: float = 1e-3,
  ):
    if not threshold >= 0:
      raise ConfigError(f'model.mixer.threshold is {threshold}; it must not be negative')
    if not 0 <= kernel_dropout < 1:
      raise ConfigError(f'model.mixer.kernel_dropout is {kernel_dropout}; choose a rate from 0 to below 1')
    self.kernels, self.threshold, self.dropout = kernels, threshold, kernel_dropout
    taps_SEL = jax.random.normal(rngs.params(), (directions, kernels * width, length))
    if init == 'random':
      taps_SEL *= 0.002
    else:
      taps_SEL *= 0.02 * jnp.asarray(np.tile(decays(width, length), (kernels, 1)))[None]
    self.taps = nnx.Param(taps_SEL, ssm=True, group=group(kernel_lr))

  def __call__(self, length: int, channels: jax.Array | None = None) -> jax.Array:
    """Returns the kernels, float32 [S, E, L], for all E or those given. L is at most the length for which the
    kernel was built."""
    taps_SEL = of_channels(self.taps[..., :length], channels, 1)
    return jnp.sign(taps_SEL) * jnp.maximum(jnp.abs(taps_SEL) - self.threshold, 0)

  def drop(self, kernel_SEL: jax.Array, key: jax.Array, channels: jax.Array | None = None) -> jax.Array:
    """Drops values of the kernel and divides the others by the fraction that remains."""
    S, E, L = kernel_SEL.shape
    # With a key per channel, shards of channels draw the same numbers as one device.
    keys_E = jax.vmap(lambda channel: jax.random.fold_in(key, channel))(
      jnp.arange(E) if channels is None else channels
    )
    keep_ESL = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - self.dropout, (S, L)))(keys_E)
    return jnp.where(keep_ESL.swapaxes(0, 1), kernel_SEL / (1 - self.dropout), 0.0)


def decays(width: int, length: int) -> np.ndarray:
  """exp(-l/L floor(D/2)^(d/D)) at lag l of channel d, float32 [D, L] (published `double_exp`)."""
  rate_D1 = (width // 2) ** (np.arange(width)[:, None] / width)
  return np.exp(-np.arange(length) / length * rate_D1).astype(np.float32)


@register_mixer('longconv')
class LongConv(LongConvolution):
  """LongConv: several long convolutions and skips of every channel, then GELU, dropout, Linear and GLU:

      y = GLU(W GELU([K_1 * x + D_1 x, K_2 * x + D_2 x, ...]) + b).

  As in the published layer, padding is masked under every protocol. Both forms are published: bidirectional
  on Pathfinder and PathX, causal on the other tasks. Options: see `SquashedKernel`.

  Row: kernels, gate and tied dropout as published for all tasks; norm, threshold, dropout of the kernel and
  its learning rate as published for most of them.
  """

  kernel_type = SquashedKernel
  shared_draws = 'the values of the kernel that kernel_dropout drops, as published'
