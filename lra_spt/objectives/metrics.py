"""Metrics as clu collections: sums and counts until the end, so that merging affects rounding only."""

import jax
import jax.numpy as jnp
from clu import metrics
from flax import struct


@struct.dataclass
class R2(metrics.Metric):
  """Coefficient of determination over everything merged: 1 - sum (y - p)^2 / sum (y - mean y)^2.

  residual, variation: those sums; mean: of y; count: of everything.
  """

  residual: jax.Array
  variation: jax.Array
  mean: jax.Array
  count: jax.Array

  @classmethod
  def empty(cls):
    return cls(*(jnp.float32(0) for _ in range(4)))

  @classmethod
  def from_values(cls, predictions, targets, weights):
    """All arguments are float32 of one shape; weights are 0 or 1."""
    count = jnp.sum(weights)
    mean = jnp.sum(weights * targets) / jnp.maximum(count, 1)
    residual, variation = (jnp.sum(weights * (targets - x) ** 2) for x in (predictions, mean))
    return cls(residual, variation, mean, count)

  def merge(self, other):
    # Chan, Golub & LeVeque 1979: from sums of y and y^2, float32 cannot tell a variation far from 0.
    count, apart = self.count + other.count, other.mean - self.mean
    share = other.count / jnp.maximum(count, 1)
    variation = self.variation + other.variation + apart**2 * self.count * share
    return R2(self.residual + other.residual, variation, self.mean + apart * share, count)

  def compute(self):
    return 1 - self.residual / jnp.maximum(self.variation, jnp.finfo(jnp.float32).tiny)


@struct.dataclass
class Mean(metrics.Average):
  """clu's Average with a float32 count, so that merging needs no type promotion."""

  @classmethod
  def empty(cls):
    return cls(total=jnp.float32(0), count=jnp.float32(0))

  @classmethod
  def weighted(cls, values, weights):
    """From values and weights, float32 of one shape."""
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
