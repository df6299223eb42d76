"""The least data that a training step moves to and from a device's memory, if no array stays on the chip.

In small steps the compiler may leave arrays on the chip, or recompute them, and then moves less.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from lra_spt.distributed import sharding
from lra_spt.runs.stage import Built
from lra_spt.training.step import row_keys, summed_loss


def least_traffic(built: Built, mesh) -> dict[str, int]:
  """Bytes of a step on each device of the current mesh:

  state: read once and written once (parameters, statistics, optimizer);
  batch: read once;
  kept: arrays that the forward pass saves for the backward pass under the config's remat, written once and
    read once. Parameters do not count.
  """
  state, batches, _, key = built.abstract_step(mesh)
  parts = [_bytes(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(state)]
  batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batches)
  shards = sharding.row_shards(mesh)
  saved = _saved(built.typical_program, state, batch, key) / (shards * mesh.shape['seq'])
  return {
    'state': 2 * sum(parts),
    'batch': sum(_bytes(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch)) // shards,
    'kept': 2 * int(saved),
  }


def _saved(program, state, batch, key) -> int:
  """The bytes that the forward pass of all microbatches saves."""
  parts = program.microbatches
  batch = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0] // parts, *leaf.shape[1:]), leaf.dtype), batch
  )

  def forward(params, stats, batch, key):
    keys_B = row_keys(key, jnp.int32(0), jnp.arange(batch['weight'].shape[0]))
    return jax.vjp(summed_loss(program, stats, batch, keys_B), params, has_aux=True)[1]

  jaxpr = jax.make_jaxpr(forward)(state['params'], state['stats'], batch, key).jaxpr
  given = set(jaxpr.invars)
  saved = {v for v in jaxpr.outvars if not hasattr(v, 'val') and v not in given}  # literals take no memory
  return parts * sum(_bytes(v.aval.shape, v.aval.dtype) for v in saved)


def _bytes(shape, dtype) -> int:
  size = 4 if jnp.issubdtype(dtype, jax.dtypes.prng_key) else np.dtype(dtype).itemsize
  return math.prod(shape) * size
