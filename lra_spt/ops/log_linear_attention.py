"""Log-linear attention (Guo et al. 2025, arXiv 2506.04761): linear attention whose queries weigh the past in
blocks that grow with the distance.

The positions up to t fall into blocks of 1, 1, 2, 4, ... positions, of which some may be missing: those of a
Fenwick tree. Level 0 is t itself. Level j > 0 has the pairs of t in the second half and s in the first half
of the same aligned block of 2^j positions. There are log2(L) + 1 levels, so a query reads that many states.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from lra_spt.ops.linear_attention import check, chunk_size, chunked, product, sums_of_decays, weights_by_head

DIRECTIONS = ('forward', 'backward')


def levels(length: int) -> int:
  """The number of levels of a sequence."""
  return (length - 1).bit_length() + 1


def log_linear_attention(
  q_BLGN: jax.Array,
  k_BLGN: jax.Array,
  v_BLHP: jax.Array,
  log_decay_BLH: jax.Array,
  scale_BLHJ: jax.Array,
  *,
  direction: str = 'forward',
  chunk: int | None = None,
) -> jax.Array:
  """y_t = sum over s <= t of c_t,j(t,s) a_{s+1} ... a_t (q_t . k_s) v_s, where j(t, s) is the level of the
  pair.

  'backward' sums over s >= t with the decays a_t ... a_{s-1} and the same blocks, where s is in the second
  half and t in the first. Positions that must not be read, such as padding, need k =
  0 or v = 0. Positions are processed in chunks; states of blocks are made of those of their halves.
  Differentiable in reverse mode; the backward pass keeps only the arguments. Products run in the dtype of q,
  k and v and accumulate in float32; decays and states are float32.

  Args:
    q_BLGN, k_BLGN, v_BLHP, log_decay_BLH, chunk: see `lra_spt.ops.linear_attention.linear_attention`.
    scale_BLHJ: c, float32, for at least `levels(L)` levels.
    direction: 'forward' or 'backward'.

  Returns:
    y float32 [B, L, H, P].

  Raises:
    ValueError: an unknown direction, a chunk that is not a power of two, too few levels, or shapes that do
      not fit together.
  """
  (B, L, G, N), (H, P) = q_BLGN.shape, v_BLHP.shape[2:]
  chunk = chunk_size(N, P) if chunk is None else chunk
  check('log_linear_attention', direction, DIRECTIONS, q_BLGN, k_BLGN, v_BLHP, chunk)
  if log_decay_BLH.shape != (B, L, H) or scale_BLHJ.shape[:3] != (B, L, H) or scale_BLHJ.shape[3] < levels(L):
    raise ValueError(
      f'log_linear_attention got log decays of shape {log_decay_BLH.shape} and scales of shape '
      f'{scale_BLHJ.shape}; pass {(B, L, H)} and {(B, L, H, levels(L))}'
    )
  heads = (B, L, G, H // G)
  arrays = (
    q_BLGN,
    k_BLGN,
    v_BLHP.reshape(*heads, P),
    log_decay_BLH.reshape(*heads, 1),
    scale_BLHJ[..., : levels(L)].reshape(*heads, -1),
  )
  y_BLGRP = _sweep(chunk, direction == 'backward', *arrays)
  return checkpoint_name(y_BLGRP.reshape(v_BLHP.shape), 'mixer')


@functools.partial(jax.checkpoint, static_argnums=(0, 1))
def _sweep(chunk, reverse, *arrays):
  """y [B, L, G, R, P]. With `reverse`, whole chunks are reversed, so that blocks stay blocks."""
  B, L = arrays[0].shape[:2]
  chunks = [chunked(x, chunk) for x in arrays]  # [B, C, T, ...]
  q, k, v, g, c = (jnp.flip(x, (1, 2)) for x in chunks) if reverse else chunks
  weights_BCGRTS = weights_by_head(q, k, g, True) * _scales_of_pairs(c)
  y_BCTGRP = product('bcgrts,bcsgrp->bctgrp', weights_BCGRTS.astype(v.dtype), v)
  if q.shape[1] > 1:
    y_BCTGRP += _of_other_chunks(q, k, v, g, c, reverse)
  y_BCTGRP = jnp.flip(y_BCTGRP, (1, 2)) if reverse else y_BCTGRP
  return y_BCTGRP.reshape(B, -1, *v.shape[3:])[:, :L]


def _scales_of_pairs(c_BCTGRJ):
  """[B, C, G, R, T, T]: the scale of t for the level of s."""
  size = c_BCTGRJ.shape[2]
  t, s = np.indices((size, size))
  level = np.array([int(x).bit_length() for x in (t ^ s).reshape(-1)]).reshape(size, size)
  c_BCGRTJ = jnp.moveaxis(c_BCTGRJ, 2, 4)
  scales = jnp.broadcast_to(c_BCGRTJ[..., :1], (*c_BCGRTJ.shape[:-1], size))
  for j in range(1, levels(size)):
    scales = jnp.where((level == j)[(None,) * 4], c_BCGRTJ[..., j : j + 1], scales)
  return scales


def _of_other_chunks(q, k, v, g, c, reverse):
  """The sums that queries read from the blocks in earlier chunks."""
  chunks, size = q.shape[1:3]
  since, until = sums_of_decays(g)
  state = product('bcsgn,bcsgrp->bcgrnp', k, (v.astype(jnp.float32) * jnp.exp(until)).astype(v.dtype))
  whole = since[:, :, -1, ..., None]  # the log decay of a block, [B, blocks, G, R, 1, 1]
  # Empty chunks follow the last position, so that blocks can be joined to one.
  fill = (1 << (chunks - 1).bit_length()) - chunks
  edges = (fill, 0) if reverse else (0, fill)
  q, c, since, state, whole = (
    jnp.pad(x, ((0, 0), edges) + ((0, 0),) * (x.ndim - 2)) for x in (q, c, since, state, whole)
  )
  y, level = jnp.zeros((*since.shape[:-1], v.shape[-1])), levels(size)
  while state.shape[1] > 1:
    pairs = (len(q), state.shape[1] // 2, 2)
    (first, second), (first_whole, second_whole) = (_halves(x, pairs) for x in (state, whole))
    block = (*pairs, -1)  # positions of a block
    queries, scales, decays, sums = (_halves(x, block, joined=2) for x in (q, c, since, y))
    read = product('bmtgn,bmgrnp->bmtgrp', queries[1], first.astype(q.dtype))
    read *= jnp.exp(decays[1]) * scales[1][..., level : level + 1]
    y = jnp.stack([sums[0], sums[1] + read], axis=2).reshape(y.shape)
    # From here on, decays count from the beginning of the larger block.
    later = decays[1] + first_whole[:, :, None, ..., 0]
    since = jnp.stack([decays[0], later], axis=2).reshape(since.shape)
    state, whole = jnp.exp(second_whole) * first + second, first_whole + second_whole
    level += 1
  return y[:, edges[0] : edges[0] + chunks]


def _halves(x, shape, joined=1):
  """x with its axes from 1 on, `joined` of them, as pairs of halves: the two, without the axis of pairs."""
  x = x.reshape(*shape, *x.shape[1 + joined :])
  return x[:, :, 0], x[:, :, 1]
