"""The delta rule: linear attention whose state forgets the old value of a key before it stores the new one
(Yang et al. 2024, arXiv 2406.06484). In later models the state also decays, per head (Gated DeltaNet,
2412.06464) or per channel of the keys (Kimi Linear, 2510.26692); a position has several keys (DeltaProduct,
2502.10297); or a vector other than the key reads the old value (RWKV-7, 2503.14456; Gated DeltaNet-2,
2605.22791).

Positions are processed in chunks. A position stores the difference between its value and the value that the
state already holds for its key. Within a chunk these differences solve a triangular system (the WY form of
arXiv 2412.06464, section 3.3). With them in place of the values, the rest is gated linear attention.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from lra_spt.ops.linear_attention import (
  check,
  chunk_size,
  chunked,
  product,
  scaled,
  sums_of_decays,
  weights_by_channel,
  weights_by_head,
)

DIRECTIONS = ('forward', 'backward')
LARGEST_CHUNK = 64  # inverses take T^2 log T operations per position


def delta_rule(
  q_BLGN: jax.Array,
  k_BFGN: jax.Array,
  v_BFHP: jax.Array,
  log_decay: jax.Array | None = None,
  beta_BFH: jax.Array | None = None,
  erase_BFGN: jax.Array | None = None,
  *,
  direction: str = 'forward',
  chunk: int | None = None,
) -> jax.Array:
  """Queries read a state of every head,

      S_t = (I - b_t k_t e_t^T) a_t S_{t-1} + b_t k_t v_t^T, y_t = q_t^T S_t,

  where e = k unless it is given. With b_t = 1 and |k_t| = 1 the state then returns exactly v_t for k_t.
  Positions that must not be stored, such as padding, need k = 0.

  With F = J L a position has J factors I - b k e^T. The factors of position t have the indices t J to t J + J
  - 1 and are applied in this order, each with its own b k v^T, after the state has decayed and before it is
  read.

  Differentiable in reverse mode; the backward pass keeps only the arguments and repeats the forward pass.
  Both passes take memory for F x chunk weights and F / chunk states per head. Works under jit, vmap, scan,
  checkpoint and shard_map, and does not depend on a mesh. Matrix products run in the dtype of q, k and v (for
  float32, in that of `jax.default_matmul_precision`) and accumulate in float32; decays, states and the
  triangular systems are float32.

  Args:
    q_BLGN, k_BFGN: G heads of N channels; each serves H / G consecutive heads of v. The product of the norms
      of b k and e should be at most 2: otherwise the state grows.
    log_decay: log a <= 0, float32 [B, L, H], or, if G = H, [B, L, H, N] for a diagonal matrix a. -inf, which
      empties the state, is allowed. None: nothing decays.
    beta_BFH: b, float32. None: 1.
    erase_BFGN: e, in the dtype of k. None: k.
    direction: 'forward' (causal) or 'backward': from the last position, each S_t follows from S_{t+1}.
    chunk: T, the number of factors per chunk, a power of two; it need not divide F. None: the `chunk_size` of
      linear attention, at most 64.

  Returns:
    y float32 [B, L, H, P].

  Raises:
    ValueError: an unknown direction, a chunk that is not a power of two, or shapes that do not fit together.
  """
  (B, L, G, N), (F, H, P) = q_BLGN.shape, v_BFHP.shape[1:]
  chunk = min(chunk_size(N, P), LARGEST_CHUNK) if chunk is None else chunk
  shapes = [None if x is None else x.shape for x in (k_BFGN, v_BFHP, log_decay, beta_BFH, erase_BFGN)]
  keys, by_head = (B, F, G, N), (None, (B, L, H))
  wanted = (
    (keys,),
    ((B, F, H, P),),
    (*by_head, (B, L, H, N)) if G == H else by_head,
    (None, (B, F, H)),
    (None, keys),
  )
  if not L or F % L or H % G or any(shape not in those for shape, those in zip(shapes, wanted, strict=True)):
    raise ValueError(
      f'delta_rule got q, k, v, log decays, beta and erase of shapes {q_BLGN.shape}, '
      f'{", ".join(map(str, shapes))}; pass [B, L, G, N], [B, F, G, N], [B, F, H, P], [B, L, H] (or, if '
      'G = H, [B, L, H, N]), [B, F, H] and [B, F, G, N], where L divides F and G divides H'
    )
  check('delta_rule', direction, DIRECTIONS, k_BFGN, k_BFGN, v_BFHP, chunk)
  log_decay = jnp.zeros((B, L, H)) if log_decay is None else log_decay
  arrays = (
    q_BLGN,
    k_BFGN,
    v_BFHP.reshape(B, F, G, H // G, P),
    log_decay.reshape(B, L, G, H // G, -1),
    None if beta_BFH is None else beta_BFH.reshape(B, F, G, H // G, 1),
    erase_BFGN,
  )

  def flipped(x):  # positions, but not the factors of one
    if x.shape[1] == L:
      return jnp.flip(x, 1)
    return jnp.flip(x.reshape(B, L, -1, *x.shape[2:]), 1).reshape(x.shape)

  backward = direction == 'backward'
  y_BLHP = _sweep(chunk, *(jax.tree.map(flipped, arrays) if backward else arrays)).reshape(B, L, H, P)
  return checkpoint_name(flipped(y_BLHP) if backward else y_BLHP, 'mixer')


@functools.partial(jax.checkpoint, static_argnums=(0,))
def _sweep(chunk, q_BLGN, k_BFGN, v_BFGRP, g_BLGRM, beta_BFGR1, erase_BFGN):
  """y [B, L, G, R, P] of one pass that starts at the first position. M is 1 (decays per head) or N."""
  length, factors, dtype = q_BLGN.shape[1], k_BFGN.shape[1] // q_BLGN.shape[1], v_BFGRP.dtype
  # From here on every factor is a position: the first of each decays the state, the last one reads it.
  arrays = (_among(q_BLGN, factors, -1), k_BFGN, v_BFGRP, _among(g_BLGRM, factors, 0), beta_BFGR1, erase_BFGN)
  q, k, v, g, beta, erase = jax.tree.map(lambda x: chunked(x, chunk), arrays)  # [B, C, T, ...]
  erase = k if erase is None else erase
  weigh = weights_by_head if (by_head := g.shape[-1] == 1) else weights_by_channel
  since, until = sums_of_decays(g)

  # The differences u solve (I + b_t e_t . k_s decay(t, s) for s < t) u = b v - b decay(t) e S, where S is the
  # state before the chunk.
  lower_BCGRTS = weigh(erase, k, g, False)
  if beta is None:
    inverse_BCGRTS = unit_inverse(lower_BCGRTS)
  else:
    beta_BCGRT1 = jnp.moveaxis(beta, 2, 4)
    inverse_BCGRTS = unit_inverse(beta_BCGRT1 * lower_BCGRTS) * jnp.swapaxes(beta_BCGRT1, -1, -2)
  u_BCGRTP = _exact(inverse_BCGRTS, jnp.moveaxis(v, 2, 4).astype(jnp.float32))
  if k.shape[1] > 1:
    # One decay per head scales values and results, which are narrower than states. Decays per channel scale
    # keys and queries.
    since_BCGRTM, until_BCGRTM = (jnp.moveaxis(x, 2, 4) for x in (since, until))
    erase_BCG1TN = jnp.moveaxis(erase, 2, 3).astype(jnp.float32)[:, :, :, None]
    if by_head:
      w_BCGRTN = _exact(inverse_BCGRTS * jnp.exp(jnp.swapaxes(since_BCGRTM, -1, -2)), erase_BCG1TN)
      keys, queries = k, q
    else:
      w_BCGRTN = _exact(inverse_BCGRTS, erase_BCG1TN * jnp.exp(since_BCGRTM))
      keys, queries, until_BCGRTM = scaled(k, until[..., 0, :]), scaled(q, since[..., 0, :]), None
    decay_BCGRM1 = jnp.exp(jnp.swapaxes(since_BCGRTM[..., -1:, :], -1, -2))

    def step(s_BGRNP, of_chunk):
      k_BTGN, w_BGRTN, u_BGRTP, until_BGRT1, decay_BGRM1 = of_chunk
      u_BGRTP -= product('bgrtn,bgrnp->bgrtp', w_BGRTN.astype(dtype), s_BGRNP.astype(dtype))
      stored = (u_BGRTP if until_BGRT1 is None else u_BGRTP * jnp.exp(until_BGRT1)).astype(dtype)
      return decay_BGRM1 * s_BGRNP + product('btgn,bgrtp->bgrnp', k_BTGN, stored), (s_BGRNP, u_BGRTP)

    chunks = jax.tree.map(
      lambda x: jnp.moveaxis(x, 1, 0), (keys, w_BCGRTN, u_BCGRTP, until_BCGRTM, decay_BCGRM1)
    )
    # `full_like` of an argument: in shard_map the start then varies over devices as the states do.
    states = (*u_BCGRTP.shape[:1], *u_BCGRTP.shape[2:4], k.shape[-1], v.shape[-1])
    start = lax.full_like(u_BCGRTP, 0, shape=states)
    _, (s_CBGRNP, u_CBGRTP) = lax.scan(step, start, chunks)
    u_BCGRTP = jnp.moveaxis(u_CBGRTP, 0, 1)

  weights_BCGRTS = weigh(q, k, g, True)
  y_BCTGRP = product('bcgrts,bcgrsp->bctgrp', weights_BCGRTS.astype(dtype), u_BCGRTP.astype(dtype))
  if k.shape[1] > 1:
    carried_BCTGRP = product('bctgn,cbgrnp->bctgrp', queries, s_CBGRNP.astype(dtype))
    y_BCTGRP += carried_BCTGRP * jnp.exp(since) if by_head else carried_BCTGRP
  y_BFGRP = y_BCTGRP.reshape(len(v), -1, *v.shape[3:])
  return y_BFGRP[:, factors - 1 : length * factors : factors]


def _among(x_BL, factors, place):
  """[B, L, ...] -> [B, F, ...]: x at one of the factors of each position, 0 at the others."""
  if factors == 1:
    return x_BL
  x_BLJ = jnp.zeros((*x_BL.shape[:2], factors, *x_BL.shape[2:]), x_BL.dtype).at[:, :, place].set(x_BL)
  return x_BLJ.reshape(len(x_BL), -1, *x_BL.shape[2:])


def delta_rule_step(
  state_BHNP: jax.Array,
  q_BJGN: jax.Array,
  k_BJGN: jax.Array,
  v_BJHP: jax.Array,
  log_decay: jax.Array | None = None,
  beta_BJH: jax.Array | None = None,
  erase_BJGN: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """One position of `delta_rule`, forward: (the state after it, y float32 [B, H, P]). J is the number of its
  factors, but 1 for q. The log decay is [B, 1, H] or [B, 1, H, N]."""
  heads = state_BHNP.shape[1]
  erase_BJGN = k_BJGN if erase_BJGN is None else erase_BJGN
  q_BJHN, k_BJHN, erase_BJHN = (jnp.repeat(x, heads // x.shape[2], 2) for x in (q_BJGN, k_BJGN, erase_BJGN))
  if log_decay is not None:
    state_BHNP = jnp.exp(log_decay).reshape(*state_BHNP.shape[:2], -1, 1) * state_BHNP
  for j in range(k_BJGN.shape[1]):
    new_BHP = v_BJHP[:, j] - jnp.einsum('bhn,bhnp->bhp', erase_BJHN[:, j], state_BHNP)
    new_BHP = new_BHP if beta_BJH is None else beta_BJH[:, j, :, None] * new_BHP
    state_BHNP = state_BHNP + k_BJHN[:, j, ..., None] * new_BHP[:, :, None]
  return state_BHNP, jnp.einsum('bhn,bhnp->bhp', q_BJHN[:, 0], state_BHNP)


def _exact(x, y):
  return jnp.matmul(x, y, precision='highest')


@jax.custom_vjp
def unit_inverse(lower: jax.Array) -> jax.Array:
  """(I + lower)^-1, float32, of strictly lower triangular [..., T, T] with T a power of two.

  It inverts diagonal blocks of 1, 2, 4, ... positions: [[X, 0], [Z, Y]]^-1 = D - D [[0, 0], [Z, 0]] D, where
  D holds X^-1 and Y^-1. Errors of these products do not grow as those of sums of powers of `lower` do.
  Products of whole matrices take more operations than those of blocks, but no more time on CPUs, and TPUs
  would store small blocks as large ones. The sizes are a loop, because the compiler for TPUs takes seconds
  for each exact product.
  """
  t, s = np.indices(lower.shape[-2:])
  blocks = [1 << i for i in range(max(1, len(t).bit_length() - 1))]
  below = np.stack([(t // block % 2 == 1) & (t // block == s // block + 1) for block in blocks])
  below = below[(slice(None), *(None,) * (lower.ndim - 2))]

  def merged(inverse, below):
    return inverse - _exact(_exact(inverse, jnp.where(below, lower, 0.0)), inverse), None

  singles = jnp.eye(len(t))[(None,) * (lower.ndim - 2)] - jnp.where(below[0], lower, 0.0)
  return lax.scan(merged, singles, below[1:])[0]


def _inverse_forward(lower):
  inverse = unit_inverse(lower)
  return inverse, inverse


def _inverse_backward(inverse, d_inverse):
  across = jnp.swapaxes(inverse, -1, -2)
  below = np.tril(np.ones(inverse.shape[-2:], bool), -1)[(None,) * (inverse.ndim - 2)]
  return (jnp.where(below, -_exact(_exact(across, d_inverse), across), 0.0),)


unit_inverse.defvjp(_inverse_forward, _inverse_backward)
