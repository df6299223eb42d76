"""Controls: they show the score of a model without the order of its input, or with neighbours far apart.

`model.mixer.name='none'` (`mixers.none`) mixes no positions: with position 'none' and mean pooling the model
is a bag of tokens, which knows which elements occur and how often. `model.shuffle` lets any mixer read the
positions in one scrambled order, the same for every example (as in permuted sequential MNIST, Le, Jaitly and
Hinton 2015, arXiv 1504.00941): all information is present, but neighbours are not adjacent. A score that does
not drop does not rely on neighbours.
"""

import jax
import jax.numpy as jnp
import numpy as np

from lra_spt.models.layers import valid_positions

SHUFFLE_SEED = 0  # not the seed of the run: all seeds must read the same inputs


def shuffle_ranks(length: int) -> np.ndarray:
  """The rank of every position in the scrambled order, int32 [L]. It depends on SHUFFLE_SEED alone."""
  # RandomState draws the same numbers in every version of NumPy; default_rng does not promise this.
  return np.random.RandomState(SHUFFLE_SEED).permutation(length).astype(np.int32)


def reading_order(rank_L: np.ndarray, shape: tuple[int, int], lengths_B=None) -> tuple[jax.Array, jax.Array]:
  """The order in which each row is read, and its inverse.

  Args:
    rank_L: from `shuffle_ranks`, of at least L positions.
    shape: (B, L).
    lengths_B: int32 [B], or None when all L positions of every row are valid.

  Returns:
    order_BL, place_BL: int32, inverse to each other. order_BL[b] lists the valid positions by rank, then
    padding in its old order, so an example is read in the same order whatever its padding.
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
