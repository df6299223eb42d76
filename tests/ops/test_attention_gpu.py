"""Blockwise attention on a GPU against float64: values and gradients.

  LRA_SPT_TEST_PLATFORM=cuda pytest -m gpu

Other tests compare the dense reference with an oracle written from the definition; here it gives the float64
numbers. Not run on a GPU yet.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.ops.attention import Causal, Full, attention

pytestmark = pytest.mark.gpu
# Dtype, precision of products, largest error relative to max(1, largest value). 'default' may be TF32, which
# keeps 10 bits as float16 does; bfloat16 keeps 7.
PRECISIONS = [('float32', 'highest', 5e-5), ('float32', 'default', 5e-3), ('bfloat16', 'default', 2e-2)]


@pytest.fixture(autouse=True)
def _on_a_gpu():
  if jax.default_backend() != 'gpu':
    pytest.skip(f'jax runs on {jax.default_backend()}: needs a GPU and LRA_SPT_TEST_PLATFORM=cuda')


def draw(shape_q, shape_k, dtype):
  """q, k, v and a gradient of the output; values that bfloat16 holds exactly."""
  rng = np.random.default_rng(0)
  arrays = (rng.standard_normal(shape) for shape in (shape_q, shape_k, shape_k, shape_q))
  return [jnp.asarray(x, jnp.bfloat16).astype(dtype) for x in arrays]


def value_and_gradients(attend, q, k, v, d_out):
  def both(q, k, v, d_out):
    out, pull = jax.vjp(attend, q, k, v)
    return out, *pull(d_out)

  return jax.jit(both)(q, k, v, d_out)


def attend_with(pattern, lengths, implementation):
  lengths_B = None if lengths is None else jnp.asarray(lengths, jnp.int32)
  return functools.partial(attention, pattern=pattern, kv_lengths_B=lengths_B, implementation=implementation)


@functools.cache
def expected(pattern, lengths, shapes):
  with jax.enable_x64(True):
    dense = attend_with(pattern, lengths, 'reference')
    return [np.asarray(x) for x in value_and_gradients(dense, *draw(*shapes, jnp.float64))]


@pytest.mark.parametrize('pattern', [Full(), Causal()])
@pytest.mark.parametrize('lengths', [None, (0, 250)])
@pytest.mark.parametrize('length, keys, width', [(300, 300, 16), (70, 1100, 64)])
@pytest.mark.parametrize('dtype, precision, tolerance', PRECISIONS)
def test_agrees_with_float64(dtype, precision, tolerance, pattern, lengths, length, keys, width):
  shapes = (2, length, 2, width), (2, keys, 2, width)
  with jax.default_matmul_precision(precision):
    blockwise = attend_with(pattern, lengths, 'blockwise')
    results = value_and_gradients(blockwise, *draw(*shapes, dtype))
  names = ('out', 'dq', 'dk', 'dv')
  for name, x, y in zip(names, results, expected(pattern, lengths, shapes), strict=True):
    assert y.dtype == np.float64
    bound = tolerance * max(1.0, np.abs(y).max())
    np.testing.assert_allclose(np.asarray(x, np.float64), y, atol=bound, rtol=0, err_msg=name)


def test_memory_is_linear_in_the_length():
  """Forward and backward at length 16,384: the scores alone would take 2 GiB in bfloat16."""
  arrays = draw((1, 16384, 4, 32), (1, 16384, 4, 32), 'bfloat16')
  attend = functools.partial(attention, pattern=Full())
  compiled = jax.jit(functools.partial(value_and_gradients, attend)).lower(*arrays).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 2**28
  assert all(bool(jnp.isfinite(x.astype(jnp.float32)).all()) for x in compiled(*arrays))
