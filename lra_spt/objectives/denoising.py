"""Denoising: predict what was hidden (masked) or what comes next (causal); paper, section 3.1."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from clu import metrics

from lra_spt.data.tasks import Task
from lra_spt.errors import ConfigError
from lra_spt.models.heads import HeadSpec, valid_positions
from lra_spt.objectives.contract import Prepared, documents_as_rows, row_keys, row_lengths
from lra_spt.objectives.metrics import R2, Mean, TokenDenoisingMetrics, ValueDenoisingMetrics


@dataclasses.dataclass(frozen=True)
class Denoising:
  """Self-pretraining: predict what was hidden (masked) or what comes next (causal).

  Masked: every valid position is hidden with probability `mask_rate`, independently, one draw for all
    channels of a position. Hidden tokens become `task.mask_id`; hidden values become 0 in normalised space
    and a flag channel (1 = hidden) is appended last. The loss counts hidden positions only.
  Causal: the input stays clean, the target of position t is t + 1, the last position has none, padding has
    none.
  Loss: cross-entropy against the token or byte, or L1 against the normalised values (mean over channels), as
    `task.denoising_loss` says.
  """

  task: Task
  kind: str
  mask_rate: float = 0.0
  identity_head: bool = False
  l1_selection: str = 'r2'

  def __post_init__(self):
    if self.kind not in ('masked', 'causal'):
      raise ConfigError(f"a denoising objective is 'masked' or 'causal', not {self.kind!r}")
    if self.kind == 'masked' and not 0 < self.mask_rate < 1:
      raise ConfigError(
        f'pretrain.mask_rate is {self.mask_rate}, which hides nothing or everything; choose a rate between 0 '
        'and 1'
      )

  @property
  def channels(self) -> int:
    """C of the model's input (0 for tokens), the flag channel included."""
    return self.task.channels + (1 if self.kind == 'masked' and self.task.modality == 'values' else 0)

  @property
  def head(self) -> HeadSpec:
    by_class = self.task.denoising_loss == 'ce'
    return HeadSpec(
      'identity' if self.identity_head else 'tokens',
      self.task.denoising_classes if by_class else self.task.channels,
    )

  @property
  def metrics(self) -> type[metrics.Collection]:
    return TokenDenoisingMetrics if self.task.denoising_loss == 'ce' else ValueDenoisingMetrics

  @property
  def selection(self) -> tuple[str, str]:
    """The validation metric that chooses the checkpoint, and its mode."""
    if self.task.denoising_loss == 'ce':
      return 'accuracy', 'max'
    return ('r2', 'max') if self.l1_selection == 'r2' else ('mae', 'min')

  def prepare(self, batch, keys_B) -> Prepared:
    """batch: see `Task.batch`; keys_B: one PRNG key per example, from which masks are drawn."""
    task = self.task
    stored, lengths = documents_as_rows(task, batch)
    inputs, lengths_B, targets = task.normalise(stored), row_lengths(task, lengths), task.targets(stored)
    length = inputs.shape[1]
    weight_B = jnp.repeat(batch['weight'], task.documents)
    valid_BL = valid_positions(lengths, length) & (weight_B > 0)[:, None]
    if self.kind == 'causal':
      targets = jnp.concatenate([targets[:, 1:], jnp.zeros_like(targets[:, :1])], axis=1)
      has_next_BL = jnp.concatenate([valid_BL[:, 1:], jnp.zeros_like(valid_BL[:, :1])], axis=1)
      return Prepared(inputs, lengths_B, targets, has_next_BL.astype(jnp.float32))
    draw = lambda key: jax.random.bernoulli(key, self.mask_rate, (length,))  # noqa: E731
    hidden_BL = jax.vmap(draw)(row_keys(task, keys_B)) & valid_positions(lengths, length)
    if task.modality == 'tokens':
      inputs = jnp.where(hidden_BL, jnp.int32(task.mask_id), inputs)
    else:
      hidden_BL1 = hidden_BL[..., None]
      inputs = jnp.concatenate([jnp.where(hidden_BL1, 0.0, inputs), hidden_BL1.astype(inputs.dtype)], axis=-1)
    return Prepared(inputs, lengths_B, targets, (hidden_BL & valid_BL).astype(jnp.float32))

  def _losses(self, outputs, prepared):
    """float32 [B, L]."""
    if self.task.denoising_loss == 'ce':
      return optax.softmax_cross_entropy_with_integer_labels(outputs.astype(jnp.float32), prepared.targets)
    return jnp.mean(jnp.abs(outputs.astype(jnp.float32) - prepared.targets), axis=-1)

  def loss(self, outputs, prepared: Prepared):
    """(sum, count) over the positions that count."""
    return jnp.sum(self._losses(outputs, prepared) * prepared.weights), jnp.sum(prepared.weights)

  def measure(self, outputs, prepared: Prepared):
    """A clu metric collection of one batch."""
    losses_BL, weights_BL = self._losses(outputs, prepared), prepared.weights
    loss = Mean.weighted(losses_BL, weights_BL)
    if self.task.denoising_loss == 'ce':
      hits_BL = (jnp.argmax(outputs, axis=-1) == prepared.targets).astype(jnp.float32)
      return TokenDenoisingMetrics.empty().replace(loss=loss, accuracy=Mean.weighted(hits_BL, weights_BL))
    weights_BLC = jnp.broadcast_to(weights_BL[..., None], prepared.targets.shape)
    return ValueDenoisingMetrics.empty().replace(
      loss=loss, mae=loss, r2=R2.from_values(outputs.astype(jnp.float32), prepared.targets, weights_BLC)
    )

  def predictions(self, outputs):
    """int32 [B, 0]: denoising keeps no predictions per example."""
    return jnp.zeros((outputs.shape[0], 0), jnp.int32)
