"""Parts of state-space mixers: the long convolution around their kernels, and the gated output layer."""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from lra_spt.distributed.sharding import rows_island, sequence_shards
from lra_spt.errors import ConfigError
from lra_spt.models.layers import Dropout, linear, valid_positions
from lra_spt.models.registry import ParameterGroup
from lra_spt.ops.fft_conv import fft_conv

GATES = ('glu', 'none')


class GatedOutput(nnx.Module):
  """The layers after the convolution of S4 and DLR: GELU (exact), dropout, Linear(E, 2D), GLU (published
  `s4.py`, `dss.py`); without the gate, Linear(E, D). The linear map runs in `dtype`, the rest in float32.

  Args:
    width: D, of the output.
    inputs: E; 0: D.
    gate: 'glu' or 'none'.
  """

  def __init__(
    self,
    width: int,
    *,
    inputs: int = 0,
    gate: str = 'glu',
    dropout: float = 0.0,
    tied_dropout: bool = False,
    dtype=jnp.float32,
    rngs: nnx.Rngs,
  ):
    if gate not in GATES:
      raise ConfigError(f'model.mixer.gate is {gate!r}; choose one of {", ".join(GATES)}')
    self.gated = gate == 'glu'
    self.dropout = Dropout(dropout, tied_dropout)
    self.linear = linear(inputs or width, 2 * width if self.gated else width, dtype=dtype, rngs=rngs)

  def __call__(self, y_BLE: jax.Array, *, deterministic: bool = True, rngs=None) -> jax.Array:
    y_BLE = self.dropout(jax.nn.gelu(y_BLE, approximate=False), deterministic=deterministic, rngs=rngs)
    y_BLD = self.linear(y_BLE)
    return jax.nn.glu(y_BLD, axis=-1) if self.gated else y_BLD


class LongConvolution(nnx.Module):
  """A mixer whose kernel K is a function of its parameters:

      y = output(K * x + D x).

  Every channel is convolved with its own kernel: K_0 over the past and, unless causal, K_1 over the future,
  which starts at lag 1. A subclass names its `kernel_type`, a module with

  - `kernel_type(width, *, length, directions, rngs, **options)`,
  - `kernel(length, channels=None)` -> float32 [S, D, length], S = 1 (causal) or 2, for all channels or for
    those in `channels`, int32 [D]; no longer than the length for which it was built,
  - `kernel.init_state(batch_size) -> state` and `kernel.step(state, x_BD) -> (state, y_BD)`, its recurrent
    form, if it has one,
  - `kernel.kernels`: the number of kernels per channel (default 1); D above is then `kernels` times the
    width, with the first kernels of all channels before the second ones, and the same holds for the inputs of
    the linear map,
  - `kernel.dropout`: rate at which values of the kernel are dropped in training (default 0), and
  - `kernel.drop(kernel_SDL, key, channels)` -> the kernel after dropout.

  Every such mixer has these options, in addition to those of its kernel.

  Args:
    gate: the layer after the linear map, 'glu' or 'none'.
    dropout, tied_dropout: between GELU and the linear map; tied: one mask for all positions.
    convolution: the implementation of the Fourier transforms, see `lra_spt.ops.fft_conv`; '': by platform.
  """

  kernel_type: type[nnx.Module]
  published_sees_padding = False  # True: protocol.attend_to_padding applies to this mixer

  def __init__(
    self,
    width: int,
    *,
    length: int,
    causal: bool,
    protocol,
    rngs: nnx.Rngs,
    gate: str = 'glu',
    dropout: float = 0.0,
    tied_dropout: bool = False,
    convolution: str = '',
    dtype=jnp.float32,
    **kernel_options,
  ):
    self.causal, self.convolution = causal, convolution or None
    self.see_padding = self.published_sees_padding and protocol.attend_to_padding
    directions = 1 if causal else 2
    self.kernel = self.kernel_type(width, length=length, directions=directions, rngs=rngs, **kernel_options)
    self.kernels = getattr(self.kernel, 'kernels', 1)
    inputs = self.kernels * width
    self.skip = nnx.Param(jax.random.normal(rngs.params(), (inputs,)))
    output = {'dropout': dropout, 'tied_dropout': tied_dropout, 'dtype': dtype, 'rngs': rngs}
    self.output = GatedOutput(width, inputs=inputs, gate=gate, **output)

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    graphdef, parameters = nnx.split(self.kernel)
    shards = sequence_shards(x_BLD.shape[1])
    if x_BLD.shape[2] % shards:
      raise ConfigError(
        f'runtime.mesh.seq is {shards}, which does not divide model.width {x_BLD.shape[2]}, but long '
        'convolutions split channels instead of positions; choose a divisor'
      )

    # All rows share the kernel and its dropout, by the key of the first.
    drops = not deterministic and getattr(self.kernel, 'dropout', 0) > 0
    prng = jax.random.key_impl(rngs) if drops else None
    key = jax.random.key_data(jax.random.fold_in(rngs[0], 1)) if drops else None

    # Kernel and convolution in one island: devices then sum gradients of the kernel's few parameters.
    def convolve(x_BLD, lengths_B, skip_D, parameters, key, channels=None):
      kernel = nnx.merge(graphdef, parameters)
      kernel_SDL = kernel(x_BLD.shape[1], channels)
      if key is not None:
        kernel_SDL = kernel.drop(kernel_SDL, jax.random.wrap_key_data(key, impl=prng), channels)
      kernel_SDL = kernel_SDL.at[0, :, 0].add(of_channels(skip_D, channels))
      return fft_conv(zero_padding(x_BLD, lengths_B), kernel_SDL, implementation=self.convolution)

    # Shards exchange positions for channels. Each makes the kernels of its channels and convolves whole
    # sequences.
    def convolve_shard(x_BLD, *others):
      exchange = functools.partial(lax.all_to_all, axis_name='seq', tiled=True)
      x_BLD = exchange(x_BLD, split_axis=2, concat_axis=1)
      count = x_BLD.shape[2]
      y_BLD = convolve(x_BLD, *others, lax.axis_index('seq') * count + jnp.arange(count))
      return exchange(y_BLD, split_axis=1, concat_axis=2)

    lengths_B = None if self.see_padding else lengths_B
    island = rows_island(convolve if shards == 1 else convolve_shard, whole=(2, 3, 4), split=(0,))
    x_BLD = x_BLD.astype(jnp.float32)
    if self.kernels > 1:  # otherwise jnp.tile would only make a copy, which takes memory
      x_BLD = jnp.tile(x_BLD, (1, 1, self.kernels))
    y_BLD = checkpoint_name(island(x_BLD, lengths_B, self.skip[...], parameters, key), 'mixer')
    return self.output(y_BLD, deterministic=deterministic, rngs=rngs)

  def init_state(self, batch_size: int):
    """The state before the first position.

    Raises:
      ConfigError: the mixer is bidirectional or its kernel has free values, so it has no recurrent form.
    """
    check_causal(self.causal)
    if not hasattr(self.kernel, 'init_state'):
      raise ConfigError('this mixer has no recurrent form: its kernel is not a sum of few exponentials')
    return self.kernel.init_state(batch_size)

  def step(self, state, x_BD: jax.Array):
    """(state after this position, output float32 [B, D])."""
    state, y_BD = self.kernel.step(state, x_BD)
    return state, self.output((y_BD + self.skip[...][None] * x_BD)[:, None])[:, 0]

  def max_kernel(self, length: int) -> jax.Array:
    """The largest absolute kernel value per lag over channels and directions, float32 [L] (paper, Figure
    4)."""
    return jnp.max(jnp.abs(self.kernel(length)), axis=(0, 1))

  def flops(self, length: int) -> int:
    """Two real FFTs of length 2L per channel. The kernel is made once per batch and not counted."""
    return round(2 * 2.5 * 2 * length * math.log2(max(2 * length, 2))) * self.skip.shape[-1]


