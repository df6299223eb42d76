"""Attention with log decays: values and gradients in tiles, long sums, queries of a later part, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_spt.ops.attention import BlockTable, Causal, Full, HeadTables, attention
from lra_spt.ops.attention.blockwise import blockwise_attention
from lra_spt.ops.attention.tiles import Tiles


def draw(batch, length, queries, heads, directions, mean, seed=0):
  """q, k, v, the log decays, and a cotangent."""
  rng = np.random.default_rng(seed)
  shapes = [(batch, queries, heads, 4), *[(batch, length, heads, 4)] * 2, (batch, queries, heads, 4)]
  q, k, v, d_out = (np.float32(rng.normal(size=shape)) for shape in shapes)
  decay = -mean * rng.exponential(size=(batch, length, heads, directions))
  return q, k, v, np.float32(decay), d_out


def dense(q, k, v, decay, d_out, lengths, q_offset=0):
  """out, dq, dk, dv and the gradient of the log decays, in float64, pair by pair."""
  q, k, v, decay, d_out = (np.float64(x) for x in (q, k, v, decay, d_out))
  out, *gradients = (np.zeros_like(x) for x in (q, q, k, v, decay))
  dq, dk, dv, d_decay = gradients
  for b, h, i in np.ndindex(q.shape[0], q.shape[2], q.shape[1]):
    t = i + q_offset
    seen = range(min(t + 1, lengths[b]) if decay.shape[3] == 1 else lengths[b])
    if not seen:
      continue
    between = [(slice(s + 1, t + 1), 0) if s <= t else (slice(t, s), 1) for s in seen]
    scores = np.array([decay[b, r, h, x].sum() for r, x in between]) + k[b, seen, h] @ q[b, i, h] / 2
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    out[b, i, h] = weights @ v[b, seen, h]
    d_scores = weights * ((v[b, seen, h] - out[b, i, h]) @ d_out[b, i, h])
    dq[b, i, h] = d_scores @ k[b, seen, h] / 2
    dk[b, seen, h] += np.outer(d_scores, q[b, i, h]) / 2
    dv[b, seen, h] += np.outer(weights, d_out[b, i, h])
    for (r, x), d_score in zip(between, d_scores, strict=True):
      d_decay[b, r, h, x] += d_score
  return out, *gradients


def close(actual, expected, tolerance=1e-5):
  for a, b in zip(actual, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(np.abs(b).max(), 1))


def run(attend, q, k, v, decay, d_out):
  def call(q, k, v, decay):
    return attend(q, k, v, log_decay_BMHX=decay)

  out, pull = jax.vjp(call, *(jnp.asarray(x) for x in (q, k, v, decay)))
  return out, *pull(jnp.asarray(d_out))


@given(st.data())
@settings(max_examples=5, deadline=None)
def test_tiles_agree_with_float64(data):
  number = functools.partial(st.integers, 1)
  length, directions = data.draw(number(40)), data.draw(number(2))
  queries = data.draw(number(length))
  lengths = data.draw(st.lists(st.integers(0, length), min_size=2, max_size=2))
  tiles = data.draw(st.builds(Tiles, number(48), number(48), st.booleans()))
  arrays = draw(2, length, queries, 1, directions, 1.0, seed=length)
  call = {'kv_lengths_B': jnp.int32(lengths), 'q_offset': length - queries, 'tiles': tiles}
  attend = functools.partial(blockwise_attention, pattern=Full() if directions == 2 else Causal(), **call)
  close(run(attend, *arrays), dense(*arrays, lengths, length - queries))


@pytest.mark.parametrize('implementation', ['reference', None])
@pytest.mark.parametrize('directions', [1, 2])
def test_agrees_with_float64(implementation, directions):
  arrays = draw(2, 19, 19, 2, directions, 0.3)
  pattern = Full() if directions == 2 else Causal()
  call = {'pattern': pattern, 'kv_lengths_B': jnp.int32([19, 7]), 'implementation': implementation}
  close(run(functools.partial(attention, **call), *arrays), dense(*arrays, [19, 7]))


def test_sums_over_thousands_of_positions_do_not_lose_digits():
  """They reach -20,000, where neighbours in float32 are 2e-3 apart."""
  length, queries = 4096, 2
  arrays = draw(1, length, queries, 1, 1, 5.0)
  attend = functools.partial(attention, pattern=Causal(), q_offset=length - queries)
  close(run(attend, *arrays), dense(*arrays, [length], length - queries), 3e-6)


def test_heads_with_tables_have_their_decays():
  arrays = draw(1, 8, 8, 2, 1, 0.5)
  tables = HeadTables((BlockTable(4, ((0,), (0, 1)), causal=True),) * 2)
  close(run(functools.partial(attention, pattern=tables), *arrays), dense(*arrays, [8]))


def test_what_does_not_fit_is_refused():
  q, k, v, decay, _ = draw(1, 6, 6, 1, 1, 1.0)
  with pytest.raises(
    ValueError, match=r'log_decay_BMHX is float32 of shape \(1, 6, 1\); pass float32 of shape'
  ):
    attention(q, k, v, pattern=Causal(), log_decay_BMHX=decay[..., 0])
  with pytest.raises(ValueError, match='got 6 queries from position 1 on and 6 keys; decays need queries at'):
    attention(q, k, v, pattern=Causal(), log_decay_BMHX=decay, q_offset=1)
  with pytest.raises(
    ValueError, match="'triton' takes no log decays; choose blockwise or reference, or None"
  ):
    attention(q, k, v, pattern=Causal(), log_decay_BMHX=decay, implementation='triton')
