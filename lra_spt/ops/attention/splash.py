"""Attention on TPUs: the block-sparse flash kernels "splash" of jax, with masks made from our patterns.

Splash cuts the matrix of scores into kernel blocks, visits those that the mask shows, and loads the mask only
for blocks that are partly visible. It compiles for TPUs. Everywhere else it runs in Pallas' interpreter, for
tests.
"""

import dataclasses
import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from lra_spt.distributed.sharding import platform
from lra_spt.ops.attention import refusals
from lra_spt.ops.attention.patterns import UNBOUNDED, BlockTable, Causal, Neighbours, Pattern, shown_keys

_LANES = 128  # kernel blocks are multiples of it

# Queries and keys of a kernel block, largest first. No larger ones compile, forward and backward, with a
# stored mask, for heads of 4 to 128 and both dtypes: 1,024 queries or 2,048 keys exceed the 16 MiB of fast
# memory that a kernel gets on TPU v4. Nothing was timed on a TPU. To tune, time `splash_attention` over these
# and _COMPUTE on the chip at hand: larger blocks cost less to start, smaller ones follow the pattern more
# closely.
_QUERIES = (512, 256, 128)
_KEYS = (1024, 512, 256, 128)
_COMPUTE = 512  # keys whose scores are in fast memory at a time


def refuses(q_BLHK, k_BMHK, v_BMHK, *, pattern, q_offset, return_logsumexp=False, bias_HR=None) -> str | None:
  """Returns why `splash_attention` cannot run this call, or None."""
  if reason := refusals.of_call(q_BLHK, v_BMHK, return_logsumexp, bias_HR, ('bfloat16', 'float32')):
    return reason
  if isinstance(q_offset, jax.core.Tracer):
    return 'needs a q_offset known when tracing'
  if q_BLHK.shape[-1] > _LANES:
    return f'takes heads of at most {_LANES}, not {q_BLHK.shape[-1]}'
  return None


def splash_attention(
  q_BLHK, k_BMHK, v_BMHK, *, pattern, kv_lengths_B=None, kv_starts_B=None, q_offset=0
) -> jax.Array:
  """See `attention`; takes bfloat16 and float32, and a q_offset known when tracing."""
  (batch, length, heads, width), keys = q_BLHK.shape, k_BMHK.shape[1]
  block_q, block_k = _block(length, _QUERIES, pattern), _block(keys, _KEYS, pattern)
  mask = _mask(pattern, _filled(length, block_q), _filled(keys, block_k), int(q_offset))
  kernel = _kernel(mask, heads, width, block_q, block_k)
  scaled_BLHK = (q_BLHK.astype(jnp.float32) * width**-0.5).astype(q_BLHK.dtype)
  arrays = [_heads_first(x, n) for x, n in ((scaled_BLHK, block_q), (k_BMHK, block_k), (v_BMHK, block_k))]

  start_B1, end_B1 = (x_B[:, None] for x_B in shown_keys(kv_starts_B, kv_lengths_B, batch, keys))
  # Queries and visible keys are in segment 1. A query without any gets the mean of some values. That is
  # finite, and the `where` at the end replaces it and stops its gradients.
  segment_BM = None
  if kv_starts_B is not None or kv_lengths_B is not None or mask.keys > keys:
    k_1M = np.arange(mask.keys, dtype=np.int32)[None]
    segment_BM = ((start_B1 <= k_1M) & (k_1M < end_B1)).astype(jnp.int32)

  def attend(q_HLK, k_HMK, v_HMK, segment_M):
    ids = None if segment_M is None else splash.SegmentIds(jnp.ones(mask.queries, jnp.int32), segment_M)
    return kernel(q_HLK, k_HMK, v_HMK, segment_ids=ids)

  out_BLHK = jax.vmap(attend)(*arrays, segment_BM)[:, :, :length].swapaxes(1, 2)
  q_L = mask.q_offset + np.arange(length, dtype=np.int32)
  sees_BL = _sees_any(pattern, q_L, start_B1, end_B1, jnp)
  return jnp.where(sees_BL[..., None, None], out_BLHK, 0)


def _block(length, sizes, pattern):
  """The largest size that pads `length` by at most an eighth, else the smallest.

  It divides the blocks of a pattern, because a kernel block that reaches into several of them is visited for
  each one that is listed. Where no size divides them, it is at most a quarter of a block.
  """
  if isinstance(pattern, BlockTable | Neighbours):
    dividing = [size for size in sizes if pattern.block % size == 0]
    sizes = dividing or [size for size in sizes if 4 * size <= pattern.block] or sizes[-1:]
  return next((size for size in sizes if 8 * _filled(length, size) <= 9 * length), sizes[-1])


