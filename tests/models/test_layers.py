"""Linear maps, norms, dropout, positions, pooling and heads, each against its definition."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.models.heads import Head, HeadSpec, pool
from lra_spt.models.layers import Dropout, FeedForward, Norm, linear, sinusoidal_positions


def normal(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize('inputs, outputs', [(4, 400), (100, 64)])
def test_linear_starts_uniform_within_one_over_root_of_inputs(inputs, outputs):
  layer = linear(inputs, outputs, rngs=nnx.Rngs(0))
  bound = 1 / math.sqrt(inputs)
  for values in (np.asarray(layer.kernel[...]), np.asarray(layer.bias[...])):
    assert np.abs(values).max() <= bound
    assert np.abs(values).max() > 0.9 * bound
    np.testing.assert_allclose(values.std(), bound / math.sqrt(3), rtol=0.25)
  assert layer.kernel[...].dtype == jnp.float32


def test_sinusoid_against_the_formula_position_by_position():
  length, width = 2000, 12
  table = sinusoidal_positions(length, width)
  for position in (0, 1, 17, 1999):
    for pair in range(width // 2):
      angle = position / 10000 ** (2 * pair / width)
      np.testing.assert_allclose(table[position, 2 * pair], math.sin(angle), atol=1e-6)
      np.testing.assert_allclose(table[position, 2 * pair + 1], math.cos(angle), atol=1e-6)
  assert table.dtype == np.float32
  with pytest.raises(ValueError, match='even model.width, but it is 7'):
    sinusoidal_positions(4, 7)


def test_layer_norm_against_numpy():
  x = 3 * normal(0, 2, 3, 6) + 1
  norm = Norm('layer', 6, rngs=nnx.Rngs(0))
  expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
  np.testing.assert_allclose(norm(jnp.asarray(x)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('over_padding', [False, True])
def test_batch_norm_statistics_and_padding(over_padding):
  x, lengths = normal(1, 3, 5, 4) + 2, np.array([5, 2, 3], np.int32)
  norm = Norm('batch', 4, over_padding=over_padding, rngs=nnx.Rngs(0))
  y = norm(jnp.asarray(x), lengths_B=jnp.asarray(lengths), deterministic=False)
  valid = np.arange(5)[None] < lengths[:, None]
  counted = x.reshape(-1, 4) if over_padding else x[valid]
  mean, var = counted.mean(0), counted.var(0)
  np.testing.assert_allclose(
    np.asarray(y)[valid], ((x - mean) / np.sqrt(var + 1e-5))[valid], rtol=1e-4, atol=1e-4
  )
  np.testing.assert_allclose(norm.norm.mean[...], 0.1 * mean, rtol=1e-5)
  np.testing.assert_allclose(norm.norm.var[...], 0.9 + 0.1 * var, rtol=1e-5)
  # Evaluation uses the running averages and does not change them.
  y = norm(jnp.asarray(x), lengths_B=jnp.asarray(lengths), deterministic=True)
  np.testing.assert_allclose(y, (x - 0.1 * mean) / np.sqrt(0.9 + 0.1 * var + 1e-5), rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(norm.norm.mean[...], 0.1 * mean, rtol=1e-5)


def test_gated_feed_forward():
  layer = FeedForward(4, 6, dropout=0.0, activation='silu', gated=True, rngs=nnx.Rngs(0))
  x = np.random.default_rng(0).normal(size=(2, 3, 4))
  up, gate, down = (
    lambda x, part=part: x @ np.float64(part.kernel[...]) + np.float64(part.bias[...])
    for part in (layer.up, layer.gate, layer.down)
  )
  hidden = up(x)
  expected = down(hidden / (1 + np.exp(-hidden)) * gate(x))
  np.testing.assert_allclose(layer(jnp.float32(x)), expected, rtol=1e-5, atol=1e-6)


def test_an_identity_head_needs_a_wide_model():
  with pytest.raises(ValueError, match='identity head needs model.width >= 9'):
    Head(HeadSpec('identity', 9), 8, rngs=nnx.Rngs(0))


def test_dropout_scales_what_it_keeps_and_draws_by_row():
  x, keys = jnp.ones((4, 50, 20)), jax.random.split(jax.random.key(0), 4)
  dropout = Dropout(0.25)
  y = np.asarray(dropout(x, deterministic=False, rngs=keys))
  assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
  np.testing.assert_allclose((y == 0).mean(), 0.25, atol=0.02)
  assert not np.array_equal(y[0], y[1])
  np.testing.assert_array_equal(dropout(x[2:3], deterministic=False, rngs=keys[2:3])[0], y[2])
  assert dropout(x, deterministic=True) is x


def test_tied_dropout_draws_once_for_all_positions():
  x, keys = jnp.ones((4, 50, 200)), jax.random.split(jax.random.key(0), 4)
  y = np.asarray(Dropout(0.25, tied=True)(x, deterministic=False, rngs=keys))
  np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1], y.shape))
  np.testing.assert_allclose((y == 0).mean(), 0.25, atol=0.04)
  assert not np.array_equal(y[0], y[1])


def test_tied_feed_forward_drops_the_same_at_all_positions():
  layer = FeedForward(3, 5, dropout=0.5, tied=True, rngs=nnx.Rngs(0))
  x, keys = jnp.broadcast_to(normal(3, 2, 1, 3), (2, 9, 3)), jax.random.split(jax.random.key(0), 2)
  y = np.asarray(layer(x, deterministic=False, rngs=keys))
  np.testing.assert_allclose(y, np.broadcast_to(y[:, :1], y.shape), atol=1e-6)
  assert np.abs(y - np.asarray(layer(x))).max() > 1e-3


def test_feed_forward_uses_the_exact_gelu():
  layer = FeedForward(3, 5, dropout=0.5, rngs=nnx.Rngs(0))
  x = normal(3, 1, 2, 3)
  hidden = x @ np.asarray(layer.up.kernel[...]) + np.asarray(layer.up.bias[...])
  gelu = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
  expected = gelu @ np.asarray(layer.down.kernel[...]) + np.asarray(layer.down.bias[...])
  np.testing.assert_allclose(layer(jnp.asarray(x)), expected, atol=1e-5)


def test_pools_read_valid_positions_only():
  h = normal(4, 3, 4, 2)
  lengths = np.array([4, 1, 3], np.int32)
  h[1, 1:], h[2, 3:] = 1e6, 1e6
  answers = {
    kind: np.asarray(pool(jnp.asarray(h), kind, jnp.asarray(lengths))) for kind in ('mean', 'max', 'last')
  }
  for row, n in enumerate(lengths):
    np.testing.assert_allclose(answers['mean'][row], h[row, :n].mean(0), rtol=1e-5)
    np.testing.assert_array_equal(answers['max'][row], h[row, :n].max(0))
    np.testing.assert_array_equal(answers['last'][row], h[row, n - 1])
  for kind in answers:
    full = pool(jnp.asarray(h), kind, jnp.full(3, 4, jnp.int32))
    np.testing.assert_array_equal(pool(jnp.asarray(h), kind), full)
    np.testing.assert_array_equal(pool(jnp.asarray(h), kind, jnp.zeros(3, jnp.int32)), np.zeros((3, 2)))


@pytest.mark.parametrize('kind', ['mean', 'max', 'last'])
def test_gradient_of_a_pool_is_finite_and_leaves_padding_out(kind):
  h, lengths = jnp.asarray(normal(5, 2, 4, 3)), jnp.array([2, 0], jnp.int32)
  grad = np.asarray(jax.grad(lambda h: jnp.sum(pool(h, kind, lengths) ** 2))(h))
  assert np.isfinite(grad).all()
  assert np.abs(grad[0, :2]).sum() > 0
  assert not grad[0, 2:].any()
  assert not grad[1].any()


def test_heads():
  h = normal(6, 2, 4, 5)
  tokens = Head(HeadSpec('tokens', 3), 5, rngs=nnx.Rngs(0))
  expected = h @ np.asarray(tokens.out.kernel[...]) + np.asarray(tokens.out.bias[...])
  np.testing.assert_allclose(tokens(jnp.asarray(h)), expected, atol=1e-5)
  mlp = Head(HeadSpec('mlp', 3, 'last'), 5, rngs=nnx.Rngs(1))
  hidden = h[:, -1] @ np.asarray(mlp.hidden.kernel[...]) + np.asarray(mlp.hidden.bias[...])
  expected = np.maximum(hidden, 0) @ np.asarray(mlp.out.kernel[...]) + np.asarray(mlp.out.bias[...])
  np.testing.assert_allclose(mlp(jnp.asarray(h)), expected, atol=1e-5)
  identity = Head(HeadSpec('identity', 4), 5, rngs=nnx.Rngs(0))
  np.testing.assert_array_equal(identity(jnp.asarray(h)), h)
  assert not jax.tree.leaves(nnx.state(identity, nnx.Param))
