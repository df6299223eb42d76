"""Linear recurrences on a GPU against float64: values and gradients of every implementation that runs there.

LRA_SPT_TEST_PLATFORM=cuda pytest -m gpu
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.ops.scan import linear_scan

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _on_a_gpu():
  if jax.default_backend() != 'gpu':
    pytest.skip(f'jax runs on {jax.default_backend()}: needs a GPU and LRA_SPT_TEST_PLATFORM=cuda')


def loop(a, x, g):
  """h, da, dx in double precision (JAX's convention: the bilinear form sum g h, without conjugation)."""
  factors = np.broadcast_to(a, x.shape)
  h, da, dx = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
  state = np.zeros_like(x[:, 0])
  for t in range(x.shape[1]):
    h[:, t] = state = factors[:, t] * state + x[:, t]
  state = np.zeros_like(state)
  for t in reversed(range(x.shape[1])):
    dx[:, t] = state = g[:, t] + state
    da[:, t] = state * (h[:, t - 1] if t else 0)
    state = factors[:, t] * state
  return h, da if a.ndim == 3 else da.sum((0, 1)), dx


@pytest.mark.parametrize('implementation', ['pallas', 'associative', 'chunked', 'sequential'])
@pytest.mark.parametrize('varying', [False, True])
@pytest.mark.parametrize('dtype', [np.float32, np.complex64])
@pytest.mark.parametrize('shape', [(3, 1001, 40), (2, 1024, 128)])
def test_agrees_with_float64(shape, dtype, varying, implementation):
  rng = np.random.default_rng(0)
  wide = np.complex128 if dtype == np.complex64 else np.float64

  def normal(shape):
    return (rng.normal(size=shape) + (1j * rng.normal(size=shape) if wide == np.complex128 else 0)).astype(
      wide
    )

  a = normal(shape if varying else shape[2:])
  a *= rng.uniform(0.9, 0.999, a.shape) / np.abs(a)
  a, x, g = (v.astype(dtype) for v in (a, normal(shape), normal(shape)))
  for reverse in (False, True):

    @jax.jit
    def both(a, x, g, reverse=reverse):
      h, pull = jax.vjp(lambda a, x: linear_scan(a, x, reverse=reverse, implementation=implementation), a, x)
      return h, *pull(g)

    ours = both(*map(jnp.asarray, (a, x, g)))
    turned = [v[:, ::-1] if reverse and v.ndim == 3 else v for v in (a, x, g)]
    for v, expected in zip(ours, loop(*(v.astype(wide) for v in turned)), strict=True):
      expected = expected[:, ::-1] if reverse and expected.ndim == 3 else expected
      np.testing.assert_allclose(v, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
