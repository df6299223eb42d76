"""Programs with positions split over 'seq': their results, and the arrays that they exchange."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lra_spt.distributed import sharding

ROWS, LENGTH = 4, 48
LENGTHS = jnp.array([48, 31, 0, 7], jnp.int32)
MOVES = re.compile(
  r'= (?:\(.*?\)|\S+) (all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\('
)


def moves(text):
  """Counts the operations that move arrays between devices in a compiled program, by name."""
  return dict(collections.Counter(MOVES.findall(text)))


def compiled(function, *arguments):
  return jax.jit(function).lower(*arguments).compile()


def on_one_device(function, *arguments):
  return compiled(function, *arguments)(*arguments)


def on_mesh(shape, function, split, *others):
  """(NumPy results, moves) of function(*split, *others); `split` [B, L, ...] is sharded like activations."""
  mesh = sharding.make_mesh(*shape, devices=jax.devices()[: int(np.prod(shape))])
  with jax.set_mesh(mesh):
    split = jax.device_put(split, NamedSharding(mesh, P(sharding.ROWS, 'seq')))
    program = compiled(function, *split, *others)
    return jax.tree.map(np.asarray, program(*split, *others)), moves(program.as_text())


def assert_close(found, expected, **tolerances):
  pairs = zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True)
  for (path, a), b in pairs:
    np.testing.assert_allclose(a, b, err_msg=jax.tree_util.keystr(path), **tolerances)


def normal(*shape, seed=0):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)
