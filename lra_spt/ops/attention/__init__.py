"""Softmax attention: one public function, and several implementations that agree with each other."""

import importlib
import operator

import jax
import jax.numpy as jnp

from lra_spt.distributed.sharding import platform
from lra_spt.errors import ConfigError
from lra_spt.ops import selection
from lra_spt.ops.attention import blockwise, cudnn, decay, reference, tokamax
from lra_spt.ops.attention.patterns import (
  BlockTable,
  Causal,
  Full,
  HeadTables,
  Neighbours,
  Pattern,
  Window,
)

__all__ = [
  'BlockTable',
  'Causal',
  'Full',
  'HeadTables',
  'NAMES',
  'Neighbours',
  'Pattern',
  'Window',
  'attention',
  'attention_weights',
  'merged',
]


def _imported_when_called(name):
  """The two functions of an implementation in Pallas, which takes as long to import as half of jax."""

  def function(part):
    return lambda *arrays, **options: getattr(importlib.import_module(f'{__name__}.{name}'), part)(
      *arrays, **options
    )

  return function(f'{name}_attention'), function('refuses')


# By name: the function, and the one that returns why it cannot run a call.
_IMPLEMENTATIONS = {
  'blockwise': (blockwise.blockwise_attention, blockwise.refuses),
  'triton': _imported_when_called('triton'),
  'tokamax': (tokamax.tokamax_attention, tokamax.refuses),
  'cudnn': (cudnn.cudnn_attention, cudnn.refuses),
  'mosaic': _imported_when_called('mosaic'),
  'splash': _imported_when_called('splash'),
  'reference': (reference.reference_attention, reference.refuses),
}
NAMES = tuple(_IMPLEMENTATIONS)
_DECAYING = ('blockwise', 'reference')  # these take log_decay_BMHX
# By platform, best first; the last one refuses nothing.
_PREFERRED = {
  'cpu': ('blockwise',),
  'gpu': ('triton', 'blockwise'),
  'tpu': ('splash', 'blockwise'),
}
# These run there only if a user names them, or if autotune finds them correct and fastest: tokamax has not
# run on a GPU here; jax's tests skip cuDNN on CUDA 13, and its vmap needs every array in the batch. 'mosaic'
# runs only if a user names it.
_ALSO = {'cpu': (), 'gpu': ('tokamax', 'cudnn'), 'tpu': ()}


