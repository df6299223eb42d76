"""FoX: softmax attention with a forget gate (Forgetting Transformer, Lin et al. 2025, arXiv 2503.02130; code:
`fla-org/flash-linear-attention`, commit bc3b101, `fla/layers/forgetting_attn.py`)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from lra_spt.models.layers import check_heads, linear
from lra_spt.models.registry import register_mixer
from lra_spt.models.ssm import zero_padding
from lra_spt.ops.attention import Causal, Full, attention_weights
from lra_spt.ops.attention.patterns import visible_pairs
from lra_spt.ops.attention.sharded import sharded_attention


@register_mixer('forgetting_attention')
class ForgettingAttention(nnx.Module):
  """Softmax attention with H heads of K = D / H dimensions, whose scores fall with the distance:

      y_t = W_o [sum over s of a_ts v_s, head by head],
      a_ts = softmax over s <= t of (q_t . k_s / sqrt(K) + sum over s < r <= t of log f_r),
      f = sigmoid(W_f x + b), a number per head,

  where q, k and v are linear in x. Only W_f has a bias. There are no positions. Decays are float32.

  The causal form is the published one. The bidirectional form is ours: a query also sees later keys s, whose
  scores get the sum over t <= r < s of log f'_r, with f' of its own W_f and b.

  Args:
    heads: H.
    qk_norm: RMSNorm of each head of q and k, with one scale per channel.
    gate: the input of W_o is multiplied by sigmoid(W_g x). The paper's FoX (Pro) has both, and also mixes
      keys and values with those of the position before and has a norm before the gate, which are not
      implemented.

  Raises:
    ConfigError: the heads do not divide the width.
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
    qk_norm: bool = False,
    gate: bool = False,
    dtype=jnp.float32,
  ):
    del length, protocol  # gates know no length, and nothing departs from good practice
    check_heads(heads, width)
    self.causal, self.heads, self.qk_norm, self.gated = causal, heads, qk_norm, gate
    self.pattern = Causal() if causal else Full()
    for name in ('query', 'key', 'value', 'out', *(['gate'] if gate else [])):
      setattr(self, name, linear(width, width, bias=False, dtype=dtype, rngs=rngs))
    self.forget = linear(width, heads * (1 if causal else 2), rngs=rngs)
    if qk_norm:
      self.query_scale, self.key_scale = nnx.Param(jnp.ones(width)), nnx.Param(jnp.ones(width))

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published layer has no dropout
    q_BLHK, k_BLHK, decays = self._scored(x_BLD, lengths_B)
    v_BLHK = self.value(x_BLD).reshape(q_BLHK.shape)
    y_BLHK = sharded_attention(
      q_BLHK, k_BLHK, v_BLHK, pattern=self.pattern, kv_lengths_B=lengths_B, log_decay_BLHX=decays
    )
    y_BLD = y_BLHK.reshape(x_BLD.shape)
    return self.out(jax.nn.sigmoid(self.gate(x_BLD)) * y_BLD if self.gated else y_BLD)

  def attention_weights(self, x_BLD: jax.Array, *, lengths_B=None) -> jax.Array:
    """a_ts of every head, [B, H, L, L], see `lra_spt.ops.attention.attention_weights`."""
    q_BLHK, k_BLHK, decays = self._scored(x_BLD, lengths_B)
    seen = {'pattern': self.pattern, 'kv_lengths_B': lengths_B}
    return attention_weights(q_BLHK, k_BLHK, log_decay_BMHX=decays, **seen)

  def _scored(self, x_BLD, lengths_B):
    """Queries, keys and log f [B, L, H, directions]."""
    heads = (*x_BLD.shape[:2], self.heads, -1)
    q_BLHK, k_BLHK = (layer(x_BLD).reshape(heads) for layer in (self.query, self.key))
    if self.qk_norm:
      q_BLHK, k_BLHK = _normed(q_BLHK, self.query_scale), _normed(k_BLHK, self.key_scale)
    log_f_BLF = jax.nn.log_sigmoid(self.forget(x_BLD).astype(jnp.float32))
    # Sums over padding would have to cancel.
    return q_BLHK, k_BLHK, zero_padding(log_f_BLF, lengths_B).reshape(heads)

  def flops(self, length: int) -> int:
    """Scores and weighted sum: 4 K operations per head and visible pair of query and key."""
    return 4 * self.query.kernel.shape[-1] * visible_pairs(self.pattern, length, length)


def _normed(x_BLHK, scale_D):
  wide_BLHK = x_BLHK.astype(jnp.float32)
  wide_BLHK = wide_BLHK * lax.rsqrt(jnp.mean(wide_BLHK**2, axis=-1, keepdims=True) + 1e-5)
  return (wide_BLHK * scale_D[...].reshape(x_BLHK.shape[2:])[None, None]).astype(x_BLHK.dtype)
