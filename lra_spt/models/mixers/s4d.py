"""S4D: state-space models with a diagonal matrix (Gu, Gupta, Goel and Re 2022, arXiv 2206.11893; published
code: `state-spaces/s4`, commit e757cef, `src/models/sequence/kernels/ssm.py`, class SSMKernelDiag)."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from lra_spt.models.hippo import diagonal
from lra_spt.models.mixers.dlr import DiagonalKernel
from lra_spt.models.registry import register_mixer
from lra_spt.models.ssm import LongConvolution, checked_copies, group, log_uniform, of_channels


class S4dKernel(DiagonalKernel):
  """Kernels of N conjugate pairs of states with A diagonal:

      K_l = 2 Re sum_n C_n Bbar_n Abar_n^l,
      Abar = exp(dt A), Bbar = (Abar - 1) / A B ('zoh'), or
      Abar = (1 + dt/2 A) / (1 - dt/2 A), Bbar = dt B / (1 - dt/2 A) ('bilinear').

  Every channel has its own dt, C and directions; all channels h with equal h mod `copies` share A and B.

  Parameters (float32): log_dt [D]; a_log_real = log(-Re A), a_imag [copies, N]; c_real, c_imag [S, D, N];
  b_real, b_imag [copies, N] if B is trained, else B = 1. Initially C is complex normal with variance 1, dt is
  log-uniform and B is 1.

  Args:
    state_size: states per channel counting conjugates, even.
    copies: independent systems (A, B), see `checked_copies`.
    init: initial A: 'legs', 'lin' or 'inv', see `lra_spt.models.hippo.diagonal`.
    discretization: 'zoh' (zero-order hold) or 'bilinear'.
    train_b: B is a parameter; otherwise it is 1.
    dt_min, dt_max: range of the initial steps.
    dt_lr, a_lr, b_lr: constant learning rates of dt, A and B, all without weight decay; 0.0: the stage's
      rate.
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
    init: str = 'legs',
    discretization: Literal['zoh', 'bilinear'] = 'zoh',
    train_b: bool = False,
    dt_min: float = 1e-3,
    dt_max: float = 0.1,
    dt_lr: float = 0.0,
    a_lr: float = 0.0,
    b_lr: float = 0.0,
  ):
    del length  # the kernel is the same at any length
    copies = checked_copies(copies, width)
    self.width, self.discretization, self.train_b = width, discretization, train_b
    dt, a, b = ({'ssm': True, 'group': group(rate)} for rate in (dt_lr, a_lr, b_lr))
    a_KN = np.tile(diagonal(init, state_size), (copies, 1))
    self.log_dt = nnx.Param(log_uniform(rngs.params(), (width,), dt_min, dt_max), **dt)
    self.a_log_real = nnx.Param(jnp.asarray(np.log(-a_KN.real), jnp.float32), **a)
    self.a_imag = nnx.Param(jnp.asarray(a_KN.imag, jnp.float32), **a)
    if train_b:
      self.b_real, self.b_imag = nnx.Param(jnp.ones(a_KN.shape), **b), nnx.Param(jnp.zeros(a_KN.shape), **b)
    c_SDN = jax.random.normal(rngs.params(), (directions, width, state_size // 2), jnp.complex64)
    self.c_real, self.c_imag = nnx.Param(c_SDN.real, ssm=True), nnx.Param(c_SDN.imag, ssm=True)

  def terms(self, channels=None):
    """See `DiagonalKernel`."""
    copy_D = of_channels(np.arange(self.width) % self.a_imag.shape[0], channels)
    a_DN = lax.complex(-jnp.exp(self.a_log_real[...]), self.a_imag[...])[copy_D]
    dt_D1 = jnp.exp(of_channels(self.log_dt[...], channels))[:, None]
    dt_a_DN = dt_D1.astype(jnp.complex64) * a_DN
    if self.discretization == 'zoh':
      exponent_DN, b_DN = dt_a_DN, jnp.expm1(dt_a_DN) / a_DN
    else:
      exponent_DN, b_DN = _bilinear_exponent(dt_a_DN), dt_D1.astype(jnp.complex64) / (1 - dt_a_DN / 2)
    if self.train_b:
      b_DN = b_DN * lax.complex(self.b_real[...], self.b_imag[...])[copy_D]
    c_SDN = of_channels(lax.complex(self.c_real[...], self.c_imag[...]), channels, 1)
    return 2 * c_SDN * b_DN[None], exponent_DN


def _bilinear_exponent(z):
  """log((1 + z/2) / (1 - z/2)), accurate for small z."""
  denominator = jnp.square(1 - z.real / 2) + jnp.square(z.imag / 2)
  # At z = -2 the logarithm is not finite. The real part stops at the smallest factor that float32 resolves.
  real = 0.5 * jnp.log1p(jnp.maximum(2 * z.real / denominator, -1 + 2.0**-23))
  cosine = 1 - (jnp.square(z.real) + jnp.square(z.imag)) / 4
  return lax.complex(real, jnp.arctan2(z.imag, jnp.where(cosine == 0, 2.0**-24, cosine)))


@register_mixer('s4d')
class S4D(LongConvolution):
  """S4D: long convolution, skip, GELU, dropout, Linear and GLU:

      y = GLU(W GELU(K * x + D x) + b).

  Padding is masked under every protocol. Options: see `S4dKernel`.
  """

  kernel_type = S4dKernel
