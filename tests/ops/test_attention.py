"""Attention: values, gradients, transformations, memory, errors.

The oracle is float64 NumPy, written from the definition, with gradients by hand.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

from lra_spt.ops.attention import Causal, Full, attention
from lra_spt.ops.attention.blockwise import Tiles, blockwise_attention


def oracle(q, k, v, d_out, causal, lengths=None, q_offset=0):
  """Output, dq, dk, dv in float64, one head of one sequence at a time."""
  q, k, v, d_out = (np.asarray(x, np.float64) for x in (q, k, v, d_out))
  out, dq, dk, dv = np.zeros_like(q), np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
  scale = 1 / np.sqrt(q.shape[-1])
  for b, h in np.ndindex(q.shape[0], q.shape[2]):
    s_LM = q[b, :, h] @ k[b, :, h].T * scale
    k_at, q_at = np.arange(k.shape[1])[None], q_offset + np.arange(q.shape[1])[:, None]
    seen = (k_at <= q_at) if causal else np.ones_like(s_LM, bool)
    seen = seen & (k_at < (k.shape[1] if lengths is None else lengths[b]))
    p_LM = np.zeros_like(s_LM)
    for row in np.flatnonzero(seen.any(1)):
      e = np.exp(s_LM[row, seen[row]] - s_LM[row, seen[row]].max())
      p_LM[row, seen[row]] = e / e.sum()
    out[b, :, h] = p_LM @ v[b, :, h]
    dv[b, :, h] = p_LM.T @ d_out[b, :, h]
    dp_LM = d_out[b, :, h] @ v[b, :, h].T
    ds_LM = p_LM * (dp_LM - (p_LM * dp_LM).sum(1, keepdims=True))
    dq[b, :, h], dk[b, :, h] = ds_LM @ k[b, :, h] * scale, ds_LM.T @ q[b, :, h] * scale
  return out, dq, dk, dv


def draw(shape_q, shape_k, dtype=jnp.float32, seed=0):
  """q, k, v and a gradient of the output."""
  rng = np.random.default_rng(seed)
  shapes = shape_q, shape_k, shape_k, shape_q
  return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def value_and_gradients(attend, q, k, v, d_out):
  def both(q, k, v, d_out):
    out, pull = jax.vjp(attend, q, k, v)
    return out, *pull(d_out)

  return jax.jit(both)(q, k, v, d_out)


def check(results, expected, tolerance=2e-5):
  names = ('out', 'dq', 'dk', 'dv')
  for name, x, y in zip(names, results, expected, strict=True):
    bound = tolerance * max(1.0, np.abs(y).max())
    np.testing.assert_allclose(np.asarray(x, np.float64), y, atol=bound, rtol=0, err_msg=name)


@pytest.mark.parametrize('implementation', ['blockwise', 'reference'])
@pytest.mark.parametrize('pattern', [Full(), Causal()])
@pytest.mark.parametrize('lengths', [None, (0, 1, 29), (29, 29, 29)])
def test_agrees_with_float64(implementation, pattern, lengths):
  q, k, v, d_out = draw((3, 29, 2, 8), (3, 29, 2, 8))
  lengths_B = None if lengths is None else jnp.asarray(lengths, jnp.int32)
  attend = functools.partial(
    attention, pattern=pattern, kv_lengths_B=lengths_B, implementation=implementation
  )
  check(value_and_gradients(attend, q, k, v, d_out), oracle(q, k, v, d_out, pattern == Causal(), lengths))


@settings(deadline=None, max_examples=8)
@given(st.data())
def test_any_shape_tiles_lengths_and_offset(data):
  number = functools.partial(st.integers, 1)
  batch, heads, width = data.draw(number(3)), data.draw(number(2)), data.draw(st.sampled_from([1, 4, 16]))
  length, keys = data.draw(number(70)), data.draw(number(70))
  pattern = data.draw(st.sampled_from([Full(), Causal()]))
  lengths = data.draw(st.none() | st.lists(st.integers(0, keys), min_size=batch, max_size=batch))
  q_offset = data.draw(st.integers(-20, 80))
  tiles = data.draw(st.builds(Tiles, number(48), number(48), st.booleans()))
  q, k, v, d_out = draw((batch, length, heads, width), (batch, keys, heads, width), seed=length)
  lengths_B = None if lengths is None else jnp.asarray(lengths, jnp.int32)

  attend = functools.partial(
    blockwise_attention,
    pattern=pattern,
    kv_lengths_B=lengths_B,
    q_offset=data.draw(st.sampled_from([int, jnp.int32]))(q_offset),
    tiles=tiles,
  )
  results = value_and_gradients(attend, q, k, v, d_out)
  check(results, oracle(q, k, v, d_out, pattern == Causal(), lengths, q_offset))


@pytest.mark.parametrize('implementation', ['blockwise', 'reference'])
def test_queries_without_keys_give_zero(implementation):
  q, k, v, d_out = draw((2, 20, 2, 4), (2, 20, 2, 4))
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


def test_large_scores_stay_finite():
  q, k, v, d_out = draw((1, 40, 1, 16), (1, 40, 1, 16))
  q, k = 30 * q, 30 * k
  attend = functools.partial(blockwise_attention, pattern=Full(), tiles=Tiles(16, 16, False))
  check(value_and_gradients(attend, q, k, v, d_out), oracle(q, k, v, d_out, False), tolerance=1e-3)


def test_values_at_hidden_positions_do_not_matter():
  q, k, v, d_out = draw((1, 40, 2, 4), (1, 40, 2, 4))
  attend = functools.partial(
    blockwise_attention, pattern=Full(), kv_lengths_B=jnp.asarray([21], jnp.int32), tiles=Tiles(16, 16, False)
  )
  before = value_and_gradients(attend, q, k, v, d_out)
  after = value_and_gradients(attend, q, k.at[:, 21:].set(1e4), v.at[:, 21:].set(-1e4), d_out)
  for x, y in zip(before, after, strict=True):
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize('together', [False, True])
def test_bfloat16(together):
  q, k, v, d_out = draw((2, 70, 2, 16), (2, 70, 2, 16), jnp.bfloat16)
  attend = functools.partial(blockwise_attention, pattern=Causal(), tiles=Tiles(16, 32, together))
  results = value_and_gradients(attend, q, k, v, d_out)
  assert {x.dtype for x in results} == {jnp.dtype(jnp.bfloat16)}
  check(results, oracle(*(np.asarray(x, np.float64) for x in (q, k, v, d_out)), True), tolerance=1.5e-2)


def test_statistics_are_float32_for_bfloat16():
  # 300 equal scores: a bfloat16 sum of the weights would stick at 256.
  q, k = jnp.zeros((1, 1, 1, 4), jnp.bfloat16), jnp.zeros((1, 300, 1, 4), jnp.bfloat16)
  out = attention(q, k, jnp.ones_like(k), pattern=Full())
  np.testing.assert_array_equal(out, jnp.ones_like(q))


def test_float64_stays_float64():
  with jax.enable_x64(True):
    q, k, v, d_out = draw((1, 33, 1, 8), (1, 33, 1, 8), jnp.float64)
    attend = functools.partial(blockwise_attention, pattern=Causal(), tiles=Tiles(16, 16, False))
    check(value_and_gradients(attend, q, k, v, d_out), oracle(q, k, v, d_out, True), tolerance=1e-12)


def _tiled(q, k, v, lengths_B):
  return blockwise_attention(q, k, v, pattern=Causal(), kv_lengths_B=lengths_B, tiles=Tiles(16, 16, False))


def test_checkpoint():
  q, k, v, d_out = draw((2, 40, 2, 4), (2, 40, 2, 4))
  lengths_B = jnp.asarray([40, 17], jnp.int32)
  results = value_and_gradients(lambda q, k, v: jax.checkpoint(_tiled)(q, k, v, lengths_B), q, k, v, d_out)
  check(results, oracle(q, k, v, d_out, True, [40, 17]))


def test_vmap_over_members_with_their_own_lengths():
  q, k, v, d_out = draw((3, 2, 40, 2, 4), (3, 2, 40, 2, 4))
  lengths = np.asarray([[40, 17], [0, 33], [16, 32]], np.int32)

  def member(q, k, v, d_out, lengths_B):
    return value_and_gradients(lambda q, k, v: _tiled(q, k, v, lengths_B), q, k, v, d_out)

  results = jax.jit(jax.vmap(member))(q, k, v, d_out, jnp.asarray(lengths))
  for i in range(3):
    check([x[i] for x in results], oracle(q[i], k[i], v[i], d_out[i], True, lengths[i]))


def test_scan_over_layers():
  q, k, v, d_out = draw((2, 40, 2, 4), (2, 40, 2, 4))
  lengths_B = jnp.asarray([40, 17], jnp.int32)

  def layers(q, k, v, attend):
    return jax.lax.scan(lambda x, _: (x + attend(x, k, v, lengths_B), None), q, length=3)[0]

  def dense(q, k, v, lengths_B):
    return attention(q, k, v, pattern=Causal(), kv_lengths_B=lengths_B, implementation='reference')

  tiled = value_and_gradients(functools.partial(layers, attend=_tiled), q, k, v, d_out)
  plain = value_and_gradients(functools.partial(layers, attend=dense), q, k, v, d_out)
  check(tiled, [np.asarray(x, np.float64) for x in plain])


@pytest.mark.parametrize('together', [False, True])
@pytest.mark.parametrize('pattern, with_lengths', [(Full(), False), (Causal(), True)])
def test_shard_map_over_the_batch(pattern, together, with_lengths):
  q, k, v, d_out = draw((8, 40, 2, 4), (8, 40, 2, 4))
  lengths = np.asarray([40, 17, 0, 1, 16, 32, 33, 5], np.int32) if with_lengths else None

  def island(q, k, v, d_out, lengths_B):
    attend = functools.partial(
      blockwise_attention, pattern=pattern, kv_lengths_B=lengths_B, tiles=Tiles(16, 16, together)
    )
    return value_and_gradients(attend, q, k, v, d_out)

  mesh = jax.make_mesh((8,), ('data',), axis_types=(AxisType.Auto,))
  split = jax.shard_map(island, mesh=mesh, in_specs=PartitionSpec('data'), out_specs=PartitionSpec('data'))
  compiled = jax.jit(split).lower(q, k, v, d_out, lengths).compile()
  assert not re.search('all-gather|all-reduce', compiled.as_text())
  check(compiled(q, k, v, d_out, lengths), oracle(q, k, v, d_out, pattern == Causal(), lengths))


@pytest.mark.parametrize('pattern', [Full(), Causal()])
def test_memory_is_linear_in_the_length(pattern):
  def temporary_bytes(length):
    arrays = [jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)] * 4
    attend = functools.partial(attention, pattern=pattern)
    compiled = jax.jit(functools.partial(value_and_gradients, attend)).lower(*arrays).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  short, long = temporary_bytes(2048), temporary_bytes(4096)
  assert long <= 2.2 * short
  assert long < 4096 * 4096 * 4  # less than one matrix of scores


def test_causal_skips_tiles_above_the_diagonal():
  # Keys of skipped tiles are never read: NaN there reaches no query before them.
  q, k, v, _ = draw((1, 64, 1, 4), (1, 64, 1, 4))
  k, v = k.at[:, 32:].set(jnp.nan), v.at[:, 32:].set(jnp.nan)
  out = np.asarray(blockwise_attention(q, k, v, pattern=Causal(), tiles=Tiles(16, 16, False)))
  assert np.isfinite(out[:, :32]).all()
  assert np.isnan(out[:, 32:]).all()


def test_unknown_implementation_is_named():
  q, k, v, _ = draw((1, 4, 1, 4), (1, 4, 1, 4))
  with pytest.raises(ValueError, match="implementation 'flash' is unknown; choose blockwise, reference"):
    attention(q, k, v, pattern=Full(), implementation='flash')


@pytest.mark.parametrize(
  'change, message',
  [
    ({'k': jnp.zeros((2, 5, 3, 4)), 'v': jnp.zeros((2, 5, 3, 4))}, 'attention got queries'),
    ({'v': jnp.zeros((2, 6, 2, 4))}, 'attention got queries'),
    ({'k': jnp.zeros((2, 0, 2, 4)), 'v': jnp.zeros((2, 0, 2, 4))}, 'empty array'),
    ({'q': jnp.zeros((2, 3, 2, 4), jnp.bfloat16)}, 'cast them to one floating dtype'),
    ({'lengths': jnp.zeros((3,), jnp.int32)}, 'one length per row'),
    ({'lengths': jnp.zeros((2,))}, 'one length per row'),
  ],
)
def test_arrays_that_do_not_fit_are_refused(change, message):
  fitting = {'q': jnp.zeros((2, 3, 2, 4)), 'k': jnp.zeros((2, 5, 2, 4)), 'v': jnp.zeros((2, 5, 2, 4))}
  given = fitting | {'lengths': None} | change
  with pytest.raises(ValueError, match=message):
    attention(given['q'], given['k'], given['v'], pattern=Full(), kv_lengths_B=given['lengths'])
