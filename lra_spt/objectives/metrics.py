"""Metrics as clu collections: sums and counts until the end, so that merging is exact."""

import jax
import jax.numpy as jnp
from clu import metrics
from flax import struct


@struct.dataclass
class R2(metrics.Metric):
  """Coefficient of determination over everything merged: 1 - sum (y - p)^2 / sum (y - mean y)^2."""

  residual: jax.Array
  total: jax.Array
  squares: jax.Array
  count: jax.Array

  @classmethod
  def empty(cls):
    return cls(*(jnp.float32(0) for _ in range(4)))

  @classmethod
  def from_values(cls, predictions, targets, weights):
    """All float32 of one shape; weights 0 or 1."""
    return cls(
      jnp.sum(weights * (targets - predictions) ** 2),
      jnp.sum(weights * targets),
      jnp.sum(weights * targets**2),
      jnp.sum(weights),
    )

  def merge(self, other):
    return jax.tree.map(lambda a, b: a + b, self, other)

  def compute(self):
    variation = self.squares - self.total**2 / jnp.maximum(self.count, 1)
    return 1 - self.residual / jnp.maximum(variation, jnp.finfo(jnp.float32).tiny)


@struct.dataclass
class Mean(metrics.Average):
  """clu's Average with a float32 count, so that merging needs no type promotion."""

  @classmethod
  def empty(cls):
    return cls(total=jnp.float32(0), count=jnp.float32(0))

  @classmethod
  def weighted(cls, values, weights):
    """Of values and weights float32 of one shape."""
    return cls(total=jnp.sum(values * weights), count=jnp.sum(weights))


@struct.dataclass
class TokenDenoisingMetrics(metrics.Collection):
  loss: Mean
  accuracy: Mean


@struct.dataclass
class ValueDenoisingMetrics(metrics.Collection):
  loss: Mean
  mae: Mean
  r2: R2


@struct.dataclass
class ClassificationMetrics(metrics.Collection):
  loss: Mean
  accuracy: Mean


@struct.dataclass
class RegressionMetrics(metrics.Collection):
  """loss: mean squared error of scaled labels; mae: mean absolute error in units of the label."""

  loss: Mean
  mae: Mean
  r2: R2
