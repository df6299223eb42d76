"""Populations: several runs, which differ only in seed, learning rate or weight decay, as one program.

Their train states are stacked: the first axis of every leaf counts the members and is split over the mesh
axis 'member'; nothing is exchanged over it. If the number of members is not a multiple of that axis, copies
of the last member fill it up. A mesh without the axis is for one run, and nothing is stacked.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from lra_spt.distributed import sharding
from lra_spt.distributed.sharding import MEMBER

# On these platforms a device computes its members one after the other. Products of stacked matrices are
# slower there, and so every number equals that of a run alone, to the last bit.
ONE_BY_ONE = ('cpu',)


def stacks(mesh) -> bool:
  """Says if states are stacked on a mesh."""
  return MEMBER in mesh.shape


def each(function):
  """Turns `function(shared, *stacks)` of one run into the same function of all members of the current mesh.

  The leaves of `stacks` and of the result are stacked. Call it while tracing. On a mesh of one run it returns
  `function` itself.
  """
  axes = jax.sharding.get_abstract_mesh().shape
  if MEMBER not in axes:
    return function
  if sharding.platform() in ONE_BY_ONE and axes[MEMBER] == 1:
    return lambda shared, *stacks: lax.map(lambda stacks: function(shared, *stacks), stacks)

  def stacked(shared, *stacks):
    in_axes = (None, *(0 for _ in stacks))
    return jax.vmap(function, in_axes=in_axes, spmd_axis_name=MEMBER)(shared, *stacks)

  return stacked


def stack(trees: list, mesh):
  """Stacks the trees of the members; returns the only tree on a mesh of one run."""
  return _stacking(mesh)(filled(trees, mesh)) if stacks(mesh) else trees[0]


def filled(parts: list, mesh) -> list:
  """Repeats the last part until there are as many parts as a stack has."""
  return [*parts, *parts[-1:] * (-len(parts) % mesh.shape.get(MEMBER, 1))]


def abstract(tree, count: int, mesh):
  """Stacks the ShapeDtypeStructs of one run, which have shardings, for `count` members."""
  if not stacks(mesh):
    return tree
  stacked = len(filled([None] * count, mesh))
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((stacked, *x.shape), x.dtype, sharding=_stacked(x.sharding)), tree
  )


def member(tree, i: int, mesh):
  """Returns the tree of member i from a stacked tree, laid out like that of one run."""
  return _taking(mesh)(tree, np.int32(i)) if stacks(mesh) else tree


def numbers(tree, count: int, mesh) -> list:
  """Returns a tree of scalars as NumPy for each of the first `count` members."""
  host = to_host(tree, mesh)
  return [jax.tree.map(lambda x, i=i: x[i], host) if stacks(mesh) else host for i in range(count)]


def to_host(tree, mesh):
  """Returns stacked arrays as NumPy, also if other processes hold some of the members."""
  return jax.device_get(gathering(mesh)(tree) if jax.process_count() > 1 else tree)


def from_numbers(trees: list, like, mesh):
  """Inverts `numbers`; the result is laid out like `like`."""
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
def gathering(mesh):
  """Returns a jitted function that makes every device hold the whole arrays of a tree."""
  return jax.jit(lambda tree: tree, out_shardings=sharding.replicated(mesh))
