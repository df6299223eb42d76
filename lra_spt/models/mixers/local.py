"""Local attention of the Long Range Arena (Tay et al. 2021, arXiv 2011.04006; published code:
`google-research/long-range-arena`, commit cd31e5c, `local_attention.py`)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_spt.models.layers import valid_positions
from lra_spt.models.projections import HeadProjections
from lra_spt.models.registry import NotNegative, Positive, register_mixer
from lra_spt.ops.attention import Neighbours, attention_weights
from lra_spt.ops.attention.patterns import visible_pairs
from lra_spt.ops.attention.sharded import sharded_attention


@register_mixer('local')
class Local(HeadProjections):
  """Softmax attention to the keys of a query's block and of blocks near it:

      y_t = sum over s of a_ts v_s, a_ts = softmax over s of q_t . k_s / sqrt(K),

  over the valid positions s of the block of t and of the `neighbours` blocks before and after it; the causal
  form sees those up to t. Without neighbours, as in the paper, no information passes from block to block,
  whatever the number of layers.

  Under protocol.long_range_arena_code the bidirectional form computes what the published code does. It pads
  the sequence with 1 to `block` zeros and cuts it into nb = L' / block columns t mod nb. A position sees its
  column: all keys at distances that nb divides. The mask, however, is cut into blocks: positions i and j of
  column c see each other if c block + i and c block + j are both valid or padding of this kind. A position
  that sees none gets the mean of its column. Neighbours have no effect.

  Options heads and head_dim: see `HeadProjections`; attention, the implementation: see
  `lra_spt.ops.attention`.

  Args:
    block: positions of a block; published 50 on text and 64 on images.
    neighbours: blocks seen on each side, published 0.

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
    block: Positive = 64,
    neighbours: NotNegative = 0,
    attention: str = '',
    dtype=jnp.float32,
  ):
    del length  # blocks are counted from the first position
    super().__init__(width, heads, head_dim, ('query', 'key', 'value'), dtype=dtype, rngs=rngs)
    self.causal, self.block = causal, block
    self.in_columns = protocol.long_range_arena_code and not causal
    self.pattern = Neighbours(block, neighbours, 0 if causal else neighbours, causal)
    self.implementation = attention or None

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # no attention dropout, as in the other Transformers
    q_BLHK, k_BLHK, v_BLHK = self.project(x_BLD, 'query', 'key', 'value')
    if self.in_columns:
      return self.merge(_in_columns(q_BLHK, k_BLHK, v_BLHK, self.block, lengths_B))
    y_BLHK = sharded_attention(
      q_BLHK,
      k_BLHK,
      v_BLHK,
      pattern=self.pattern,
      kv_lengths_B=lengths_B,
      implementation=self.implementation,
    )
    return self.merge(y_BLHK)

  def attention_weights(self, x_BLD: jax.Array, *, lengths_B=None) -> jax.Array | None:
    """a_ts of every head, [B, H, L, L], see `lra_spt.ops.attention.attention_weights`; None for the
    bidirectional form of the published code."""
    if self.in_columns:
      return None
    return attention_weights(
      *self.project(x_BLD, 'query', 'key'), pattern=self.pattern, kv_lengths_B=lengths_B
    )

  def flops(self, length: int) -> int:
    """Scores and weighted sum: 4 K operations per head and visible pair of query and key."""
    pairs = visible_pairs(self.pattern, length, length)
    if self.in_columns:
      pairs = (length + self.block - length % self.block) * self.block
    return 4 * self.heads * self.head_dim * pairs


def _in_columns(q_BLHK, k_BLHK, v_BLHK, block, lengths_B):
  """Attends as the published code does, see `Local`. Letters: C columns of T = S = block positions."""
  B, L, H, K = q_BLHK.shape
  fill = block - L % block  # a whole block if the block divides the length

  def columns(x_BLHK):
    return jnp.pad(x_BLHK, ((0, 0), (0, fill), (0, 0), (0, 0))).reshape(B, block, -1, H, K)

  q_BTCHK, k_BSCHK, v_BSCHK = (columns(x) for x in (q_BLHK, k_BLHK, v_BLHK))
  scores_BCHTS = jnp.einsum('btchk,bschk->bchts', q_BTCHK, k_BSCHK, preferred_element_type=jnp.float32)
  scores_BCHTS = scores_BCHTS * np.float32(K**-0.5)
  if lengths_B is not None:
    valid_BL = jnp.pad(valid_positions(lengths_B, L), ((0, 0), (0, fill)), constant_values=True)
    valid_BCT = valid_BL.reshape(B, -1, block)
    seen_BC1TS = (valid_BCT[..., None] & valid_BCT[:, :, None])[:, :, None]
    # No score changes a number this large: if all keys are hidden, their weights are equal.
    scores_BCHTS = jnp.where(seen_BC1TS, scores_BCHTS, np.float32(-1e10))
  weights_BCHTS = jax.nn.softmax(scores_BCHTS, axis=-1).astype(v_BSCHK.dtype)
  y_BTCHK = jnp.einsum('bchts,bschk->btchk', weights_BCHTS, v_BSCHK)
  return y_BTCHK.reshape(B, -1, H, K)[:, :L]
