"""DeltaNet: a state that forgets the old value of a key before it stores the new one, and does not decay
(Schlag, Irie and Schmidhuber 2021, arXiv 2102.11174; in this form Yang et al. 2024, arXiv 2406.06484; the
first author's code: `fla-org/flash-linear-attention`, commit bc3b101, `fla/layers/delta_net.py`)."""

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.models.delta import DeltaMixer
from lra_spt.models.registry import Positive, register_mixer


@register_mixer('deltanet')
class DeltaNet(DeltaMixer):
  """[q, k, v, e] = W_i u; [q, k, v] = silu(conv([q, k, v])), then q and k divided by their norms, and q by
  sqrt(N); b = sigmoid(e); then for each of H heads

      S_t = (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T, y_t = q_t^T S_t,

  and W_o RMSNorm(y), the norm over each head, with one scale per channel, which heads share. There are no
  biases. Matrix products, including those of the recurrence, run in `dtype`; states, triangular systems,
  convolution and norm are float32.

  The causal form is the published one. The bidirectional form is ours: a second convolution and recurrence
  run from the last valid position backwards, and both y are summed before the norm.

  Args:
    heads: H.
    expand_k, expand_v: channels of all keys and of all values / D; per head N and P.
    taps: positions that the convolution sees.
    negative: b = 2 sigmoid(e), so that the state may change its sign (arXiv 2411.12537).

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
    expand_k: float = 1.0,
    expand_v: float = 1.0,
    taps: Positive = 4,
    negative: bool = False,
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    self.largest = 2.0 if negative else 1.0
    super().__init__(
      width,
      causal=causal,
      rngs=rngs,
      heads=heads,
      expand_k=expand_k,
      expand_v=expand_v,
      taps=taps,
      sizes=(heads,),
      dtype=dtype,
    )

  def gates(self, e_BLH):
    return [self.largest * jax.nn.sigmoid(e_BLH)]

  def rule(self, k_BLHN, v_BLHP, gates, direction):
    del direction
    return k_BLHN, v_BLHP, None, *gates, None
