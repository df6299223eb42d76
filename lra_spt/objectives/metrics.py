"""Metrics as clu collections. They hold sums and counts until the end, so merging changes only rounding."""

import jax
import jax.numpy as jnp
from clu import metrics
from flax import struct

from lra_spt.data import scorable


@struct.dataclass
class R2(metrics.Metric):
  """The coefficient of determination over all merged values: 1 - sum (y - p)^2 / sum (y - mean y)^2.

  It is NaN where `scorable.why_no_r2` gives a reason.
  """

  residual: jax.Array  # sum (y - p)^2
  variation: jax.Array  # sum (y - mean y)^2
  mean: jax.Array  # of y
  count: jax.Array
  least: jax.Array  # label; sums of squares cannot tell equal labels from rounding
  largest: jax.Array

  @classmethod
  def empty(cls):
    return cls(*(jnp.float32(x) for x in (0, 0, 0, 0, jnp.inf, -jnp.inf)))

  @classmethod
  def from_values(cls, predictions, targets, weights, labels=None):
    """Computes the sums of arrays of one shape, all float32; weights are 0 or 1.

    labels: the targets before they were scaled, which decide whether they vary; None: the targets.
    """
    labels = targets if labels is None else labels
    counts = weights > 0
    least = jnp.min(labels, where=counts, initial=jnp.inf)
    largest = jnp.max(labels, where=counts, initial=-jnp.inf)
    count = jnp.sum(weights)
    mean = jnp.sum(weights * targets) / jnp.maximum(count, 1)
    residual, variation = (jnp.sum(weights * (targets - x) ** 2) for x in (predictions, mean))
    return cls(residual, variation, mean, count, least, largest)

  def merge(self, other):
    # Chan, Golub & LeVeque 1979. The difference of sums of y^2 and y would lose the variation if y is far
    # from 0.
    count, apart = self.count + other.count, other.mean - self.mean
    share = other.count / jnp.maximum(count, 1)
    variation = self.variation + other.variation + apart**2 * self.count * share
    least, largest = jnp.minimum(self.least, other.least), jnp.maximum(self.largest, other.largest)
    return R2(self.residual + other.residual, variation, self.mean + apart * share, count, least, largest)

  def compute(self):
    r2 = 1 - self.residual / jnp.maximum(self.variation, jnp.finfo(jnp.float32).tiny)
    return jnp.where((self.count > 1) & scorable.vary(self.least, self.largest), r2, jnp.nan)

  def why_undefined(self) -> str:
    """The reason why it is not defined, '' if it is. It reads the sums, so it cannot be traced."""
    return scorable.why_no_r2(float(self.count), float(self.least), float(self.largest))


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
class LossMetrics(metrics.Collection):
  loss: Mean


@struct.dataclass
class SeveralRegressionMetrics(metrics.Collection):
  """Loss and error of several dimensions, see `RegressionMetrics`; R2 is computed from all predictions."""

  loss: Mean
  mae: Mean


@struct.dataclass
class RegressionMetrics(metrics.Collection):
  """loss: mean squared error of scaled labels; mae: mean absolute error in units of the label."""

  loss: Mean
  mae: Mean
  r2: R2
