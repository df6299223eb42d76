"""The base of objectives with one answer per example or per pair of documents."""

import dataclasses

import jax.numpy as jnp

from lra_spt.config.protocol import CLEAN, Protocol
from lra_spt.data.tasks import Task
from lra_spt.errors import ConfigError
from lra_spt.models.heads import HeadSpec
from lra_spt.objectives.contract import Prepared
from lra_spt.objectives.rows import documents_as_rows, encoder_inputs, row_lengths


@dataclasses.dataclass(frozen=True)
class OneAnswer:
  """An objective that corrupts no input and pools hidden states; see `HeadSpec` for pool and head_kind."""

  task: Task
  protocol: Protocol = CLEAN
  pool: str = 'mean'
  head_kind: str = 'linear'

  def __post_init__(self):
    if (self.head_kind == 'match') != (self.task.documents == 2):
      raise ConfigError(
        f'finetune.head is {self.head_kind!r}, but an example of {self.task.name} is '
        f"{'a pair' if self.task.documents == 2 else 'one sequence'}; choose 'match' for pairs, else another"
      )

  @property
  def channels(self) -> int:
    """C of the model's input (0 for tokens)."""
    return self.task.channels

  @property
  def head(self) -> HeadSpec:
    return HeadSpec(self.head_kind, self.task.outputs, self.pool)

  def _targets(self, label_B):
    return label_B

  def prepare(self, batch, keys_B) -> Prepared:
    """Normalises inputs without corrupting them. Padding rows of an evaluation batch have weight 0."""
    del keys_B
    stored, lengths_R = documents_as_rows(self.task, batch)
    inputs, lengths_R = encoder_inputs(self.task, stored, lengths_R), row_lengths(self.task, lengths_R)
    return Prepared(inputs, lengths_R, self._targets(batch['label']), batch['weight'])

  def loss(self, outputs, prepared: Prepared):
    """(sum, count) over examples."""
    return jnp.sum(self._losses(outputs, prepared) * prepared.weights), jnp.sum(prepared.weights)
