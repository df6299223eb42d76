"""DLR: diagonal linear recurrences whose states are shared by all channels (Gupta, Mehta and Berant 2022,
arXiv 2212.00768; paper section 3.3; published code `dss.py:406-551,602-748`)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from lra_spt.models.registry import register_mixer
from lra_spt.models.ssm import LongConvolution, group, log_uniform
from lra_spt.ops.vandermonde import vandermonde


class DlrKernel(nnx.Module):
  """K_l = Re sum_n W_n exp(Lambda_n l), Lambda = -p^2 + i omega, N states, no conjugate pairs, no step at run
  time.

  Parameters (float32): p, omega [N], shared by channels and directions; w_real, w_imag [S, D, N]. They start
  with -p^2 = -dt / 2, dt log-uniform, omega_n = 2 pi n / N for n = 1..N, and W = standard complex normal
  parts / N.
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    directions: int,
    state_size: int,
    dt_min: float,
    dt_max: float,
    lambda_lr: float,
    w_lr: float,
    rngs: nnx.Rngs,
  ):
    if state_size < 1:
      raise ValueError(f'model.mixer.state_size is {state_size}; it must be at least 1')
    self.length = length
    lambda_group, w_group = group(lambda_lr), group(w_lr)
    dt_N = jnp.exp(log_uniform(rngs.params(), (state_size,), dt_min, dt_max))
    self.p = nnx.Param(jnp.sqrt(dt_N / 2), ssm=True, group=lambda_group)
    omega_N = 2 * np.pi * np.arange(1, state_size + 1) / state_size
    self.omega = nnx.Param(jnp.asarray(omega_N, jnp.float32), ssm=True, group=lambda_group)
    w_2SDN = jax.random.normal(rngs.params(), (2, directions, width, state_size)) / state_size
    self.w_real = nnx.Param(w_2SDN[0], ssm=True, group=w_group)
    self.w_imag = nnx.Param(w_2SDN[1], ssm=True, group=w_group)

  def __call__(self, length: int) -> jax.Array:
    """float32 [S, D, L], L = min(length, the length it was built for)."""
    return vandermonde(self._w(), self._exponent(), length=min(length, self.length))

  def init_state(self, batch_size: int) -> jax.Array:
    """States complex64 [B, D, N], all zero."""
    return jnp.zeros((batch_size, *self.w_real.shape[1:]), jnp.complex64)

  def step(self, states_BDN, x_BD: jax.Array):
    """(state, K * x at this position)."""
    states_BDN = jnp.exp(self._exponent())[None, None] * states_BDN + x_BD[..., None].astype(jnp.complex64)
    return states_BDN, jnp.sum(self._w()[:1] * states_BDN, axis=-1).real

  def _w(self):
    return lax.complex(self.w_real[...], self.w_imag[...])

  def _exponent(self):
    return lax.complex(-jnp.square(self.p[...]), self.omega[...])


@register_mixer('dlr')
class DLR(LongConvolution):
  """DLR: long convolution, skip, GELU, dropout, Linear and GLU.

  The published layer ignores padding, so protocol.attend_to_padding lets it reach valid positions.

  Options:
    state_size: N.
    dt_min, dt_max: range of -2 Re Lambda at the start.
    dropout, tied_dropout: between GELU and the linear map; tied: one mask for all positions.
    lambda_lr, w_lr: constant learning rates of Lambda and W, without weight decay; 0.0 stands for the
      stage's. (The published code trains the real part of its first layer's Lambda at the stage's rate, by a
      slip in a shared config object, dss.py:441-454; here all layers are alike.)
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    causal: bool,
    protocol,
    rngs: nnx.Rngs,
    state_size: int = 1024,
    dt_min: float = 1e-4,
    dt_max: float = 0.1,
    dropout: float = 0.0,
    tied_dropout: bool = False,
    lambda_lr: float = 1e-4,
    w_lr: float = 1e-4,
    dtype=jnp.float32,
  ):
    kernel = DlrKernel(
      width,
      length=length,
      directions=1 if causal else 2,
      state_size=state_size,
      dt_min=dt_min,
      dt_max=dt_max,
      lambda_lr=lambda_lr,
      w_lr=w_lr,
      rngs=rngs,
    )
    super().__init__(
      kernel,
      width,
      causal=causal,
      see_padding=protocol.attend_to_padding,
      dropout=dropout,
      tied_dropout=tied_dropout,
      dtype=dtype,
      rngs=rngs,
    )
