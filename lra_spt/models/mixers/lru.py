"""LRU: the linear recurrent unit (Orvieto et al. 2023, arXiv 2303.06349, section 3, appendix A; the authors
published no code; code of a third party: `NicolasZucchet/minimal-LRU`, commit bbd71b1, `lru/model.py`)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_spt.errors import ConfigError
from lra_spt.models.mimo import MimoRecurrence, real_matrices
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import GatedOutput, group


@register_mixer('lru')
class LRU(MimoRecurrence):
  """One recurrence of N complex states for all channels:

      h_t = lambda h_{t-1} + exp(gamma_log) B u_t, y_t = Re(C h_t) + D u_t,
      lambda = exp(-exp(nu_log) + i exp(theta_log));

  then GELU and GLU. The bidirectional form is that of S5, as in its authors' experiments on the Long Range
  Arena.

  Args:
    state_size: N complex states, none of which has a conjugate partner.
    r_min, r_max: lambda starts uniform in area on the ring r_min <= |lambda| <= r_max.
    max_phase: the phase starts uniform in (0, max_phase).
    ssm_lr: learning rate of nu, theta, gamma and B, which have no weight decay; 0: the stage's. C has the
      stage's rate and, like other state-space parameters, weight decay under protocol paper only.
    dropout, tied_dropout: between GELU and GLU.
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
    state_size: Positive = 256,
    r_min: float = 0.0,
    r_max: float = 1.0,
    max_phase: float = 2 * np.pi,
    ssm_lr: float = 1e-3,
    dropout: float = 0.0,
    tied_dropout: bool = False,
    scan: str = '',
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    if not 0 <= r_min < r_max <= 1 or not 0 < max_phase <= 2 * np.pi:
      raise ConfigError(
        f'model.mixer has r_min={r_min}, r_max={r_max}, max_phase={max_phase}; choose '
        '0 <= r_min < r_max <= 1 and a phase above 0, at most 2 pi'
      )
    output = GatedOutput(width, dropout=dropout, tied_dropout=tied_dropout, dtype=dtype, rngs=rngs)
    super().__init__(output, width, causal=causal, scan=scan, dtype=dtype, rngs=rngs)
    recurrence = {'ssm': True, 'group': group(ssm_lr)}
    # The draws are never 0, where the logarithms have no value.
    u_N, v_N = jax.random.uniform(rngs.params(), (2, state_size), minval=2.0**-20)
    squared_N = u_N * (r_max**2 - r_min**2) + r_min**2
    self.nu_log = nnx.Param(jnp.log(-0.5 * jnp.log(jnp.minimum(squared_N, 1 - 2.0**-20))), **recurrence)
    self.theta_log = nnx.Param(jnp.log(max_phase * v_N), **recurrence)
    self.gamma_log = nnx.Param(0.5 * jnp.log1p(-jnp.exp(-2 * jnp.exp(self.nu_log[...]))), **recurrence)
    b_2ND = jax.random.normal(rngs.params(), (2, state_size, width)) / np.float32(np.sqrt(2 * width))
    c_2SDN = jax.random.normal(rngs.params(), (2, 1 if causal else 2, width, state_size))
    c_2SDN = c_2SDN / np.float32(np.sqrt(state_size))
    self.b_real, self.b_imag = nnx.Param(b_2ND[0], **recurrence), nnx.Param(b_2ND[1], **recurrence)
    self.c_real, self.c_imag = nnx.Param(c_2SDN[0], ssm=True), nnx.Param(c_2SDN[1], ssm=True)

  def discrete(self):
    """See `MimoRecurrence`."""
    radius_N, phase_N = jnp.exp(-jnp.exp(self.nu_log[...])), jnp.exp(self.theta_log[...])
    a_2N = radius_N[None] * jnp.stack([jnp.cos(phase_N), jnp.sin(phase_N)])
    gamma_N1 = jnp.exp(self.gamma_log[...])[:, None]
    return a_2N, *real_matrices(
      gamma_N1 * self.b_real[...], gamma_N1 * self.b_imag[...], self.c_real[...], self.c_imag[...]
    )
