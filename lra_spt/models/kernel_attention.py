"""Attention whose weights are products of features of queries and keys, so that its cost is linear in the
length.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.models.gated import sharded_linear_attention
from lra_spt.models.layers import valid_positions
from lra_spt.models.projections import HeadProjections
from lra_spt.models.ssm import check_causal
from lra_spt.ops.linear_attention import chunk_size


class KernelAttention(HeadProjections):
  """A mixer that sums over all valid positions s or, if causal, over s <= t, per head:

      y_t = sum over s of f(q_t) . f(k_s) v_s / R_t, R_t = sum over s of f(q_t) . f(k_s).

  A subclass has

  - `features(q_BLHK, k_BLHK, valid_BL, key) -> f(q), f(k)`, float32 [B, L, H, M]; valid_BL is None if every
    position is valid; key is for random draws in training, None otherwise,
  - `feature_count`: M, and
  - `quotient(y, r) -> y / r`, which avoids a division by 0.

  Matrix products, including those of features, run in `dtype`; features, sums over positions and quotients
  are float32.

  Raises:
    ConfigError: an option is out of range.
  """

  def __init__(self, width: int, heads: int, head_dim: int, causal: bool, *, dtype, rngs: nnx.Rngs):
    super().__init__(width, heads, head_dim, ('query', 'key', 'value'), dtype=dtype, rngs=rngs)
    self.causal = causal

  @property
  def feature_count(self) -> int:
    return self.head_dim

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    q_BLHK, k_BLHK, v_BLHK = self.project(x_BLD, 'query', 'key', 'value')
    valid_BL = None if lengths_B is None else valid_positions(lengths_B, x_BLD.shape[1])
    # All rows share one draw, by the key of the first.
    key = None if deterministic or rngs is None else jax.random.fold_in(rngs[0], 1)
    q_BLHM, k_BLHM = self.features(q_BLHK, k_BLHK, valid_BL, key)
    if valid_BL is not None:
      k_BLHM = jnp.where(valid_BL[..., None, None], k_BLHM, 0.0)
    sums_BLHP = sharded_linear_attention(
      q_BLHM.astype(v_BLHK.dtype),
      k_BLHM.astype(v_BLHK.dtype),
      _with_ones(v_BLHK),
      direction='forward' if self.causal else 'both',
    )
    return self.merge(self.quotient(sums_BLHP[..., :-1], sums_BLHP[..., -1:]))

  def init_state(self, batch_size: int) -> jax.Array:
    """The state before the first position: sums of f(k) [v, 1], float32 [B, H, M, K + 1].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    return jnp.zeros((batch_size, self.heads, self.feature_count, self.head_dim + 1))

  def step(self, state: jax.Array, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    q_B1HK, k_B1HK, v_B1HK = self.project(x_BD[:, None], 'query', 'key', 'value')
    q_B1HM, k_B1HM = self.features(q_B1HK, k_B1HK, None, None)
    values_B1HP = _with_ones(v_B1HK).astype(jnp.float32)
    state = state + jnp.einsum('bthm,bthp->bhmp', k_B1HM, values_B1HP)
    sums_B1HP = jnp.einsum('bthm,bhmp->bthp', q_B1HM, state)
    return state, self.merge(self.quotient(sums_B1HP[..., :-1], sums_B1HP[..., -1:]))[:, 0]

  def flops(self, length: int) -> int:
    """4 per position, head, feature and number of [v, 1]: to add it to the sums and to read them. The causal
    form has 2 more per position of the chunk for each feature and each number of [v, 1]."""
    features, values = self.feature_count, self.head_dim + 1
    chunk = min(length, chunk_size(features, values)) if self.causal else 0
    return length * self.heads * (4 * features * values + 2 * chunk * (features + values))


def _with_ones(v_BLHK):
  return jnp.concatenate([v_BLHK, jnp.ones_like(v_BLHK[..., :1])], axis=-1)
