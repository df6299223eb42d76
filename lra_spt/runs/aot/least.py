"""The least that a training step moves to and from the memory of a device that keeps nothing on the chip.

If a whole step is small, a compiler keeps parts of it on the chip, or recomputes them, and moves less.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from lra_spt.distributed import sharding
from lra_spt.runs.build import Built
from lra_spt.training.step import row_keys, summed_loss


def least_traffic(built: Built, mesh) -> dict[str, int]:
  """Bytes of a step on each device of the mesh in force:

  state: read once and written once (parameters, statistics, optimizer);
  batch: read once;
  kept: what differentiation hands from the forward to the backward pass, written once and read once, under
    the config's remat. Parameters themselves are not in it.
  """
  state, batches, _, key = built.abstract_step(mesh)
  own = [_bytes(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(state)]
  batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batches)
  shards = sharding.row_shards(mesh)
  kept = _kept(built.typical_program, state, batch, key) / (shards * mesh.shape['seq'])
  return {
    'state': 2 * sum(own),
    'batch': sum(_bytes(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch)) // shards,
    'kept': 2 * int(kept),
  }


def _kept(program, state, batch, key) -> int:
  """Bytes of all microbatches together."""
  parts = program.microbatches
  batch = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0] // parts, *leaf.shape[1:]), leaf.dtype), batch
  )

  def forward(params, stats, batch, key):
    keys_B = row_keys(key, jnp.int32(0), jnp.arange(batch['weight'].shape[0]))
    return jax.vjp(summed_loss(program, stats, batch, keys_B), params, has_aux=True)[1]

  jaxpr = jax.make_jaxpr(forward)(state['params'], state['stats'], batch, key).jaxpr
  given = set(jaxpr.invars)
  found = {v for v in jaxpr.outvars if not hasattr(v, 'val') and v not in given}  # a literal takes nothing
  return parts * sum(_bytes(v.aval.shape, v.aval.dtype) for v in found)


def _bytes(shape, dtype) -> int:
  size = 4 if jnp.issubdtype(dtype, jax.dtypes.prng_key) else np.dtype(dtype).itemsize
  return math.prod(shape) * size
