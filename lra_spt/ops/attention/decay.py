"""Decays of keys with the distance to the query, which depend on the input (forget gates).

The bias of a pair is a difference of running sums. Over thousands of positions these sums grow so large that
their rounding would show in the difference, so each of them is stored as two numbers, high + low.
"""

import jax
import jax.numpy as jnp
from jax import lax


def checked(log_decay_BMHX: jax.Array, q_BLHK: jax.Array, k_BMHK: jax.Array, q_offset) -> None:
  """Raises ValueError unless decays, queries and keys fit together."""
  shape = k_BMHK.shape[:3]
  if log_decay_BMHX.shape not in ((*shape, 1), (*shape, 2)) or log_decay_BMHX.dtype not in (
    jnp.float32,
    jnp.float64,
  ):
    raise ValueError(
      f'log_decay_BMHX is {log_decay_BMHX.dtype} of shape {log_decay_BMHX.shape}; pass float32 of shape '
      f'{(*shape, 1)}, or {(*shape, 2)} where queries see later keys'
    )
  first = 0 if isinstance(q_offset, jax.core.Tracer) else q_offset
  if first < 0 or first + q_BLHK.shape[1] > shape[1]:
    raise ValueError(
      f'attention with log_decay_BMHX got {q_BLHK.shape[1]} queries from position {q_offset} on and '
      f'{shape[1]} keys; decays need queries at positions of keys'
    )


def running_sums(log_decay_BMHX: jax.Array) -> jax.Array:
  """[B, M, H, 2X]: for every position the sum up to and with it and, if X is 2, that of the second log decays
  from it on. High parts stand before low parts."""
  first = _summed(log_decay_BMHX[..., :1])
  if log_decay_BMHX.shape[-1] == 1:
    return jnp.concatenate(first, axis=-1)
  second = (jnp.flip(x, 1) for x in _summed(jnp.flip(log_decay_BMHX[..., 1:], 1)))
  return jnp.concatenate(
    [jnp.concatenate(pair, axis=-1) for pair in zip(first, second, strict=True)], axis=-1
  )


@jax.custom_vjp
def _summed(x_BMHX):
  """Sums over axis 1 up to and with each position, as (high, low)."""

  def add(first, second):
    (a, a_low), (b, b_low) = first, second
    total = a + b
    rounded = total - a
    low = (a - (total - rounded)) + (b - rounded) + (a_low + b_low)  # the first two are what `total` lost
    high = total + low
    return high, low - (high - total)

  return lax.associative_scan(add, (x_BMHX, jnp.zeros_like(x_BMHX)), axis=1)


def _summed_backward(_, cotangents):
  """Differences of sums have the same derivative by the high and by the low part."""
  return (jnp.flip(jnp.cumsum(jnp.flip(cotangents[0], 1), axis=1), 1),)


_summed.defvjp(lambda x: (_summed(x), None), _summed_backward)


def bias_of_pairs(q_XT: jax.Array, k_SX: jax.Array) -> jax.Array:
  """The bias [S, T] of queries and keys with these sums [2X, T] and [S, 2X]."""
  return _smaller(_differences(q_XT, k_SX))


def gradient_of_pairs(q_XT: jax.Array, k_SX: jax.Array, d_bias_ST: jax.Array):
  """The gradients [2X, T] and [S, 2X] of the sums."""
  differences = _differences(q_XT, k_SX)
  parts = [d_bias_ST]
  if len(differences) == 2:
    before_ST = differences[0] <= differences[1]
    parts = [jnp.where(before_ST, d_bias_ST, 0), jnp.where(before_ST, 0, d_bias_ST)]
  return jnp.stack([part.sum(0) for part in parts] * 2), -jnp.stack(
    [part.sum(1) for part in parts] * 2, axis=-1
  )


def _differences(q_XT, k_SX):
  count = len(q_XT) // 2

  def difference(i):
    return q_XT[i][None] - k_SX[:, i][:, None]

  return [difference(i) + difference(count + i) for i in range(count)]


def _smaller(differences):
  """Sums only fall along their direction: towards the other side, the difference is positive."""
  return differences[0] if len(differences) == 1 else jnp.minimum(*differences)