def _filled(length, block):
  return -(-length // block) * block


def _heads_first(x_BLHK, block):
  """[B, L, H, K] -> [B, H, L', K], padded with 0 to a multiple L' of `block`."""
  length = x_BLHK.shape[1]
  return jnp.pad(x_BLHK.swapaxes(1, 2), ((0, 0), (0, 0), (0, _filled(length, block) - length), (0, 0)))


def _sees_any(pattern: Pattern, q_L: np.ndarray, start_B1, end_B1, xp):
  """bool [B, L] or [B, 1]: True where the query at q_L[l] sees a key of start <= k < end. `xp` is numpy or
  jax.numpy."""
  if not isinstance(pattern, BlockTable):
    first_1L, stop_1L = pattern.first(q_L[None]), pattern.end(q_L[None])
    return xp.maximum(start_B1, first_1L) < xp.minimum(end_B1, stop_1L)
  mask_RS = pattern.mask(1 + max((row[-1] for row in pattern.table if row), default=0))
  k_11S = pattern.block * np.arange(mask_RS.shape[1], dtype=np.int32)[None, None]
  reached_BRS = mask_RS[None] & (k_11S + pattern.block > start_B1[..., None])
  first_BR = xp.where(reached_BRS, xp.maximum(k_11S, start_B1[..., None]), UNBOUNDED).min(-1)
  row_L, rows = q_L // pattern.block, len(pattern.table)
  first_BL = xp.where((row_L < rows)[None], first_BR[:, np.minimum(row_L, rows - 1)], UNBOUNDED)
  return first_BL < (xp.minimum(end_B1, q_L[None] + 1) if pattern.causal else end_B1)


def _kernel(mask, heads, width, block_q, block_k):
  """Makes a splash kernel. jax caches what it derives from a mask, for the next call with an equal one."""
  # Memory has rows of 128 lanes. Narrow heads would fill a part of each row, positions fill them.
  layout = splash.QKVLayout.SEQ_MINOR if width < _LANES else splash.QKVLayout.HEAD_DIM_MINOR
  return splash.make_splash_mha(
    splash.MultiHeadMask([mask] * heads),
    head_shards=1,
    q_seq_shards=1,
    block_sizes=splash.BlockSizes(
      block_q=block_q,
      block_kv=block_k,
      block_kv_compute=min(block_k, _COMPUTE),
      block_q_dkv=block_q,
      block_kv_dkv=block_k,
      block_kv_dkv_compute=min(block_k, _COMPUTE),
      block_q_dq=block_q,
      block_kv_dq=block_k,
      q_layout=layout,
      k_layout=layout,
      v_layout=layout,
    ),
    residual_checkpoint_name='mixer',
    interpret=platform() != 'tpu',
  )


@dataclasses.dataclass(frozen=True)
class _Mask(splash.Mask):
  """A pattern as a mask [queries, keys], computed one kernel block at a time.

  Splash divides by the sum of a query's weights, so every query must see a key: those that see none see key 0
  here.
  """

  pattern: Pattern
  queries: int
  keys: int
  q_offset: int

  @property
  def shape(self):
    return self.queries, self.keys

  @functools.cached_property
  def blind_Q(self) -> np.ndarray:
    """bool: True for the queries that see no key."""
    q_Q = self.q_offset + np.arange(self.queries, dtype=np.int32)
    start, end = np.zeros((1, 1), np.int32), np.full((1, 1), self.keys, np.int32)
    return ~np.broadcast_to(_sees_any(self.pattern, q_Q, start, end, np), (1, self.queries))[0]

  def __getitem__(self, index) -> np.ndarray:
    rows, columns = index
    q0, q1, k0, k1 = rows.start + self.q_offset, rows.stop + self.q_offset, columns.start, columns.stop
    blind_Q = self.blind_Q[rows]
    if (k0 > 0 or not blind_Q.any()) and (seen := self._all_or_none(q0, q1, k0, k1)) is not None:
      return _constant((q1 - q0, k1 - k0), seen)
    q_QK, k_QK = np.broadcast_arrays(np.arange(q0, q1)[:, None], np.arange(k0, k1)[None])
    return self._visible(q_QK, k_QK) | (blind_Q[:, None] & (k_QK == 0))

  def _all_or_none(self, q0, q1, k0, k1) -> bool | None:
    """True if all of these queries see all of these keys, False if none sees any, None otherwise."""
    first, end = self.pattern.seen_by_any(q0, q1)
    if end <= k0 or k1 <= first:
      return False
    first, end = self.pattern.seen_by_all(q0, q1)
    return True if first <= k0 and k1 <= end else None

  def _visible(self, q_QK, k_QK):
    return self.pattern.visible(q_QK, k_QK)


class _CausalMask(_Mask):
  """A causal mask, which the kernel computes from one number per query: nothing is stored."""

  mask_function = staticmethod(operator.ge)

  @functools.cached_property
  def q_sequence(self) -> np.ndarray:
    return np.maximum(self.q_offset + np.arange(self.queries, dtype=np.int32), 0)


class _TableMask(_Mask):
  """The mask of a `BlockTable`, read from the table as a matrix."""

  @functools.cached_property
  def blocks_RS(self) -> np.ndarray:
    """The table as a bool matrix that covers all queries and keys."""
    block, table = self.pattern.block, self.pattern.table
    mask_RS = self.pattern.mask(-(-self.keys // block))
    rows = -(-(self.q_offset + self.queries) // block)
    return np.pad(mask_RS, ((0, max(rows - len(table), 0)), (0, 0)))

  def _all_or_none(self, q0, q1, k0, k1):
    block = self.pattern.block
    blocks_RS = self.blocks_RS[q0 // block : -(-q1 // block), k0 // block : -(-k1 // block)]
    if not blocks_RS.any() or (self.pattern.causal and q1 <= k0):
      return False
    return True if blocks_RS.all() and (k1 <= q0 + 1 or not self.pattern.causal) else None

  def _visible(self, q_QK, k_QK):
    seen_QK = self.blocks_RS[np.ix_(q_QK[:, 0] // self.pattern.block, k_QK[0] // self.pattern.block)]
    return seen_QK & (k_QK <= q_QK) if self.pattern.causal else seen_QK


def _mask(pattern, *arguments):
  kinds = {Causal: _CausalMask, BlockTable: _TableMask}
  return kinds.get(type(pattern), _Mask)(pattern, *arguments)


@functools.lru_cache(maxsize=16)
def _constant(shape, value):
  """A cached constant mask: long sequences have thousands of blocks that are shown or hidden as a whole."""
  return np.full(shape, value)
