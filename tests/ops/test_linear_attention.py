"""Linear attention in chunks: values and gradients against a float64 loop, golden values, transformations,
memory, errors."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

from lra_spt.ops.linear_attention import chunk_size, linear_attention

L, G, N, H, P = 13, 2, 3, 4, 5
DECAYS = {'none': None, 'head': (2, L, H), 'channel': (2, L, G, N)}


def oracle(q, k, v, log_decay, direction):
  """y in float64, with one state per head, position by position."""
  q, k, v = (np.float64(x) for x in (q, k, v))
  repeats = v.shape[2] // k.shape[2]
  q, k = (np.repeat(x, repeats, axis=2) for x in (q, k))
  a = np.ones(k.shape)
  if log_decay is not None:
    a = np.exp(np.float64(log_decay))
    a = np.broadcast_to(a[..., None], k.shape) if a.ndim == 3 else np.repeat(a, repeats, axis=2)

  def sweep(order, include_self):
    y, state = np.zeros(v.shape), np.zeros((len(v), *k.shape[2:], v.shape[3]))
    for t in order:
      outer = k[:, t, ..., None] * v[:, t, :, None]
      state = a[:, t, ..., None] * state + outer
      y[:, t] = np.einsum('bhn,bhnp->bhp', q[:, t], state if include_self else state - outer)
    return y

  order = range(v.shape[1])
  forward = sweep(order, True) if direction != 'backward' else 0
  return forward + (sweep(order[::-1], direction == 'backward') if direction != 'forward' else 0)


def draw(seed, kind, largest, length=L):
  """q, k, v, log decay, cotangent of y. Decays are between 0 and `largest`, and some of them 0 and inf."""
  rng = np.random.default_rng(seed)
  shapes = [(2, length, G, N)] * 2 + [(2, length, H, P)] * 2
  q, k, v, dy = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
  if kind == 'none':
    return q, k, v, None, dy
  shape = (2, length, *DECAYS[kind][2:])
  g = np.float32(-largest * rng.uniform(size=shape))
  g = np.where(rng.uniform(size=g.shape) < 0.1, np.float32(0), g)
  return q, k, v, np.where(rng.uniform(size=g.shape) < 0.03, np.float32(-np.inf), g), dy


@functools.cache
def value_and_gradients(direction, chunk):
  attend = functools.partial(linear_attention, direction=direction, chunk=chunk)

  @jax.jit
  def both(q, k, v, g, dy):
    y, pull = jax.vjp(attend, q, k, v, g)
    return y, pull(dy)

  return both


CASES = [(kind, 'both', chunk) for kind in DECAYS for chunk in (1, 4, 64)]
CASES += [('head', 'forward', 4), ('channel', 'backward', 4)]


@pytest.mark.parametrize('kind, direction, chunk', CASES)
def test_values_and_gradients_match_a_loop(kind, direction, chunk, assert_slopes):

  @settings(max_examples=5, deadline=None)
  @given(seed=st.integers(0, 2**16), largest=st.sampled_from([1e-3, 1.0, 30.0, 1e4]))
  @example(seed=0, largest=0.0)
  def check(seed, largest):
    *arrays, dy = draw(seed, kind, largest)
    y, gradients = value_and_gradients(direction, chunk)(*arrays, dy)
    expected = oracle(*arrays, direction)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    assert_slopes(gradients, arrays, lambda *arrays: np.sum(dy * oracle(*arrays, direction)), seed)

  check()


@pytest.mark.parametrize('length', [1, 8])
def test_lengths_of_whole_chunks(length):
  *arrays, _ = draw(1, 'channel', 1.0, length)
  expected = oracle(*arrays, 'both')
  y = jax.jit(functools.partial(linear_attention, direction='both', chunk=4))(*arrays)
  np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
  'name, keys', [('mamba2_ssd', ('C', 'B', 'X', 'A', 'Y')), ('gla_recurrent', ('q', 'k', 'v', 'gk', 'o'))]
)
def test_published_figures(name, keys, golden):
  values = golden(name)
  q, k, v, g, expected = (values[key] for key in keys)
  scale = np.float32(1 if name == 'mamba2_ssd' else 1 / 2)  # published: q / sqrt(N)
  y = jax.jit(functools.partial(linear_attention, chunk=4))(scale * q, k, v, g)
  np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize('kind', ['head', 'channel'])
def test_long_memories_keep_their_precision(kind):
  rng = np.random.default_rng(0)
  q, k, v = rng.normal(size=(3, 1, 4096, 1, 4)).astype(np.float32)
  g = -1e-3 * rng.uniform(size=q.shape if kind == 'channel' else q.shape[:3]).astype(np.float32)
  expected = oracle(q, k, v, g, 'both')
  y = jax.jit(functools.partial(linear_attention, direction='both'))(q, k, v, g)
  assert np.abs(y - expected).max() < 4e-6 * np.abs(expected).max()


def test_half_precision_keeps_decays_and_states_whole():
  *arrays, _ = draw(2, 'channel', 1.0)
  half = [jnp.asarray(x, jnp.bfloat16) for x in arrays[:3]]
  y = jax.jit(functools.partial(linear_attention, chunk=4))(*half, arrays[3])
  expected = oracle(*(np.float32(x) for x in half), arrays[3], 'forward')
  assert y.dtype == jnp.float32
  assert np.abs(y - expected).max() < 2e-2 * np.abs(expected).max()


def test_transformations_change_nothing(assert_transforms):
  *arrays, dy = draw(3, 'head', 1.0)
  _, expected = value_and_gradients('forward', 4)(*arrays, dy)
  assert_transforms(functools.partial(linear_attention, chunk=4), arrays, dy, expected)


def test_rows_over_devices_with_gradient():
  *arrays, dy = draw(4, 'channel', 1.0)
  mesh = jax.make_mesh((2,), ('data',), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
  rows = PartitionSpec('data')
  attend = functools.partial(linear_attention, direction='backward', chunk=4)
  island = jax.shard_map(attend, mesh=mesh, in_specs=rows, out_specs=rows)

  def both(*arrays):
    y, pull = jax.vjp(island, *arrays)
    return y, pull(dy)

  sharding = jax.NamedSharding(mesh, rows)
  compiled = jax.jit(both, in_shardings=sharding).lower(*arrays).compile()
  assert not re.search('all-gather|all-to-all|collective-permute', compiled.as_text())
  y, gradients = compiled(*(jax.device_put(x, sharding) for x in arrays))
  expected, expected_gradients = value_and_gradients('backward', 4)(*arrays, dy)
  for ours, theirs in zip((y, *gradients), (expected, *expected_gradients), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())


@pytest.mark.parametrize('kind, times', [('none', 12), ('head', 20), ('channel', 40)])
def test_memory_is_linear_in_the_length(kind, times):
  """4096 positions with gradients take a small part of the memory of 4096 x 4096 weights."""
  shapes = [(1, 4096, 1, 16)] * 3
  if kind != 'none':
    shapes.append((1, 4096, 1) if kind == 'head' else (1, 4096, 1, 16))
  arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  loss = lambda *arrays: jnp.sum(linear_attention(*arrays, chunk=16) ** 2)  # noqa: E731
  program = jax.jit(jax.grad(loss, range(len(arrays)))).lower(*arrays).compile()
  taken = program.memory_analysis().temp_size_in_bytes / (4096 * 16 * 4)
  print(f'{kind}: {taken:.1f} times q')
  assert taken < times


@pytest.mark.parametrize('sizes, chunk', [((64, 32), 64), ((16, 16), 16), ((2, 2), 16), ((512, 512), 256)])
def test_chunks_balance_weights_and_states(sizes, chunk):
  assert chunk_size(*sizes) == chunk


def test_the_position_of_the_query_is_left_out():
  *arrays, _ = draw(6, 'head', 1.0)
  attend = functools.partial(linear_attention, *arrays, chunk=4)
  y = attend(include_self=False) + attend(direction='backward')
  np.testing.assert_allclose(y, attend(direction='both'), atol=1e-5)
  y = attend() + attend(direction='backward', include_self=False)
  np.testing.assert_allclose(y, attend(direction='both'), atol=1e-5)


def test_errors_name_what_is_wrong():
  *arrays, _ = draw(5, 'head', 1.0)
  q, k, v, g = arrays
  for arguments, options, message in (
    ((q, k, v, g), {'direction': 'up'}, "direction 'up' is unknown; choose forward, backward, both"),
    ((q, k, v, g), {'chunk': 12}, 'chunk=12; choose a power of two'),
    ((q, k, v, g), {'direction': 'both', 'include_self': False}, 'reads the position of the query'),
    ((q, k[:, 1:], v, g), {}, 'pass q and k as'),
    ((q, k, v[:, :, :3], g), {}, 'G divides H'),
    ((q, k, v, g[:, :, :1]), {}, r'pass one per head, \(2, 13, 4\)'),
  ):
    with pytest.raises(ValueError, match=message):
      linear_attention(*arguments, **options)
