"""MEGA: a moving average and single-head gated attention (Ma et al. 2022, arXiv 2209.10655; published code:
`facebookresearch/mega`, commit aeaa4b4, `fairseq/modules/{moving_average_gated_attention,
exponential_moving_average,relative_positional_bias}.py`)."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from lra_spt.distributed.sharding import rows_island, sequence_shards
from lra_spt.errors import ConfigError
from lra_spt.models.layers import Dropout, Linear
from lra_spt.models.registry import NotNegative, Positive, register_mixer
from lra_spt.models.ssm import LongConvolution, group, of_channels
from lra_spt.ops.attention import Causal, Full, Neighbours, attention_weights
from lra_spt.ops.attention.patterns import visible_pairs
from lra_spt.ops.attention.sharded import sharded_attention
from lra_spt.ops.laplace_attention import laplace_attention
from lra_spt.ops.rotary import rotary
from lra_spt.ops.vandermonde import vandermonde


class MovingAverageKernel(nnx.Module):
  """Kernels of h states per channel and direction, with real decays q between 0 and 1:

      kappa_l = sum over n of p_n beta_n gamma_n q_n^l / sqrt(h),
      q = 1 - p sigmoid(damping), p = sigmoid(rate).

  Both directions include lag 0.

  Parameters (float32 [S, D, h]): rate, damping (published delta, alpha), expansion and projection (beta,
  gamma).

  Args:
    h: states per channel and direction.
    truncation: the lag from which the kernels are 0; 0: all lags are used.
    ssm_lr: learning rate of the parameters, which have no weight decay; 0.0: the stage's.
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    directions: int,
    rngs: nnx.Rngs,
    h: Positive = 16,
    truncation: NotNegative = 0,
    ssm_lr: float = 0.0,
  ):
    self.lags = min(truncation or length, length)

    def normal(deviation, mean=0.0):
      values_SDN = mean + deviation * jax.random.normal(rngs.params(), (directions, width, h))
      return nnx.Param(values_SDN, ssm=True, group=group(ssm_lr))

    signs_11N = jnp.asarray((-1.0) ** np.arange(h), jnp.float32)[None, None]
    self.rate, self.damping = normal(0.2), normal(0.2)
    self.expansion, self.projection = normal(0.02, signs_11N), normal(1.0)

  def __call__(self, length: int, channels: jax.Array | None = None) -> jax.Array:
    """Returns the kernels, float32 [S, D, min(length, lags)], for all D channels or those given. Lag 0 of the
    second direction is added to that of the first, so the second kernel starts at lag 1."""
    rate, damping, expansion, projection = (
      of_channels(x[...], channels, 1) for x in (self.rate, self.damping, self.expansion, self.projection)
    )
    p_SDN = jax.nn.sigmoid(rate)
    exponent_SDN = jnp.log1p(-p_SDN * jax.nn.sigmoid(damping))
    c_SDN = p_SDN * expansion * projection * np.float32(rate.shape[-1] ** -0.5)
    S, D, N = c_SDN.shape
    c_1EN, exponent_EN = (
      lax.complex(x, jnp.zeros_like(x)) for x in (c_SDN.reshape(1, S * D, N), exponent_SDN.reshape(S * D, N))
    )
    kernel_SDL = vandermonde(c_1EN, exponent_EN, length=min(length, self.lags)).reshape(S, D, -1)
    if S == 1:
      return kernel_SDL
    forward_DL, backward_DL = kernel_SDL
    forward_DL = forward_DL.at[:, 0].add(backward_DL[:, 0])
    return jnp.stack([forward_DL, jnp.pad(backward_DL[:, 1:], ((0, 0), (0, 1)))])


class _SiLU(nnx.Module):
  """The layer after the convolution."""

  def __call__(self, y_BLD, *, deterministic=True, rngs=None):
    return jax.nn.silu(y_BLD)


class MovingAverage(LongConvolution):
  """silu(kappa * x + omega x), where omega is `skip`. Options: see `MovingAverageKernel`."""

  kernel_type = MovingAverageKernel

  def __init__(self, width: int, *, rngs: nnx.Rngs, **options):
    super().__init__(width, gate='none', rngs=rngs, **options)
    self.output = _SiLU()


