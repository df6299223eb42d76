"""The gated delta rule in chunks: values and gradients against a float64 loop, published numbers, repeated
keys, inverses, half precision, transformations, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lra_spt.ops.delta_rule import gated_delta_rule, unit_inverse

L, G, N, H, P = 13, 2, 3, 4, 5
CASES = [('forward', 1), ('forward', 4), ('forward', 64), ('backward', 4)]


def oracle(q, k, v, log_decay, beta, direction='forward'):
  """y in float64, with one state per head, position by position."""
  q, k, v, log_decay, beta = (np.float64(x) for x in (q, k, v, log_decay, beta))
  q, k = (np.repeat(x, v.shape[2] // k.shape[2], axis=2) for x in (q, k))
  y, state = np.zeros(v.shape), np.zeros((len(v), *k.shape[2:], v.shape[3]))
  for t in range(v.shape[1])[:: 1 if direction == 'forward' else -1]:
    state = np.exp(log_decay[:, t])[..., None, None] * state
    new = v[:, t] - np.einsum('bhn,bhnp->bhp', k[:, t], state)
    state = state + k[:, t, ..., None] * (beta[:, t, :, None] * new)[:, :, None]
    y[:, t] = np.einsum('bhn,bhnp->bhp', q[:, t], state)
  return y


def draw(seed, largest=1.0, length=L, beta=2.0):
  """q and k of norm 1, v, log decay, beta, cotangent of y. Decays are up to `largest`, some 0 and inf."""
  rng = np.random.default_rng(seed)
  shapes = [(2, length, G, N)] * 2 + [(2, length, H, P)] * 2
  q, k, v, dy = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
  k /= np.linalg.norm(k, axis=-1, keepdims=True)
  g = np.float32(-largest * rng.uniform(size=(2, length, H)))
  g = np.where(rng.uniform(size=g.shape) < 0.1, np.float32(0), g)
  g = np.where(rng.uniform(size=g.shape) < 0.03, np.float32(-np.inf), g)
  return q, k, v, g, np.float32(beta * rng.uniform(size=g.shape)), dy


@functools.cache
def value_and_gradients(direction, chunk):
  attend = functools.partial(gated_delta_rule, direction=direction, chunk=chunk)

  @jax.jit
  def both(*arrays):
    y, pull = jax.vjp(attend, *arrays[:-1])
    return y, pull(arrays[-1])

  return both


@pytest.mark.parametrize('direction, chunk', CASES)
def test_values_and_gradients_match_a_loop(direction, chunk, assert_slopes):

  @settings(max_examples=5, deadline=None)
  @given(seed=st.integers(0, 2**16), largest=st.sampled_from([1e-3, 1.0, 30.0, 1e4]))
  @example(seed=0, largest=0.0)
  def check(seed, largest):
    *arrays, dy = draw(seed, largest)
    y, gradients = value_and_gradients(direction, chunk)(*arrays, dy)
    expected = oracle(*arrays, direction)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    assert_slopes(gradients, arrays, lambda *arrays: np.sum(dy * oracle(*arrays, direction)), seed)

  check()


@pytest.mark.parametrize('length', [1, 8])
def test_lengths_of_whole_chunks(length):
  *arrays, _ = draw(1, length=length)
  expected = oracle(*arrays)
  y = jax.jit(functools.partial(gated_delta_rule, chunk=4))(*arrays)
  np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize('chunk', [4, 16])
def test_published_figures(chunk, golden):
  values = golden('gated_delta_rule')
  q, k, v, g, beta, do = (values[key] for key in ('q', 'k', 'v', 'g', 'beta', 'do'))
  scale = np.float32(q.shape[-1] ** -0.5)
  y, gradients = value_and_gradients('forward', chunk)(scale * q, k, v, g, beta, do)
  np.testing.assert_allclose(y, values['o'], rtol=0, atol=1e-6 * np.abs(values['o']).max())
  for name, actual in zip(('dq', 'dk', 'dv', 'dg', 'dbeta'), gradients, strict=True):
    actual = scale * actual if name == 'dq' else actual
    np.testing.assert_allclose(actual, values[name], rtol=0, atol=2e-6 * np.abs(values[name]).max())


@pytest.mark.parametrize('beta, tolerance', [(1.0, 3e-6), (1.9, 3e-5)])
def test_one_key_at_every_position_keeps_precision(beta, tolerance):
  """Equal keys without decay make the system that differs most from the identity."""
  q, k, v, *_ = draw(2, length=512)
  key = np.broadcast_to(k[:, :1], k.shape)
  arrays = (q, key, v, np.zeros(v.shape[:3], 'f'), np.full(v.shape[:3], beta, 'f'))
  expected = oracle(*arrays)
  y = jax.jit(functools.partial(gated_delta_rule, chunk=64))(*arrays)
  np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize('size', [1, 2, 32])
def test_unit_inverse(size):
  lower = np.tril(np.random.default_rng(size).normal(size=(2, 3, size, size)), -1).astype(np.float32) / 4
  expected = np.linalg.inv(np.eye(size) + np.float64(lower))
  actual = jax.jit(unit_inverse)(lower)
  np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_half_precision_keeps_decays_states_and_systems_whole():
  *arrays, _ = draw(2)
  half = [jnp.asarray(x, jnp.bfloat16) for x in arrays[:3]]
  y = jax.jit(functools.partial(gated_delta_rule, chunk=4))(*half, *arrays[3:])
  expected = oracle(*(np.float32(x) for x in half), *arrays[3:])
  assert y.dtype == jnp.float32
  assert np.abs(y - expected).max() < 2e-2 * np.abs(expected).max()


def test_transformations_change_nothing(assert_transforms):
  *arrays, dy = draw(3)
  _, expected = value_and_gradients('forward', 4)(*arrays, dy)
  assert_transforms(functools.partial(gated_delta_rule, chunk=4), arrays, dy, expected)


def test_backward_pass_keeps_the_arguments_only():
  """It saves the arguments and masks, but neither the weights within chunks nor the states between them."""
  *arrays, _ = draw(4, length=256)
  attend = functools.partial(gated_delta_rule, chunk=8)
  saved = jax.eval_shape(lambda *arrays: jax.tree.leaves(jax.vjp(attend, *arrays)[1]), *arrays)
  assert 0 < sum(leaf.size for leaf in saved) <= 1.1 * sum(array.size for array in arrays)


@pytest.mark.parametrize(
  'changed, message',
  [
    ({'direction': 'both'}, "direction 'both' is unknown; choose forward, backward"),
    ({'chunk': 6}, 'got chunk=6; choose a power of two'),
    ({'k_BLGN': np.zeros((2, L, G, N + 1), 'f')}, 'got q, k and v of shapes'),
    ({'beta_BLH': np.zeros((2, L, G), 'f')}, r'got log decays and beta .*\(2, 13, 2\); pass one of each'),
  ],
)
def test_errors_name_what_is_wrong(changed, message):
  *arrays, _ = draw(0)
  names = ('q_BLGN', 'k_BLGN', 'v_BLHP', 'log_decay_BLH', 'beta_BLH')
  with pytest.raises(ValueError, match=f'gated_delta_rule {message}'):
    gated_delta_rule(**dict(zip(names, arrays, strict=True)) | changed)
