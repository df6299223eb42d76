"""DSS: numbers of the published code, float64 NumPy, growing states, recurrent form, parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config import protocol
from lra_spt.models import ParameterGroup, make_mixer

WIDTH, LENGTH, STATES = 4, 13, 6


@functools.cache
def mixer(causal=False, rules=protocol.CLEAN, width=WIDTH, length=LENGTH, growing=False, **options):
  common = {'length': length, 'causal': causal, 'protocol': rules, 'rngs': nnx.Rngs(0)}
  layer = make_mixer('dss', width, options={'state_size': STATES} | options, **common)
  if growing:  # two of the states
    layer.kernel.lambda_real[...] = jnp.array([-0.5, 0.3, -0.2, 0.8, -1.0, -0.1])
  return layer


@nnx.jit
def apply(layer, x_BLD, lengths_B=None):
  return layer(x_BLD, lengths_B=lengths_B)


@functools.partial(nnx.jit, static_argnames='length')
def kernel(layer, length):
  return layer.kernel(length)


def inputs():
  return np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)


def numbers(layer):
  return jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(layer.kernel)))


def kernels(p, length, built=LENGTH):
  """K [S, D, length] in float64, lag by lag; 1 / z is conj(z) / (|z|^2 + 1e-7), as published."""
  real = p['lambda_real'] if 'lambda_real' in p else -np.exp(p['lambda_log_real'])
  dt = np.exp(p['log_dt'])
  exponent = dt[:, :1] * real + 1j * dt[:, -1:] * p['lambda_imag']
  poles, w, start = real + 1j * p['lambda_imag'], p['w_real'] + 1j * p['w_imag'], 0
  if 'lambda_real' in p:
    sign = np.where(real > 0, -1, 1)
    divisor = np.expm1(sign * exponent * built) * poles
    w = w * np.expm1(sign * exponent) * divisor.conj() / (abs(divisor) ** 2 + 1e-7)
    start = np.where(real > 0, built - 1, 0)
  else:
    w = w * np.expm1(exponent) / poles
  return np.stack([(w * np.exp(exponent * (lag - start))).sum(-1).real for lag in range(length)], -1)


def named(published):
  softmax = 'kernel.Lambda' in published
  return {
    'kernel/log_dt': published['kernel.log_dt'],
    'kernel/w_real': published['kernel.W'][..., 0],
    'kernel/w_imag': published['kernel.W'][..., 1],
    'skip': published['D'].reshape(WIDTH),
    'output/linear/kernel': published['output_linear.weight'].T,
    'output/linear/bias': published['output_linear.bias'],
    'kernel/lambda_imag': published['kernel.Lambda'][:, 1] if softmax else published['kernel.Lambda_im'],
  } | (
    {'kernel/lambda_real': published['kernel.Lambda'][:, 0]}
    if softmax
    else {'kernel/lambda_log_real': published['kernel.Lambda_log_neg_re']}
  )


@pytest.mark.parametrize('name', ['softmax_causal', 'softmax_bi', 'softmax_positive', 'exp_causal', 'exp_bi'])
def test_agrees_with_the_published_code(golden, golden_errors, name):
  values, version = golden(f'dss_{name}'), 'exp' if 'exp' in name else 'softmax'
  layer = nnx.clone(mixer('bi' not in name, protocol.PAPER, version=version))
  errors = golden_errors(layer, values, named)
  assert errors.pop('y') < 2e-6
  if version == 'exp':  # the published code lost digits in exp(P) - 1: see the test against differences
    assert max(errors.pop('kernel/lambda_imag'), errors.pop('kernel/lambda_log_real')) < 5e-4
  assert max(errors.values()) < 5e-5, errors
  np.testing.assert_allclose(
    kernel(layer, LENGTH), values['kernel'], atol=1e-5 * np.abs(values['kernel']).max()
  )


@pytest.mark.parametrize('options', [{'version': 'exp', 'separate_dt': False}, {'growing': True}])
def test_gradients_are_those_of_differences(options):
  layer = mixer(**options)
  p, weights = numbers(layer), np.random.default_rng(1).normal(size=(2, WIDTH, LENGTH))
  actual = nnx.jit(nnx.grad(lambda layer: jnp.sum(layer.kernel(LENGTH) * weights.astype(np.float32))))(layer)
  actual = nnx.to_pure_dict(actual)['kernel']
  for key, value in p.items():
    wanted = np.zeros_like(value)
    for place in np.ndindex(value.shape):
      moved = [np.array(value), np.array(value)]
      moved[0][place] += 1e-6
      moved[1][place] -= 1e-6
      up, down = ((kernels(p | {key: x}, LENGTH) * weights).sum() for x in moved)
      wanted[place] = (up - down) / 2e-6
    np.testing.assert_allclose(actual[key], wanted, atol=2e-5 * np.abs(wanted).max(), err_msg=key)


@pytest.mark.parametrize(
  'causal, options', [(False, {'version': 'exp', 'gate': 'glu'}), (True, {}), (False, {'growing': True})]
)
def test_agrees_with_numpy(convolution_layer, causal, options):
  layer, x = mixer(causal, **options), inputs()
  lengths = np.array([LENGTH, 9], np.int32)
  expected = convolution_layer(layer, kernels(numbers(layer), LENGTH), x, lengths)
  np.testing.assert_allclose(apply(layer, x, lengths), expected, atol=2e-6)


def test_the_length_of_the_call_does_not_matter():
  layer = mixer(growing=True)
  np.testing.assert_allclose(kernel(layer, 5), kernels(numbers(layer), 5), atol=2e-6)


def test_long_kernels_of_states_that_grow_are_finite():
  """exp(0.8 dt 2048) with dt = 0.1 is too large for float32."""
  layer = mixer(True, length=2048, growing=True, dt_min=0.1)
  k = kernels(numbers(layer), 2048, 2048)

  def loss(layer):
    actual = layer.kernel(2048)
    return jnp.sum(actual**2), actual

  gradients, actual = nnx.jit(nnx.grad(loss, has_aux=True))(layer)
  np.testing.assert_allclose(actual, k, atol=1e-4 * np.abs(k).max())
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_recurrence_is_convolution(stepped):
  layer, x = mixer(True, growing=True), inputs()
  np.testing.assert_allclose(stepped(layer, x), apply(layer, x), atol=5e-6)


def test_initial_values(golden):
  p, eigenvalues = numbers(mixer(width=128, state_size=64)), golden('dss_skew_hippo')['N64']
  np.testing.assert_allclose(p['lambda_imag'], eigenvalues.imag, rtol=2e-6, atol=3e-5)
  np.testing.assert_array_equal(p['lambda_real'], -0.5)
  np.testing.assert_allclose(np.exp(numbers(mixer(version='exp'))['lambda_log_real']), 0.5, rtol=1e-6)
  np.testing.assert_array_equal(p['log_dt'][:, 0], p['log_dt'][:, 1])
  assert np.exp(p['log_dt']).min() >= 0.999e-3
  assert np.exp(p['log_dt']).max() <= 0.1001
  assert abs(np.mean(p['log_dt']) / np.log(10) + 2) < 0.15  # log-uniform between 1e-3 and 0.1
  for part in (p['w_real'], p['w_imag']):
    assert abs(np.std(part) - 1) < 0.05


def test_parameters_and_groups(declared):
  steps, poles, output = (ParameterGroup(rate, decay=False) for rate in (0.02, None, 1e-3))
  layer = mixer(dt_lr=0.02, lambda_lr=0.0)
  assert declared(layer.kernel) == {
    'log_dt': ((WIDTH, 2), True, steps),
    **dict.fromkeys(('lambda_real', 'lambda_imag'), ((STATES,), True, poles)),
    **dict.fromkeys(('w_real', 'w_imag'), ((2, WIDTH, STATES), True, output)),
  }
  assert mixer(separate_dt=False).kernel.log_dt.shape == (WIDTH, 1)
  assert layer.output.linear.kernel[...].shape == (WIDTH, WIDTH)
