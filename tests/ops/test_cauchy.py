"""Kernels of diagonal plus rank-one systems: values, gradients, lengths, memory, errors.

There are two float64 references on the same float32 parameters: the recurrence with dense matrices, and the
published generating function in complex arithmetic. The first tests compare it with the recurrence.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.ops.cauchy import dplr_kernel

pytestmark = pytest.mark.usefixtures('optimized')

NAMES = ('dt', 'w', 'p', 'b', 'c')


def legs(pairs):
  """w, p, b of HiPPO-LegS from the eigenvectors of its normal part."""
  n = np.arange(2 * pairs)
  p = np.sqrt(n + 0.5)
  normal = -np.tril(np.outer(p, p), -1) + np.triu(np.outer(p, p), 1)
  values, vectors = np.linalg.eig(normal)
  negative = values.imag < 0
  w, v = values[negative] - 0.5, vectors[:, negative]
  return w, v.conj().T @ p, v.conj().T @ (np.sqrt(2) * p)


def systems(kind, dts, pairs, directions=2, seed=0):
  """dt [D], w, p, b [D, N], c [S, D, N] with one channel for each of `dts`."""
  rng = np.random.default_rng(seed)

  def normal(*shape):
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)

  shape = len(dts), pairs
  if kind == 'legs':
    w, p, b = (np.tile(x, (shape[0], 1)) for x in legs(pairs))
  elif kind == 'random':  # every parameter from N(0, 0.1^2), as published
    w, p, b = -np.exp(0.1 * rng.normal(size=shape)) + 0.1j * rng.normal(size=shape), *0.1 * normal(2, *shape)
  else:  # 'resonant': weakly coupled oscillators of both signs, with up to 400 periods before they decay
    w, p, b = -0.5 + 1j * rng.uniform(-1300, 1300, shape), 0.01 * normal(*shape), normal(*shape)
  c = normal(directions, *shape) / np.sqrt(2)
  return np.asarray(dts, np.float32), *(x.astype(np.complex64) for x in (w, p, b, c))


def recurrence(dt, w, p, b, c, length):
  """Kernels float64 [S, ..., L] by K_l = C Abar^l Bbar; leading axes of the arguments are batch axes."""
  w, p, b = (np.concatenate([x, x.conj()], -1).astype(complex) for x in (w, p, b))
  c = np.concatenate([c, c.conj()], -1).astype(complex)
  eye = np.eye(w.shape[-1])
  a = w[..., None] * eye - p[..., :, None] * p[..., None, :].conj()
  half = np.asarray(dt, float)[..., None, None] / 2 * a
  left = np.linalg.inv(eye - half)
  abar, x = left @ (eye + half), (left @ b[..., None])[..., 0] * np.asarray(dt, float)[..., None]
  power = np.swapaxes(eye - np.linalg.matrix_power(abar, length), -1, -2)
  c = np.linalg.solve(power, np.moveaxis(c, 0, -1))  # C from C-tilde, [..., 2N, S]
  out = []
  for _ in range(length):
    out.append((x[..., None, :] @ c)[..., 0, :].real)
    x = (abar @ x[..., None])[..., 0]
  return np.moveaxis(np.stack(out, -1), -2, 0)


def generating_function(dt, w, p, b, c, length):
  """Kernels in jax.numpy: f(v) = sum 2 dt v / den, g(v) = sum dt (1 + omega) v / den over all states with
  den = 2 (1 - omega) - dt w (1 + omega); DFT(K) = f(BC) - f(BQ) g(PC) / (1 + g(PQ))."""
  omega = np.exp(-2j * np.pi * np.arange(length // 2 + 1) / length)
  dt = dt[:, None, None]

  def total(v, numerator):
    terms = [
      v / (2 * (1 - omega) - dt * w[..., None] * (1 + omega))
      for v, w in ((v[..., None], w), (v.conj()[..., None], w.conj()))
    ]
    return jnp.sum(dt * (terms[0] + terms[1]) * numerator, axis=1)

  f, g = functools.partial(total, numerator=2), functools.partial(total, numerator=1 + omega)
  spectra = [f(b * c) - f(b * p.conj()) * g(p * c) / (1 + g(p * p.conj())) for c in c]
  return jnp.fft.irfft(jnp.stack(spectra), length)


def with_gradients(kernel, arguments, d_kernel):
  def run(arguments, d_kernel):
    out, pull = jax.vjp(kernel, *arguments)
    return out, *pull(d_kernel)

  return [np.asarray(x) for x in jax.jit(run)(arguments, d_kernel)]


def wide(x):
  return np.asarray(x).astype(complex if np.iscomplexobj(x) else float)


def expected(arguments, d_kernel, length):
  """Kernels and gradients of `generating_function` in float64."""
  kernel = functools.partial(generating_function, length=length)
  with jax.enable_x64(True), jax.numpy_dtype_promotion('standard'), jax.numpy_rank_promotion('allow'):
    return with_gradients(kernel, tuple(map(wide, arguments)), wide(d_kernel))


def worst(actual, reference):
  """Largest errors of the kernel and of a gradient, each relative to its largest entry."""
  errors = {}
  for name, x, y in zip(('kernel', *NAMES), actual, reference, strict=True):
    errors[name] = np.abs(x - y).max() / np.abs(y).max()
    print(f'{name}: {errors[name]:.1e}')
  return errors.pop('kernel'), max(errors.values())


def check(actual, reference, value, gradient):
  errors = worst(actual, reference)
  assert errors[0] <= value
  assert errors[1] <= gradient


def draw(shape, seed=1):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@functools.cache
def joined(pairs):
  """Systems of all kinds, four steps each, as channels of one call."""
  parts = [systems(kind, (1e-4, 1e-3, 1e-2, 1e-1), pairs) for kind in ('legs', 'random', 'resonant')]
  *first, c = zip(*parts, strict=True)
  return *(np.concatenate(x) for x in first), np.concatenate(c, axis=1)


@pytest.mark.parametrize('length', [1, 2, 45, 48])
def test_agrees_with_the_recurrence(length):
  arguments = joined(4)
  reference = recurrence(*arguments, length)
  kernel = jax.jit(functools.partial(dplr_kernel, length=length))(*arguments)
  assert kernel.shape == reference.shape
  assert kernel.dtype == jnp.float32
  largest = np.abs(reference).max(axis=(0, 2), keepdims=True)  # of every channel by itself
  np.testing.assert_allclose(kernel / largest, reference / largest, atol=1e-5)


def test_gradients_agree_with_differences_of_the_recurrence():
  length, arguments = 45, joined(4)
  d_kernel = draw((2, 12, length))
  actual = with_gradients(functools.partial(dplr_kernel, length=length), arguments, d_kernel)
  reference = expected(arguments, d_kernel, length)
  check(actual, reference, 2e-5, 2e-5)
  for place, (x, gradient) in enumerate(zip(arguments, reference[1:], strict=True)):
    # Channels are independent: one direction moves all of them at once.
    direction = draw(x.shape, place) + (1j * draw(x.shape, place + 9) if np.iscomplexobj(x) else 0)
    direction = direction * np.abs(wide(x))
    moved = [[*map(wide, arguments)] for _ in range(2)]
    for sign, a in zip((1, -1), moved, strict=True):
      a[place] = a[place] + sign * 1e-6 * direction
    slope = np.sum((recurrence(*moved[0], length) - recurrence(*moved[1], length)) * d_kernel, (0, 2)) / 2e-6
    change = (gradient * direction).real  # JAX's convention for complex arguments: no conjugate
    change = change.reshape(*change.shape[: 2 if place == 4 else 1], -1).sum(-1)
    change = change.sum(0) if place == 4 else change
    np.testing.assert_allclose(change, slope, atol=2e-5 * np.abs(slope).max(), err_msg=NAMES[place])


@pytest.mark.numerics
@pytest.mark.parametrize('kind', ['legs', 'random', 'resonant'])
def test_is_accurate_at_16384(kind, hold_errors):
  length, arguments = 16384, systems(kind, (1e-4, 1e-3, 1e-2, 1e-1), 32, directions=1)
  d_kernel = draw((1, 4, length))
  actual = with_gradients(functools.partial(dplr_kernel, length=length), arguments, d_kernel)
  hold_errors('cauchy', length, *worst(actual, expected(arguments, d_kernel, length)), (2e-6, 4e-5))


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.parametrize('kind', ['legs', 'random', 'resonant'])
def test_is_accurate_at_65536(kind, hold_errors):
  length, arguments = 65536, systems(kind, (1e-4, 1e-3, 1e-2, 1e-1), 32)
  d_kernel = draw((2, 4, length))
  actual = with_gradients(functools.partial(dplr_kernel, length=length), arguments, d_kernel)
  reference = expected(arguments, d_kernel, length)
  hold_errors('cauchy', length, *worst(actual, reference))
  by_recurrence = recurrence(*arguments, length)
  np.testing.assert_allclose(reference[0], by_recurrence, atol=1e-8 * np.abs(by_recurrence).max())


def test_transforms_agree():
  arguments, d_kernel = joined(4), draw((2, 12, 96))
  results = [
    with_gradients(functools.partial(dplr_kernel, length=96, implementation=name), arguments, d_kernel)
    for name in ('fft', 'matmul')
  ]
  check(*results, 2e-6, 1e-5)


def test_memory_stays_small():
  """Pairs and nodes of all channels are 16.8M here: 67 MB for each real array of them."""
  D, N, length = 256, 32, 4096
  shapes = [((D,), jnp.float32), *[((D, N), jnp.complex64)] * 3, ((2, D, N), jnp.complex64)]
  arguments = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
  d_kernel = jax.ShapeDtypeStruct((2, D, length), jnp.float32)
  kernel = functools.partial(dplr_kernel, length=length)

  def gradients(arguments, d_kernel):
    return jax.vjp(kernel, *arguments)[1](d_kernel)

  forward = jax.jit(kernel).lower(*arguments).compile().memory_analysis().temp_size_in_bytes
  backward = jax.jit(gradients).lower(arguments, d_kernel).compile().memory_analysis().temp_size_in_bytes
  print(f'temporary memory: {forward / 1e6:.1f} MB forward, {backward / 1e6:.1f} MB backward')
  spectrum = 2 * D * (length // 2 + 1) * 8
  assert forward < 3 * spectrum
  assert backward < 3 * spectrum


def test_wrong_arguments_get_a_sentence():
  dt, w, p, b, c = joined(4)
  with pytest.raises(ValueError, match=r'dplr_kernel got dt \(12,\), w \(12, 4\), .* c \(2, 4, 12\); give'):
    dplr_kernel(dt, w, p, b, np.swapaxes(c, 1, 2), length=8)
  with pytest.raises(ValueError, match='the transform length is 0; it must be at least 1'):
    dplr_kernel(dt, w, p, b, c, length=0)
