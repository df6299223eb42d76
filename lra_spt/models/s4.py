"""S4: the structured state-space sequence model (Gu, Goel and Re 2022) with LegS initialisation."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_spt.models.hippo import legs
from lra_spt.models.registry import register_mixer
from lra_spt.models.ssm import LongConvolution, group, log_uniform
from lra_spt.ops.cauchy import dplr_kernel


def truncated(dt_D, w_DN, p_DN, c_SDN, length):
  """C-tilde = (I - Abar^length)^T C by repeated squaring."""
  w_DM = jnp.concatenate([w_DN, jnp.conj(w_DN)], 1)
  p_DM = jnp.concatenate([p_DN, jnp.conj(p_DN)], 1)
  c_SDM = jnp.concatenate([c_SDN, jnp.conj(c_SDN)], 2)
  half = (dt_D / 2)[:, None, None].astype(jnp.complex64)
  eye = jnp.eye(w_DM.shape[1], dtype=jnp.complex64)[None]
  a = w_DM[:, :, None] * eye - p_DM[:, :, None] * jnp.conj(p_DM)[:, None]
  abar = jnp.linalg.solve(eye - half * a, eye + half * a)
  row_SDM, power = c_SDM, abar
  highest = jax.lax.Precision.HIGHEST
  while length:
    if length & 1:
      row_SDM = jnp.einsum('sdm,dmn->sdn', row_SDM, power, precision=highest)
    length >>= 1
    if length:
      power = jnp.einsum('dmk,dkn->dmn', power, power, precision=highest)
  return (c_SDM - row_SDM)[..., : w_DN.shape[1]]


class S4Kernel(nnx.Module):
  def __init__(self, width, *, length, directions, state_size, copies, dt_min, dt_max, dt_learning_rate, a_learning_rate, b_learning_rate, rngs):
    copies = copies or width
    self.length, self.width = length, width
    start = legs(state_size)
    N = state_size // 2

    def repeated(x):
      return jnp.asarray(np.tile(x[None], (copies, 1)), jnp.float32)

    a, b, dt = ({'ssm': True, 'group': group(rate)} for rate in (a_learning_rate, b_learning_rate, dt_learning_rate))
    self.log_dt = nnx.Param(log_uniform(rngs.params(), (width,), dt_min, dt_max), **dt)
    self.inv_w_real = nnx.Param(jnp.log(-repeated(start.w.real)), **a)
    self.w_imag = nnx.Param(repeated(start.w.imag), **a)
    self.p_real, self.p_imag = (nnx.Param(repeated(x), **a) for x in (start.p.real, start.p.imag))
    self.b_real, self.b_imag = (nnx.Param(repeated(x), **b) for x in (start.b.real, start.b.imag))
    parts = jax.random.normal(rngs.params(), (2, directions, width, N)) / np.float32(np.sqrt(2))
    dt_D, w_DN, p_DN, _ = self.system()
    c = truncated(dt_D, w_DN, p_DN, jax.lax.complex(*parts), length)
    self.c_real, self.c_imag = nnx.Param(c.real, ssm=True), nnx.Param(c.imag, ssm=True)

  def system(self):
    def tiled(x):
      return jnp.tile(x, (-(-self.width // x.shape[0]), 1))[: self.width]

    w = jax.lax.complex(-jnp.exp(self.inv_w_real[...]), self.w_imag[...])
    p, b = (jax.lax.complex(x[...], y[...]) for x, y in ((self.p_real, self.p_imag), (self.b_real, self.b_imag)))
    return jnp.exp(self.log_dt[...]), tiled(w), tiled(p), tiled(b)

  def __call__(self, length):
    c = jax.lax.complex(self.c_real[...], self.c_imag[...])
    return dplr_kernel(*self.system(), c, length=self.length)[..., :length]


@register_mixer('s4')
class S4(LongConvolution):
  def __init__(self, width, *, length, causal, protocol, rngs, state_size=64, copies=0, dt_min=1e-3, dt_max=0.1,
               dropout=0.0, tied_dropout=False, dt_learning_rate=0.0, a_learning_rate=1e-3, b_learning_rate=1e-3,
               dtype=jnp.float32):
    del protocol
    kernel = S4Kernel(width, length=length, directions=1 if causal else 2, state_size=state_size, copies=copies,
                      dt_min=dt_min, dt_max=dt_max, dt_learning_rate=dt_learning_rate, a_learning_rate=a_learning_rate, b_learning_rate=b_learning_rate, rngs=rngs)
    super().__init__(kernel, width, causal=causal, dropout=dropout, tied_dropout=tied_dropout, dtype=dtype, rngs=rngs)
