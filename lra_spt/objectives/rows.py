"""From a stored batch to the rows that the encoder reads: pure functions that run inside the jitted step.

R rows are the B examples, or the 2B documents of B pairs: row 2b + k is document k of pair b.
"""

import jax
import jax.numpy as jnp

from lra_spt.data.tasks import Task, Tokens


def documents_as_rows(task: Task, batch) -> tuple[jax.Array, jax.Array]:
  """Stored inputs [R, ...] and lengths [R] of a batch, see `Task.batch`."""
  inputs, lengths = batch['inputs'], batch['lengths']
  if task.documents == 1:
    return inputs, lengths
  return inputs.reshape(-1, task.length), lengths.reshape(-1)


def row_keys(task: Task, keys_B: jax.Array) -> jax.Array:
  """One key per row, [R], from one per example: the documents of a pair are corrupted independently."""
  if task.documents == 1:
    return keys_B
  documents = jnp.arange(task.documents)
  return jax.vmap(lambda key: jax.vmap(lambda k: jax.random.fold_in(key, k))(documents))(keys_B).reshape(-1)


def row_lengths(task: Task, lengths_R):
  """None for tasks whose rows are always full, so that models need no masks."""
  return lengths_R if isinstance(task.inputs, Tokens) else None


def normalise(task: Task, inputs) -> jax.Array:
  """What the encoder eats.

  Args:
    inputs: in the storage dtype of the task or int32, [R, L] or [R, L, C].

  Returns:
    values: float32 [R, L, C] = (inputs / scale - mean) / std, where [R, L] gets C = 1;
    tokens: int32 [R, L] ids, unchanged.
  """
  inputs, of = jnp.asarray(inputs), task.inputs
  if of.vocabulary:
    return inputs.astype(jnp.int32)
  x_RLC = (inputs[..., None] if inputs.ndim == 2 else inputs).astype(jnp.float32)
  parts = (jnp.asarray(part, jnp.float32) for part in (of.mean, of.std))
  mean, std = (part.reshape(1, -1, of.channels) for part in parts)
  return (x_RLC / of.scale - mean) / std


def denoising_targets(task: Task, inputs) -> jax.Array:
  """What denoising has to restore.

  Args:
    inputs: in the storage dtype of the task or int32, [R, L] or [R, L, C], uncorrupted.

  Returns:
    tokens and bytes: int32 [R, L], the id or the byte itself; values: float32 [R, L, C], normalised.
  """
  if task.inputs.denoising_classes:
    return jnp.asarray(inputs).astype(jnp.int32)
  return normalise(task, inputs)
