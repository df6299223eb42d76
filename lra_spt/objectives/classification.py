"""Classification: one class per sequence, per pair of documents, or per position, or several labels."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import optax
from clu.metrics import Collection

from lra_spt.data.parts import UNLABELLED
from lra_spt.errors import FieldError
from lra_spt.models.heads import HeadSpec
from lra_spt.objectives.answers import OneAnswer
from lra_spt.objectives.contract import Prepared
from lra_spt.objectives.metrics import ClassificationMetrics, LossMetrics, Mean


@dataclasses.dataclass(frozen=True)
class Classification(OneAnswer):
  """Cross-entropy on the pooled head's logits.

  class_weights: how much an answer of each class counts in the loss, as `torch.nn.CrossEntropyLoss(weight)`:
    sum w l / sum w; (): all alike. Accuracies do not know them.

  Raises:
    FieldError: there is not one weight for each class.
  """

  class_weights: tuple[float, ...] = ()

  def __post_init__(self):
    super().__post_init__()
    if self.class_weights and len(self.class_weights) != self.task.classes:
      raise FieldError(
        'class_weights',
        f'has {len(self.class_weights)} numbers, but {self.task.name} has {self.task.classes} classes; give '
        'one for each',
      )

  @property
  def metrics(self) -> type[Collection]:
    return ClassificationMetrics

  @property
  def selection(self) -> tuple[str, str]:
    """The validation metric that chooses the checkpoint, and its mode."""
    return self.task.score, 'max'

  @property
  def of_all_predictions(self) -> tuple[str, ...]:
    """The selection metric, if it is no sum over examples."""
    return () if self.task.score == 'accuracy' else (self.task.score,)

  @property
  def constant_loss(self) -> float:
    """The loss of an answer that ignores the input and makes all classes equally likely."""
    return math.log(self.task.classes)

  def _losses(self, outputs, prepared):
    return optax.softmax_cross_entropy_with_integer_labels(outputs.astype(jnp.float32), prepared.targets)

  def _counts(self, prepared):
    """The weights of `prepared` times those of the classes of its targets. The least class weight becomes 1,
    because a step divides by a count of 1 or more."""
    return prepared.weights * self._class_weights(prepared) if self.class_weights else prepared.weights

  @property
  def _weight_K(self):
    return jnp.array([weight / min(self.class_weights) for weight in self.class_weights], jnp.float32)

  def _class_weights(self, prepared):
    return self._weight_K[prepared.targets]

  def loss(self, outputs, prepared: Prepared):
    """(sum, count) over examples or positions, weighted by their classes."""
    counts = self._counts(prepared)
    return jnp.sum(self._losses(outputs, prepared) * counts), jnp.sum(counts)

  def measure(self, outputs, prepared: Prepared):
    """A clu metric collection of one batch."""
    hits = (self._classes(outputs) == prepared.targets).astype(jnp.float32)
    return ClassificationMetrics.empty().replace(
      loss=Mean.weighted(self._losses(outputs, prepared), self._counts(prepared)),
      accuracy=Mean.weighted(hits, prepared.weights),
    )

  def predictions(self, outputs):
    """int32 [B] or, of positions, [B, L]: the class with the largest logit. Where the main score is an AUROC,
    float32 [B]: the probability of class 1."""
    if self.task.probabilities:
      return jax.nn.softmax(outputs.astype(jnp.float32))[:, 1]
    return self._classes(outputs)

  def _classes(self, outputs):
    return jnp.argmax(outputs, axis=-1).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class PositionClassification(Classification):
  """Cross-entropy at every position that has a label; `finetune.pool` and `finetune.head` have no effect.

  Loss and accuracy are means over these positions, so an example counts by how many it has.
  """

  @property
  def head(self) -> HeadSpec:
    return HeadSpec('tokens', self.task.classes)

  def prepare(self, batch, keys_B) -> Prepared:
    """The batch with targets [B, L] and weights [B, L], 0 where a position has no label."""
    prepared, label_BL = super().prepare(batch, keys_B), batch['label']
    counted_BL = (label_BL != UNLABELLED) & (batch['weight'] > 0)[:, None]
    return prepared.replace(targets=jnp.maximum(label_BL, 0), weights=counted_BL.astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class MultiLabelClassification(Classification):
  """Sigmoid cross-entropy of each of several labels, the mean over examples and labels."""

  @property
  def metrics(self) -> type[Collection]:
    return LossMetrics

  @property
  def constant_loss(self) -> float:
    """The loss of an answer that ignores the input and gives each label the probability 0.5."""
    return math.log(2)

  def prepare(self, batch, keys_B) -> Prepared:
    """The batch with targets and weights [B, K]."""
    prepared, target_BK = super().prepare(batch, keys_B), batch['label'].astype(jnp.float32)
    weight_BK = jnp.broadcast_to(prepared.weights[:, None], target_BK.shape)
    return prepared.replace(targets=target_BK, weights=weight_BK)

  def _class_weights(self, prepared):
    return self._weight_K[None]

  def _losses(self, outputs, prepared):
    return optax.sigmoid_binary_cross_entropy(outputs.astype(jnp.float32), prepared.targets)

  def measure(self, outputs, prepared: Prepared):
    """A clu metric collection of one batch."""
    return LossMetrics.empty().replace(
      loss=Mean.weighted(self._losses(outputs, prepared), self._counts(prepared))
    )

  def predictions(self, outputs):
    """float32 [B, K], the probability of each label."""
    return jax.nn.sigmoid(outputs.astype(jnp.float32))
