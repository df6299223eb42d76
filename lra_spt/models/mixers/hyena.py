"""Hyena: gates and long convolutions with kernels made by a small network (Poli et al. 2023, arXiv
2302.10866; published code: `HazyResearch/safari`, commit 02220c6, `hyena.py`)."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from lra_spt.distributed.sharding import rows_island, sequence_shards
from lra_spt.errors import ConfigError
from lra_spt.models.gated import short_convolution
from lra_spt.models.layers import linear
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import group, of_channels, zero_padding
from lra_spt.ops.fft_conv import fft_conv

# TPUs round factors to bfloat16 by default, which can tell apart no more than 256 positions.
_matmul = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


@register_mixer('hyena')
class Hyena(nnx.Module):
  """x_0, ..., x_{N-1}, v = conv(W_i x + b_i), each of D channels; then for i = N-1, ..., 1

      v = K_i * (v x_i) + s_i v x_i, and y = W_o (v x_0) + b_o.

  The kernel of each channel is K(l) = exp(-r l / (L - 1)) m(z_l) over lags l of at most L. z_l is learned; it
  starts as l / (L - 1) and waves cos, -sin of 2 pi f l / L. m is a network of three layers, each followed by
  sin(w h), where w is one learned vector, and a linear map. r is fixed, between 3.1 and 15.4 over channels
  and kernels. W_i and W_o run in `dtype`, the rest in float32.

  The causal form is the published one. The bidirectional form is ours: the network makes a second set of
  kernels, over the future from lag 1 on, and conv sees both sides of its position. There is no recurrent
  form.

  Args:
    order: N.
    taps: positions that conv sees.
    features: numbers in z_l, odd: one position and pairs of waves.
    hidden: width of the network; the defaults of `features` and `hidden` are ours.
    filter_lr: constant learning rate of the network, without weight decay; 0: the stage's rate. The rate of z
      is 1e-5, as published.
    convolution: the implementation of the Fourier transforms, see `lra_spt.ops.fft_conv`; '': by platform.

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
    order: int = 2,
    taps: Positive = 3,
    features: int = 33,
    hidden: Positive = 64,
    filter_lr: float = 1e-3,
    convolution: str = '',
    dtype=jnp.float32,
  ):
    del protocol  # nothing departs from good practice
    if order < 2:
      raise ConfigError(f'model.mixer.order is {order}; it must be at least 2')
    if features < 3 or features % 2 == 0:
      raise ConfigError(f'model.mixer.features is {features}; choose an odd number from 3 on')
    self.causal, self.order, self.hidden = causal, order, hidden
    self.convolution = convolution or None
    directions = 1 if causal else 2

    def uniform(inputs, *shape, **metadata):
      bound = 1 / math.sqrt(inputs)
      return nnx.Param(jax.random.uniform(rngs.params(), shape, minval=-bound, maxval=bound), **metadata)

    streams = (order + 1) * width
    self.input = linear(width, streams, dtype=dtype, rngs=rngs)
    self.out = linear(width, width, dtype=dtype, rngs=rngs)
    self.conv, self.conv_bias = uniform(taps, taps, streams), uniform(taps, streams)
    self.skip = nnx.Param(jax.random.normal(rngs.params(), (width * (order - 1),)))
    network = {'group': group(filter_lr)}
    self.positions = nnx.Param(jnp.asarray(waves(length, features)), group=group(1e-5))
    self.first = uniform(features, features, hidden, **network)
    self.first_bias = uniform(features, hidden, **network)
    self.second = uniform(hidden, hidden, hidden, **network)
    self.second_bias = uniform(hidden, hidden, **network)
    self.third = uniform(hidden, hidden, hidden, **network)
    self.third_bias = uniform(hidden, hidden, **network)
    self.last = uniform(hidden, hidden, directions * width * (order - 1), **network)
    self.frequencies = nnx.Param(jnp.ones(hidden), **network)

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published operator has no dropout
    B, L, D = x_BLD.shape
    shards = sequence_shards(L)
    if D % shards:
      raise ConfigError(
        f'runtime.mesh.seq is {shards}, which does not divide model.width {D}, but long convolutions split '
        'channels instead of positions; choose a divisor'
      )
    streams_BLE = zero_padding(self.input(x_BLD).astype(jnp.float32), lengths_B)
    ahead = 0 if self.causal else (len(self.conv) - 1) // 2
    streams_BLE = short_convolution(
      jnp.pad(streams_BLE, ((0, 0), (0, ahead), (0, 0))), self.conv[...], self.conv_bias[...]
    )[:, ahead:]
    streams_BLDI = jnp.swapaxes(streams_BLE.reshape(B, L, self.order + 1, D), 2, 3)
    graphdef, parameters = nnx.split(self)

    # Kernels and convolutions in one island: devices then sum gradients of the network's few parameters.
    def mix(streams_BLDI, lengths_B, parameters, channels=None):
      kernels_OSDL = nnx.merge(graphdef, parameters).kernels(L)
      v_BLD = streams_BLDI[..., -1]
      for i in range(self.order - 1):
        # Padding is not 0 after conv, and would reach valid positions.
        v_BLD = zero_padding(v_BLD * streams_BLDI[..., self.order - 1 - i], lengths_B)
        kernel_SDL = of_channels(kernels_OSDL[i], channels, 1)
        v_BLD = checkpoint_name(fft_conv(v_BLD, kernel_SDL, implementation=self.convolution), 'mixer')
      return v_BLD * streams_BLDI[..., 0]

    def mix_channels(streams_BLDI, lengths_B, parameters):
      streams_BLDI = lax.all_to_all(streams_BLDI, 'seq', split_axis=2, concat_axis=1, tiled=True)
      count = streams_BLDI.shape[2]
      y_BLD = mix(streams_BLDI, lengths_B, parameters, lax.axis_index('seq') * count + jnp.arange(count))
      return lax.all_to_all(y_BLD, 'seq', split_axis=1, concat_axis=2, tiled=True)

    island = (
      rows_island(mix, whole=(2,)) if shards == 1 else rows_island(mix_channels, whole=(2,), split=(0,))
    )
    return self.out(island(streams_BLDI, lengths_B, parameters))

  def kernels(self, length: int) -> jax.Array:
    """The kernels with their skips, float32 [N - 1, S, D, L]. L is at most the length for which the mixer was
    built. S is 1, or 2 with the kernels over the future, which start at lag 1."""
    z_LF = self.positions[:length]
    for kernel, bias in (
      (self.first, self.first_bias),
      (self.second, self.second_bias),
      (self.third, self.third_bias),
    ):
      z_LF = jnp.sin(self.frequencies[...][None] * (_matmul(z_LF, kernel[...]) + bias[...][None]))
    count, built = len(self.skip), len(self.positions)
    kernels_LSE = _matmul(z_LF, self.last[...]).reshape(len(z_LF), -1, count)
    rates_E = -np.linspace(math.log(0.01) / 1.5, math.log(0.01) / 0.3, count)
    lags_L1 = np.linspace(0, 1, built)[: len(z_LF), None]
    kernels_LSE = kernels_LSE * np.exp(-lags_L1 * rates_E).astype(np.float32)[:, None]
    kernels_LSE = kernels_LSE.at[0, 0].add(self.skip[...])
    # The kernels of one channel are neighbours.
    return jnp.transpose(kernels_LSE.reshape(*kernels_LSE.shape[:2], -1, self.order - 1), (3, 1, 2, 0))

  def flops(self, length: int) -> int:
    """Per channel: two real FFTs of length 2 L for each kernel, and 2 per position for each tap of each
    stream. Kernels are made once per batch and not counted."""
    width, taps = self.out.kernel.shape[-1], self.conv.shape[-2]
    transforms = 2 * 2.5 * 2 * length * math.log2(max(2 * length, 2)) * (self.order - 1)
    return round(transforms * width) + 2 * taps * length * (self.order + 1) * width


def waves(length: int, features: int) -> np.ndarray:
  """Features of positions, float32 [L, features]: the position from 0 to 1, and cos and -sin of
  (features - 1) / 2 waves."""
  bands = (features - 1) // 2
  phase = 2 * np.pi * np.arange(length)[:, None] / length * np.linspace(1e-4, bands - 1, bands)
  position = np.linspace(0, 1, length)[:, None]
  return np.concatenate([position, np.cos(phase), -np.sin(phase)], axis=1).astype(np.float32)