@register_mixer('mega')
class Mega(nnx.Module):
  """Returns (h, u), from which the block makes x + u (h - x) with its own input x:

      m = dropout(EMA(x)), value = silu(W_v x), (u, z, r, c) = W_m m, u = sigmoid(u), (z, r) = silu((z, r)),
      q = z gamma_0 + beta_0, k = z gamma_1 + beta_1, h = silu(c + W_h (attend(q, k, value) r)),

  where all maps have biases and EMA is a `MovingAverage`. Attention has one head and adds to its scores
  either a learned number per distance, or the product of two learned vectors that are rotated by their
  positions. Its function is softmax, with scale 1 / sqrt(z), or elementwise, see `laplace_attention`.
  With chunks, only the moving average connects positions of different chunks.

  Both forms are published, and so is the masking of padding. In one point we depart from the published code:
  the parameters of the moving average have no weight decay.

  Options attention (implementation of the softmax): see `lra_spt.ops.attention`; convolution (implementation
  of the moving average): see `lra_spt.ops.fft_conv`; h, truncation and ssm_lr: see `MovingAverageKernel`
  (truncation published 1024, on PathX 4096).

  Args:
    z: width of queries and keys (published 64; Image 96, PathX 32).
    v: width of values; 0: twice the model's, as published.
    function: function of attention, 'softmax' (published on ListOps, Text, Retrieval) or 'laplace'.
    bias: 'simple' (a number per distance; published on LRA) or 'rotary' (published for language models).
    chunk: positions that see each other (published 128, on PathX 4096); 0: all.
    dropout: rate after the moving average.

  Raises:
    ConfigError: an option is out of range.
  """

  gates_residual = True

  def __init__(
    self,
    width: int,
    *,
    length: int,
    causal: bool,
    protocol,
    rngs: nnx.Rngs,
    z: Positive = 64,
    v: NotNegative = 0,
    h: Positive = 16,
    function: Literal['softmax', 'laplace'] = 'softmax',
    bias: Literal['simple', 'rotary'] = 'simple',
    chunk: NotNegative = 0,
    truncation: NotNegative = 0,
    dropout: float = 0.0,
    ssm_lr: float = 0.0,
    attention: str = '',
    convolution: str = '',
    dtype=jnp.float32,
  ):
    if bias == 'rotary' and z % 2:
      raise ConfigError(f'model.mixer.z is {z}, but bias=rotary turns pairs; choose an even number')
    self.causal, self.function, self.implementation = causal, function, attention or None
    self.chunk = chunk if chunk < length else 0
    self.sizes = (width, z, v or 2 * width)
    self.moving_average = MovingAverage(
      width,
      length=length,
      causal=causal,
      protocol=protocol,
      h=h,
      truncation=truncation,
      ssm_lr=ssm_lr,
      convolution=convolution,
      rngs=rngs,
    )
    self.dropout = Dropout(dropout)
    normal = nnx.initializers.normal(0.02)
    projection = functools.partial(Linear, dtype=dtype, kernel_init=normal, rngs=rngs)
    self.value = projection(width, self.sizes[2])
    self.base = projection(width, 2 * width + sum(self.sizes[1:]))
    self.hidden = projection(self.sizes[2], width)
    self.scale = nnx.Param(normal(rngs.params(), (2, z)))
    self.shift = nnx.Param(jnp.zeros((2, z)))
    self.reach = self.chunk or length
    # One number per distance, or (alpha, beta) of the published code, which pairs halves and not neighbours.
    shape = (2 * self.reach - 1,) if bias == 'simple' else (2, z)
    self.bias = nnx.Param(normal(rngs.params(), shape))

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None):
    u_BLD, q_BLZ, k_BLZ, r_BLV, c_BLD = self._projected(x_BLD, lengths_B, deterministic, rngs)
    y_BLV = self._attend(q_BLZ, k_BLZ, jax.nn.silu(self.value(x_BLD)), lengths_B)
    h_BLD = jax.nn.silu(c_BLD + self.hidden(y_BLV * jax.nn.silu(r_BLV)))
    return h_BLD, jax.nn.sigmoid(u_BLD)

  def attention_weights(self, x_BLD: jax.Array, *, lengths_B=None) -> jax.Array | None:
    """The weights of the one head, [B, 1, L, L], see `lra_spt.ops.attention.attention_weights`; None for
    laplace, whose weights do not sum to 1."""
    if self.function != 'softmax':
      return None
    _, q_BLZ, k_BLZ, _, _ = self._projected(x_BLD, lengths_B, True, None)
    call = {'pattern': self._pattern, 'kv_lengths_B': lengths_B, 'bias_HR': self.bias_by_distance()[None]}
    return attention_weights(q_BLZ[:, :, None], k_BLZ[:, :, None], **call)

  def _projected(self, x_BLD, lengths_B, deterministic, rngs):
    """Returns u, queries, keys, r and c."""
    m_BLD = self.moving_average(x_BLD, lengths_B=lengths_B, deterministic=deterministic, rngs=rngs)
    m_BLD = self.dropout(m_BLD, deterministic=deterministic, rngs=rngs)
    D, Z, V = self.sizes
    u_BLD, z_BLZ, r_BLV, c_BLD = jnp.split(self.base(m_BLD), (D, D + Z, D + Z + V), axis=-1)
    z_BLZ = jax.nn.silu(z_BLZ)
    q_BLZ, k_BLZ = (
      z_BLZ * scale_Z.astype(z_BLZ.dtype)[None, None] + shift_Z.astype(z_BLZ.dtype)[None, None]
      for scale_Z, shift_Z in zip(self.scale[...], self.shift[...], strict=True)
    )
    return u_BLD, q_BLZ, k_BLZ, r_BLV, c_BLD

  def bias_by_distance(self) -> jax.Array:
    """The bias of every distance from query to key, from 1 - P to P - 1, for chunks of P positions: float32
    [2 P - 1]."""
    if len(self.bias.shape) == 1:
      return self.bias[...]
    alpha_Z, beta_Z = self.bias[...]
    P = self.reach
    turned_1R1Z = rotary(jnp.broadcast_to(beta_Z, (1, 2 * P - 1, 1, len(beta_Z))), offset=1 - P)
    return turned_1R1Z[0, :, 0] @ alpha_Z

  @property
  def _pattern(self):
    if self.chunk:
      return Neighbours(self.chunk, 0, 0, causal=self.causal)
    return Causal() if self.causal else Full()

  def _attend(self, q_BLZ, k_BLZ, v_BLV, lengths_B):
    if self.function == 'softmax':
      heads = (x[:, :, None] for x in (q_BLZ, k_BLZ, v_BLV))
      call = {'bias_HR': self.bias_by_distance()[None], 'implementation': self.implementation}
      y_BL1V = sharded_attention(*heads, pattern=self._pattern, kv_lengths_B=lengths_B, **call)
      return y_BL1V[:, :, 0]
    attend = functools.partial(laplace_attention, causal=self.causal, chunk=self.chunk)
    shards = sequence_shards(q_BLZ.shape[1])
    size = q_BLZ.shape[1] // shards
    if shards > 1 and self.chunk and size % self.chunk:
      raise ConfigError(
        f'runtime.mesh.seq is {shards}, which leaves each shard {size} positions, but model.mixer.chunk '
        f'{self.chunk} of laplace attention does not divide them; choose chunks that do'
      )

    def shard(q_BSZ, k_BSZ, v_BSV, bias_R, lengths_B):
      start = 0 if shards == 1 else lax.axis_index('seq') * size
      if shards > 1 and self.chunk:
        local_B = None if lengths_B is None else jnp.clip(lengths_B - start, 0, size)
        return attend(q_BSZ, k_BSZ, v_BSV, bias_R, lengths_B=local_B)
      if shards > 1:
        both = lax.all_gather(jnp.concatenate([k_BSZ, v_BSV], axis=-1), 'seq', axis=1, tiled=True)
        k_BSZ, v_BSV = jnp.split(both, [k_BSZ.shape[-1]], axis=-1)
      return attend(q_BSZ, k_BSZ, v_BSV, bias_R, lengths_B=lengths_B, q_offset=start)

    island = rows_island(shard, split=(0, 1, 2), whole=(3,))
    return island(q_BLZ, k_BLZ, v_BLV, self.bias_by_distance(), lengths_B)

  def flops(self, length: int) -> int:
    """Scores and weighted sum, 2 (z + v) operations per visible pair of query and key, and those of the
    moving average."""
    pairs = visible_pairs(self._pattern, length, length)
    return 2 * sum(self.sizes[1:]) * pairs + self.moving_average.flops(length)
