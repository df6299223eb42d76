"""Rotary position encoding (Su et al. 2021, "RoFormer", section 3.4), as in the paper's published code.

All K dimensions of a head, or the first of them (GPT-NeoX), are rotated in interleaved pairs (2m, 2m + 1) by
the angle position * theta_m with theta_m = 10000^(-2m/K), where K counts the rotated dimensions. A product
position * theta_m in float32 is off by up to 4e-3 radians at position 65,536. Angles are therefore computed
in float64 on the host; only their cosines and sines are float32.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

_BASE = 10000.0
# A traced offset is coarse * _STRIDE + fine; both are looked up in exact tables: positions below 2^22.
_STRIDE = 2**11


def rotary(x_BLHK: jax.Array, *, offset: int | jax.Array = 0, turned: int | None = None) -> jax.Array:
  """Rotates queries or keys by their positions, so that their products depend on distances alone.

  Args:
    x_BLHK: queries or keys, floating point, K even.
    offset: position of the first row: an int, or a traced int32 scalar from 0 to 2^22 - 1.
    turned: the number of dimensions that are rotated, the first ones; the others do not change. None: all K.

  Returns:
    Array of the same shape and dtype; the rotation is done in float32 (float64 for float64 input).

  Raises:
    ValueError: the number of rotated dimensions is odd or larger than K.
  """
  if turned is not None and turned != x_BLHK.shape[-1]:
    if turned > x_BLHK.shape[-1]:
      raise ValueError(f'rotary turns {turned} dimensions, but the head dimension is {x_BLHK.shape[-1]}')
    parts = rotary(x_BLHK[..., :turned], offset=offset), x_BLHK[..., turned:]
    return jnp.concatenate(parts, axis=-1)
  *_, length, _, width = x_BLHK.shape
  if width % 2:
    raise ValueError(f'rotary turns pairs of dimensions, but the head dimension is {width}; make it even')
  dtype = np.promote_types(x_BLHK.dtype, np.float32)
  if isinstance(offset, int | np.integer):
    cos_LM, sin_LM = _table(int(offset), length, 1, width, dtype)
  else:
    cos_LM, sin_LM = _shifted_table(offset, length, width, dtype)
  cos_L1M, sin_L1M = jnp.expand_dims(cos_LM, 1), jnp.expand_dims(sin_LM, 1)
  pairs = x_BLHK.astype(dtype).reshape(*x_BLHK.shape[:-1], width // 2, 2)
  turned = _turn(pairs[..., 0], pairs[..., 1], *jnp.broadcast_arrays(cos_L1M, sin_L1M, pairs[..., 0])[:2])
  return jnp.stack(turned, axis=-1).reshape(x_BLHK.shape).astype(x_BLHK.dtype)


def _turn(real, imaginary, cos, sin):
  """(real + i imaginary) * (cos + i sin)."""
  return real * cos - imaginary * sin, imaginary * cos + real * sin


@functools.lru_cache(maxsize=32)
def _host_table(start, count, stride, width, dtype):
  """cos and sin [count, K/2] of the angles at positions start, start + stride, ..., rounded once."""
  frequencies_M = _BASE ** (-np.arange(0, width, 2, dtype=np.float64) / width)
  positions_L = start + stride * np.arange(count, dtype=np.float64)
  angles_LM = positions_L[:, None] * frequencies_M[None, :]
  return np.cos(angles_LM).astype(dtype), np.sin(angles_LM).astype(dtype)


def _table(start, count, stride, width, dtype):
  return tuple(jnp.asarray(part) for part in _host_table(start, count, stride, width, np.dtype(dtype)))


def _shifted_table(offset, length, width, dtype):
  """The table from a traced offset: e^{i theta (offset + l)} as a product of three exact factors."""
  coarse = [part[offset // _STRIDE] for part in _table(0, _STRIDE, _STRIDE, width, dtype)]
  fine = [part[offset % _STRIDE] for part in _table(0, _STRIDE, 1, width, dtype)]
  shift = _turn(*coarse, *fine)
  table = _table(0, length, 1, width, dtype)
  return _turn(*table, *(jnp.broadcast_to(part[None, :], table[0].shape) for part in shift))
