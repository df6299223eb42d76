"""Real discrete Fourier transforms along the last axis, by FFT or by matrix products.

X_k = sum_j x_j exp(-2 pi i j k / n) of real x. Because X_{n-k} = conj(X_k), a spectrum stores only one half.
Which half, and in which order, depends on the implementation (`frequencies`). Spectra are multiplied and
transformed back in that order, so they are never sorted.

'fft' is XLA's FFT. 'matmul' is for TPU, where XLA needs half a minute or more to compile the FFT of each
length. It factorises the DFT (Cooley and Tukey 1965) into products with DFT matrices of at most 256 rows.
With n = n1 m, j = j1 m + j' and k = k1 + n1 k',

  X_k = sum_j' w_m^(j' k') [ w_n^(j' k1) sum_j1 w_n1^(j1 k1) x_j ],   w_n = exp(-2 pi i / n),

and the outer sum is again such a DFT, complex and of length m. The inner sum has real terms, only those j1 at
which x is not padding. By symmetry, the frequencies with k1 = 0..n1/2 and any k' are the stored half. Complex
numbers are an axis of length 2, so one real product of twice the depth computes a complex product.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_spt.distributed.sharding import platform
from lra_spt.errors import ConfigError

NAMES = ('fft', 'matmul')  # of implementations
_LARGEST_FACTOR = 256  # on TPU, an additional factor costs more passes over memory than it saves in products


def default_implementation(n: int) -> str:
  """Returns 'matmul' on TPU for lengths that it can factorise, else 'fft'."""
  return 'matmul' if platform() == 'tpu' and _factors(n) else 'fft'


def frequencies(n: int, implementation: str | None = None) -> np.ndarray:
  """The k in 0..n-1 at which spectra of signals of length n are stored, in the order of storage.

  'fft': 0..n//2. 'matmul': about n/2 + m of them (n = n1 m), unsorted; a few appear together with
  their mirror n - k.

  Args:
    n: transform length, at least 1.
    implementation: 'fft', 'matmul' or None, which is 'matmul' on TPU where n allows it, else 'fft'.

  Returns:
    int64 [K] (NumPy).

  Raises:
    ValueError: an unknown implementation, n < 1, or a length that 'matmul' cannot factorise.
  """
  if _chosen(implementation, n) == 'fft':
    return np.arange(n // 2 + 1)
  first, *others = _factors(n)
  k, stride = np.arange(first // 2 + 1), first
  for factor in others:
    k = (k[:, None] + stride * np.arange(factor)).reshape(-1)
    stride *= factor
  return k


def rdft(x: jax.Array, n: int, implementation: str | None = None) -> jax.Array:
  """DFT of length n of real signals, zero-padded at the end.

  Args:
    x: float32 [..., J], J <= n.
    n: transform length.
    implementation: see `frequencies`.

  Returns:
    complex64 [..., K] at `frequencies(n, implementation)`.

  Raises:
    ValueError: as for `frequencies`, or x is longer than n.
  """
  implementation = _chosen(implementation, n)
  if x.shape[-1] > n:
    raise ValueError(f'rdft got signals of length {x.shape[-1]} for a transform of length {n}; make n larger')
  return jnp.fft.rfft(x, n) if implementation == 'fft' else _matmul_rdft(x, n)


def irdft(
  spectrum: jax.Array, n: int, implementation: str | None = None, *, length: int | None = None
) -> jax.Array:
  """The real signal of length n with this spectrum, or its beginning.

  Args:
    spectrum: complex64 [..., K] at `frequencies(n, implementation)`. Imaginary parts at k = 0 and n/2 do not
      matter. If both k and n - k are stored, their values must be conjugate.
    n: transform length.
    implementation: see `frequencies`.
    length: J, the number of values of the signal to return; None: n. 'matmul' does not compute the others.

  Returns:
    float32 [..., J].

  Raises:
    ValueError: as for `frequencies`, or length is not in 1..n.
  """
  implementation = _chosen(implementation, n)
  length = n if length is None else length
  if not 1 <= length <= n:
    raise ValueError(f'irdft got length={length} for a signal of length {n}; pass 1 to {n}')
  if implementation == 'fft':
    return jnp.fft.irfft(spectrum, n)[..., :length]
  return _matmul_irdft(spectrum, n, length)


def fast_length(at_least: int, implementation: str | None = None) -> int:
  """The smallest length >= `at_least` with a fast transform: an even 2^a 3^b 5^c for 'fft'; 2^a, 3 2^a or
  5 2^a for 'matmul'. With None, the implementation is the platform's default."""
  if implementation is None:
    implementation = 'matmul' if platform() == 'tpu' else 'fft'
  odd = (1, 3, 5) if implementation == 'matmul' else _odd_parts(at_least)
  return min(part * 2 ** max(1, math.ceil(math.log2(at_least / part))) for part in odd)


