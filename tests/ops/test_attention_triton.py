"""Attention by Pallas kernels, interpreted on the CPU, against float64; and their lowering for GPUs."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

from lra_spt.ops.attention import BlockTable, Causal, Full, Neighbours, Window, triton_kernels
from lra_spt.ops.attention.triton import KernelTiles, Tile, refuses, triton_attention

SMALL = KernelTiles(Tile(16, 16), Tile(16, 16), Tile(16, 16))
UNEVEN = KernelTiles(Tile(32, 16), Tile(16, 32), Tile(16, 32))


def int32(values):
  return None if values is None else jnp.asarray(values, jnp.int32)


@pytest.fixture(scope='module')
def agrees(draw_attention, value_and_gradients, check_attention, attention_oracle):
  """Compares output and gradients with those of the oracle."""

  def run(
    pattern, length, keys, width, lengths=None, starts=None, q_offset=0, dtype=jnp.float32, tiles=SMALL
  ):
    q, k, v, d_out = draw_attention((2, length, 2, width), (2, keys, 2, width), dtype, seed=length)
    attend = functools.partial(
      triton_attention, pattern=pattern, kv_lengths_B=int32(lengths), kv_starts_B=int32(starts),
      q_offset=q_offset, tiles=tiles)  # fmt: skip
    results = value_and_gradients(attend, q, k, v, d_out)
    assert {x.dtype for x in results} == {jnp.dtype(dtype)}
    exact = (np.asarray(x, np.float64) for x in (q, k, v, d_out))
    expected = attention_oracle(pattern, *exact, lengths, starts, int(q_offset))
    check_attention(results, expected, tolerance=2e-5 if dtype == jnp.float32 else 2e-2)

  return run


STAR = BlockTable(32, ((0, 1, 2, 3), (0, 1), (0, 2), (0, 3)))


@pytest.mark.parametrize(
  'pattern, length, keys, width, call',
  [
    (Full(), 40, 70, 8, {'lengths': (70, 0), 'starts': (3, 0)}),
    (Full(), 48, 48, 16, {'dtype': jnp.bfloat16, 'tiles': UNEVEN}),
    (Causal(), 70, 70, 24, {'lengths': (70, 47), 'tiles': UNEVEN}),
    (Window(9, 30), 40, 100, 32, {'q_offset': jnp.int32(55), 'lengths': (90, 100)}),
    (Neighbours(40), 100, 100, 64, {'lengths': (100, 41), 'starts': (0, 50)}),
    (Neighbours(24, 2, 0, causal=True), 100, 100, 16, {'lengths': (99, 1), 'tiles': UNEVEN}),
    (Neighbours(16, 1, 1), 50, 100, 128, {'q_offset': -20, 'dtype': jnp.float16}),
    (STAR, 128, 128, 16, {'lengths': (128, 50), 'tiles': UNEVEN}),
    (BlockTable(48, ((), (0, 1)), causal=True), 160, 70, 16, {'starts': (0, 20)}),
  ],
)
def test_agrees_with_float64(agrees, pattern, length, keys, width, call):
  agrees(pattern, length, keys, width, **call)


@settings(deadline=None, max_examples=4)
@given(st.data(), st.integers(1, 70), st.integers(1, 70), st.integers(-20, 80))
def test_intervals(agrees, interval_patterns, data, length, keys, q_offset):
  edges = st.none() | st.tuples(st.integers(0, keys), st.integers(0, keys))
  lengths, starts, pattern = data.draw(edges), data.draw(edges), data.draw(interval_patterns)
  tiles = data.draw(st.sampled_from([SMALL, UNEVEN]))
  agrees(pattern, length, keys, 4, lengths, starts, jnp.int32(q_offset), tiles=tiles)


@settings(deadline=None)
@given(st.data(), st.integers(-40, 200), st.integers(1, 64))
def test_walk(interval_patterns, attention_visibility, data, first, count):
  """Every tile with a visible pair is visited once, no other tile is, and only full tiles have no mask."""
  pattern, keys, size = data.draw(st.just(Full()) | interval_patterns), 256, 16
  edge = st.builds(lambda tile, beside: size * tile + beside, st.integers(1, 15), st.integers(-1, 1))
  low, high = data.draw(st.just(0) | edge), data.draw(st.just(keys) | edge)
  some, all_ = pattern.seen_by_any(first, first + count), pattern.seen_by_all(first, first + count)
  walked = []

  def tile(number, carry, masked):
    walked.append((int(number), masked))
    return carry

  with jax.disable_jit():
    triton_kernels._fold_interval(tile, 0, some, all_, jnp.int32(low), jnp.int32(high), size)
  seen = attention_visibility(pattern, count, keys, [high], [low], first)[0].reshape(count, -1, size)
  numbers, reached = [number for number, _ in walked], np.flatnonzero(seen.any((0, 2)))
  assert len(numbers) == len(set(numbers))
  assert set(reached) <= set(numbers)
  assert len(numbers) <= (reached[-1] - reached[0] + 1 if len(reached) else 1)
  assert sorted(n for n, masked in walked if not masked) == list(np.flatnonzero(seen.all((0, 2))))


def test_under_transformations(draw_attention, check_attention, attention_oracle):
  """vmap (also of the offset), scan, checkpoint and shard_map together."""
  q, k, v, d_out = draw_attention((8, 20, 1, 8), (8, 20, 1, 8))
  offsets_S, lengths_B = int32([0, 3]), int32(range(13, 21))
  mesh = jax.make_mesh((8,), ('rows',), axis_types=(AxisType.Auto,))
  rows = PartitionSpec('rows')

  def attend(q, k, v, lengths_B, q_offset):
    return triton_attention(q, k, v, pattern=Causal(), kv_lengths_B=lengths_B, q_offset=q_offset, tiles=SMALL)

  specs = rows, rows, rows, rows, PartitionSpec()
  island = jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=rows, check_vma=False)

  def total(q, k, v):
    def step(carry, q_offset):
      return carry, jax.checkpoint(island)(q, k, v, lengths_B, q_offset)

    scanned = jax.lax.scan(step, (), offsets_S)[1]
    mapped = jax.vmap(lambda q_offset: attend(q, k, v, lengths_B, q_offset))(offsets_S)
    return scanned.sum(0) + mapped.sum(0)

  @jax.jit
  def run(q, k, v, d_out):
    out, pull = jax.vjp(total, q, k, v)
    return out, *pull(d_out)

  parts = [attention_oracle(Causal(), q, k, v, d_out, lengths_B, None, offset) for offset in (0, 3)]
  expected = [2 * (x + y) for x, y in zip(*parts, strict=True)]
  check_attention(run(q, k, v, d_out), expected)


# Lowering needs no GPU, and shows that jax can translate the kernels to Triton.
LOWERED = [
  (Full(), 32, 'bfloat16'),
  (Causal(), 128, 'bfloat16'),
  (Window(100, 20), 24, 'float16'),
  (Neighbours(4096), 32, 'bfloat16'),
  (Neighbours(4096), 16, 'float32'),
  (Neighbours(4096), 128, 'float32'),
  (Neighbours(4000, 1, 0, causal=True), 8, 'float32'),
  (BlockTable(4096, ((0, 1), (0, 1, 2), (1, 2, 3), (2, 3))), 64, 'bfloat16'),
]


@pytest.mark.parametrize('length', [16384, 16000])
@pytest.mark.parametrize('pattern, width, dtype', LOWERED)
def test_lowers_for_gpus(pattern, width, dtype, length, a_gpu):
  q_BLHK = jax.ShapeDtypeStruct((2, length, 4, width), dtype)
  lengths_B, q_offset = jax.ShapeDtypeStruct((2,), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)

  def loss(q, k, v, lengths_B, q_offset):
    attend = functools.partial(triton_attention, pattern=pattern, kv_lengths_B=lengths_B, interpret=False)
    return attend(q, k, v, q_offset=q_offset).astype(jnp.float32).sum()

  with a_gpu():
    both = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
    traced = both.trace(q_BLHK, q_BLHK, q_BLHK, lengths_B, q_offset)
    text = traced.lower(lowering_platforms=('cuda',)).as_text()
  calls = re.findall(r'attention_(forward|d_queries|d_keys)_kernel', text)
  assert {'forward', 'd_queries', 'd_keys'} == set(calls)
  assert text.count('@__gpu$xla.gpu.triton') == 3
  copied = re.findall(r'stablehlo\.(?:pad|transpose|concatenate)[^\n]*tensor<2x\d+x4x\d+x', text)
  assert not copied  # kernels read the arrays without a copy


def test_refuses(draw_attention):
  q, k, v, _ = draw_attention((1, 16, 1, 8), (1, 16, 1, 8))
  call = {'pattern': Full(), 'q_offset': 0}
  assert refuses(q, k, v, **call) is None
  assert refuses(q, k, v, **call | {'q_offset': jnp.int32(3)}) is None
  with jax.enable_x64(True):
    wide = q.astype(jnp.float64)
    assert refuses(wide, wide, wide, **call) == 'takes float32, bfloat16, float16, not float64'
  deep = jnp.zeros((1, 16, 1, 130))
  assert refuses(deep, deep, deep, **call) == 'takes head dimensions up to 128, not 130'
  table = BlockTable(40, ((0,),))
  assert '16 tokens in a BlockTable, not 40' in refuses(q, k, v, **call | {'pattern': table})
