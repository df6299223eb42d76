"""Diagonal plus rank-one state-space systems one step at a time, and the outputs C-tilde that their kernels
need (`lra_spt.ops.cauchy`).

A system has N stored states x and their conjugates, A = diag(w) - P P^* over all 2N. The bilinear
discretisation Abar = (I - dt/2 A)^-1 (I + dt/2 A) = 2 (I - dt/2 A)^-1 - I is known in closed form (Sherman
and Morrison 1950): with E = 1 / (1 - dt/2 w) on the diagonal,

  Abar - I = dt w E - dt (E P) (P^* E) / (1 + dt/2 P^* E P).

Sums over all 2N states are twice the real part of sums over stored ones. As a matrix on (Re x, Im x), Abar is
real. When Re w < 0 it is a contraction, so its powers are computed by repeated squaring. They are stored as
Abar^m - I, so that slow states stay accurate: after m steps a state's phase is off by about
1e-7 m |Abar - I|.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax


def step(state_BDN, u_BD, dt_D, w_DN, p_DN, b_DN) -> jax.Array:
  """The state after one more input, Abar x + Bbar u, in O(N).

  Args:
    state_BDN: complex64 [B, D, N], stored states.
    u_BD: float32 [B, D].
    dt_D: float32 [D].
    w_DN, p_DN, b_DN: complex64 [D, N], see `lra_spt.ops.cauchy.dplr_kernel`.

  Returns:
    complex64 [B, D, N]; the output is 2 Re sum_n C_n x_n.
  """
  half_D1 = _complex(dt_D)[:, None] / 2
  e_DN = 1 / (1 - half_D1 * w_DN)
  middle_BDN = e_DN[None] * (state_BDN + (half_D1 * b_DN)[None] * _complex(u_BD)[..., None])
  feedback_BD = 2 * jnp.sum(jnp.conj(p_DN)[None] * middle_BDN, axis=-1).real
  gain_DN = half_D1 * e_DN * p_DN / _feedback(half_D1, e_DN, p_DN)
  return 2 * (middle_BDN - gain_DN[None] * _complex(feedback_BD)[..., None]) - state_BDN


def truncate_output(c_SDN, dt_D, w_DN, p_DN, *, length: int) -> jax.Array:
  """C-tilde = (I - Abar^length)^T C, complex64 [S, D, N].

  The generating function of the kernel with C-tilde is that of the first `length` values of the kernel with
  C. Differentiable; costs log2(length) products of [2N, 2N] matrices per channel.
  """
  rows_DSM = _rows(c_SDN)
  difference_DSM = jnp.zeros_like(rows_DSM)
  for change_DMM, bit in _squares(_change(dt_D, w_DN, p_DN), length):
    if bit:
      difference_DSM = difference_DSM + _matmul(rows_DSM + difference_DSM, change_DMM)
  return _unrows(-difference_DSM)


def untruncate_output(c_SDN, dt_D, w_DN, p_DN, *, length: int) -> jax.Array:
  """C from C-tilde, the inverse of `truncate_output`. It loses digits where a state hardly decays or rotates
  within `length` steps."""
  power_DMM = None
  for change_DMM, bit in _squares(_change(dt_D, w_DN, p_DN), length):
    if bit:
      power_DMM = change_DMM if power_DMM is None else power_DMM + change_DMM + _matmul(power_DMM, change_DMM)
  rows_DMS = jnp.swapaxes(_rows(c_SDN), 1, 2)
  return _unrows(jnp.swapaxes(jnp.linalg.solve(-jnp.swapaxes(power_DMM, 1, 2), rows_DMS), 1, 2))


def _feedback(half_D1, e_DN, p_DN):
  """1 + dt/2 P^* E P, [D, 1]."""
  sum_D1 = 2 * jnp.sum((p_DN * jnp.conj(p_DN) * e_DN).real, axis=-1, keepdims=True)
  return 1 + half_D1 * _complex(sum_D1)


def _change(dt_D, w_DN, p_DN):
  """Abar - I on (Re x, Im x), float32 [D, M, M], M = 2N."""
  step_D1 = _complex(dt_D)[:, None]
  e_DN = 1 / (1 - step_D1 / 2 * w_DN)
  diagonal_DN = step_D1 * w_DN * e_DN
  column_DN = step_D1 * e_DN * p_DN / _feedback(step_D1 / 2, e_DN, p_DN)
  row_DN = 2 * jnp.conj(p_DN) * e_DN
  eye_NN = jnp.eye(w_DN.shape[1])
  re_DNN, im_DNN = (x[..., None] * eye_NN[None] for x in (diagonal_DN.real, diagonal_DN.imag))
  turn_DMM = jnp.concatenate(
    [jnp.concatenate([re_DNN, -im_DNN], axis=2), jnp.concatenate([im_DNN, re_DNN], axis=2)], axis=1
  )
  column_DM = jnp.concatenate([column_DN.real, column_DN.imag], axis=1)
  row_DM = jnp.concatenate([row_DN.real, -row_DN.imag], axis=1)
  return turn_DMM - column_DM[:, :, None] * row_DM[:, None]


def _squares(change_DMM, length):
  """(Abar^(2^j) - I, bit j of `length`) for all bits."""
  if length < 1:
    raise ValueError(f'the length of a kernel is {length}; it must be at least 1')
  while length:
    yield change_DMM, length % 2
    length //= 2
    if length:
      change_DMM = 2 * change_DMM + _matmul(change_DMM, change_DMM)


def _rows(c_SDN):
  """C as row vectors on (Re x, Im x), [D, S, M], without the factor 2."""
  return jnp.swapaxes(jnp.concatenate([c_SDN.real, -c_SDN.imag], axis=-1), 0, 1)


def _unrows(rows_DSM):
  re_DSN, im_DSN = jnp.split(rows_DSM, 2, axis=-1)
  return jnp.swapaxes(lax.complex(re_DSN, -im_DSN), 0, 1)


def _complex(x):
  return x.astype(jnp.complex64)


_matmul = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
