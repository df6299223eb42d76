"""Sums of exponentials against float64: values, gradients, exact phases, memory."""

import decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_spt.ops import vandermonde as module
from lra_spt.ops.vandermonde import vandermonde

pytestmark = pytest.mark.usefixtures('optimized')


def reference(c, exponent, g):
  """The kernel, and the gradients of sum(g K) by c and exponent. In JAX's convention a gradient is the
  derivative by the real part minus i times that by the imaginary part."""
  (S, D, N), L = c.shape, g.shape[-1]
  k, dc, dexponent = np.zeros((S, D, L)), np.zeros((S, D, N), complex), np.zeros((D, N), complex)
  for start in range(0, L, 2048):
    lags = np.arange(start, min(start + 2048, L))
    for d in range(D):
      vandermonde_NL = np.exp((exponent if exponent.ndim == 1 else exponent[d])[:, None] * lags)
      k[:, d, lags] = (c[:, d] @ vandermonde_NL).real
      dc[:, d] += g[:, d, lags] @ vandermonde_NL.T
      dexponent[d] += np.sum(c[:, d] * ((g[:, d, lags] * lags) @ vandermonde_NL.T), 0)
  return k, dc, dexponent.sum(0) if exponent.ndim == 1 else dexponent


def with_gradients(function):
  def evaluate(c, exponent, g):
    k, pull = jax.vjp(lambda c, exponent: function(c, exponent, g.shape[-1]), c, exponent)
    return k, *pull(g)

  return jax.jit(evaluate)


ours = with_gradients(lambda c, exponent, length: vandermonde(c, exponent, length=length))


def errors(c, exponent, length):
  """The largest errors of values, dc and dexponent, each relative to the largest value."""
  g = np.random.default_rng(1).normal(size=(*c.shape[:2], length)).astype(np.float32)
  expected = reference(c.astype(complex), exponent.astype(complex), g.astype(float))
  pairs = zip(ours(c, exponent, g), expected, strict=True)
  return [np.abs(np.asarray(a) - b).max() / max(np.abs(b).max(), 1e-30) for a, b in pairs]


def draw(S, D, N, kind, seed=0):
  """Draws float32 parameters of the size that models have."""
  rng = np.random.default_rng(seed)
  c = rng.normal(size=(S, D, N)) + 1j * rng.normal(size=(S, D, N))
  dt = np.exp(rng.uniform(np.log(1e-4), np.log(0.1), {'s4d': (D, 1)}.get(kind, N)))
  if kind == 'dlr':
    exponent = -dt / 2 + 2j * np.pi * np.arange(1, N + 1) / N
  elif kind == 'slowest':  # the smallest decay, frequencies near 2 pi
    exponent = -5e-5 + 2j * np.pi * (1 - rng.uniform(0, 0.01, N))
  else:
    dt[0] = 1e-4
    exponent = dt * (-0.5 + 1j * np.pi * np.arange(N))
  return c.astype(np.complex64), exponent.astype(np.complex64)


@pytest.mark.parametrize(
  'S, D, N, L, kind',
  [(2, 3, 50, 1000, 'dlr'), (2, 5, 16, 1000, 's4d'), (1, 1, 1, 1, 's4d'), (1, 2, 3, 3, 'dlr')],
)
def test_agrees_with_float64(S, D, N, L, kind):
  assert max(errors(*draw(S, D, N, kind), L)) < 2e-6


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32 - 1), st.floats(-3, 3), st.floats(-1e4, 1e4))
def test_agrees_for_any_parameters(seed, log_decay, frequency):
  c, exponent = draw(2, 5, 16, 's4d', seed)
  exponent = exponent.real * np.float32(10**log_decay) + 1j * np.float32(frequency)
  assert max(errors(c, exponent.astype(np.complex64), 1000)) < 1e-5


