"""Long convolution: values, gradients, accuracy, transformations, memory, TPU, errors.

The oracle is float64 NumPy: a sum over lags, with gradients by hand. A second one for long sequences, by
float64 FFT, agrees with the first on short ones.
"""

import functools
import importlib.util
import json
import pathlib
import platform
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from lra_spt.distributed import sharding
from lra_spt.ops import fft_conv as module
from lra_spt.ops.fft_conv import fft_conv

pytestmark = pytest.mark.usefixtures('optimized')

IMPLEMENTATIONS = ['fft', 'matmul']


def oracle(u, kernel, dy):
  """y, du and dkernel in float64, lag by lag."""
  u, kernel, dy = (np.asarray(x, np.float64) for x in (u, kernel, dy))
  y, du, dkernel = np.zeros_like(u), np.zeros_like(u), np.zeros_like(kernel)
  L = u.shape[1]
  for s, _, j in np.ndindex(kernel.shape[0], 1, kernel.shape[2]):
    lag = j if s == 0 else j + 1
    if lag >= L:
      continue
    early, late = slice(0, L - lag), slice(lag, L)
    source, target = (early, late) if s == 0 else (late, early)
    y[:, target] += kernel[s, :, j] * u[:, source]
    du[:, source] += kernel[s, :, j] * dy[:, target]
    dkernel[s, :, j] = (u[:, source] * dy[:, target]).sum((0, 1))
  return y, du, dkernel


def fourier_oracle(u, kernel, dy):
  """y, du and dkernel for kernels as long as u, by a float64 FFT of three times the length."""
  u, kernel, dy = (np.asarray(x, np.float64) for x in (u, kernel, dy))
  L = u.shape[1]
  causal, anticausal = (*kernel, np.zeros_like(kernel[0]))[:2]
  circular = np.zeros((u.shape[2], 3 * L))
  circular[:, :L] = causal
  circular[:, -np.arange(1, L + 1)] = anticausal
  spectrum = np.fft.fft(circular).T[None]
  u_hat, dy_hat = np.fft.fft(u, 3 * L, axis=1), np.fft.fft(dy, 3 * L, axis=1)
  y = np.fft.ifft(u_hat * spectrum, axis=1).real[:, :L]
  du = np.fft.ifft(dy_hat * spectrum.conj(), axis=1).real[:, :L]
  dcircular = np.fft.ifft((dy_hat * u_hat.conj()).sum(0), axis=0).real.T
  dkernel = np.stack([dcircular[:, :L], dcircular[:, -np.arange(1, L + 1)]])
  return y, du, dkernel[: kernel.shape[0]]


def draw(batch, length, width, directions, lags=None, seed=0, dtype=jnp.float32):
  """Draws u, kernel and dy."""
  rng = np.random.default_rng(seed)
  shapes = (batch, length, width), (directions, width, lags or length), (batch, length, width)
  return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def value_and_gradients(u, kernel, dy, implementation=None, convolve=fft_conv):
  y, pull = jax.vjp(functools.partial(convolve, implementation=implementation), u, kernel)
  return y, *pull(dy)


jitted = jax.jit(value_and_gradients, static_argnums=(3, 4))


def errors(results, references):
  """Largest error of each array over its largest value."""
  pairs = zip(results, references, strict=True)
  return [np.abs(np.asarray(x, np.float64) - y).max() / max(np.abs(y).max(), 1e-30) for x, y in pairs]


@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
@pytest.mark.parametrize('directions', [1, 2])
@pytest.mark.parametrize(('length', 'lags'), [(1, 3), (2, 1), (29, 7), (30, 61), (300, 300)])
def test_agrees_with_float64(length, lags, directions, implementation):
  arguments = draw(2, length, 3, directions, lags)
  results = jitted(*arguments, implementation)
  assert [x.shape for x in results] == [arguments[0].shape, arguments[0].shape, arguments[1].shape]
  assert max(errors(results, oracle(*arguments))) < 2e-6


@pytest.mark.parametrize('directions', [1, 2])
def test_the_two_oracles_agree(directions):
  arguments = draw(2, 50, 3, directions)
  assert max(errors(fourier_oracle(*arguments), oracle(*arguments))) < 1e-13


@pytest.mark.numerics
@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
@pytest.mark.parametrize('length', [16384, pytest.param(65536, marks=pytest.mark.slow)])
def test_accurate_at_full_length(length, implementation, hold_errors):
  """Kernels are white, or decay slowly without a change of sign, which makes sums large."""
  u, kernel, dy = draw(2, length, 2, 2)
  decay_L = np.exp(-np.arange(length) / (length / 4)).astype(np.float32)
  kernel = kernel.at[:, 1].set(jnp.broadcast_to(decay_L[None], (2, length)))
  actual = errors(jitted(u, kernel, dy, implementation), fourier_oracle(u, kernel, dy))
  print(length, implementation, actual)
  hold_errors('fft_conv', length, actual[0], max(actual[1:]))


