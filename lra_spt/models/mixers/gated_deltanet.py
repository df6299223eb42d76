"""Gated DeltaNet: a state that forgets the old value of a key before it stores the new one (Yang, Kautz and
Hatamizadeh 2024, arXiv 2412.06464; the first author's code: `fla-org/flash-linear-attention`, commit bc3b101,
`fla/layers/gated_deltanet.py`)."""

import jax.numpy as jnp
from flax import nnx

from lra_spt.models.mixers.gated_deltaproduct import GatedDeltaProduct
from lra_spt.models.registry import Positive, register_mixer


@register_mixer('gated_deltanet')
class GatedDeltaNet(GatedDeltaProduct):
  """[q, k, v, z, e, d] = W_i u; [q, k, v] = silu(conv([q, k, v])), then q and k divided by their norms, and
  q by sqrt(N); b = sigmoid(e), a = exp(-exp(A) softplus(d + c)); then for each of H heads

      S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T, y_t = q_t^T S_t,

  and W_o (RMSNorm(y) * silu(z)), the norm over each head, with one scale per channel, which heads share. Only
  c is a bias. Matrix products, including those of the recurrence, run in `dtype`; decays, states, triangular
  systems, convolution and norm are float32.

  The causal form is the published one. The bidirectional form is ours: a second convolution and recurrence,
  with its own conv, c and A, run from the last valid position backwards, and both y are summed before the
  norm.

  Args:
    heads: H.
    expand_k, expand_v: channels of all keys and of all values / D; per head N and P.
    taps: positions that the convolution sees.
    negative: b = 2 sigmoid(e), so that the state may change its sign (arXiv 2411.12537).
    ssm_lr: learning rate of c and A; 0: the stage's. Neither has weight decay.

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
    expand_k: float = 0.75,
    expand_v: float = 1.5,
    taps: Positive = 4,
    negative: bool = False,
    ssm_lr: float = 0.0,
    dtype=jnp.float32,
  ):
    super().__init__(
      width,
      length=length,
      causal=causal,
      protocol=protocol,
      rngs=rngs,
      heads=heads,
      factors=1,
      expand_k=expand_k,
      expand_v=expand_v,
      taps=taps,
      negative=negative,
      ssm_lr=ssm_lr,
      dtype=dtype,
    )
