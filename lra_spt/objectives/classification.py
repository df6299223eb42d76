"""Classification: one class per sequence, or per pair of documents."""

import dataclasses
import math

import jax.numpy as jnp
import optax
from clu.metrics import Collection

from lra_spt.objectives.answers import OneAnswer
from lra_spt.objectives.contract import Prepared
from lra_spt.objectives.metrics import ClassificationMetrics, Mean


@dataclasses.dataclass(frozen=True)
class Classification(OneAnswer):
  """Cross-entropy on the pooled head's logits."""

  @property
  def metrics(self) -> type[Collection]:
    return ClassificationMetrics

  @property
  def selection(self) -> tuple[str, str]:
    """The validation metric that chooses the checkpoint, and its mode."""
    return 'accuracy', 'max'

  @property
  def constant_loss(self) -> float:
    """The loss of an answer that ignores the input and makes all classes equally likely."""
    return math.log(self.task.classes)

  def _losses(self, outputs, prepared):
    return optax.softmax_cross_entropy_with_integer_labels(outputs.astype(jnp.float32), prepared.targets)

  def measure(self, outputs, prepared: Prepared):
    """A clu metric collection of one batch."""
    hits_B = (self.predictions(outputs) == prepared.targets).astype(jnp.float32)
    return ClassificationMetrics.empty().replace(
      loss=Mean.weighted(self._losses(outputs, prepared), prepared.weights),
      accuracy=Mean.weighted(hits_B, prepared.weights),
    )

  def predictions(self, outputs):
    """int32 [B], the class with the largest logit."""
    return jnp.argmax(outputs, axis=-1).astype(jnp.int32)
