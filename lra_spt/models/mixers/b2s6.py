"""B2S6: block-biased S6, a selective state-space model for long ranges (Yu and Erichson 2025, arXiv
2505.09022, section 6; their published code could not be had)."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.errors import ConfigError
from lra_spt.models.gated import sharded_biased_scan, softplus_inverse
from lra_spt.models.hippo import diagonal
from lra_spt.models.registry import ParameterGroup, register_mixer
from lra_spt.models.ssm import GatedOutput, check_causal, group, log_uniform, zero_padding
from lra_spt.ops.selective_scan import biased_step


@register_mixer('b2s6')
class B2S6(nnx.Module):
  """The D channels are J blocks of P = D / J. Block j sees its own inputs u^j only, and for each channel i of
  it

      h_t = Abar_t h_{t-1} + (Abar_t - 1) / A (W_j u^j_t + beta_ji) u^j_ti, Abar_t = exp(dt_t A),
      dt_t = softplus(w_j . u^j_t + b_ji), y_ti = 2 Re(C_j u^j_t . h_t) + D_ji u^j_ti;

  then GELU, a linear map and GLU, the output layer of S4D. A, W and beta are complex, and all channels share
  the N numbers of A. Mamba's S6 has one block and no beta, and has dt in place of (Abar - 1) / A. Only the
  linear map runs in `dtype`, the rest in float32.

  The causal form is the published one. The bidirectional form is ours: a second recurrence with its own w, b,
  W, beta and C runs from the last valid position backwards, and both y are summed. Ours too is what the paper
  does not say: initial values (A as in S4D-LegS, beta = 1 as its B, C normal and W and w uniform, both of
  variance of the order of 1 / P), the factor 2, which counts conjugate states, and the output layer.

  Args:
    blocks: J.
    state_size: states per channel counting conjugates, even (N = state_size / 2 are stored).
    dt_min, dt_max: for u = 0, dt starts log-uniform between them.
    ssm_lr: learning rate of A, w and b, which the paper lowers for the sake of stability; 0: the stage's. A
      and b have no weight decay.
    dropout, tied_dropout: between GELU and the linear map.
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
    blocks: int = 8,
    state_size: int = 64,
    dt_min: float = 1e-3,
    dt_max: float = 0.1,
    ssm_lr: float = 1e-3,
    dropout: float = 0.0,
    tied_dropout: bool = False,
    scan: str = '',
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    if blocks < 1 or width % blocks:
      raise ConfigError(
        f'model.mixer.blocks is {blocks}, which does not divide model.width {width}; choose a divisor'
      )
    self.causal, self.scan, self.blocks = causal, scan or None, blocks
    a_N, size, directions = diagonal('legs', state_size), width // blocks, 1 if causal else 2
    states, slow = len(a_N), {'ssm': True, 'group': group(ssm_lr)}

    def uniform(*shape):
      bound = 1 / math.sqrt(size)
      return jax.random.uniform(rngs.params(), (directions, blocks, *shape), minval=-bound, maxval=bound)

    self.a_log_real = nnx.Param(jnp.log(-jnp.asarray(a_N.real, jnp.float32)), **slow)
    self.a_imag = nnx.Param(jnp.asarray(a_N.imag, jnp.float32), **slow)
    self.dt = nnx.Param(uniform(size), group=ParameterGroup(ssm_lr or None))
    dt_SJP = jnp.exp(log_uniform(rngs.params(), (directions, blocks, size), dt_min, dt_max))
    self.dt_bias = nnx.Param(softplus_inverse(dt_SJP), **slow)
    self.select = nnx.Param(uniform(size, 2 * states))
    one_2N = jnp.stack([jnp.ones(states), jnp.zeros(states)])
    self.input_bias = nnx.Param(jnp.broadcast_to(one_2N, (directions, blocks, size, 2, states)))
    c_SJPN = jax.random.normal(rngs.params(), (directions, blocks, size, states)) / math.sqrt(size)
    self.read = nnx.Param(c_SJPN)
    self.skip = nnx.Param(jax.random.normal(rngs.params(), (width,)))
    output = {'dropout': dropout, 'tied_dropout': tied_dropout, 'dtype': dtype, 'rngs': rngs}
    self.output = GatedOutput(width, **output)

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    x_BLD = zero_padding(x_BLD, lengths_B).astype(jnp.float32)  # the scan from the end starts in the padding
    y_BLJP = 0
    for direction in range(len(self.dt)):
      options = {'reverse': direction == 1, 'implementation': self.scan}
      y_BLJP += sharded_biased_scan(*self._selected(x_BLD, direction), **options)
    y_BLD = y_BLJP.reshape(x_BLD.shape) + self.skip[...][None, None] * x_BLD
    return self.output(y_BLD, deterministic=deterministic, rngs=rngs)

  def _selected(self, x_BLD, direction):
    """The arguments of `sharded_biased_scan`."""
    x_BLJP = x_BLD.reshape(*x_BLD.shape[:2], self.blocks, -1)
    d_BLJ = jnp.einsum('bljp,jp->blj', x_BLJP, self.dt[direction])
    dt_BLJP = jax.nn.softplus(d_BLJ[..., None] + self.dt_bias[direction][None, None])
    b_BLJM = jnp.einsum('bljp,jpm->bljm', x_BLJP, self.select[direction])
    c_BLJN = jnp.einsum('bljp,jpn->bljn', x_BLJP, self.read[direction])
    a_2N = jnp.stack([-jnp.exp(self.a_log_real[...]), self.a_imag[...]])
    return x_BLJP, dt_BLJP, a_2N, b_BLJM, self.input_bias[direction], c_BLJN

  def init_state(self, batch_size: int) -> jax.Array:
    """The state before the first position, float32 [B, J, 2, N, P].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    _, blocks, size, _, states = self.input_bias.shape
    return jnp.zeros((batch_size, blocks, 2, states, size))

  def step(self, state: jax.Array, x_BD: jax.Array):
    """(state after this position, output float32 [B, D])."""
    x_BJP, dt_BJP, a_2N, b_BJM, bias_JP2N, c_BJN = self._selected(x_BD[:, None].astype(jnp.float32), 0)
    x_BJP, dt_BJP, b_BJM, c_BJN = (v[:, 0] for v in (x_BJP, dt_BJP, b_BJM, c_BJN))
    b_BJ2N = b_BJM.reshape(*b_BJM.shape[:2], *a_2N.shape)
    of_blocks = jax.vmap(biased_step, (1, 1, 1, None, 1, 0, 1), 1)
    state, y_BJP = of_blocks(state, x_BJP, dt_BJP, a_2N, b_BJ2N, bias_JP2N, c_BJN)
    y_BD = y_BJP.reshape(x_BD.shape) + self.skip[...][None] * x_BD
    return state, self.output(y_BD[:, None])[:, 0]

  def flops(self, length: int) -> int:
    """Per position, direction and channel: 2 for each weight of w, W and C, and 24 for each complex state."""
    directions, _, _, _, states = self.input_bias.shape[-5:]  # stacked blocks have a depth axis in front
    return length * directions * self.skip.shape[-1] * (2 * (1 + 3 * states) + 24 * states)
