"""Sums of exponentials K_l = Re sum_n c_n exp(lambda_n l): kernels of diagonal state-space models.

With lags split as l = M k + m, exp(lambda l) = exp(lambda M k) exp(lambda m): scaling c by the first factor
leaves one real matrix product with the second, [rows x K, 2 N] x [2 N, M]. Memory grows with N (K + M), not
with N L; flops are those of the sum itself, 4 per row, state and lag.

A float32 product omega l is wrong by half a unit of its last digit, 4e-3 at omega = 2 pi and l = 16,384. Here
frequencies are fixed-point numbers, multiples of 2^-32 of a turn and a remainder: an int32 product that wraps
around is the exact phase modulo one turn.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_spt.distributed.sharding import platform
from lra_spt.ops.components import polar

# float32 values of the scaled c that are in memory at a time: 16 MB on CPUs, 128 MB on accelerators.
_BLOCK = {'cpu': 2**22}
_ACCELERATOR_BLOCK = 2**25

_einsum = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def vandermonde(c_SDN: jax.Array, exponent: jax.Array, *, length: int) -> jax.Array:
  """K_l = Re sum_n c_n exp(exponent_n l) for l = 0 .. length - 1.

  The kernel of DLR (Gupta, Mehta and Berant 2022, arXiv 2212.00768). Twice this sum over one of each
  conjugate pair is the kernel of S4D (Gu et al. 2022, arXiv 2206.11893, section 3). Differentiable once, in
  reverse mode; the backward pass keeps only the arguments and takes twice the flops of the forward pass.

  Args:
    c_SDN: complex64 [S, D, N].
    exponent: complex64, per step: [N], shared by all channels, or [D, N]; imaginary parts in radians, below
      2^20. Positive real parts are allowed as long as exp(real * length) is finite.
    length: L.

  Returns:
    float32 [S, D, L].

  Raises:
    ValueError: shapes or dtypes do not fit, or L < 1.
  """
  if c_SDN.ndim != 3 or exponent.shape not in (c_SDN.shape[1:], c_SDN.shape[2:]):
    raise ValueError(
      f'vandermonde got c of shape {c_SDN.shape} and an exponent of shape {exponent.shape}; pass [S, D, N] '
      'and [N] or [D, N]'
    )
  if c_SDN.dtype != jnp.complex64 or exponent.dtype != jnp.complex64:
    raise ValueError(
      f'vandermonde got c of {c_SDN.dtype} and an exponent of {exponent.dtype}; cast both to complex64'
    )
  if length < 1:
    raise ValueError(f'vandermonde got length {length}; a kernel has at least one value')
  return _vandermonde(length, c_SDN, exponent)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _vandermonde(length, c_SDN, exponent):
  S, D, N = c_SDN.shape
  if exponent.ndim == 1:
    K, M = _split(length, N)
    powers = _powers(exponent, K, M)
    k_RL = _in_blocks(lambda c_RN: _sums(c_RN, powers), _rows(K, N), c_SDN.reshape(S * D, N))
    return k_RL[:, :length].reshape(S, D, length)
  K, M = _split(length, S)

  def channel(c_SN, exponent_N):
    return _sums(c_SN, _powers(exponent_N, K, M))

  k_DSL = _in_blocks(jax.vmap(channel), _rows(S * K + M, N), jnp.swapaxes(c_SDN, 0, 1), exponent)
  return jnp.swapaxes(k_DSL[..., :length], 0, 1)


def _forward(length, c_SDN, exponent):
  return _vandermonde(length, c_SDN, exponent), (c_SDN, exponent)


def _backward(length, arguments, g_SDL):
  c_SDN, exponent = arguments
  S, D, N = c_SDN.shape
  K, M = _split(length, N if exponent.ndim == 1 else S)
  g_SDL = jnp.pad(g_SDL, ((0, 0), (0, 0), (0, K * M - length)))
  if exponent.ndim == 1:
    powers = _powers(exponent, K, M)

    def rows(c_RN, g_RL):
      dc_RN, dexponent_N = _gradients(c_RN, g_RL, powers)
      return dc_RN, dexponent_N[None]

    c_RN, g_RL = c_SDN.reshape(S * D, N), g_SDL.reshape(S * D, K * M)
    dc_RN, dexponent_BN = _in_blocks(rows, _rows(K, N), c_RN, g_RL)
    return dc_RN.reshape(S, D, N), jnp.sum(dexponent_BN, 0)

  def channel(c_SN, g_SL, exponent_N):
    return _gradients(c_SN, g_SL, _powers(exponent_N, K, M))

  c_DSN, g_DSL = jnp.swapaxes(c_SDN, 0, 1), jnp.swapaxes(g_SDL, 0, 1)
  dc_DSN, dexponent_DN = _in_blocks(jax.vmap(channel), _rows(S * K + M, N), c_DSN, g_DSL, exponent)
  return jnp.swapaxes(dc_DSN, 0, 1), dexponent_DN


_vandermonde.defvjp(_forward, _backward)


def _split(length, rows):
  """K, M: l = M k + m. M is a power of two near sqrt(rows L), because scaling costs `rows` numbers per k, and
  the table of exp(lambda m) one per m."""
  M = min(1 << round(math.log2(length * min(rows, 64)) / 2), 1 << (length - 1).bit_length())
  return -(-length // M), M


def _rows(factors, N):
  """The number of rows (or channels) of `factors` x 2 N numbers that are computed at a time."""
  return max(1, _BLOCK.get(platform(), _ACCELERATOR_BLOCK) // (factors * 2 * N))


def _in_blocks(function, most, *arrays):
  """Applies function(*arrays), which treats rows along axis 0 independently, to at most `most` rows at a
  time."""
  rows = arrays[0].shape[0]
  blocks = -(-rows // most)
  size = -(-rows // blocks)

  def split(x):
    x = jnp.pad(x, ((0, blocks * size - rows), *((0, 0),) * (x.ndim - 1)))
    return x.reshape(blocks, size, *x.shape[1:])

  results = lax.map(lambda block: function(*block), tuple(map(split, arrays)))
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:rows], results)


def _powers(exponent_N, K, M):
  """exp(lambda M k), complex64 [K, N], and real and imaginary parts of exp(lambda m), float32 [M, 2, N]."""
  far_KN, near_MN = (
    _exponentials(exponent_N[None], step * jnp.arange(count, dtype=jnp.int32)[:, None])
    for step, count in ((M, K), (1, M))
  )
  return lax.complex(*far_KN), jnp.stack(near_MN, axis=1)


def _exponentials(exponent, lags):
  """Real and imaginary part of exp(exponent lags), for arrays whose shapes broadcast."""
  whole, rest = _turns(exponent.imag)
  phase = whole * lags
  quarters = (phase + 2**29) >> 30  # the nearest quarter turns; at most an eighth of a turn is left
  lags = lags.astype(jnp.float32)
  left = (phase - (quarters << 30)).astype(jnp.float32) * np.float32(2.0**-32) + rest * lags
  return polar(jnp.exp(exponent.real * lags), quarters, left)


def _turns(omega):
  """omega / (2 pi) modulo 1: int32 in units of 2^-32, and a float32 remainder in turns.

  Both factors are cut into pieces of 12 bits, whose products float32 holds exactly.
  """
  bits = lax.bitcast_convert_type(omega, jnp.uint32) & jnp.uint32(0xFFFFF000)
  high = lax.bitcast_convert_type(bits, jnp.float32)

  def add(turns, piece):
    whole, rest = turns
    for half in (high, omega - high):
      product = half * piece
      units = (product - jnp.round(product)) * np.float32(2.0**31)
      floor = jnp.trunc(units)
      whole += 2 * floor.astype(jnp.int32)
      rest += (units - floor) * np.float32(2.0**-31)
    return (whole, rest), None

  # XLA fuses no body of a loop into the loops over lags, where it would repeat this for every lag.
  return lax.scan(add, (jnp.zeros(omega.shape, jnp.int32), jnp.zeros_like(omega)), _INVERSE_TURN)[0]


# 1 / (2 pi) = 0x0.28BE60DB9391054A... in digits to the base 2^12.
_INVERSE_TURN = np.float32([0x28B, 0xE60, 0xDB9, 0x391, 0x054]) * 4096.0 ** -np.arange(1, 6, dtype=np.float32)


def _sums(c_RN, powers):
  """Re sum_n c_n exp(lambda_n l), float32 [R, K M]."""
  far_KN, near_MCN = powers
  return _einsum('rkcn,mcn->rkm', _scaled(c_RN, far_KN), near_MCN).reshape(c_RN.shape[0], -1)


def _scaled(c_RN, far_KN):
  """c exp(lambda M k) as (real, -imaginary) parts: float32 [R, K, 2, N]."""
  scaled_RKN = c_RN[:, None] * far_KN[None]
  return jnp.stack([scaled_RKN.real, -scaled_RKN.imag], axis=2)


def _gradients(c_RN, g_RL, powers):
  """sum_l g_l exp(lambda_n l), complex64 [R, N], and sum_rl l g_l c_n exp(lambda_n l), complex64 [N].

  The weight l is M k + m. The part with k weights sums over m, which the first result needs too. The part
  with m first sums over rows and k, then weights the sums.
  """
  far_KN, near_MCN = powers
  K, M = far_KN.shape[0], near_MCN.shape[0]
  g_RKM = g_RL.reshape(-1, K, M)
  sums_RKCN = _einsum('rkm,mcn->rkcn', g_RKM, near_MCN)
  sums_RKN = lax.complex(sums_RKCN[:, :, 0], sums_RKCN[:, :, 1]) * far_KN[None]
  moment_N = jnp.sum(_weighted(jnp.sum(c_RN[:, None] * sums_RKN, 0), M), 0)
  near_MN = lax.complex(near_MCN[:, 0], near_MCN[:, 1])
  inner_MCN = _einsum('rkcn,rkm->mcn', _scaled(c_RN, far_KN), g_RKM)
  inner_MN = lax.complex(inner_MCN[:, 0], -inner_MCN[:, 1])
  return jnp.sum(sums_RKN, 1), moment_N + jnp.sum(_weighted(inner_MN * near_MN, 1), 0)


def _weighted(x_TN, step):
  """step * t * x_t."""
  t_T1 = step * jnp.arange(x_TN.shape[0], dtype=jnp.float32)[:, None]
  return lax.complex(t_T1 * x_TN.real, t_T1 * x_TN.imag)
