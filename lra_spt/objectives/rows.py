"""Pure functions that turn a stored batch into the rows that the encoder reads, inside the jitted step.

R rows are the B examples, or the 2B documents of B pairs: row 2b + k is document k of pair b.
"""

import jax
import jax.numpy as jnp

from lra_spt.data.tasks import Task
from lra_spt.models.layers import valid_positions


def documents_as_rows(task: Task, batch) -> tuple[jax.Array, jax.Array]:
  """Stored inputs [R, ...] and lengths [R] of a batch, see `Task.batch`."""
  inputs, lengths = batch['inputs'], batch['lengths']
  if task.documents == 1:
    return inputs, lengths
  return inputs.reshape(-1, task.length), lengths.reshape(-1)


def row_keys(task: Task, keys_B: jax.Array) -> jax.Array:
  """One key per row, [R], from one per example, [B]. The documents of a pair get different keys."""
  if task.documents == 1:
    return keys_B
  documents = jnp.arange(task.documents)
  return jax.vmap(lambda key: jax.vmap(lambda k: jax.random.fold_in(key, k))(documents))(keys_B).reshape(-1)


def row_lengths(task: Task, lengths_R):
  """The lengths, or None for tasks whose rows are always full, so that models need no masks."""
  return lengths_R if task.inputs.padded else None


def normalise(task: Task, inputs) -> jax.Array:
  """Normalises stored inputs for the encoder.

  Args:
    inputs: [R, L] or [R, L, C] in the storage dtype of the task, or int32.

  Returns:
    values: float32 [R, L, C] = (inputs / scale - mean) / std, where [R, L] gets C = 1;
    tokens: int32 [R, L] ids, unchanged.
  """
  inputs, spec = jnp.asarray(inputs), task.inputs
  if spec.vocabulary:
    return inputs.astype(jnp.int32)
  x_RLC = (inputs[..., None] if inputs.ndim == 2 else inputs).astype(jnp.float32)
  parts = (jnp.asarray(part, jnp.float32) for part in (spec.mean, spec.std))
  mean, std = (part.reshape(1, -1, spec.channels) for part in parts)
  return (x_RLC / spec.scale - mean) / std


def encoder_inputs(task: Task, stored, lengths_R) -> jax.Array:
  """Normalised inputs, see `normalise`, whose padding is 0 where they are values."""
  inputs = normalise(task, stored)
  if task.vocabulary or not task.inputs.padded:
    return inputs
  return jnp.where(valid_positions(lengths_R, inputs.shape[1])[..., None], inputs, 0.0)


def denoising_targets(task: Task, inputs) -> jax.Array:
  """The targets of denoising.

  Args:
    inputs: uncorrupted, [R, L] or [R, L, C] in the storage dtype of the task, or int32.

  Returns:
    tokens and bytes: int32 [R, L], the id or the byte; values: float32 [R, L, C], normalised.
  """
  if task.inputs.denoising_classes:
    return jnp.asarray(inputs).astype(jnp.int32)
  return normalise(task, inputs)