@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
def test_bfloat16(implementation):
  u, kernel, dy = draw(2, 64, 3, 2, dtype=jnp.bfloat16)
  results = jitted(u, kernel, dy, implementation)
  assert {x.dtype for x in results} == {jnp.dtype(jnp.bfloat16)}
  assert max(errors(results, oracle(u, kernel, dy))) < 2**-8
  kernel = kernel.astype(jnp.float32)
  y, du, dkernel = jitted(u, kernel, dy, implementation)
  assert (y.dtype, du.dtype, dkernel.dtype) == (jnp.bfloat16, jnp.bfloat16, jnp.float32)
  assert errors([dkernel], oracle(u, kernel, dy)[2:])[0] < 2e-6  # no intermediate was rounded to bfloat16


@pytest.mark.parametrize('directions', [1, 2])
def test_jacobian_is_the_toeplitz_matrix(directions):
  """A causal kernel is 0 above the diagonal; the kernel k1 of the second direction starts right above it."""
  u, kernel, _ = draw(1, 12, 1, directions)
  jacobian = jax.jacrev(lambda u_L: fft_conv(u_L[None, :, None], kernel)[0, :, 0])(u[0, :, 0])
  expected = np.zeros((12, 12))
  for t, s in np.ndindex(12, 12):
    if s <= t:
      expected[t, s] = kernel[0, 0, t - s]
    elif directions == 2:
      expected[t, s] = kernel[1, 0, s - t - 1]
  np.testing.assert_allclose(jacobian, expected, atol=2e-6, rtol=0)


