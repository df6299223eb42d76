"""The selective scan of Mamba: diagonal systems whose step sizes, inputs and outputs depend on the input."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

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
  and h = 0 before the first position (Gu and Dao 2023, arXiv 2312.00752, as their code discretises it).

  States of one chunk are there at a time, and those at the beginnings of chunks: memory is for chunk x E x N
  and L / chunk x E x N numbers per row, in the backward pass too, which does the forward pass again chunk by
  chunk. Differentiable in reverse mode; works under jit, vmap, scan, checkpoint and shard_map.

  Args:
    x_BLE, dt_BLE: inputs and positive step sizes of E channels, float32 as everything here.
    a_EN: negative; N states per channel.
    b_BLN, c_BLN: what all channels share.
    reverse: h_t follows from h_{t+1}, from the end.
    chunk: positions per chunk; lengths need be no multiple.
    implementation: of the scan within a chunk, see `linear_scan`.

  Returns:
    y float32 [B, L, E].
  """
  B, L, E = x_BLE.shape
  arrays = (x_BLE, dt_BLE, b_BLN, c_BLN)
  if reverse:
    arrays = [jnp.flip(v, 1) for v in arrays]
  size = min(chunk, L)
  chunks = -(-L // size)

  def split(v):  # with filling at the end, where dt = 0 keeps the state
    v = jnp.pad(v, ((0, 0), (0, chunks * size - L), (0, 0)))
    return jnp.moveaxis(v.reshape(B, chunks, size, -1), 1, 0)

  @functools.partial(jax.checkpoint, prevent_cse=False)
  def scan_chunk(h_BM, arrays):
    x_BTE, dt_BTE, b_BTN, c_BTN = arrays
    decay_BTEN = jnp.exp(dt_BTE[..., None] * a_EN[None, None])
    input_BTEN = (dt_BTE * x_BTE)[..., None] * b_BTN[:, :, None]
    flat = (B, size, -1)
    scan = functools.partial(linear_scan, initial_BN=h_BM, implementation=implementation)
    h_BTM = scan(decay_BTEN.reshape(flat), input_BTEN.reshape(flat))
    y_BTE = jnp.einsum('bten,btn->bte', h_BTM.reshape(decay_BTEN.shape), c_BTN)
    return h_BTM[:, -1], y_BTE

  first_BM = lax.full_like(x_BLE, 0, shape=(B, a_EN.size))  # in shard_map, it varies over devices as x does
  _, y_CBTE = lax.scan(scan_chunk, first_BM, tuple(map(split, arrays)))
  y_BLE = jnp.moveaxis(y_CBTE, 0, 1).reshape(B, -1, E)[:, :L]
  return jnp.flip(y_BLE, 1) if reverse else y_BLE