def attention(
  q_BLHK: jax.Array,
  k_BMHK: jax.Array,
  v_BMHV: jax.Array,
  *,
  pattern: Pattern | HeadTables,
  kv_lengths_B: jax.Array | None = None,
  kv_starts_B: jax.Array | None = None,
  q_offset: int | jax.Array = 0,
  implementation: str | None = None,
  return_logsumexp: bool = False,
  bias_HR: jax.Array | None = None,
  log_decay_BMHX: jax.Array | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
  """softmax(q k^T / sqrt(K) + bias) v over the keys that `pattern` shows to each query (Vaswani et al. 2017,
  3.2.1).

  Works under jit, vmap, scan, checkpoint and shard_map (rows of the batch split over devices, all arrays
  alike), and does not depend on a mesh. Differentiable once, in reverse mode, with respect to q, k, v, the
  bias and the log decays.

  Args:
    q_BLHK: queries, floating point.
    k_BMHK: keys, same dtype; M may differ from L. Positions count from the first of them.
    v_BMHV: values, as many as keys, same dtype; V may differ from K.
    pattern: which keys a query sees: `Full()`, `Causal()`, `Window`, `Neighbours`, `BlockTable`, or
      `HeadTables`, with which every head is a separate call.
    kv_lengths_B: int32 [B]; keys at positions >= length are hidden. None shows all M.
    kv_starts_B: int32 [B]; keys at positions < start are hidden. None hides none.
    q_offset: position of the first query, an int or an int32 scalar; 0 with tables.
    implementation: 'blockwise' (plain XLA, memory linear in L and M; runs every call everywhere), 'triton'
      (GPU; interpreted on CPU, for tests), 'tokamax' (GPU, an optional package), 'cudnn' (GPU, half
      precision), 'mosaic' (Hopper GPUs, not yet run on one; interpreted on CPU), 'splash' (TPU; interpreted
      on CPU), 'reference' (dense, for tests), or None: the platform's first one that can run the call.
    return_logsumexp: return the logsumexp of the scores too. `merged` needs it to combine calls.
    bias_HR: floating point [H, 2D + 1], added to scores by the distance from query to key, from -D (keys
      before) to D; larger distances get the values at the ends. None adds nothing.
    log_decay_BMHX: log decays <= 0 at the positions of keys, float32 [B, M, H, 1] (Lin et al. 2025, arXiv
      2503.02130): the score of the query at t and the key at s <= t gets their sum over r from s + 1 to t.
      [B, M, H, 2] where queries see later keys: for s > t it gets the sum of the second ones over r from t to
      s - 1. None adds nothing. Only 'blockwise' and 'reference' take it.

  Returns:
    Array [B, L, H, V] of the queries' dtype; queries without any visible key get 0, and so do their
    gradients. Softmax statistics are float32 whatever the dtype (float64 for float64). With
    return_logsumexp, a pair of this array and log(sum(exp(score))) over the visible keys, [B, L, H] in the
    dtype of statistics, -inf without visible keys.

  Raises:
    TypeError: q_offset is no integer.
    ValueError: an unknown implementation, one that cannot run this call, shapes or dtypes that do not fit
      together, tables with a q_offset, a number of tables that is not the number of heads, or log decays for
      queries that are at no position of a key.
  """
  _check(q_BLHK, k_BMHK, v_BMHV, kv_lengths_B, kv_starts_B)
  if not isinstance(q_offset, jax.core.Tracer):
    q_offset = operator.index(q_offset)
  tables = isinstance(pattern, BlockTable | HeadTables)
  if tables and (isinstance(q_offset, jax.core.Tracer) or q_offset != 0):
    raise ValueError(f'q_offset is {q_offset}, but queries of a BlockTable start at position 0; leave it out')
  if log_decay_BMHX is not None:
    decay.checked(log_decay_BMHX, q_BLHK, k_BMHK, q_offset)
  if isinstance(pattern, HeadTables) and len(pattern.tables) != q_BLHK.shape[2]:
    raise ValueError(
      f'HeadTables has {len(pattern.tables)} tables for {q_BLHK.shape[2]} heads; give one for every head'
    )
  if bias_HR is not None and (
    bias_HR.ndim != 2
    or len(bias_HR) != q_BLHK.shape[2]
    or bias_HR.shape[1] % 2 == 0
    or not jnp.issubdtype(bias_HR.dtype, jnp.floating)
  ):
    raise ValueError(
      f'bias_HR is {bias_HR.dtype} of shape {bias_HR.shape}; pass floating numbers of shape '
      f'({q_BLHK.shape[2]}, 2 D + 1), one per head and distance from -D to D'
    )
  options = {'q_offset': q_offset} | ({'return_logsumexp': True} if return_logsumexp else {})
  edges = {'kv_lengths_B': kv_lengths_B, 'kv_starts_B': kv_starts_B}

  def attend(q_BLHK, k_BMHK, v_BMHV, log_decay_BMHX, bias_HR, pattern):
    call = {'pattern': pattern} | options | ({} if bias_HR is None else {'bias_HR': bias_HR})
    if log_decay_BMHX is not None:
      chosen = _decaying(implementation)
      return chosen(q_BLHK, k_BMHK, v_BMHV, log_decay_BMHX=log_decay_BMHX, **edges, **call)
    hidden = kv_lengths_B is not None, kv_starts_B is not None
    return _chosen(implementation, hidden, q_BLHK, k_BMHK, v_BMHV, **call)(
      q_BLHK, k_BMHK, v_BMHV, **edges, **call
    )

  return _by_head(attend, pattern, 2, q_BLHK, k_BMHK, v_BMHV, log_decay_BMHX, bias_HR=bias_HR)


def _by_head(function, pattern, axis, *arrays, bias_HR):
  """Calls function(*arrays, bias_HR, pattern), for `HeadTables` head by head: axis `axis` of the results."""
  if not isinstance(pattern, HeadTables):
    return function(*arrays, bias_HR, pattern)
  heads = [
    function(
      *(None if x is None else x[:, :, h : h + 1] for x in arrays),
      None if bias_HR is None else bias_HR[h : h + 1],
      table,
    )
    for h, table in enumerate(pattern.tables)
  ]
  return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=axis), *heads)


def attention_weights(
  q_BLHK: jax.Array,
  k_BMHK: jax.Array,
  *,
  pattern: Pattern | HeadTables,
  kv_lengths_B: jax.Array | None = None,
  bias_HR: jax.Array | None = None,
  log_decay_BMHX: jax.Array | None = None,
) -> jax.Array:
  """The weights with which `attention` sums values, for looking at them; memory grows with L * M.

  Args: see `attention`.

  Returns:
    Array [B, H, L, M] in the dtype of statistics. Over the keys that a query sees, weights are above 0 and
    sum to 1; those of hidden keys are 0.

  Raises:
    ValueError: as for `attention`.
  """
  _check(q_BLHK, k_BMHK, k_BMHK, kv_lengths_B, None)
  if log_decay_BMHX is not None:
    decay.checked(log_decay_BMHX, q_BLHK, k_BMHK, 0)

  def weights(q_BLHK, k_BMHK, log_decay_BMHX, bias_HR, pattern):
    call = {'pattern': pattern, 'kv_lengths_B': kv_lengths_B, 'bias_HR': bias_HR}
    return reference.reference_weights(q_BLHK, k_BMHK, log_decay_BMHX=log_decay_BMHX, **call)

  return _by_head(weights, pattern, 1, q_BLHK, k_BMHK, log_decay_BMHX, bias_HR=bias_HR)


