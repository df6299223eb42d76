"""Attention in plain XLA: values, gradients, transformations, memory, skipped tiles, dispatch, errors."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

from lra_spt.ops import attention as package
from lra_spt.ops.attention import BlockTable, Causal, Full, Neighbours, Window, attention
from lra_spt.ops.attention.blockwise import blockwise_attention
from lra_spt.ops.attention.tiles import Grid, Tiles


def longformer(block, blocks, window=1, causal=False):
  """Every block sees `window` blocks on each side and the first; the first sees all (Beltagy et al. 2020)."""
  rows = [{0, *range(max(0, i - window), min(blocks, i + window + 1))} for i in range(blocks)]
  rows[0] = set(range(blocks))
  return BlockTable(block, tuple(tuple(sorted(row)) for row in rows), causal)


def big_bird(block, blocks, seed=0):
  """`longformer` and two random blocks for each block (Zaheer et al. 2020)."""
  rng = np.random.default_rng(seed)
  rows = [sorted({*row, *rng.integers(blocks, size=2).tolist()}) for row in longformer(block, blocks).table]
  return BlockTable(block, tuple(map(tuple, rows)))


def int32(values):
  return None if values is None else jnp.asarray(values, jnp.int32)


PATTERNS = (
  Full(), Causal(), Window(5, 2), Neighbours(8), Neighbours(8, 2, 0, causal=True), big_bird(8, 4),
  longformer(5, 6, causal=True),
)  # fmt: skip


@pytest.mark.parametrize('pattern', PATTERNS)
@pytest.mark.parametrize('implementation', [None, 'reference'])
def test_agrees_with_float64(
  implementation, pattern, draw_attention, value_and_gradients, check_attention, attention_oracle
):
  q, k, v, d_out = draw_attention((3, 29, 2, 8), (3, 29, 2, 8))
  lengths, starts = (0, 28, 29), (0, 1, 13)
  attend = functools.partial(
    attention,
    pattern=pattern,
    kv_lengths_B=int32(lengths),
    kv_starts_B=int32(starts),
    implementation=implementation,
  )
  expected = attention_oracle(pattern, q, k, v, d_out, lengths, starts)
  check_attention(value_and_gradients(attend, q, k, v, d_out), expected)


@pytest.fixture(scope='module')
def agrees(draw_attention, value_and_gradients, check_attention, attention_oracle):
  """Draws the other arguments of a call in tiles and compares it with the oracle."""

  def run(data, pattern, length, keys, q_offset=0):
    number = functools.partial(st.integers, 1)
    batch, heads, width = data.draw(number(3)), data.draw(number(2)), data.draw(st.sampled_from([1, 4, 16]))
    edges = st.none() | st.lists(st.integers(0, keys), min_size=batch, max_size=batch)
    lengths, starts = data.draw(edges), data.draw(edges)
    tiles = data.draw(st.builds(Tiles, number(48), number(48), st.booleans()))
    q, k, v, d_out = draw_attention((batch, length, heads, width), (batch, keys, heads, width), seed=length)
    attend = functools.partial(
      blockwise_attention,
      pattern=pattern,
      kv_lengths_B=int32(lengths),
      kv_starts_B=int32(starts),
      q_offset=q_offset,
      tiles=tiles,
    )
    expected = attention_oracle(pattern, q, k, v, d_out, lengths, starts, int(q_offset))
    check_attention(value_and_gradients(attend, q, k, v, d_out), expected)

  return run


@settings(deadline=None, max_examples=5)
@given(st.data(), st.integers(1, 70), st.integers(1, 70))
def test_intervals(agrees, interval_patterns, data, length, keys):
  q_offset = data.draw(st.sampled_from([int, jnp.int32]))(data.draw(st.integers(-20, 80)))
  agrees(data, data.draw(interval_patterns), length, keys, q_offset)


@settings(deadline=None, max_examples=4)
@given(st.data(), st.integers(1, 70), st.integers(1, 70))
def test_tables(agrees, data, length, keys):
  block, causal = data.draw(st.integers(1, 40)), data.draw(st.booleans())
  rows = st.lists(st.sets(st.integers(0, 9)).map(sorted).map(tuple), min_size=1, max_size=9)
  agrees(data, BlockTable(block, tuple(data.draw(rows)), causal), length, keys)


@pytest.mark.parametrize(
  'pattern, length',
  [
    (Neighbours(40), 160),  # tiles of 10 end with the blocks
    (Neighbours(40, 1, 0, causal=True), 161),
    (big_bird(40, 5), 161),
    (longformer(40, 5, causal=True), 161),
    (Neighbours(37), 161),  # tiles of 16 do not
    (big_bird(37, 5), 161),
  ],
)
def test_blocks_that_are_no_power_of_two(
  pattern, length, draw_attention, value_and_gradients, check_attention, attention_oracle
):
  q, k, v, d_out = draw_attention((1, length, 1, 8), (1, length, 1, 8))
  attend = functools.partial(blockwise_attention, pattern=pattern, tiles=Tiles(16, 16, False))
  check_attention(value_and_gradients(attend, q, k, v, d_out), attention_oracle(pattern, q, k, v, d_out))


@pytest.mark.parametrize(
  'pattern, tile_q, tile_k',
  [
    (Full(), 512, 1008),  # 16,000 keys in 16 parts
    (Neighbours(4096), 512, 1024),
    (Neighbours(4000), 400, 800),
    (Neighbours(40), 80, 80),
    (Neighbours(4099), 512, 1008),  # a prime number
    (Window(100, 100), 208, 208),
    (BlockTable(4000, ((0,),)), 400, 800),
    (BlockTable(40, ((0,),)), 40, 40),
    (BlockTable(8, ((0,),)), 128, 128),
  ],
)
def test_tiles_end_with_blocks(pattern, tile_q, tile_k):
  grid = Grid.of(pattern, 16000, 16000, Tiles(512, 1024, False))
  assert (grid.tile_q, grid.tile_k) == (tile_q, tile_k)


@pytest.mark.parametrize('implementation', ['blockwise', 'reference', 'triton'])
def test_queries_without_keys_give_zero(implementation, draw_attention, value_and_gradients):
  q, k, v, d_out = draw_attention((2, 20, 2, 4), (2, 20, 2, 4))
  lengths_B = jnp.asarray([0, 3], jnp.int32)
  attend = functools.partial(
    attention, pattern=Causal(), kv_lengths_B=lengths_B, q_offset=-5, implementation=implementation
  )
  out, dq, dk, dv = (np.asarray(x) for x in value_and_gradients(attend, q, k, v, d_out))
  for x in (out, dq):
    assert not x[0].any()
    assert not x[1, :5].any()
    assert x[1, 6:].all()  # query 5 sees one key: its scores have no gradient
  for x in (dk, dv):
    assert not x[0].any()
    assert not x[1, 3:].any()
    assert x[1, :3].all()


def test_large_scores_stay_finite(draw_attention, value_and_gradients, check_attention, attention_oracle):
  q, k, v, d_out = draw_attention((1, 40, 1, 16), (1, 40, 1, 16))
  q, k = 30 * q, 30 * k
  attend = functools.partial(blockwise_attention, pattern=Full(), tiles=Tiles(16, 16, False))
  expected = attention_oracle(Full(), q, k, v, d_out)
  check_attention(value_and_gradients(attend, q, k, v, d_out), expected, tolerance=1e-3)


def test_values_at_hidden_positions_do_not_matter(draw_attention, value_and_gradients):
  q, k, v, d_out = draw_attention((1, 40, 2, 4), (1, 40, 2, 4))
  attend = functools.partial(
    blockwise_attention,
    pattern=Full(),
    kv_lengths_B=int32([21]),
    kv_starts_B=int32([5]),
    tiles=Tiles(16, 16, False),
  )
  hidden = lambda x, value: x.at[:, 21:].set(value).at[:, :5].set(value)  # noqa: E731
  run = jax.jit(functools.partial(value_and_gradients, attend))
  before = run(q, k, v, d_out)
  after = run(q, hidden(k, 1e4), hidden(v, -1e4), d_out)
  for x, y in zip(before, after, strict=True):
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize('platform, together', [('cpu', False), ('gpu', True)])
@pytest.mark.parametrize('pattern', [Causal(), Neighbours(20), longformer(16, 5)])
def test_bfloat16(
  pattern, platform, together, monkeypatch, draw_attention, value_and_gradients, check_attention,
  attention_oracle,
):  # fmt: skip
  monkeypatch.setattr(package.blockwise, 'platform', lambda: platform)  # only CPUs multiply in float32
  q, k, v, d_out = draw_attention((2, 70, 2, 16), (2, 70, 2, 16), jnp.bfloat16)
  attend = functools.partial(blockwise_attention, pattern=pattern, tiles=Tiles(16, 32, together))
  results = value_and_gradients(attend, q, k, v, d_out)
  assert {x.dtype for x in results} == {jnp.dtype(jnp.bfloat16)}
  expected = attention_oracle(pattern, *(np.asarray(x, np.float64) for x in (q, k, v, d_out)))
  check_attention(results, expected, tolerance=1.5e-2)


def test_statistics_are_float32_for_bfloat16(monkeypatch, draw_attention, value_and_gradients):
  monkeypatch.setattr(package.blockwise, 'platform', lambda: 'gpu')
  arrays = draw_attention((1, 40, 1, 8), (1, 40, 1, 8), jnp.bfloat16)
  attend = functools.partial(blockwise_attention, pattern=Causal(), tiles=Tiles(16, 16, True))
  jaxpr = str(jax.make_jaxpr(functools.partial(value_and_gradients, attend))(*arrays))
  statistics = re.findall(r':(\w+)\[[\d,]*\] = (?:exp|log|reduce_max|reduce_sum)\b', jaxpr)
  assert len(statistics) > 5
  assert set(statistics) == {'f32'}


def test_float64_stays_float64(draw_attention, value_and_gradients, check_attention, attention_oracle):
  with jax.enable_x64(True):
    q, k, v, d_out = draw_attention((1, 33, 1, 8), (1, 33, 1, 8), jnp.float64)
    for pattern in (Causal(), big_bird(8, 5)):
      attend = functools.partial(blockwise_attention, pattern=pattern, tiles=Tiles(16, 16, False))
      expected = attention_oracle(pattern, q, k, v, d_out)
      check_attention(value_and_gradients(attend, q, k, v, d_out), expected, tolerance=1e-12)


def tiled(q, k, v, pattern, lengths_B=None, together=False, **options):
  tiles = Tiles(16, 16, together)
  return blockwise_attention(q, k, v, pattern=pattern, kv_lengths_B=lengths_B, tiles=tiles, **options)


@pytest.mark.parametrize('pattern', [Causal(), Neighbours(12)])
def test_checkpoint(pattern, draw_attention, value_and_gradients, check_attention, attention_oracle):
  q, k, v, d_out = draw_attention((2, 40, 2, 4), (2, 40, 2, 4))
  attend = functools.partial(tiled, lengths_B=int32([40, 17]), pattern=pattern)
  results = value_and_gradients(jax.checkpoint(attend), q, k, v, d_out)
  check_attention(results, attention_oracle(pattern, q, k, v, d_out, [40, 17]))


@pytest.mark.parametrize('pattern', [Neighbours(12, 1, 0, causal=True), big_bird(8, 5)])
def test_vmap_over_members_with_their_own_lengths(
  pattern, draw_attention, value_and_gradients, check_attention, attention_oracle
):
  q, k, v, d_out = draw_attention((3, 2, 40, 2, 4), (3, 2, 40, 2, 4))
  lengths = np.asarray([[40, 17], [0, 33], [16, 32]], np.int32)

  def member(q, k, v, d_out, lengths_B):
    attend = functools.partial(tiled, lengths_B=lengths_B, pattern=pattern)
    return value_and_gradients(attend, q, k, v, d_out)

  results = jax.jit(jax.vmap(member))(q, k, v, d_out, jnp.asarray(lengths))
  for i in range(3):
    expected = attention_oracle(pattern, q[i], k[i], v[i], d_out[i], lengths[i])
    check_attention([x[i] for x in results], expected)


def test_scan_over_layers(draw_attention, value_and_gradients, check_attention):
  q, k, v, d_out = draw_attention((2, 40, 2, 4), (2, 40, 2, 4))
  call = {'pattern': Neighbours(12), 'kv_lengths_B': int32([40, 17])}

  def layers(q, k, v, attend):
    return jax.lax.scan(lambda x, _: (x + attend(x, k, v, **call), None), q, length=3)[0]

  in_tiles = functools.partial(blockwise_attention, tiles=Tiles(16, 16, False))
  dense = functools.partial(attention, implementation='reference')
  results = value_and_gradients(functools.partial(layers, attend=in_tiles), q, k, v, d_out)
  plain = value_and_gradients(functools.partial(layers, attend=dense), q, k, v, d_out)
  check_attention(results, [np.asarray(x, np.float64) for x in plain])


@pytest.mark.parametrize('together', [False, True])
@pytest.mark.parametrize(
  'pattern, hides', [(Full(), False), (Neighbours(12), True), (big_bird(8, 5), False), (big_bird(8, 5), True)]
)
def test_shard_map_over_the_batch(
  pattern, together, hides, draw_attention, value_and_gradients, check_attention, attention_oracle
):
  q, k, v, d_out = draw_attention((8, 40, 2, 4), (8, 40, 2, 4))
  lengths = np.asarray([40, 40, 0, 1, 16, 32, 33, 5], np.int32) if hides else None
  starts = np.asarray([0, 20, 0, 0, 2, 20, 32, 4], np.int32) if hides else None

  def island(q, k, v, d_out, lengths_B, starts_B):
    attend = functools.partial(
      tiled, pattern=pattern, lengths_B=lengths_B, kv_starts_B=starts_B, together=together
    )
    return value_and_gradients(attend, q, k, v, d_out)

  mesh = jax.make_mesh((4,), ('data',), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
  split = jax.shard_map(island, mesh=mesh, in_specs=PartitionSpec('data'), out_specs=PartitionSpec('data'))
  compiled = jax.jit(split).lower(q, k, v, d_out, lengths, starts).compile()
  assert not re.search('all-gather|all-reduce', compiled.as_text())
  expected = attention_oracle(pattern, q, k, v, d_out, lengths, starts)
  check_attention(compiled(q, k, v, d_out, lengths, starts), expected)


@pytest.mark.parametrize('together', [False, True])
def test_shard_map_over_the_queries(
  together, draw_attention, value_and_gradients, check_attention, attention_oracle
):
  """Each device has a part of the queries, and all keys; the offset is known only at run time."""
  pattern = Neighbours(12)
  q, k, v, d_out = draw_attention((1, 8 * 20, 1, 4), (1, 8 * 20, 1, 4))

  def island(q, k, v, d_out):
    attend = functools.partial(
      tiled, pattern=pattern, together=together, q_offset=20 * jax.lax.axis_index('seq')
    )
    whole = [jax.lax.all_gather(x, 'seq', axis=1, tiled=True) for x in (k, v)]
    out, dq, dk, dv = value_and_gradients(attend, q, *whole, d_out)
    return out, dq, *(jax.lax.psum_scatter(x, 'seq', scatter_dimension=1, tiled=True) for x in (dk, dv))

  mesh, part = jax.make_mesh((8,), ('seq',), axis_types=(AxisType.Auto,)), PartitionSpec(None, 'seq')
  split = jax.jit(jax.shard_map(island, mesh=mesh, in_specs=part, out_specs=part))
  check_attention(split(q, k, v, d_out), attention_oracle(pattern, q, k, v, d_out))


@pytest.mark.parametrize(
  'pattern_of', [lambda _: Causal(), lambda _: Neighbours(512), lambda length: longformer(128, length // 128)]
)
def test_memory_is_linear_in_the_length(pattern_of, value_and_gradients):
  def temporary_bytes(length):
    arrays = [jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)] * 4
    attend = functools.partial(attention, pattern=pattern_of(length))
    compiled = jax.jit(functools.partial(value_and_gradients, attend)).lower(*arrays).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  short, long = temporary_bytes(4096), temporary_bytes(8192)
  assert long <= 2.2 * short
  assert long < 8192 * 8192 * 4  # less than one matrix of scores


@pytest.mark.parametrize('pattern', [Full(), longformer(16, 4)])
def test_tiles_hidden_by_lengths_and_starts_are_skipped(pattern, draw_attention, value_and_gradients):
  q, k, v, d_out = draw_attention((1, 64, 1, 4), (1, 64, 1, 4))
  k, v = (x.at[:, :16].set(jnp.nan).at[:, 48:].set(jnp.nan) for x in (k, v))
  attend = functools.partial(tiled, pattern=pattern, lengths_B=int32([47]), kv_starts_B=int32([17]))
  for x in value_and_gradients(attend, q, k, v, d_out):
    assert np.isfinite(x).all()


@pytest.mark.parametrize('row', [(), (4,)])
def test_a_table_that_shows_nothing_gives_zero(row, draw_attention, value_and_gradients):
  q, k, v, d_out = draw_attention((1, 64, 1, 4), (1, 64, 1, 4))
  for x in value_and_gradients(functools.partial(tiled, pattern=BlockTable(16, (row,))), q, k, v, d_out):
    assert not np.asarray(x).any()


@pytest.mark.parametrize(
  'platform, refusing, expected',
  [
    ('cpu', (), 'blockwise'),
    ('gpu', (), 'triton'),
    ('gpu', ('triton',), 'blockwise'),
    ('tpu', (), 'splash'),
    ('tpu', ('splash',), 'blockwise'),
  ],
)
def test_the_best_implementation_that_can_run_the_call_is_taken(monkeypatch, platform, refusing, expected):
  def stand_in(name):
    refuses = lambda *_, pattern, q_offset: 'is busy' if name in refusing else None  # noqa: E731
    return (lambda *_, **call: (name, call['q_offset'])), refuses

  table = {name: stand_in(name) for name in ('blockwise', 'triton', 'tokamax', 'cudnn', 'splash')}
  monkeypatch.setattr(package, '_IMPLEMENTATIONS', table)
  monkeypatch.setattr(package, 'platform', lambda: platform)
  arrays = [jnp.zeros((1, 4, 1, 4))] * 3
  assert attention(*arrays, pattern=Causal(), q_offset=3) == (expected, 3)
  for name in refusing:
    with pytest.raises(ValueError, match=f"implementation '{name}' is busy; choose another, or None"):
      attention(*arrays, pattern=Causal(), implementation=name)


def test_unknown_implementation_is_named():
  arrays = [jnp.zeros((1, 4, 1, 4))] * 3
  with pytest.raises(ValueError, match="implementation 'flash' is unknown; choose blockwise, .*, or None"):
    attention(*arrays, pattern=Full(), implementation='flash')


@pytest.mark.parametrize('q_offset', [1, jnp.int32(1)])
def test_a_table_with_an_offset_is_refused(q_offset):
  with pytest.raises(ValueError, match='q_offset is 1, but queries of a BlockTable start at position 0'):
    attention(*[jnp.zeros((1, 4, 1, 4))] * 3, pattern=BlockTable(2, ((0,), (1,))), q_offset=q_offset)


@pytest.mark.parametrize(
  'change, message',
  [
    ({'k': jnp.zeros((2, 5, 3, 4)), 'v': jnp.zeros((2, 5, 3, 4))}, 'attention got queries'),
    ({'v': jnp.zeros((2, 6, 2, 4))}, 'attention got queries'),
    ({'k': jnp.zeros((2, 0, 2, 4)), 'v': jnp.zeros((2, 0, 2, 4))}, 'empty array'),
    ({'q': jnp.zeros((2, 3, 2, 4), jnp.bfloat16)}, 'cast them to one floating dtype'),
    ({'lengths': jnp.zeros((3,), jnp.int32)}, 'one position per row'),
    ({'lengths': jnp.zeros((2,))}, 'kv_lengths_B is float32.*one position per row'),
    ({'starts': jnp.zeros((2, 1), jnp.int32)}, 'kv_starts_B is int32 of shape'),
  ],
)
def test_arrays_that_do_not_fit_are_refused(change, message):
  fitting = {'q': jnp.zeros((2, 3, 2, 4)), 'k': jnp.zeros((2, 5, 2, 4)), 'v': jnp.zeros((2, 5, 2, 4))}
  given = fitting | {'lengths': None, 'starts': None} | change
  edges = {'kv_lengths_B': given['lengths'], 'kv_starts_B': given['starts']}
  with pytest.raises(ValueError, match=message):
    attention(given['q'], given['k'], given['v'], pattern=Full(), **edges)
