"""Attention in buckets: the published head, a float64 reference by sets of positions, gradients, errors."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.ops.lsh_attention import lsh_attention, lsh_buckets

GOLDEN = pathlib.Path(__file__).parent.parent / 'golden' / 'lra_reformer_head.npz'


def test_head_is_the_published_one():
  """Two rounds of 4 buckets and 8 chunks of 10, with and without keys of norm 1."""
  with np.load(GOLDEN, allow_pickle=False) as file:
    values = dict(file)
  q, v = (jnp.asarray(values[name])[None, :, None] for name in ('query', 'value'))
  buckets = lsh_buckets(q, jnp.asarray(values['rotations'])[None])
  offset = np.int32([0, 4])[None, :, None, None]
  np.testing.assert_array_equal((buckets + offset).reshape(-1), values['buckets'])
  unit = q / jnp.sqrt(jnp.mean(q**2, axis=-1, keepdims=True) + np.float32(1e-6))
  for k, name in ((q, 'out'), (unit, 'out_length_norm')):
    y = lsh_attention(q, k, v, buckets, chunk=10, scale=8**0.5, ring=True)
    np.testing.assert_allclose(y[0, :, 0], values[name], rtol=0, atol=2e-6 * np.abs(values[name]).max())


def visible(buckets_RL, chunk, causal, valid):
  """bool [R, L, L]: True where a round shows the key, position by position."""
  R, L = buckets_RL.shape
  seen = np.zeros((R, L, L), bool)
  for r in range(R):
    order = sorted(range(valid), key=lambda t: (buckets_RL[r, t], t))
    for place, t in enumerate(order):
      members = [s for s in range(valid) if buckets_RL[r, s] == buckets_RL[r, t]]
      if causal:
        seen[r, t, [s for s in members if s <= t][-chunk - 1 :]] = True
      else:
        first = (place // chunk - 1) * chunk
        near = order[max(first, 0) : first + 2 * chunk]
        seen[r, t, [s for s in members if s in near]] = True
  return seen


def dense(q, k, v, buckets, d_y, *, chunk, scale, causal, lengths):
  """y, dq, dk, dv [B, L, H, X] in float64, by hand."""
  q, k, v, d_y = (np.float64(x) for x in (q, k, v, d_y))
  results = [np.zeros_like(x) for x in (v, q, k, v)]
  for b, h in np.ndindex(q.shape[0], q.shape[2]):
    at = b, slice(None), h
    buckets_RL, valid = np.asarray(buckets)[b, :, :, h], lengths[b]
    seen = visible(buckets_RL, chunk, causal, valid)
    weight = seen.any(0).astype(np.float64)  # a key counts once, whatever the number of rounds that show it
    others = weight * (1 - np.eye(len(weight)))
    alone = (others.sum(1) == 0) & (np.arange(len(weight)) < valid)
    weight = np.where(alone[:, None], np.eye(len(weight)), others)
    e = weight * np.exp(scale * q[at] @ k[at].T)
    total = e.sum(1, keepdims=True)
    p = e / np.where(total, total, 1)
    ds = p * (d_y[at] @ v[at].T - (p @ v[at] * d_y[at]).sum(1, keepdims=True)) * scale
    for result, x in zip(results, (p @ v[at], ds @ k[at], ds.T @ q[at], p.T @ d_y[at]), strict=True):
      result[at] = x
  return results


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('rounds', [1, 3])
def test_agrees_with_float64(causal, rounds):
  """The second row is shorter, the third is empty, and some positions are alone in a bucket."""
  rng = np.random.default_rng(rounds)
  q, k, v, d_y = (jnp.asarray(rng.normal(size=(3, 24, 2, n)), jnp.float32) for n in (4, 4, 3, 3))
  buckets = jnp.asarray(np.minimum(rng.geometric(0.3, size=(3, rounds, 24, 2)), 7), jnp.int32)
  lengths = np.int32([24, 13, 0])
  call = {'chunk': 4, 'scale': 0.7, 'causal': causal}

  @jax.jit
  def run(q, k, v, d_y):
    attend = functools.partial(lsh_attention, lengths_B=jnp.asarray(lengths), **call)
    y, pull = jax.vjp(lambda q, k, v: attend(q, k, v, buckets), q, k, v)
    return y, *pull(d_y)

  for actual, expected in zip(
    run(q, k, v, d_y), dense(q, k, v, buckets, d_y, lengths=lengths, **call), strict=True
  ):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_gradients_are_gathers():
  """Neither pass has a scatter."""
  q = jnp.ones((1, 24, 2, 4))
  buckets = jnp.zeros((1, 2, 24, 2), jnp.int32)
  loss = lambda q: jnp.sum(lsh_attention(q, q, q, buckets, chunk=4, scale=1.0) ** 2)  # noqa: E731
  jaxpr = str(jax.make_jaxpr(jax.grad(loss))(q))
  assert 'gather' in jaxpr
  assert 'scatter' not in jaxpr


def test_memory_is_linear_in_the_length():
  def temporary_bytes(length):
    def loss(q, rotations):
      buckets = lsh_buckets(q, rotations)
      return jnp.sum(lsh_attention(q, q, q, buckets, chunk=16, scale=1.0) ** 2)

    shapes = (1, length, 2, 8), (1, 8, 1, 16)
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(jax.grad(loss)).lower(*arrays).compile().memory_analysis().temp_size_in_bytes

  assert temporary_bytes(8192) <= 2.2 * temporary_bytes(4096)


def test_what_does_not_fit_is_refused():
  q, buckets = jnp.ones((1, 23, 1, 4)), jnp.zeros((1, 1, 23, 1), jnp.int32)
  with pytest.raises(ValueError, match='23 positions in chunks of 5, which does not divide them; pad them'):
    lsh_attention(q, q, q, buckets, chunk=5, scale=1.0)
  with pytest.raises(ValueError, match='ring=True supports neither'):
    lsh_attention(q, q, q, buckets, chunk=23, scale=1.0, causal=True, ring=True)
