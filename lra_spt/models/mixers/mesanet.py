"""MesaNet: a memory that is fitted to the past by ridge regression at every position (von Oswald et al. 2025,
arXiv 2506.05233; code: `fla-org/flash-linear-attention`, commit bc3b101, `fla/layers/mesa_net.py`)."""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from lra_spt.models.gated import head_norm, over_heads, short_convolution
from lra_spt.models.layers import check_heads, linear
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import check_causal, group, zero_padding
from lra_spt.ops.linear_attention import chunk_size
from lra_spt.ops.mesa import mesa

LEAST_RIDGE = 0.25


@register_mixer('mesanet')
class MesaNet(nnx.Module):
  """[q, k, v] = W_i x; [q, k] = silu(conv([q, k])), then both divided by their norms; [e, f] = W_g x + c,
  b = sigmoid(e), a = sigmoid(f), r = softplus(p) + 0.25. Then for each of H heads of N = D / H channels

      H_t = a_t H_{t-1} + b_t k_t k_t^T, G_t = a_t G_{t-1} + b_t k_t v_t^T,
      y_t = G_t^T (H_t + diag(r))^-1 q_t,

  the value at q_t of the linear map that fits the past best, by squares with the weights a_{s+1} ... a_t b_s
  and the penalty r. The output is W_o RMSNorm(y), the norm over each head, with one scale per channel, which
  heads share. Only c is a bias. W_i, W_o and the last product with G_t run in `dtype`, the rest in float32.

  The causal form is the published one. The bidirectional form is ours: a second recurrence, with its own
  conv, W_g, c and p, runs from the last valid position backwards, and both y are summed before the norm. The
  published code adds 1e-5 to the divisors of its steps. Ours does not, and comes closer to the exact y.

  Args:
    heads: H.
    taps: positions that the convolution sees.
    steps: steps of conjugate gradients, published 30. N of them are exact but for rounding.

  Raises:
    ConfigError: the heads do not divide the width.
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
    steps: Positive = 30,
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    check_heads(heads, width)
    self.causal, self.heads, self.steps, self.dtype = causal, heads, steps, dtype
    directions, bound = 1 if causal else 2, 1 / math.sqrt(taps)
    self.input = linear(width, 3 * width, bias=False, dtype=dtype, rngs=rngs)
    self.gates = linear(width, directions * 2 * heads, rngs=rngs)
    shape = (directions, taps, 2 * width)
    self.conv = nnx.Param(jax.random.uniform(rngs.params(), shape, minval=-bound, maxval=bound))
    start = math.log(math.expm1(1 - LEAST_RIDGE))
    self.ridge = nnx.Param(jnp.full((directions, heads, width // heads), start), group=group(0.0))
    self.norm = nnx.Param(jnp.ones(width // heads))
    self.out = linear(width, width, bias=False, dtype=dtype, rngs=rngs)

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published layer has no dropout
    mixed_BLM, v_BLHN = self._inputs(x_BLD)
    mixed_BLM = zero_padding(mixed_BLM, lengths_B)  # the convolution from the end reads the padding
    y_BLHN = 0
    for direction in range(len(self.conv)):
      reverse = direction == 1
      q_BLHN, k_BLHN = self._convolved(mixed_BLM, direction, reverse)
      a_BLH, b_BLH = self._gates(x_BLD, direction)
      b_BLH = zero_padding(b_BLH, lengths_B)  # the sums from the end start in the padding
      ridge_BLHN = jnp.broadcast_to(self._ridge(direction)[None, None], q_BLHN.shape)
      order = 'backward' if reverse else 'forward'
      attend = functools.partial(mesa, steps=self.steps, direction=order)
      y_BLHN += over_heads(attend, q_BLHN, k_BLHN, v_BLHN.astype(self.dtype), a_BLH, b_BLH, ridge_BLHN)
    return self._output(y_BLHN)

  def _inputs(self, x_BLD):
    """[q, k] before the convolution and v, float32."""
    width = x_BLD.shape[-1]
    mixed_BLM, v_BLD = jnp.split(self.input(x_BLD).astype(jnp.float32), (2 * width,), axis=-1)
    return mixed_BLM, v_BLD.reshape(*v_BLD.shape[:2], self.heads, -1)

  def _convolved(self, mixed_BLM, direction, reverse=False):
    none = jnp.zeros(mixed_BLM.shape[-1])
    mixed_BLM = jax.nn.silu(short_convolution(mixed_BLM, self.conv[direction], none, reverse=reverse))
    parts = (x.reshape(*x.shape[:2], self.heads, -1) for x in jnp.split(mixed_BLM, 2, axis=-1))
    return tuple(x * lax.rsqrt(jnp.sum(x**2, -1, keepdims=True) + 1e-6) for x in parts)

  def _gates(self, x_BLD, direction):
    """log a and b of one direction, [B, L, H]."""
    gates_BLM = self.gates(x_BLD.astype(jnp.float32))
    e_BLH, f_BLH = jnp.split(gates_BLM, len(self.conv) * 2, axis=-1)[2 * direction : 2 * direction + 2]
    return jax.nn.log_sigmoid(f_BLH), jax.nn.sigmoid(e_BLH)

  def _ridge(self, direction):
    return jax.nn.softplus(self.ridge[direction]) + LEAST_RIDGE

  def _output(self, y_BLHN):
    return self.out(head_norm(y_BLHN, self.norm[...]))

  def init_state(self, batch_size: int) -> dict[str, jax.Array]:
    """The state before the first position: H and G as states [2, B, H, N, N], and the last inputs of the
    convolution, window [B, taps, 2 D].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    size = self.norm.shape[-1]
    return {
      'states': jnp.zeros((2, batch_size, self.heads, size, size)),
      'window': jnp.zeros((batch_size, *self.conv.shape[1:])),
    }

  def step(self, state, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    mixed_B1M, v_B1HN = self._inputs(x_BD[:, None])
    window_BJM = jnp.concatenate([state['window'][:, 1:], mixed_B1M], axis=1)
    q_BHN, k_BHN = (x[:, -1] for x in self._convolved(window_BJM, 0))
    a_BH, b_BH = (x[:, 0] for x in self._gates(x_BD[:, None], 0))
    stored = jnp.stack([k_BHN, v_B1HN[:, 0]])[:, :, :, None]
    states = jnp.exp(a_BH)[None, ..., None, None] * state['states']
    states += (b_BH[..., None] * k_BHN)[None, ..., None] * stored
    ridge_HNN = self._ridge(0)[..., None] * jnp.eye(k_BHN.shape[-1])[None]
    x_BHN1 = jnp.linalg.solve(states[0] + ridge_HNN[None], q_BHN[..., None])
    y_BHN = jnp.einsum('bhn,bhnp->bhp', x_BHN1[..., 0], states[1])
    return {'states': states, 'window': window_BJM}, self._output(y_BHN[:, None])[:, 0]

  def flops(self, length: int) -> int:
    """Per position and direction: 2 for each weight of the convolution, 4 N for each channel in each step and
    in the last read, there also 4 for each position of the chunk, and 10 for each channel and step."""
    directions, taps, mixed = self.conv.shape[-3:]  # stacked blocks have a depth axis in front
    width, size = mixed // 2, mixed // 2 // self.heads
    read = width * (4 * size + 4 * min(length, chunk_size(size, size)))
    return length * directions * (2 * taps * mixed + (self.steps + 1) * read + 10 * self.steps * width)
