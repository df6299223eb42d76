"""Metrics as clu collections. They hold sums and counts until the end, so merging changes only rounding."""

import jax
import jax.numpy as jnp
from clu import metrics
from flax import struct


@struct.dataclass
class R2(metrics.Metric):
  """The coefficient of determination over all merged values: 1 - sum (y - p)^2 / sum (y - mean y)^2."""

  residual: jax.Array  # sum (y - p)^2
  variation: jax.Array  # sum (y - mean y)^2
  mean: jax.Array  # of y
  count: jax.Array

  @classmethod
  def empty(cls):
    return cls(*(jnp.float32(0) for _ in range(4)))

  @classmethod
  def from_values(cls, predictions, targets, weights):
    """Computes the sums of arrays of one shape, all float32; weights are 0 or 1."""
    count = jnp.sum(weights)
    mean = jnp.sum(weights * targets) / jnp.maximum(count, 1)
    residual, variation = (jnp.sum(weights * (targets - x) ** 2) for x in (predictions, mean))
    return cls(residual, variation, mean, count)

  def merge(self, other):
    # Chan, Golub & LeVeque 1979. The difference of sums of y^2 and y would lose the variation if y is far
    # from 0.
    count, apart = self.count + other.count, other.mean - self.mean
    share = other.count / jnp.maximum(count, 1)
    variation = self.variation + other.variation + apart**2 * self.count * share
    return R2(self.residual + other.residual, variation, self.mean + apart * share, count)

  def compute(self):
    return 1 - self.residual / jnp.maximum(self.variation, jnp.finfo(jnp.float32).tiny)


@struct.dataclass
class Mean(metrics.Average):
  """clu's Average with a float32 count, so that a merge needs no type promotion."""

  @classmethod
  def empty(cls):
    return cls(total=jnp.float32(0), count=jnp.float32(0))

  @classmethod
  def weighted(cls, values, weights):
    """Computes the sums of values and weights, float32 of one shape."""
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
