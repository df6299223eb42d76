"""Selective scans, of Mamba and of B2S6: diagonal systems whose step sizes, inputs and outputs depend on the
input.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from lra_spt.distributed.sharding import platform
from lra_spt.ops import selection
from lra_spt.ops.components import adjoint, polar, times
from lra_spt.ops.scan import linear_scan, scan_components


def selective_scan(
  x_BLE: jax.Array,
  dt_BLE: jax.Array,
  a_EN: jax.Array,
  b_BLN: jax.Array,
  c_BLN: jax.Array,
  *,
  reverse: bool = False,
  chunk: int = 64,
  implementation: str | None = None,
) -> jax.Array:
  """y_te = sum over n of c_tn h_t[e, n], where h_t[e, n] = exp(dt_te a_en) h_{t-1}[e, n] + dt_te b_tn x_te
  and h = 0 before the first position (Gu and Dao 2023, arXiv 2312.00752; discretised as in their code).

  Only the states of one chunk, and those at the beginnings of chunks, are in memory at a time:
  chunk x E x N and L / chunk x E x N numbers per row. This holds in the backward pass too, which repeats the
  forward pass chunk by chunk. Differentiable in reverse mode; works under jit, vmap, scan, checkpoint and
  shard_map.

  Args:
    x_BLE, dt_BLE: inputs and positive step sizes of E channels; like all arrays here, float32.
    a_EN: negative; N states per channel.
    b_BLN, c_BLN: shared by all channels.
    reverse: h_t follows from h_{t+1}, from the end.
    chunk: positions per chunk; it need not divide the length.
    implementation: implementation of the scan within a chunk, see `linear_scan`. 'sequential', the default on
      CPUs, computes the decays and inputs of a position when it reaches it.

  Returns:
    y float32 [B, L, E].
  """
  a_NE = a_EN.T  # channels come last, the axis along which processors compute
  sequential, at_once = functools.partial(_step, a_NE), functools.partial(_scan_at_once, implementation, a_NE)
  scan = _of_chunk(sequential, at_once, implementation)
  first_BNE = _zeros(x_BLE, a_NE.shape)
  return _by_chunks(scan, first_BNE, (x_BLE, dt_BLE, b_BLN, c_BLN), reverse, chunk)


def biased_scan(
  x_BLE: jax.Array,
  dt_BLE: jax.Array,
  a_2N: jax.Array,
  b_BL2N: jax.Array,
  bias_E2N: jax.Array,
  c_BLN: jax.Array,
  *,
  reverse: bool = False,
  chunk: int = 64,
  implementation: str | None = None,
) -> jax.Array:
  """y_te = 2 Re sum over n of c_tn h_t[e, n] of complex states, h_t[e, n] = exp(dt_te a_n) h_{t-1}[e, n]
  + (exp(dt_te a_n) - 1) / a_n (b_tn + bias_en) x_te, a zero-order hold, and h = 0 before the first position
  (Yu and Erichson 2025, arXiv 2505.09022, section 6, of one block; the factor 2 counts conjugate states).

  It runs in chunks, as `selective_scan` does, whose other arguments it shares.

  Args:
    x_BLE, dt_BLE: inputs and positive step sizes of E channels; like all arrays here, float32.
    a_2N: real and imaginary parts; the former are negative. N states per channel.
    b_BL2N, c_BLN: shared by all channels.
    bias_E2N: of each channel.

  Returns:
    y float32 [B, L, E].
  """
  b_BLM, bias_2NE = _divided(a_2N, b_BL2N, bias_E2N)
  first = (_zeros(x_BLE, bias_2NE.shape[1:]),) * 2
  sequential = functools.partial(_biased_step, a_2N, bias_2NE)
  at_once = functools.partial(_biased_at_once, implementation, a_2N, bias_2NE)
  scan = _of_chunk(sequential, at_once, implementation)
  return _by_chunks(scan, first, (x_BLE, dt_BLE, b_BLM, c_BLN), reverse, chunk)


def biased_step(h_B2NE, x_BE, dt_BE, a_2N, b_B2N, bias_E2N, c_BN) -> tuple[jax.Array, jax.Array]:
  """One position of `biased_scan`: (state [B, 2, N, E] after it, y [B, E])."""
  b_BM, bias_2NE = _divided(a_2N, b_B2N, bias_E2N)
  step = jax.vmap(functools.partial(_biased_step, a_2N, bias_2NE))
  h, y_BE = step((h_B2NE[:, 0], h_B2NE[:, 1]), (x_BE, dt_BE, b_BM, c_BN))
  return jnp.stack(h, axis=1), y_BE


def _divided(a_2N, b, bias_E2N):
  """b / a, [..., 2 N], and bias / a, [2, N, E]."""
  inverse_2N = adjoint(a_2N) / jnp.sum(a_2N**2, axis=0, keepdims=True)
  return times(inverse_2N, b).reshape(*b.shape[:-2], -1), jnp.moveaxis(times(inverse_2N, bias_E2N), 0, -1)


def _of_chunk(step, at_once, implementation):
  """The scan of a chunk: `step` of one position after the other on CPUs, `at_once` elsewhere."""
  if implementation is not None:
    selection.named('linear scan', implementation)
  if implementation == 'sequential' or (implementation is None and platform() == 'cpu'):
    return functools.partial(_scan_positions, step)
  return at_once


def _zeros(x_BLE, shape):
  """Zeros [B, *shape] that, in shard_map, vary over devices as x does."""
  return lax.full_like(x_BLE, 0, shape=(len(x_BLE), *shape))


def _by_chunks(scan, first, arrays, reverse, chunk):
  """y [B, L, E] of `scan(h, arrays of a chunk) -> (h, y)`, where h, at first `first`, begins with B."""
  x_BLE = arrays[0]
  B, L, _ = x_BLE.shape
  if reverse:
    arrays = [jnp.flip(v, 1) for v in arrays]
  size = min(chunk, L)
  chunks = -(-L // size)

  def split(v):  # pads the end, where dt = 0 leaves the state unchanged
    v = jnp.pad(v, ((0, 0), (0, chunks * size - L), (0, 0)))
    return jnp.moveaxis(v.reshape(B, chunks, size, -1), 1, 0)

  def scan_chunk(h, arrays):
    return jax.checkpoint(scan, prevent_cse=False)(checkpoint_name(h, 'mixer'), arrays)

  _, y_CBTE = lax.scan(scan_chunk, first, tuple(map(split, arrays)))
  y_BLE = jnp.moveaxis(checkpoint_name(y_CBTE, 'mixer'), 0, 1).reshape(B, -1, x_BLE.shape[2])[:, :L]
  return jnp.flip(y_BLE, 1) if reverse else y_BLE


def _scan_positions(step, h, arrays):
  """(state after the chunk, y [B, T, E]), computed one position after the other."""
  scan = functools.partial(_scan_row, step)
  if len(arrays[0]) > 1:
    return jax.vmap(scan)(h, arrays)
  # XLA does not vectorise CPU loops over an axis of length 1: a gradient took 5 times as long.
  return jax.tree.map(lambda v: v[None], scan(*jax.tree.map(lambda v: v[0], (h, arrays))))


def _scan_row(step, h, arrays):
  # Only states are saved for the gradient.
  return lax.scan(jax.checkpoint(step, prevent_cse=False), h, arrays)


def _step(a_NE, h_NE, arrays):
  x_E, dt_E, b_N, c_N = arrays
  h_NE = jnp.exp(dt_E[None] * a_NE) * h_NE + (dt_E * x_E)[None] * b_N[:, None]
  return h_NE, c_N @ h_NE


def _biased_step(a_2N, bias_2NE, h, arrays):
  """`_step` of `biased_scan`, with b and bias divided by a. Real and imaginary parts are arrays of their own:
  joined, they kept XLA from vectorising loops on CPUs, and a gradient took 1.7 times as long."""
  x_E, dt_E, b_M, c_N = arrays
  b_2N1 = b_M.reshape(a_2N.shape)[..., None]
  driven = [
    part_NE + (b_N1 + bias_NE) * x_E[None] for part_NE, b_N1, bias_NE in zip(h, b_2N1, bias_2NE, strict=True)
  ]
  grown = _times(_less_one(a_2N, dt_E), driven)
  h = h[0] + grown[0], h[1] + grown[1]
  return h, 2 * (c_N @ h[0])


def _less_one(a_2N, dt_E):
  """exp(dt a) - 1 without cancellation, real and imaginary part float32 [..., N, E] for dt [..., E]."""
  dt_1E = dt_E[..., None, :]
  real_N1, imag_N1 = (lax.expand_dims(v[:, None], range(dt_E.ndim - 1)) for v in a_2N)
  growth = jnp.expm1(dt_1E * real_N1)
  half = dt_1E * (imag_N1 * np.float32(0.25 / np.pi))  # half of the phase, in turns
  quarters = jnp.round(4 * half)
  cosine, sine = polar(jnp.ones_like(half), quarters.astype(jnp.int32), half - quarters / 4)
  return growth - 2 * (growth + 1) * sine**2, 2 * (growth + 1) * sine * cosine


def _times(x, y):
  """The product of complex numbers (real, imaginary)."""
  (a, b), (c, d) = x, y
  return a * c - b * d, a * d + b * c


def _scan_at_once(implementation, a_NE, h_BNE, arrays):
  """`_scan_positions` by a `linear_scan` of all states of the chunk."""
  x_BTE, dt_BTE, b_BTN, c_BTN = arrays
  decay_BTNE = jnp.exp(dt_BTE[:, :, None] * a_NE[None, None])
  input_BTNE = (dt_BTE * x_BTE)[:, :, None] * b_BTN[..., None]
  flat = (*x_BTE.shape[:2], -1)
  scan = functools.partial(
    linear_scan, initial_BN=h_BNE.reshape(len(h_BNE), -1), implementation=implementation
  )
  h_BTNE = scan(decay_BTNE.reshape(flat), input_BTNE.reshape(flat)).reshape(decay_BTNE.shape)
  return h_BTNE[:, -1], jnp.einsum('btne,btn->bte', h_BTNE, c_BTN)


def _biased_at_once(implementation, a_2N, bias_2NE, h, arrays):
  """`_scan_positions` of `_biased_step` by a scan of all states of the chunk."""
  x_BTE, dt_BTE, b_BTM, c_BTN = arrays
  less = _less_one(a_2N, dt_BTE)
  b_BTN1 = jnp.split(b_BTM[..., None], 2, axis=2)
  driven = [
    (b + bias_NE[None, None]) * x_BTE[:, :, None] for b, bias_NE in zip(b_BTN1, bias_2NE, strict=True)
  ]
  pairs = lambda parts: jnp.stack([v.reshape(*v.shape[:-2], -1) for v in parts], axis=-2)  # noqa: E731
  h_BT2M = scan_components(
    pairs((less[0] + 1, less[1])),
    pairs(_times(less, driven)),
    initial=pairs(h),
    implementation=implementation,
  )
  real_BTNE, imag_BTNE = (h_BT2M[:, :, part].reshape(less[0].shape) for part in (0, 1))
  return (real_BTNE[:, -1], imag_BTNE[:, -1]), 2 * jnp.einsum('btne,btn->bte', real_BTNE, c_BTN)
