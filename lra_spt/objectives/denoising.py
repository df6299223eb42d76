"""Denoising: the model predicts hidden positions (masked) or the next position (causal); paper, section
3.1."""

import abc
import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from clu.metrics import Collection

from lra_spt.config.protocol import CLEAN, Protocol
from lra_spt.data.tasks import Task
from lra_spt.errors import ConfigError
from lra_spt.models.heads import HeadSpec
from lra_spt.models.layers import valid_positions
from lra_spt.objectives.contract import Prepared
from lra_spt.objectives.metrics import R2, Mean, TokenDenoisingMetrics, ValueDenoisingMetrics
from lra_spt.objectives.registry import register_objective
from lra_spt.objectives.rows import (
  denoising_targets,
  documents_as_rows,
  encoder_inputs,
  row_keys,
  row_lengths,
)


@dataclasses.dataclass(frozen=True)
class Denoising(abc.ABC):
  """Self-pretraining that predicts the content of positions: one answer per position, derived from the input.

  A subclass defines `corrupt`, which makes the model's inputs and targets and chooses the positions that
  count. The inputs of the task determine the loss: cross-entropy against the token or byte, or L1 against the
  normalised values (mean over channels).
  """

  task: Task
  protocol: Protocol = CLEAN

  @abc.abstractmethod
  def corrupt(self, inputs, targets, valid_RL, keys_R) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Makes (inputs, targets, counted_RL) from clean inputs and targets.

    Args:
      inputs: int32 [R, L] ids or float32 [R, L, C] normalised values; those returned have `channels`.
      targets: int32 [R, L] or float32 [R, L, C], see `rows.denoising_targets`.
      valid_RL: bool, False for padding, which must not count.
      keys_R: a PRNG key per row.
    """

  @property
  def channels(self) -> int:
    """C of the model's input (0 for tokens)."""
    return self.task.channels

  @property
  def head(self) -> HeadSpec:
    identity = self.protocol.identity_token_head and self.task.published.identity_head
    outputs = self.task.inputs.denoising_classes or self.task.channels
    return HeadSpec('identity' if identity else 'tokens', outputs)

  @property
  def metrics(self) -> type[Collection]:
    return TokenDenoisingMetrics if self._by_class else ValueDenoisingMetrics

  @property
  def selection(self) -> tuple[str, str]:
    """The validation metric that chooses the checkpoint, and its mode."""
    if self._by_class:
      return 'accuracy', 'max'
    if self.protocol.worst_checkpoint and self.task.published.worst_checkpoint:
      return 'mae', 'max'
    return ('r2', 'max') if self.protocol.l1_selection == 'r2' else ('mae', 'min')

  @property
  def _by_class(self) -> bool:
    return self.task.inputs.denoising_classes > 0

  @property
  def constant_loss(self) -> float:
    """The loss of an answer that ignores the input. For classes the answer makes all equally likely. For
    values it is their mean, 0, and the loss at most their standard deviation, 1."""
    return math.log(self.task.inputs.denoising_classes) if self._by_class else 1.0

  def prepare(self, batch, keys_B) -> Prepared:
    """Corrupts a batch (see `Task.batch`) by one PRNG key per example."""
    task = self.task
    stored, lengths_R = documents_as_rows(task, batch)
    inputs, targets = encoder_inputs(task, stored, lengths_R), denoising_targets(task, stored)
    valid_RL = valid_positions(lengths_R, inputs.shape[1])
    inputs, targets, counted_RL = self.corrupt(inputs, targets, valid_RL, row_keys(task, keys_B))
    weight_R = jnp.repeat(batch['weight'], task.documents)
    counted_RL &= (weight_R > 0)[:, None]
    return Prepared(inputs, row_lengths(task, lengths_R), targets, counted_RL.astype(jnp.float32))

  def _losses(self, outputs, prepared):
    """The loss of every position, float32 [R, L]."""
    if self._by_class:
      return optax.softmax_cross_entropy_with_integer_labels(outputs.astype(jnp.float32), prepared.targets)
    return jnp.mean(jnp.abs(outputs.astype(jnp.float32) - prepared.targets), axis=-1)

  def loss(self, outputs, prepared: Prepared):
    """(sum, count) over the positions that count."""
    return jnp.sum(self._losses(outputs, prepared) * prepared.weights), jnp.sum(prepared.weights)

  def measure(self, outputs, prepared: Prepared):
    """A clu metric collection of one batch."""
    losses_RL, weights_RL = self._losses(outputs, prepared), prepared.weights
    loss = Mean.weighted(losses_RL, weights_RL)
    if self._by_class:
      hits_RL = (jnp.argmax(outputs, axis=-1) == prepared.targets).astype(jnp.float32)
      return TokenDenoisingMetrics.empty().replace(loss=loss, accuracy=Mean.weighted(hits_RL, weights_RL))
    weights_RLC = jnp.broadcast_to(weights_RL[..., None], prepared.targets.shape)
    return ValueDenoisingMetrics.empty().replace(
      loss=loss, mae=loss, r2=R2.from_values(outputs.astype(jnp.float32), prepared.targets, weights_RLC)
    )

  def predictions(self, outputs):
    """int32 [R, 0]: denoising stores no predictions."""
    return jnp.zeros((outputs.shape[0], 0), jnp.int32)


