"""The layer around the delta rule, which DeltaNet and its successors share."""

import itertools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from lra_spt.models.gated import (
  head_channels,
  head_norm,
  sharded_delta_rule,
  short_convolution,
  softplus_inverse,
)
from lra_spt.models.layers import linear
from lra_spt.models.ssm import check_causal, group, log_uniform, zero_padding
from lra_spt.ops.delta_rule import LARGEST_CHUNK, delta_rule_step
from lra_spt.ops.linear_attention import chunk_size


class DeltaMixer(nnx.Module):
  """[q, k, v, gates] = W_i u; [q, k, v] = silu(conv([q, k, v])), then q and k divided by their norms, and q
  by sqrt(N); y from the delta rule of each of H heads; W_o(gated(RMSNorm(y))), the norm over each head, with
  one scale per channel, which heads share.

  In the bidirectional form a second convolution and recurrence, with their own parameters, run from the last
  valid position backwards, and both y are summed before the norm. Matrix products, including those of the
  recurrence, run in `dtype`; decays, states, triangular systems, convolution and norm are float32.

  A subclass defines `gates(*of_input)`, which makes a list of gates from what W_i made for each of them, [B,
  L, size], and `rule(k_BFHN, v_BFHP, gates, direction)`, which returns k, v, log_decay, beta and erase as
  `lra_spt.ops.delta_rule.delta_rule` takes them. It may define `gated(y_BLE, gates)`, which returns y_BLE,
  with E = H P. All of these are float32.

  Args:
    heads: H.
    expand_k, expand_v: channels of all keys and of all values / D; per head N and P.
    taps: positions that the convolution sees.
    sizes: how many numbers W_i makes for each gate.
    factors: J, keys and values per position and head; F = J L.

  Raises:
    ConfigError: heads do not divide the channels of keys or values.
  """

  def __init__(self, width, *, causal, rngs, heads, expand_k, expand_v, taps, sizes, dtype, factors=1):
    self.keys, self.values = (
      head_channels(f'model.mixer.{name}', ratio, width, heads)
      for name, ratio in (('expand_k', expand_k), ('expand_v', expand_v))
    )
    self.causal, self.dtype, self.heads, self.factors, self.by_channel = causal, dtype, heads, factors, False
    mixed = self.keys + factors * (self.keys + self.values)
    self.cuts = tuple(itertools.accumulate((mixed, *sizes)))[:-1]
    self.input = linear(width, mixed + sum(sizes), bias=False, dtype=dtype, rngs=rngs)
    self.out = linear(self.values, width, bias=False, dtype=dtype, rngs=rngs)
    self.norm = nnx.Param(jnp.ones(self.values // heads))
    directions, bound = 1 if causal else 2, 1 / math.sqrt(taps)
    self.conv = nnx.Param(uniform(rngs, (directions, taps, mixed), -bound, bound))

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published layers have no dropout
    mixed_BLM, gates = self._inputs(x_BLD)
    # The convolution makes keys of 0 from zeros, so the pass from the end stores nothing of the padding.
    mixed_BLM = zero_padding(mixed_BLM, lengths_B)
    y_BLHP = 0
    for direction in range(len(self.conv)):
      reverse = direction == 1
      *qkv, log_decay, beta_BFH, erase_BFHN = self._arguments(
        self._convolved(mixed_BLM, direction, reverse), gates, direction
      )
      *qkv, erase_BFHN = jax.tree.map(lambda x: x.astype(self.dtype), (*qkv, erase_BFHN))
      ways = 'backward' if reverse else 'forward'
      y_BLHP += sharded_delta_rule(*qkv, log_decay, beta_BFH, erase_BFHN, direction=ways)
    return self._output(y_BLHP, gates)

  def _inputs(self, x_BLD):
    """q, k and v before the convolution [B, L, M], and the gates, float32."""
    mixed_BLM, *of_input = jnp.split(self.input(x_BLD).astype(jnp.float32), self.cuts, axis=-1)
    return mixed_BLM, self.gates(*of_input)

  def _convolved(self, mixed_BLM, direction, reverse=False):
    none = jnp.zeros(mixed_BLM.shape[-1])
    return jax.nn.silu(short_convolution(mixed_BLM, self.conv[direction], none, reverse=reverse))

  def _arguments(self, mixed_BLM, gates, direction):
    """The arguments of `delta_rule`, float32."""
    parts = jnp.split(mixed_BLM, (self.keys, (1 + self.factors) * self.keys), axis=-1)
    q_BLHN, k_BFHN, v_BFHP = (
      x.reshape(len(x), -1, self.heads, size // self.heads)
      for x, size in zip(parts, (self.keys, self.keys, self.values), strict=True)
    )
    q_BLHN, k_BFHN = (x * lax.rsqrt(jnp.sum(x**2, -1, keepdims=True) + 1e-6) for x in (q_BLHN, k_BFHN))
    return q_BLHN * q_BLHN.shape[-1] ** -0.5, *self.rule(k_BFHN, v_BFHP, gates, direction)

  def _output(self, y_BLHP, gates):
    return self.out(self.gated(head_norm(y_BLHP, self.norm[...]), gates))

  def gated(self, y_BLE: jax.Array, gates: list[jax.Array]) -> jax.Array:
    del gates  # the rule has used them all
    return y_BLE

  def _make_decay(self, rngs, size, low, ssm_lr):
    """Makes the parameters of `log_decay`, c of `size` numbers and A of H numbers for each direction."""
    directions, self.by_channel = len(self.conv), size == self.keys
    dt_SC = jnp.exp(log_uniform(rngs.params(), (directions, size), 0.001, 0.1))
    self.dt_bias = nnx.Param(softplus_inverse(dt_SC), ssm=True, group=group(ssm_lr))
    rate_SH = uniform(rngs, (directions, self.heads), low, 16)
    self.decay = nnx.Param(jnp.log(rate_SH), ssm=True, group=group(ssm_lr))

  def log_decay(self, d_BLC: jax.Array, direction: int) -> jax.Array:
    """-exp(A) softplus(d + c), [B, L, H] or, by channel, [B, L, H, N]."""
    rate_BLC = jax.nn.softplus(d_BLC + self.dt_bias[direction][None, None])
    if not self.by_channel:
      return -jnp.exp(self.decay[direction])[None, None] * rate_BLC
    rate_BLHN = rate_BLC.reshape(*rate_BLC.shape[:2], self.heads, -1)
    return -jnp.exp(self.decay[direction])[None, None, :, None] * rate_BLHN

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
    mixed_B1M, gates = self._inputs(x_BD[:, None])
    window_BJM = jnp.concatenate([state['window'][:, 1:], mixed_B1M], axis=1)
    arrays = self._arguments(self._convolved(window_BJM, 0)[:, -1:], gates, 0)
    states_BHNP, y_BHP = delta_rule_step(state['states'], *arrays)
    return {'states': states_BHNP, 'window': window_BJM}, self._output(y_BHP[:, None], gates)[:, 0]

  def flops(self, length: int) -> int:
    """Per position and direction 2 for each weight of the convolution, and the recurrence."""
    directions, taps, mixed = self.conv.shape[-3:]  # stacked blocks have a depth axis in front
    sizes = (self.keys, self.values, self.heads)
    recurrence = recurrence_flops(length * self.factors, *sizes, by_channel=self.by_channel)
    return directions * (length * 2 * taps * mixed + recurrence)


def recurrence_flops(factors: int, keys: int, values: int, heads: int, *, by_channel: bool) -> int:
  """Operations of `delta_rule`: per factor 6 for each number of the states and, in chunks of T factors, 6 T
  per channel of keys, 4 T per channel of values and 4 T^2 (log2 T - 1) per head; with decays per channel 2 T
  + 4 T log2 T per channel of keys in place of 6 T."""
  size = min(chunk_size(keys // heads, values // heads), LARGEST_CHUNK)
  levels = min(size.bit_length() - 1, (factors - 1).bit_length())
  size, weights = 1 << levels, 2 + 4 * levels if by_channel else 6
  chunk = size * (weights * keys + 4 * values) + 4 * size**2 * max(levels - 1, 0) * heads
  return factors * (6 * keys * values // heads + chunk)


def uniform(rngs: nnx.Rngs, shape: tuple[int, ...], low: float, high: float) -> jax.Array:
  return jax.random.uniform(rngs.params(), shape, minval=low, maxval=high)
