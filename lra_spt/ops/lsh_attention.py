"""Attention within buckets of locality-sensitive hashing (Kitaev et al. 2020, Reformer, arXiv 2001.04451).

Positions are sorted by bucket and then by position, and the sorted list is cut into chunks. The queries of a
chunk see the keys of their own chunk and of the one before it, so memory is linear in the length. Letters:
R rounds of hashing; N chunks of T queries; S = 2T keys, where those of the chunk before come first.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from lra_spt.errors import ConfigError

_HIDDEN = -1e30  # score of a hidden key; finite, so that differences of scores are never NaN
_SELF = -1e5  # added to the score of a position with itself: it counts only if no other key is visible
_NOWHERE = -1  # the bucket of keys before the first chunk


def lsh_buckets(x_BLHK: jax.Array, rotations_BKRC: jax.Array) -> jax.Array:
  """The argmax over [x R, -x R], one of 2C buckets: int32 [B, R, L, H]. No gradient passes.

  Args:
    x_BLHK: the vectors to hash, floating point.
    rotations_BKRC: standard normal numbers, float32, drawn separately for every row.
  """
  x_HBLK = jnp.moveaxis(lax.stop_gradient(x_BLHK).astype(jnp.float32), 2, 0)
  rotations_BKRC = lax.stop_gradient(rotations_BKRC)

  def of_head(x_BLK):
    x_BLRC = jnp.einsum('blk,bkrc->blrc', x_BLK, rotations_BKRC)
    return jnp.argmax(jnp.concatenate([x_BLRC, -x_BLRC], axis=-1), axis=-1).astype(jnp.int32)

  # One head at a time, because the number of buckets grows with the length.
  return lax.map(of_head, x_HBLK).transpose(1, 3, 2, 0)


def lsh_attention(
  q_BLHK: jax.Array,
  k_BLHK: jax.Array,
  v_BLHV: jax.Array,
  buckets_BRLH: jax.Array,
  *,
  chunk: int,
  scale: float,
  causal: bool = False,
  lengths_B: jax.Array | None = None,
  ring: bool = False,
) -> jax.Array:
  """softmax(scale q k^T) v over the keys that share the query's bucket in any round, in its chunk of the
  sorted list or the one before it.

  A position sees itself only if it sees no other key. A key that several rounds show counts once. No gradient
  passes through the buckets.

  Args:
    q_BLHK, k_BLHK, v_BLHV: queries, keys and values at the same L positions, of one floating dtype.
    buckets_BRLH: int32, the bucket in every round, at least 0 and below 2^31 / L - 1.
    chunk: T, positions per chunk, a divisor of L.
    scale: factor of the scores.
    causal: a query sees the keys of its bucket from T places before it in the sorted list up to itself, in
      place of both chunks. These are the last T + 1 positions of the bucket, so later positions, which move
      the borders of chunks, have no influence.
    lengths_B: int32 [B]; positions >= length are in no bucket. None: all positions are in one.
    ring: a query sees all keys of both chunks, of any bucket and including itself, once for every round that
      shows them. The chunk before the first one of a round is the last one of the round before; rounds form a
      ring. It supports neither causal attention nor lengths.

  Returns:
    Array [B, L, H, V] of the values' dtype, 0 from lengths_B on; softmax statistics are float32.

  Raises:
    ConfigError: the chunk does not divide L.
    ValueError: a ring that is causal or has lengths.
  """
  L = q_BLHK.shape[1]
  if chunk < 1 or L % chunk:
    raise ConfigError(
      f'lsh_attention got {L} positions in chunks of {chunk}, which does not divide them; pad them to a '
      'multiple'
    )
  if ring and (causal or lengths_B is not None):
    raise ValueError('lsh_attention with ring=True supports neither causal=True nor lengths; leave them out')
  buckets_BHRL = jnp.moveaxis(buckets_BRLH, 3, 1)
  if lengths_B is not None:
    last = np.int32(np.iinfo(np.int32).max // L - 1)  # sorts after all others
    valid_B11L = (jnp.arange(L)[None] < lengths_B[:, None])[:, None, None]
    buckets_BHRL = jnp.where(valid_B11L, buckets_BHRL, last)
  # Named values are saved, so that rematerialisation repeats only the scores.
  buckets_BHRL, order_BHRL, place_BHRL = checkpoint_name((buckets_BHRL, *_sorted(buckets_BHRL)), 'mixer')

  def chunks(x_BLHX):
    x_BHRLX = jnp.broadcast_to(jnp.moveaxis(x_BLHX, 2, 1)[:, :, None], (*order_BHRL.shape, x_BLHX.shape[-1]))
    sorted_BHRLX = _reordered(x_BHRLX, order_BHRL, place_BHRL)
    return sorted_BHRLX.reshape(*order_BHRL.shape[:3], -1, chunk, x_BLHX.shape[-1])

  q_BHRNTK, k_BHRNTK, v_BHRNTV = chunks(q_BLHK), chunks(k_BLHK), chunks(v_BLHV)
  k_BHRNSK, v_BHRNSV = _with_previous(k_BHRNTK, ring), _with_previous(v_BHRNTV, ring)
  scores_BHRNTS = np.float32(scale) * jnp.einsum(
    'bhrntk,bhrnsk->bhrnts', q_BHRNTK, k_BHRNSK, preferred_element_type=jnp.float32
  )
  if not ring:
    scores_BHRNTS = _masked(scores_BHRNTS, buckets_BHRL, order_BHRL, place_BHRL, causal)
  logsumexp_BHRNT1 = checkpoint_name(jax.nn.logsumexp(scores_BHRNTS, axis=-1, keepdims=True), 'mixer')
  weights_BHRNTS = jnp.exp(scores_BHRNTS - logsumexp_BHRNT1).astype(v_BLHV.dtype)
  y_BHRNTV = checkpoint_name(jnp.einsum('bhrnts,bhrnsv->bhrntv', weights_BHRNTS, v_BHRNSV), 'mixer')

  def positions(x_BHRNTX):
    x_BHRLX = x_BHRNTX.reshape(*order_BHRL.shape, x_BHRNTX.shape[-1])
    return _reordered(x_BHRLX, place_BHRL, order_BHRL)

  of_round_BHRL1 = jax.nn.softmax(positions(logsumexp_BHRNT1), axis=2).astype(v_BLHV.dtype)
  y_BLHV = jnp.moveaxis(jnp.sum(of_round_BHRL1 * positions(y_BHRNTV), axis=2), 1, 2)
  if lengths_B is not None:
    y_BLHV = jnp.where(jnp.moveaxis(valid_B11L, 3, 1), y_BLHV, jnp.zeros_like(y_BLHV))
  return y_BLHV


def _sorted(buckets_BHRL):
  """The position at each place of the sorted list, and its inverse, the place of each position: both int32
  [B, H, R, L]."""
  L = buckets_BHRL.shape[-1]
  position_BHRL = lax.broadcasted_iota(jnp.int32, buckets_BHRL.shape, 3)
  _, order_BHRL = lax.sort((buckets_BHRL * L + position_BHRL, position_BHRL), num_keys=1)
  _, place_BHRL = lax.sort((order_BHRL, position_BHRL), num_keys=1)
  return order_BHRL, place_BHRL


@jax.custom_vjp
def _reordered(x_XLY, order_XL, inverse_XL):
  """x[..., order, :] for a permutation. Its gradient is a gather by the inverse, not a scatter."""
  return jnp.take_along_axis(x_XLY, order_XL[..., None], axis=-2)


def _reordered_forward(x_XLY, order_XL, inverse_XL):
  return _reordered(x_XLY, order_XL, inverse_XL), (order_XL, inverse_XL)


def _reordered_backward(saved, d_XLY):
  order_XL, inverse_XL = saved
  return _reordered(d_XLY, inverse_XL, order_XL), None, None


_reordered.defvjp(_reordered_forward, _reordered_backward)


def _with_previous(x_BHRNTX, ring, outside=0):
  """Joins each chunk to the one before it: [B, H, R, N, S, ...]. The first one gets `outside`."""
  if ring:
    B, H, R, N = x_BHRNTX.shape[:4]
    previous = jnp.roll(x_BHRNTX.reshape(B, H, R * N, *x_BHRNTX.shape[4:]), 1, axis=2)
    return jnp.concatenate([previous.reshape(x_BHRNTX.shape), x_BHRNTX], axis=4)
  first = jnp.full_like(x_BHRNTX[:, :, :, :1], outside)
  return jnp.concatenate([jnp.concatenate([first, x_BHRNTX[:, :, :, :-1]], axis=3), x_BHRNTX], axis=4)


def _masked(scores_BHRNTS, buckets_BHRL, order_BHRL, place_BHRL, causal):
  """Divides the weight of each visible key by the number of rounds that show it, and hides the other keys."""
  B, H, R, N, T, S = scores_BHRNTS.shape

  def pairs(of_round_BHL, outside=0):
    """Values that one round gives to positions, for the queries and keys of every chunk of all rounds."""
    x_BHRL = jnp.take_along_axis(jnp.broadcast_to(of_round_BHL[:, :, None], order_BHRL.shape), order_BHRL, -1)
    x_BHRNT = x_BHRL.reshape(B, H, R, N, T)
    return x_BHRNT[..., None], _with_previous(x_BHRNT, ring=False, outside=outside)[..., None, :]

  def shown(round_):
    """A mask of the pairs whose key this round shows to the query."""
    (q, k), (q_place, k_place) = pairs(buckets_BHRL[:, :, round_], _NOWHERE), pairs(place_BHRL[:, :, round_])
    back = q_place - k_place if causal else q_place // T - k_place // T
    return (q == k) & (back >= 0) & (back <= (T if causal else 1))

  shown_BHRRNTS = [shown(round_) for round_ in range(R)]
  visible_BHRNTS = jnp.stack([shown[:, :, round_] for round_, shown in enumerate(shown_BHRRNTS)], axis=2)
  if R > 1:
    count_BHRNTS = sum(shown.astype(jnp.float32) for shown in shown_BHRRNTS)
    scores_BHRNTS = scores_BHRNTS - jnp.log(jnp.maximum(count_BHRNTS, 1))
  distance_TS = T + np.arange(T)[:, None] - np.arange(S)[None]
  self_TS = np.where(distance_TS == 0, np.float32(_SELF), np.float32(0))
  scores_BHRNTS = scores_BHRNTS + jnp.asarray(self_TS)[None, None, None, None]
  return jnp.where(visible_BHRNTS, scores_BHRNTS, _HIDDEN)
