"""The selective scan of Mamba: diagonal systems whose step sizes, inputs and outputs depend on the input."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from lra_spt.distributed.sharding import platform
from lra_spt.ops import selection
from lra_spt.ops.scan import linear_scan


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
  B, L, E = x_BLE.shape
  arrays = (x_BLE, dt_BLE, b_BLN, c_BLN)
  if reverse:
    arrays = [jnp.flip(v, 1) for v in arrays]
  size = min(chunk, L)
  chunks = -(-L // size)

  def split(v):  # pads the end, where dt = 0 leaves the state unchanged
    v = jnp.pad(v, ((0, 0), (0, chunks * size - L), (0, 0)))
    return jnp.moveaxis(v.reshape(B, chunks, size, -1), 1, 0)

  a_NE = a_EN.T  # channels come last, the axis along which processors compute
  if implementation is not None:
    selection.named('linear scan', implementation)
  if implementation == 'sequential' or (implementation is None and platform() == 'cpu'):
    scan = functools.partial(_scan_positions, a_NE)
  else:
    scan = functools.partial(_scan_at_once, implementation, a_NE)

  def scan_chunk(h_BNE, arrays):
    return jax.checkpoint(scan, prevent_cse=False)(checkpoint_name(h_BNE, 'mixer'), arrays)

  first_BNE = lax.full_like(x_BLE, 0, shape=(B, *a_NE.shape))  # in shard_map, varies over devices as x does
  _, y_CBTE = lax.scan(scan_chunk, first_BNE, tuple(map(split, arrays)))
  y_BLE = jnp.moveaxis(checkpoint_name(y_CBTE, 'mixer'), 0, 1).reshape(B, -1, E)[:, :L]
  return jnp.flip(y_BLE, 1) if reverse else y_BLE


def _scan_positions(a_NE, h_BNE, arrays):
  """(state after the chunk, y [B, T, E]), computed one position after the other."""
  scan = functools.partial(_scan_row, a_NE)
  if len(h_BNE) > 1:
    return jax.vmap(scan)(h_BNE, arrays)
  # XLA does not vectorise CPU loops over an axis of length 1: a gradient took 5 times as long.
  return jax.tree.map(lambda v: v[None], scan(*jax.tree.map(lambda v: v[0], (h_BNE, arrays))))


def _scan_row(a_NE, h_NE, arrays):
  @functools.partial(jax.checkpoint, prevent_cse=False)  # only states are saved for the gradient
  def step(h_NE, arrays):
    x_E, dt_E, b_N, c_N = arrays
    h_NE = jnp.exp(dt_E[None] * a_NE) * h_NE + (dt_E * x_E)[None] * b_N[:, None]
    return h_NE, c_N @ h_NE

  return lax.scan(step, h_NE, arrays)


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
