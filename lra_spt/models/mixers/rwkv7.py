"""RWKV-7: a state that decays per channel, forgets one key and stores another, behind a shift of tokens (Peng
et al. 2025, arXiv 2503.14456; the first author's code: `BlinkDL/RWKV-LM`, commit 118e451, class
RWKV_Tmix_x070 in `RWKV-v7/train_temp/src/model.py`)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from lra_spt.models.delta import recurrence_flops
from lra_spt.models.gated import sharded_delta_rule
from lra_spt.models.layers import check_heads, linear
from lra_spt.models.registry import NotNegative, register_mixer
from lra_spt.models.ssm import check_causal, group, zero_padding
from lra_spt.ops.delta_rule import delta_rule_step


@register_mixer('rwkv7')
class RWKV7(nnx.Module):
  """Each of r, w, k, v, a and g has an input x_t + m * (x_{t-1} - x_t) with its own m, where x is 0 before
  the first position. r, k and v are linear in theirs; with W' of lower rank, w = exp(-exp(-1/2) sigmoid(c + W
  tanh(W' .))), a = sigmoid(d + W W' .) and g = W sigmoid(W' .). For each of H heads of N channels, with z = k
  * p divided by its norm and s = k * (1 + (a - 1) * q),

      S_t = (diag(w_t) - (a_t * z_t) z_t^T) S_{t-1} + s_t v_t^T, y_t = r_t^T S_t.

  The output is W_o (g * (GroupNorm(y) + (r . (u * s)) v)), the norm over each head with eps 1e-5 N. c, d and
  the bias of the norm are the only biases; m, p, q and u are vectors. Matrix products, including those of the
  recurrence, run in `dtype`; decays, states, triangular systems and norms are float32.

  The causal form is the published layer with the index 0. In published layers after it v also takes a part of
  the v of layer 0, which mixers here do not see. The bidirectional form is ours: a second shift and
  recurrence, with their own m, c, d, p, q and u, run from the last valid position backwards, and the inputs
  of W_o are summed.

  Initial values are the published ones, but for W of w, a and g: normal numbers of the size of the published
  orthogonal matrices.

  Args:
    heads: H. Published heads have 64 channels.
    rank, gate_rank: the ranks of w and a, and of g; 0: as published, 2.5 sqrt(D) and 5 sqrt(D), rounded to a
      positive multiple of 32.
    depth, layer: depth of the model, and number of the layer, on which initial values depend.
    ssm_lr: learning rate of c; 0: the stage's. The published one is twice that of the rest.

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
    rank: NotNegative = 0,
    gate_rank: NotNegative = 0,
    depth: int = 1,
    layer: int | jax.Array = 0,
    ssm_lr: float = 0.0,
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    check_heads(heads, width)
    self.causal, self.dtype, self.heads = causal, dtype, heads
    rank, gate_rank = (
      given or max(32, round(factor * math.sqrt(width) / 32) * 32)
      for given, factor in ((rank, 2.5), (gate_rank, 5))
    )
    options = {'bias': False, 'dtype': dtype, 'rngs': rngs}

    def scaled(scale, inputs, outputs):
      layer = linear(inputs, outputs, **options)
      layer.kernel.set_value(scale * layer.kernel[...])
      return layer

    def low_rank(rank):
      into, out = scaled(0, width, rank), linear(rank, width, **options)
      size = 0.1 * max(1, math.sqrt(rank / width)) / math.sqrt(max(rank, width))
      out.kernel.set_value(size * jax.random.normal(rngs.params(), (rank, width)))
      return into, out

    self.query, self.key, self.value = (scaled(scale, width, width) for scale in (0.5, 0.05, 0.5))
    self.out = scaled(0, width, width)
    self.decay_in, self.decay_out = low_rank(rank)
    self.rate_in, self.rate_out = low_rank(rank)
    self.gate_in, self.gate_out = low_rank(gate_rank)
    self._make_vectors(width, 1 if causal else 2, depth, layer, ssm_lr)

  def _make_vectors(self, width, directions, depth, layer, ssm_lr):
    layer = jnp.asarray(layer, jnp.float32)
    size, n = width // self.heads, np.arange(width, dtype=np.float32)
    line = n / max(width - 1, 1)
    zigzag = 2 * (n % size) / max(size - 1, 1) - 1
    zigzag *= np.abs(zigzag)
    share = layer / max(depth - 1, 1)

    def vectors(value, **metadata):
      shape = (directions, *jnp.shape(value))
      return nnx.Param(jnp.broadcast_to(jnp.asarray(value, jnp.float32), shape), **metadata)

    powers = (1 - layer / depth) * np.float32([0.2, 0.9, 0.7, 0.7, 0.9, 0.2])
    self.shift = vectors(1 - (n / width)[None] ** powers[:, None])
    decay_bias = -6 + 6 * line ** (1 + share**0.3) + 0.5 + 2.5 * zigzag
    self.decay_bias = vectors(decay_bias, ssm=True, group=group(ssm_lr))
    self.rate_bias = vectors(-0.19 + 0.3 * zigzag + 0.4 * (line - 0.5))
    self.forget_scale = vectors(0.71 - 0.1 * (line - 0.5))
    self.rate_scale = vectors(np.full(width, 1.02))
    self.skip = vectors(np.full((self.heads, size), -0.04))
    self.norm_scale = nnx.Param(jnp.full(width, ((layer + 1) / depth) ** 0.7))
    self.norm_bias = nnx.Param(jnp.zeros(width))

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published layer has no dropout
    x_BLD = zero_padding(x_BLD.astype(jnp.float32), lengths_B)
    mixed_BLD = 0
    for direction in range(len(self.shift)):
      cut, pad = (slice(1, None), (0, 1)) if direction else (slice(-1), (1, 0))
      before_BLD = jnp.pad(x_BLD[:, cut], ((0, 0), pad, (0, 0)))
      *arrays, bonus_BLHN, gate_BLD = self._arguments(x_BLD, before_BLD, direction)
      r, k, v, log_decay, erase = arrays
      r, k, v, erase = (x.astype(self.dtype) for x in (r, k, v, erase))
      ways = 'backward' if direction else 'forward'
      y_BLHN = sharded_delta_rule(r, k, v, log_decay, None, erase, direction=ways)
      mixed_BLD += self._gated(y_BLHN, bonus_BLHN, gate_BLD)
    return self.out(mixed_BLD)

  def _arguments(self, x_BLD, before_BLD, direction):
    """r, keys and values of two factors per position, log decay, erase vectors, (r . (u * s)) v and g."""
    m_6D = self.shift[direction]
    r, w, k, v, a, g = (x_BLD + m_D[None, None] * (before_BLD - x_BLD) for m_D in m_6D)

    def low_rank(into, out, x_BLD, function):
      return out(function(into(x_BLD).astype(jnp.float32))).astype(jnp.float32)

    def heads(x_BLD):
      return x_BLD.reshape(*x_BLD.shape[:2], self.heads, -1)

    r_BLHN, v_BLHN = heads(self.query(r).astype(jnp.float32)), heads(self.value(v).astype(jnp.float32))
    k_BLD = self.key(k).astype(jnp.float32)
    d_BLD = low_rank(self.decay_in, self.decay_out, w, jnp.tanh) + self.decay_bias[direction][None, None]
    log_w_BLHN = heads(-math.exp(-0.5) * jax.nn.sigmoid(d_BLD))
    rate_BLD = low_rank(self.rate_in, self.rate_out, a, lambda x: x) + self.rate_bias[direction][None, None]
    rate_BLD = jax.nn.sigmoid(rate_BLD)
    gate_BLD = low_rank(self.gate_in, self.gate_out, g, jax.nn.sigmoid)
    z_BLHN = heads(k_BLD * self.forget_scale[direction][None, None])
    z_BLHN = z_BLHN * lax.rsqrt(jnp.sum(z_BLHN**2, -1, keepdims=True) + 1e-12)
    s_BLHN = heads(k_BLD * (1 + (rate_BLD - 1) * self.rate_scale[direction][None, None]))
    bonus_BLHN = jnp.sum(r_BLHN * s_BLHN * self.skip[direction][None, None], -1, keepdims=True) * v_BLHN

    # z reads the state before it decays: z / w reads the one after. w is at least exp(-exp(-1/2)) = 0.55.
    def factors(forget_BLHN, store_BLHN):
      pairs = jnp.stack([forget_BLHN, store_BLHN], 2)
      return pairs.reshape(len(pairs), -1, *pairs.shape[3:])

    keys, values = factors(z_BLHN * heads(rate_BLD), s_BLHN), factors(jnp.zeros_like(v_BLHN), v_BLHN)
    erase = factors(z_BLHN * jnp.exp(-log_w_BLHN), jnp.zeros_like(z_BLHN))
    return r_BLHN, keys, values, log_w_BLHN, erase, bonus_BLHN, gate_BLD

  def _gated(self, y_BLHN, bonus_BLHN, gate_BLD):
    y_BLHN = y_BLHN - jnp.mean(y_BLHN, -1, keepdims=True)
    scale = lax.rsqrt(jnp.mean(y_BLHN**2, -1, keepdims=True) + 1e-5 * y_BLHN.shape[-1])
    y_BLD = (y_BLHN * scale).reshape(gate_BLD.shape) * self.norm_scale[...][None, None]
    return (y_BLD + self.norm_bias[...][None, None] + bonus_BLHN.reshape(gate_BLD.shape)) * gate_BLD

  def init_state(self, batch_size: int) -> dict[str, jax.Array]:
    """The state before the first position: states [B, H, N, N], and the last input, before [B, D].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    width = self.norm_bias.shape[-1]
    size = width // self.heads
    return {
      'states': jnp.zeros((batch_size, self.heads, size, size)),
      'before': jnp.zeros((batch_size, width)),
    }

  def step(self, state, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    x_B1D = x_BD[:, None].astype(jnp.float32)
    *arrays, bonus_B1HN, gate_B1D = self._arguments(x_B1D, state['before'][:, None], 0)
    r, k, v, log_decay, erase = arrays
    states_BHNN, y_BHN = delta_rule_step(state['states'], r, k, v, log_decay, None, erase)
    y_B1D = self.out(self._gated(y_BHN[:, None], bonus_B1HN, gate_B1D))
    return {'states': states_BHNN, 'before': x_B1D[:, 0]}, y_B1D[:, 0]

  def flops(self, length: int) -> int:
    """Those of two factors of the recurrence per position and direction (`recurrence_flops`)."""
    width, directions = self.norm_bias.shape[-1], self.shift.shape[-3]  # stacked blocks have a depth axis
    return directions * recurrence_flops(2 * length, width, width, self.heads, by_channel=True)
