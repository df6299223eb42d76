"""A digest of every leaf of a state: any flipped bit changes it, and no sharding does.

The bits of element i are taken as an unsigned number and multiplied by an odd number that depends on i; the
digest is the sum modulo 2^32. Because the factors are odd, no change of a single element goes unnoticed;
other damage goes unnoticed once in 2^32 times. Sums of integers are exact in any order, so devices sum what
they hold.
"""

import functools
import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec


def digests(tree) -> jax.Array:
  """uint32 [leaves], the digest of each leaf of a tree of arrays, in the order of `jax.tree.leaves`."""
  leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
  sharding = whole(leaves[0])
  program = _program(sharding)  # for one leaf: shapes are few, and every tree would be compiled anew
  return jax.device_put(np.stack(jax.device_get([program(x) for x in leaves])), sharding)


def of_all(tree) -> str:
  """One digest of all leaves of a tree of arrays, 16 hexadecimal digits."""
  return hashlib.sha256(np.asarray(digests(tree)).tobytes()).hexdigest()[:16]


def whole(x) -> NamedSharding | None:
  """The sharding of an array that every device of x's mesh holds; None where x has no mesh."""
  return NamedSharding(x.sharding.mesh, PartitionSpec()) if isinstance(x.sharding, NamedSharding) else None


@functools.cache
def _program(sharding):
  return jax.jit(_digest, out_shardings=sharding)


def _digest(x) -> jax.Array:
  """uint32 [] of an array of numbers or booleans."""
  if jnp.iscomplexobj(x):
    x = jnp.stack([x.real, x.imag], axis=-1)
  bits = x if x.dtype == bool else lax.bitcast_convert_type(x, f'uint{8 * x.dtype.itemsize}')
  factor = jnp.uint32(0x9E3779B1)
  for axis in range(x.ndim):  # a hash of the position, axis by axis: what is sharded is not reshaped
    factor = (factor ^ lax.broadcasted_iota(jnp.uint32, x.shape, axis)) * jnp.uint32(0x85EBCA6B)
    factor ^= factor >> jnp.uint32(13)
  return jnp.sum(bits.astype(jnp.uint32) * (factor | jnp.uint32(1)), dtype=jnp.uint32)
