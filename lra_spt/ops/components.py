"""Numbers as components: float32 arrays whose axis before the last, C, has length 1 (real numbers) or 2 (real
and imaginary parts). Matrix products of every platform read and write this layout directly.

A factor may also be a real 2 x 2 matrix, C = 4, by rows. It acts on vectors, whose C is 2.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def to_pairs(x: jax.Array) -> jax.Array:
  """complex64 [..., N] -> float32 [..., 2, N]: real parts, imaginary parts."""
  return jnp.stack([x.real, x.imag], axis=-2)


def from_pairs(x: jax.Array) -> jax.Array:
  """Inverse of `to_pairs`."""
  return lax.complex(x[..., 0, :], x[..., 1, :])


def times(a, h):
  """Product of numbers [..., C, N], or of matrices a with vectors or matrices h; a may lack leading axes."""
  a = lax.expand_dims(a, range(h.ndim - a.ndim))
  if a.shape[-2] == 1:
    return a * h
  if is_matrix(a):
    first, second = jnp.split(h, 2, axis=-2)  # rows
    rows = (a[..., i : i + 1, :] * first + a[..., i + 1 : i + 2, :] * second for i in (0, 2))
    return jnp.concatenate(list(rows), axis=-2)
  real, imag = a[..., :1, :], a[..., 1:, :]
  return real * h + jnp.concatenate([-imag, imag], axis=-2) * jnp.flip(h, -2)


def is_matrix(a) -> bool:
  """True for 2 x 2 matrices, False for numbers."""
  return a.shape[-2] == 4


def adjoint(a):
  """The conjugate of numbers [..., C, N], the transpose of matrices."""
  if is_matrix(a):
    return _entries(a, (0, 2, 1, 3))
  return a if a.shape[-2] == 1 else a * np.float32([[1], [-1]]).reshape((1,) * (a.ndim - 2) + (2, 1))


def polar(size, quarters, left):
  """Real and imaginary part of a number of this size, at int32 `quarters` of a turn and `left`, at most an
  eighth of a turn in size, beyond them."""
  cos, sin = _cos_and_sin(np.float32(2 * np.pi) * left)
  is_odd = quarters & 1 == 1
  real = jnp.where(is_odd, sin, cos) * jnp.where(quarters + 1 & 2 == 0, size, -size)
  return real, jnp.where(is_odd, cos, sin) * jnp.where(quarters & 2 == 0, size, -size)


def _cos_and_sin(x):
  """Taylor polynomials for |x| up to an eighth of a turn. XLA's functions, which accept any argument, are 25
  times slower on CPUs."""
  square = x * x
  cos, sin = (
    functools.reduce(lambda sum, k: 1 - sum * square * np.float32(1 / (k * (k + 1))), terms, jnp.ones_like(x))
    for terms in ((9, 7, 5, 3, 1), (8, 6, 4, 2))
  )
  return cos, x * sin


def powers(a_CN, count):
  """[a, a^2, a^4, ...]: `count` squares, each exact to rounding."""
  return [high for high, _ in powers_in_parts(a_CN, count)]


def powers_in_parts(a_CN, count):
  """The squares of `powers`, each with its rounding error.

  Squaring doubles a relative error, so plain float32 squares would be wrong by 2^-24 l at lag l. Each square
  is therefore a sum of two float32 numbers.
  """
  squares = [(a_CN, jnp.zeros_like(a_CN))]
  for _ in range(count - 1):
    squares.append(_square(*squares[-1]))
  return squares


def _square(high, low):
  """The square of high + low. All products of halves are exact, so contraction to fused multiply-add changes
  nothing."""
  if is_matrix(high):
    return _square_matrix(high, low)
  if high.shape[-2] == 1:
    return _two_sum(*_product(high, high), 2 * high * low)
  (real, imag), (real_low, imag_low) = high, low
  p, p_error = _product(real, real)
  q, q_error = _product(imag, imag)
  squared = _two_sum(p, -q, (p_error - q_error) + 2 * (real * real_low - imag * imag_low))
  p, p_error = _product(real, imag)
  crossed = _two_sum(2 * p, 2 * p_error, 2 * (real * imag_low + imag * real_low))
  return tuple(jnp.stack(parts) for parts in zip(squared, crossed, strict=True))


def _square_matrix(high, low):
  """`_square` of matrices: every entry is a sum of two products."""
  total, error, small = [], 0, 0
  for left, right in (((0, 0, 2, 2), (0, 1, 0, 1)), ((1, 1, 3, 3), (2, 3, 2, 3))):
    x, x_low, y, y_low = (_entries(v, at) for at in (left, right) for v in (high, low))
    product, lost = _product(x, y)
    total, error, small = [*total, product], error + lost, small + (x * y_low + x_low * y)
  return _two_sum(*total, error + small)


def _entries(a, at):
  """Entries of matrices, in this order. With a gather, XLA took exponential time to compile all squares."""
  return jnp.concatenate([a[..., i : i + 1, :] for i in at], axis=-2)


def _product(x, y):
  """x y as the exact product of the upper halves of their digits and the rest."""
  (x_high, x_low), (y_high, y_low) = _halves(x), _halves(y)
  return x_high * y_high, (x_high * y_low + x_low * y_high) + x_low * y_low


def _halves(x):
  """x as a sum of two numbers of 12 significant bits."""
  bits = lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0xFFFFF000)
  high = lax.bitcast_convert_type(bits, jnp.float32)
  return high, x - high


def _two_sum(x, y, small):
  """x + y + small as a rounded sum and its rounding error (Knuth's two-sum, twice)."""

  def exactly(x, y):
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)

  total, lost = exactly(x, y)
  return exactly(total, lost + small)
