"""The memory of TTT-Linear (Sun et al. 2024, arXiv 2407.04620): a linear model that gradient descent trains
on the sequence while it is read.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

EPSILON = 1e-6


def ttt_linear(
  q_BLHN: jax.Array,
  k_BLHN: jax.Array,
  v_BLHN: jax.Array,
  rate_BLH: jax.Array,
  memory: tuple[jax.Array, jax.Array],
  norm: tuple[jax.Array, jax.Array],
  token_T: jax.Array,
  *,
  reverse: bool = False,
) -> jax.Array:
  """y_t = q_t + f(q_t; W_t, b_t) with f(x; W, b) = LayerNorm(x W + b).

  The loss of position s is |f(k_s; W, b) - (v_s - k_s)|^2 / 2. Its gradients are taken at the W and b of the
  last position of the mini-batch before, so all positions of a mini-batch are computed at once. W_t is this W
  minus token_i times the sum of rate_s times the gradients of positions s up to t of the mini-batch, where t
  is position i of its T positions; so is b_t.

  Args:
    q_BLHN, k_BLHN, v_BLHN: float32.
    rate_BLH: float32; 0 at positions that must not be learned from, such as padding.
    memory: the first W [H, N, N] and b [H, N].
    norm: scale and bias of LayerNorm, [H, N].
    token_T: float32.
    reverse: read from the last position, with the same mini-batches.

  Returns:
    y float32 [B, L, H, N].
  """
  length, size = q_BLHN.shape[1], len(token_T)

  def chunks(x):
    x = jnp.pad(x, ((0, 0), (0, -length % size)) + ((0, 0),) * (x.ndim - 2))
    x = x.reshape(len(x), -1, size, *x.shape[2:])
    return jnp.moveaxis(jnp.flip(x, (1, 2)) if reverse else x, (1, 3), (0, 2))  # [C, B, H, T, ...]

  arrays = tuple(chunks(x) for x in (q_BLHN, k_BLHN, v_BLHN, rate_BLH))
  start = tuple(jnp.broadcast_to(x[None], (len(q_BLHN), *x.shape)) for x in memory)
  step = jax.checkpoint(functools.partial(_mini_batch, norm, token_T))
  y_CBHTN = lax.scan(step, start, arrays)[1]
  y_BCTHN = jnp.moveaxis(y_CBHTN, (0, 2), (1, 3))
  y_BCTHN = jnp.flip(y_BCTHN, (1, 2)) if reverse else y_BCTHN
  y_BLHN = y_BCTHN.reshape(len(q_BLHN), -1, *q_BLHN.shape[2:])[:, :length]
  return checkpoint_name(y_BLHN, 'mixer')


def _mini_batch(norm, token_T, memory, arrays):
  """((W, b) after a mini-batch, y [B, H, T, N])."""
  (w_BHNN, b_BHN), (q, k, v, rate_BHT) = memory, arrays
  d_f = gradient(k @ w_BHNN + b_BHN[:, :, None], v - k, norm)
  eta_BHTS = token_T[None, None, :, None] * rate_BHT[:, :, None]
  eta_BHTS = jnp.where(np.tri(len(token_T), dtype=bool)[None, None], eta_BHTS, 0.0)
  read = q @ w_BHNN + b_BHN[:, :, None] - (eta_BHTS * (q @ jnp.swapaxes(k, 2, 3) + 1)) @ d_f
  last_BHS1 = eta_BHTS[:, :, -1, :, None]
  w_BHNN = w_BHNN - jnp.swapaxes(last_BHS1 * k, 2, 3) @ d_f
  return (w_BHNN, b_BHN - jnp.sum(last_BHS1 * d_f, axis=2)), q + layer_norm(read, norm)


def _standardised(x):
  x = x - jnp.mean(x, axis=-1, keepdims=True)
  deviation = jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + EPSILON)
  return x / deviation, deviation


def layer_norm(x_BHTN: jax.Array, norm: tuple[jax.Array, jax.Array]) -> jax.Array:
  """LayerNorm with a scale and a bias [H, N] per head."""
  scale, bias = (x[None, :, None] for x in norm)
  return _standardised(x_BHTN)[0] * scale + bias


def gradient(x_BHTN: jax.Array, target_BHTN: jax.Array, norm: tuple[jax.Array, jax.Array]) -> jax.Array:
  """The gradient by x of |layer_norm(x) - target|^2 / 2."""
  scale, bias = (x[None, :, None] for x in norm)
  unit, deviation = _standardised(x_BHTN)
  d_unit = (unit * scale + bias - target_BHTN) * scale
  d_unit = d_unit - jnp.mean(d_unit, -1, keepdims=True) - unit * jnp.mean(d_unit * unit, -1, keepdims=True)
  return d_unit / deviation
