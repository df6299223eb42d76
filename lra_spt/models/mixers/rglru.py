"""RG-LRU: the recurrent block of Griffin and Hawk (De et al. 2024, arXiv 2402.19427; published code:
`google-deepmind/recurrentgemma`, commit 2efa84d, `recurrentgemma/jax/{layers,modules}.py`)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from lra_spt.errors import ConfigError
from lra_spt.models.gated import gated_scan, short_convolution
from lra_spt.models.layers import Linear
from lra_spt.models.registry import NotNegative, Positive, register_mixer
from lra_spt.models.ssm import check_causal, group, zero_padding

SHARPNESS = 8  # c of the paper
_LARGEST_THETA = np.float32(0.1 * np.pi)  # initial theta is uniform below it, as published


@register_mixer('rglru')
class RGLRU(nnx.Module):
  """y = W_o (h * GELU(W_y x)) where h is a gated recurrence over v = conv(W_x x), channel by channel:

      h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t * v_t), a_t = exp(-8 r_t softplus(Lambda)),
      r_t = sigmoid(W_a v_t + b_a), i_t = sigmoid(W_i v_t + b_i), W_a and W_i block-diagonal,

  and h = i * v at the first position. The GELU is its tanh approximation, as published. Matrix products run
  in `dtype`; convolution, gates and recurrence run in float32.

  With E / 2 complex states, v is v_real + i v_imaginary from its two halves, a_t also rotates by r_t theta,
  the input is scaled by sqrt(1 - |a_t|^2), gates have E / 2 values, and h is [real parts, imaginary parts].

  The causal form is the published one, real and complex. The bidirectional form is ours: a second convolution
  and recurrence with their own parameters run from the last valid position backwards, and both h are summed;
  W_x, W_y and W_o are shared. Lambda and theta have no weight decay, which is ours too.

  Args:
    lru_width: E, channels of the recurrence; 0: the width (published: 0, or 4/3 of the width).
    heads: blocks on the diagonals of W_a and W_i.
    taps: positions that the convolution sees.
    complex_states: E / 2 complex states in place of E real ones (published models use real ones).
    r_min, r_max: exp(-softplus(Lambda)), which is a^(1/8) at r = 1, starts uniform in area on the ring
      between them.
    ssm_lr: learning rate of Lambda and theta; 0: the stage's.
    depth: depth of the model; W_o starts with variance 2 / (depth E), all other matrices with 1 / fan-in.
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
    lru_width: NotNegative = 0,
    heads: int = 8,
    taps: Positive = 4,
    complex_states: bool = False,
    r_min: float = 0.9,
    r_max: float = 0.999,
    ssm_lr: float = 0.0,
    depth: int = 2,
    scan: str = '',
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    inner = lru_width or width
    if complex_states and inner % 2:
      raise ConfigError(
        f'model.mixer.complex_states halves the {inner} channels of the recurrence; choose an even '
        'model.mixer.lru_width (0: model.width)'
      )
    states = inner // 2 if complex_states else inner
    if heads < 1 or states % heads:
      raise ConfigError(
        f'model.mixer.heads is {heads}, which does not divide the {states} states of the recurrence; choose '
        'a divisor of model.mixer.lru_width (0: of model.width), of its half with complex states'
      )
    if not 0 <= r_min < r_max < 1:
      raise ConfigError(f'model.mixer has r_min={r_min}, r_max={r_max}; choose 0 <= r_min < r_max < 1')
    self.causal, self.scan = causal, scan or None
    directions = 1 if causal else 2

    def normal(shape, variance):
      return nnx.Param(jax.random.normal(rngs.params(), shape) * np.float32(np.sqrt(variance)))

    def projection(inputs, outputs, variance):
      init = nnx.initializers.normal(float(np.sqrt(variance)))
      return Linear(inputs, outputs, dtype=dtype, kernel_init=init, rngs=rngs)

    self.gate = projection(width, inner, 1 / width)
    self.input = projection(width, inner, 1 / width)
    self.out = projection(inner, width, 2 / (depth * inner))
    self.conv = normal((directions, taps, inner), 0.01 / taps)
    self.conv_bias = nnx.Param(jnp.zeros((directions, inner)))
    block = directions, heads, inner // heads, states // heads
    self.input_gate = normal(block, heads / inner)
    self.input_gate_bias = nnx.Param(jnp.zeros((directions, heads, states // heads)))
    self.decay_gate = normal(block, heads / inner)
    self.decay_gate_bias = nnx.Param(jnp.zeros((directions, heads, states // heads)))
    u_SN = jax.random.uniform(rngs.params(), (directions, states))
    radius_SN = jnp.sqrt(u_SN * (r_max**2 - r_min**2) + r_min**2 + 1e-8)
    radius_SN = jnp.minimum(radius_SN, 1 - 2.0**-20)  # at 1 Lambda would have no value
    # softplus(Lambda) = -log(radius)
    self.decay = nnx.Param(jnp.log(1 / radius_SN - 1), ssm=True, group=group(ssm_lr))
    if complex_states:
      theta_SN = _LARGEST_THETA * jax.random.uniform(rngs.params(), (directions, states))
      self.turn = nnx.Param(theta_SN, ssm=True, group=group(ssm_lr))
    else:
      self.turn = None

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published block has no dropout
    # The convolution from the end reads the padding.
    v_BLE = zero_padding(self.input(x_BLD).astype(jnp.float32), lengths_B)
    ends_B = jnp.full(len(x_BLD), x_BLD.shape[1]) if lengths_B is None else lengths_B
    position_1L = jnp.arange(x_BLD.shape[1])[None]
    h_BLE = jnp.zeros_like(v_BLE)
    for direction in range(len(self.decay)):
      reverse = direction == 1
      first_BL = position_1L == (ends_B - 1 if reverse else jnp.zeros_like(ends_B))[:, None]
      conv_BLE = short_convolution(v_BLE, self.conv[direction], self.conv_bias[direction], reverse=reverse)
      a_BLN, u_BLN = self._recurrence(conv_BLE, first_BL, direction)
      u_BLN = zero_padding(u_BLN, lengths_B)
      h_BLN = gated_scan(a_BLN, u_BLN, reverse=reverse, implementation=self.scan)
      h_BLE = h_BLE + _channels(h_BLN)
    return self._output(h_BLE, x_BLD)

  def _recurrence(self, v_BLE, first_BL, direction):
    """a and the input sqrt(1 - a^2) i v of N states, [B, L, N], float32 or complex64. first_BL: bool, True
    where h starts."""
    v_BLHK = v_BLE.reshape(*v_BLE.shape[:2], *self.input_gate.shape[1:3])

    def gate(kernel, bias):
      logits_BLHN = jnp.einsum('blhk,hkn->blhn', v_BLHK, kernel[direction]) + bias[direction][None, None]
      return jax.nn.sigmoid(logits_BLHN).reshape(*v_BLE.shape[:2], -1)

    decay_N = jax.nn.softplus(self.decay[direction])
    r_BLN = gate(self.decay_gate, self.decay_gate_bias)
    log_a_BLN = -SHARPNESS * r_BLN * decay_N[None, None]
    scale_BLN = jnp.where(first_BL[..., None], 1.0, _root(-jnp.expm1(2 * log_a_BLN)))
    scale_BLN = scale_BLN * gate(self.input_gate, self.input_gate_bias)
    if self.turn is None:
      return jnp.exp(log_a_BLN), scale_BLN * v_BLE
    turn_BLN = r_BLN * self.turn[direction][None, None]
    real_BLN, imaginary_BLN = jnp.split(v_BLE, 2, axis=-1)
    u_BLN = lax.complex(scale_BLN * real_BLN, scale_BLN * imaginary_BLN)
    return jnp.exp(lax.complex(log_a_BLN, turn_BLN)), u_BLN

  def _output(self, h_BLE, x_BLD):
    return self.out(h_BLE * jax.nn.gelu(self.gate(x_BLD).astype(jnp.float32), approximate=True))

  def init_state(self, batch_size: int) -> dict[str, jax.Array]:
    """The state before the first position: position int32 [B], h [B, N], and the last inputs of the
    convolution, window [B, taps, E].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    taps, inner = self.conv.shape[1:]
    return {
      'position': jnp.zeros(batch_size, jnp.int32),
      'h': jnp.zeros((batch_size, self.decay.shape[-1]), jnp.float32 if self.turn is None else jnp.complex64),
      'window': jnp.zeros((batch_size, taps, inner)),
    }

  def step(self, state, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    x_B1D = x_BD[:, None]
    v_B1E = self.input(x_B1D).astype(jnp.float32)
    window_BJE = jnp.concatenate([state['window'][:, 1:], v_B1E], axis=1)
    conv_B1E = short_convolution(window_BJE, self.conv[0], self.conv_bias[0])[:, -1:]
    a_B1N, u_B1N = self._recurrence(conv_B1E, state['position'][:, None] == 0, 0)
    h_BN = a_B1N[:, 0] * state['h'] + u_B1N[:, 0]
    state = {'position': state['position'] + 1, 'h': h_BN, 'window': window_BJE}
    return state, self._output(_channels(h_BN)[:, None], x_B1D)[:, 0]

  def flops(self, length: int) -> int:
    """Per position, direction and channel: 2 for each weight of the gates and of the convolution, and 12 for
    gates and recurrence."""
    directions, _, _, block = self.input_gate.shape[-4:]  # stacked blocks have a depth axis in front
    taps, inner = self.conv.shape[-2:]
    return length * directions * inner * (4 * block + 2 * taps + 12)


def _channels(h):
  """The channels of states: for complex ones, real parts and then imaginary parts."""
  return jnp.concatenate([h.real, h.imag], axis=-1) if jnp.iscomplexobj(h) else h


@jax.custom_jvp
def _root(y):
  """sqrt(y) with a derivative of at most 1000, as published."""
  return jnp.sqrt(y)


_root.defjvps(lambda tangent, root, y: tangent / jnp.maximum(2 * root, np.float32(1e-3)))
