"""Small layers shared by every architecture: linear maps, norms, dropout, positions, the feed-forward
layer."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from lra_spt.distributed.sharding import platform, sequence_shards
from lra_spt.errors import ConfigError


class Linear(nnx.Linear):
  """nnx.Linear. On CPUs it is one matrix product over all positions of all rows: with two axes XLA takes
  twice as long there for the gradient of the weights (measured: benchmarks/ssm.py)."""

  def __call__(self, x: jax.Array) -> jax.Array:
    # A mesh could not split one joint axis of rows and positions over both.
    if platform() != 'cpu' or sequence_shards() > 1:
      return super().__call__(x)
    return super().__call__(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


def linear(inputs: int, outputs: int, *, bias: bool = True, dtype=jnp.float32, rngs: nnx.Rngs) -> Linear:
  """A linear map with the initial distribution of the published code: weights and biases (if any) uniform in
  +-1/sqrt(inputs)."""
  bound = 1 / math.sqrt(inputs)

  def init(key, shape, dtype=jnp.float32, out_sharding=None):
    del out_sharding
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  return Linear(inputs, outputs, use_bias=bias, dtype=dtype, kernel_init=init, bias_init=init, rngs=rngs)


def check_heads(heads: int, width: int) -> None:
  """Raises ConfigError unless so many heads divide the width."""
  if heads < 1 or width % heads:
    raise ConfigError(
      f'model.width is {width}, which model.mixer.heads={heads} does not divide; choose heads that do'
    )


class Norm(nnx.Module):
  """LayerNorm over D, BatchNorm over batch and length, or ScaleNorm: x divided by its root mean square over
  D, times one learned number (Nguyen and Salazar 2019, arXiv 1910.05895). All are float32 with eps 1e-5.

  BatchNorm's statistics leave padding out, unless `over_padding` (as published). Its running averages are 0.9
  of the old value plus 0.1 of the new one.
  """

  def __init__(self, kind: str, width: int, *, over_padding: bool = False, rngs: nnx.Rngs):
    self.over_padding = over_padding
    self.is_batch = kind == 'batch'
    if kind == 'scale':
      self.norm = nnx.RMSNorm(width, epsilon=1e-5, use_scale=False, use_fast_variance=False, rngs=rngs)
      self.scale = nnx.Param(jnp.ones(1))
      return
    self.norm = (
      nnx.BatchNorm(width, momentum=0.9, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
      if self.is_batch
      else nnx.LayerNorm(width, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
    )

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True) -> jax.Array:
    if not self.is_batch:
      y_BLD = self.norm(x_BLD)
      return y_BLD * self.scale[...][None, None] if hasattr(self, 'scale') else y_BLD
    mask_BL1 = None
    if lengths_B is not None and not self.over_padding:
      mask_BL1 = valid_positions(lengths_B, x_BLD.shape[1])[..., None]
    return self.norm(x_BLD, use_running_average=deterministic, mask=mask_BL1)


class Dropout(nnx.Module):
  """Dropout that draws the mask of each row by the key of that row. `tied`: it draws once per row and
  channel, for all positions (published S4, components.py:70-94)."""

  def __init__(self, rate: float, tied: bool = False):
    if not 0 <= rate < 1:  # ModelSpec has checked the rate of the model
      raise ConfigError(f'model.mixer.dropout is {rate}; choose at least 0 and below 1')
    self.rate, self.tied = rate, tied

  def __call__(self, x_BLD: jax.Array, *, deterministic: bool = True, rngs=None) -> jax.Array:
    if deterministic or self.rate == 0:
      return x_BLD
    keep = 1 - self.rate
    shape = (1, x_BLD.shape[-1]) if self.tied else x_BLD.shape[1:]
    mask_BLD = jax.vmap(lambda key: jax.random.bernoulli(key, keep, shape))(rngs)
    mask_BLD = checkpoint_name(mask_BLD, 'mask')  # one byte per value, and slow to draw again
    return jnp.where(mask_BLD, x_BLD / keep, jnp.zeros_like(x_BLD))


ACTIVATIONS = {'gelu': functools.partial(jax.nn.gelu, approximate=False), 'silu': jax.nn.silu}


class FeedForward(nnx.Module):
  """Linear(D, F), one of ACTIVATIONS, dropout, Linear(F, D), as in the published code's `ff.py`, whose
  activation is 'gelu' (exact). If gated, a second Linear(D, F) of the input multiplies the activation (GLU,
  as in HGRN2)."""

  def __init__(
    self,
    width: int,
    hidden: int,
    *,
    dropout: float,
    activation: str = 'gelu',
    gated: bool = False,
    tied: bool = False,
    dtype=jnp.float32,
    rngs: nnx.Rngs,
  ):
    self.activation = ACTIVATIONS[activation]
    self.up = linear(width, hidden, dtype=dtype, rngs=rngs)
    self.gate = linear(width, hidden, dtype=dtype, rngs=rngs) if gated else None
    self.down = linear(hidden, width, dtype=dtype, rngs=rngs)
    self.dropout = Dropout(dropout, tied)

  def __call__(self, x_BLD: jax.Array, *, deterministic: bool = True, rngs=None) -> jax.Array:
    hidden_BLF = self.activation(self.up(x_BLD))
    if self.gate is not None:
      hidden_BLF = hidden_BLF * self.gate(x_BLD)
    return self.down(self.dropout(hidden_BLF, deterministic=deterministic, rngs=rngs))


def valid_positions(lengths_B: jax.Array, length: int) -> jax.Array:
  """A mask bool [B, L]: True where position t of row b is below lengths_B[b]."""
  return jnp.arange(length)[None, :] < lengths_B[:, None]


def fold_rows(keys_B, data: int | jax.Array):
  """Folds one number into each of the keys [B]; None stays None."""
  return None if keys_B is None else jax.vmap(lambda key: jax.random.fold_in(key, data))(keys_B)


def sinusoidal_positions(length: int, width: int) -> np.ndarray:
  """Sinusoidal position encodings, float32 [L, D], computed in float64: sin and cos interleaved, base 10000
  (Vaswani et al. 2017, section 3.5)."""
  if width % 2:
    raise ConfigError(
      f'sinusoidal positions need an even model.width, but it is {width}; change it or model.position'
    )
  phases = np.arange(length)[:, None] * np.exp(np.arange(0, width, 2) * (-math.log(10000.0) / width))
  return np.stack([np.sin(phases), np.cos(phases)], axis=-1).reshape(length, width).astype(np.float32)
