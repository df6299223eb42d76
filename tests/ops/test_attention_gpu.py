"""Attention on a GPU against float64: values and gradients of every implementation that runs there.

  LRA_SPT_TEST_PLATFORM=cuda pytest -m gpu

Other tests compare the dense reference with an oracle written from the definition; here the reference
computes the float64 numbers.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.errors import ConfigError
from lra_spt.ops.attention import BlockTable, Causal, Full, Neighbours, Window, attention
from lra_spt.ops.attention.patterns import dense_mask

pytestmark = pytest.mark.gpu
# Implementation, dtype, precision of products, largest error relative to max(1, largest value). 'default' may
# be TF32, which has 10 bits, as float16 has; bfloat16 has 7.
KINDS = [
  ('blockwise', 'float32', 'highest', 5e-5),
  ('blockwise', 'bfloat16', 'default', 2e-2),
  ('triton', 'float32', 'highest', 5e-5),
  ('triton', 'float32', 'default', 5e-3),
  ('triton', 'bfloat16', 'default', 2e-2),
  ('triton', 'float16', 'default', 5e-3),
  ('tokamax', 'float32', 'highest', 5e-5),
  ('tokamax', 'float32', 'default', 5e-3),
  ('tokamax', 'bfloat16', 'default', 2e-2),
  ('cudnn', 'bfloat16', 'default', 2e-2),
  ('mosaic', 'float32', 'default', 5e-3),
  ('mosaic', 'bfloat16', 'default', 2e-2),
  ('mosaic', 'float16', 'default', 5e-3),
]
VALUES = {'float32': 1e-3, 'bfloat16': 5e-3, 'float16': 1e-3}  # of mosaic, which has no gradients of its own
STAR = BlockTable(32, ((0, 1, 2, 3, 4, 5), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5)))
TABLE = BlockTable(64, ((0, 1, 2, 3), (1,), (), (0, 3)), causal=True)
# Pattern, queries, keys, head dimension, lengths, starts, offset of the queries.
CALLS = [
  (Full(), 300, 300, 16, None, None, 0),
  (Full(), 70, 1100, 64, (0, 1050), (0, 1000), 0),
  (Causal(), 300, 300, 32, (300, 11), None, 0),
  (Causal(), 70, 300, 24, None, (0, 60), -20),
  (Neighbours(64), 256, 256, 32, None, None, 0),
  (Neighbours(64), 300, 300, 128, (300, 70), None, 0),
  (Neighbours(40, 2, 0, causal=True), 300, 300, 8, (299, 41), None, 0),
  (Neighbours(32, 1, 1), 64, 300, 16, None, None, 100),
  (Window(100, 30), 400, 400, 64, (400, 390), (0, 3), 0),
  (STAR, 192, 192, 32, (192, 50), None, 0),
  (TABLE, 250, 230, 64, (230, 50), (0, 3), 0),
]
CUDNN_TAKES = CALLS[:2] + CALLS[4:6]


@pytest.fixture(autouse=True)
def _on_a_gpu():
  if jax.default_backend() != 'gpu':
    pytest.skip(f'jax runs on {jax.default_backend()}: needs a GPU and LRA_SPT_TEST_PLATFORM=cuda')
  with jax.numpy_rank_promotion('allow'), jax.numpy_dtype_promotion('standard'):  # tokamax promotes both
    yield


def draw(shape_q, shape_k, dtype):
  """q, k, v and a gradient of the output; values that bfloat16 holds exactly."""
  rng = np.random.default_rng(0)
  arrays = (rng.standard_normal(shape) for shape in (shape_q, shape_k, shape_k, shape_q))
  return [jnp.asarray(x, jnp.bfloat16).astype(dtype) for x in arrays]


def both(call, implementation, dtype):
  """The output and gradients of a call."""
  pattern, queries, keys, width, lengths, starts, q_offset = call
  edges = [None if x is None else jnp.asarray(x, jnp.int32) for x in (lengths, starts)]
  attend = functools.partial(
    attention,
    pattern=pattern,
    kv_lengths_B=edges[0],
    kv_starts_B=edges[1],
    q_offset=q_offset,
    implementation=implementation,
  )
  return value_and_gradients(attend, *draw((2, queries, 2, width), (2, keys, 2, width), dtype))


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(attend, q, k, v, d_out):
  out, pull = jax.vjp(attend, q, k, v)
  return out, *pull(d_out)


@functools.cache
def expected(call):
  with jax.enable_x64(True):
    return [np.asarray(x) for x in both(call, 'reference', jnp.float64)]


def check(results, call, tolerance):
  for name, x, y in zip(('out', 'dq', 'dk', 'dv'), results, expected(call), strict=False):
    assert y.dtype == np.float64
    bound = tolerance * max(1.0, np.abs(y).max())
    np.testing.assert_allclose(np.asarray(x, np.float64), y, atol=bound, rtol=0, err_msg=name)


@pytest.mark.parametrize('call', CALLS, ids=str)
@pytest.mark.parametrize('implementation, dtype, precision, tolerance', KINDS)
def test_agrees_with_float64(implementation, dtype, precision, tolerance, call):
  try:
    with jax.default_matmul_precision(precision):
      results = both(call, implementation, dtype)
  except ConfigError as error:  # not on this GPU, not with this jax, or without its package
    if (
      implementation not in ('tokamax', 'cudnn', 'mosaic')
      or call in CUDNN_TAKES
      and implementation == 'cudnn'
    ):
      raise
    pytest.skip(str(error))
  check(results, call, tolerance)
  if implementation == 'mosaic':
    check(results[:1], call, VALUES[dtype])


@pytest.mark.parametrize('call', CALLS, ids=str)
def test_the_default_agrees_with_float64(call):
  check(both(call, None, 'bfloat16'), call, 2e-2)


PATTERNS = Full(), Causal(), Neighbours(4096)
LONG = [(name, pattern) for name in ('triton', 'tokamax', 'cudnn', 'mosaic', None) for pattern in PATTERNS]
LONG += [(name, Neighbours(4096, 1, 0, causal=True)) for name in ('triton', 'tokamax', 'mosaic', None)]


@pytest.mark.parametrize('implementation, pattern', LONG)
def test_long_rows(implementation, pattern):
  """At the length of PathX memory is linear, and results agree with independent code."""
  arrays = draw((1, 16384, 2, 32), (1, 16384, 2, 32), 'bfloat16')
  attend = functools.partial(attention, pattern=pattern, implementation=implementation)
  try:
    compiled = value_and_gradients.lower(attend, *arrays).compile()
  except ConfigError as error:
    if implementation not in ('tokamax', 'mosaic'):
      raise
    pytest.skip(str(error))
  dense_scores_bytes = 2 * 16384**2 * 2
  assert compiled.memory_analysis().temp_size_in_bytes < dense_scores_bytes / 8
  others = value_and_gradients(functools.partial(attend, implementation='blockwise'), *arrays)
  for x, y in zip(compiled(*arrays), others, strict=True):
    y = np.asarray(y, np.float32)
    np.testing.assert_allclose(np.asarray(x, np.float32), y, atol=2e-2 * max(1, np.abs(y).max()), rtol=0)


@pytest.mark.parametrize('implementation', ['triton', 'mosaic'])
@pytest.mark.parametrize(
  'pattern', [Causal(), Neighbours(128), BlockTable(128, ((0, 2), (1, 3), (0, 1), (0, 1, 2, 3)))]
)
def test_hidden_blocks_are_not_read(implementation, pattern):
  """NaN in the last 128 keys reaches only the queries that see one of them."""
  q, k, v, d_out = draw((1, 512, 1, 32), (1, 512, 1, 32), 'bfloat16')
  k, v = (x.at[:, 384:].set(jnp.nan) for x in (k, v))
  attend = functools.partial(attention, pattern=pattern, implementation=implementation)
  try:
    out, dq, _, _ = value_and_gradients(attend, q, k, v, d_out)
  except ConfigError as error:
    pytest.skip(str(error))
  seen = np.asarray(dense_mask(pattern, 512, 512)).reshape(4, 128, 4, 128).any((1, 3))[:, 3]
  for x in (out, dq):
    finite = np.isfinite(np.asarray(x, np.float32)).reshape(4, -1)
    np.testing.assert_array_equal(finite.all(1), ~seen)
