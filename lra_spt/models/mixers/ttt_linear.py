"""TTT-Linear: a linear model that is trained on the sequence while it is read (Sun et al. 2024, arXiv
2407.04620; published code: `test-time-training/ttt-lm-pytorch`, commit cd831db, `ttt.py`)."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.distributed.sharding import rows_island
from lra_spt.errors import ConfigError
from lra_spt.models.layers import Linear, linear
from lra_spt.models.registry import Positive, register_mixer
from lra_spt.models.ssm import check_causal, zero_padding
from lra_spt.ops.rotary import rotary
from lra_spt.ops.ttt import gradient, layer_norm, ttt_linear


@register_mixer('ttt_linear')
class TTTLinear(nnx.Module):
  """q, k and v are linear in x. For each of H heads of N = D / H channels, position t reads

      y_t = q_t + f(q_t; W_t, b_t), f(x; W, b) = LayerNorm(x W + b),

  where W and b learn by gradient descent to give v_s - k_s for k_s, in mini-batches of T positions. The
  gradient of position s is that of |f(k_s; W, b) - (v_s - k_s)|^2 / 2 at the W and b after the mini-batch
  before, times the learning rate sigmoid(w x_s + c) / N. At position i of a mini-batch, from 0 on, the sum of
  its gradients so far is multiplied by max(1 / (i + 1) + m_i, 0). q and k are rotated by their positions in
  the mini-batch. The output is W_o LayerNorm(y). The maps to q, k and v and W_o have no biases and run in
  `dtype`, the rest in float32.

  The causal form is the published one, as in the backbone of a Transformer: without convolution and gate. The
  bidirectional form is ours: a second model, with its own first W and b, LayerNorm in f, w, c and m, reads
  the same mini-batches from the last valid position backwards, and both y are summed. If positions are split
  over devices, each device has whole sequences.

  Args:
    heads: H.
    chunk: T, published 16.

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
    chunk: Positive = 16,
    dtype=jnp.float32,
  ):
    del protocol  # nothing departs from good practice
    if heads < 1 or width % heads or width // heads % 2:
      raise ConfigError(
        f'model.width is {width} and model.mixer.heads {heads}, but heads need an even number of channels; '
        'choose heads that divide half of the width'
      )
    if chunk > length:
      raise ConfigError(
        f'model.mixer.chunk is {chunk}, longer than the {length} positions of the sequence; choose at most '
        'these'
      )
    self.causal, self.heads = causal, heads
    directions, size = 1 if causal else 2, width // heads
    self.query, self.key, self.value, self.out = (
      linear(width, width, bias=False, dtype=dtype, rngs=rngs) for _ in range(4)
    )
    small = nnx.initializers.normal(0.02)
    self.rate = Linear(width, directions * heads, kernel_init=small, rngs=rngs)
    self.memory = nnx.Param(small(rngs.params(), (directions, heads, size, size)))
    self.memory_bias = nnx.Param(jnp.zeros((directions, heads, size)))
    self.norm_scale = nnx.Param(jnp.ones((directions, heads, size)))
    self.norm_bias = nnx.Param(jnp.zeros((directions, heads, size)))
    self.token_shift = nnx.Param(jnp.zeros((directions, chunk)))
    self.norm = nnx.LayerNorm(width, epsilon=1e-6, use_fast_variance=False, rngs=rngs)

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published layer has no dropout
    q_BLHN, k_BLHN, v_BLHN, rate_BLSH = self._inputs(x_BLD)
    q_BLHN, k_BLHN = self._rotated(q_BLHN), self._rotated(k_BLHN)
    rate_BLSH = zero_padding(rate_BLSH.reshape(*x_BLD.shape[:2], -1), lengths_B).reshape(rate_BLSH.shape)
    y_BLHN = 0
    for direction in range(len(self.memory)):
      read = rows_island(functools.partial(ttt_linear, reverse=direction == 1), whole=(4, 5, 6))
      y_BLHN += read(q_BLHN, k_BLHN, v_BLHN, rate_BLSH[:, :, direction], *self._model(direction))
    return self.out(self.norm(y_BLHN.reshape(x_BLD.shape)))

  def _inputs(self, x_BLD):
    """q, k and v [B, L, H, N], and learning rates [B, L, directions, H], float32."""
    shape = (*x_BLD.shape[:2], self.heads, -1)
    qkv = (layer(x_BLD).astype(jnp.float32).reshape(shape) for layer in (self.query, self.key, self.value))
    size = x_BLD.shape[-1] // self.heads
    rate_BLM = jax.nn.sigmoid(self.rate(x_BLD.astype(jnp.float32))) / size
    return *qkv, rate_BLM.reshape(*x_BLD.shape[:2], -1, self.heads)

  def _rotated(self, x_BLHN):
    """x turned by its positions in the mini-batches."""
    length, chunk = x_BLHN.shape[1], self.token_shift.shape[-1]
    x_BLHN = jnp.pad(x_BLHN, ((0, 0), (0, -length % chunk), (0, 0), (0, 0)))
    turned = rotary(x_BLHN.reshape(-1, chunk, *x_BLHN.shape[2:]))
    return turned.reshape(x_BLHN.shape)[:, :length]

  def _model(self, direction):
    """The first W and b, LayerNorm, and the factors of the positions of a mini-batch."""
    token_T = 1 / jnp.arange(1, self.token_shift.shape[-1] + 1, dtype=jnp.float32)
    return (
      (self.memory[direction], self.memory_bias[direction]),
      (self.norm_scale[direction], self.norm_bias[direction]),
      jnp.maximum(token_T + self.token_shift[direction], 0),
    )

  def init_state(self, batch_size: int) -> dict[str, jax.Array]:
    """The state before the first position: position int32 [], W [B, H, N, N] and b [B, H, N] of the last
    mini-batch, and the sums of gradients since then, times learning rates.

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    first = [jnp.broadcast_to(x[None], (batch_size, *x.shape)) for x in self._model(0)[0]]
    names = ('w', 'b', 'w_sum', 'b_sum')
    states = dict(zip(names, (*first, *map(jnp.zeros_like, first)), strict=True))
    return states | {'position': jnp.zeros((), jnp.int32)}

  def step(self, state, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    q_B1HN, k_B1HN, v_B1HN, rate_B1SH = self._inputs(x_BD[:, None])
    _, norm, token_T = self._model(0)
    place = state['position'] % len(token_T)
    q_BHN, k_BHN = (rotary(x, offset=place)[:, 0] for x in (q_B1HN, k_B1HN))
    predicted_BHN = _applied(k_BHN, state['w'], state['b'])
    gradient_BHN = gradient(predicted_BHN[:, :, None], (v_B1HN[:, 0] - k_BHN)[:, :, None], norm)[:, :, 0]
    gradient_BHN = rate_B1SH[:, 0, 0, :, None] * gradient_BHN
    w_sum, b_sum = state['w_sum'] + k_BHN[..., None] * gradient_BHN[:, :, None], state['b_sum'] + gradient_BHN
    w, b = state['w'] - token_T[place] * w_sum, state['b'] - token_T[place] * b_sum
    y_BHN = q_BHN + layer_norm(_applied(q_BHN, w, b)[:, :, None], norm)[:, :, 0]
    last = place == len(token_T) - 1
    learned = {'w': w, 'b': b, 'w_sum': jnp.zeros_like(w_sum), 'b_sum': jnp.zeros_like(b_sum)}
    before = {'w': state['w'], 'b': state['b'], 'w_sum': w_sum, 'b_sum': b_sum}
    state = jax.tree.map(functools.partial(jnp.where, last), learned, before) | {
      'position': state['position'] + 1
    }
    return state, self.out(self.norm(y_BHN.reshape(len(x_BD), 1, -1)))[:, 0]

  def flops(self, length: int) -> int:
    """Per position, direction and channel: 6 N for three products with W, and 6 for each position of the
    mini-batch."""
    directions, heads, size = self.memory.shape[-4:-1]  # stacked blocks have a depth axis in front
    return length * directions * heads * size * 6 * (size + self.token_shift.shape[-1])


def _applied(x_BHN, w_BHNN, b_BHN):
  return jnp.einsum('bhn,bhnm->bhm', x_BHN, w_BHNN) + b_BHN
