"""Log-linear Mamba-2: Mamba-2 whose queries weigh the past in blocks that grow with the distance (Guo et al.
2025, arXiv 2506.04761; code: `fla-org/flash-linear-attention`, commit bc3b101,
`fla/layers/log_linear_mamba2.py`)."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from lra_spt.models.gated import over_heads, short_convolution
from lra_spt.models.layers import linear
from lra_spt.models.mixers.mamba2 import Mamba2
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import group
from lra_spt.ops.linear_attention import chunk_size
from lra_spt.ops.log_linear_attention import levels, log_linear_attention


@register_mixer('log_linear_mamba2')
class LogLinearMamba2(Mamba2):
  """`Mamba2` in which position t reads a state S^j for every level j of blocks,

      y_t = C_t^T sum over j of c_t,j S_t^j + D x_t, c_t,j = softplus(m_j w_t,j), w = W_l u,

  where S^0 has the terms of t itself, and S^j those of the positions s in the first half of the aligned block
  of 2^j positions that has t in its second half. All S^j together are the state of Mamba-2. W_l has no bias
  and runs in float32.

  The causal form is the published one. In the bidirectional form, as in that of `mamba2`, a second recurrence
  has parameters of its own, here W_l and m too. It has the same blocks, where s is in the second half.

  Options are those of `Mamba2`. There are log2(length) + 1 levels, rounded up, so parameters depend on the
  length.
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
    state_size: Positive = 64,
    groups: int = 1,
    taps: Positive = 4,
    dt_min: float = 0.001,
    dt_max: float = 0.1,
    ssm_lr: float = 0.0,
    dtype=jnp.float32,
  ):
    sizes = {'expand': expand, 'head_dim': head_dim, 'state_size': state_size, 'groups': groups, 'taps': taps}
    steps = {'dt_min': dt_min, 'dt_max': dt_max, 'ssm_lr': ssm_lr}
    common = {'length': length, 'causal': causal, 'protocol': protocol, 'rngs': rngs, 'dtype': dtype}
    super().__init__(width, **common, **sizes, **steps)
    shape = (*self.skip.shape, levels(length))  # directions, heads, levels
    self.levels = linear(width, shape[0] * shape[1] * shape[2], bias=False, rngs=rngs)
    self.level_scale = nnx.Param(jnp.ones(shape), group=group(0.0))

  def _read(self, c_BLGN, b_BLGN, u_BLHP, a_BLH, x_BLD, direction):
    attend = functools.partial(log_linear_attention, direction='backward' if direction else 'forward')
    return over_heads(attend, c_BLGN, b_BLGN, u_BLHP, a_BLH, self._scales(x_BLD, direction))

  def _scales(self, x_BLD, direction):
    """c of one direction, float32 [B, L, H, levels]."""
    w_BLM = self.levels(x_BLD.astype(jnp.float32))
    w_BLHJ = w_BLM.reshape(*x_BLD.shape[:2], *self.level_scale.shape)[:, :, direction]
    return jax.nn.softplus(w_BLHJ * self.level_scale[direction][None, None])

  def init_state(self, batch_size: int) -> dict[str, jax.Array]:
    """The state before the first position: position int32 [], states [levels, B, H, N, P] and the last inputs
    of the convolution, window [B, taps, E + 2 G N].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    state = super().init_state(batch_size)
    count = self.level_scale.shape[-1]
    return state | {
      'position': jnp.zeros((), jnp.int32),
      'states': jnp.zeros((count, *state['states'].shape)),
    }

  def step(self, state, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    gate_B1E, mixed_B1M, dt_B1H = self._inputs(x_BD[:, None])
    window_BJM = jnp.concatenate([state['window'][:, 1:], mixed_B1M], axis=1)
    conv_B1M = short_convolution(window_BJM, self.conv[0], self.conv_bias[0])[:, -1:]
    x_BHP, b_BGN, c_BGN, a_BH, u_BHP = (v[:, 0] for v in self._recurrence(conv_B1M, dt_B1H, 0))
    b_BHN, c_BHN = (jnp.repeat(v, a_BH.shape[-1] // self.groups, axis=1) for v in (b_BGN, c_BGN))
    # Where an aligned block of 2^j positions begins its second half, its first half is complete: S^j takes
    # all S below.
    position, states_JBHNP = state['position'], state['states']
    level_J = jnp.arange(len(states_JBHNP))[:, None, None, None, None]
    complete = lax.population_count(position ^ (position - 1))
    merged_BHNP = jnp.sum(jnp.where(level_J < complete, states_JBHNP, 0.0), axis=0)
    states_JBHNP = jnp.where(level_J < complete, 0.0, states_JBHNP)
    states_JBHNP = jnp.where(level_J == complete, merged_BHNP[None], states_JBHNP)
    states_JBHNP = jnp.exp(a_BH)[None, :, :, None, None] * states_JBHNP
    states_JBHNP = states_JBHNP.at[0].set(b_BHN[..., None] * u_BHP[:, :, None])
    read_BHJP = jnp.einsum('bhn,jbhnp->bhjp', c_BHN, states_JBHNP)
    y_BHP = jnp.einsum('bhj,bhjp->bhp', self._scales(x_BD[:, None], 0)[:, 0], read_BHJP)
    y_BHP += self.skip[0][None, :, None] * x_BHP
    state = {'position': position + 1, 'states': states_JBHNP, 'window': window_BJM}
    return state, self._output(y_BHP[:, None], gate_B1E)[:, 0]

  def flops(self, length: int) -> int:
    """Those of `Mamba2`, and per position and direction N E for each level of blocks of several chunks, at
    half of the positions of which a state is read."""
    directions = self.skip.shape[-2]  # stacked blocks have a depth axis in front
    inner, heads = self.norm.shape[-1], self.skip.shape[-1]
    more = levels(length) - levels(min(length, chunk_size(self.state_size, inner // heads)))
    return super().flops(length) + length * directions * more * self.state_size * inner
