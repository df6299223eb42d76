"""Which keys a query sees.

A pattern is frozen and hashable, holds only Python numbers, and answers three questions about a tile of
queries at positions q0 <= q < q1. For all patterns of the paper the keys seen by a tile form one contiguous
interval, so implementations walk over intervals and never over a mask of L x M entries.
"""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

# An interval of keys [first, end): Python ints where the pattern knows them without the tile, else int32
# scalars. An `end` beyond the last key, or a `first` below 0, means no bound on that side.
Interval = tuple[int | jax.Array, int | jax.Array]

UNBOUNDED = int(np.iinfo(np.int32).max)


class Pattern(Protocol):
  """What an implementation may ask. Positions count from the first key; queries may lie outside."""

  def seen_by_any(self, q0, q1) -> Interval:
    """The smallest interval that holds every key seen by at least one query of the tile."""

  def seen_by_all(self, q0, q1) -> Interval:
    """An interval of keys that every query of the tile sees: no elementwise mask is needed inside it."""

  def visible(self, q: jax.Array, k: jax.Array) -> jax.Array:
    """Elementwise mask for int32 positions, both of the mask's shape: True where query q sees key k."""


@dataclasses.dataclass(frozen=True)
class Full:
  """Every query sees every key."""

  def seen_by_any(self, q0, q1) -> Interval:
    return 0, UNBOUNDED

  def seen_by_all(self, q0, q1) -> Interval:
    return 0, UNBOUNDED

  def visible(self, q, k):
    return jnp.ones(q.shape, bool)


@dataclasses.dataclass(frozen=True)
class Causal:
  """A query sees the keys at its own position and before."""

  def seen_by_any(self, q0, q1) -> Interval:
    return 0, q1

  def seen_by_all(self, q0, q1) -> Interval:
    return 0, q0 + 1

  def visible(self, q, k):
    return k <= q
