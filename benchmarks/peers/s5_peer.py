"""A plain S5 layer (Smith, Warrington and Linderman 2023), structured like its authors' JAX code: complex
matrices, one sequence at a time under `vmap`, `associative_scan` over explicit [L, P] elements, and gradients
by autodiff.

The baseline for `lra_spt.models.mixers.s5`: the same mathematics without any of its care for speed.
"""

import jax
import jax.numpy as jnp

from lra_spt.models.hippo import legs


def init_peer(key: jax.Array, width: int, states: int) -> dict[str, jax.Array]:
  """Parameters of one bidirectional layer; `states` counts both halves of P conjugate pairs. Complex matrices
  are stored as their real and imaginary parts along a last axis of 2."""
  pairs = states // 2
  keys = jax.random.split(key, 6)
  w_P = legs(states).w
  return {
    'lambda_real_P': jnp.asarray(w_P.real, jnp.float32),
    'lambda_imag_P': jnp.asarray(w_P.imag, jnp.float32),
    'b_PD2': jax.random.normal(keys[0], (pairs, width, 2)) / jnp.sqrt(2.0 * width),
    'forward_c_DP2': jax.random.normal(keys[1], (width, pairs, 2)) / jnp.sqrt(2.0 * pairs),
    'reverse_c_DP2': jax.random.normal(keys[2], (width, pairs, 2)) / jnp.sqrt(2.0 * pairs),
    'skip_D': jax.random.normal(keys[3], (width,)),
    'log_step_P': jax.random.uniform(keys[4], (pairs,), minval=jnp.log(1e-3), maxval=jnp.log(1e-1)),
    'gate_DD': jax.random.normal(keys[5], (width, width)) / jnp.sqrt(float(width)),
    'gate_bias_D': jnp.zeros(width),
  }


def peer_layer(params: dict[str, jax.Array], u_LD: jax.Array) -> jax.Array:
  """One sequence float32 [L, D] -> [L, D]: zero-order hold, both directions, skip, GELU and half a GLU.
  Batches go through `jax.vmap(peer_layer, (None, 0))`."""
  lambda_P = params['lambda_real_P'] + 1j * params['lambda_imag_P']
  b_PD = params['b_PD2'][..., 0] + 1j * params['b_PD2'][..., 1]
  c_DP2 = jnp.concatenate([params['forward_c_DP2'], params['reverse_c_DP2']], axis=1)
  c_DP = c_DP2[..., 0] + 1j * c_DP2[..., 1]

  decay_P = jnp.exp(lambda_P * jnp.exp(params['log_step_P']))
  b_PD = ((decay_P - 1) / lambda_P)[:, None] * b_PD
  decay_LP = decay_P[None] * jnp.ones((u_LD.shape[0], 1))
  bu_LP = jax.vmap(lambda u_D: b_PD @ u_D.astype(b_PD.dtype))(u_LD)
  _, forward_LP = jax.lax.associative_scan(_compose, (decay_LP, bu_LP))
  _, reverse_LP = jax.lax.associative_scan(_compose, (decay_LP, bu_LP), reverse=True)
  h_LP = jnp.concatenate([forward_LP, reverse_LP], axis=-1)
  y_LD = jax.vmap(lambda h_P: 2 * (c_DP @ h_P).real)(h_LP) + params['skip_D'][None] * u_LD

  y_LD = jax.nn.gelu(y_LD)
  return y_LD * jax.nn.sigmoid(y_LD @ params['gate_DD'] + params['gate_bias_D'][None])


def _compose(earlier, later):
  """The affine map h -> a h + x of `later` after that of `earlier`."""
  return later[0] * earlier[0], later[0] * earlier[1] + later[1]
