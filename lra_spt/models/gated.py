"""Parts of gated linear recurrences: scans with input-dependent decays on any mesh, the short convolution
before them and the gated norm after them.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from lra_spt.distributed.sharding import rows_island, sequence_shards
from lra_spt.errors import ConfigError
from lra_spt.ops.delta_rule import delta_rule
from lra_spt.ops.linear_attention import linear_attention
from lra_spt.ops.scan import linear_scan
from lra_spt.ops.selective_scan import biased_scan, selective_scan


def gated_scan(
  a_BLE: jax.Array, u_BLE: jax.Array, *, reverse: bool = False, implementation: str | None = None
) -> jax.Array:
  """All states h_t = a_t h_{t-1} + u_t, float32 [B, L, E], with h = 0 before the first position; from the
  end, if `reverse`. implementation: see `linear_scan`.

  If the mesh splits positions, shards exchange them for channels. If their number does not divide the
  channels, they gather whole sequences.
  """
  scan = functools.partial(linear_scan, reverse=reverse, implementation=implementation, save_states=True)
  shards = sequence_shards(a_BLE.shape[1])
  if shards == 1 or a_BLE.shape[2] % shards:
    return rows_island(scan)(a_BLE, u_BLE)

  def scan_channels(a_BLE, u_BLE):
    return _to_positions(scan(_to_channels(a_BLE), _to_channels(u_BLE)))

  return rows_island(scan_channels, split=(0, 1))(a_BLE, u_BLE)


def _to_channels(x):
  """Exchanges shards of positions for shards of axis 2."""
  return lax.all_to_all(x, 'seq', split_axis=2, concat_axis=1, tiled=True)


def _to_positions(x):
  """The inverse of `_to_channels`."""
  return lax.all_to_all(x, 'seq', split_axis=1, concat_axis=2, tiled=True)


def sharded_linear_attention(
  q_BLGN: jax.Array,
  k_BLGN: jax.Array,
  v_BLHP: jax.Array,
  log_decay: jax.Array | None = None,
  *,
  direction: str = 'forward',
) -> jax.Array:
  """`linear_attention` on the current mesh. If it splits positions, shards exchange them for heads. If their
  number does not divide the heads, they gather whole sequences."""
  attend = functools.partial(linear_attention, direction=direction)
  if direction == 'both' and log_decay is None:  # two products, which XLA splits well: shards add sums
    return attend(q_BLGN, k_BLGN, v_BLHP)
  return over_heads(attend, q_BLGN, k_BLGN, v_BLHP, log_decay)


def sharded_delta_rule(
  q_BLGN: jax.Array,
  k_BFGN: jax.Array,
  v_BFHP: jax.Array,
  log_decay: jax.Array | None = None,
  beta_BFH: jax.Array | None = None,
  erase_BFGN: jax.Array | None = None,
  *,
  direction: str = 'forward',
) -> jax.Array:
  """`delta_rule` on the current mesh. It splits heads as `sharded_linear_attention` does."""
  attend = functools.partial(delta_rule, direction=direction)
  return over_heads(attend, q_BLGN, k_BFGN, v_BFHP, log_decay, beta_BFH, erase_BFGN)


def over_heads(attend, q_BLGN, k_BLGN, v_BLHP, *gates):
  """Applies attend(q, k, v, *gates) to arrays with heads as axis 2, on the current mesh: see
  `sharded_linear_attention`. A gate may be None."""
  shards, heads = sequence_shards(q_BLGN.shape[1]), v_BLHP.shape[2]
  if shards == 1 or heads % shards:
    return rows_island(attend)(q_BLGN, k_BLGN, v_BLHP, *gates)

  def repeated(x):  # if the number of shards does not divide the heads of the keys, every head gets a copy
    divisible = x is None or x.shape[2] % shards == 0
    return x if divisible else jnp.repeat(x, heads // x.shape[2], axis=2)

  def attend_heads(*arrays):
    return _to_positions(attend(*jax.tree.map(_to_channels, arrays)))

  arrays = [repeated(x) for x in (q_BLGN, k_BLGN, v_BLHP, *gates)]
  return rows_island(attend_heads, split=tuple(range(len(arrays))))(*arrays)


def sharded_selective_scan(
  x_BLE: jax.Array,
  dt_BLE: jax.Array,
  a_EN: jax.Array,
  b_BLN: jax.Array,
  c_BLN: jax.Array,
  *,
  reverse: bool = False,
  implementation: str | None = None,
) -> jax.Array:
  """`selective_scan` on the current mesh. It splits channels as `gated_scan` does."""
  scan = functools.partial(selective_scan, reverse=reverse, implementation=implementation)
  shards = sequence_shards(x_BLE.shape[1])
  if shards == 1 or x_BLE.shape[2] % shards:
    return rows_island(scan, whole=(2,))(x_BLE, dt_BLE, a_EN, b_BLN, c_BLN)

  def scan_channels(x_BLE, dt_BLE, a_EN, b_BLN, c_BLN):
    x_BLE, dt_BLE = _to_channels(x_BLE), _to_channels(dt_BLE)
    count = x_BLE.shape[2]
    a_EN = lax.dynamic_slice_in_dim(a_EN, lax.axis_index('seq') * count, count)
    b_BLN, c_BLN = (lax.all_gather(v, 'seq', axis=1, tiled=True) for v in (b_BLN, c_BLN))
    return _to_positions(scan(x_BLE, dt_BLE, a_EN, b_BLN, c_BLN))

  return rows_island(scan_channels, whole=(2,), split=(0, 1, 3, 4))(x_BLE, dt_BLE, a_EN, b_BLN, c_BLN)


def sharded_biased_scan(
  x_BLJP: jax.Array,
  dt_BLJP: jax.Array,
  a_2N: jax.Array,
  b_BLJM: jax.Array,
  bias_JP2N: jax.Array,
  c_BLJN: jax.Array,
  *,
  reverse: bool = False,
  implementation: str | None = None,
) -> jax.Array:
  """`biased_scan` of J blocks of channels, [B, L, J, P], on the current mesh; b has its real and imaginary
  parts on one axis, M = 2 N. If the mesh splits positions, shards exchange them for blocks. If their number
  does not divide the blocks, they gather whole sequences."""

  def scan(x_BLJP, dt_BLJP, b_BLJM, c_BLJN, bias_JP2N, a_2N):
    def scan_block(x_BLP, dt_BLP, b_BLM, c_BLN, bias_P2N):
      b_BL2N = b_BLM.reshape(*b_BLM.shape[:2], *a_2N.shape)
      options = {'reverse': reverse, 'implementation': implementation}
      return biased_scan(x_BLP, dt_BLP, a_2N, b_BL2N, bias_P2N, c_BLN, **options)

    return jax.vmap(scan_block, (2, 2, 2, 2, 0), 2)(x_BLJP, dt_BLJP, b_BLJM, c_BLJN, bias_JP2N)

  return over_heads_with_parameters(scan, (x_BLJP, dt_BLJP, b_BLJM, c_BLJN), (bias_JP2N,), (a_2N,))


def over_heads_with_parameters(function, arrays, of_heads=(), whole=()) -> jax.Array:
  """function(*arrays, *of_heads, *whole) -> [B, L, H, ...], for arrays [B, L, H, ...] and parameters of heads
  [H, ...] or of all, on the current mesh. If it splits positions, shards exchange them for heads. If their
  number does not divide the heads, they gather whole sequences."""
  arguments = (*arrays, *of_heads, *whole)
  count, parameters = len(arrays), tuple(range(len(arrays), len(arguments)))
  shards, heads = sequence_shards(arrays[0].shape[1]), arrays[0].shape[2]
  if shards == 1 or heads % shards:
    return rows_island(function, whole=parameters)(*arguments)

  def of_shard(*arguments):
    first, size = lax.axis_index('seq') * (heads // shards), heads // shards
    arrays = map(_to_channels, arguments[:count])
    sliced = (lax.dynamic_slice_in_dim(v, first, size) for v in arguments[count : count + len(of_heads)])
    return _to_positions(function(*arrays, *sliced, *arguments[count + len(of_heads) :]))

  return rows_island(of_shard, whole=parameters, split=tuple(range(count)))(*arguments)


def short_convolution(
  x_BLE: jax.Array, kernel_JE: jax.Array, bias_E: jax.Array, *, reverse: bool = False
) -> jax.Array:
  """bias + sum_j kernel_{J-1-j} x_{t-j} for every channel, [B, L, E], over lags j = 0 .. J-1 into the past
  or, if `reverse`, into the future. x is 0 beyond its ends. All arrays have one dtype."""
  taps, length = len(kernel_JE), x_BLE.shape[1]
  before = 0 if reverse else taps - 1
  padded = jnp.pad(x_BLE, ((0, 0), (before, taps - 1 - before), (0, 0)))
  kernel_JE = kernel_JE[::-1] if reverse else kernel_JE
  lags = (kernel_JE[i][None, None] * padded[:, i : i + length] for i in range(taps))
  return sum(lags, start=bias_E[None, None])


def gated_norm(y_BLHP: jax.Array, scale_P: jax.Array, z_BLE: jax.Array) -> jax.Array:
  """head_norm(y) * silu(z), [B, L, E]."""
  return head_norm(y_BLHP, scale_P) * jax.nn.silu(z_BLE)


def head_norm(y_BLHP: jax.Array, scale_P: jax.Array) -> jax.Array:
  """RMSNorm(y), [B, L, E] with E = H P: the norm is over each head, with one scale per channel, and heads
  share the scales."""
  y_BLHP = y_BLHP * lax.rsqrt(jnp.mean(y_BLHP**2, axis=-1, keepdims=True) + 1e-5)
  return (y_BLHP * scale_P[None, None, None]).reshape(*y_BLHP.shape[:2], -1)


def head_channels(option: str, ratio: float, width: int, heads: int) -> int:
  """The channels of all heads, ratio D. Raises ConfigError, in the name of the option, unless they are a
  positive multiple of the heads."""
  channels = round(ratio * width)
  if heads < 1 or channels < 1 or channels % heads:
    raise ConfigError(
      f'{option} is {ratio}, which makes {channels} channels of model.width {width}, not a positive multiple '
      f'of model.mixer.heads={heads}; change one of them'
    )
  return channels


def softplus_inverse(y: jax.Array) -> jax.Array:
  """The x for which log(1 + e^x) = y > 0."""
  return y + jnp.log(-jnp.expm1(-y))
