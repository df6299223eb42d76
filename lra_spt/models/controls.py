"""Controls: what a model reaches without the order of its input, or without nearness within it.

`model.mixer.name='none'` (`mixers.none`) mixes no positions: with position 'none' and mean pooling the model
is a bag of tokens, which knows which elements occur and how often. `model.shuffle` lets any mixer read the
positions in one scrambled order, the same for every example (as in permuted sequential MNIST, Le, Jaitly and
Hinton 2015, arXiv 1504.00941): all information is present, but neighbours are not adjacent. A score that
survives this does not rely on nearness.
"""

import jax
import jax.numpy as jnp
import numpy as np

from lra_spt.models.layers import valid_positions

SHUFFLE_SEED = 0  # never that of the run: seeds shall differ in training, not in what they read


def shuffle_ranks(length: int) -> np.ndarray:
  """int32 [L]: the rank of every position in the scrambled order; drawn from SHUFFLE_SEED alone."""
  # RandomState, unlike default_rng, promises the same numbers in every version of NumPy.
  return np.random.RandomState(SHUFFLE_SEED).permutation(length).astype(np.int32)


def reading_order(rank_L: np.ndarray, shape: tuple[int, int], lengths_B=None) -> tuple[jax.Array, jax.Array]:
  """Which position is read at which place, and the inverse.

  Args:
    rank_L: from `shuffle_ranks`, of at least L positions.
    shape: (B, L).
    lengths_B: int32 [B], or None when all L positions of every row are valid.

  Returns:
    order_BL, place_BL: int32, inverse to each other. order_BL[b] lists the valid positions by rank, then
    padding where it was, so an example is read in the same order however much it is padded.
  """
  B, L = shape
  if lengths_B is None:
    order_L = np.argsort(rank_L[:L])
    both = (jnp.asarray(index_L, jnp.int32)[None] for index_L in (order_L, np.argsort(order_L)))
    return tuple(jnp.broadcast_to(index_1L, (B, L)) for index_1L in both)
  last_1L = (len(rank_L) + jnp.arange(L, dtype=jnp.int32))[None]
  rank_BL = jnp.where(valid_positions(lengths_B, L), jnp.asarray(rank_L[:L])[None], last_1L)
  order_BL = jnp.argsort(rank_BL, axis=1)
  return order_BL, jnp.argsort(order_BL, axis=1)


def rearranged(x: jax.Array, order_BL: jax.Array) -> jax.Array:
  """x[b, order_BL[b, j]] at [b, j], for x [B, L] or [B, L, C]."""
  row = lambda x, order_L: x.at[order_L].get(unique_indices=True, mode='promise_in_bounds')  # noqa: E731
  return jax.vmap(row)(x, order_BL)
