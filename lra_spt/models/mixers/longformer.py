"""Longformer: a sliding window of keys, and global tokens, which see all positions and which all positions
see (Beltagy et al. 2020, arXiv 2004.05150; published code: `google-research/long-range-arena`, commit
cd31e5c, `longformer_attention.py`)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_spt.distributed.sharding import rows_island
from lra_spt.models.projections import HeadProjections
from lra_spt.models.registry import NotNegative, Positive, register_mixer
from lra_spt.ops.attention import Causal, Full, Window, attention, attention_weights, merged
from lra_spt.ops.attention.sharded import sharded_attention


@register_mixer('longformer')
class Longformer(HeadProjections):
  """Softmax attention to a window of w positions around the query:

      y_t = sum over s of a_ts v_s, a_ts = softmax over s of q_t . k_s / sqrt(K),

  over the valid positions among w - w // 2 - 1 before t, t itself, and w // 2 after it; the causal form sees
  only those up to t, as published.

  The first g positions are global tokens: every position sees them too, and they see every position, with
  separate queries, keys and values. The published models of the Long Range Arena have no global tokens but
  contain their projections, which then learn nothing. With global tokens two calls of attention are merged,
  and on a mesh that splits positions each shard computes the whole.

  Options heads and head_dim: see `HeadProjections`; attention (its implementation): see
  `lra_spt.ops.attention`. Global tokens need an implementation that returns the logsumexp.

  Args:
    window: w, published 512.
    global_tokens: g, published 0.

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
    window: Positive = 512,
    global_tokens: NotNegative = 0,
    attention: str = '',
    dtype=jnp.float32,
  ):
    del length, protocol  # neither of them changes this mixer
    names = ['query', 'key', 'value']
    if global_tokens:
      names += [f'{name}_global' for name in names]
    super().__init__(width, heads, head_dim, names, dtype=dtype, rngs=rngs)
    self.causal, self.global_tokens = causal, global_tokens
    self.pattern = Window(window - window // 2 - 1, 0 if causal else window // 2)
    self.implementation = attention or None

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # no attention dropout, as in the other Transformers
    arrays = self.project(x_BLD, 'query', 'key', 'value')
    if not self.global_tokens:
      y_BLHK = sharded_attention(
        *arrays, pattern=self.pattern, kv_lengths_B=lengths_B, implementation=self.implementation
      )
      return self.merge(y_BLHK)
    arrays += self.project(x_BLD[:, : self.global_tokens], 'query_global')
    arrays += self.project(x_BLD, 'key_global', 'value_global')
    return self.merge(rows_island(self._with_global)(*arrays, lengths_B))

  def attention_weights(self, x_BLD: jax.Array, *, lengths_B=None) -> jax.Array | None:
    """a_ts of every head, [B, H, L, L], see `lra_spt.ops.attention.attention_weights`; None with global
    tokens."""
    if self.global_tokens:
      return None
    return attention_weights(
      *self.project(x_BLD, 'query', 'key'), pattern=self.pattern, kv_lengths_B=lengths_B
    )

  def _with_global(self, q_BLHK, k_BLHK, v_BLHK, q_BGHK, k_global_BLHK, v_global_BLHK, lengths_B):
    B, G = q_BGHK.shape[:2]
    everything = Causal() if self.causal else Full()
    call = {'kv_lengths_B': lengths_B, 'implementation': self.implementation}
    parts = call | {'return_logsumexp': True}
    seen = attention(q_BLHK, k_BLHK[:, :G], v_BLHK[:, :G], pattern=everything, **parts)
    starts_B = jnp.full(B, G, jnp.int32)
    beside = attention(q_BLHK, k_BLHK, v_BLHK, pattern=self.pattern, kv_starts_B=starts_B, **parts)
    y_BGHK = attention(q_BGHK, k_global_BLHK, v_global_BLHK, pattern=everything, **call)
    return jnp.concatenate([y_BGHK, merged(seen, beside)[:, G:]], axis=1)

  def flops(self, length: int) -> int:
    """Scores and weighted sum: 4 K operations per head and visible pair of query and key. Only global tokens
    have global queries, so their other projections are subtracted."""
    t_L, G = np.arange(length, dtype=np.int64), min(self.global_tokens, length)
    window_L = np.minimum(t_L + self.pattern.right + 1, length) - np.maximum(t_L - self.pattern.left, G)
    seen_L = np.minimum(t_L + 1, G) if self.causal else G
    pairs = np.maximum(window_L, 0).sum() + np.sum(seen_L + 0 * t_L)
    pairs += G * (G + 1) // 2 if self.causal else G * length
    saved = 0
    if self.global_tokens:
      saved = 2 * (length - G) * int(np.prod(self.query_global.kernel.shape[-2:]))
    return 4 * self.heads * self.head_dim * int(pairs) - saved
