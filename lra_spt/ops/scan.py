"""Linear recurrences h_t = a_t h_{t-1} + x_t along the length; their gradient is one reverse scan.

Complex numbers are computed as real pairs (axis C of 1 or 2 before the states, see `components`).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from lra_spt.distributed.sharding import platform
from lra_spt.errors import ConfigError
from lra_spt.ops import selection
from lra_spt.ops.components import adjoint, from_pairs, is_matrix, powers, times, to_pairs


def linear_scan(
  a: jax.Array,
  x_BLN: jax.Array,
  *,
  initial_BN: jax.Array | None = None,
  reverse: bool = False,
  implementation: str | None = None,
  save_states: bool = False,
) -> jax.Array:
  """All states of h_t = a_t h_{t-1} + x_t, in one pass over the length.

  Works under jit, vmap, scan, checkpoint and shard_map ('pallas' with check_vma=False), and does not depend
  on a mesh. Differentiable once, in reverse mode, with respect to a, x and initial_BN; the backward pass
  keeps only a and h.

  Args:
    a: [N], the same at every position, or [B, L, N]; dtype of x.
    x_BLN: float32 or complex64.
    initial_BN: state before the first position (after the last, if `reverse`); None is 0.
    reverse: h_t = a_t h_{t+1} + x_t, from the end.
    implementation: 'associative' (a tree of logarithmic depth), 'sequential' (a loop over positions),
      'chunked' (a loop over the positions of all chunks at once, a loop over chunks, and the first loop
      again), 'pallas' (a kernel that reads and writes every number once; for TPUs and GPUs, interpreted on
      CPUs), or None: 'sequential' on CPUs; elsewhere the one that `lra_spt.training.autotune` has verified
      or, before that, 'associative'.
    save_states: runtime.remat='mixers' saves h, so that the scan does not run again for its gradient.

  Returns:
    h [B, L, N] of x's dtype. Powers of a constant a are computed in doubled precision, so that for |a| near 1
    every implementation is as accurate as the loop over positions.

  Raises:
    ValueError: an unknown implementation, or shapes or dtypes that do not fit together.
  """
  if x_BLN.dtype not in (jnp.float32, jnp.complex64) or a.dtype != x_BLN.dtype:
    raise ValueError(
      f'linear_scan got a of {a.dtype} and x of {x_BLN.dtype}; cast both to float32 or both to complex64'
    )
  if x_BLN.ndim != 3 or 0 in x_BLN.shape or a.shape not in (x_BLN.shape, x_BLN.shape[2:]):
    raise ValueError(
      f'linear_scan got a of shape {a.shape} and x of shape {x_BLN.shape}; pass x [B, L, N] with every size '
      'at least 1, and a as [N] or in the shape of x'
    )
  state = jax.ShapeDtypeStruct(x_BLN.shape[::2], x_BLN.dtype)
  if initial_BN is not None and (initial_BN.shape, initial_BN.dtype) != (state.shape, state.dtype):
    raise ValueError(
      f'linear_scan got an initial state of {initial_BN.dtype} and shape {initial_BN.shape}; pass '
      f'{state.dtype} of shape {state.shape}'
    )
  components = (lambda v: v[..., None, :]) if x_BLN.dtype == jnp.float32 else to_pairs
  initial = None if initial_BN is None else components(initial_BN)
  h_BLCN = scan_components(
    components(a),
    components(x_BLN),
    initial=initial,
    reverse=reverse,
    implementation=implementation,
    save_states=save_states,
  )
  return h_BLCN[:, :, 0] if x_BLN.dtype == jnp.float32 else from_pairs(h_BLCN)


def scan_components(
  a: jax.Array,
  x_BLCN: jax.Array,
  *,
  initial: jax.Array | None = None,
  reverse: bool = False,
  implementation: str | None = None,
  save_states: bool = False,
  axis: str | None = None,
) -> jax.Array:
  """`linear_scan` of numbers as components: float32 x [B, L, C, N], a [C, N] or x's shape, initial [B, C, N],
  C = 1 (real) or 2 (complex). With a [4, N] the factor of each state is a real 2 x 2 matrix, by rows, and
  states are vectors, C = 2; there is no kernel ('pallas') for these.

  Args:
    axis: inside of shard_map, the mesh axis that splits the positions. x and h are then those of this shard,
      a is [C, N], and there is no initial state. Devices exchange one gather of the shards' last states, and
      one of their gradients.

  Raises:
    ConfigError: an implementation that is unknown or cannot do this.
    ValueError: an axis with an initial state or with an a per position.
  """
  if implementation is None:
    implementation = _selected(a, x_BLCN, reverse, axis)
  else:
    selection.named('linear scan', implementation)
  if implementation not in NAMES:
    known = ', '.join(NAMES)
    raise ConfigError(f'linear_scan implementation {implementation!r} is unknown; choose {known}, or None')
  if implementation == 'pallas' and is_matrix(a):
    others = ', '.join(name for name in NAMES if name != 'pallas')
    raise ConfigError(
      f"runtime.scan is 'pallas', which has no kernel for factors that are matrices; choose {others} or ''"
    )
  if axis is not None and (a.ndim == 4 or initial is not None):
    raise ValueError('a scan over a mesh axis takes a constant a and no initial state')
  if initial is not None:
    edge = x_BLCN.shape[1] - 1 if reverse else 0
    x_BLCN = x_BLCN.at[:, edge].add(times(a if a.ndim == 2 else a[:, edge], initial))
  if a.ndim == 2:  # in shard_map, a varies over devices as x does: its gradient is summed on the way out
    a = a + lax.full_like(x_BLCN, 0, shape=a.shape)
  if implementation == 'pallas' and axis is None:  # it has its own gradient
    return _pallas(a, x_BLCN, reverse, save_states)
  return _scan(reverse, implementation, axis, save_states, a, x_BLCN)


def _selected(a, x_BLCN, reverse, axis):
  """Returns 'sequential' on CPUs, else the implementation that `selection` picks."""
  if platform() == 'cpu':
    return 'sequential'
  if axis is not None:
    return 'associative'
  varying = a.ndim == 4
  sizes = (
    ('a', a.shape[1:] if varying else a.shape, 'float32', varying),
    ('x', x_BLCN.shape[1:], 'float32', True),
  )
  options = (('reverse', reverse),)
  candidates = tuple(name for name in _CANDIDATES if name != 'pallas') if is_matrix(a) else _CANDIDATES
  return selection.select(
    selection.Call('linear scan', sizes, options, x_BLCN.shape[0], candidates, 'associative')
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _scan(reverse, implementation, axis, save_states, a, x_BLCN):
  return _states(reverse, implementation, axis, a, x_BLCN)[0]


def _states(reverse, implementation, axis, a, x_BLCN):
  """h and, with an axis, the state [B, C, N] that earlier shards pass on to this one."""
  h_BLCN = _IMPLEMENTATIONS[implementation](a, x_BLCN, reverse)
  if axis is None:
    return h_BLCN, None
  first, last = (-1, 0) if reverse else (0, -1)
  # a, a^2, ..., a^L by the tree: an error of a^L counts once for every shard.
  none_1LCN = lax.full_like(x_BLCN, 0, shape=(1, x_BLCN.shape[1], *a.shape))
  powers_1LCN = _associative(a, none_1LCN.at[:, first].set(a[None]), reverse)
  ends_BKCN = lax.all_gather(h_BLCN[:, last], axis, axis=1)
  carried_BKCN = _shifted(_sequential(powers_1LCN[0, last], ends_BKCN, reverse), reverse)
  carried_B1CN = lax.dynamic_slice_in_dim(carried_BKCN, lax.axis_index(axis), 1, axis=1)
  return h_BLCN + times(powers_1LCN, carried_B1CN), carried_B1CN[:, 0]


def _scan_forward(reverse, implementation, axis, save_states, a, x_BLCN):
  results = _states(reverse, implementation, axis, a, x_BLCN)
  h_BLCN, carried_BCN = checkpoint_name(results, 'mixer') if save_states else results
  return h_BLCN, (a, h_BLCN, carried_BCN)


def _scan_backward(reverse, implementation, axis, save_states, residuals, g_BLCN):
  """dx_t = g_t + a*_{t+1} dx_{t+1} and da_t = h*_{t-1} dx_t; * is the conjugate, as components are real."""
  a, h_BLCN, carried_BCN = residuals
  following = a if a.ndim == 2 else _shifted(a, not reverse)
  dx_BLCN = _scan(not reverse, implementation, axis, save_states, adjoint(following), g_BLCN)
  if a.ndim == 4:
    return times(adjoint(_shifted(h_BLCN, reverse)), dx_BLCN), dx_BLCN
  later, earlier = (dx_BLCN[:, :-1], h_BLCN[:, 1:]) if reverse else (dx_BLCN[:, 1:], h_BLCN[:, :-1])
  correlation = _outer if is_matrix(a) else _correlation
  da = correlation(later, earlier)
  if axis is not None:
    da += correlation(dx_BLCN[:, -1:] if reverse else dx_BLCN[:, :1], carried_BCN[:, None])
  return da, dx_BLCN


def _outer(x_BL2N, y_BL2N):
  """The sum of matrices x y^T over rows and positions, [4, N]."""
  products = [x_BL2N[:, :, i] * y_BL2N[:, :, j] for i in (0, 1) for j in (0, 1)]
  return jnp.stack([jnp.sum(product, axis=(0, 1)) for product in products])


def _correlation(x_BLCN, y_BLCN):
  """The sum of x y* over rows and positions, [C, N]."""
  total = jnp.sum(x_BLCN * y_BLCN, axis=(0, 1, 2))
  if x_BLCN.shape[2] == 1:
    return total[None]
  crossed = jnp.sum(x_BLCN * jnp.flip(y_BLCN, 2), axis=(0, 1))
  return jnp.stack([total, crossed[1] - crossed[0]])


_scan.defvjp(_scan_forward, _scan_backward)


def _shifted(x_BLCN, reverse):
  """x_{t-1} at position t (x_{t+1} if `reverse`), 0 where there is none."""
  none = jnp.zeros_like(x_BLCN[:, :1])
  return jnp.concatenate([x_BLCN[:, 1:], none] if reverse else [none, x_BLCN[:, :-1]], axis=1)


def _sequential(a, x_BLCN, reverse):
  """A loop over positions that overwrites x by h."""
  length = x_BLCN.shape[1]

  def step(i, carry):
    h_BCN, states_BLCN = carry
    t = length - 1 - i if reverse else i
    a_t = a if a.ndim == 2 else lax.dynamic_index_in_dim(a, t, 1, keepdims=False)
    h_BCN = times(a_t, h_BCN) + lax.dynamic_index_in_dim(states_BLCN, t, 1, keepdims=False)
    return h_BCN, lax.dynamic_update_slice_in_dim(states_BLCN, h_BCN[:, None], t, 1)

  first_BCN = x_BLCN[:, -1 if reverse else 0]
  return lax.fori_loop(1, length, step, (first_BCN, x_BLCN))[1]


def _chunked(a, x_BLCN, reverse):
  """Scans K chunks of T positions at once. It first computes the last state of each chunk from a state of 0,
  then the true states between chunks, then each chunk from its true first state."""
  batch, length, components, states = x_BLCN.shape
  size = 1 << (length.bit_length() + 1) // 2
  chunks = -(-length // size)
  if chunks == 1:
    return _sequential(a, x_BLCN, reverse)

  def split(v):  # padding is where the scan ends
    fill = chunks * size - length
    v = jnp.pad(v, ((0, 0), (fill, 0) if reverse else (0, fill), (0, 0), (0, 0)))
    return v.reshape(batch * chunks, size, components, states)

  x_MTCN, a_MT = split(x_BLCN), a if a.ndim == 2 else split(a)

  def step(i, end_MCN):
    t = size - 1 - i if reverse else i
    a_t = a if a.ndim == 2 else lax.dynamic_index_in_dim(a_MT, t, 1, keepdims=False)
    return times(a_t, end_MCN) + lax.dynamic_index_in_dim(x_MTCN, t, 1, keepdims=False)

  edge = -1 if reverse else 0
  end_MCN = lax.fori_loop(1, size, step, x_MTCN[:, edge])
  ends_BKCN = end_MCN.reshape(batch, chunks, components, states)
  if a.ndim == 2:
    product = powers(a, size.bit_length())[-1]
  else:
    product = _product_of_all(a_MT).reshape(ends_BKCN.shape)
  carried_BKCN = _shifted(_sequential(product, ends_BKCN, reverse), reverse)
  carried_MCN = carried_BKCN.reshape(end_MCN.shape)
  x_MTCN = x_MTCN.at[:, edge].add(times(a if a.ndim == 2 else a_MT[:, edge], carried_MCN))
  h_BLCN = _sequential(a_MT, x_MTCN, reverse).reshape(batch, chunks * size, components, states)
  return h_BLCN[:, -length:] if reverse else h_BLCN[:, :length]


def _product_of_all(a_MTCN):
  """The product over T positions, a power of two: [M, C, N]. It multiplies neighbours, again and again, which
  rounds log2(T) times, not T times."""
  while a_MTCN.shape[1] > 1:
    a_MTCN = times(a_MTCN[:, ::2], a_MTCN[:, 1::2])
  return a_MTCN[:, 0]


def _associative(a, x_BLCN, reverse):
  """Scans by a tree: `lax.associative_scan` of affine maps or, for a constant a, the same tree without their
  factors, which are powers of a."""
  if a.ndim == 4:

    def compose(earlier, later):
      return times(later[0], earlier[0]), times(later[0], earlier[1]) + later[1]

    return lax.associative_scan(compose, (a, x_BLCN), reverse=reverse, axis=1)[1]
  if reverse:
    return jnp.flip(_associative(a, jnp.flip(x_BLCN, 1), False), 1)
  return _tree(powers(a, x_BLCN.shape[1].bit_length()), x_BLCN)


def _tree(squares, x_BLCN):
  """Computes the states at odd positions by a recurrence of half the length over pairs of positions, with
  a^2; those at even positions follow from them."""
  batch, length, components, states = x_BLCN.shape
  if length == 1:
    return x_BLCN
  pairs = times(squares[0], x_BLCN[:, : length - 1 : 2]) + x_BLCN[:, 1::2]
  odd = _tree(squares[1:], pairs)
  even = x_BLCN[:, 2::2] + times(squares[0], odd[:, : (length - 1) // 2])
  even = jnp.concatenate([x_BLCN[:, :1], even], axis=1)
  if length % 2:
    odd = jnp.pad(odd, ((0, 0), (0, 1), (0, 0), (0, 0)))
  h_BLCN = jnp.stack([even, odd], axis=2).reshape(batch, -1, components, states)
  return h_BLCN[:, :length]


def _pallas(*arguments):
  from lra_spt.ops import scan_pallas  # slow to import

  return scan_pallas.pallas_scan(*arguments)


_IMPLEMENTATIONS = {
  'associative': _associative,
  'sequential': _sequential,
  'chunked': _chunked,
  'pallas': _pallas,
}
NAMES = tuple(_IMPLEMENTATIONS)
_CANDIDATES = ('associative', 'pallas', 'chunked', 'sequential')  # on accelerators
