"""Regression: one number per sequence."""

import dataclasses

import jax.numpy as jnp
from clu.metrics import Collection

from lra_spt.objectives.answers import OneAnswer
from lra_spt.objectives.contract import Prepared
from lra_spt.objectives.metrics import R2, Mean, RegressionMetrics


@dataclasses.dataclass(frozen=True)
class Regression(OneAnswer):
  """Mean squared error of scaled labels.

  Constants of the task scale labels to mean 0 and deviation 1 or, under `Protocol.label_range`, from
  [least, largest] to [-1, 1]. R2 is computed over all evaluated examples, not as a mean over batches.
  """

  @property
  def metrics(self) -> type[Collection]:
    return RegressionMetrics

  @property
  def selection(self) -> tuple[str, str]:
    """The validation metric that chooses the checkpoint, and its mode."""
    return 'r2', 'max'

  @property
  def _offset_and_scale(self) -> tuple[float, float]:
    labels = self.task.labels
    if not self.protocol.label_range:
      return labels.mean, labels.std
    least, largest = labels.range
    return (least + largest) / 2, (largest - least) / 2

  @property
  def constant_loss(self) -> float:
    """The loss of an answer that ignores the input: the mean, 0, for labels of deviation 1. For labels in
    [-1, 1] the loss of the middle, 0, is at most this."""
    return 1.0

  def _targets(self, label_B):
    offset, scale = self._offset_and_scale
    return (label_B - offset) / scale

  def _labels(self, target_B):
    offset, scale = self._offset_and_scale
    return target_B * scale + offset

  def _losses(self, outputs, prepared):
    return (outputs[:, 0].astype(jnp.float32) - prepared.targets) ** 2

  def measure(self, outputs, prepared: Prepared):
    """A clu metric collection of one batch."""
    answers_B, weights_B = outputs[:, 0].astype(jnp.float32), prepared.weights
    errors_B = jnp.abs(answers_B - prepared.targets) * self._offset_and_scale[1]
    return RegressionMetrics.empty().replace(
      loss=Mean.weighted(self._losses(outputs, prepared), weights_B),
      mae=Mean.weighted(errors_B, weights_B),
      r2=R2.from_values(answers_B, prepared.targets, weights_B, self._labels(prepared.targets)),
    )

  def predictions(self, outputs):
    """float32 [B], in units of the label."""
    return self._labels(outputs[:, 0].astype(jnp.float32))