@dataclasses.dataclass(frozen=True)
class HiddenDenoising(Denoising):
  """The model predicts hidden positions, which a subclass chooses; only these count.

  Hidden tokens become the `mask_id` of the inputs. Hidden values become 0 in normalised space, and a flag
  channel (1 = hidden) is appended last.
  """

  @abc.abstractmethod
  def hidden(self, valid_RL, keys_R) -> jax.Array:
    """Chooses the hidden positions, bool [R, L], none of them padding.

    Args:
      valid_RL: bool, False for padding, which is at the end of a row.
      keys_R: a PRNG key per row.
    """

  @property
  def channels(self) -> int:
    """C of the model's input (0 for tokens), the flag channel included."""
    return self.task.channels + (self.task.channels > 0)

  def corrupt(self, inputs, targets, valid_RL, keys_R):
    hidden_RL = self.hidden(valid_RL, keys_R)
    if self.task.vocabulary:
      return jnp.where(hidden_RL, jnp.int32(self.task.inputs.mask_id), inputs), targets, hidden_RL
    hidden_RL1 = hidden_RL[..., None]
    seen = jnp.where(hidden_RL1, 0.0, inputs)
    return jnp.concatenate([seen, hidden_RL1.astype(inputs.dtype)], axis=-1), targets, hidden_RL


def rounded_counts(share: float, length: int) -> np.ndarray:
  """The number of hidden positions of a row by its number n of valid ones, int32 [length + 1]: share * n,
  rounded, but at least one position is hidden and, from n = 2 on, at least one visible."""
  valid = np.arange(length + 1)
  rounded = np.floor(share * valid + 0.5)
  return np.minimum(np.clip(rounded, 1, np.maximum(valid - 1, 1)), valid).astype(np.int32)


@register_objective('masked')
@dataclasses.dataclass(frozen=True)
class MaskedDenoising(HiddenDenoising):
  """Every valid position is hidden with probability `mask_rate`, independently of the others; one draw hides
  all channels of a position."""

  mask_rate: float = dataclasses.field(kw_only=True)

  def __post_init__(self):
    if not 0 < self.mask_rate < 1:
      raise ConfigError(
        f'pretrain.mask_rate is {self.mask_rate}, which would hide nothing or everything; choose a rate '
        'between 0 and 1'
      )

  def hidden(self, valid_RL, keys_R):
    draw = lambda key: jax.random.bernoulli(key, self.mask_rate, valid_RL.shape[1:])  # noqa: E731
    return jax.vmap(draw)(keys_R) & valid_RL


@register_objective('causal')
@dataclasses.dataclass(frozen=True)
class CausalDenoising(Denoising):
  """The model predicts the next position: the input stays clean, and the target of position t is the content
  of t + 1. The last position and padding have no target."""

  needs_causal_form = True
  least_length = 2

  def corrupt(self, inputs, targets, valid_RL, keys_R):
    del keys_R
    targets = jnp.concatenate([targets[:, 1:], jnp.zeros_like(targets[:, :1])], axis=1)
    has_next_RL = jnp.concatenate([valid_RL[:, 1:], jnp.zeros_like(valid_RL[:, :1])], axis=1)
    return inputs, targets, has_next_RL
