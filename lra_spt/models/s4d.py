"""S4D: diagonal state-space models (Gu et al. 2022, "On the Parameterization and Initialization of Diagonal
State Space Models", arXiv 2206.11893)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from lra_spt.models.hippo import diagonal
from lra_spt.models.registry import register_mixer
from lra_spt.models.ssm import LongConvolution, group, log_uniform
from lra_spt.ops.vandermonde import vandermonde

DISCRETIZATIONS = ('zoh', 'bilinear')


class DiagonalKernel(nnx.Module):
  """K_l = 2 Re sum_n C_n Bbar_n Abar_n^l of N conjugate pairs per channel, A = diag(w).

  dt, C and the directions are a channel's own; w and B are shared by all channels h with equal h mod
  `copies`. Parameters (float32): log_dt [D]; inv_w_real = log(-Re w), w_imag, b_real, b_imag [copies, N];
  c_real, c_imag [S, D, N]. B starts at 1, C standard complex normal, dt log-uniform.
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    directions: int,
    state_size: int,
    copies: int,
    init: str,
    discretization: str,
    dt_min: float,
    dt_max: float,
    dt_lr: float,
    a_lr: float,
    b_lr: float,
    rngs: nnx.Rngs,
  ):
    copies = copies or width
    if discretization not in DISCRETIZATIONS:
      raise ValueError(
        f'model.mixer.discretization is {discretization!r}; choose one of {", ".join(DISCRETIZATIONS)}'
      )
    if not 1 <= copies <= width:
      raise ValueError(f'model.mixer.copies is {copies}; choose 1 to model.width={width}, or 0 for the width')
    self.width, self.length, self.discretization = width, length, discretization
    w_N = diagonal(init, state_size)

    def tiled(value_N, learning_rate):
      value = jnp.asarray(np.tile(value_N.astype(np.float32), (copies, 1)))
      return nnx.Param(value, ssm=True, group=group(learning_rate))

    log_dt = log_uniform(rngs.params(), (width,), dt_min, dt_max)
    self.log_dt = nnx.Param(log_dt, ssm=True, group=group(dt_lr))
    self.inv_w_real, self.w_imag = tiled(np.log(-w_N.real), a_lr), tiled(w_N.imag, a_lr)
    self.b_real, self.b_imag = tiled(np.ones_like(w_N.real), b_lr), tiled(np.zeros_like(w_N.real), b_lr)
    c_SDN = jax.random.normal(rngs.params(), (directions, width, state_size // 2), jnp.complex64)
    self.c_real, self.c_imag = nnx.Param(c_SDN.real, ssm=True), nnx.Param(c_SDN.imag, ssm=True)

  def __call__(self, length: int) -> jax.Array:
    """float32 [S, D, L], L = min(length, the length it was built for)."""
    exponent_DN, b_DN = self._discrete()
    return vandermonde(2 * self._c() * b_DN[None], exponent_DN, length=min(length, self.length))

  def init_state(self, batch_size: int) -> jax.Array:
    """States complex64 [B, D, N], all zero."""
    return jnp.zeros((batch_size, *self.c_real.shape[1:]), jnp.complex64)

  def step(self, states_BDN, x_BD: jax.Array):
    """(state, K * x at this position)."""
    exponent_DN, b_DN = self._discrete()
    u_BDN = b_DN[None] * x_BD[..., None].astype(jnp.complex64)
    states_BDN = jnp.exp(exponent_DN)[None] * states_BDN + u_BDN
    return states_BDN, 2 * jnp.sum(self._c()[:1] * states_BDN, axis=-1).real

  def _c(self):
    return lax.complex(self.c_real[...], self.c_imag[...])

  def _discrete(self):
    """log(Abar) and Bbar, complex64 [D, N]."""
    copy_D = np.arange(self.width) % self.w_imag.shape[0]
    w_DN = lax.complex(-jnp.exp(self.inv_w_real[...]), self.w_imag[...])[copy_D]
    b_DN = lax.complex(self.b_real[...], self.b_imag[...])[copy_D]
    dt_D1 = jnp.exp(self.log_dt[...])[:, None].astype(jnp.complex64)
    if self.discretization == 'zoh':
      return dt_D1 * w_DN, b_DN * jnp.expm1(dt_D1 * w_DN) / w_DN
    # log((1 + z) / (1 - z)) of z = dt w / 2: the plain quotient would lose digits of a slow decay.
    z_DN = dt_D1 * w_DN / 2
    return jnp.log1p(z_DN) - jnp.log1p(-z_DN), dt_D1 * b_DN / (1 - z_DN)


@register_mixer('s4d')
class S4D(LongConvolution):
  """S4D: long convolution, skip, GELU, dropout, Linear and GLU.

  Options:
    state_size: states per channel counting conjugates, even.
    copies: independent systems (w, B), channel h uses h mod copies; 0: one per channel.
    init: initial w: 'legs', 'lin' or 'inv'.
    discretization: 'zoh' or 'bilinear'.
    dt_min, dt_max: range of the initial steps.
    dropout, tied_dropout: between GELU and the linear map; tied: one mask for all positions.
    dt_lr, a_lr, b_lr: constant learning rates of dt, w and B, all without weight decay; 0.0 stands for the
      stage's rate.
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    causal: bool,
    protocol,
    rngs: nnx.Rngs,
    state_size: int = 64,
    copies: int = 0,
    init: str = 'legs',
    discretization: str = 'zoh',
    dt_min: float = 1e-3,
    dt_max: float = 0.1,
    dropout: float = 0.0,
    tied_dropout: bool = False,
    dt_lr: float = 0.0,
    a_lr: float = 0.0,
    b_lr: float = 0.0,
    dtype=jnp.float32,
  ):
    del protocol  # as S4, it masks padding
    kernel = DiagonalKernel(
      width,
      length=length,
      directions=1 if causal else 2,
      state_size=state_size,
      copies=copies,
      init=init,
      discretization=discretization,
      dt_min=dt_min,
      dt_max=dt_max,
      dt_lr=dt_lr,
      a_lr=a_lr,
      b_lr=b_lr,
      rngs=rngs,
    )
    super().__init__(
      kernel, width, causal=causal, dropout=dropout, tied_dropout=tied_dropout, dtype=dtype, rngs=rngs
    )
