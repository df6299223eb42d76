"""The memory of MesaNet (von Oswald et al. 2025, arXiv 2506.05233): a ridge regression from the keys to the
values of the past is solved anew at every position, and the query reads the solution."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from lra_spt.ops.linear_attention import linear_attention


def mesa(
  q_BLHN: jax.Array,
  k_BLHN: jax.Array,
  v_BLHP: jax.Array,
  log_decay_BLH: jax.Array,
  beta_BLH: jax.Array,
  ridge_BLHN: jax.Array,
  *,
  steps: int,
  direction: str = 'forward',
) -> jax.Array:
  """y_t = G_t^T (H_t + diag(ridge_t))^-1 q_t with H_t = a_t H_{t-1} + b_t k_t k_t^T and
  G_t = a_t G_{t-1} + b_t k_t v_t^T.

  The systems of all positions are solved at once by `steps` steps of conjugate gradients, each of which is
  one linear attention, so H_t is not stored for every position. In exact arithmetic N steps solve them.
  Differentiable in reverse mode, by the derivative of the exact solution, with one more solve. All arithmetic
  is float32, except that the last read runs in the dtype of v.

  Args:
    q_BLHN, k_BLHN, v_BLHP: queries, keys and values. Positions that must not be read, such as padding, need
      b = 0 or k = 0.
    log_decay_BLH: log a <= 0, float32.
    beta_BLH: b, at least 0, float32.
    ridge_BLHN: float32, positive.
    direction: 'forward' (causal) or 'backward'.

  Returns:
    y float32 [B, L, H, P].
  """
  keys = k_BLHN.astype(jnp.float32)
  weighted = beta_BLH[..., None] * keys
  x_BLHN = _solved(steps, direction, q_BLHN.astype(jnp.float32), keys, weighted, log_decay_BLH, ridge_BLHN)
  x_BLHN, weighted = x_BLHN.astype(v_BLHP.dtype), weighted.astype(v_BLHP.dtype)
  return linear_attention(x_BLHN, weighted, v_BLHP, log_decay_BLH, direction=direction)


def _times(direction, x_BLHN, k_BLHN, weighted_BLHN, log_decay_BLH, ridge_BLHN):
  """(H_t + diag(ridge_t)) x_t for all t."""
  product = linear_attention(x_BLHN, k_BLHN, weighted_BLHN, log_decay_BLH, direction=direction)
  return product + ridge_BLHN * x_BLHN


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _solved(steps, direction, q_BLHN, *system):
  return _forward(steps, direction, q_BLHN, *system)[0]


def _conjugate_gradients(steps, direction, q_BLHN, *system):
  def dot(x, y):
    return jnp.sum(x * y, axis=-1, keepdims=True)

  def step(_, carry):
    x, residual, search, square = carry
    product = _times(direction, search, *system)
    # At the solution both products are 0.
    rate = square / jnp.maximum(dot(search, product), 1e-30)
    x, residual = x + rate * search, residual - rate * product
    new_square = dot(residual, residual)
    search = residual + new_square / jnp.maximum(square, 1e-30) * search
    return x, residual, search, new_square

  # Squares of small gradients would be 0.
  largest = jnp.max(jnp.abs(q_BLHN), axis=-1, keepdims=True)
  largest = jnp.where(largest > 0, largest, 1.0)
  q_BLHN = q_BLHN / largest
  start = jnp.zeros_like(q_BLHN), q_BLHN, q_BLHN, dot(q_BLHN, q_BLHN)
  return largest * lax.fori_loop(0, steps, step, start)[0]


def _forward(steps, direction, q_BLHN, *system):
  x_BLHN = checkpoint_name(_conjugate_gradients(steps, direction, q_BLHN, *system), 'mixer')
  return x_BLHN, (x_BLHN, system)


def _backward(steps, direction, saved, d_x_BLHN):
  """A x = q gives A dx = dq - dA x, and A is symmetric."""
  x_BLHN, system = saved
  d_q_BLHN = _conjugate_gradients(steps, direction, d_x_BLHN, *system)
  _, pull = jax.vjp(lambda *system: _times(direction, x_BLHN, *system), *system)
  return d_q_BLHN, *pull(-d_q_BLHN)


_solved.defvjp(_forward, _backward)