def merged(*parts: tuple[jax.Array, jax.Array]) -> jax.Array:
  """Attention to several disjoint sets of keys at once: [B, L, H, V].

  Args:
    parts: what `attention` returned for each set with return_logsumexp. Queries that see no key in any set
      get 0.
  """
  logsumexp_XBLH = jnp.stack([logsumexp_BLH for _, logsumexp_BLH in parts])
  seen_XBLH = ~jnp.isneginf(logsumexp_XBLH)
  logsumexp_XBLH = jnp.where(seen_XBLH, logsumexp_XBLH, -1e30)  # finite, so that differences are not NaN
  weights_XBLH = jnp.where(seen_XBLH, jax.nn.softmax(logsumexp_XBLH, axis=0), 0)
  dtype = parts[0][0].dtype
  return sum(
    weights_BLH[..., None].astype(dtype) * out_BLHV
    for weights_BLH, (out_BLHV, _) in zip(weights_XBLH, parts, strict=True)
  )


def _chosen(name, hidden, q, k, v, **call):
  """Returns the implementation of this name; for None, the one that `selection` picks for the platform.

  hidden: two booleans: lengths hide keys; starts hide keys.
  """
  if name is None:
    able = [other for other in _PREFERRED[platform()] if not _IMPLEMENTATIONS[other][1](q, k, v, **call)]
    return _IMPLEMENTATIONS[_selected(able, hidden, q, k, v, **call)][0]
  selection.named('attention', name)
  if name not in _IMPLEMENTATIONS:
    known = ', '.join(_IMPLEMENTATIONS)
    raise ConfigError(f'attention implementation {name!r} is unknown; choose {known}, or None')
  attend, refuses = _IMPLEMENTATIONS[name]
  if reason := refuses(q, k, v, **call):
    raise ConfigError(f'attention implementation {name!r} {reason}; choose another, or None')
  return attend


def _decaying(name):
  """Returns the implementation of this name for a call with log decays; for None, the first."""
  if name is None:
    return _IMPLEMENTATIONS[_DECAYING[0]][0]
  selection.named('attention', name)
  if name not in _DECAYING:
    raise ConfigError(
      f'attention implementation {name!r} takes no log decays; choose {" or ".join(_DECAYING)}, or None'
    )
  return _IMPLEMENTATIONS[name][0]


def _selected(able, hidden, q, k, v, *, pattern, q_offset, return_logsumexp=False, bias_HR=None):
  """Returns the name that `selection` picks from `able`. Only the last one, which is no kernel, returns a
  logsumexp."""
  if return_logsumexp:
    return able[-1]
  call = {'pattern': pattern, 'q_offset': q_offset} | ({} if bias_HR is None else {'bias_HR': bias_HR})
  also = [other for other in _ALSO[platform()] if not _IMPLEMENTATIONS[other][1](q, k, v, **call)]
  sizes = [(name, x.shape[1:], x.dtype.name, True) for name, x in (('q', q), ('k', k), ('v', v))]
  if bias_HR is not None:
    sizes.append(('bias_HR', bias_HR.shape, bias_HR.dtype.name, False))
  options = (
    ('kv_lengths', hidden[0]),
    ('kv_starts', hidden[1]),
    ('pattern', pattern),
    ('q_offset', None if isinstance(q_offset, jax.core.Tracer) else q_offset),
  )
  return selection.select(
    selection.Call('attention', tuple(sizes), options, q.shape[0], (*able, *also), able[-1])
  )


def _check(q, k, v, lengths, starts):
  """Raises ValueError where the arrays do not fit together."""
  ranks = {x.ndim for x in (q, k, v)}
  if ranks != {4} or k.shape[:3] != v.shape[:3] or k.shape[:1] + k.shape[2:] != q.shape[:1] + q.shape[2:]:
    raise ValueError(
      f'attention got queries {q.shape}, keys {k.shape} and values {v.shape}; '
      'pass queries [B, L, H, K], keys [B, M, H, K] and values [B, M, H, V]'
    )
  if 0 in q.shape or 0 in v.shape:
    raise ValueError(
      f'attention got an empty array: queries {q.shape}, keys {k.shape}; every size must be at least 1'
    )
  if not q.dtype == k.dtype == v.dtype or not jnp.issubdtype(q.dtype, jnp.floating):
    raise ValueError(
      f'attention got queries of {q.dtype}, keys of {k.dtype} and values of {v.dtype}; '
      'cast them to one floating dtype'
    )
  for name, x in (('kv_lengths_B', lengths), ('kv_starts_B', starts)):
    if x is not None and (x.shape != q.shape[:1] or not jnp.issubdtype(x.dtype, jnp.integer)):
      raise ValueError(
        f'{name} is {x.dtype} of shape {x.shape}; pass int32 of shape {q.shape[:1]}, one position per row'
      )
