"""HGRN2: a gated linear recurrence whose state is expanded by an outer product (Qin et al. 2024, arXiv
2404.07904; published code: `Doraemonzzz/hgru2-pytorch`, commit caf92f0, `hgru2_1d.py`, `bihgru2_1d.py` and
`hgru2_2d_parallel.py` in `hgru2_pytorch/modules`)."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.errors import ConfigError
from lra_spt.models.gated import gated_scan, sharded_linear_attention
from lra_spt.models.layers import linear
from lra_spt.models.registry import register_mixer
from lra_spt.models.ssm import check_causal, zero_padding
from lra_spt.ops.linear_attention import chunk_size

LARGEST_SCANNED = 8  # the largest e for which all states of a row are in memory at once


@register_mixer('hgrn2')
class HGRN2(nnx.Module):
  """[v, o, f] = W x + b; v = silu(v), o = sigmoid(o), a = c + (1 - c) sigmoid(f); then per head of e channels

      S_t = diag(a_t) S_{t-1} + (1 - a_t) v_t^T, y_t = o_t^T S_t,

  followed by LayerNorm over all heads and a linear map. c, the lower bound of a, is i / depth in layer i.
  Matrix products run in `dtype`, the rest in float32.

  Both forms are published. The bidirectional form adds to S the result of the same recurrence from the last
  valid position backwards, so the value of the position itself counts twice. The fixed c is ours: the
  published code learns it, as one cumulative softmax over the layers of the model, which starts at these
  values.

  Args:
    expand_ratio: e, channels per head. The published code uses 1 to 8 on the Long Range Arena; then all
      states of a row, length * D * e numbers, are in memory at once. For larger e only those between chunks
      are.
    columns: number of columns of an image whose rows follow each other in the sequence. S then sums over four
      directions, along rows and columns, as published for images. 0: the input is no image.
    depth, layer: depth of the model, and i.
    scan: implementation of the recurrence up to e = 8, see `lra_spt.ops.scan`; '': by platform.

  Raises:
    ConfigError: e does not divide the width, or columns do not divide the length or are used in the causal
      form.
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
    columns: int = 0,
    depth: int = 1,
    layer: int | jax.Array = 0,
    scan: str = '',
    dtype=jnp.float32,
  ):
    del protocol  # nothing departs from good practice
    if expand_ratio < 1 or width % expand_ratio:
      raise ConfigError(
        f'model.mixer.expand_ratio is {expand_ratio}, which does not divide model.width {width}; choose a '
        'divisor'
      )
    if columns < 0 or (columns and (causal or length % columns)):
      raise ConfigError(
        f'model.mixer.columns is {columns}, which is for images with that many columns, read in both '
        f'directions; choose a divisor of the length {length}, or 0, which the causal form needs'
      )
    self.causal, self.expand_ratio, self.columns, self.scan = causal, expand_ratio, columns, scan or None
    self.lower_bound = nnx.Variable(jnp.full(width, jnp.asarray(layer, jnp.float32) / depth))
    self.input = linear(width, 3 * width, dtype=dtype, rngs=rngs)
    self.norm = nnx.LayerNorm(width, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
    self.out = linear(width, width, dtype=dtype, rngs=rngs)

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published layer has no dropout
    a_BLHI, k_BLHI, v_BLHJ, o_BLHI = self._gates(x_BLD)
    if self.expand_ratio > LARGEST_SCANNED:
      k_BLHI = zero_padding(k_BLHI.reshape(x_BLD.shape), lengths_B).reshape(k_BLHI.shape)
      log_a_BLHI = jnp.log(jnp.maximum(a_BLHI, 1e-37))  # at 0 the logarithm has no derivative
      return self._output(self._in_the_plane(self._chunked, o_BLHI, k_BLHI, v_BLHJ, log_a_BLHI))
    a_BLN, u_BLN = self._expanded(a_BLHI, k_BLHI, v_BLHJ)
    u_BLN = zero_padding(u_BLN, lengths_B)  # the scan from the end starts in the padding
    return self._output(self._in_the_plane(self._scanned, a_BLN, u_BLN, o_BLHI))

  def _in_the_plane(self, recur, *arrays):
    """Applies recur(*arrays) to arrays [B, L, ...]. For images it applies it to each row and to each column,
    and adds the two results."""
    if not self.columns:
      return recur(*arrays)
    if (length := arrays[0].shape[1]) % self.columns:
      raise ConfigError(
        f'the input has {length} positions, not a multiple of model.mixer.columns={self.columns}; give whole '
        'rows'
      )
    y_BRCHJ = 0.0
    for axis in (1, 2):  # of [B, rows, columns, ...]: the axis over which the recurrence runs is moved to 2

      def turned(x, axis=axis):
        return jnp.moveaxis(x, axis, 2)

      planes = [turned(x.reshape(x.shape[0], -1, self.columns, *x.shape[2:])) for x in arrays]
      lines = recur(*(x.reshape(-1, *x.shape[2:]) for x in planes))
      y_BRCHJ += turned(lines.reshape(*planes[0].shape[:3], *lines.shape[2:]))
    return y_BRCHJ.reshape(*arrays[0].shape[:2], *y_BRCHJ.shape[3:])

  def _scanned(self, a_BLN, u_BLN, o_BLHI):
    scan = functools.partial(gated_scan, a_BLN, u_BLN, implementation=self.scan)
    s_BLN = scan() if self.causal else scan() + scan(reverse=True)
    return self._read(s_BLN, o_BLHI)

  def _chunked(self, o_BLHI, k_BLHI, v_BLHJ, log_a_BLHI):
    y_BLHJ = sharded_linear_attention(o_BLHI, k_BLHI, v_BLHJ, log_a_BLHI)
    if not self.causal:
      y_BLHJ += sharded_linear_attention(o_BLHI, k_BLHI, v_BLHJ, log_a_BLHI, direction='backward')
    return y_BLHJ

  def _gates(self, x_BLD):
    """a, 1 - a, v and o, float32 [B, L, D / e, e]."""
    heads = (*x_BLD.shape[:2], -1, self.expand_ratio)
    v_BLD, o_BLD, f_BLD = jnp.split(self.input(x_BLD).astype(jnp.float32), 3, axis=-1)
    bound_D = self.lower_bound[...][None, None]
    a_BLD = bound_D + (1 - bound_D) * jax.nn.sigmoid(f_BLD)
    k_BLD = (1 - bound_D) * jax.nn.sigmoid(-f_BLD)
    return tuple(g.reshape(heads) for g in (a_BLD, k_BLD, jax.nn.silu(v_BLD), jax.nn.sigmoid(o_BLD)))

  def _expanded(self, a_BLHI, k_BLHI, v_BLHJ):
    """a and the input (1 - a) v^T, both [B, L, N] with N = D e (heads, rows of S, columns of S)."""
    u_BLHIJ = k_BLHI[..., None] * v_BLHJ[..., None, :]
    flat = (*u_BLHIJ.shape[:2], -1)
    return jnp.broadcast_to(a_BLHI[..., None], u_BLHIJ.shape).reshape(flat), u_BLHIJ.reshape(flat)

  def _read(self, s_BLN, o_BLHI):
    s_BLHIJ = s_BLN.reshape(*o_BLHI.shape, self.expand_ratio)
    return jnp.einsum('blhi,blhij->blhj', o_BLHI, s_BLHIJ)

  def _output(self, y_BLHJ):
    return self.out(self.norm(y_BLHJ.reshape(*y_BLHJ.shape[:2], -1)))

  def init_state(self, batch_size: int) -> jax.Array:
    """The state before the first position, float32 [B, D e].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    return jnp.zeros((batch_size, self.norm.scale.shape[-1] * self.expand_ratio))

  def step(self, state: jax.Array, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    *gates, o_B1HI = self._gates(x_BD[:, None])
    a_B1N, u_B1N = self._expanded(*gates)
    state = a_B1N[:, 0] * state + u_B1N[:, 0]
    return state, self._output(self._read(state[:, None], o_B1HI))[:, 0]

  def flops(self, length: int) -> int:
    """Per position and number of the state: 3 for products and 2 per direction for the recurrence. In chunks
    of T positions: 4 per direction, and 2 T (log2 T + 1) per direction and channel for the weights."""
    width, directions, passes = self.norm.scale.shape[-1], 1 if self.causal else 2, 2 if self.columns else 1
    if self.expand_ratio <= LARGEST_SCANNED:
      return length * width * self.expand_ratio * (3 + 2 * directions) * passes
    size = chunk_size(self.expand_ratio, self.expand_ratio)
    return length * width * directions * passes * (4 * self.expand_ratio + 2 * size * size.bit_length())
