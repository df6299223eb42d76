"""Attention on NVIDIA GPUs by cuDNN, whose flash kernels support key lengths and the causal triangle.

Neighbouring blocks are folded into the batch: each block of queries becomes a row of its own, together with
the keys of its neighbours. Where no query depends on the order of the keys, hidden keys are moved to the end,
so that one number per row, the count of visible keys, describes the mask.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from lra_spt.ops.attention import refusals
from lra_spt.ops.attention.patterns import Causal, Full, Interval, Neighbours, shown_keys


def refuses(q_BLHK, k_BMHK, v_BMHK, *, pattern, q_offset, return_logsumexp=False, bias_HR=None) -> str | None:
  """Returns why `cudnn_attention` cannot run this call, or None."""
  width = q_BLHK.shape[-1]
  if reason := refusals.of_call(q_BLHK, v_BMHK, return_logsumexp, bias_HR, ('bfloat16', 'float16')):
    return reason
  if width % 8 or width > 128:
    return f'takes heads that are multiples of 8 up to 128, not {width}'
  return _cannot_fold(q_BLHK.shape[1], k_BMHK.shape[1], pattern, q_offset) or _lacks_hardware()


def cudnn_attention(
  q_BLHK, k_BMHK, v_BMHK, *, pattern, kv_lengths_B=None, kv_starts_B=None, q_offset=0
) -> jax.Array:
  """See `attention`. It takes `Full`; `Causal` with q_offset 0 and as many keys as queries; `Neighbours` that
  are not causal, with a q_offset of whole blocks; and any interval that shows all keys to all queries."""
  kernel = functools.partial(jax.nn.dot_product_attention, implementation='cudnn')
  return folded_attention(kernel, q_BLHK, k_BMHK, v_BMHK, pattern, kv_lengths_B, kv_starts_B, q_offset)


def _cannot_fold(length, keys, pattern, q_offset) -> str | None:
  if isinstance(q_offset, jax.core.Tracer) and not isinstance(pattern, Full):
    return 'needs a q_offset known when tracing'
  if _shows_all(length, keys, pattern, q_offset):
    return None
  if isinstance(pattern, Causal):
    return None if q_offset == 0 and length == keys else 'sees causally only with q_offset 0 and M = L'
  if isinstance(pattern, Neighbours) and not pattern.causal:
    return f'needs a q_offset of whole blocks of {pattern.block}' if q_offset % pattern.block else None
  return f'has no mask for {type(pattern).__name__}{" that is causal" * isinstance(pattern, Neighbours)}'


def _shows_all(length, keys, pattern, q_offset) -> bool:
  """True if the pattern shows all keys to all queries, as wide blocks on short sequences do."""
  if not isinstance(pattern, Interval):
    return False
  first, end = pattern.seen_by_all(q_offset, q_offset + length)
  return first <= 0 and keys <= end


def _lacks_hardware() -> str | None:
  device = jax.local_devices()[0]
  cuda = device.platform == 'gpu' and 'cuda' in device.client.platform_version
  if cuda and int(device.compute_capability.split('.')[0]) >= 8:
    return None
  return 'needs an NVIDIA GPU of compute capability 8.0 or above'


def folded_attention(kernel, q_BLHK, k_BMHK, v_BMHK, pattern, kv_lengths_B, kv_starts_B, q_offset):
  """`cudnn_attention` by any kernel with the signature of `jax.nn.dot_product_attention`.

  Each sequence is folded into N rows; without a fold N is 1. Row n has T queries and S keys. Its first key is
  at position first_N[n], and its queries see the keys before position stop_N[n].
  """
  (batch, length, heads, width), keys = q_BLHK.shape, k_BMHK.shape[1]
  all_shown = _shows_all(length, keys, pattern, q_offset)
  causal = isinstance(pattern, Causal) and not all_shown
  if causal or all_shown:
    q_BNTHK, k_BNSHK, v_BNSHK = q_BLHK[:, None], k_BMHK[:, None], v_BMHK[:, None]
    first_N, stop_N = np.zeros(1, np.int32), np.full(1, keys, np.int32)
  else:
    q_BNTHK = _blocks(q_BLHK, pattern.block, -(-length // pattern.block))
    first_N, stop_N = _seen(pattern, q_BNTHK.shape[1], q_offset)
    k_BNSHK, v_BNSHK = (_beside(x, pattern, first_N) for x in (k_BMHK, v_BMHK))

  start_B1, end_B1 = (x_B[:, None] for x_B in shown_keys(kv_starts_B, kv_lengths_B, batch, keys))
  hidden_BN = jnp.maximum(start_B1 - first_N[None], 0)  # hidden keys at the front of the row
  seen_BN = jnp.minimum(end_B1, stop_N[None]) - first_N[None] - hidden_BN
  if kv_starts_B is not None:
    k_BNSHK, v_BNSHK = _turned(k_BNSHK, -hidden_BN), _turned(v_BNSHK, -hidden_BN)
    q_BNTHK = _turned(q_BNTHK, -hidden_BN) if causal else q_BNTHK

  q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q_BNTHK, k_BNSHK, v_BNSHK))
  counts = {}
  if kv_lengths_B is not None or kv_starts_B is not None or not (causal or all_shown):
    # This 0 makes the counts depend on the queries: vmap of cuDNN's call needs every argument in the batch.
    zero = jnp.isnan(q[:, 0, 0, 0]).astype(jnp.int32) * 0
    counts['query_seq_lengths'] = q.shape[1] + zero
    counts['key_value_seq_lengths'] = jnp.maximum(seen_BN, 1).reshape(-1) + zero  # 0 keys would give NaN
  out = kernel(q, k, v, is_causal=causal, **counts)
  out_BNTHK = out.reshape(q_BNTHK.shape)
  sees_BNT = seen_BN[:, :, None] > 0
  if causal:
    out_BNTHK = _turned(out_BNTHK, hidden_BN) if kv_starts_B is not None else out_BNTHK
    sees_BNT &= np.arange(length)[None, None] >= hidden_BN[:, :, None]
  out_BNTHK = jnp.where(sees_BNT[..., None, None], out_BNTHK, 0)
  return out_BNTHK.reshape(batch, -1, heads, width)[:, :length]


def _seen(pattern, blocks, q_offset):
  """The first existing key that each block of queries sees, and one past the last."""
  q_N = q_offset + pattern.block * np.arange(blocks, dtype=np.int32)
  return np.maximum(pattern.first(q_N), 0), pattern.end(q_N)


def _blocks(x_BLHK, block, count):
  """[B, L, H, K] -> [B, N, T, H, K]: `count` blocks, padded with 0 or cut."""
  batch, length, heads, width = x_BLHK.shape
  x_BLHK = jnp.pad(x_BLHK, ((0, 0), (0, max(count * block - length, 0)), (0, 0), (0, 0)))[:, : count * block]
  return x_BLHK.reshape(batch, count, block, heads, width)


def _beside(k_BMHK, pattern, first_N):
  """[B, M, H, K] -> [B, N, S, H, K]: the keys of each block of queries, from position first_N on.

  It consists of slices, because the gradient of a gather adds in an order that may change.
  """
  block = pattern.block
  beside = min(pattern.back + 1 + pattern.forward, -(-k_BMHK.shape[1] // block))
  k_BCTHK = _blocks(k_BMHK, block, first_N[-1] // block + beside)
  # The first rows may all begin with key 0. From the last of these on, each begins one block later.
  together = np.count_nonzero(first_N == first_N[0]) - 1
  start, rows = first_N[0] // block, len(first_N) - together
  k_BNCTHK = jnp.stack([k_BCTHK[:, start + c : start + c + rows] for c in range(beside)], axis=2)
  same_BNCTHK = jnp.broadcast_to(k_BNCTHK[:, :1], (k_BNCTHK.shape[0], together, *k_BNCTHK.shape[2:]))
  k_BNCTHK = jnp.concatenate([same_BNCTHK, k_BNCTHK], axis=1)
  return k_BNCTHK.reshape(*k_BNCTHK.shape[:2], beside * block, *k_BMHK.shape[2:])


def _turned(x_BNSHK, shift_BN):
  """Rolls the keys of row n by shift_BN[:, n] places."""
  turn = functools.partial(jnp.roll, axis=0)
  return jax.vmap(jax.vmap(turn))(x_BNSHK, shift_BN)
