"""RetNet: linear attention with rotary positions and one fixed decay per head (Sun et al. 2023, arXiv
2307.08621, section 2; code: `fla-org/flash-linear-attention`, commit bc3b101,
`fla/layers/multiscale_retention.py`)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_spt.errors import ConfigError
from lra_spt.models.gated import gated_norm, head_channels, sharded_linear_attention
from lra_spt.models.layers import linear
from lra_spt.models.registry import register_mixer
from lra_spt.models.ssm import check_causal, zero_padding
from lra_spt.ops.linear_attention import chunk_size
from lra_spt.ops.rotary import rotary


@register_mixer('retnet')
class RetNet(nnx.Module):
  """[q, k, v, z] = W_i x; then for each of H heads, h = 0 .. H - 1,

      y_t = sum over s of g^|t - s| (R^t q_t) . (R^s k_s) v_s / sqrt(N), g = 1 - 2^(-5 - h),

  over s <= t in the causal form, where R rotates pairs of channels as rotary positions do; and
  W_o (RMSNorm(y) * silu(z)), the norm over each head, with one scale per channel, which heads share. There
  are no biases. Matrix products, including those of the sums, run in `dtype`; rotations, decays, states and
  norm are float32.

  The causal form is the published one. The bidirectional form, over all valid s, is that of Fan et al. 2023
  (arXiv 2309.11523), in one dimension.

  Args:
    heads: H, published 8.
    expand_k, expand_v: channels of all keys and of all values / D; per head N and P.

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
    heads: int = 8,
    expand_k: float = 1.0,
    expand_v: float = 2.0,
    dtype=jnp.float32,
  ):
    del length, protocol  # sums know no length, and nothing departs from good practice
    self.keys = head_channels('model.mixer.expand_k', expand_k, width, heads)
    self.values = head_channels('model.mixer.expand_v', expand_v, width, heads)
    if self.keys // heads % 2:
      raise ConfigError(
        f'model.mixer.expand_k is {expand_k} with model.mixer.heads={heads}, which makes '
        f'{self.keys // heads} channels per head of model.width {width}, but rotations need an even number; '
        'change one of them'
      )
    self.causal, self.heads, self.dtype = causal, heads, dtype
    self.input = linear(width, 2 * self.keys + 2 * self.values, bias=False, dtype=dtype, rngs=rngs)
    self.norm = nnx.Param(jnp.ones(self.values // heads))
    self.out = linear(self.values, width, bias=False, dtype=dtype, rngs=rngs)

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published layer has no dropout
    q_BLHN, k_BLHN, v_BLHP, z_BLE = self._inputs(x_BLD)
    v_BLHP = zero_padding(v_BLHP.reshape(z_BLE.shape), lengths_B).reshape(v_BLHP.shape)
    arrays = (x.astype(self.dtype) for x in (rotary(q_BLHN), rotary(k_BLHN), v_BLHP))
    decay_BLH = jnp.broadcast_to(self._decays()[None, None], v_BLHP.shape[:3])
    direction = 'forward' if self.causal else 'both'
    y_BLHP = sharded_linear_attention(*arrays, decay_BLH, direction=direction)
    return self.out(gated_norm(y_BLHP, self.norm[...], z_BLE))

  def _inputs(self, x_BLD):
    """q / sqrt(N), k, v and z [B, L, E], float32."""
    cuts = (self.keys, 2 * self.keys, 2 * self.keys + self.values)
    *parts, z_BLE = jnp.split(self.input(x_BLD).astype(jnp.float32), cuts, axis=-1)
    q_BLHN, k_BLHN, v_BLHP = (x.reshape(*x.shape[:2], self.heads, -1) for x in parts)
    return q_BLHN * np.float32(q_BLHN.shape[-1] ** -0.5), k_BLHN, v_BLHP, z_BLE

  def _decays(self):
    return jnp.asarray([math.log1p(-(2.0 ** (-5 - head))) for head in range(self.heads)], jnp.float32)

  def init_state(self, batch_size: int) -> jax.Array:
    """The state before the first position, float32 [B, H, P, N].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    return jnp.zeros((batch_size, self.heads, self.values // self.heads, self.keys // self.heads))

  def step(self, state, x_BD: jax.Array):
    """(state after this position, output [B, D]). The state turns back by one position, and queries and keys
    do not turn, which gives the same products."""
    q_BHN, k_BHN, v_BHP, z_BE = (x[:, 0] for x in self._inputs(x_BD[:, None]))
    turned = rotary(state.reshape(len(state), 1, -1, state.shape[-1]), offset=-1).reshape(state.shape)
    state = jnp.exp(self._decays())[None, :, None, None] * turned + v_BHP[..., None] * k_BHN[:, :, None]
    y_BHP = jnp.einsum('bhn,bhpn->bhp', q_BHN, state)
    return state, self.out(gated_norm(y_BHP[:, None], self.norm[...], z_BE[:, None]))[:, 0]

  def flops(self, length: int) -> int:
    """Per position and direction: 4 for each number of the states, and 2 for each position of the chunk and
    channel of keys and values. Rotations take 3 for each channel of queries and keys."""
    size = chunk_size(self.keys // self.heads, self.values // self.heads)
    each = 4 * self.keys * self.values // self.heads + 2 * min(length, size) * (self.keys + self.values)
    return length * ((1 if self.causal else 2) * each + 6 * self.keys)
