"""Linformer: attention to a few learned mixtures of the positions (Wang et al. 2020, arXiv 2006.04768;
published code: `google-research/long-range-arena`, commit cd31e5c, `linformer_attention.py`)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from lra_spt.models.projections import HeadProjections
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import zero_padding


@register_mixer('linformer')
class Linformer(HeadProjections):
  """Attention to r mixtures of the positions, per head:

      y = softmax(q (E^T k)^T / sqrt(K)) (E^T v),

  where E [L, r] mixes positions; keys, values and all heads share it. The softmax runs in float32; memory is
  r numbers per position and head.

  There is no causal form, because every mixture contains every position. E belongs to absolute positions:
  shorter inputs use its first rows. Padding does not enter the mixtures; in the published code it does.

  Options heads and head_dim: see `HeadProjections`.

  Args:
    rank: r; 16 in the published code, 128 and 256 in the paper.

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
    rank: Positive = 16,
    dtype=jnp.float32,
  ):
    del protocol  # nothing departs from good practice
    super().__init__(width, heads, head_dim, ('query', 'key', 'value'), dtype=dtype, rngs=rngs)
    self.causal = causal
    self.mixtures = nnx.Param(nnx.initializers.xavier_uniform()(rngs.params(), (length, rank)))

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # no attention dropout, as in the other Transformers
    q_BLHK, k_BLHK, v_BLHK = self.project(x_BLD, 'query', 'key', 'value')
    mixtures_LR = self.mixtures[: x_BLD.shape[1]].astype(k_BLHK.dtype)

    def mixed(k_BLHK):
      k_BLN = zero_padding(k_BLHK.reshape(*k_BLHK.shape[:2], -1), lengths_B)
      k_BRN = checkpoint_name(jnp.einsum('bln,lr->brn', k_BLN, mixtures_LR), 'mixer')
      return k_BRN.reshape(*k_BRN.shape[:2], *k_BLHK.shape[2:])

    scale = np.float32(self.head_dim**-0.5)
    scores_BHLR = jnp.einsum('blhk,brhk->bhlr', q_BLHK, mixed(k_BLHK), preferred_element_type=jnp.float32)
    weights_BHLR = jax.nn.softmax(scale * scores_BHLR, axis=-1).astype(v_BLHK.dtype)
    y_BLHK = jnp.einsum('bhlr,brhk->blhk', weights_BHLR, mixed(v_BLHK))
    return self.merge(checkpoint_name(y_BLHK, 'mixer'))

  def flops(self, length: int) -> int:
    """2 operations per number and mixture, for each of keys, values, scores and weighted sums."""
    inner, rank = self.heads * self.head_dim, self.mixtures.shape[-1]
    return 8 * length * rank * inner
