"""Attention by the TPU's kernels, in Pallas' interpreter: values, gradients, hidden keys, transformations,
refusals; the masks alone. test_tpu_aot.py compiles them for TPUs."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from lra_spt.ops.attention import BlockTable, Causal, Full, Neighbours, Window, splash
from lra_spt.ops.attention.splash import splash_attention

LENGTHS, STARTS = (0, 130, 300), (0, 20, 170)
TABLE = BlockTable(40, ((0,), (), (0, 3), (1, 2, 7), (2, 4), (5,), (0, 6)))


@pytest.fixture
def agrees(attention_oracle, draw_attention, value_and_gradients, check_attention):
  """Compares value and all gradients with the oracle."""

  def check(pattern, length=300, keys=300, lengths=LENGTHS, starts=None, q_offset=0, width=8, **options):
    dtype = options.get('dtype', jnp.float32)
    q, k, v, d_out = draw_attention((3, length, 2, width), (3, keys, 2, width), dtype)
    limits = (None if limit is None else jnp.asarray(limit, jnp.int32) for limit in (lengths, starts))
    names = ('kv_lengths_B', 'kv_starts_B')
    attend = functools.partial(
      splash_attention, pattern=pattern, q_offset=q_offset, **dict(zip(names, limits, strict=True))
    )
    results = value_and_gradients(attend, q, k, v, d_out)
    assert {x.dtype for x in results} == {jnp.dtype(dtype)}
    expected = attention_oracle(pattern, q, k, v, d_out, lengths, starts, q_offset)
    check_attention(results, expected, options.get('tolerance', 2e-5))

  return check


@pytest.mark.parametrize(
  ('pattern', 'options'),
  [
    (Full(), {'lengths': None}),
    (Full(), {'length': 256, 'keys': 256, 'lengths': None}),  # nothing hidden: no segments
    (Causal(), {'starts': STARTS}),
    (Causal(), {'length': 100, 'keys': 300, 'q_offset': -7}),  # the first queries see no key
    (Causal(), {'length': 100, 'keys': 300, 'q_offset': 150, 'starts': STARTS}),
    (Window(20, 3), {'keys': 200, 'lengths': (0, 130, 200)}),  # the last queries see no key
    (Neighbours(40, 1, 1), {}),
    (Neighbours(128, 1, 0), {'length': 512, 'keys': 512, 'lengths': (512, 129, 0), 'starts': (0, 128, 0)}),
    (Neighbours(40, 1, 0, causal=True), {'starts': STARTS, 'width': 20}),
    (TABLE, {'starts': STARTS}),
    (BlockTable(40, ((0, 1), (2,), (0, 3), (1, 2, 7)), causal=True), {'length': 310, 'lengths': None}),
    (Causal(), {'dtype': jnp.bfloat16, 'tolerance': 1.5e-2, 'width': 16}),
  ],
)
def test_agrees_with_float64(agrees, pattern, options):
  agrees(pattern, **options)


def test_queries_without_keys_give_exactly_zero(draw_attention, value_and_gradients):
  q, k, v, d_out = draw_attention((1, 100, 2, 8), (1, 100, 2, 8))
  limits = {'kv_lengths_B': jnp.asarray([60], jnp.int32), 'kv_starts_B': jnp.asarray([10], jnp.int32)}
  attend = functools.partial(splash_attention, pattern=Neighbours(20, 0, 0, causal=True), **limits)
  out, dq, dk, dv = (np.asarray(x) for x in value_and_gradients(attend, q, k, v, d_out))
  for x in (out, dq, dk, dv):
    assert not x[:, :10].any()
    assert not x[:, 60:].any()
  for x in (out[:, 10:60], dq[:, 11:20], dv[:, 10:60]):
    assert x.all()
  k, v = (x.at[:, 60:].set(1e4).at[:, :10].set(-1e4) for x in (k, v))
  for x, y in zip((out, dq, dk, dv), value_and_gradients(attend, q, k, v, d_out), strict=True):
    np.testing.assert_array_equal(x, y)


def test_inside_shard_map_scan_and_checkpoint(attention_oracle, draw_attention, check_attention):
  """Layers run as in models: scanned, recomputed, rows split over devices. Two of them give out + out."""
  pattern, lengths = Neighbours(40, 1, 1), (0, 100, 47, 60)
  q, k, v, d_out = draw_attention((4, 100, 1, 8), (4, 100, 1, 8))
  mesh = jax.make_mesh((2,), ('data',), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])

  def twice(q, k, v, lengths_B):
    @jax.checkpoint
    def layer(total, _):
      return total + splash_attention(q, k, v, pattern=pattern, kv_lengths_B=lengths_B), None

    return jax.lax.scan(layer, jnp.zeros_like(q), length=2)[0]

  rows = PartitionSpec('data')
  split = jax.shard_map(twice, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)

  def run(q, k, v, d_out, lengths_B):
    out, pull = jax.vjp(lambda q, k, v: split(q, k, v, lengths_B), q, k, v)
    return out, *pull(d_out)

  results = jax.jit(run)(q, k, v, d_out, jnp.asarray(lengths, jnp.int32))
  expected = attention_oracle(pattern, q, k, v, d_out, lengths)
  check_attention(results, [2 * x for x in expected])


BLOCKS = Neighbours(16, 1, 1), Neighbours(24, 1, 0), Neighbours(10, 2, 0, causal=True)
INTERVALS = Full(), Causal(), Window(9, 4), *BLOCKS
TABLES = (
  BlockTable(16, ((0,), (), (0, 3), (1, 2, 3, 4, 5))),
  BlockTable(16, ((0, 1), (2,), (0, 3), (1, 2, 3, 4, 5)), causal=True),
)


@pytest.mark.parametrize(
  ('pattern', 'q_offset'), [*itertools.product(INTERVALS, (0, 30, -30)), *((table, 0) for table in TABLES)]
)
def test_masks_are_the_patterns(attention_visibility, pattern, q_offset):
  """Masks equal the patterns in every kernel block, but queries that see no key see key 0."""
  expected = attention_visibility(pattern, 96, 80, q_offset=q_offset)
  expected[~expected.any(1), 0] = True
  mask = splash._mask(pattern, 96, 80, q_offset)
  for block_q, block_k in ((8, 16), (16, 8), (32, 80), (96, 16)):
    for q0 in range(0, 96, block_q):
      for k0 in range(0, 80, block_k):
        block = np.s_[q0 : q0 + block_q, k0 : k0 + block_k]
        np.testing.assert_array_equal(mask[block], expected[block])
  if hasattr(mask, 'mask_function'):  # computed in the kernel
    np.testing.assert_array_equal(mask.mask_function(mask.q_sequence[:, None], np.arange(80)[None]), expected)


def test_equal_masks_are_worked_out_once():
  one, other = (splash._mask(Neighbours(16, 1, 1), 96, 80, 0) for _ in range(2))
  assert one == other
  assert hash(one) == hash(other)
  assert one != splash._mask(Neighbours(16, 1, 1), 96, 80, 16)
  assert splash._mask(Causal(), 96, 80, 0) != splash._mask(Full(), 96, 80, 0)


def test_blocks_fill_little():
  assert splash._block(16384, splash._KEYS, Full()) == 1024
  assert splash._block(16000, splash._KEYS, Full()) == 1024
  assert splash._block(1100, splash._KEYS, Full()) == 128  # 1,152; by 256 it would be 1,280
  assert splash._block(5, splash._KEYS, Full()) == 128


@pytest.mark.parametrize(
  ('block', 'size'), [(4096, 1024), (768, 256), (384, 128), (192, 128), (64, 128), (4000, 512)]
)
def test_kernel_blocks_divide_the_blocks_of_a_pattern(block, size):
  for pattern in Neighbours(block), BlockTable(block, ((0,),)):
    assert splash._block(16384, splash._KEYS, pattern) == size


@pytest.mark.parametrize(
  ('reason', 'width', 'dtype'),
  [
    (None, 128, jnp.bfloat16),
    (None, 5, jnp.float32),
    ('not float16', 16, jnp.float16),
    ('not 136', 136, jnp.float32),
  ],
)
def test_refuses(reason, width, dtype):
  q = jax.ShapeDtypeStruct((2, 64, 4, width), dtype)
  refusal = splash.refuses(q, q, q, pattern=Full(), q_offset=0)
  assert refusal is None if reason is None else reason in refusal


def test_refuses_an_offset_that_is_not_known():
  q, refusals = jnp.zeros((1, 32, 1, 8), jnp.bfloat16), []

  def reason(q_offset):
    refusals.append(splash.refuses(q, q, q, pattern=Causal(), q_offset=q_offset))
    return q_offset

  jax.jit(reason)(jnp.int32(0))
  assert refusals == ['needs a q_offset known when tracing']
