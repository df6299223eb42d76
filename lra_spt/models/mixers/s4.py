"""S4: a long convolution with the kernels of structured state-space models (Gu, Goel and Re 2022,
arXiv 2111.00396; bidirectional: Goel et al. 2022, arXiv 2202.09729; paper section 3.3; published code:
`IdoAmos/not-from-scratch`, commit f919137, `src/models/sequence/ss/{s4,kernel}.py`)."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from lra_spt.models.hippo import legs
from lra_spt.models.registry import register_mixer
from lra_spt.models.ssm import LongConvolution, checked_copies, group, log_uniform, of_channels
from lra_spt.ops import dplr
from lra_spt.ops.cauchy import dplr_kernel


class DplrKernel(nnx.Module):
  """Kernels of S directions and D channels from systems of N conjugate pairs of states, in the bilinear
  discretisation:

      K_l = C Abar^l Bbar, A = diag(w) - P P^*,
      Abar = (I - dt/2 A)^-1 (I + dt/2 A), Bbar = (I - dt/2 A)^-1 dt B.

  Every channel has its own dt, C and directions; all channels h with equal h mod `copies` share w, P and B.

  Parameters (float32): log_dt [D]; inv_w_real = log(-Re w), w_imag, p_real, p_imag, b_real, b_imag
  [copies, N]; c_real, c_imag [S, D, N], which hold C ('plain') or C-tilde = (I - Abar^length)^T C
  ('truncated', as published). The initial system is HiPPO-LegS, with C standard complex normal and dt
  log-uniform.

  Args:
    state_size: states per channel counting conjugates, even (published `d_state`).
    copies: independent systems (w, P, B), see `checked_copies`.
    dt_min, dt_max: range of the initial steps.
    dt_lr, a_lr, b_lr: constant learning rates of dt, of (w, P) and of B, all without weight decay; 0.0: the
      stage's rate.
    parametrization: 'truncated' trains C-tilde, as published; 'plain' trains C and converts it in every step,
      so that the kernel is that of the same system at any length.
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    directions: int,
    rngs: nnx.Rngs,
    state_size: int = 64,
    copies: int = 0,
    dt_min: float = 1e-3,
    dt_max: float = 0.1,
    dt_lr: float = 0.0,
    a_lr: float = 0.0,
    b_lr: float = 0.0,
    parametrization: Literal['truncated', 'plain'] = 'truncated',
  ):
    copies = checked_copies(copies, width)
    self.width, self.length, self.truncated = width, length, parametrization == 'truncated'
    initial = legs(state_size)

    def parameter(value, learning_rate=None):
      options = {} if learning_rate is None else {'group': group(learning_rate)}
      return nnx.Param(value, ssm=True, **options)

    def tiled(value_N, learning_rate):
      return parameter(jnp.asarray(np.tile(value_N.astype(np.float32), (copies, 1))), learning_rate)

    self.log_dt = parameter(log_uniform(rngs.params(), (width,), dt_min, dt_max), dt_lr)
    self.inv_w_real = tiled(np.log(np.maximum(-initial.w.real, 1e-3)), a_lr)
    self.w_imag = tiled(initial.w.imag, a_lr)
    self.p_real, self.p_imag = tiled(initial.p.real, a_lr), tiled(initial.p.imag, a_lr)
    self.b_real, self.b_imag = tiled(initial.b.real, b_lr), tiled(initial.b.imag, b_lr)
    c_SDN = jax.random.normal(rngs.params(), (directions, width, state_size // 2), jnp.complex64)
    if self.truncated:
      dt_D, w_DN, p_DN, _ = self._system()
      c_SDN = dplr.truncate_output(c_SDN, dt_D, w_DN, p_DN, length=length)
    self.c_real, self.c_imag = parameter(c_SDN.real), parameter(c_SDN.imag)

  def __call__(self, length: int, channels: jax.Array | None = None) -> jax.Array:
    """Returns the kernels of all channels or of those given, float32 [S, D, L]. L is at most the length for
    which the kernel was built."""
    system, c_SDN, length = self._system(channels), self._c(channels), min(length, self.length)
    if self.truncated:
      # C-tilde belongs to the full length.
      return dplr_kernel(*system, c_SDN, length=self.length)[..., :length]
    c_SDN = dplr.truncate_output(c_SDN, *system[:3], length=length)
    return dplr_kernel(*system, c_SDN, length=length)

  def init_state(self, batch_size: int):
    """The state before the first position: (states complex64 [B, D, N], constant C complex64 [D, N])."""
    dt_D, w_DN, p_DN, _ = self._system()
    c_SDN = self._c()
    if self.truncated:
      c_SDN = dplr.untruncate_output(c_SDN, dt_D, w_DN, p_DN, length=self.length)
    return jnp.zeros((batch_size, *w_DN.shape), jnp.complex64), c_SDN[0]

  def step(self, state, x_BD: jax.Array):
    """(state, K * x at this position)."""
    states_BDN, c_DN = state
    states_BDN = dplr.step(states_BDN, x_BD, *self._system())
    return (states_BDN, c_DN), 2 * jnp.sum(c_DN[None] * states_BDN, axis=-1).real

  def _c(self, channels=None):
    return of_channels(lax.complex(self.c_real[...], self.c_imag[...]), channels, 1)

  def _system(self, channels=None):
    """dt [D] and w, P, B [D, N]."""
    copy_D = of_channels(np.arange(self.width) % self.w_imag.shape[0], channels)
    w, p, b = (
      lax.complex(re, im[...])[copy_D]
      for re, im in (
        (-jnp.exp(self.inv_w_real[...]), self.w_imag),
        (self.p_real[...], self.p_imag),
        (self.b_real[...], self.b_imag),
      )
    )
    return jnp.exp(of_channels(self.log_dt[...], channels)), w, p, b


@register_mixer('s4')
class S4(LongConvolution):
  """S4 with HiPPO-LegS: long convolution, skip, GELU, dropout, Linear and GLU:

      y = GLU(W GELU(K * x + D x) + b).

  As in the published layer (s4.py:170-178), padding is masked under every protocol. Options: see
  `DplrKernel`.
  """

  kernel_type = DplrKernel
