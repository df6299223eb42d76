"""Mamba-2: a selective state-space model with one decay per head, SSD (Dao and Gu 2024, arXiv 2405.21060;
published code: `state-spaces/mamba`, commit e9594ce, `mamba_ssm/modules/mamba2.py`)."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from lra_spt.errors import ConfigError
from lra_spt.models.gated import sharded_linear_attention, short_convolution, softplus_inverse
from lra_spt.models.layers import linear
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import check_causal, group, log_uniform, zero_padding
from lra_spt.ops.linear_attention import chunk_size


@register_mixer('mamba2')
class Mamba2(nnx.Module):
  """[z, xBC, d] = W_i u; [x, B, C] = silu(conv(xBC)), dt = softplus(d + b); then for each of H = E / P heads

      S_t = exp(-dt_t exp(a)) S_{t-1} + dt_t B_t x_t^T, y_t = C_t^T S_t + D x_t,

  and W_o RMSNorm(y * silu(z)), the norm over the E / G channels of a group, with one scale per channel.
  Neither W_i nor W_o has a bias. Matrix products, including those of the recurrence, run in `dtype`; decays,
  states, convolution and norm are float32.

  The causal form is the published one. The bidirectional form is ours: a second convolution and recurrence,
  with its own conv, b, a and D, run from the last valid position backwards, and both y are summed before the
  gate. One published detail, for language models only, is left out: W_o starts divided by sqrt(depth).

  Args:
    expand: E / D.
    head_dim: P, published 64.
    state_size: N, published 128.
    groups: G, groups of B and C, each for H / G heads.
    taps: positions that the convolution sees.
    dt_min, dt_max: for d = 0, dt starts log-uniform between them.
    ssm_lr: learning rate of b and a; 0: the stage's. b, a and D have no weight decay.

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
    expand: Positive = 2,
    head_dim: int = 32,
    state_size: Positive = 64,
    groups: int = 1,
    taps: Positive = 4,
    dt_min: float = 0.001,
    dt_max: float = 0.1,
    ssm_lr: float = 0.0,
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    inner = expand * width
    if head_dim < 1 or inner % head_dim:
      raise ConfigError(
        f'model.mixer.head_dim is {head_dim}, which does not divide the {inner} channels of the recurrence; '
        'choose a divisor of model.mixer.expand * model.width'
      )
    heads = inner // head_dim
    if groups < 1 or heads % groups:
      raise ConfigError(
        f'model.mixer.groups is {groups}, which does not divide {heads} heads; choose a divisor'
      )
    self.causal, self.dtype, self.state_size, self.groups = causal, dtype, state_size, groups
    directions, mixed = 1 if causal else 2, inner + 2 * groups * state_size
    bound = 1 / math.sqrt(taps)

    def uniform(shape, low, high):
      return jax.random.uniform(rngs.params(), shape, minval=low, maxval=high)

    self.input = linear(width, inner + mixed + heads, bias=False, dtype=dtype, rngs=rngs)
    self.out = linear(inner, width, bias=False, dtype=dtype, rngs=rngs)
    self.norm = nnx.Param(jnp.ones(inner))
    self.conv = nnx.Param(uniform((directions, taps, mixed), -bound, bound))
    self.conv_bias = nnx.Param(uniform((directions, mixed), -bound, bound))
    dt_SH = jnp.exp(log_uniform(rngs.params(), (directions, heads), dt_min, dt_max))
    self.dt_bias = nnx.Param(softplus_inverse(dt_SH), ssm=True, group=group(ssm_lr))
    self.decay = nnx.Param(jnp.log(uniform((directions, heads), 1, 16)), ssm=True, group=group(ssm_lr))
    self.skip = nnx.Param(jnp.ones((directions, heads)), group=group(0.0))

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published block has no dropout
    gate_BLE, mixed_BLM, dt_BLH = self._inputs(x_BLD)
    mixed_BLM = zero_padding(mixed_BLM, lengths_B)  # the convolution from the end reads the padding
    y_BLHP = 0
    for direction in range(len(self.conv)):
      reverse = direction == 1
      conv_BLM = short_convolution(
        mixed_BLM, self.conv[direction], self.conv_bias[direction], reverse=reverse
      )
      x_BLHP, b_BLGN, c_BLGN, a_BLH, u_BLHP = self._recurrence(conv_BLM, dt_BLH, direction)
      # The scan from the end starts in the padding.
      u_BLHP = zero_padding(u_BLHP.reshape(gate_BLE.shape), lengths_B).reshape(u_BLHP.shape)
      c_BLGN, b_BLGN, u_BLHP = (v.astype(self.dtype) for v in (c_BLGN, b_BLGN, u_BLHP))
      y_BLHP += self._read(c_BLGN, b_BLGN, u_BLHP, a_BLH, x_BLD, direction)
      y_BLHP += self.skip[direction][None, None, :, None] * x_BLHP
    return self._output(y_BLHP, gate_BLE)

  def _read(self, c_BLGN, b_BLGN, u_BLHP, a_BLH, x_BLD, direction):
    """C_t^T S_t of one direction, [B, L, H, P]."""
    del x_BLD
    order = 'backward' if direction else 'forward'
    return sharded_linear_attention(c_BLGN, b_BLGN, u_BLHP, a_BLH, direction=order)

  def _inputs(self, x_BLD):
    """z [B, L, E], xBC [B, L, E + 2 G N] and d [B, L, H], float32."""
    inner, mixed = self.norm.shape[-1], self.conv.shape[-1]
    return jnp.split(self.input(x_BLD).astype(jnp.float32), (inner, inner + mixed), axis=-1)

  def _recurrence(self, conv_BLM, dt_BLH, direction):
    """x, B, C, log decays and dt x, float32."""
    inner, rest = self.norm.shape[-1], (*conv_BLM.shape[:2], self.groups, self.state_size)
    x_BLE, b_BLM, c_BLM = jnp.split(
      jax.nn.silu(conv_BLM), (inner, inner + self.groups * self.state_size), axis=-1
    )
    dt_BLH = jax.nn.softplus(dt_BLH + self.dt_bias[direction][None, None])
    a_BLH = -dt_BLH * jnp.exp(self.decay[direction])[None, None]
    x_BLHP = x_BLE.reshape(*dt_BLH.shape, -1)
    return x_BLHP, b_BLM.reshape(rest), c_BLM.reshape(rest), a_BLH, dt_BLH[..., None] * x_BLHP

  def _output(self, y_BLHP, gate_BLE):
    y_BLGE = (y_BLHP.reshape(gate_BLE.shape) * jax.nn.silu(gate_BLE)).reshape(
      *gate_BLE.shape[:2], self.groups, -1
    )
    y_BLGE = y_BLGE * lax.rsqrt(jnp.mean(y_BLGE**2, axis=-1, keepdims=True) + 1e-5)
    return self.out(y_BLGE.reshape(gate_BLE.shape) * self.norm[...][None, None])

  def init_state(self, batch_size: int) -> dict[str, jax.Array]:
    """The state before the first position: states [B, H, N, P], and the last inputs of the convolution,
    window [B, taps, E + 2 G N].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    heads = self.skip.shape[-1]
    return {
      'states': jnp.zeros((batch_size, heads, self.state_size, self.norm.shape[-1] // heads)),
      'window': jnp.zeros((batch_size, *self.conv.shape[1:])),
    }

  def step(self, state, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    gate_B1E, mixed_B1M, dt_B1H = self._inputs(x_BD[:, None])
    window_BJM = jnp.concatenate([state['window'][:, 1:], mixed_B1M], axis=1)
    conv_B1M = short_convolution(window_BJM, self.conv[0], self.conv_bias[0])[:, -1:]
    x_B1HP, b_B1GN, c_B1GN, a_B1H, u_B1HP = self._recurrence(conv_B1M, dt_B1H, 0)
    b_BHN, c_BHN = (jnp.repeat(v[:, 0], a_B1H.shape[-1] // self.groups, axis=1) for v in (b_B1GN, c_B1GN))
    states_BHNP = jnp.exp(a_B1H[:, 0, :, None, None]) * state['states']
    states_BHNP += b_BHN[..., None] * u_B1HP[:, 0, :, None]
    y_BHP = jnp.einsum('bhn,bhnp->bhp', c_BHN, states_BHNP) + self.skip[0][None, :, None] * x_B1HP[:, 0]
    state = {'states': states_BHNP, 'window': window_BJM}
    return state, self._output(y_BHP[:, None], gate_B1E)[:, 0]

  def flops(self, length: int) -> int:
    """Per position and direction: 2 for each weight of the convolution, 4 for each number of the states, and
    2 for each position of the chunk and channel of keys and values."""
    directions, taps, mixed = self.conv.shape[-3:]  # stacked blocks have a depth axis in front
    inner, keys = self.norm.shape[-1], self.groups * self.state_size
    size = chunk_size(self.state_size, inner // self.skip.shape[-1])
    chunk = 2 * min(length, size) * (keys + inner)
    return length * directions * (2 * taps * mixed + 4 * self.state_size * inner + chunk)
