"""S4D-DFouT: S4D that starts with evenly spaced poles of the discrete system (Solozabal et al. 2025, arXiv
2508.20441, section 4.2; their published code could not be had)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from lra_spt.models.hippo import circle
from lra_spt.models.mixers.dlr import DiagonalKernel
from lra_spt.models.registry import register_mixer
from lra_spt.models.ssm import LongConvolution, group, log_uniform, of_channels


class DfoutKernel(DiagonalKernel):
  """Kernels of N conjugate pairs of states whose decays and frequencies are independent of each other:

      K_l = 2 Re sum_n C_n Bbar_n Abar_n^l,
      Abar_n = exp(-xi r_n + i omega_n), Bbar_n = xi (Abar_n - 1) / log Abar_n.

  The poles Abar of all channels together start evenly spaced over the upper half of a circle, the half that
  suffices for real inputs: those of channel h = 0 .. D-1 at the angles pi (n + h / D) / N, with r = 1/2 and
  one decay xi per channel. In S4D a step dt scales decays and frequencies alike. The paper gives poles, but
  no factors of the input: Bbar is ours, S4D's zero-order hold with xi as its step, so that kernels start as
  large as those of S4D.

  Parameters (float32): log_dt = log xi [D]; a_log_real = log r and a_imag = omega [D, N]; c_real, c_imag
  [S, D, N], initially complex normal with variance 1.

  Args:
    state_size: states per channel counting conjugates, even.
    dt_min, dt_max: range of the initial xi, log-uniform.
    dt_lr, a_lr: constant learning rates of xi, and of r and omega, all without weight decay; 0.0: the stage's
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
    dt_min: float = 1e-3,
    dt_max: float = 0.1,
    dt_lr: float = 1e-3,
    a_lr: float = 1e-3,
  ):
    del length  # the kernel is the same at any length
    dt, a = ({'ssm': True, 'group': group(rate)} for rate in (dt_lr, a_lr))
    angles_DN = circle(width, state_size)
    self.log_dt = nnx.Param(log_uniform(rngs.params(), (width,), dt_min, dt_max), **dt)
    self.a_log_real = nnx.Param(jnp.full(angles_DN.shape, np.log(np.float32(0.5))), **a)
    self.a_imag = nnx.Param(jnp.asarray(angles_DN, jnp.float32), **a)
    c_SDN = jax.random.normal(rngs.params(), (directions, *angles_DN.shape), jnp.complex64)
    self.c_real, self.c_imag = nnx.Param(c_SDN.real, ssm=True), nnx.Param(c_SDN.imag, ssm=True)

  def terms(self, channels=None):
    """See `DiagonalKernel`."""
    xi_D1 = jnp.exp(of_channels(self.log_dt[...], channels))[:, None]
    decay_DN = xi_D1 * jnp.exp(of_channels(self.a_log_real[...], channels))
    exponent_DN = lax.complex(-decay_DN, of_channels(self.a_imag[...], channels))
    b_DN = xi_D1.astype(jnp.complex64) * jnp.expm1(exponent_DN) / exponent_DN
    c_SDN = of_channels(lax.complex(self.c_real[...], self.c_imag[...]), channels, 1)
    return 2 * c_SDN * b_DN[None], exponent_DN


@register_mixer('s4d_dfout')
class S4dDfout(LongConvolution):
  """S4D-DFouT: the layer of `S4D` with other kernels. Options: see `DfoutKernel`."""

  kernel_type = DfoutKernel
