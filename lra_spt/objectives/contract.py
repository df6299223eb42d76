"""The contract of an objective, and how to write your own.

An objective is a frozen dataclass with the properties and methods of `Objective`. Its first two fields are
`task` and `protocol`; further fields are its options, keys of the config's section `pretrain`. Register it
with `register_objective`, and a regime that pretrains on it: configs, resuming and reports then know both. An
objective that restores the content of positions inherits most of its code from `Denoising`; it only defines
what the model sees and which positions count. The following file is complete. Use it by
`lra-spt train --config=unshuffle.py:regime=unshuffle`:

```python
'''Pretraining that restores shuffled positions.'''

import dataclasses

import jax
import jax.numpy as jnp
from configs import image
from lra_spt import objectives
from lra_spt.config.regimes import Regime, register_regime


@objectives.register_objective('unshuffle')
@dataclasses.dataclass(frozen=True)
class Unshuffle(objectives.Denoising):
  '''Valid positions move by up to `reach` places; the model predicts the original content of each place.'''

  reach: int = 8

  def corrupt(self, inputs, targets, valid_RL, keys_R):
    length = valid_RL.shape[1]
    far_RL = self.reach * jax.vmap(lambda key: jax.random.uniform(key, (length,)))(keys_R)
    rank_RL = jnp.where(valid_RL, far_RL, 2.0 * self.reach) + jnp.arange(length, dtype=jnp.float32)[None]
    order_RL = jnp.argsort(rank_RL, axis=1)  # padding stays at the end
    moved = jax.vmap(lambda x, order_L: x[order_L])(inputs, order_RL)
    return moved, targets, valid_RL


register_regime(Regime('unshuffle', objective='unshuffle'))


def get_config(arg='regime=unshuffle'):
  '''Any config of the image task, such as regime=masked for comparison.'''
  with (config := image.get_config(arg)).unlocked():
    config.pretrain.reach = 8
    config.origins.pretrain.reach = 'ours'
  return config
```

Dimension letters: B examples, R rows (B, or the 2B documents of B pairs), L positions, C channels.
"""

from typing import Protocol

import jax
from clu.metrics import Collection
from flax import struct

from lra_spt.data.tasks import Task
from lra_spt.models.heads import HeadSpec


@struct.dataclass
class Prepared:
  """A batch in the form that the model and the loss read.

  R rows are the B examples, or the 2B documents of B pairs: row 2b + k is document k of pair b.

  Attributes:
    inputs: int32 [R, L] ids or float32 [R, L, C].
    lengths_B: int32 [R], or None if all rows are full.
    targets: int32 [R, L] or float32 [R, L, C] for denoising, int32 or float32 [B] for classification and
      regression, int32 [B, L] for classes of positions.
    weights: float32, 1 where the target counts: [R, L] for denoising and classes of positions, else [B].
  """

  inputs: jax.Array
  lengths_B: jax.Array | None
  targets: jax.Array
  weights: jax.Array


class Objective(Protocol):
  """The interface that training, evaluation and the model's head use.

  `prepare`, `loss`, `measure` and `predictions` are pure and run inside a jitted step, on float32 outputs of
  the head `head`: [R, L, outputs] for a head per position, [B, outputs] for a pooled one.
  """

  @property
  def task(self) -> Task:
    """The task whose batches it prepares."""

  @property
  def channels(self) -> int:
    """C of the model's input, 0 for tokens. It may be one more than the task's: then the last channel is a
    flag, which is cut off the embedding when finetuning starts."""

  @property
  def head(self) -> HeadSpec:
    """The head that turns hidden states into answers."""

  @property
  def metrics(self) -> type[Collection]:
    """The clu collection that `measure` fills. Its fields include `loss` and the selection metric.

    A metric other than `loss` may be undefined, such as a correlation with labels that do not vary: where it
    is NaN or infinite, results hold null. A method `why_undefined() -> str` of the metric may give the
    reason; it is called after the last merge, outside of jit, and returns '' where the metric is defined."""

  @property
  def selection(self) -> tuple[str, str]:
    """The validation metric that chooses the checkpoint, and its mode, 'max' or 'min'. A validation where it
    is not defined is compared by its loss."""

  @property
  def of_all_predictions(self) -> tuple[str, ...]:
    """Names of further metrics, keys of `lra_spt.data.measures.MEASURES`, which an evaluation computes on the
    host from all predictions at once, because they are no sums over examples. The default is ()."""

  @property
  def constant_loss(self) -> float | None:
    """The approximate loss of an answer that ignores the input. A stage that ends above twice this value
    counts as diverged. It is None, or not defined, if no such value is known."""

  @property
  def needs_causal_form(self) -> bool:
    """True if a model that sees later positions could read the answers off its input. The default is
    False."""

  @property
  def least_length(self) -> int:
    """The least number of positions of an example that it can learn from. The default is 1."""

  def prepare(self, batch: dict[str, jax.Array], keys_B: jax.Array) -> Prepared:
    """Makes the input of the model, and its targets.

    Args:
      batch: see `Task.batch(B)`; rows of weight 0 pad the last evaluation batch and never count.
      keys_B: PRNG keys [B], the only source of randomness. Draws by the key of each row do not depend on the
        split of a batch. The keys are the same at every evaluation.
    """

  def loss(self, outputs: jax.Array, prepared: Prepared) -> tuple[jax.Array, jax.Array]:
    """(sum, count), each float32 []. Training minimises their ratio over the whole batch."""

  def measure(self, outputs: jax.Array, prepared: Prepared) -> Collection:
    """The metric collection of one batch: sums and counts, which merge exactly."""

  def predictions(self, outputs: jax.Array) -> jax.Array:
    """The predictions that predictions.npz stores: [B], [B, L] for positions, or [B, 0] for none."""
