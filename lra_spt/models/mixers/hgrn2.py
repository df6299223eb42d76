"""HGRN2: a gated linear recurrence whose state is expanded by an outer product (Qin et al. 2024,
arXiv 2404.07904; published code: `Doraemonzzz/hgru2-pytorch`)."""

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.errors import ConfigError
from lra_spt.models.gated import gated_scan
from lra_spt.models.layers import linear
from lra_spt.models.registry import register_mixer
from lra_spt.models.ssm import check_causal, zero_padding


@register_mixer('hgrn2', row={'model.mixer.expand_ratio': 4, 'model.position': 'none'})
class HGRN2(nnx.Module):
  """[v, o, f] = W x + b; v = silu(v), o = sigmoid(o), a = c + (1 - c) sigmoid(f); then per head of e channels

    S_t = diag(a_t) S_{t-1} + (1 - a_t) v_t^T, y_t = o_t^T S_t,

  LayerNorm over all heads and a linear map. c, the lower bound of a, is i / depth in layer i. Matrix products
  run in `dtype`, the rest in float32.

  The causal and the bidirectional form are published; the latter adds to S what the same recurrence gives
  from the last valid position back, so that a position's own value counts twice. That c is fixed is ours: as
  published it is learned, one cumulative softmax over the layers of the model, which starts at these values.

  Args:
    expand_ratio: e, channels per head; all states of a row take length * D * e numbers, so keep it small (the
      published code has 1 to 8 on the Long Range Arena).
    depth, layer: of the model, and i.

  Raises:
    ConfigError: when e does not divide the width.
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    causal: bool,
    protocol,
    rngs: nnx.Rngs,
    expand_ratio: int = 4,
    depth: int = 1,
    layer: int | jax.Array = 0,
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    if expand_ratio < 1 or width % expand_ratio:
      raise ConfigError(
        f'model.mixer.expand_ratio is {expand_ratio}, which does not divide model.width {width}; choose a '
        'divisor'
      )
    self.causal, self.expand_ratio = causal, expand_ratio
    self.lower_bound = nnx.Variable(jnp.full(width, jnp.asarray(layer, jnp.float32) / depth))
    self.input = linear(width, 3 * width, dtype=dtype, rngs=rngs)
    self.norm = nnx.LayerNorm(width, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
    self.out = linear(width, width, dtype=dtype, rngs=rngs)

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published layer has no dropout
    a_BLN, u_BLN, o_BLD = self._recurrence(x_BLD)
    u_BLN = zero_padding(u_BLN, lengths_B)  # the scan from the end starts in the padding
    s_BLN = gated_scan(a_BLN, u_BLN)
    if not self.causal:
      s_BLN = s_BLN + gated_scan(a_BLN, u_BLN, reverse=True)
    return self._output(s_BLN, o_BLD)

  def _recurrence(self, x_BLD):
    """a and what is added to S, both float32 [B, L, N] with N = D e (heads, rows of S, columns of S), and the
    output gate [B, L, D]."""
    heads = (*x_BLD.shape[:2], -1, self.expand_ratio)
    v_BLD, o_BLD, f_BLD = jnp.split(self.input(x_BLD).astype(jnp.float32), 3, axis=-1)
    bound_D = self.lower_bound[...][None, None]
    a_BLHI1 = (bound_D + (1 - bound_D) * jax.nn.sigmoid(f_BLD)).reshape(*heads, 1)
    k_BLHI1 = ((1 - bound_D) * jax.nn.sigmoid(-f_BLD)).reshape(*heads, 1)
    u_BLHIJ = k_BLHI1 * jax.nn.silu(v_BLD).reshape(*heads)[..., None, :]
    flat = (*x_BLD.shape[:2], -1)
    return (
      jnp.broadcast_to(a_BLHI1, u_BLHIJ.shape).reshape(flat),
      u_BLHIJ.reshape(flat),
      jax.nn.sigmoid(o_BLD),
    )

  def _output(self, s_BLN, o_BLD):
    e = self.expand_ratio
    s_BLHIJ = s_BLN.reshape(*o_BLD.shape[:2], -1, e, e)
    y_BLHJ = jnp.einsum('blhi,blhij->blhj', o_BLD.reshape(s_BLHIJ.shape[:-1]), s_BLHIJ)
    return self.out(self.norm(y_BLHJ.reshape(o_BLD.shape)))

  def init_state(self, batch_size: int) -> jax.Array:
    """The state before the first position, float32 [B, D e].

    Raises:
      ConfigError: of a bidirectional mixer, which has no recurrent form.
    """
    check_causal(self.causal)
    return jnp.zeros((batch_size, self.norm.scale.shape[-1] * self.expand_ratio))

  def step(self, state: jax.Array, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    a_B1N, u_B1N, o_B1D = self._recurrence(x_BD[:, None])
    state = a_B1N[:, 0] * state + u_B1N[:, 0]
    return state, self._output(state[:, None], o_B1D)[:, 0]

  def flops(self, length: int) -> int:
    """Per position and number of the state 3 for products and 2 for each direction's recurrence."""
    states = self.norm.scale.shape[-1] * self.expand_ratio
    return length * states * (5 if self.causal else 7)