@pytest.mark.numerics
@pytest.mark.parametrize('kind, N', [('dlr', 1024), ('slowest', 1024), ('s4d', 32)])
@pytest.mark.parametrize('length, S', [(16_384, 2), pytest.param(65_536, 1, marks=pytest.mark.slow)])
def test_accurate_at_full_length(length, S, kind, N, hold_errors):
  value, *gradients = errors(*draw(S, 2 if kind == 's4d' else 1, N, kind), length)
  print(f'values {value:.1e}, gradients {max(gradients):.1e}')
  hold_errors('vandermonde', length, value, max(gradients))


@settings(deadline=None, max_examples=20)
@given(st.floats(-(2.0**19), 2.0**19, width=32))
def test_phases_are_exact(omega):
  """Compares cos(omega l) with decimals of 60 digits, up to 2^35 radians."""
  exponent = np.complex64([1j * np.float32(omega)])
  k = np.asarray(
    jax.jit(vandermonde, static_argnames='length')(np.ones((1, 1, 1), np.complex64), exponent, length=65_536)
  )[0, 0]
  with decimal.localcontext() as context:
    context.prec = 60
    turn = 2 * decimal.Decimal('3.14159265358979323846264338327950288419716939937510582097494459')
    for lag in (1, 2, 255, 4097, 40_000, 65_535):
      left = decimal.Decimal(float(np.float32(omega))) * lag % turn
      assert abs(k[lag] - np.cos(float(left))) < 1e-6


@pytest.mark.parametrize('kind', ['dlr', 's4d'])
def test_blocks_change_nothing(kind, monkeypatch):
  c, exponent = draw(2, 7, 16, kind)
  g = np.random.default_rng(1).normal(size=(2, 7, 300)).astype(np.float32)
  whole = ours(c, exponent, g)
  monkeypatch.setattr(module, '_BLOCK', {'cpu': 2**12})
  blocked = with_gradients(lambda c, exponent, length: vandermonde(c, exponent, length=length))
  assert 'while' in blocked.lower(c, exponent, g).as_text()
  for a, b in zip(blocked(c, exponent, g), whole, strict=True):
    np.testing.assert_allclose(a, b, atol=3e-6 * np.abs(b).max())


def test_memory():
  """The kernel with gradients fits into memory in which an array of N x L would not."""

  def compiled(D, N, L, exponent_shape):
    c = jax.ShapeDtypeStruct((2, D, N), jnp.complex64)
    exponent, g = (jax.ShapeDtypeStruct(*x) for x in ((exponent_shape, c.dtype), ((2, D, L), jnp.float32)))
    memory = ours.lower(c, exponent, g).compile().memory_analysis()
    return memory.temp_size_in_bytes, memory.argument_size_in_bytes + memory.output_size_in_bytes

  temporary, interface = compiled(128, 1024, 16_384, (1024,))
  assert temporary < 8 * 1024 * 16_384  # complex N x L
  assert temporary + interface < 400e6
  temporary, interface = compiled(128, 32, 16_384, (128, 32))
  assert temporary < 8 * 128 * 32 * 16_384 / 8


def test_runs_under_vmap():
  c, exponent = draw(2, 3, 8, 's4d')
  together = jax.vmap(lambda c, exponent: vandermonde(c, exponent, length=20))(
    jnp.stack([c, 2 * c]), jnp.stack([exponent, exponent / 2])
  )
  np.testing.assert_allclose(together[1], vandermonde(2 * c, exponent / 2, length=20), atol=1e-5)


def test_wrong_arguments_get_a_sentence():
  c, exponent = draw(2, 3, 4, 'dlr')
  with pytest.raises(ValueError, match=r'exponent of shape \(3,\); pass \[S, D, N\] and \[N\] or \[D, N\]'):
    vandermonde(c, exponent[:3], length=5)
  with pytest.raises(ValueError, match='exponent of float32; cast both to complex64'):
    vandermonde(c, exponent.real, length=5)
  with pytest.raises(ValueError, match='length 0; a kernel has at least one value'):
    vandermonde(c, exponent, length=0)
