"""Mamba-3: a selective state-space model with a trapezoidal rule and rotating states (Lahoti et al. 2026,
arXiv 2603.15569; published code: `state-spaces/mamba`, commit e9594ce, `mamba_ssm/modules/mamba3.py`)."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from lra_spt.errors import ConfigError
from lra_spt.models.gated import over_heads, softplus_inverse
from lra_spt.models.layers import linear
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import check_causal, group, log_uniform, zero_padding
from lra_spt.ops.linear_attention import chunk_size, linear_attention

LEAST_RATE = 1e-4  # published A_floor
TURN = 2 * math.pi
TURN_HIGH = np.float32(TURN)
TURN_LOW = np.float32(TURN - float(TURN_HIGH))


@register_mixer('mamba3')
class Mamba3(nnx.Module):
  """[z, x, B, C, d, a, l, w] = W_i u; B and C are RMSNorm(B) and RMSNorm(C), plus a bias for each head. Then
  for each of H = E / P heads, dt = softplus(d + b), A = -max(g(a), 0.0001) with g(a) = 1 + a for a >= 0, else
  1 / (1 - a), r = sigmoid(l), and

      S_t = e^(dt_t A_t) (S_{t-1} + (1 - r_t) dt_t B_{t-1} x_{t-1}^T) + r_t dt_t B_t x_t^T,
      y_t = C_t^T S_t + D x_t,

  where B_t and C_t are rotated before: N / 4 pairs of channels turn by the sum up to t of pi tanh(w) dt, as
  the states of a complex system do. The output is W_o (y * silu(z)). Neither W_i nor W_o has a bias. Matrix
  products, including those of the recurrence, run in `dtype`; the rest is float32.

  The causal form is the published one, with one input and output per head (SISO). The bidirectional form is
  ours: a second recurrence, with its own d, a, l, w, biases and D, runs from the last valid position
  backwards, and both y are summed before the gate. The form with several inputs and outputs (MIMO) is not
  implemented.

  Args:
    expand: E / D.
    head_dim: P, published 64.
    state_size: N, published 128.
    groups: G, groups of B and C, each for H / G heads.
    dt_min, dt_max: for d = 0, dt starts log-uniform between them.
    ssm_lr: learning rate of b; 0: the stage's. b and D have no weight decay.

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
    state_size: int = 64,
    groups: int = 1,
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
    if state_size < 4 or state_size % 2:
      raise ConfigError(
        f'model.mixer.state_size is {state_size}, but a quarter of the states turn in pairs; choose an even '
        'number of at least 4'
      )
    heads = inner // head_dim
    if groups < 1 or heads % groups:
      raise ConfigError(
        f'model.mixer.groups is {groups}, which does not divide {heads} heads; choose a divisor'
      )
    self.causal, self.dtype, self.state_size, self.groups = causal, dtype, state_size, groups
    directions = 1 if causal else 2
    self.gates = 3 * heads + state_size // 4  # channels of d, a, l and w
    channels = 2 * inner + 2 * groups * state_size + directions * self.gates
    self.input = linear(width, channels, bias=False, dtype=dtype, rngs=rngs)
    self.out = linear(inner, width, bias=False, dtype=dtype, rngs=rngs)
    self.b_norm, self.c_norm = nnx.Param(jnp.ones(state_size)), nnx.Param(jnp.ones(state_size))
    self.b_bias = nnx.Param(jnp.ones((directions, heads, state_size)))
    self.c_bias = nnx.Param(jnp.ones((directions, heads, state_size)))
    dt_SH = jnp.exp(log_uniform(rngs.params(), (directions, heads), dt_min, dt_max))
    self.dt_bias = nnx.Param(softplus_inverse(dt_SH), ssm=True, group=group(ssm_lr))
    self.skip = nnx.Param(jnp.ones((directions, heads)), group=group(0.0))

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published block has no dropout
    z_BLE, x_BLHP, *projected, gates_BLM = self._inputs(x_BLD)
    # The scan from the end starts in the padding.
    x_BLHP = zero_padding(x_BLHP.reshape(z_BLE.shape), lengths_B).reshape(x_BLHP.shape)
    gates_BLM = zero_padding(gates_BLM, lengths_B)
    y_BLHP = 0
    for direction in range(len(self.skip)):
      reverse = direction == 1
      b_BLHN, c_BLHN = self._biased(*projected, direction)
      current_BLH, previous_BLH, log_a_BLH, turns_BLHM = self._gates(gates_BLM, direction)
      # What the next position adds for this one, it adds before its decay: as if this one had added it.
      previous_BLH = jnp.roll(previous_BLH, 1 if reverse else -1, axis=1)
      u_BLHP = (current_BLH + previous_BLH)[..., None] * x_BLHP
      attend = functools.partial(_attend, dtype=self.dtype, direction='backward' if reverse else 'forward')
      y_BLHP += over_heads(attend, c_BLHN, b_BLHN, u_BLHP, log_a_BLH, turns_BLHM)
      current_BLH = current_BLH * jnp.sum(b_BLHN * c_BLHN, axis=-1) + self.skip[direction][None, None]
      y_BLHP += current_BLH[..., None] * x_BLHP
    return self.out(y_BLHP.reshape(z_BLE.shape) * jax.nn.silu(z_BLE))

  def _inputs(self, x_BLD):
    """z [B, L, E], x, normed B and C [B, L, G, N] and [d, a, l, w] of all directions, float32."""
    inner, states = self.out.kernel.shape[-2], self.groups * self.state_size
    cuts = np.cumsum([inner, inner, states, states])
    z_BLE, x_BLE, *bc, gates_BLM = jnp.split(self.input(x_BLD).astype(jnp.float32), cuts, axis=-1)
    b_BLGN, c_BLGN = (
      _normed(v.reshape(*v.shape[:2], self.groups, -1), scale[...])
      for v, scale in zip(bc, (self.b_norm, self.c_norm), strict=True)
    )
    return z_BLE, x_BLE.reshape(*x_BLE.shape[:2], self.skip.shape[-1], -1), b_BLGN, c_BLGN, gates_BLM

  def _biased(self, b_BLGN, c_BLGN, direction):
    """B and C of every head."""
    repeats = self.skip.shape[-1] // self.groups
    return tuple(
      jnp.repeat(v, repeats, axis=2) + bias[direction][None, None]
      for v, bias in ((b_BLGN, self.b_bias), (c_BLGN, self.c_bias))
    )

  def _gates(self, gates_BLM, direction):
    """r dt, (1 - r) dt and dt A of one direction, and its rotations at each position, [B, L, H, N / 4]."""
    heads = self.skip.shape[-1]
    direction_BLM = gates_BLM[..., direction * self.gates : (direction + 1) * self.gates]
    d_BLH, a_BLH, l_BLH, w_BLM = jnp.split(direction_BLM, (heads, 2 * heads, 3 * heads), axis=-1)
    dt_BLH = jax.nn.softplus(d_BLH + self.dt_bias[direction][None, None])
    rate_BLH = jnp.maximum(a_BLH, 0) + 1 / (1 - jnp.minimum(a_BLH, 0))
    turns_BLHM = math.pi * jnp.tanh(w_BLM)[:, :, None] * dt_BLH[..., None]
    current, previous = jax.nn.sigmoid(l_BLH) * dt_BLH, jax.nn.sigmoid(-l_BLH) * dt_BLH
    return current, previous, -jnp.maximum(rate_BLH, LEAST_RATE) * dt_BLH, turns_BLHM

  def init_state(self, batch_size: int) -> dict[str, jax.Array]:
    """The state before the first position: states [B, H, N, P], the angles [B, H, N / 4], and the last
    rotated B [B, H, N] and x [B, H, P].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    heads, channels = self.skip.shape[-1], self.state_size
    sizes = {'states': (channels, self.out.kernel.shape[0] // heads), 'angles': (channels // 4,)}
    sizes |= {'b': (channels,), 'x': sizes['states'][1:]}
    return {name: jnp.zeros((batch_size, heads, *size)) for name, size in sizes.items()}

  def step(self, state, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    z_B1E, x_B1HP, *projected, gates_B1M = self._inputs(x_BD[:, None])
    current_BH, previous_BH, log_a_BH, turns_BHM = (v[:, 0] for v in self._gates(gates_B1M, 0))
    angles_BHM = _reduced(state['angles'] + turns_BHM)
    b_BHN, c_BHN = (_turned(v[:, 0], angles_BHM) for v in self._biased(*projected, 0))
    x_BHP = x_B1HP[:, 0]
    states = state['states'] + (previous_BH[..., None] * state['b'])[..., None] * state['x'][:, :, None]
    states = jnp.exp(log_a_BH)[..., None, None] * states
    states += (current_BH[..., None] * b_BHN)[..., None] * x_BHP[:, :, None]
    y_BHP = jnp.einsum('bhn,bhnp->bhp', c_BHN, states) + self.skip[0][None, :, None] * x_BHP
    y_B1E = y_BHP.reshape(z_B1E.shape) * jax.nn.silu(z_B1E)
    return {'states': states, 'angles': angles_BHM, 'b': b_BHN, 'x': x_BHP}, self.out(y_B1E)[:, 0]

  def flops(self, length: int) -> int:
    """Per position and direction: 4 for each number of the states, 2 for each position of the chunk and
    channel of keys and values, and 12 for each channel of keys: norms, biases, rotations and the product with
    itself."""
    directions, heads = self.skip.shape[-2:]  # stacked blocks have a depth axis in front
    inner = self.out.kernel.shape[-2]
    size = min(length, chunk_size(self.state_size, inner // heads))
    chunk = 2 * size * (heads * self.state_size + inner)
    return length * directions * (4 * self.state_size * inner + chunk + 12 * heads * self.state_size)


def _normed(x_BLGN, scale_N):
  x_BLGN = x_BLGN * lax.rsqrt(jnp.mean(x_BLGN**2, axis=-1, keepdims=True) + 1e-5)
  return x_BLGN * scale_N[None, None, None]


def _attend(c_BLHN, b_BLHN, u_BLHP, log_a_BLH, turns_BLHM, *, dtype, direction):
  """C and B turned by the sums of turns, and what every position reads of those before it."""
  angles_BLHM = lax.associative_scan(
    lambda a, b: _reduced(a + b), _reduced(turns_BLHM), axis=1, reverse=direction == 'backward'
  )
  arrays = (x.astype(dtype) for x in (_turned(c_BLHN, angles_BLHM), _turned(b_BLHN, angles_BLHM), u_BLHP))
  return linear_attention(*arrays, log_a_BLH, direction=direction, include_self=False)


def _reduced(angle):
  """The angle less whole turns: sums over thousands of positions would lose digits."""
  turns = lax.stop_gradient(jnp.round(angle / TURN_HIGH))
  return angle - turns * TURN_HIGH - turns * TURN_LOW


def _turned(x, angle):
  """x [..., N] with its first pairs of neighbouring channels rotated by the angles [..., M]."""
  pairs = x[..., : 2 * angle.shape[-1]].reshape(*angle.shape, 2)
  cos, sin, first, second = jnp.cos(angle), jnp.sin(angle), pairs[..., 0], pairs[..., 1]
  turned = jnp.stack([first * cos - second * sin, first * sin + second * cos], axis=-1)
  return jnp.concatenate([turned.reshape(*angle.shape[:-1], -1), x[..., 2 * angle.shape[-1] :]], axis=-1)
