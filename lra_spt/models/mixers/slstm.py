"""sLSTM: an LSTM with exponential input gates, whose cells see the outputs of their head (xLSTM, Beck et al.
2024, arXiv 2405.04517, section 2.2; published code: `NX-AI/xlstm`, commit 032a6fb, `xlstm/blocks/slstm`).
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from lra_spt.models.gated import over_heads_with_parameters, short_convolution
from lra_spt.models.layers import check_heads, valid_positions
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import check_causal, zero_padding

GATES = 4  # i, f, z and o, in this order
SHUT, OPEN = -1e38, 1e38  # logits of gates at padding
NEVER = -1e30  # m before the first input: above SHUT, so that a shut gate adds nothing to it


@register_mixer('slstm')
class SLSTM(nnx.Module):
  """Per head of K = D / H channels, with c = silu(conv(x)) and the outputs h_{t-1} of all K cells:

      i' = W_i c_t + R_i h_{t-1} + b_i, f' = W_f c_t + R_f h_{t-1} + b_f,
      z' = W_z x_t + R_z h_{t-1} + b_z, o' = W_o x_t + R_o h_{t-1} + b_o,
      s_t = sigmoid(f') s_{t-1} + exp(i') tanh(z'), n_t = sigmoid(f') n_{t-1} + exp(i'),
      h_t = sigmoid(o') s_t / n_t;

  the output is LayerNorm(h) over each head, with a scale per channel. s and n are stored divided by exp(m_t),
  m_t = max(m_{t-1} + log sigmoid(f'), i'), so that no gate overflows. W run in `dtype`, the rest in float32.

  Gates need the outputs before them, so a plain loop over positions computes this on every device; unrolling
  it gains nothing on CPUs. The published kernels for GPUs are such loops too. What follows the cell in the
  published block is a feed-forward layer, which is the model's here.

  The causal form is the published one. The bidirectional form is ours: a second convolution and recurrence,
  with its own conv, W_i, W_f, R and b, run from the last valid position backwards, and both h are summed.

  Args:
    heads: H.
    taps: positions that the convolution sees.
    depth, layer: depth of the model, and the number of the layer from 0: b_f starts between 5 and -7, with
      more channels near 5 in later layers.

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
    layer: int | jax.Array = 0,
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    check_heads(heads, width)
    self.causal, self.heads, self.dtype = causal, heads, dtype
    directions, size = 1 if causal else 2, width // heads

    def normal(*shape):
      return nnx.Param(math.sqrt(2 / (5 * width)) * jax.random.normal(rngs.params(), (*shape, size, size)))

    def uniform(*shape):
      bound = 1 / math.sqrt(taps)
      return nnx.Param(jax.random.uniform(rngs.params(), shape, minval=-bound, maxval=bound))

    self.conv, self.conv_bias = uniform(directions, taps, width), uniform(directions, width)
    self.input_gate, self.forget_gate = normal(directions, heads), normal(directions, heads)
    self.value, self.output_gate = normal(heads), normal(heads)
    self.recurrent = nnx.Param(jnp.zeros((directions, heads, size, GATES, size)))
    share = jnp.asarray(layer, jnp.float32) / max(depth - 1, 1)
    forget_K = 5 - 12 * (jnp.arange(size) / max(size - 1, 1)) ** (0.3 + 1.3 * share)
    biases_GK = jnp.zeros((GATES, size)).at[1].set(forget_K)
    self.gate_bias = nnx.Param(jnp.broadcast_to(biases_GK, (directions, heads, GATES, size)))
    self.norm = nnx.Param(jnp.zeros(width))  # the scale minus 1

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published layer has no dropout inside
    x_BLD = zero_padding(x_BLD, lengths_B).astype(
      jnp.float32
    )  # the convolution from the end reads the padding
    h_BLHK = 0
    for direction in range(len(self.conv)):
      reverse = direction == 1
      conv_BLD = short_convolution(x_BLD, self.conv[direction], self.conv_bias[direction], reverse=reverse)
      logits_BLHGK = self._logits(x_BLD, jax.nn.silu(conv_BLD), direction)
      if (
        lengths_B is not None
      ):  # the recurrence from the end starts in the padding, where states stay as they are
        padding_GK = jnp.float32([SHUT, OPEN, 0, 0])[:, None]
        valid_BL = valid_positions(lengths_B, x_BLD.shape[1])
        logits_BLHGK = jnp.where(valid_BL[..., None, None, None], logits_BLHGK, padding_GK)
      scan = functools.partial(_scan, reverse=reverse)
      h_BLHK += over_heads_with_parameters(scan, (logits_BLHGK,), (self.recurrent[direction],))
    return self._output(h_BLHK)

  def _logits(self, x_BLD, c_BLD, direction):
    """W x and W c with biases, float32 [B, L, H, 4, K]."""
    x_BLHK, c_BLHK = (v.reshape(*v.shape[:2], self.heads, -1).astype(self.dtype) for v in (x_BLD, c_BLD))
    kernels = self.input_gate[direction], self.forget_gate[direction], self.value[...], self.output_gate[...]
    logits = [
      jnp.einsum('blhk,hko->blho', v, w.astype(self.dtype)).astype(jnp.float32)
      for v, w in zip((c_BLHK, c_BLHK, x_BLHK, x_BLHK), kernels, strict=True)
    ]
    return jnp.stack(logits, axis=3) + self.gate_bias[direction][None, None]

  def _output(self, h_BLHK):
    h_BLHK = h_BLHK - jnp.mean(h_BLHK, axis=-1, keepdims=True)
    h_BLHK = h_BLHK * lax.rsqrt(jnp.mean(h_BLHK**2, axis=-1, keepdims=True) + 1e-5)
    return h_BLHK.reshape(*h_BLHK.shape[:2], -1) * (1 + self.norm[...])[None, None]

  def init_state(self, batch_size: int) -> dict[str, jax.Array]:
    """The state before the first position: s, n, m and h, [4, B, H, K], and the last inputs of the
    convolution, window [B, taps, D].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    cells = first_state((batch_size, self.heads, self.value.shape[-1]))
    return {'cells': cells, 'window': jnp.zeros((batch_size, *self.conv.shape[1:]))}

  def step(self, state, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    x_B1D = x_BD[:, None].astype(jnp.float32)
    window_BJD = jnp.concatenate([state['window'][:, 1:], x_B1D], axis=1)
    c_B1D = jax.nn.silu(short_convolution(window_BJD, self.conv[0], self.conv_bias[0])[:, -1:])
    cells, h_BHK = _cell(self.recurrent[0], state['cells'], self._logits(x_B1D, c_B1D, 0)[:, 0])
    return {'cells': cells, 'window': window_BJD}, self._output(h_BHK[:, None])[:, 0]

  def flops(self, length: int) -> int:
    """Per position and channel: 2 for each weight of conv, W and R, and 16 for its gates and states."""
    directions, taps, width = self.conv.shape[-3:]  # stacked blocks have a depth axis in front
    size = width // self.heads
    return length * width * (directions * (2 * (taps + 2 * size + GATES * size) + 16) + 4 * size)


def first_state(shape) -> jax.Array:
  """s, n, m and h before the first input, float32 [4, *shape]."""
  return jnp.zeros((4, *shape)).at[2].set(NEVER)


def _scan(logits_BLHGK, recurrent_HKGO, *, reverse):
  """h [B, L, H, K] of all positions."""
  B, _, H, _, K = logits_BLHGK.shape

  def step(state, logits_BHGK):  # only states are saved for the gradient
    cell = jax.checkpoint(_cell, prevent_cse=False)
    return cell(recurrent_HKGO, checkpoint_name(state, 'mixer'), logits_BHGK)

  varying = lax.full_like(logits_BLHGK, 0, shape=(4, B, H, K))  # in shard_map, over devices as logits are
  logits_LBHGK = jnp.moveaxis(logits_BLHGK, 1, 0)
  _, h_LBHK = lax.scan(step, first_state((B, H, K)) + varying, logits_LBHGK, reverse=reverse)
  return checkpoint_name(jnp.moveaxis(h_LBHK, 0, 1), 'mixer')


def _cell(recurrent_HKGO, state, logits_BHGK):
  """(state after a position, h). Gradients treat m as a constant, because it cancels."""
  s, n, m, h = state
  logits_BHGK = logits_BHGK + jnp.einsum('bhk,hkgo->bhgo', h, recurrent_HKGO)
  i, f, z, o = (logits_BHGK[:, :, gate] for gate in range(GATES))
  f = m + jax.nn.log_sigmoid(f)
  m = lax.stop_gradient(jnp.maximum(i, f))
  i, f = jnp.exp(i - m), jnp.exp(f - m)
  s, n = f * s + i * jnp.tanh(z), f * n + i
  h = jax.nn.sigmoid(o) * s / jnp.where(n > 0, n, 1.0)  # n is 0 before the first input only
  return jnp.stack([s, n, m, h]), h
