"""Gated DeltaNet: a state that forgets the old value of a key before it stores the new one (Yang, Kautz and
Hatamizadeh 2024, arXiv 2412.06464; the first author's code: `fla-org/flash-linear-attention`, commit bc3b101,
`fla/layers/gated_deltanet.py`)."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from lra_spt.models.gated import (
  gated_norm,
  head_channels,
  sharded_delta_rule,
  short_convolution,
  softplus_inverse,
)
from lra_spt.models.layers import linear
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import check_causal, group, log_uniform, zero_padding
from lra_spt.ops.delta_rule import LARGEST_CHUNK
from lra_spt.ops.linear_attention import chunk_size


@register_mixer('gated_deltanet')
class GatedDeltaNet(nnx.Module):
  """[q, k, v, z, e, d] = W_i u; [q, k, v] = silu(conv([q, k, v])), then q and k divided by their norms, and
  q by sqrt(N); b = sigmoid(e), a = exp(-exp(A) softplus(d + c)); then for each of H heads

      S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T, y_t = q_t^T S_t,

  and W_o (RMSNorm(y) * silu(z)), the norm over each head, with one scale per channel, which heads share. Only
  c is a bias. Matrix products, including those of the recurrence, run in `dtype`; decays, states, triangular
  systems, convolution and norm are float32.

  The causal form is the published one. The bidirectional form is ours: a second convolution and recurrence,
  with its own conv, c and A, run from the last valid position backwards, and both y are summed before the
  norm.

  Args:
    heads: H.
    expand_k, expand_v: channels of all keys and of all values / D; per head N and P.
    taps: positions that the convolution sees.
    negative: b = 2 sigmoid(e), so that the state may change its sign (arXiv 2411.12537).
    ssm_lr: learning rate of c and A; 0: the stage's. Neither has weight decay.

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
    expand_k: float = 0.75,
    expand_v: float = 1.5,
    taps: Positive = 4,
    negative: bool = False,
    ssm_lr: float = 0.0,
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    keys, values = (
      head_channels(f'model.mixer.{name}', ratio, width, heads)
      for name, ratio in (('expand_k', expand_k), ('expand_v', expand_v))
    )
    self.causal, self.dtype, self.heads, self.keys, self.values = causal, dtype, heads, keys, values
    self.largest = 2.0 if negative else 1.0
    directions, mixed, bound = 1 if causal else 2, 2 * keys + values, 1 / math.sqrt(taps)

    def uniform(shape, low, high):
      return jax.random.uniform(rngs.params(), shape, minval=low, maxval=high)

    self.input = linear(width, mixed + values + 2 * heads, bias=False, dtype=dtype, rngs=rngs)
    self.out = linear(values, width, bias=False, dtype=dtype, rngs=rngs)
    self.norm = nnx.Param(jnp.ones(values // heads))
    self.conv = nnx.Param(uniform((directions, taps, mixed), -bound, bound))
    dt_SH = jnp.exp(log_uniform(rngs.params(), (directions, heads), 0.001, 0.1))
    self.dt_bias = nnx.Param(softplus_inverse(dt_SH), ssm=True, group=group(ssm_lr))
    # The published range starts at 0, where the logarithm has no value.
    self.decay = nnx.Param(jnp.log(uniform((directions, heads), 1e-4, 16)), ssm=True, group=group(ssm_lr))

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published block has no dropout
    mixed_BLM, z_BLE, beta_BLH, dt_BLH = self._inputs(x_BLD)
    # The convolution makes keys of 0 from zeros, so the pass from the end stores nothing of the padding.
    mixed_BLM = zero_padding(mixed_BLM, lengths_B)
    y_BLHP = 0
    for direction in range(len(self.conv)):
      reverse = direction == 1
      q_BLHN, k_BLHN, v_BLHP = self._convolved(mixed_BLM, direction, reverse)
      arrays = (*(x.astype(self.dtype) for x in (q_BLHN, k_BLHN, v_BLHP)), self._decays(dt_BLH, direction))
      y_BLHP += sharded_delta_rule(*arrays, beta_BLH, direction='backward' if reverse else 'forward')
    return self._output(y_BLHP, z_BLE)

  def _inputs(self, x_BLD):
    """[q, k, v] before the convolution, z [B, L, E], b and d [B, L, H], float32."""
    mixed = 2 * self.keys + self.values
    cuts = (mixed, mixed + self.values, mixed + self.values + self.heads)
    mixed_BLM, z_BLE, e_BLH, dt_BLH = jnp.split(self.input(x_BLD).astype(jnp.float32), cuts, axis=-1)
    return mixed_BLM, z_BLE, self.largest * jax.nn.sigmoid(e_BLH), dt_BLH

  def _convolved(self, mixed_BLM, direction, reverse=False):
    """q / sqrt(N), k and v, float32."""
    none = jnp.zeros(mixed_BLM.shape[-1])
    mixed_BLM = jax.nn.silu(short_convolution(mixed_BLM, self.conv[direction], none, reverse=reverse))
    parts = jnp.split(mixed_BLM, (self.keys, 2 * self.keys), axis=-1)
    q_BLHN, k_BLHN, v_BLHP = (x.reshape(*x.shape[:2], self.heads, -1) for x in parts)
    q_BLHN, k_BLHN = (x * lax.rsqrt(jnp.sum(x**2, -1, keepdims=True) + 1e-6) for x in (q_BLHN, k_BLHN))
    return q_BLHN * (self.keys // self.heads) ** -0.5, k_BLHN, v_BLHP

  def _decays(self, dt_BLH, direction):
    rate_BLH = jax.nn.softplus(dt_BLH + self.dt_bias[direction][None, None])
    return -jnp.exp(self.decay[direction])[None, None] * rate_BLH

  def _output(self, y_BLHP, z_BLE):
    return self.out(gated_norm(y_BLHP, self.norm[...], z_BLE))

  def init_state(self, batch_size: int) -> dict[str, jax.Array]:
    """The state before the first position: states [B, H, N, P], and the last inputs of the convolution,
    window [B, taps, channels of q, k and v].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    sizes = (self.heads, self.keys // self.heads, self.values // self.heads)
    return {
      'states': jnp.zeros((batch_size, *sizes)),
      'window': jnp.zeros((batch_size, *self.conv.shape[1:])),
    }

  def step(self, state, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    mixed_B1M, z_B1E, beta_B1H, dt_B1H = self._inputs(x_BD[:, None])
    window_BJM = jnp.concatenate([state['window'][:, 1:], mixed_B1M], axis=1)
    q_BHN, k_BHN, v_BHP = (x[:, -1] for x in self._convolved(window_BJM, 0))
    states_BHNP = jnp.exp(self._decays(dt_B1H, 0))[:, 0, :, None, None] * state['states']
    new_BHP = beta_B1H[:, 0, :, None] * (v_BHP - jnp.einsum('bhn,bhnp->bhp', k_BHN, states_BHNP))
    states_BHNP += k_BHN[..., None] * new_BHP[:, :, None]
    y_B1HP = jnp.einsum('bhn,bhnp->bhp', q_BHN, states_BHNP)[:, None]
    return {'states': states_BHNP, 'window': window_BJM}, self._output(y_B1HP, z_B1E)[:, 0]

  def flops(self, length: int) -> int:
    """Per position and direction: 2 for each weight of the convolution, 6 for each number of the states and,
    in chunks of T positions, 6 T per channel of keys, 4 T per channel of values and 4 T^2 (log2 T - 1) per
    head."""
    directions, taps, mixed = self.conv.shape[-3:]  # stacked blocks have a depth axis in front
    size = min(chunk_size(self.keys // self.heads, self.values // self.heads), LARGEST_CHUNK)
    size = min(size, 1 << (length - 1).bit_length())
    chunk = (
      size * (6 * self.keys + 4 * self.values) + 4 * size**2 * max(size.bit_length() - 2, 0) * self.heads
    )
    states = self.keys * self.values // self.heads
    return length * directions * (2 * taps * mixed + 6 * states + chunk)
