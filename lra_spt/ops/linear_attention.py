"""Gated linear attention: y_t = sum over s of (q_t . k_s) v_s, with each term decayed from s to t.

With one decay per head this is SSD (Dao and Gu 2024, arXiv 2405.21060); with one per channel of the keys it
is GLA (Yang et al. 2023, arXiv 2312.06635); without decay it is the linear attention of Katharopoulos et al.
2020 (arXiv 2006.16236). Positions are processed in chunks: matrix products within each chunk, and a
recurrence over the states [N, P] between chunks.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from lra_spt.ops.scan import linear_scan

DIRECTIONS = ('forward', 'backward', 'both')


def linear_attention(
  q_BLGN: jax.Array,
  k_BLGN: jax.Array,
  v_BLHP: jax.Array,
  log_decay: jax.Array | None = None,
  *,
  direction: str = 'forward',
  include_self: bool = True,
  chunk: int | None = None,
) -> jax.Array:
  """Queries read a state S_t = a_t S_{t-1} + k_t v_t^T of every head: y_t = q_t^T S_t, without scale or
  normaliser.

  'backward' runs S_t = a_t S_{t+1} + k_t v_t^T from the last position. 'both' adds the two directions and
  counts k_t v_t^T once: a pair of positions s < t is decayed by a_{s+1} ... a_t for the query at t, and by
  a_s ... a_{t-1} for the query at s. Positions that must not be read, such as padding, need k = 0.

  Differentiable in reverse mode; the backward pass keeps only the arguments and repeats the forward pass.
  Both passes take memory for L x chunk weights and L / chunk states per head. Works under jit, vmap, scan,
  checkpoint and shard_map, and does not depend on a mesh. Matrix products run in the dtype of q, k and v (for
  float32, in that of `jax.default_matmul_precision`) and accumulate in float32; decays and states are
  float32.

  Args:
    q_BLGN, k_BLGN: G heads of N channels; each serves H / G consecutive heads of v.
    log_decay: log a <= 0, float32 [B, L, H], or [B, L, G, N] for a diagonal matrix a per head. -inf, which
      empties the state, is allowed. None: nothing decays.
    direction: 'forward' (causal), 'backward' or 'both'.
    include_self: False: a query reads a_t S_{t-1}, without its own position; not for 'both'.
    chunk: T, positions per chunk, a power of two; it need not divide the length. None: see `chunk_size`.

  Returns:
    y float32 [B, L, H, P].

  Raises:
    ValueError: an unknown direction, a chunk that is not a power of two, shapes that do not fit together, or
      'both' without the query's own position.
  """
  (B, L, G, N), (H, P) = q_BLGN.shape, v_BLHP.shape[2:]
  chunk = chunk_size(N, P) if chunk is None else chunk
  check('linear_attention', direction, DIRECTIONS, q_BLGN, k_BLGN, v_BLHP, chunk)
  if log_decay is not None and log_decay.shape not in ((B, L, H), (B, L, G, N)):
    raise ValueError(
      f'linear_attention got log decays of shape {log_decay.shape}; pass one per head, {(B, L, H)}, or one '
      f'per channel of the keys, {(B, L, G, N)}'
    )
  if direction == 'both' and not include_self:
    raise ValueError(
      "linear_attention in the direction 'both' reads the position of the query; call it twice"
    )
  # Each of R heads of v has one decay (g ends with 1), or all share the decays of their keys.
  if log_decay is not None and log_decay.ndim == 3:
    v_BLGRP, g_BLGRN = v_BLHP.reshape(B, L, G, H // G, P), log_decay.reshape(B, L, G, H // G, 1)
  else:
    v_BLGRP = v_BLHP.reshape(B, L, G, 1, H // G * P)
    g_BLGRN = None if log_decay is None else log_decay[..., None, :]

  if direction == 'both' and log_decay is None:
    y_BLGRP = _read(q_BLGN, product('blgn,blgrp->bgrnp', k_BLGN, v_BLGRP), 'blgn,bgrnp->blgrp')
  else:
    arrays, y_BLGRP = (q_BLGN, k_BLGN, v_BLGRP, g_BLGRN), 0
    if direction != 'backward':
      y_BLGRP = _sweep(chunk, include_self, *arrays)
    if direction != 'forward':
      include_self &= direction == 'backward'
      backward = _sweep(chunk, include_self, *jax.tree.map(lambda v: jnp.flip(v, 1), arrays))
      y_BLGRP += jnp.flip(backward, 1)
  return checkpoint_name(y_BLGRP.reshape(B, L, H, P), 'mixer')


def check(name: str, direction: str, directions, q_BLGN, k_BLGN, v_BLHP, chunk: int) -> None:
  """Raises ValueError, in the name of the operation `name`, unless the direction is one of `directions`,
  queries, keys and values fit together, and the chunk is a power of two."""
  B, L, G, _ = q_BLGN.shape
  if direction not in directions:
    raise ValueError(f'{name} direction {direction!r} is unknown; choose {", ".join(directions)}')
  if chunk < 1 or chunk & (chunk - 1):
    raise ValueError(f'{name} got chunk={chunk}; choose a power of two')
  if k_BLGN.shape != q_BLGN.shape or v_BLHP.shape[:2] != (B, L) or v_BLHP.shape[2] % G or not L:
    raise ValueError(
      f'{name} got q, k and v of shapes {q_BLGN.shape}, {k_BLGN.shape} and {v_BLHP.shape}; pass q and k as '
      '[B, L, G, N] and v as [B, L, H, P], where G divides H and L is at least 1'
    )


def chunk_size(keys: int, values: int) -> int:
  """The chunk size at which weights and states [keys, values] take about the same memory: the power of two
  nearest to sqrt(keys values), at least 16 and at most 256."""
  return 2 ** min(max(round(math.log2(keys * values) / 2), 4), 8)


def chunked(x_BL: jax.Array, chunk: int) -> jax.Array:
  """[B, L, ...] -> [B, C, T, ...], padded with 0. T is `chunk`, or the power of two that a shorter length
  needs."""
  B, L = x_BL.shape[:2]
  size = min(chunk, 1 << (L - 1).bit_length())
  x_BL = jnp.pad(x_BL, ((0, 0), (0, -L % size)) + ((0, 0),) * (x_BL.ndim - 2))
  return x_BL.reshape(B, -1, size, *x_BL.shape[2:])


@functools.partial(jax.checkpoint, static_argnums=(0, 1))
def _sweep(chunk, include_self, q_BLGN, k_BLGN, v_BLGRP, g_BLGRN):
  """y [B, L, G, R, P] of one pass that starts at the first position. A query reads the positions before it
  and, with `include_self`, its own."""
  B, L = q_BLGN.shape[:2]
  split = functools.partial(chunked, chunk=chunk)
  q, k, v, g = jax.tree.map(split, (q_BLGN, k_BLGN, v_BLGRP, g_BLGRN))  # [B, C, T, ...]
  chunks, size = q.shape[1:3]
  weigh = _undecayed if g is None else _decayed_by_head if g.shape[-1] == 1 else _decayed_by_channel
  weights_BCGRTS, since, until = weigh(q, k, g, include_self)
  y_BCTGRP = product('bcgrts,bcsgrp->bctgrp', weights_BCGRTS.astype(v.dtype), v)
  if chunks > 1:
    # One decay per head scales values and results, which are narrower than states. Decays per channel scale
    # keys and queries.
    by_head = since.shape[-1] == 1
    keys, values = (k, scaled(v, until)) if by_head else (scaled(k, until[..., 0, :]), v)
    z_BCGRNP = product('bcsgn,bcsgrp->bcgrnp', keys, values)
    a_BCGRNP = jnp.broadcast_to(jnp.exp(since[:, :, -1])[..., None], z_BCGRNP.shape)
    flat = (B, chunks, -1)
    s_BCGRNP = linear_scan(a_BCGRNP.reshape(flat), z_BCGRNP.reshape(flat)).reshape(z_BCGRNP.shape)
    before = jnp.pad(s_BCGRNP[:, :-1], ((0, 0), (1, 0)) + ((0, 0),) * 4)
    queries = q if by_head else scaled(q, since[..., 0, :])
    carried_BCTGRP = _read(queries, before, 'bctgn,bcgrnp->bctgrp')
    y_BCTGRP += carried_BCTGRP * jnp.exp(since) if by_head else carried_BCTGRP
  return y_BCTGRP.reshape(B, chunks * size, *v.shape[3:])[:, :L]


# Each of the next three returns the weights [B, C, G, R, T, S] of positions s for the queries t of the same
# chunk, and the log decays [B, C, T, G, R, 1 or N] from the beginning of the chunk up to and with each
# position, and after the position up to the end of the chunk.


def _undecayed(q, k, g, include_self):
  del g
  seen = np.tril(np.ones((q.shape[2],) * 2, bool), 0 if include_self else -1)[(None,) * 4]
  none = jnp.zeros((*q.shape[:4], 1, 1))
  return jnp.where(seen, product('bctgn,bcsgn->bcgts', q, k)[:, :, :, None], 0.0), none, none


def _decayed_by_head(q, k, g, include_self):
  return weights_by_head(q, k, g, include_self), *sums_of_decays(g)


def sums_of_decays(g: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Sums of log decays [B, C, T, G, R, 1 or N] within each chunk, in that shape: from its beginning up to and
  with each position, and after the position up to its end."""
  *_, (since, until, _) = _halves(g)
  return since, until


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def weights_by_head(q: jax.Array, k: jax.Array, g: jax.Array, include_self: bool) -> jax.Array:
  """q_t . k_s decayed from s to t, float32 [B, C, G, R, T, S]: 0 where s > t and, unless `include_self`,
  where s = t.

  Args:
    q, k: [B, C, T, G, N].
    g: log decays float32 [B, C, T, G, R, 1].
  """
  return _similarities(q, k)[:, :, :, None] * _decays_by_head(g, include_self)


