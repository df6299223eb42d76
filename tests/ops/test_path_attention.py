"""PaTH attention in chunks: values and gradients against a float64 loop over pairs, any length,
transformations, memory."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_spt.ops.path_attention import path_attention

L, H, K, P = 13, 2, 3, 5


def oracle(q, k, v, w, beta, hidden=None, direction='forward'):
  """y in float64. A key is turned by each position that follows it."""
  q, k, v, w, beta = (np.float64(x) for x in (q, k, v, w, beta))
  hidden = np.zeros(beta.shape, bool) if hidden is None else hidden
  y = np.zeros(v.shape)
  for row, head in np.ndindex(len(q), q.shape[2]):
    keys, order = {}, range(q.shape[1])[:: 1 if direction == 'forward' else -1]
    for t in order:
      turn = np.eye(q.shape[3]) - beta[row, t, head] * np.outer(w[row, t, head], w[row, t, head])
      keys = {s: turn @ key for s, key in keys.items() if not hidden[row, s, head]}
      keys[t] = k[row, t, head]
      scores = np.array([q[row, t, head] @ key for key in keys.values()]) / np.sqrt(q.shape[3])
      weights = np.exp(scores - scores.max())
      y[row, t, head] = weights / weights.sum() @ v[row, list(keys), head]
  return y


def draw(seed, length=L):
  rng = np.random.default_rng(seed)
  q, k, w = 2 * rng.normal(size=(3, 2, length, H, K)).astype(np.float32)
  w /= np.linalg.norm(w, axis=-1, keepdims=True)
  v, dy = rng.normal(size=(2, 2, length, H, P)).astype(np.float32)
  return q, k, v, w, np.float32(2 * rng.uniform(size=(2, length, H))), dy


@functools.cache
def value_and_gradients(direction, chunk):
  @jax.jit
  def both(*arrays):
    y, pull = jax.vjp(functools.partial(path_attention, direction=direction, chunk=chunk), *arrays[:-1])
    return y, pull(arrays[-1])

  return both


@pytest.mark.parametrize('direction, chunk', [('forward', 4), ('backward', 4), ('forward', 64)])
def test_values_and_gradients_match_a_loop(direction, chunk, assert_slopes):
  for seed in range(3):
    *arrays, dy = draw(seed)
    y, gradients = value_and_gradients(direction, chunk)(*arrays, dy)
    expected = oracle(*arrays, direction=direction)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    loss = lambda *arrays: np.sum(dy * oracle(*arrays, direction=direction))  # noqa: E731, B023
    assert_slopes(gradients, arrays, loss, seed)


@settings(max_examples=4, deadline=None)
@given(length=st.integers(1, 40), chunk=st.sampled_from([1, 2, 8, 32]), hidden=st.booleans())
def test_any_length_and_chunk(length, chunk, hidden):
  *arrays, _ = draw(length, length)
  hidden = np.random.default_rng(0).uniform(size=arrays[4].shape) < 0.4 if hidden else None
  expected = oracle(*arrays, hidden)
  y = jax.jit(functools.partial(path_attention, chunk=chunk))(*arrays, hidden)
  np.testing.assert_allclose(y, expected, rtol=0, atol=4e-6 * np.abs(expected).max())


def test_transformations_change_nothing(assert_transforms):
  *arrays, dy = draw(3)
  _, expected = value_and_gradients('forward', 4)(*arrays, dy)
  assert_transforms(functools.partial(path_attention, chunk=4), arrays, dy, expected)


def test_backward_pass_keeps_the_arguments_only():
  *arrays, _ = draw(4, length=256)
  attend = functools.partial(path_attention, chunk=8)
  saved = jax.eval_shape(lambda *arrays: jax.tree.leaves(jax.vjp(attend, *arrays)[1]), *arrays)
  assert 0 < sum(leaf.size for leaf in saved) <= 1.2 * sum(array.size for array in arrays)
