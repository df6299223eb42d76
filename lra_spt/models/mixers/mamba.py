"""Mamba: a selective state-space model, S6 (Gu and Dao 2023, arXiv 2312.00752; published code:
`state-spaces/mamba`, commit e9594ce, `mamba_ssm/modules/mamba_simple.py`)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_spt.models.gated import sharded_selective_scan, short_convolution, softplus_inverse
from lra_spt.models.layers import linear
from lra_spt.models.registry import NotNegative, ParameterGroup, Positive, register_mixer
from lra_spt.models.ssm import check_causal, group, log_uniform, zero_padding


@register_mixer('mamba')
class Mamba(nnx.Module):
  """[x, z] = W_i u; x = silu(conv(x)); [d, B, C] = W_x x, dt = softplus(W_d d + b); per channel of E

      h_t = exp(-dt_t exp(a)) h_{t-1} + dt_t B_t x_t, y_t = C_t . h_t + D x_t,

  with h, a, B and C of N numbers, B and C the same for all channels; and W_o (y * silu(z)). W_i, W_x, W_d and
  W_o have no biases. W_i and W_o run in `dtype`, the rest in float32.

  The causal form is the published one. The bidirectional form is ours: a second convolution and recurrence,
  with its own conv, W_x, W_d, b, a and D, run from the last valid position backwards, and both y are summed
  before the gate. One published detail, for language models only, is left out: W_o starts divided by
  sqrt(depth).

  Args:
    expand: E / D.
    state_size: N.
    rank: R, numbers in d; 0: ceil(D / 16).
    taps: positions that the convolution sees.
    dt_min, dt_max: for d = 0, dt starts log-uniform between them.
    ssm_lr: learning rate of W_d, b and a; 0: the stage's. b, a and D have no weight decay.
    scan: the implementation, see `lra_spt.ops.scan`; '': by platform.

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
    state_size: Positive = 16,
    rank: NotNegative = 0,
    taps: Positive = 4,
    dt_min: float = 0.001,
    dt_max: float = 0.1,
    ssm_lr: float = 0.0,
    scan: str = '',
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    self.causal, self.scan = causal, scan or None
    inner, rank, directions = expand * width, rank or math.ceil(width / 16), 1 if causal else 2

    def uniform(shape, bound):
      return nnx.Param(jax.random.uniform(rngs.params(), shape, minval=-bound, maxval=bound))

    self.input = linear(width, 2 * inner, bias=False, dtype=dtype, rngs=rngs)
    self.out = linear(inner, width, bias=False, dtype=dtype, rngs=rngs)
    self.conv = uniform((directions, taps, inner), 1 / math.sqrt(taps))
    self.conv_bias = uniform((directions, inner), 1 / math.sqrt(taps))
    self.select = uniform((directions, inner, rank + 2 * state_size), 1 / math.sqrt(inner))
    slow = ParameterGroup(ssm_lr or None)
    dt_SRE = uniform((directions, rank, inner), 1 / math.sqrt(rank))[...]
    self.dt = nnx.Param(dt_SRE, group=slow)
    dt_SE = jnp.exp(log_uniform(rngs.params(), (directions, inner), dt_min, dt_max))
    self.dt_bias = nnx.Param(softplus_inverse(dt_SE), ssm=True, group=group(ssm_lr))
    a_N = np.log(np.arange(1, state_size + 1, dtype=np.float32))
    self.decay = nnx.Param(
      jnp.broadcast_to(a_N, (directions, inner, state_size)), ssm=True, group=group(ssm_lr)
    )
    self.skip = nnx.Param(jnp.ones((directions, inner)), group=group(0.0))

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published block has no dropout
    x_BLE, gate_BLE = self._inputs(x_BLD)
    x_BLE = zero_padding(x_BLE, lengths_B)  # the convolution from the end reads the padding
    y_BLE = jnp.zeros_like(x_BLE)
    for direction in range(len(self.conv)):
      reverse = direction == 1
      conv_BLE = short_convolution(x_BLE, self.conv[direction], self.conv_bias[direction], reverse=reverse)
      # The scan from the end starts in the padding.
      u_BLE = zero_padding(jax.nn.silu(conv_BLE), lengths_B)
      dt_BLE, b_BLN, c_BLN = self._selected(u_BLE, direction)
      a_EN = -jnp.exp(self.decay[direction])
      options = {'reverse': reverse, 'implementation': self.scan}
      y_BLE += sharded_selective_scan(u_BLE, dt_BLE, a_EN, b_BLN, c_BLN, **options)
      y_BLE += self.skip[direction][None, None] * u_BLE
    return self.out(y_BLE * jax.nn.silu(gate_BLE))

  def _inputs(self, x_BLD):
    """x and z, float32 [B, L, E]."""
    return jnp.split(self.input(x_BLD).astype(jnp.float32), 2, axis=-1)

  def _selected(self, u_BLE, direction):
    """dt [B, L, E], B and C [B, L, N]."""
    rank, states = self.dt.shape[1], self.decay.shape[2]
    selected = jnp.einsum('ble,em->blm', u_BLE, self.select[direction])
    d_BLR, b_BLN, c_BLN = jnp.split(selected, (rank, rank + states), axis=-1)
    d_BLE = jnp.einsum('blr,re->ble', d_BLR, self.dt[direction])
    return jax.nn.softplus(d_BLE + self.dt_bias[direction][None, None]), b_BLN, c_BLN

  def init_state(self, batch_size: int) -> dict[str, jax.Array]:
    """The state before the first position: h [B, E, N], and the last inputs of the convolution, window
    [B, taps, E].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    return {
      'h': jnp.zeros((batch_size, *self.decay.shape[1:])),
      'window': jnp.zeros((batch_size, *self.conv.shape[1:])),
    }

  def step(self, state, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    x_B1E, gate_B1E = self._inputs(x_BD[:, None])
    window_BJE = jnp.concatenate([state['window'][:, 1:], x_B1E], axis=1)
    u_B1E = jax.nn.silu(short_convolution(window_BJE, self.conv[0], self.conv_bias[0])[:, -1:])
    dt_B1E, b_B1N, c_B1N = self._selected(u_B1E, 0)
    decay_BEN = jnp.exp(-dt_B1E[:, 0, :, None] * jnp.exp(self.decay[0])[None])
    h_BEN = decay_BEN * state['h'] + (dt_B1E * u_B1E)[:, 0, :, None] * b_B1N
    y_B1E = jnp.einsum('ben,bn->be', h_BEN, c_B1N[:, 0])[:, None] + self.skip[0][None, None] * u_B1E
    state = {'h': h_BEN, 'window': window_BJE}
    return state, self.out(y_B1E * jax.nn.silu(gate_B1E))[:, 0]

  def flops(self, length: int) -> int:
    """Per position, direction and channel: 2 for each weight of the convolution, of W_x and of W_d, and 9 for
    each of the states."""
    directions, taps, inner = self.conv.shape[-3:]  # stacked blocks have a depth axis in front
    weights = taps + self.select.shape[-1] + self.dt.shape[-2]
    return length * directions * inner * (2 * weights + 9 * self.decay.shape[-1])
