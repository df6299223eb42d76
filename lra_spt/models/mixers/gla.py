"""GLA: linear attention with a decay for every channel of the keys (Yang et al. 2023, arXiv 2312.06635,
section 4; the first author's code: `fla-org/flash-linear-attention`, commit bc3b101, `fla/layers/gla.py`)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_spt.models.gated import gated_norm, head_channels, sharded_linear_attention
from lra_spt.models.layers import linear
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import check_causal, zero_padding
from lra_spt.ops.linear_attention import chunk_size


@register_mixer('gla')
class GLA(nnx.Module):
  """[q, k, v, z, r] = W_i x, a = sigmoid(W_a r + b)^(1 / 16), where r has few channels; then for each of H
  heads

      S_t = diag(a_t) S_{t-1} + k_t v_t^T, y_t = q_t^T S_t / sqrt(N),

  and W_o (RMSNorm(y) * silu(z)), the norm over each head, with one scale per channel, which heads share. Only
  b is a bias. Matrix products, including those of the recurrence, run in `dtype`; decays, states and norm are
  float32.

  The causal form is the published one. The bidirectional form is ours: a second recurrence, with its own r,
  W_a and b, runs from the last valid position backwards, and both y are summed before the norm.

  Args:
    heads: H.
    expand_k, expand_v: channels of all keys and of all values / D; per head N and P.
    rank: channels of r, published 16.
    normalizer: the root that is taken of the sigmoid, published 16.

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
    expand_k: float = 0.5,
    expand_v: float = 1.0,
    rank: Positive = 16,
    normalizer: Positive = 16,
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    self.keys = head_channels('model.mixer.expand_k', expand_k, width, heads)
    self.values = head_channels('model.mixer.expand_v', expand_v, width, heads)
    self.causal, self.heads, self.normalizer, self.dtype = causal, heads, normalizer, dtype
    directions, bound = 1 if causal else 2, 1 / math.sqrt(rank)

    def uniform(shape):
      return nnx.Param(jax.random.uniform(rngs.params(), shape, minval=-bound, maxval=bound))

    channels = 2 * self.keys + 2 * self.values + directions * rank
    self.input = linear(width, channels, bias=False, dtype=dtype, rngs=rngs)
    self.decay_gate = uniform((directions, rank, self.keys))
    self.decay_gate_bias = uniform((directions, self.keys))
    self.norm = nnx.Param(jnp.ones(self.values // heads))
    self.out = linear(self.values, width, bias=False, dtype=dtype, rngs=rngs)

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published layer has no dropout
    *qkv, z_BLE, r_BLR = self._inputs(x_BLD)
    qkv[2] = zero_padding(qkv[2].reshape(z_BLE.shape), lengths_B).reshape(qkv[2].shape)
    qkv = [x.astype(self.dtype) for x in qkv]
    y_BLHP = sharded_linear_attention(*qkv, self._decays(r_BLR, 0))
    if not self.causal:
      y_BLHP += sharded_linear_attention(*qkv, self._decays(r_BLR, 1), direction='backward')
    return self.out(gated_norm(y_BLHP, self.norm[...], z_BLE))

  def _inputs(self, x_BLD):
    """q / sqrt(N), k, v, z [B, L, E] and r of all directions, float32."""
    cuts = np.cumsum([self.keys, self.keys, self.values, self.values])
    *parts, z_BLE, r_BLR = jnp.split(self.input(x_BLD).astype(jnp.float32), cuts, axis=-1)
    q_BLHN, k_BLHN, v_BLHP = (x.reshape(*x.shape[:2], self.heads, -1) for x in parts)
    return q_BLHN * np.float32(q_BLHN.shape[-1] ** -0.5), k_BLHN, v_BLHP, z_BLE, r_BLR

  def _decays(self, r_BLR, direction):
    """log a [B, L, H, N] of one direction."""
    rank = self.decay_gate.shape[-2]
    r_BLR = r_BLR[..., direction * rank : (direction + 1) * rank]
    a_BLM = jnp.einsum('blr,rm->blm', r_BLR, self.decay_gate[direction])
    a_BLM = jax.nn.log_sigmoid(a_BLM + self.decay_gate_bias[direction][None, None]) / self.normalizer
    return a_BLM.reshape(*r_BLR.shape[:2], self.heads, -1)

  def init_state(self, batch_size: int) -> jax.Array:
    """The state before the first position, float32 [B, H, N, P].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    return jnp.zeros((batch_size, self.heads, self.keys // self.heads, self.values // self.heads))

  def step(self, state, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    *arrays, z_B1E, r_B1R = self._inputs(x_BD[:, None])
    q_BHN, k_BHN, v_BHP = (x[:, 0] for x in arrays)
    state = jnp.exp(self._decays(r_B1R, 0)[:, 0, :, :, None]) * state + k_BHN[..., None] * v_BHP[:, :, None]
    y_BHP = jnp.einsum('bhn,bhnp->bhp', q_BHN, state)
    return state, self.out(gated_norm(y_BHP[:, None], self.norm[...], z_B1E))[:, 0]

  def flops(self, length: int) -> int:
    """Per position and direction: 2 for each weight of the gate, 4 for each number of the states and, in
    chunks of T positions, 2 T for each channel of values and 2 T (log2 T + 1) for each channel of keys."""
    directions, rank, _ = self.decay_gate.shape[-3:]  # stacked blocks have a depth axis in front
    size = chunk_size(self.keys // self.heads, self.values // self.heads)
    size = min(size, 1 << (length - 1).bit_length())
    chunk = 2 * size * (self.values + size.bit_length() * self.keys)
    states = self.keys * self.values // self.heads
    return length * directions * (2 * rank * self.keys + 4 * states + chunk)
