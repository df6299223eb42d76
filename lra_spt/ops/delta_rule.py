"""The gated delta rule: linear attention whose state forgets the old value of a key before it stores the new
one (Yang et al. 2024, arXiv 2412.06464; without decay the delta rule of arXiv 2406.06484).

Positions are processed in chunks. A position stores the difference between its value and the value that the
state already holds for its key. Within a chunk these differences solve a triangular system (the WY form of
section 3.3). With them in place of the values, the rest is gated linear attention.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from lra_spt.ops.linear_attention import check, chunk_size, chunked, product, sums_of_decays, weights_by_head

DIRECTIONS = ('forward', 'backward')
LARGEST_CHUNK = 64  # inverses take T^2 log T operations per position


def gated_delta_rule(
  q_BLGN: jax.Array,
  k_BLGN: jax.Array,
  v_BLHP: jax.Array,
  log_decay_BLH: jax.Array,
  beta_BLH: jax.Array,
  *,
  direction: str = 'forward',
  chunk: int | None = None,
) -> jax.Array:
  """Queries read a state of every head,

      S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T, y_t = q_t^T S_t,

  which with b_t = 1 and |k_t| = 1 returns exactly v_t for k_t. Positions that must not be stored, such as
  padding, need k = 0.

  Differentiable in reverse mode; the backward pass keeps only the arguments and repeats the forward pass.
  Both passes take memory for L x chunk weights and L / chunk states per head. Works under jit, vmap, scan,
  checkpoint and shard_map, and does not depend on a mesh. Matrix products run in the dtype of q, k and v (for
  float32, in that of `jax.default_matmul_precision`) and accumulate in float32; decays, states and the
  triangular systems are float32.

  Args:
    q_BLGN, k_BLGN: G heads of N channels; each serves H / G consecutive heads of v. The norm of keys should
      be at most 1, and b at most 2: otherwise the state grows.
    log_decay_BLH: log a <= 0, float32. -inf, which empties the state, is allowed.
    beta_BLH: b, float32.
    direction: 'forward' (causal) or 'backward': from the last position, each S_t follows from S_{t+1}.
    chunk: T, positions per chunk, a power of two; it need not divide the length. None: the `chunk_size` of
      linear attention, at most 64.

  Returns:
    y float32 [B, L, H, P].

  Raises:
    ValueError: an unknown direction, a chunk that is not a power of two, or shapes that do not fit together.
  """
  (B, L, G, N), (H, P) = q_BLGN.shape, v_BLHP.shape[2:]
  chunk = min(chunk_size(N, P), LARGEST_CHUNK) if chunk is None else chunk
  check('gated_delta_rule', direction, DIRECTIONS, q_BLGN, k_BLGN, v_BLHP, chunk)
  if log_decay_BLH.shape != (B, L, H) or beta_BLH.shape != (B, L, H):
    raise ValueError(
      f'gated_delta_rule got log decays and beta of shapes {log_decay_BLH.shape} and {beta_BLH.shape}; pass '
      f'one of each per head, {(B, L, H)}'
    )
  heads = (B, L, G, H // G)
  arrays = (
    q_BLGN,
    k_BLGN,
    v_BLHP.reshape(*heads, P),
    log_decay_BLH.reshape(*heads, 1),
    beta_BLH.reshape(*heads, 1),
  )
  if direction == 'backward':
    arrays = [jnp.flip(x, 1) for x in arrays]
  y_BLHP = _sweep(chunk, *arrays).reshape(v_BLHP.shape)
  return checkpoint_name(jnp.flip(y_BLHP, 1) if direction == 'backward' else y_BLHP, 'mixer')


@functools.partial(jax.checkpoint, static_argnums=(0,))
def _sweep(chunk, q_BLGN, k_BLGN, v_BLGRP, g_BLGR1, beta_BLGR1):
  """y [B, L, G, R, P] of one pass that starts at the first position."""
  length, dtype = q_BLGN.shape[1], v_BLGRP.dtype
  q, k, v, g, beta = (chunked(x, chunk) for x in (q_BLGN, k_BLGN, v_BLGRP, g_BLGR1, beta_BLGR1))
  since, until = sums_of_decays(g)  # [B, C, T, G, R, 1]
  beta_BCGRT1, since_BCGRT1, until_BCGRT1 = (jnp.moveaxis(x, 2, 4) for x in (beta, since, until))

  # The differences u solve (I + b_t k_t . k_s decay(t, s) for s < t) u = b v - b decay(t) k S, where S is the
  # state before the chunk.
  inverse_BCGRTS = unit_inverse(beta_BCGRT1 * weights_by_head(k, k, g, False))
  inverse_BCGRTS = inverse_BCGRTS * jnp.swapaxes(beta_BCGRT1, -1, -2)
  u_BCGRTP = _exact(inverse_BCGRTS, jnp.moveaxis(v, 2, 4).astype(jnp.float32))
  if k.shape[1] > 1:
    k_BCG1TN = jnp.moveaxis(k, 2, 3).astype(jnp.float32)[:, :, :, None]
    w_BCGRTN = _exact(inverse_BCGRTS * jnp.exp(jnp.swapaxes(since_BCGRT1, -1, -2)), k_BCG1TN)
    decay_BCGR11 = jnp.exp(since_BCGRT1[..., -1:, :])

    def step(s_BGRNP, of_chunk):
      k_BTGN, w_BGRTN, u_BGRTP, until_BGRT1, decay_BGR11 = of_chunk
      u_BGRTP -= product('bgrtn,bgrnp->bgrtp', w_BGRTN.astype(dtype), s_BGRNP.astype(dtype))
      stored = (u_BGRTP * jnp.exp(until_BGRT1)).astype(dtype)
      return decay_BGR11 * s_BGRNP + product('btgn,bgrtp->bgrnp', k_BTGN, stored), (s_BGRNP, u_BGRTP)

    chunks = (k, w_BCGRTN, u_BCGRTP, until_BCGRT1, decay_BCGR11)
    # `full_like` of an argument: in shard_map the start then varies over devices as the states do.
    states = (*u_BCGRTP.shape[:1], *u_BCGRTP.shape[2:4], k.shape[-1], v.shape[-1])
    start = lax.full_like(u_BCGRTP, 0, shape=states)
    _, (s_CBGRNP, u_CBGRTP) = lax.scan(step, start, [jnp.moveaxis(x, 1, 0) for x in chunks])
    u_BCGRTP = jnp.moveaxis(u_CBGRTP, 0, 1)

  weights_BCGRTS = weights_by_head(q, k, g, True)
  y_BCTGRP = product('bcgrts,bcgrsp->bctgrp', weights_BCGRTS.astype(dtype), u_BCGRTP.astype(dtype))
  if k.shape[1] > 1:
    y_BCTGRP += product('bctgn,cbgrnp->bctgrp', q, s_CBGRNP.astype(dtype)) * jnp.exp(since)
  return y_BCTGRP.reshape(len(v), -1, *v.shape[3:])[:, :length]


def _exact(x, y):
  return jnp.matmul(x, y, precision='highest')


@jax.custom_vjp
def unit_inverse(lower: jax.Array) -> jax.Array:
  """(I + lower)^-1, float32, of strictly lower triangular [..., T, T] with T a power of two.

  It inverts diagonal blocks of 1, 2, 4, ... positions: [[X, 0], [Z, Y]]^-1 = D - D [[0, 0], [Z, 0]] D, where
  D holds X^-1 and Y^-1. Errors of these products do not grow as those of sums of powers of `lower` do.
  Products of whole matrices take more operations than those of blocks, but no more time on CPUs, and TPUs
  would store small blocks as large ones.
  """
  t, s = np.indices(lower.shape[-2:])
  inverse, block = jnp.eye(len(t))[(None,) * (lower.ndim - 2)], 1
  while block < len(t):
    below = (t // block % 2 == 1) & (t // block == s // block + 1)
    z = jnp.where(below[(None,) * (lower.ndim - 2)], lower, 0.0)
    inverse = inverse - (z if block == 1 else _exact(_exact(inverse, z), inverse))
    block *= 2
  return jnp.broadcast_to(inverse, lower.shape)


def _inverse_forward(lower):
  inverse = unit_inverse(lower)
  return inverse, inverse


def _inverse_backward(inverse, d_inverse):
  across = jnp.swapaxes(inverse, -1, -2)
  below = np.tril(np.ones(inverse.shape[-2:], bool), -1)[(None,) * (inverse.ndim - 2)]
  return (jnp.where(below, -_exact(_exact(across, d_inverse), across), 0.0),)


unit_inverse.defvjp(_inverse_forward, _inverse_backward)
