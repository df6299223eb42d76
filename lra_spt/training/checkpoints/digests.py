"""Checksums of the leaves of a state: any flipped bit changes them, and no sharding does.

The bits of element i are read as an unsigned number and multiplied by an odd number that depends on i; the
checksum is the sum modulo 2^32. The factors are odd, so every change of a single element changes it; other
damage goes unnoticed once in 2^32 times. Sums of integers are exact in any order, so each device sums its
part.
"""

import functools
import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec


def digests(tree) -> jax.Array:
  """Returns uint32 [leaves], the checksum of each leaf of a tree, in the order of `jax.tree.leaves`."""
  leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
  sharding = whole(leaves[0])
  program = _program(sharding)  # of one leaf: shapes differ less than trees, so fewer programs are compiled
  return jax.device_put(np.stack(jax.device_get([program(x) for x in leaves])), sharding)


def of_all(tree) -> str:
  """Returns one checksum of all leaves of a tree of arrays, 16 hexadecimal digits."""
  return hashlib.sha256(np.asarray(digests(tree)).tobytes()).hexdigest()[:16]


def whole(x) -> NamedSharding | None:
  """The sharding of an array that every device of x's mesh holds whole; None if x has no mesh."""
  return NamedSharding(x.sharding.mesh, PartitionSpec()) if isinstance(x.sharding, NamedSharding) else None


@functools.cache
def _program(sharding):
  return jax.jit(_digest, out_shardings=sharding)


def _digest(x) -> jax.Array:
  """Returns the checksum of an array of numbers or booleans, uint32 []."""
  if jnp.iscomplexobj(x):
    x = jnp.stack([x.real, x.imag], axis=-1)
  bits = x if x.dtype == bool else lax.bitcast_convert_type(x, f'uint{8 * x.dtype.itemsize}')
  factor = jnp.uint32(0x9E3779B1)
  for axis in range(x.ndim):  # hashes the position axis by axis, since reshaping would move sharded data
    factor = (factor ^ lax.broadcasted_iota(jnp.uint32, x.shape, axis)) * jnp.uint32(0x85EBCA6B)
    factor ^= factor >> jnp.uint32(13)
  return jnp.sum(bits.astype(jnp.uint32) * (factor | jnp.uint32(1)), dtype=jnp.uint32)
