"""DLR: diagonal linear recurrences (Gupta, Mehta and Berant 2022, arXiv 2212.00768; published code:
`IdoAmos/not-from-scratch`, commit f919137, `src/models/sequence/ss/dss.py:406-551, 602-748`), and the part
that DSS and S4D share with it.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import LongConvolution, group, log_uniform, of_channels
from lra_spt.ops.vandermonde import vandermonde


class DiagonalKernel(nnx.Module):
  """Kernels K, and the same map from u to y as a recurrence:

      K_l = Re sum_n c_n exp(lambda_n l),
      h_t = exp(lambda) h_{t-1} + u_t, y_t = Re sum_n c_n h_tn.

  A subclass defines `terms`.
  """

  def terms(self, channels: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Returns c, complex64 [S, D, N], and lambda, complex64 [N] (shared) or [D, N], for all channels or those
    given."""
    raise NotImplementedError

  def __call__(self, length: int, channels: jax.Array | None = None) -> jax.Array:
    """Returns the kernels of all channels or of those given, float32 [S, D, L]."""
    return vandermonde(*self.terms(channels), length=length)

  def init_state(self, batch_size: int) -> jax.Array:
    """The state before the first position, complex64 [B, D, N]."""
    return jnp.zeros((batch_size, *self.terms()[0].shape[1:]), jnp.complex64)

  def step(self, state_BDN: jax.Array, x_BD: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(state, K * x at this position)."""
    c_SDN, exponent = self.terms()
    transition = jnp.exp(exponent)
    state_BDN = lax.expand_dims(transition, range(3 - transition.ndim)) * state_BDN
    state_BDN = state_BDN + x_BD[..., None].astype(jnp.complex64)
    return state_BDN, jnp.sum(c_SDN[:1] * state_BDN, axis=-1).real


class DlrKernel(DiagonalKernel):
  """Kernels of N states. All channels and directions share Lambda:

      K_l = Re sum_n W_n exp(Lambda_n l), Lambda_n = -p_n^2 + i omega_n,

  without step size, input vector or conjugate pairs.

  Parameters (float32): lambda_root = p and lambda_imag = omega [N]; w_real, w_imag [S, D, N]. Initially
  p^2 = dt / 2 with dt log-uniform, omega_n = 2 pi n / N for n = 1 .. N (published: 0 .. N - 1, the same
  functions at integer positions), and W is complex normal with variance 2 / N^2.

  Args:
    state_size: N, states that all channels share.
    dt_min, dt_max: range of the initial steps.
    lambda_lr, w_lr: constant learning rates of Lambda and of W, both without weight decay; 0.0: the stage's
      rate. (The published code trains the real part of the first layer's Lambda at the stage's rate, because
      of a mistake in a shared config object, dss.py:441-454; no protocol reproduces it.)
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    directions: int,
    rngs: nnx.Rngs,
    state_size: Positive = 1024,
    dt_min: float = 1e-4,
    dt_max: float = 0.1,
    lambda_lr: float = 1e-4,
    w_lr: float = 1e-4,
  ):
    del length  # the kernel is the same at any length
    poles, output = ({'ssm': True, 'group': group(rate)} for rate in (lambda_lr, w_lr))
    dt_N = jnp.exp(log_uniform(rngs.params(), (state_size,), dt_min, dt_max))
    self.lambda_root = nnx.Param(jnp.sqrt(dt_N / 2), **poles)
    frequencies_N = 2 * np.pi * np.arange(1, state_size + 1) / state_size
    self.lambda_imag = nnx.Param(jnp.asarray(frequencies_N, jnp.float32), **poles)
    w_2SDN = jax.random.normal(rngs.params(), (2, directions, width, state_size)) / state_size
    self.w_real, self.w_imag = nnx.Param(w_2SDN[0], **output), nnx.Param(w_2SDN[1], **output)

  def terms(self, channels=None):
    """See `DiagonalKernel`."""
    c_SDN = of_channels(lax.complex(self.w_real[...], self.w_imag[...]), channels, 1)
    return c_SDN, lax.complex(-(self.lambda_root[...] ** 2), self.lambda_imag[...])


@register_mixer('dlr')
class DLR(LongConvolution):
  """DLR: long convolution, skip, GELU, dropout, Linear and GLU:

      y = GLU(W GELU(K * x + D x) + b).

  Under protocol.attend_to_padding padding is convolved too, as published. Options: see `DlrKernel`.
  """

  kernel_type = DlrKernel
  published_sees_padding = True
