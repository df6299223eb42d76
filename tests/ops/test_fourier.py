"""Real DFTs: values, inverse, gradients, order of frequencies, lengths, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.errors import ConfigError
from lra_spt.ops import fourier

pytestmark = pytest.mark.usefixtures('optimized')

# Lengths with one and two factors, odd and even.
LENGTHS = [1, 2, 7, 12, 256, 1000, 1023]
IMPLEMENTATIONS = ['fft', 'matmul']


def dft_matrix(k, signal_length, n):
  """exp(-2 pi i k j / n) [k, j] in complex128, from the definition."""
  return np.exp(-2j * np.pi * (np.outer(k, np.arange(signal_length)) % n) / n)


def shares(k, n):
  """The number of frequencies among k and n - k that each stored value represents."""
  held = set(k.tolist())
  return np.array([1 if 2 * value % n == 0 or (n - value) % n in held else 2 for value in k])


@functools.cache
def evaluated(n, implementation, signal_length, batch=(2, 3)):
  """Signals, spectra and gradients of one length, from one program."""
  rng = np.random.default_rng(n)
  k = fourier.frequencies(n, implementation)
  x, d_signal = rng.normal(size=(2, *batch, signal_length)).astype(np.float32)
  d_spectrum = rng.normal(size=(*batch, 2 * k.size)).astype(np.float32).view(np.complex64)

  @jax.jit
  def run(x, d_spectrum, d_signal):
    def loss(x):
      spectrum = fourier.rdft(x, n, implementation)
      return jnp.sum(spectrum.real * d_spectrum.real + spectrum.imag * d_spectrum.imag), spectrum

    def loss_of_inverse(real, imaginary):
      signal = fourier.irdft(jax.lax.complex(real, imaginary), n, implementation, length=signal_length)
      return jnp.sum(signal * d_signal), signal

    dx, spectrum = jax.grad(loss, has_aux=True)(x)
    gradients, signal = jax.grad(loss_of_inverse, (0, 1), has_aux=True)(spectrum.real, spectrum.imag)
    return spectrum, dx, signal, *gradients

  return k, (x, d_spectrum, d_signal), [np.asarray(value) for value in run(x, d_spectrum, d_signal)]


def check(value, reference, tolerance=2e-6):
  np.testing.assert_allclose(value, reference, rtol=0, atol=tolerance * max(1e-30, np.abs(reference).max()))


@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
@pytest.mark.parametrize('n', LENGTHS)
def test_agrees_with_the_definition(n, implementation):
  signal_length = n // 2 + 1
  k, (x, d_spectrum, d_signal), results = evaluated(n, implementation, signal_length)
  spectrum, dx, signal, d_real, d_imaginary = results
  assert spectrum.dtype == np.complex64
  assert signal.dtype == np.float32
  matrix_KJ = dft_matrix(k, signal_length, n)
  check(spectrum, x @ matrix_KJ.T)
  check(dx, (d_spectrum.conj() @ matrix_KJ).real)
  check(signal, x)
  per_share_JK = matrix_KJ.T * (shares(k, n) / n)[None, :]
  check(d_real, (d_signal @ per_share_JK).real)
  off_axis = 2 * k % n != 0  # at other frequencies imaginary parts are ignored
  if off_axis.any():
    check(d_imaginary[..., off_axis], (d_signal @ per_share_JK).imag[..., off_axis])


@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
@pytest.mark.parametrize('n', [32768, pytest.param(131072, marks=pytest.mark.slow)])
def test_accurate_at_full_length(n, implementation):
  k, (x, *_), (spectrum, _, signal, *_) = evaluated(n, implementation, n, batch=(1,))
  check(spectrum, np.fft.fft(x.astype(np.float64))[:, k])
  check(signal, x)


@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
@pytest.mark.parametrize('n', [*LENGTHS, 4000, 16384, 131072])
def test_frequencies_and_their_mirrors_are_all(n, implementation):
  k = fourier.frequencies(n, implementation)
  assert set(k.tolist()) | set((-k % n).tolist()) == set(range(n))
  assert np.unique(k).size == k.size
  assert k.size < n // 2 + 2 + n**0.75  # hardly any is stored twice


def test_fast_lengths():
  def smooth(n):
    for factor in (2, 3, 5):
      while n % factor == 0:
        n //= factor
    return n == 1

  for at_least in (1, 2, 3, 7, 100, 1021, 4097, 65537):
    n = fourier.fast_length(at_least, 'fft')
    assert n == next(n for n in range(at_least, 4 * at_least) if n % 2 == 0 and smooth(n))
    for implementation in IMPLEMENTATIONS:
      n = fourier.fast_length(at_least, implementation)
      assert at_least <= n <= max(2, 1.34 * at_least)
      assert fourier.frequencies(n, implementation).size > n // 2
  assert fourier.fast_length(2047, 'matmul') == 2048
  assert fourier.fast_length(2049, 'matmul') == 2560


def test_platform_chooses(monkeypatch):
  assert fourier.default_implementation(1024) == 'fft'
  assert fourier.fast_length(2 * 81) == 2 * 81
  monkeypatch.setattr(jax, 'default_backend', lambda: 'tpu')
  assert fourier.default_implementation(1024) == 'matmul'
  assert fourier.default_implementation(2 * 257) == 'fft'
  assert fourier.fast_length(2 * 81) == 192
  np.testing.assert_array_equal(fourier.frequencies(1000), fourier.frequencies(1000, 'matmul'))


def test_errors():
  x = jnp.zeros((2, 9))
  with pytest.raises(ValueError, match='make n larger'):
    fourier.rdft(x, 8)
  with pytest.raises(ConfigError, match=r"'dct' is unknown; choose fft, matmul"):
    fourier.rdft(x, 16, 'dct')
  with pytest.raises(ValueError, match='length 514, which has a prime factor above 256'):
    fourier.rdft(x, 2 * 257, 'matmul')
  with pytest.raises(ValueError, match='length=17 for a signal of length 16'):
    fourier.irdft(jnp.zeros((2, 9), jnp.complex64), 16, 'fft', length=17)
  with pytest.raises(ValueError, match='length is 0'):
    fourier.frequencies(0)
