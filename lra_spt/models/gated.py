"""What gated linear recurrences share: the scan, whose decay depends on the input, and the short convolution
before it."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from lra_spt.ops.scan import linear_scan
from lra_spt.parallel import rows_island, sequence_shards


def gated_scan(a_BLE: jax.Array, u_BLE: jax.Array, *, reverse: bool = False) -> jax.Array:
  """float32 [B, L, E]: all h_t = a_t h_{t-1} + u_t with h = 0 before the first position; from the end, if
  `reverse`.

  Where the mesh splits positions, they are exchanged for channels if there are enough, and else gathered.
  """
  scan = functools.partial(linear_scan, reverse=reverse)
  shards = sequence_shards(a_BLE.shape[1])
  if shards == 1 or a_BLE.shape[2] % shards:
    return rows_island(scan)(a_BLE, u_BLE)

  def scan_channels(a_BLE, u_BLE):
    exchange = functools.partial(lax.all_to_all, axis_name='seq', tiled=True)
    a_BLE, u_BLE = (exchange(v, split_axis=2, concat_axis=1) for v in (a_BLE, u_BLE))
    return exchange(scan(a_BLE, u_BLE), split_axis=1, concat_axis=2)

  return rows_island(scan_channels, split=(0, 1))(a_BLE, u_BLE)


def short_convolution(
  x_BLE: jax.Array, kernel_JE: jax.Array, bias_E: jax.Array, *, reverse: bool = False
) -> jax.Array:
  """[B, L, E]: bias + sum_j kernel_{J-1-j} x_{t-j}, channel by channel, over lags j = 0 .. J-1 into the past;
  into the future, if `reverse`. x counts as 0 beyond its ends; dtype of x, which all share."""
  taps, length = len(kernel_JE), x_BLE.shape[1]
  before = 0 if reverse else taps - 1
  padded = jnp.pad(x_BLE, ((0, 0), (before, taps - 1 - before), (0, 0)))
  kernel_JE = kernel_JE[::-1] if reverse else kernel_JE
  lags = (kernel_JE[i][None, None] * padded[:, i : i + length] for i in range(taps))
  return sum(lags, start=bias_E[None, None])
