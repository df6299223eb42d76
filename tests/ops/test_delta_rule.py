"""The delta rule in chunks: values and gradients against a float64 loop, published numbers, repeated
keys, inverses, half precision, transformations, steps, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lra_spt.ops.delta_rule import delta_rule, delta_rule_step, unit_inverse

L, G, N, H, P = 13, 2, 3, 4, 5
# Decays, factors per position, a beta, an erase vector: Gated DeltaNet, DeltaNet, DeltaProduct, Kimi Delta
# Attention, Gated DeltaNet-2, RWKV-7.
GATED, PLAIN, PRODUCT = ('head', 1, True, False), ('none', 1, True, False), ('head', 3, True, False)
KIMI, SEPARATE, RWKV = ('channel', 1, True, False), ('channel', 1, False, True), ('channel', 2, False, True)
CASES = [
  ('forward', 1, GATED),
  ('forward', 4, GATED),
  ('forward', 64, GATED),
  ('backward', 4, GATED),
  ('forward', 8, PLAIN),
  ('backward', 8, PRODUCT),
  ('forward', 4, KIMI),
  ('backward', 16, SEPARATE),
  ('forward', 8, RWKV),
]


def oracle(q, k, v, log_decay, beta, erase, direction='forward'):
  """y in float64, with one state per head, factor by factor."""
  q, k, v = (np.float64(x) for x in (q, k, v))
  (B, length), (F, heads) = q.shape[:2], v.shape[1:3]
  g = np.zeros((B, length, heads)) if log_decay is None else np.float64(log_decay)
  beta = np.ones((B, F, heads)) if beta is None else np.float64(beta)
  erase = k if erase is None else np.float64(erase)
  q, k, erase = (np.repeat(x, heads // x.shape[2], axis=2) for x in (q, k, erase))
  y, state = np.zeros((B, length, *v.shape[2:])), np.zeros((B, *k.shape[2:], v.shape[3]))
  for t in range(length)[:: 1 if direction == 'forward' else -1]:
    state = np.exp(g[:, t].reshape(B, heads, -1, 1)) * state
    for f in range(t * F // length, (t + 1) * F // length):
      new = v[:, f] - np.einsum('bhn,bhnp->bhp', erase[:, f], state)
      state = state + k[:, f, ..., None] * (beta[:, f, :, None] * new)[:, :, None]
    y[:, t] = np.einsum('bhn,bhnp->bhp', q[:, t], state)
  return y


def draw(seed, largest=1.0, length=L, beta=2.0, kind=GATED):
  """q and k of norm 1, v, log decay, beta, erase vector, cotangent of y. Decays are up to `largest`, some 0
  and inf."""
  decays, factors, has_beta, has_erase = kind
  rng, groups = np.random.default_rng(seed), H if decays == 'channel' else G
  shapes = (length, groups, N), (factors * length, groups, N), (factors * length, H, P), (length, H, P)
  q, k, v, dy = (rng.normal(size=(2, *shape)).astype(np.float32) for shape in shapes)
  k /= np.linalg.norm(k, axis=-1, keepdims=True)
  g = np.float32(-largest * rng.uniform(size=(2, length, H, N) if decays == 'channel' else (2, length, H)))
  g = np.where(rng.uniform(size=g.shape) < 0.1, np.float32(0), g)
  g = np.where(rng.uniform(size=g.shape) < 0.03, np.float32(-np.inf), g)
  beta = np.float32(beta * rng.uniform(size=v.shape[:3])) if has_beta else None
  erase = np.float32(rng.uniform(size=k.shape)) * k if has_erase else None
  return q, k, v, None if decays == 'none' else g, beta, erase, dy


@functools.cache
def value_and_gradients(direction, chunk):
  attend = functools.partial(delta_rule, direction=direction, chunk=chunk)

  @jax.jit
  def both(*arrays):
    y, pull = jax.vjp(attend, *arrays[:-1])
    return y, pull(arrays[-1])

  return both


@pytest.mark.parametrize('direction, chunk, kind', CASES)
def test_values_and_gradients_match_a_loop(direction, chunk, kind, assert_slopes):

  @settings(max_examples=5, deadline=None)
  @given(seed=st.integers(0, 2**16), largest=st.sampled_from([1e-3, 1.0, 30.0, 1e4]))
  @example(seed=0, largest=0.0)
  def check(seed, largest):
    *arrays, dy = draw(seed, largest, kind=kind)
    y, gradients = value_and_gradients(direction, chunk)(*arrays, dy)
    expected = oracle(*arrays, direction)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    assert_slopes(gradients, arrays, lambda *arrays: np.sum(dy * oracle(*arrays, direction)), seed)

  check()


@pytest.mark.parametrize('length', [1, 8])
def test_lengths_of_whole_chunks(length):
  *arrays, _ = draw(1, length=length)
  expected = oracle(*arrays)
  y = jax.jit(functools.partial(delta_rule, chunk=4))(*arrays)
  np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@settings(max_examples=6, deadline=None)
@given(
  length=st.integers(1, 40),
  chunk=st.sampled_from([1, 2, 8, 32, None]),
  kind=st.sampled_from([PLAIN, PRODUCT, SEPARATE, RWKV]),
  direction=st.sampled_from(['forward', 'backward']),
)
def test_any_length_and_chunk(length, chunk, kind, direction):
  *arrays, _ = draw(length, length=length, kind=kind)
  expected = oracle(*arrays, direction)
  y = jax.jit(functools.partial(delta_rule, chunk=chunk, direction=direction))(*arrays)
  np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize('chunk', [4, 16])
def test_published_figures(chunk, golden):
  values = golden('gated_delta_rule')
  q, k, v, g, beta, do = (values[key] for key in ('q', 'k', 'v', 'g', 'beta', 'do'))
  scale = np.float32(q.shape[-1] ** -0.5)
  y, gradients = value_and_gradients('forward', chunk)(scale * q, k, v, g, beta, None, do)
  np.testing.assert_allclose(y, values['o'], rtol=0, atol=1e-6 * np.abs(values['o']).max())
  for name, actual in zip(('dq', 'dk', 'dv', 'dg', 'dbeta'), gradients[:-1], strict=True):
    actual = scale * actual if name == 'dq' else actual
    np.testing.assert_allclose(actual, values[name], rtol=0, atol=2e-6 * np.abs(values[name]).max())


@pytest.mark.parametrize('beta, tolerance', [(1.0, 3e-6), (1.9, 3e-5)])
def test_one_key_at_every_position_keeps_precision(beta, tolerance):
  """Equal keys without decay make the system that differs most from the identity."""
  q, k, v, *_ = draw(2, length=512)
  key = np.broadcast_to(k[:, :1], k.shape)
  arrays = (q, key, v, np.zeros(v.shape[:3], 'f'), np.full(v.shape[:3], beta, 'f'), None)
  expected = oracle(*arrays)
  y = jax.jit(functools.partial(delta_rule, chunk=64))(*arrays)
  np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize('size', [1, 2, 32])
def test_unit_inverse(size):
  lower = np.tril(np.random.default_rng(size).normal(size=(2, 3, size, size)), -1).astype(np.float32) / 4
  expected = np.linalg.inv(np.eye(size) + np.float64(lower))
  actual = jax.jit(unit_inverse)(lower)
  np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize('kind', [GATED, RWKV])
def test_half_precision_keeps_decays_states_and_systems_whole(kind):
  *arrays, erase, _ = draw(2, kind=kind)
  half = [jnp.asarray(x, jnp.bfloat16) for x in arrays[:3]]
  erase = None if erase is None else jnp.asarray(erase, jnp.bfloat16)
  y = jax.jit(functools.partial(delta_rule, chunk=4))(*half, *arrays[3:], erase)
  erase = None if erase is None else np.float32(erase)
  expected = oracle(*(np.float32(x) for x in half), *arrays[3:], erase)
  assert y.dtype == jnp.float32
  assert np.abs(y - expected).max() < 2e-2 * np.abs(expected).max()


@pytest.mark.parametrize('kind', [GATED, KIMI])
def test_transformations_change_nothing(kind, assert_transforms):
  *arrays, erase, dy = draw(3, kind=kind)
  _, (*expected, _) = value_and_gradients('forward', 4)(*arrays, erase, dy)
  assert_transforms(functools.partial(delta_rule, chunk=4), arrays, dy, expected)


@pytest.mark.parametrize('kind', [GATED, RWKV])
def test_backward_pass_keeps_the_arguments_only(kind):
  """It saves the arguments and masks, but neither the weights within chunks nor the states between them."""
  *arrays, _ = draw(4, length=256, kind=kind)
  attend = functools.partial(delta_rule, chunk=8)
  saved = jax.eval_shape(lambda *arrays: jax.tree.leaves(jax.vjp(attend, *arrays)[1]), *arrays)
  assert 0 < sum(leaf.size for leaf in saved) <= 1.1 * sum(x.size for x in arrays if x is not None)


@pytest.mark.parametrize('kind', [GATED, KIMI, PRODUCT, RWKV])
def test_one_position_at_a_time_gives_the_same(kind):
  *arrays, _ = draw(5, kind=kind)
  step = jax.jit(delta_rule_step)
  state, of_positions = np.zeros((2, H, N, P), 'f'), []
  for t in range(L):
    rows = (x if x is None else x.reshape(2, L, -1, *x.shape[2:])[:, t] for x in arrays)
    state, y_BHP = step(state, *rows)
    of_positions.append(y_BHP)
  expected = oracle(*arrays)
  np.testing.assert_allclose(np.stack(of_positions, 1), expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
  'changed, message',
  [
    ({'direction': 'both'}, "direction 'both' is unknown; choose forward, backward"),
    ({'chunk': 6}, 'got chunk=6; choose a power of two'),
    ({'k_BFGN': np.zeros((2, L, G, N + 1), 'f')}, r'got q, k, .*\(2, 13, 2, 4\).*; pass \[B, L, G, N\]'),
    ({'beta_BFH': np.zeros((2, L, G), 'f')}, r'got q, k, v, log decays, beta .*\(2, 13, 2\), None; pass'),
    ({'log_decay': np.zeros((2, L, H, N), 'f')}, r'.*\(2, 13, 4, 3\).*or, if G = H, \[B, L, H, N\]'),
    ({'q_BLGN': np.zeros((2, 5, G, N), 'f')}, 'got .*where L divides F'),
  ],
)
def test_errors_name_what_is_wrong(changed, message):
  *arrays, _ = draw(0)
  names = ('q_BLGN', 'k_BFGN', 'v_BFHP', 'log_decay', 'beta_BFH', 'erase_BFGN')
  with pytest.raises(ValueError, match=f'delta_rule {message}'):
    delta_rule(**dict(zip(names, arrays, strict=True)) | changed)
