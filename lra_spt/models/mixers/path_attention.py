"""PaTH attention: softmax attention whose positions are products of Householder-like matrices (Yang et al.
2025, arXiv 2505.16381; the first author's code: `fla-org/flash-linear-attention`, commit bc3b101,
`fla/layers/path_attn.py`)."""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from lra_spt.models.gated import over_heads, short_convolution
from lra_spt.models.layers import check_heads, linear, valid_positions
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import zero_padding
from lra_spt.ops.path_attention import CHUNK, path_attention


@register_mixer('path_attention')
class PathAttention(nnx.Module):
  """Softmax attention with H heads of K = D / H dimensions, q, k and v linear in x, and scores

      q_t^T M_t M_{t-1} ... M_{s+1} k_s / sqrt(K), s <= t, where M_r = I - b_r w_r w_r^T,

  w = silu(conv(W W' x)) divided by its norm, with W' of lower rank, and b = 2 sigmoid(W_b x + c). Only W_b
  has a bias. There are no other positions. Scores are float32.

  The causal form is the published one. The bidirectional form is ours: a second attention to s >= t, over M_t
  ... M_{s-1} with a convolution, W_b and c of its own, is added before the output map.

  Args:
    heads: H.
    rank: the rank of W W'.
    taps: positions that the convolution sees.

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
    rank: Positive = 32,
    taps: Positive = 3,
    dtype=jnp.float32,
  ):
    del length, protocol  # matrices know no length, and nothing departs from good practice
    check_heads(heads, width)
    self.causal, self.dtype, self.heads = causal, dtype, heads
    for name in ('query', 'key', 'value', 'out'):
      setattr(self, name, linear(width, width, bias=False, dtype=dtype, rngs=rngs))
    self.turn_in = linear(width, rank, bias=False, dtype=dtype, rngs=rngs)
    self.turn_out = linear(rank, width, bias=False, dtype=dtype, rngs=rngs)
    directions, bound = 1 if causal else 2, 1 / math.sqrt(taps)
    conv = jax.random.uniform(rngs.params(), (directions, taps, width), minval=-bound, maxval=bound)
    self.conv = nnx.Param(conv)
    self.rate = linear(width, directions * heads, rngs=rngs)

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published layer has no dropout
    heads = (*x_BLD.shape[:2], self.heads, -1)
    q_BLHK, k_BLHK, v_BLHK = (layer(x_BLD).reshape(heads) for layer in (self.query, self.key, self.value))
    # Zeros in the padding make w = 0 there, which turns nothing.
    turn_BLD = zero_padding(self.turn_out(self.turn_in(x_BLD)).astype(jnp.float32), lengths_B)
    beta_BLHS = 2 * jax.nn.sigmoid(self.rate(x_BLD).astype(jnp.float32)).reshape(heads)
    y_BLHK = 0
    for direction in range(len(self.conv)):
      reverse, none = direction == 1, jnp.zeros(turn_BLD.shape[-1])
      w_BLHK = short_convolution(turn_BLD, self.conv[direction], none, reverse=reverse)
      w_BLHK = jax.nn.silu(w_BLHK).reshape(heads)
      w_BLHK = w_BLHK * lax.rsqrt(jnp.sum(w_BLHK**2, -1, keepdims=True) + 1e-6)
      hidden_BLH = None
      if reverse and lengths_B is not None:
        hidden_BLH = jnp.broadcast_to(~valid_positions(lengths_B, heads[1])[..., None], heads[:3])
      arrays = (q_BLHK, k_BLHK, v_BLHK, w_BLHK, beta_BLHS[..., direction], hidden_BLH)
      attend = functools.partial(path_attention, direction='backward' if reverse else 'forward')
      y_BLHK += over_heads(attend, *arrays)
    return self.out(y_BLHK.reshape(x_BLD.shape))

  def flops(self, length: int) -> int:
    """Per direction, head and pair of positions 4 K for scores and values, and 2 K^2 / T for queries that
    pass chunks of T positions; per position 2 for each weight of the convolution."""
    directions, taps, width = self.conv.shape[-3:]  # stacked blocks have a depth axis in front
    size = width // self.heads
    chunk = min(CHUNK, 1 << (length - 1).bit_length())
    pairs = length**2 * (4 * width + 2 * width * size // chunk)
    return directions * (pairs + 2 * length * taps * width)
