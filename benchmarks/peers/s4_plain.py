"""A plain S4 layer (Gu, Goel and Re 2022), written from the paper with jax.numpy: complex64, Cauchy sums by
broadcasting over channels, states and nodes, FFTs from jax.numpy, gradients by autodiff.

The baseline for `lra_spt.models.mixers.s4`: the same mathematics without any of its care for speed, memory
and accuracy. `products=True` is the version of someone who looks at the profile: one division for all sums,
which are then matrix products.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from lra_spt.models.hippo import legs


def init_plain(key: jax.Array, width: int, states: int) -> dict[str, jax.Array]:
  """Parameters of one bidirectional layer, HiPPO-LegS in every channel; `states` counts both halves of the
  conjugate pairs. Complex values are held as real and imaginary part; c is C-tilde (appendix C.3)."""
  keys = jax.random.split(key, 4)
  system, pairs = legs(states), states // 2

  def spread(values_N):
    return jnp.asarray(np.broadcast_to(values_N, (width, pairs)), jnp.float32)

  params = {'log_decay_DN': spread(np.log(-system.w.real)), 'frequency_DN': spread(system.w.imag)}
  for name, values_N in (('p_DN', system.p), ('b_DN', system.b)):
    params |= {f'{name}_real': spread(values_N.real), f'{name}_imag': spread(values_N.imag)}
  shape = 2, width, pairs
  return params | {
    'log_dt_D': jax.random.uniform(keys[0], (width,), minval=np.log(1e-3), maxval=np.log(1e-1)),
    'c_SDN_real': jax.random.normal(keys[1], shape) / np.sqrt(2),
    'c_SDN_imag': jax.random.normal(keys[2], shape) / np.sqrt(2),
    'skip_D': jnp.ones(width),
    'glu_DE': jax.random.normal(keys[3], (width, 2 * width)) / np.sqrt(width),
    'glu_bias_E': jnp.zeros(2 * width),
  }


def plain_layer(params: dict[str, jax.Array], u_BLD: jax.Array, *, products: bool = False) -> jax.Array:
  """float32 [B, L, D] -> [B, L, D]: both directions, skip, exact GELU, Linear(D, 2D), GLU."""
  L = u_BLD.shape[1]
  causal_DL, reverse_DL = plain_kernel(params, L, products=products)
  # Lags 0..L-1 at the front, and -1..-L at the back of a circle of 2L.
  circle_CD = jnp.concatenate([causal_DL, reverse_DL[:, ::-1]], axis=1).T
  spectrum_BKD = jnp.fft.rfft(u_BLD, n=2 * L, axis=1) * jnp.fft.rfft(circle_CD, axis=0)[None]
  y_BLD = jnp.fft.irfft(spectrum_BKD, n=2 * L, axis=1)[:, :L] + params['skip_D'][None, None] * u_BLD
  y_BLD = jax.nn.gelu(y_BLD, approximate=False)
  return jax.nn.glu(y_BLD @ params['glu_DE'] + params['glu_bias_E'][None, None], axis=-1)


def plain_kernel(params: dict[str, jax.Array], length: int, *, products: bool = False) -> jax.Array:
  """float32 [2, D, L]: causal and anti-causal kernel by the paper's algorithm 1."""
  dt_D1 = jnp.exp(params['log_dt_D'])[:, None]
  w_DN = jax.lax.complex(-jnp.exp(params['log_decay_DN']), params['frequency_DN'])
  p_DN, b_DN, c_SDN = (
    jax.lax.complex(params[f'{name}_real'], params[f'{name}_imag']) for name in ('p_DN', 'b_DN', 'c_SDN')
  )
  # omega = -1, where z is infinite, is moved away from there by about the rounding of complex64.
  omega_K = np.exp(-2j * np.pi * np.arange(length // 2 + 1) / length)
  omega_K[2 * np.arange(len(omega_K)) == length] += 1e-7j
  z_K = jnp.asarray(2 * (1 - omega_K) / (1 + omega_K), jnp.complex64)
  scale_K = jnp.asarray(2 / (1 + omega_K), jnp.complex64)

  q_DN = jnp.conj(p_DN)
  v_VDN = jnp.stack([b_DN * q_DN, p_DN * q_DN, *(c_SDN * b_DN[None]), *(c_SDN * p_DN[None])])
  cauchy = _cauchy_products if products else _cauchy
  bq_DK, pq_DK, *others = cauchy(v_VDN, z_K[None] / dt_D1, w_DN)
  cb_SDK, cp_SDK = jnp.stack(others[:2]), jnp.stack(others[2:])
  return jnp.fft.irfft(scale_K * (cb_SDK - cp_SDK * bq_DK / (1 + pq_DK)), n=length)


@functools.partial(jax.vmap, in_axes=(0, None, None))
def _cauchy(v_DN, z_DK, w_DN):
  """[D, K]: sum of v / (z - w) over both states of every pair."""
  v_DN1, w_DN1 = _both(v_DN)[..., None], _both(w_DN)[..., None]
  return jnp.sum(v_DN1 / (z_DK[:, None] - w_DN1), axis=1)


def _cauchy_products(v_VDN, z_DK, w_DN):
  """The same for all v."""
  return jnp.einsum('vdn,dnk->vdk', _both(v_VDN), 1 / (z_DK[:, None] - _both(w_DN)[..., None]))


def _both(x_N):
  return jnp.concatenate([x_N, jnp.conj(x_N)], axis=-1)
