"""Regression: one number per sequence, or one in each of several dimensions."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from clu.metrics import Collection

from lra_spt.objectives.answers import OneAnswer
from lra_spt.objectives.contract import Prepared
from lra_spt.objectives.metrics import R2, Mean, RegressionMetrics, SeveralRegressionMetrics


@dataclasses.dataclass(frozen=True)
class Regression(OneAnswer):
  """Mean squared error of scaled labels.

  Constants of the task scale labels to mean 0 and deviation 1 or, under `Protocol.label_range`, from
  [least, largest] to [-1, 1]. R2 is computed over all evaluated examples, not as a mean over batches.
  """

  @property
  def metrics(self) -> type[Collection]:
    return SeveralRegressionMetrics if self.task.label_width else RegressionMetrics

  @property
  def of_all_predictions(self) -> tuple[str, ...]:
    """R2 of several dimensions."""
    return ('r2',) if self.task.label_width else ()

  @property
  def selection(self) -> tuple[str, str]:
    """The validation metric that chooses the checkpoint, and its mode."""
    return 'r2', 'max'

  @property
  def _offset_and_scale(self):
    """Two floats, or of several dimensions two float32 [1, K]."""
    labels = self.task.labels
    mean, std, bounds = labels.mean, labels.std, labels.range
    if self.task.label_width:
      mean, std, bounds = (np.array(part, np.float32)[None] for part in (mean, std, np.transpose(bounds)))
      bounds = bounds.swapaxes(0, 1)
    if not self.protocol.label_range:
      return mean, std
    least, largest = bounds
    return (least + largest) / 2, (largest - least) / 2

  def _answers(self, outputs):
    return (outputs if self.task.label_width else outputs[:, 0]).astype(jnp.float32)

  def prepare(self, batch, keys_B) -> Prepared:
    """The batch with targets and weights [B], or [B, K] of several dimensions."""
    prepared = super().prepare(batch, keys_B)
    if not self.task.label_width:
      return prepared
    return prepared.replace(weights=jnp.broadcast_to(prepared.weights[:, None], prepared.targets.shape))

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
    return (self._answers(outputs) - prepared.targets) ** 2

  def measure(self, outputs, prepared: Prepared):
    """A clu metric collection of one batch."""
    answers, weights = self._answers(outputs), prepared.weights
    errors = jnp.abs(answers - prepared.targets) * self._offset_and_scale[1]
    measured = self.metrics.empty().replace(
      loss=Mean.weighted(self._losses(outputs, prepared), weights), mae=Mean.weighted(errors, weights)
    )
    if self.task.label_width:
      return measured
    return measured.replace(
      r2=R2.from_values(answers, prepared.targets, weights, self._labels(prepared.targets))
    )

  def predictions(self, outputs):
    """float32 [B] or [B, K], in units of the label."""
    return self._labels(self._answers(outputs))
