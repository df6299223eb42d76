"""One answer per example, or per pair of documents: classification and regression."""

import dataclasses

import jax.numpy as jnp
import optax
from clu import metrics

from lra_spt.data.tasks import Task
from lra_spt.errors import ConfigError
from lra_spt.models.heads import HeadSpec
from lra_spt.objectives.contract import Prepared, documents_as_rows, row_lengths
from lra_spt.objectives.metrics import R2, ClassificationMetrics, Mean, RegressionMetrics


@dataclasses.dataclass(frozen=True)
class _OneAnswer:
  """What objectives with one answer per example share; see `Head` for pool and head_kind."""

  task: Task
  pool: str = 'mean'
  head_kind: str = 'linear'

  def __post_init__(self):
    if (self.head_kind == 'match') != (self.task.documents == 2):
      raise ConfigError(
        f'finetune.head is {self.head_kind!r}, but an example of {self.task.name} is '
        f"{'a pair' if self.task.documents == 2 else 'one sequence'}; 'match' is for pairs, others are not"
      )

  @property
  def channels(self) -> int:
    """C of the model's input (0 for tokens)."""
    return self.task.channels

  @property
  def head(self) -> HeadSpec:
    return HeadSpec(self.head_kind, self.task.classes or 1, self.pool)

  def _targets(self, label_B):
    return label_B

  def prepare(self, batch, keys_B) -> Prepared:
    """Nothing is corrupted; padding rows of an evaluation batch weigh 0."""
    del keys_B
    stored, lengths = documents_as_rows(self.task, batch)
    lengths_B = row_lengths(self.task, lengths)
    return Prepared(self.task.normalise(stored), lengths_B, self._targets(batch['label']), batch['weight'])

  def loss(self, outputs, prepared: Prepared):
    """(sum, count) over examples."""
    return jnp.sum(self._losses(outputs, prepared) * prepared.weights), jnp.sum(prepared.weights)


@dataclasses.dataclass(frozen=True)
class Classification(_OneAnswer):
  """One class per sequence, or per pair of documents: cross-entropy on the pooled head's logits."""

  @property
  def metrics(self) -> type[metrics.Collection]:
    return ClassificationMetrics

  @property
  def selection(self) -> tuple[str, str]:
    """The validation metric that chooses the checkpoint, and its mode."""
    return 'accuracy', 'max'

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


@dataclasses.dataclass(frozen=True)
class Regression(_OneAnswer):
  """One number per sequence: mean squared error of scaled labels.

  Labels are scaled by constants of the task, to mean 0 and deviation 1, or with `by_range` to [-1, 1] between
  the least and largest (`Protocol.label_range`). R2 is that of everything evaluated, not a mean over batches.
  """

  by_range: bool = False

  @property
  def metrics(self) -> type[metrics.Collection]:
    return RegressionMetrics

  @property
  def selection(self) -> tuple[str, str]:
    """The validation metric that chooses the checkpoint, and its mode."""
    return 'r2', 'max'

  @property
  def _offset_and_scale(self) -> tuple[float, float]:
    if not self.by_range:
      return self.task.label_mean, self.task.label_std
    least, largest = self.task.label_range
    return (least + largest) / 2, (largest - least) / 2

  def _targets(self, label_B):
    offset, scale = self._offset_and_scale
    return (label_B - offset) / scale

  def _losses(self, outputs, prepared):
    return (outputs[:, 0].astype(jnp.float32) - prepared.targets) ** 2

  def measure(self, outputs, prepared: Prepared):
    """A clu metric collection of one batch."""
    answers_B, weights_B = outputs[:, 0].astype(jnp.float32), prepared.weights
    errors_B = jnp.abs(answers_B - prepared.targets) * self._offset_and_scale[1]
    return RegressionMetrics.empty().replace(
      loss=Mean.weighted(self._losses(outputs, prepared), weights_B),
      mae=Mean.weighted(errors_B, weights_B),
      r2=R2.from_values(answers_B, prepared.targets, weights_B),
    )

  def predictions(self, outputs):
    """float32 [B], in units of the label."""
    offset, scale = self._offset_and_scale
    return outputs[:, 0].astype(jnp.float32) * scale + offset