def _similarities(q, k):
  return product('bctgn,bcsgn->bcgts', q, k)


def _decays_by_head(g, include_self):
  size = g.shape[2]
  log_decay = jnp.full((1,) * 4 + (size, size), -jnp.inf)
  if include_self:
    log_decay = jnp.where(np.eye(size, dtype=bool)[(None,) * 4], 0.0, log_decay)
  for since, until, pairs in _halves(g):
    if pairs is not None:
      at_t, at_s = (jnp.moveaxis(x[..., 0], 2, -1) for x in (since, until))
      log_decay = jnp.where(pairs, at_t[..., None] + at_s[..., None, :], log_decay)
  return jnp.exp(log_decay)


def _weights_forward(q, k, g, include_self):
  return weights_by_head(q, k, g, include_self), (q, k, g)


def _weights_backward(include_self, saved, d_weights):
  """Takes half the time of differentiating the sums in `_halves` level by level."""
  q, k, g = saved
  products, pull_back = jax.vjp(_similarities, q, k)
  d_products_BCGRTS = d_weights * _decays_by_head(g, include_self)
  d_log_BCGRTS = d_products_BCGRTS * products[:, :, :, None]
  # g_r decays the pairs s < r <= t: a product sums over s < r, then a sum adds the rows t >= r.
  size = g.shape[2]
  to_r = np.triu(np.ones((size, size), np.float32), 1)
  d_log_BCGRTR = jnp.where(np.tril(np.ones((size, size), bool))[(None,) * 4], d_log_BCGRTS @ to_r, 0.0)
  d_g = jnp.moveaxis(d_log_BCGRTR.sum(-2), -1, 2)[..., None]
  return *pull_back(d_products_BCGRTS.sum(3)), jnp.broadcast_to(d_g, g.shape)  # chunks of 1 have no head axis