@settings(deadline=None, max_examples=10)
@given(lag=st.integers(-39, 39), scale=st.floats(-4, 4, width=32))
def test_a_kernel_of_one_lag_shifts(lag, scale):
  u, kernel, dy = draw(2, 40, 3, 2)
  kernel = jnp.zeros_like(kernel).at[int(lag < 0), :, lag if lag >= 0 else -lag - 1].set(np.float32(scale))
  y, *_ = jitted(u, kernel, dy, 'fft')
  expected = np.zeros_like(u)
  expected[:, max(lag, 0) : 40 + min(lag, 0)] = scale * u[:, max(-lag, 0) : 40 - max(lag, 0)]
  np.testing.assert_allclose(y, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
def test_groups_of_channels(implementation, monkeypatch):
  """Inputs and kernel have one shape, so the code must not tell them apart by shape."""
  arguments = draw(2, 12, 12, 2)
  whole = jitted(*arguments, implementation)
  monkeypatch.setitem(module._GROUP, 'cpu', 4 * 2 * 24)
  grouped = jax.jit(lambda *arguments: value_and_gradients(*arguments, implementation))
  assert 'while' in grouped.lower(*arguments).as_text()
  for x, y in zip(grouped(*arguments), whole, strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5, rtol=0)


@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
def test_groups_of_rows(implementation, monkeypatch):
  """On TPUs the backward pass takes groups of rows and sums their gradients of the kernel."""
  arguments = draw(6, 12, 4, 2)
  whole = jitted(*arguments, implementation)
  monkeypatch.setattr(module, 'platform', lambda: 'tpu')
  monkeypatch.setitem(module._GROUP, 'tpu', 2 * 4 * 24)
  grouped = jax.jit(lambda *arguments: value_and_gradients(*arguments, implementation))
  assert grouped.lower(*arguments).as_text().count('tensor<2x12x4xf32>') > 0  # two rows of all channels
  for x, y in zip(grouped(*arguments), whole, strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5, rtol=0)


def test_vmap():
  pairs = [draw(2, 21, 3, 2, seed=seed) for seed in range(3)]
  stacked = jax.jit(jax.vmap(value_and_gradients))(*(jnp.stack(x) for x in zip(*pairs, strict=True)))
  for i, pair in enumerate(pairs):
    assert max(errors([x[i] for x in stacked], oracle(*pair))) < 2e-6


def test_checkpoint_and_scan():
  """Compares three layers of one convolution, scanned and rematerialised, with float64."""
  u, kernel, dy = draw(2, 21, 3, 2)
  kernel = 0.2 * kernel

  def layers(u, kernel, implementation):
    def layer(x, _):
      return jax.checkpoint(fft_conv)(x, kernel), None

    return lax.scan(layer, u, length=3)[0]

  results = jitted(u, kernel, dy, None, layers)
  inputs = [u]
  for _ in range(3):
    inputs.append(oracle(inputs[-1], kernel, dy)[0])
  d, dkernel = dy, 0
  for x in inputs[2::-1]:
    _, d, part = oracle(x, kernel, d)
    dkernel = dkernel + part
  assert max(errors(results, (inputs[-1], d, dkernel))) < 5e-6


def test_rows_over_devices():
  """Each device convolves its own rows; only the gradient of the kernel is exchanged."""
  u, kernel, dy = draw(8, 21, 3, 2)

  def island(u, kernel, implementation):
    convolve = functools.partial(fft_conv, implementation=implementation)
    return sharding.rows_island(convolve, whole=(1,))(u, kernel)

  mesh = sharding.make_mesh(data=4, fsdp=2)
  rows, whole = sharding.rows_sharding(mesh), sharding.replicated(mesh)
  with jax.set_mesh(mesh):
    program = jax.jit(
      functools.partial(value_and_gradients, convolve=island),
      in_shardings=(rows, whole, rows),
      out_shardings=(rows, rows, whole),
    )
    compiled = program.lower(u, kernel, dy).compile()
    results = compiled(*jax.device_put((u, kernel, dy), (rows, whole, rows)))
  text = compiled.as_text()
  assert 'all-reduce' in text
  assert not any(word in text for word in ('all-gather', 'all-to-all', 'collective-permute'))
  assert max(errors(results, oracle(u, kernel, dy))) < 2e-6


def test_keeps_its_arguments_only():
  u, kernel, _ = draw(2, 100, 3, 2)
  _, pull = jax.vjp(fft_conv, u, kernel)
  assert sorted(x.shape for x in jax.tree.leaves(pull)) == sorted([u.shape, kernel.shape])


def test_five_transforms_of_a_batch():
  """There are 2 in the forward and 3 in the backward pass, and 1 and 2 of the kernel's size."""
  u, kernel, dy = draw(5, 21, 3, 2)
  backward = jax.jit(lambda u, kernel, dy: jax.vjp(fft_conv, u, kernel)[1](dy))
  programs = jax.jit(fft_conv).lower(u, kernel), backward.lower(u, kernel, dy)
  for program, batch, small in zip(programs, (2, 3), (1, 2), strict=True):
    text = program.compile().as_text()
    transforms = [line.split(' fft(')[0] for line in text.split('\n') if ' fft(' in line]
    assert len(transforms) == batch + small
    assert sum('[5,3,' in line for line in transforms) == batch


@pytest.mark.parametrize(
  ('shape', 'implementation', 'megabytes'),
  [((2, 4096, 128), 'fft', 26), ((1, 65536, 256), 'fft', 90), ((1, 65536, 256), 'matmul', 150)],
)
def test_memory(shape, implementation, megabytes):
  """Temporary memory of value and gradient; one array [1, 65536, 256] takes 64 MB."""
  B, L, D = shape
  u, kernel = jax.ShapeDtypeStruct((B, L, D), jnp.float32), jax.ShapeDtypeStruct((2, D, L), jnp.float32)
  memory = jitted.lower(u, kernel, u, implementation).compile().memory_analysis()
  print(shape, implementation, memory.temp_size_in_bytes / 2**20)
  assert memory.temp_size_in_bytes < megabytes * 2**20


@pytest.mark.skipif(
  sys.platform != 'linux' or platform.machine() != 'x86_64', reason='libtpu exists for Linux on x86-64 only'
)
@pytest.mark.parametrize('length', [1024, pytest.param(16384, marks=pytest.mark.slow)])
def test_compiles_for_tpu(for_tpus, length):
  """A separate process compiles matrix products ahead of time, with rows over 4 chips."""
  assert importlib.util.find_spec('libtpu'), "libtpu is missing: pip install -e '.[test]' brings it"
  program = pathlib.Path(__file__).parent / 'tpu_fft_conv.py'
  command = [sys.executable, program, 'matmul', str(length)]
  run = subprocess.run(command, env=for_tpus, capture_output=True, text=True, timeout=900, check=False)
  assert run.returncode == 0, run.stderr[-4000:]
  report = json.loads(run.stdout.split('\n')[-2])
  assert report['device_kind'] == 'TPU v5 lite'
  assert report['gathers'] == report['transforms'] == 0
  assert report['temporary_bytes'] < 2**12 * length


def test_errors():
  u, kernel, _ = draw(2, 21, 3, 2)
  with pytest.raises(ValueError, match='a kernel \\[1 or 2, D, lags\\]'):
    fft_conv(u, kernel[0])
  with pytest.raises(ValueError, match='inputs \\(2, 21, 3\\) and a kernel \\(2, 2, 21\\)'):
    fft_conv(u, kernel[:, :2])
  with pytest.raises(ValueError, match='a kernel \\(3, 3, 21\\)'):
    fft_conv(u, jnp.concatenate([kernel, kernel[:1]]))
  with pytest.raises(ValueError, match='empty'):
    fft_conv(u, kernel[..., :0])
  with pytest.raises(ValueError, match='complex64'):
    fft_conv(u, kernel.astype(jnp.complex64))
  with pytest.raises(ValueError, match="'direct' is unknown"):
    fft_conv(u, kernel, implementation='direct')
