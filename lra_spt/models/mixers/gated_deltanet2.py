"""Gated DeltaNet-2: Kimi Delta Attention with separate gates, per channel, for what the state forgets and for
what it stores (Hatamizadeh, Choi and Kautz 2026, arXiv 2605.22791; code: `fla-org/flash-linear-attention`,
commit bc3b101, `fla/layers/gdn2.py`)."""

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.models.delta import DeltaMixer
from lra_spt.models.layers import linear
from lra_spt.models.registry import Positive, register_mixer


@register_mixer('gated_deltanet2')
class GatedDeltaNet2(DeltaMixer):
  """[q, k, v, f, g, e, w] = W_i u; [q, k, v] = silu(conv([q, k, v])), then q and k divided by their norms,
  and q by sqrt(N); a = exp(-exp(A) softplus(W_f f + c)); then for each of H heads

      S_t = (I - k_t (sigmoid(e_t) * k_t)^T) diag(a_t) S_{t-1} + k_t (sigmoid(w_t) * v_t)^T, y_t = q_t^T S_t,

  and W_o (RMSNorm(y) * sigmoid(W_g g + h)), the norm over each head, with one scale per channel, which heads
  share. A has one number per head; a, c and e have one per channel of the keys, w one per channel of the
  values; f and g have P. Only c and h are biases. Matrix products, including those of the recurrence, run in
  `dtype`; decays, states, triangular systems, convolution and norm are float32.

  The causal form is the published one. The bidirectional form is ours: a second convolution and recurrence,
  with its own conv, c and A, run from the last valid position backwards, and both y are summed before the
  norm.

  Args:
    heads: H.
    expand_k, expand_v: channels of all keys and of all values / D; per head N and P.
    taps: positions that the convolution sees.
    negative: 2 sigmoid(e) in place of sigmoid(e), so that the state may change its sign (arXiv 2411.12537).
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
    expand_k: float = 1.0,
    expand_v: float = 1.0,
    taps: Positive = 4,
    negative: bool = False,
    ssm_lr: float = 0.0,
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    self.largest = 2.0 if negative else 1.0
    keys, values = round(expand_k * width), round(expand_v * width)
    rank = values // max(heads, 1)
    super().__init__(
      width,
      causal=causal,
      rngs=rngs,
      heads=heads,
      expand_k=expand_k,
      expand_v=expand_v,
      taps=taps,
      sizes=(rank, rank, keys, values),
      dtype=dtype,
    )
    self.to_decay = linear(rank, keys, bias=False, dtype=dtype, rngs=rngs)
    self.to_gate = linear(rank, values, dtype=dtype, rngs=rngs)
    self._make_decay(rngs, keys, 1.0, ssm_lr)

  def gates(self, f_BLP, g_BLP, e_BLK, w_BLE):
    d_BLK, z_BLE = (x.astype(jnp.float32) for x in (self.to_decay(f_BLP), self.to_gate(g_BLP)))
    return [d_BLK, z_BLE, self.largest * jax.nn.sigmoid(e_BLK), jax.nn.sigmoid(w_BLE)]

  def rule(self, k_BLHN, v_BLHP, gates, direction):
    d_BLK, _, erase_BLK, write_BLE = gates
    erase_BLHN = erase_BLK.reshape(k_BLHN.shape) * k_BLHN
    return (
      k_BLHN,
      write_BLE.reshape(v_BLHP.shape) * v_BLHP,
      self.log_decay(d_BLK, direction),
      None,
      erase_BLHN,
    )

  def gated(self, y_BLE, gates):
    return y_BLE * jax.nn.sigmoid(gates[1])
