"""DSS: diagonal state spaces (Gupta, Gu and Berant 2022, arXiv 2203.14343; published code: `ag1988/dss`,
commit 777084e, `src/models/sequence/ss/standalone/dss.py`)."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from lra_spt.models.hippo import legs
from lra_spt.models.mixers.dlr import DiagonalKernel
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import LongConvolution, group, log_uniform, of_channels
from lra_spt.ops.vandermonde import vandermonde

_LEAST_SQUARE = 1e-7  # smallest squared divisor, as published


class DssKernel(DiagonalKernel):
  """Kernels of N states:

      K_l = Re sum_n w_n (exp(P_n) - 1) / Lambda_n exp(P_n l) ('exp'),
      P = dt_0 Re Lambda + i dt_1 Im Lambda;

  with 'softmax' every state is also divided by exp(P_n length) - 1, which normalises its exponentials over
  all lags.

  All channels and directions share Lambda; every channel has its own steps dt, every channel and direction
  its own w. States have no conjugate partners. With 'softmax' Re Lambda may become positive; growing states
  are then computed from their last lag backwards. The `length` of the normalisation is that for which the
  kernel was built (ours; published: that of the call). Shorter inputs therefore have the same kernel. For
  longer inputs the kernel is 0 beyond that length.

  Parameters (float32): log_dt [D, 2], or [D, 1] for both parts; lambda_imag [N] and lambda_real [N] or, for
  'exp', lambda_log_real = log(-Re Lambda) [N]; w_real, w_imag [S, D, N]. Initially Lambda is -1/2 + i times
  the positive imaginary parts of HiPPO-LegS with 2N states, descending ("skew-hippo"), dt is log-uniform and
  the same for both parts, and w_real and w_imag are N(0, 1).

  Args:
    state_size: N.
    version: 'softmax', as on the Long Range Arena, or 'exp'.
    separate_dt: real and imaginary parts have separate steps (published `sep_dt_re_im`).
    dt_min, dt_max: range of the initial steps.
    dt_lr, lambda_lr, w_lr: constant learning rates, all without weight decay; 0.0: the stage's rate.
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    directions: int,
    rngs: nnx.Rngs,
    state_size: Positive = 64,
    version: Literal['softmax', 'exp'] = 'softmax',
    separate_dt: bool = True,
    dt_min: float = 1e-3,
    dt_max: float = 0.1,
    dt_lr: float = 1e-3,
    lambda_lr: float = 1e-3,
    w_lr: float = 1e-3,
  ):
    self.length, self.is_softmax = length, version == 'softmax'
    self.constant_shift = False
    steps, poles, output = ({'ssm': True, 'group': group(rate)} for rate in (dt_lr, lambda_lr, w_lr))
    log_dt_D1 = log_uniform(rngs.params(), (width, 1), dt_min, dt_max)
    self.log_dt = nnx.Param(jnp.repeat(log_dt_D1, 2 if separate_dt else 1, axis=1), **steps)
    real_N = jnp.full(state_size, -0.5)
    if self.is_softmax:
      self.lambda_real = nnx.Param(real_N, **poles)
    else:
      self.lambda_log_real = nnx.Param(jnp.log(-real_N), **poles)
    self.lambda_imag = nnx.Param(jnp.asarray(-legs(2 * state_size).w.imag, jnp.float32), **poles)
    w_2SDN = jax.random.normal(rngs.params(), (2, directions, width, state_size))
    self.w_real, self.w_imag = nnx.Param(w_2SDN[0], **output), nnx.Param(w_2SDN[1], **output)

  def __call__(self, length: int, channels: jax.Array | None = None) -> jax.Array:
    """Returns the kernels of all channels or of those given, float32 [S, D, L]. With 'softmax' L is at most
    the length for which the kernel was built."""
    if not self.is_softmax:
      return super().__call__(length, channels)
    c_SDN, exponent_DN, grows_1N = self._normalised(channels)
    length = min(length, self.length)
    zero = jnp.zeros((), jnp.complex64)
    kernel_SDL = vandermonde(
      jnp.where(grows_1N[None], zero, c_SDN), jnp.where(grows_1N, zero, exponent_DN), length=length
    )

    def growing():
      if self.constant_shift:  # the factor is 1, its gradient is not
        shift_DN = (exponent_DN - lax.stop_gradient(exponent_DN)) * (self.length - 1)
        shifted_SDN = c_SDN * jnp.exp(shift_DN)[None]
      else:
        shifted_SDN = c_SDN
      backwards_SDL = vandermonde(
        jnp.where(grows_1N[None], shifted_SDN, zero),
        jnp.where(grows_1N, -exponent_DN, zero),
        length=self.length,
      )
      return jnp.flip(backwards_SDL, axis=2)[..., :length]

    return kernel_SDL + lax.cond(jnp.any(grows_1N), growing, lambda: jnp.zeros_like(kernel_SDL))

  def terms(self, channels=None):
    """See `DiagonalKernel`."""
    if self.is_softmax:
      c_SDN, exponent_DN, grows_1N = self._normalised(channels)
      last_DN = jnp.where(grows_1N, exponent_DN * (1 - self.length), jnp.zeros((), jnp.complex64))
      return c_SDN * jnp.exp(last_DN)[None], exponent_DN
    lambda_1N, exponent_DN, w_SDN = self._system(channels)
    square_1N = jnp.square(lambda_1N.real) + jnp.square(lambda_1N.imag)
    inverse_1N = jnp.conj(lambda_1N) / jnp.maximum(square_1N, _LEAST_SQUARE).astype(jnp.complex64)
    return w_SDN * (jnp.expm1(exponent_DN) * inverse_1N)[None], exponent_DN

  def _normalised(self, channels):
    """c [S, D, N], P [D, N] and a mask bool [1, N] of the states that grow. c belongs to the last lag for
    states that grow, and to lag 0 for others."""
    lambda_1N, exponent_DN, w_SDN = self._system(channels)
    grows_1N = lambda_1N.real > 0
    decaying_DN = jnp.where(grows_1N, -exponent_DN, exponent_DN)
    divisor_DN = jnp.expm1(decaying_DN * self.length) * lambda_1N
    square_DN = jnp.square(divisor_DN.real) + jnp.square(divisor_DN.imag) + _LEAST_SQUARE
    inverse_DN = jnp.conj(divisor_DN) / square_DN.astype(jnp.complex64)
    return w_SDN * (jnp.expm1(decaying_DN) * inverse_DN)[None], exponent_DN, grows_1N

  def _system(self, channels):
    """Lambda [1, N], P [D, N] and w [S, D, N], complex64."""
    real_N = self.lambda_real[...] if self.is_softmax else -jnp.exp(self.lambda_log_real[...])
    imag_N = self.lambda_imag[...]
    dt_D2 = jnp.exp(of_channels(self.log_dt[...], channels))
    exponent_DN = lax.complex(dt_D2[:, :1] * real_N[None], dt_D2[:, -1:] * imag_N[None])
    w_SDN = of_channels(lax.complex(self.w_real[...], self.w_imag[...]), channels, 1)
    return lax.complex(real_N, imag_N)[None], exponent_DN, w_SDN


@register_mixer('dss')
class DSS(LongConvolution):
  """DSS: long convolution, skip, GELU, dropout and Linear, without a gate as published:

      y = W GELU(K * x + D x) + b.

  Padding is masked under every protocol. protocol.constant_shift keeps the published gradient of growing
  states. Both forms are published: the causal one for all tasks of the Long Range Arena, the bidirectional
  one as an option. Options: see `DssKernel`.

  Row: as published for all tasks; steps and dt_lr as published for most of them.
  """

  kernel_type = DssKernel

  def __init__(self, width: int, *, protocol, gate: str = 'none', convolution: str = '', **options):
    super().__init__(width, protocol=protocol, gate=gate, convolution=convolution, **options)
    self.kernel.constant_shift = protocol.constant_shift
