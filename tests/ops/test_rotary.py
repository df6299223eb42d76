"""Rotary positions: the defining property, and agreement with complex multiplication in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_spt.ops.rotary import rotary

pytestmark = pytest.mark.usefixtures('optimized')


def turned_in_float64(x_BLHK, offset):
  """x read as complex numbers (2m, 2m + 1), times e^{i position theta_m}."""
  x = np.asarray(x_BLHK, np.float64)
  _, length, _, width = x.shape
  theta_M = 10000.0 ** (-2.0 * np.arange(width // 2) / width)
  phase_LM = np.exp(1j * (offset + np.arange(length))[:, None] * theta_M[None, :])
  z_BLHM = (x[..., 0::2] + 1j * x[..., 1::2]) * phase_LM[None, :, None, :]
  out = np.empty_like(x)
  out[..., 0::2], out[..., 1::2] = z_BLHM.real, z_BLHM.imag
  return out


@pytest.mark.parametrize('traced', [False, True])
@pytest.mark.parametrize('offset', [0, 1, 2047, 2048, 65_530, 1_000_003])
def test_agrees_with_complex_multiplication(offset, traced):
  x = np.random.default_rng(0).normal(size=(2, 7, 3, 10)).astype(np.float32)
  if traced:
    turned, tolerance = jax.jit(lambda x, at: rotary(x, offset=at))(x, offset), 2e-6
  else:
    turned, tolerance = rotary(jnp.asarray(x), offset=offset), 8e-7
  np.testing.assert_allclose(turned, turned_in_float64(x, offset), atol=tolerance)


def test_phases_hold_at_the_far_end():
  x = np.ones((1, 65_536, 1, 16), np.float32)
  np.testing.assert_allclose(rotary(jnp.asarray(x))[:, -8:], turned_in_float64(x[:, -8:], 65_528), atol=5e-7)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 3000), st.integers(-50, 50), st.integers(0, 60_000))
def test_products_depend_on_distance_alone(first, distance, shift):
  q, k = (jnp.asarray(x, jnp.float32) for x in np.random.default_rng(first).normal(size=(2, 1, 1, 1, 16)))
  second = max(first + distance, 0)

  def product(at_q, at_k):
    return float(jnp.sum(rotary(q, offset=at_q) * rotary(k, offset=at_k)))

  assert product(first, second) == pytest.approx(product(first + shift, second + shift), abs=2e-5)


def test_keeps_dtype_length_and_gradient_norm():
  x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 5, 2, 8)), jnp.bfloat16)
  assert rotary(x).dtype == jnp.bfloat16
  x = x.astype(jnp.float32)
  np.testing.assert_allclose(jnp.linalg.norm(rotary(x), axis=-1), jnp.linalg.norm(x, axis=-1), rtol=1e-5)
  # A rotation is orthogonal: pulling back its own output gives the input.
  out, pull = jax.vjp(rotary, x)
  np.testing.assert_allclose(pull(out)[0], x, atol=1e-5)


def test_odd_head_dimension_is_refused():
  with pytest.raises(ValueError, match='head dimension is 5; make it even'):
    rotary(jnp.zeros((1, 2, 1, 5)))


@pytest.mark.parametrize('offset', [0, 5])
def test_some_dimensions_turn_as_if_they_were_all(offset):
  x = np.random.default_rng(0).normal(size=(2, 7, 3, 10)).astype(np.float32)
  turned = np.asarray(rotary(jnp.asarray(x), offset=offset, turned=4))
  np.testing.assert_allclose(turned[..., :4], turned_in_float64(x[..., :4], offset), atol=8e-7)
  np.testing.assert_array_equal(turned[..., 4:], x[..., 4:])
  with pytest.raises(ValueError, match='rotary turns 12 dimensions, but the head dimension is 10'):
    rotary(jnp.asarray(x), turned=12)
