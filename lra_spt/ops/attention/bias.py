"""A bias of scores by the distance from query to key, for computations in tiles.

Within a tile, entries on the same diagonal are equal. They are a slice of one vector per head, [X], with an
entry for every distance between a query and a key of the (padded) arrays. Doubling builds the rows of a tile
from the slice, and halving sums their gradient; each writes about twice as many numbers as the tile has.
Gathering and scattering pairs would take longer, and would add them in an order that may change. Letters are
those of blockwise.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_spt.ops.attention.tiles import Grid


def by_distance(bias_HR: jax.Array, distance: jax.Array) -> jax.Array:
  """The bias [H, ...] of int32 distances [...]. Distances beyond the ends get the values at the ends."""
  farthest = bias_HR.shape[1] // 2
  return bias_HR[:, jnp.clip(distance, -farthest, farthest) + farthest]


def bias_by_place(grid: Grid, bias_HR: jax.Array, q_offset: int | jax.Array) -> jax.Array:
  """The bias [H, X] of every distance between padded arrays, from that of the last query and first key on."""
  distance_X = np.arange(grid.tiles_q * grid.tile_q + grid.tiles_k * grid.tile_k - 1, dtype=np.int32)
  distance_X = jnp.asarray(distance_X - (grid.tiles_q * grid.tile_q - 1)) - jnp.asarray(q_offset, jnp.int32)
  return by_distance(bias_HR, distance_X)


def _start(grid, index, place):
  """The index in X of the distance from a tile's last query to its first key."""
  return place * grid.tile_k + (grid.tiles_q - 1 - index) * grid.tile_q


def bias_of_tile(grid: Grid, bias_X: jax.Array, index, place) -> jax.Array:
  """The bias [S, T] of one tile: bias_X at start + T - 1 + s - t."""
  S, T = grid.tile_k, grid.tile_q
  bias_Y = lax.dynamic_slice_in_dim(bias_X, _start(grid, index, place), S + T - 1)
  levels = (S - 1).bit_length()
  tile = jnp.pad(bias_Y[::-1], (2**levels - S, 0))[None]
  for level in reversed(range(levels)):  # each row becomes two, of which the second starts 2^level earlier
    tile = jnp.stack([tile[:, 2**level :], tile[:, : -(2**level)]], axis=1).reshape(2 * len(tile), -1)
  return tile[:S]


def add_bias_gradient(grid: Grid, d_bias_X: jax.Array, d_scores_ST: jax.Array, index, place) -> jax.Array:
  """Adds the sums over the diagonals of one tile to d_bias_X."""
  S, T = d_scores_ST.shape
  levels = (S - 1).bit_length()
  sums = jnp.pad(d_scores_ST, ((0, 2**levels - S), (0, 0)))
  for level in range(levels):  # the reverse of `bias_of_tile`
    later, earlier = sums[::2], sums[1::2]
    sums = jnp.pad(later, ((0, 0), (2**level, 0))) + jnp.pad(earlier, ((0, 0), (0, 2**level)))
  sums_Y = sums[0, ::-1][: S + T - 1].astype(d_bias_X.dtype)
  start = _start(grid, index, place)
  before_Y = lax.dynamic_slice_in_dim(d_bias_X, start, S + T - 1)
  return lax.dynamic_update_slice_in_dim(d_bias_X, before_Y + sums_Y, start, 0)
