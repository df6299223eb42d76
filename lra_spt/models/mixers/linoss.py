"""LinOSS: linear oscillatory state-space models (Rusch and Rus 2025, arXiv 2410.03943; published code:
`tk-rusch/linoss`, commit 83e6318, `models/LinOSS.py`)."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.models.mimo import MimoRecurrence, real_matrices
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import GatedOutput, group


@register_mixer('linoss')
class LinOSS(MimoRecurrence):
  """N forced harmonic oscillators y'' = -A y + B u for all channels, with A diagonal, B and C complex, and
  velocities z:

      z_t = z_{t-1} + dt (B u_t - A y_t), y_t = y_{t-1} + dt z_t ('im': implicit), or
      z_t = z_{t-1} + dt (B u_t - A y_{t-1}), y_t = y_{t-1} + dt z_t ('imex': implicit, explicit);

  o_t = Re(C y_t) + D u_t, then GELU and GLU. A = relu(a) and dt = sigmoid(s). Oscillations shrink under 'im';
  they keep their size under 'imex', which is stable for dt^2 A < 4.

  The causal form is the published one. The bidirectional form is ours, made as that of S5: a second
  recurrence with the same A, dt and B, and its own C, runs from the last valid position backwards. Both
  include lag 0, and their outputs are summed. GELU is exact (published: its tanh approximation).

  Args:
    state_size: N oscillators.
    discretization: 'im' or 'imex'.
    ssm_lr: learning rate of a, s and B, which have no weight decay; 0: the stage's. C has the stage's rate
      and, like other state-space parameters, weight decay under protocol paper only.
    dropout, tied_dropout: between GELU and GLU.
    scan: the implementation, see `lra_spt.ops.scan`, but not 'pallas'; '': by platform.

  Raises:
    ConfigError: an option is out of range.
  """

  state_operations = 16

  def __init__(
    self,
    width: int,
    *,
    length: int,
    causal: bool,
    protocol,
    rngs: nnx.Rngs,
    state_size: Positive = 64,
    discretization: Literal['im', 'imex'] = 'im',
    ssm_lr: float = 0.0,
    dropout: float = 0.0,
    tied_dropout: bool = False,
    scan: str = '',
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    output = GatedOutput(width, dropout=dropout, tied_dropout=tied_dropout, dtype=dtype, rngs=rngs)
    super().__init__(output, width, causal=causal, scan=scan, dtype=dtype, rngs=rngs)
    self.implicit = discretization == 'im'
    oscillators = {'ssm': True, 'group': group(ssm_lr)}

    def uniform(shape, bound):
      return jax.random.uniform(rngs.params(), shape, minval=-bound, maxval=bound)

    self.stiffness = nnx.Param(jax.random.uniform(rngs.params(), (state_size,)), **oscillators)
    self.dt_logit = nnx.Param(jax.random.uniform(rngs.params(), (state_size,)), **oscillators)
    b_2ND = uniform((2, state_size, width), 1 / math.sqrt(width))
    c_2SDN = uniform((2, 1 if causal else 2, width, state_size), 1 / math.sqrt(state_size))
    self.b_real, self.b_imag = nnx.Param(b_2ND[0], **oscillators), nnx.Param(b_2ND[1], **oscillators)
    self.c_real, self.c_imag = nnx.Param(c_2SDN[0], ssm=True), nnx.Param(c_2SDN[1], ssm=True)

  def discrete(self):
    """See `MimoRecurrence`. a [4, 2N] holds matrices M, of `(z_t, y_t) = M (z_{t-1} + dt B u_t, y_{t-1})`,
    for real and for imaginary parts, and b the factor dt."""
    a_N, dt_N = jax.nn.relu(self.stiffness[...]), jax.nn.sigmoid(self.dt_logit[...])
    if self.implicit:
      shrinking_N = 1 / (1 + dt_N**2 * a_N)
      rows = shrinking_N, -dt_N * a_N * shrinking_N, dt_N * shrinking_N, shrinking_N
    else:
      rows = jnp.ones_like(a_N), -dt_N * a_N, dt_N, 1 - dt_N**2 * a_N
    b_real_ND, b_imag_ND = dt_N[:, None] * self.b_real[...], dt_N[:, None] * self.b_imag[...]
    b_DM, c_SMD = real_matrices(b_real_ND, b_imag_ND, self.c_real[...], self.c_imag[...])
    return jnp.tile(jnp.stack(rows), (1, 2)), b_DM, c_SMD

  def driven(self, a_4M, bu_BLM):
    """See `MimoRecurrence`: M (dt B u, 0)."""
    return a_4M[None, None, ::2] * bu_BLM[:, :, None]

  def observed(self, h_BL2M):
    """See `MimoRecurrence`: the positions y."""
    return h_BL2M[:, :, 1]
