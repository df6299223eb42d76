"""Fixtures for attention (an oracle, arrays, gradients, a comparison) and bounds of errors at full length.

The oracle is float64 NumPy, written from the definition, with gradients by hand. It uses only the fields of
patterns.
"""

import contextlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.sharding import AxisType

from lra_spt.ops.attention import BlockTable, Causal, Full, Neighbours, Window

# Positions: largest errors of values and of gradients, relative to the largest value.
BOUNDS = {16_384: (2e-5, 1e-4), 65_536: (1e-4, 5e-4)}


def visibility(pattern, queries, keys, lengths=None, starts=None, q_offset=0):
  """bool [queries, keys], or [B, queries, keys] with lengths or starts: True where the query sees the key."""
  q_at, k_at = q_offset + np.arange(queries)[:, None], np.arange(keys)[None]
  match pattern:
    case Full():
      seen = np.ones((queries, keys), bool)
    case Causal():
      seen = k_at <= q_at
    case Window(left, right):
      seen = (-left <= k_at - q_at) & (k_at - q_at <= right)
    case Neighbours(block, back, forward, causal):
      distance = k_at // block - q_at // block
      seen = (-back <= distance) & (distance <= forward) & ((k_at <= q_at) | (not causal))
    case BlockTable(block, table, causal):
      pairs = {(i, j) for i, row in enumerate(table) for j in row}
      block_of = np.broadcast_arrays(q_at // block, k_at // block)
      seen = np.vectorize(lambda i, j: (i, j) in pairs, otypes=[bool])(*block_of)
      seen &= (k_at <= q_at) | (not causal)
  if lengths is not None:
    seen = seen & (k_at < np.asarray(lengths)[:, None, None])
  if starts is not None:
    seen = seen & (k_at >= np.asarray(starts)[:, None, None])
  return seen


@pytest.fixture(scope='session')
def attention_visibility():
  """visibility(pattern, queries, keys, lengths=None, starts=None, q_offset=0) -> bool array."""
  return visibility


@pytest.fixture(scope='session')
def attention_oracle():
  """oracle(pattern, q, k, v, d_out, lengths=None, starts=None, q_offset=0) -> out, dq, dk, dv in float64."""

  def oracle(pattern, q, k, v, d_out, lengths=None, starts=None, q_offset=0):
    q, k, v, d_out = (np.asarray(x, np.float64) for x in (q, k, v, d_out))
    out, dq, dk, dv = np.zeros_like(q), np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    scale = 1 / np.sqrt(q.shape[-1])
    seen = visibility(pattern, q.shape[1], k.shape[1], lengths, starts, q_offset)
    seen_BLM = np.broadcast_to(seen, (q.shape[0], q.shape[1], k.shape[1]))
    for b, h in np.ndindex(q.shape[0], q.shape[2]):
      s_LM = q[b, :, h] @ k[b, :, h].T * scale
      p_LM = np.zeros_like(s_LM)
      for row in np.flatnonzero(seen_BLM[b].any(1)):
        s = s_LM[row, seen_BLM[b, row]]
        e = np.exp(s - s.max())
        p_LM[row, seen_BLM[b, row]] = e / e.sum()
      out[b, :, h] = p_LM @ v[b, :, h]
      dv[b, :, h] = p_LM.T @ d_out[b, :, h]
      dp_LM = d_out[b, :, h] @ v[b, :, h].T
      ds_LM = p_LM * (dp_LM - (p_LM * dp_LM).sum(1, keepdims=True))
      dq[b, :, h], dk[b, :, h] = ds_LM @ k[b, :, h] * scale, ds_LM.T @ q[b, :, h] * scale
    return out, dq, dk, dv

  return oracle


@pytest.fixture(scope='session')
def draw_attention():
  """draw(shape_q, shape_k, dtype=float32, seed=0) -> q, k, v and a gradient of the output."""

  def draw(shape_q, shape_k, dtype=jnp.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in (shape_q, shape_k, shape_k, shape_q)]

  return draw


@pytest.fixture(scope='session')
def value_and_gradients():
  """both(attend, q, k, v, d_out) -> attend(q, k, v), dq, dk, dv, compiled as one program."""

  def both(attend, q, k, v, d_out):
    def run(q, k, v, d_out):
      out, pull = jax.vjp(attend, q, k, v)
      return out, *pull(d_out)

    return jax.jit(run)(q, k, v, d_out)

  return both


@pytest.fixture(scope='session')
def check_attention():
  """check(results, expected, tolerance=2e-5): compares out, dq, dk, dv, relative to the largest entry."""

  def check(results, expected, tolerance=2e-5):
    for name, x, y in zip(('out', 'dq', 'dk', 'dv'), results, expected, strict=True):
      bound = tolerance * max(1.0, np.abs(y).max())
      np.testing.assert_allclose(np.asarray(x, np.float64), y, atol=bound, rtol=0, err_msg=name)

  return check


@pytest.fixture(scope='session')
def interval_patterns():
  """A hypothesis strategy: every kind of interval pattern, with blocks and windows of up to 40 tokens."""
  number = st.integers
  return st.one_of(
    st.sampled_from([Full(), Causal()]),
    st.builds(Window, number(0, 40), number(0, 40)),
    st.builds(Neighbours, number(1, 40), number(0, 2), number(0, 2)),
    st.builds(lambda block, back: Neighbours(block, back, 0, causal=True), number(1, 40), number(0, 2)),
  )


@pytest.fixture
def a_gpu():
  """Makes the context in which newer versions of jax lower for a GPU on a machine without one."""

  def context():
    if jax.__version_info__ < (0, 11):
      return contextlib.nullcontext()
    device = jax.sharding.AbstractDevice('NVIDIA H100', 132, 'gpu')
    mesh = jax.sharding.AbstractMesh((1,), ('x',), (AxisType.Explicit,), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)

  return context


@pytest.fixture
def hold_errors(request):
  """hold(kernel, positions, values, gradients, bounds=None): checks that errors are below the bounds of that
  length, or below tighter ones, and records both for `python -m benchmarks numerics`. kernel: its file in
  lra_spt/ops."""

  def hold(kernel, positions, values, gradients, bounds=None):
    bounds = bounds or BOUNDS[positions]
    errors = {'values': float(values), 'gradients': float(gradients)}
    measured = {'kernel': kernel, 'positions': positions} | errors
    request.node.user_properties.append(('numerics', json.dumps(measured | {'bounds': bounds})))
    assert values < bounds[0]
    assert gradients < bounds[1]

  return hold


@pytest.fixture(scope='session')
def assert_slopes():
  """check(gradients, arrays, loss, seed, step=1e-4, floor=1e-12): compares gradients along random directions
  with differences of loss(*arrays), which computes in float64. An array may be None; then so is its
  gradient."""

  def check(gradients, arrays, loss, seed, step=1e-4, floor=1e-12):
    rng = np.random.default_rng(seed)
    for i, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
      if array is None:
        assert gradient is None
        continue
      assert np.isfinite(gradient).all()
      move = step * rng.normal(size=array.shape)
      ahead, behind = (loss(*arrays[:i], array + sign * move, *arrays[i + 1 :]) for sign in (1, -1))
      size = np.linalg.norm(gradient) * np.linalg.norm(move)
      assert abs(np.sum(np.float64(gradient) * move) - (ahead - behind) / 2) <= 2e-6 * size + floor

  return check


@pytest.fixture(scope='session')
def assert_transforms():
  """check(attend, arrays, dy, gradients): under scan, vmap and checkpoint, row by row, the gradients of
  <attend(*arrays), dy> are these."""

  def check(attend, arrays, dy, gradients):
    def one(*row):
      return jax.checkpoint(attend)(*(x[None] for x in row))[0]

    def loss(*arrays):
      pairs = jax.tree.map(lambda x: x[:, None], (*arrays, dy))
      step = lambda total, row: (total + jnp.sum(jax.vmap(one)(*row[:-1]) * row[-1]), None)  # noqa: E731
      return jax.lax.scan(step, 0.0, pairs)[0]

    for ours, theirs in zip(jax.jit(jax.grad(loss, range(len(arrays))))(*arrays), gradients, strict=True):
      np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())

  return check