def check_causal(causal: bool) -> None:
  """Raises ConfigError unless `causal`."""
  if not causal:
    raise ConfigError('a bidirectional mixer has no recurrent form; build the model with causal=True')


def zero_padding(x_BLD: jax.Array, lengths_B) -> jax.Array:
  """x with zeros from position lengths_B[b] on; x itself if every position is valid."""
  if lengths_B is None:
    return x_BLD
  return jnp.where(valid_positions(lengths_B, x_BLD.shape[1])[..., None], x_BLD, jnp.zeros_like(x_BLD))


def of_channels(x: jax.Array, channels: jax.Array | None, axis: int = 0) -> jax.Array:
  """The entries of x for `channels` (int32 [d], below the size of the axis) along `axis`; None: all."""
  return x if channels is None else jnp.take(x, channels, axis, mode='clip')


def log_uniform(key: jax.Array, shape: tuple[int, ...], low: float, high: float) -> jax.Array:
  """Draws logarithms, float32, of values that are log-uniform in [low, high].

  Raises:
    ConfigError: 0 < low <= high does not hold.
  """
  if not 0 < low <= high:
    raise ConfigError(
      f'model.mixer.dt_min is {low} and dt_max is {high}; they must be positive, dt_min at most dt_max'
    )
  return jax.random.uniform(key, shape, minval=math.log(low), maxval=math.log(high))


def checked_copies(copies: int, width: int) -> int:
  """Returns the number of independent systems that `width` channels share; channel h uses system h mod copies
  (published `n_ssm`). 0: one per channel.

  Raises:
    ConfigError: there are more copies than channels, or fewer than 0.
  """
  if not 0 <= copies <= width:
    raise ConfigError(f'model.mixer.copies is {copies}; choose 1 to model.width={width}, or 0 for the width')
  return copies or width


def group(learning_rate: float) -> ParameterGroup:
  """The published treatment of state-space parameters: no weight decay and a separate learning rate (0.0: the
  stage's)."""
  return ParameterGroup(learning_rate or None, decay=False)
