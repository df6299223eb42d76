"""mLSTM: an LSTM with a matrix memory and exponential input gates (xLSTM, Beck et al. 2024, arXiv
2405.04517; published code: `NX-AI/xlstm`, commit 032a6fb, `xlstm/blocks/mlstm`).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from lra_spt.distributed.sharding import rows_island
from lra_spt.errors import ConfigError
from lra_spt.models.gated import sharded_linear_attention, short_convolution
from lra_spt.models.layers import Linear
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import check_causal, zero_padding
from lra_spt.ops.linear_attention import chunk_size

BLOCK = 4  # maps to queries, keys and values mix the channels of blocks of this size
SHUT = -80.0  # log of a closed input gate; the inverse of the gate is still finite


@register_mixer('mlstm')
class MLSTM(nnx.Module):
  """[a, z] = W_u x with E = 2 D channels each, rounded up to a multiple of 64; c = silu(conv(a)); q and k are
  linear in c, v in a, in blocks of 4 channels; log i = W_i [q, k, v] + b_i, f = sigmoid(W_f [q, k, v] + b_f);
  then for each of H heads of K = E / H channels

      S_t = f_t S_{t-1} + i_t k_t v_t^T, n_t = f_t n_{t-1} + i_t k_t,
      h_t = q_t^T S_t / max(|q_t . n_t|, sqrt(K)),

  and W_d ((LayerNorm(h) + s c) silu(z)), the norm over each head. Only gates and convolution have biases.
  S and n are stored divided by exp(m_t), m_t = max(m_{t-1} + log f_t, log i_t), so that no gate overflows. At
  this scale 1e-6 is added to the denominator of h_t, as published. W_u and W_d run in `dtype`, the rest in
  float32.

  The causal form is the published one. The bidirectional form is ours: a second convolution and recurrence,
  with its own conv, W_i, W_f, biases and s, run from the last valid position backwards; both h are summed,
  and so are both s c.

  Args:
    heads: H.
    taps: positions that the convolution sees.
    depth: depth of the model; W_d starts with the standard deviation 2 / (depth sqrt(D)).

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
    heads: int = 4,
    taps: Positive = 4,
    depth: int = 1,
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    inner = 64 * -(-2 * width // 64)
    if heads < 1 or inner % heads:
      raise ConfigError(
        f'model.mixer.heads is {heads}, which does not divide the {inner} channels of the recurrence; choose '
        'a divisor'
      )
    self.causal, self.heads = causal, heads
    directions = 1 if causal else 2

    def normal(shape, deviation):
      return deviation * jax.random.normal(rngs.params(), shape)

    def uniform(shape):
      bound = 1 / math.sqrt(taps)
      return nnx.Param(jax.random.uniform(rngs.params(), shape, minval=-bound, maxval=bound))

    def projection(inputs, outputs, deviation):
      init = nnx.initializers.normal(deviation)
      return Linear(inputs, outputs, use_bias=False, dtype=dtype, kernel_init=init, rngs=rngs)

    small = math.sqrt(2 / (5 * width))
    self.up = projection(width, 2 * inner, small)
    self.down = projection(inner, width, 2 / (depth * math.sqrt(width)))
    self.query, self.key, self.value = (
      nnx.Param(normal((inner // BLOCK, BLOCK, BLOCK), small)) for _ in range(3)
    )
    self.conv = uniform((directions, taps, inner))
    self.conv_bias = uniform((directions, inner))
    self.input_gate = nnx.Param(jnp.zeros((directions, 3 * inner, heads)))
    self.input_gate_bias = nnx.Param(normal((directions, heads), 0.1))
    self.forget_gate = nnx.Param(jnp.zeros((directions, 3 * inner, heads)))
    biases_H = np.linspace(3, 6, heads, dtype=np.float32)
    self.forget_gate_bias = nnx.Param(jnp.broadcast_to(biases_H, (directions, heads)))
    self.skip = nnx.Param(jnp.ones((directions, inner)))
    self.norm = nnx.Param(jnp.zeros(inner))  # the scale minus 1

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published layer has no dropout inside
    a_BLE, z_BLE = jnp.split(self.up(x_BLD).astype(jnp.float32), 2, axis=-1)
    a_BLE = zero_padding(a_BLE, lengths_B)  # the convolution from the end reads the padding
    h_BLHK, skipped_BLE = 0, 0
    for direction in range(len(self.conv)):
      reverse = direction == 1
      conv_BLE = short_convolution(a_BLE, self.conv[direction], self.conv_bias[direction], reverse=reverse)
      c_BLE = jax.nn.silu(conv_BLE)
      q_BLHK, k_BLHK, v_BLHP, i_BLH, f_BLH = self._recurrence(a_BLE, c_BLE, direction)
      if lengths_B is not None:  # the scan from the end starts in the padding
        valid_BL1 = jnp.arange(x_BLD.shape[1])[None, :, None] < lengths_B[:, None, None]
        i_BLH = jnp.where(valid_BL1, i_BLH, SHUT)
        k_BLHK = jnp.where(valid_BL1[..., None], k_BLHK, 0.0)
      h_BLHK += read_memory(q_BLHK, k_BLHK, v_BLHP, i_BLH, f_BLH, reverse=reverse)
      skipped_BLE += self.skip[direction][None, None] * c_BLE
    return self._output(h_BLHK, skipped_BLE, z_BLE)

  def _recurrence(self, a_BLE, c_BLE, direction):
    """q / sqrt(K), k and [v, 1], and the logarithms of both gates [B, L, H], float32."""

    def blocks(x_BLE, kernel):
      x_BLGI = x_BLE.reshape(*x_BLE.shape[:2], -1, BLOCK)
      return jnp.einsum('blgi,goi->blgo', x_BLGI, kernel[...]).reshape(x_BLE.shape)

    qkv = [blocks(x, kernel) for x, kernel in ((c_BLE, self.query), (c_BLE, self.key), (a_BLE, self.value))]
    joined_BLF = jnp.concatenate(qkv, axis=-1)

    def gate(kernel, bias):
      return jnp.einsum('blf,fh->blh', joined_BLF, kernel[direction]) + bias[direction][None, None]

    q_BLHK, k_BLHK, v_BLHK = (x.reshape(*x.shape[:2], self.heads, -1) for x in qkv)
    i_BLH = gate(self.input_gate, self.input_gate_bias)
    f_BLH = jax.nn.log_sigmoid(gate(self.forget_gate, self.forget_gate_bias))
    v_BLHP = jnp.concatenate([v_BLHK, jnp.ones_like(v_BLHK[..., :1])], axis=-1)
    return q_BLHK * np.float32(q_BLHK.shape[-1] ** -0.5), k_BLHK, v_BLHP, i_BLH, f_BLH

  def _output(self, h_BLHK, skipped_BLE, z_BLE):
    h_BLHK = h_BLHK - jnp.mean(h_BLHK, axis=-1, keepdims=True)
    h_BLHK = h_BLHK * lax.rsqrt(jnp.mean(h_BLHK**2, axis=-1, keepdims=True) + 1e-5)
    h_BLE = h_BLHK.reshape(z_BLE.shape) * (1 + self.norm[...])[None, None]
    return self.down((h_BLE + skipped_BLE) * jax.nn.silu(z_BLE))

  def init_state(self, batch_size: int) -> dict[str, jax.Array]:
    """The state before the first position: m [B, H], S and n as states [B, H, K, K + 1], both divided by
    exp(m), and the last inputs of the convolution, window [B, taps, E].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    head_dim = self.conv.shape[-1] // self.heads
    return {
      'm': jnp.full((batch_size, self.heads), SHUT),
      'states': jnp.zeros((batch_size, self.heads, head_dim, head_dim + 1)),
      'window': jnp.zeros((batch_size, *self.conv.shape[1:])),
    }

  def step(self, state, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    a_B1E, z_B1E = jnp.split(self.up(x_BD[:, None]).astype(jnp.float32), 2, axis=-1)
    window_BJE = jnp.concatenate([state['window'][:, 1:], a_B1E], axis=1)
    c_B1E = jax.nn.silu(short_convolution(window_BJE, self.conv[0], self.conv_bias[0])[:, -1:])
    q, k, v, i, f = (x[:, 0] for x in self._recurrence(a_B1E, c_B1E, 0))
    m_BH = jnp.maximum(state['m'] + f, i)
    states = jnp.exp(state['m'] + f - m_BH)[..., None, None] * state['states']
    states += (jnp.exp(i - m_BH)[..., None] * k)[..., None] * v[..., None, :]
    sums_BHP = jnp.einsum('bhk,bhkp->bhp', q, states)
    y_B1D = self._output(_normalised(sums_BHP, m_BH)[:, None], self.skip[0][None, None] * c_B1E, z_B1E)
    return {'m': m_BH, 'states': states, 'window': window_BJE}, y_B1D[:, 0]

  def flops(self, length: int) -> int:
    """Per position, direction and channel: 2 for each weight of convolution, blocks and gates, 4 for each of
    its K + 1 numbers of the states, and 4 for each position of a chunk."""
    directions, taps, inner = self.conv.shape[-3:]  # stacked blocks have a depth axis in front
    head_dim = inner // self.heads
    chunk = min(length, chunk_size(head_dim, head_dim + 1))
    weights = taps + 3 * BLOCK + 6 * self.heads
    return length * directions * inner * (2 * weights + 4 * (head_dim + 1) + 4 * chunk)


def read_memory(q_BLHK, k_BLHK, v_BLHP, i_BLH, f_BLH, *, reverse: bool = False) -> jax.Array:
  """h [B, L, H, K] of all positions from q / sqrt(K), k, [v, 1] and the logarithms of input and forget gates,
  all float32. With `reverse`, the recurrence runs from the last position."""
  m_BLH, decay_BLH = _stabilised(i_BLH, f_BLH, reverse)
  keys_BLHK = jnp.exp(i_BLH - m_BLH)[..., None] * k_BLHK
  direction = 'backward' if reverse else 'forward'
  sums_BLHP = sharded_linear_attention(q_BLHK, keys_BLHK, v_BLHP, decay_BLH, direction=direction)
  return _normalised(sums_BLHP, m_BLH)


def _stabilised(i_BLH, f_BLH, reverse):
  """m, and log decays of states divided by exp(m). Gradients treat m as a constant, because it cancels."""

  def later(first, second):
    return first[0] + second[0], jnp.maximum(first[1] + second[0], second[1])

  def largest(i_BLH, f_BLH):
    m_BLH = lax.associative_scan(later, (f_BLH, i_BLH), reverse=reverse, axis=1)[1]
    first, others = (m_BLH[:, -1:], m_BLH[:, 1:]) if reverse else (m_BLH[:, :1], m_BLH[:, :-1])
    before_BLH = jnp.concatenate([others, first] if reverse else [first, others], axis=1)
    return m_BLH, jnp.minimum(before_BLH - m_BLH, -f_BLH)  # rounding must not make a log decay positive

  m_BLH, change_BLH = rows_island(largest)(*lax.stop_gradient((i_BLH, f_BLH)))
  return m_BLH, f_BLH + change_BLH


def _normalised(sums, m):
  least = jnp.exp(-m)[..., None]
  return sums[..., :-1] / (jnp.maximum(jnp.abs(sums[..., -1:]), least) + 1e-6)