def _odd_parts(limit):
  """Products 3^b 5^c up to `limit`."""
  threes = range(int(math.log(limit, 3)) + 1)
  fives = range(int(math.log(limit, 5)) + 1)
  return [3**b * 5**c for b in threes for c in fives if 3**b * 5**c <= limit]


def _chosen(implementation, n):
  if n < 1:
    raise ValueError(f'the transform length is {n}; it must be at least 1')
  if implementation is None:
    return default_implementation(n)
  if implementation not in NAMES:
    raise ConfigError(f'DFT implementation {implementation!r} is unknown; choose fft, matmul, or None')
  if implementation == 'matmul' and not _factors(n):
    raise ValueError(
      f"'matmul' cannot transform length {n}, which has a prime factor above {_LARGEST_FACTOR}; use 'fft' or "
      'another length'
    )
  return implementation


@functools.cache
def _factors(n):
  """The factors of n, largest first: as few as possible, and among equals those with the smallest sum. () if
  n has a prime factor above _LARGEST_FACTOR."""
  if n <= _LARGEST_FACTOR:
    return (n,)
  best = ()
  for factor in range(2, _LARGEST_FACTOR + 1):
    rest = () if n % factor else _factors(n // factor)
    factors = tuple(sorted((factor, *rest), reverse=True))
    if rest and (not best or (len(factors), sum(factors)) < (len(best), sum(best))):
      best = factors
  return best


def _matmul_rdft(x, n):
  z_RCK = _transform(x.reshape(-1, x.shape[-1]), n)
  return lax.complex(z_RCK[:, 0], z_RCK[:, 1]).reshape(*x.shape[:-1], -1)


def _matmul_irdft(spectrum, n, length):
  """Transposes the real-linear map `_transform`. Values whose mirror is not stored count twice."""
  first = _factors(n)[0]
  paired = 2 * frequencies(n, 'matmul') % first != 0  # k is stored, n - k is not
  weights_K = np.where(paired, 2 / n, 1 / n).astype(np.float32)
  z_RK = spectrum.reshape(-1, spectrum.shape[-1])
  z_RCK = jnp.stack([z_RK.real, z_RK.imag], axis=1) * weights_K[None, None]
  signals = jax.ShapeDtypeStruct((z_RK.shape[0], length), jnp.float32)
  (x_RJ,) = jax.linear_transpose(lambda x: _transform(x, n), signals)(z_RCK)
  return x_RJ.reshape(*spectrum.shape[:-1], length)


def _transform(x_RJ, n):
  """Transforms signals to spectra [rows, 2, K], with real and imaginary parts on axis 1.

  Between stages, z is [rows, 2, frequencies of earlier stages, frequencies of the last stage, times left].
  """
  first, *others = _factors(n)
  times = n // first
  blocks = -(-x_RJ.shape[1] // times)
  x_RJ = jnp.pad(x_RJ, ((0, 0), (0, blocks * times - x_RJ.shape[1])))
  real_matrix = _matrix(first)[:blocks, 0, :, : first // 2 + 1]
  z = _einsum('jck,rjt->rckt', real_matrix, x_RJ.reshape(-1, blocks, times))[:, :, None]
  newest = first
  for factor in others:
    z = _turn(z, _twiddles(newest * times, z.shape[3], times))
    times, newest = times // factor, factor
    z = z.reshape(z.shape[0], 2, -1, factor, times)
    z = _einsum('jcdk,rcpjt->rdpkt', _matrix(factor), z)
  return z.reshape(z.shape[0], 2, -1)


def _einsum(subscripts, matrix, x):
  return jnp.einsum(subscripts, matrix, x, precision=lax.Precision.HIGHEST)


def _turn(z, turn):
  """The complex product of z and `turn` [2, frequencies of the last stage, times]."""
  real, imaginary = z[:, 0], z[:, 1]
  cos, sin = turn[0, None, None], turn[1, None, None]
  return jnp.stack([real * cos - imaginary * sin, imaginary * cos + real * sin], axis=1)


@functools.lru_cache(maxsize=64)
def _matrix(n):
  """The DFT of length n, from real and imaginary parts to both: float32 [n (time), 2, 2, n (frequency)]."""
  cos, sin = _unit_circle(n, n, n)
  return np.stack([np.stack([cos, sin], 1), np.stack([-sin, cos], 1)], 1)


@functools.lru_cache(maxsize=64)
def _twiddles(n, count, times):
  """The twiddle factors w_n^(k j), float32 [2, count (frequency), times]."""
  return np.stack(_unit_circle(n, count, times))


def _unit_circle(n, rows, columns):
  """Real and imaginary part of w_n^(row column). Angles are reduced as integers and rounded once."""
  angles = -2 * np.pi * (np.outer(np.arange(rows), np.arange(columns)) % n) / n
  return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
