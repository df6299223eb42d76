"""Gated DeltaProduct: Gated DeltaNet with several keys and values per position, so that the state is
multiplied by a product of Householder matrices (Siems et al. 2025, arXiv 2502.10297; their code:
`fla-org/flash-linear-attention`, commit bc3b101, `fla/layers/gated_deltaproduct.py`)."""

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.models.delta import DeltaMixer
from lra_spt.models.registry import Positive, register_mixer


@register_mixer('gated_deltaproduct')
class GatedDeltaProduct(DeltaMixer):
  """[q, k_1, ..., k_J, v_1, ..., v_J, z, e_1, ..., e_J, d] = W_i u; q, k and v become silu(conv(.)), then q
  and k are divided by their norms, and q by sqrt(N); b_j = 2 sigmoid(e_j), a = exp(-exp(A) softplus(d + c));
  then for each of H heads S_t is a_t S_{t-1} after the J steps

      S <- (I - b_j k_j k_j^T) S + b_j k_j v_j^T, j = 1, ..., J

  and y_t = q_t^T S_t. The output is W_o (RMSNorm(y) * silu(z)), the norm over each head, with one scale per
  channel, which heads share. Only c is a bias. Matrix products, including those of the recurrence, run in
  `dtype`; decays, states, triangular systems, convolution and norm are float32.

  The causal form is the published one. The bidirectional form is ours: a second convolution and recurrence,
  with its own conv, c and A, run from the last valid position backwards, and both y are summed before the
  norm.

  Args:
    heads: H.
    factors: J. One is Gated DeltaNet. The recurrence takes J times as long.
    expand_k, expand_v: channels of all keys and of all values of one j / D; per head N and P.
    taps: positions that the convolution sees.
    negative: False: b = sigmoid(e), so that the state never changes its sign.
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
    factors: Positive = 2,
    expand_k: float = 0.75,
    expand_v: float = 1.5,
    taps: Positive = 4,
    negative: bool = True,
    ssm_lr: float = 0.0,
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
      sizes=(round(expand_v * width), factors * heads, heads),
      factors=factors,
      dtype=dtype,
    )
    # The published range starts at 0, where the logarithm has no value.
    self._make_decay(rngs, heads, 1e-4, ssm_lr)

  def gates(self, z_BLE, e_BLC, d_BLH):
    beta_BLC = self.largest * jax.nn.sigmoid(e_BLC)
    return [z_BLE, beta_BLC.reshape(len(e_BLC), -1, self.heads), d_BLH]

  def rule(self, k_BFHN, v_BFHP, gates, direction):
    _, beta_BFH, d_BLH = gates
    return k_BFHN, v_BFHP, self.log_decay(d_BLH, direction), beta_BFH, None

  def gated(self, y_BLE, gates):
    return y_BLE * jax.nn.silu(gates[0])
