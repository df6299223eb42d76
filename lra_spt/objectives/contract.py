"""What every objective and the training loop share: the prepared batch and its rows."""

import jax
import jax.numpy as jnp
from flax import struct

from lra_spt.data.tasks import Task


@struct.dataclass
class Prepared:
  """A batch as the model and the loss see it.

  R rows are the B examples, or the 2B documents of B pairs: row 2b + k is document k of pair b.

  inputs: int32 [R, L] ids or float32 [R, L, C (+1 flag)]; lengths_B: int32 [R], or None when all rows are
    full.
  targets: int32 [R, L] or float32 [R, L, C] for denoising, int32 or float32 [B] for classification and
    regression.
  weights: float32, 1 where the target counts: [R, L] for denoising, else [B].
  """

  inputs: jax.Array
  lengths_B: jax.Array | None
  targets: jax.Array
  weights: jax.Array


def documents_as_rows(task: Task, batch) -> tuple[jax.Array, jax.Array]:
  """Stored inputs [R, ...] and lengths [R]."""
  inputs, lengths = batch['inputs'], batch['lengths']
  if task.documents == 1:
    return inputs, lengths
  return inputs.reshape(-1, task.length), lengths.reshape(-1)


def row_keys(task: Task, keys_B: jax.Array) -> jax.Array:
  """One key per row, [R], from one per example: documents of a pair are corrupted independently."""
  if task.documents == 1:
    return keys_B
  documents = jnp.arange(task.documents)
  return jax.vmap(lambda key: jax.vmap(lambda k: jax.random.fold_in(key, k))(documents))(keys_B).reshape(-1)


def row_lengths(task: Task, lengths_B):
  """None for tasks whose rows are always full, which spares the models their masks."""
  return lengths_B if task.modality == 'tokens' else None
