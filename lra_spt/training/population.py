"""Several runs as one program, which differ only in their seeds, learning rates or weight decays.

Their train states are stacked: the first axis of every leaf is the members of the population, split by the
mesh axis 'member'; nothing is exchanged over it. If the number of members is not a multiple of that axis,
copies of the last one fill up. A mesh without the axis is for one run, and then nothing is stacked.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from lra_spt.distributed import sharding
from lra_spt.distributed.sharding import MEMBER

# Where a device takes its members one after the other: products of stacked matrices are slower there, and so
# every number is that of a run by itself, to the last bit.
ONE_BY_ONE = ('cpu',)


def stacks(mesh) -> bool:
  """Whether states are stacked on a mesh."""
  return MEMBER in mesh.shape


def each(function):
  """From `function(shared, *own)` of one run the same of all that the mesh in force trains: leaves of `own`
  and of what comes back are stacked. To be called while tracing; for one run it is `function`."""
  axes = jax.sharding.get_abstract_mesh().shape
  if MEMBER not in axes:
    return function
  if sharding.platform() in ONE_BY_ONE and axes[MEMBER] == 1:
    return lambda shared, *own: lax.map(lambda own: function(shared, *own), own)

  def stacked(shared, *own):
    in_axes = (None, *(0 for _ in own))
    return jax.vmap(function, in_axes=in_axes, spmd_axis_name=MEMBER)(shared, *own)

  return stacked


def stack(trees: list, mesh):
  """One stacked tree from those of the members; the only one itself on a mesh of one run."""
  return _stacking(mesh)(filled(trees, mesh)) if stacks(mesh) else trees[0]


def filled(parts: list, mesh) -> list:
  """As many parts as a stack has: the last one again, where there are fewer members."""
  return [*parts, *parts[-1:] * (-len(parts) % mesh.shape.get(MEMBER, 1))]


def abstract(tree, count: int, mesh):
  """ShapeDtypeStructs of one run, with shardings, stacked for `count` members."""
  if not stacks(mesh):
    return tree
  stacked = len(filled([None] * count, mesh))
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((stacked, *x.shape), x.dtype, sharding=_stacked(x.sharding)), tree
  )


def member(tree, i: int, mesh):
  """What a stacked tree holds of member i, laid out as that of a run by itself."""
  return _taking(mesh)(tree, np.int32(i)) if stacks(mesh) else tree


def numbers(tree, count: int, mesh) -> list:
  """A tree of scalars as NumPy, of each of the first `count` members, mostly one."""
  found = to_host(tree, mesh)
  return [jax.tree.map(lambda x, i=i: x[i], found) if stacks(mesh) else found for i in range(count)]


def to_host(tree, mesh):
  """Stacked arrays as NumPy, also where other processes hold the other members."""
  return jax.device_get(_gathering(mesh)(tree) if jax.process_count() > 1 else tree)


def from_numbers(trees: list, like, mesh):
  """The inverse of `numbers`, laid out as `like`."""
  shardings = jax.tree.map(lambda x: x.sharding, like)
  if not stacks(mesh):
    return jax.device_put(trees[0], shardings)
  return jax.device_put(jax.tree.map(lambda *x: np.stack(x), *filled(trees, mesh)), shardings)


@functools.cache
def _stacking(mesh):
  def run(trees):
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *trees)
    shardings = jax.tree.map(_stacked, sharding.state_shardings(trees[0], mesh))
    return lax.with_sharding_constraint(stacked, shardings)

  return jax.jit(run)


def _stacked(one):
  return NamedSharding(one.mesh, PartitionSpec(MEMBER, *one.spec))


@functools.cache
def _taking(mesh):
  def run(tree, i):
    one = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, i, keepdims=False), tree)
    return lax.with_sharding_constraint(one, sharding.state_shardings(one, mesh))

  return jax.jit(run)


@functools.cache
def _gathering(mesh):
  return jax.jit(lambda tree: tree, out_shardings=sharding.replicated(mesh))
