"""Linear Transformer: attention with the features elu(x) + 1 (Katharopoulos et al. 2020, arXiv 2006.16236;
published code: `google-research/long-range-arena`, commit cd31e5c, `linear_attention.py`)."""

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.models.kernel_attention import KernelAttention
from lra_spt.models.registry import register_mixer


@register_mixer('linear_transformer')
class LinearTransformer(KernelAttention):
  """Attention by products of features, per head:

      y_t = sum over s of f(q_t) . f(k_s) v_s / (R_t + 1e-6), f(x) = elu(x) + 1,
      R_t = sum over s of f(q_t) . f(k_s),

  over all s, or over s <= t in the causal form; both are published. Padding does not enter the sums; in the
  published code it does.

  Options: heads and head_dim, see `HeadProjections`.
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
    dtype=jnp.float32,
  ):
    del length, protocol  # sums know no length, and nothing departs from good practice
    super().__init__(width, heads, head_dim, causal, dtype=dtype, rngs=rngs)

  def features(self, q_BLHK, k_BLHK, valid_BL, key):
    del valid_BL, key
    return tuple(jax.nn.elu(x.astype(jnp.float32)) + 1 for x in (q_BLHK, k_BLHK))

  def quotient(self, y, r):
    return y / (r + 1e-6)
