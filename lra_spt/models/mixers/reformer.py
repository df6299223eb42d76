"""Reformer: attention within buckets of hashing (Kitaev et al. 2020, arXiv 2001.04451; published code, of the
Long Range Arena: `google-research/long-range-arena`, commit cd31e5c, `reformer_attention.py`)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from lra_spt.distributed.settings import random_key
from lra_spt.distributed.sharding import rows_island
from lra_spt.errors import ConfigError
from lra_spt.models.projections import HeadProjections
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.ops.lsh_attention import lsh_attention, lsh_buckets

_CODE_BUCKETS = 10  # the published code also pads lengths to a multiple of this


@register_mixer('reformer')
class Reformer(HeadProjections):
  """Softmax attention with shared queries and keys, to the positions that a hash puts into a query's bucket:

      y_t = sum over s of a_ts v_s, a_ts = softmax over s of q_t . k_s / sqrt(K), k = q / |q|,
      bucket of t = argmax of [q_t R, -q_t R],

  over the valid positions s of the bucket of t that are in its own chunk of the list sorted by bucket or in
  the one before; see `lra_spt.ops.lsh_attention`. R is standard normal. In training it is drawn for every
  layer, step and row. In evaluation it is fixed (ours), so the same model gives the same answer.

  The causal form is ours: a query sees the last chunk + 1 positions of its bucket up to its own. In the
  published form it sees those before it in its own and the previous chunk, whose borders depend on later
  positions.

  Under protocol.long_range_arena_code the bidirectional form computes what the published code does:

  - R is always the same draw, for 10 buckets (or `buckets`) and one round (or `hashes`).
  - Keys are the queries without normalisation, and the scale is sqrt(K).
  - The sequence is padded with zeros, from one position to as many as there are buckets, and cut into as many
    chunks. Every chunk sees all of itself and of the one before it, whatever the buckets; the first sees the
    last. Padding is like any other position.
  - The outputs of heads are not concatenated per position: [H, L', K] is read as [L', H K], which mixes heads
    and positions. There is no output map.

  Options heads and head_dim: see `HeadProjections`.

  Args:
    chunk: positions of a chunk.
    buckets: an even number of buckets; 0: two for every chunk of the longest sequence, as published.
    hashes: rounds of hashing, each with its own draw; published 1 to 8.

  Raises:
    ConfigError: an option is out of range.
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    causal: bool,
    protocol,
    rngs: nnx.Rngs,
    heads: int = 4,
    head_dim: int = 0,
    chunk: int = 64,
    buckets: int = 0,
    hashes: Positive = 1,
    dtype=jnp.float32,
  ):
    self.as_in_code = protocol.long_range_arena_code and not causal
    out = not self.as_in_code
    super().__init__(width, heads, head_dim, ('query', 'value'), out=out, dtype=dtype, rngs=rngs)
    if not 1 <= chunk <= length:
      raise ConfigError(
        f'model.mixer.chunk is {chunk}, but sequences have up to {length} positions; choose 1 to {length}'
      )
    if buckets < 0 or buckets % 2:
      raise ConfigError(
        f'model.mixer.buckets is {buckets}, but a bucket and its opposite share a direction: choose an even '
        'number, or 0 for two of every chunk'
      )
    if self.as_in_code and self.head_dim * heads != width:
      raise ConfigError(
        f'model.mixer.heads={heads} of head_dim={head_dim} return {self.head_dim * heads} numbers, but '
        f'without an output map (protocol.long_range_arena_code) that must be model.width, {width}; set '
        'head_dim to 0'
      )
    self.causal, self.chunk, self.hashes = causal, chunk, hashes
    self.buckets = buckets or (_CODE_BUCKETS if self.as_in_code else 2 * -(-length // chunk))
    if self.buckets * (length + max(chunk, self.buckets)) >= 2**30:
      raise ConfigError(
        f'model.mixer.buckets is {self.buckets}, too many to number with {length} positions each; choose '
        'fewer'
      )

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    B, L, _ = x_BLD.shape
    step = self.buckets if self.as_in_code else self.chunk
    fill = step - L % step if self.as_in_code else -L % step
    if fill and lengths_B is None:
      lengths_B = jnp.full(B, L, jnp.int32)
    x_BLD = jnp.pad(x_BLD, ((0, 0), (0, fill), (0, 0)))
    arrays = self.project(x_BLD, 'query', 'value')
    shape = (self.head_dim, self.hashes, self.buckets // 2)
    if deterministic or self.as_in_code:
      rotations_KRC = jax.random.normal(jax.random.fold_in(random_key(0), 1), shape)
      rotations_BKRC = jnp.broadcast_to(rotations_KRC[None], (B, *shape))
    else:
      rotations_BKRC = jax.vmap(lambda key: jax.random.normal(key, shape))(rngs)
    if not self.as_in_code:
      return self.merge(rows_island(self._attend)(*arrays, rotations_BKRC, lengths_B))[:, :L]
    y_BLHK = rows_island(self._attend_as_in_code)(*arrays, rotations_BKRC)
    return jnp.swapaxes(y_BLHK, 1, 2).reshape(B, L + fill, -1)[:, :L]

  def _attend(self, q_BLHK, v_BLHK, rotations_BKRC, lengths_B):
    square_BLH1 = jnp.sum(jnp.square(q_BLHK.astype(jnp.float32)), axis=-1, keepdims=True)
    k_BLHK = q_BLHK * lax.rsqrt(square_BLH1 + np.float32(1e-6)).astype(q_BLHK.dtype)
    return lsh_attention(
      q_BLHK,
      k_BLHK,
      v_BLHK,
      lsh_buckets(q_BLHK, rotations_BKRC),
      chunk=self.chunk,
      scale=self.head_dim**-0.5,
      causal=self.causal,
      lengths_B=lengths_B,
    )

  def _attend_as_in_code(self, q_BLHK, v_BLHK, rotations_BKRC):
    chunk, scale = q_BLHK.shape[1] // self.buckets, self.head_dim**0.5
    buckets_BRLH = lsh_buckets(q_BLHK, rotations_BKRC)
    return lsh_attention(q_BLHK, q_BLHK, v_BLHK, buckets_BRLH, chunk=chunk, scale=scale, ring=True)

  def flops(self, length: int) -> int:
    """Per head and round: K operations per position and bucket for the hash, and 4 K for each pair of a query
    and a key of its two chunks."""
    if self.as_in_code:
      filled = length + self.buckets - length % self.buckets
      chunk = filled // self.buckets
    else:
      filled, chunk = length + -length % self.chunk, self.chunk
    return self.heads * self.hashes * self.head_dim * filled * (self.buckets + 8 * chunk)
