"""Log-linear attention: values and gradients against a Fenwick tree in float64, lengths, chunks, errors."""

import functools

import jax
import numpy as np
import pytest

from lra_spt.ops.linear_attention import linear_attention
from lra_spt.ops.log_linear_attention import levels, log_linear_attention

L, G, N, H, P = 13, 2, 3, 4, 5


def draw(length, seed=0):
  """q, k, v, log decays, scales, and a cotangent of y. One decay in thirty is -inf."""
  rng = np.random.default_rng(seed)
  shapes = [(2, length, G, N)] * 2 + [(2, length, H, P)] * 2 + [(2, length, H, levels(length))]
  q, k, v, dy, scale = (np.float32(rng.normal(size=shape)) for shape in shapes)
  decay = -rng.exponential(size=(2, length, H))
  return q, k, v, np.float32(np.where(rng.uniform(size=decay.shape) < 0.03, -np.inf, decay)), scale, dy


def blocks(t, length, direction):
  """(level, positions) of the blocks that t reads, from the nearest on, as in a Fenwick tree."""
  yield 0, range(t, t + 1)
  edge = t if direction == 'forward' else t + 1
  while 0 < edge < length or (direction == 'forward' and edge):
    size = edge & -edge
    start = edge - size if direction == 'forward' else edge
    yield size.bit_length(), range(start, min(start + size, length))
    edge += -size if direction == 'forward' else size


def oracle(q, k, v, decay, scale, direction='forward'):
  """y in float64, pair by pair."""
  q, k, v, decay, scale = (np.float64(x) for x in (q, k, v, decay, scale))
  q, k = (np.repeat(x, H // G, axis=2) for x in (q, k))
  y = np.zeros(v.shape)
  for t in range(q.shape[1]):
    for level, positions in blocks(t, q.shape[1], direction):
      for s in positions:
        between = decay[:, s + 1 : t + 1] if s <= t else decay[:, t:s]
        weight = np.exp(between.sum(1)) * scale[:, t, :, level]
        y[:, t] += (weight * (q[:, t] * k[:, s]).sum(-1))[..., None] * v[:, s]
  return y


@functools.cache
def value_and_gradients(direction, chunk):
  attend = functools.partial(log_linear_attention, direction=direction, chunk=chunk)

  @jax.jit
  def both(*arrays):
    y, pull = jax.vjp(attend, *arrays[:-1])
    return y, pull(arrays[-1])

  return both


@pytest.mark.parametrize(
  'direction, chunk', [('forward', 1), ('forward', 4), ('backward', 2), ('forward', 64)]
)
def test_values_and_gradients_match_a_loop(direction, chunk, assert_slopes):
  *arrays, dy = draw(L)
  expected = functools.partial(oracle, direction=direction)
  y, gradients = value_and_gradients(direction, chunk)(*arrays, dy)
  np.testing.assert_allclose(y, expected(*arrays), rtol=0, atol=1e-5)
  assert_slopes(gradients, arrays, lambda *arrays: np.sum(dy * expected(*arrays)), 0)


@pytest.mark.parametrize('length', [1, 2, 3, 8, 9])
def test_every_length_has_its_levels(length):
  *arrays, _ = draw(length)
  assert levels(length) == len(f'{length - 1:b}') + (length > 1)
  for direction in ('forward', 'backward'):
    y = log_linear_attention(*arrays, chunk=2, direction=direction)
    np.testing.assert_allclose(y, oracle(*arrays, direction), rtol=0, atol=1e-5)


def test_equal_scales_are_linear_attention():
  q, k, v, decay, scale, _ = draw(L)
  y = log_linear_attention(q, k, v, decay, np.ones_like(scale), chunk=2)
  np.testing.assert_allclose(y, linear_attention(q, k, v, decay), rtol=0, atol=1e-5)


def test_errors_name_what_is_wrong():
  q, k, v, decay, scale, _ = draw(L)
  for arguments, options, message in (
    ((q, k, v, decay, scale), {'direction': 'both'}, "direction 'both' is unknown; choose forward, backward"),
    ((q, k, v, decay, scale), {'chunk': 3}, 'chunk=3; choose a power of two'),
    ((q, k, v, decay, scale[..., 1:]), {}, r'pass \(2, 13, 4\) and \(2, 13, 4, 5\)'),
  ):
    with pytest.raises(ValueError, match=message):
      log_linear_attention(*arguments, **options)