weights_by_head.defvjp(_weights_forward, _weights_backward)


def _decayed_by_channel(q, k, g, include_self):
  return weights_by_channel(q, k, g, include_self), *sums_of_decays(g)


def weights_by_channel(q: jax.Array, k: jax.Array, g: jax.Array, include_self: bool) -> jax.Array:
  """`weights_by_head` with log decays g [B, C, T, G, 1, N] of the channels of the keys; R is 1."""
  self_BCGT = jnp.einsum('bctgn,bctgn->bcgt', q, k, preferred_element_type=jnp.float32)
  diagonal = self_BCGT[..., None] * np.eye(q.shape[2], dtype=np.float32)[(None,) * 3]
  weights = (diagonal if include_self else jnp.zeros_like(diagonal))[:, :, :, None]
  for since, until, pairs in _halves(g):
    if pairs is not None:
      decayed = scaled(q, since[..., 0, :]), scaled(k, until[..., 0, :])
      weights = jnp.where(pairs, product('bctgn,bcsgn->bcgts', *decayed)[:, :, :, None], weights)
  return weights


def _halves(g):
  """Sums of log decays g [B, C, T, ...] in blocks of 1, 2, 4, ..., T positions.

  For each size it yields the sums from the beginning of the block up to and with each position, the sums
  after the position up to the end, and the pairs, bool [1, 1, 1, 1, T, T], to which these apply: t in the
  second of two neighbouring blocks, s in the first (None for the whole chunk).

  Every pair s < t occurs once. Sums are never subtracted, which would lose digits. They are never positive,
  so no exponential overflows, however fast a state decays.
  """
  t, s = np.indices((g.shape[2],) * 2)
  since, until, block = g, jnp.zeros_like(g), 1
  while block < g.shape[2]:
    yield since, until, ((t // block % 2 == 1) & (t // block == s // block + 1))[(None,) * 4]
    pairs = (*g.shape[:2], -1, 2, block, *g.shape[3:])
    (first, second), (before, after) = (jnp.split(x.reshape(pairs), 2, axis=3) for x in (since, until))
    since = jnp.concatenate([first, second + first[:, :, :, :, -1:]], axis=3).reshape(g.shape)
    until = jnp.concatenate([before + second[:, :, :, :, -1:], after], axis=3).reshape(g.shape)
    if g.shape[-1] > 1:
      # XLA would merge each level with all levels before it, and compute and compile these twice for each.
      since, until = lax.optimization_barrier((since, until))
    block *= 2
  yield since, until, None


def product(subscripts: str, x: jax.Array, y: jax.Array) -> jax.Array:
  """An einsum in the dtype of x and y, accumulated in float32."""
  return jnp.einsum(subscripts, x, y, preferred_element_type=jnp.float32)


def _read(q, state, subscripts):
  return product(subscripts, q, state.astype(q.dtype))


def scaled(x: jax.Array, log_scale: jax.Array) -> jax.Array:
  """x exp(log_scale) in the dtype of x."""
  return (x.astype(jnp.float32) * jnp.exp(log_scale)).astype(x.dtype)
