"""The DLR layer: numbers of the published code, NumPy, recurrent form, padding, parameters."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from lra_spt.config import protocol
from lra_spt.models import ParameterGroup, make_mixer

WIDTH, LENGTH, STATES = 5, 19, 6


@functools.cache
def mixer(causal=False, seed=0, rules=protocol.CLEAN, **options):
  common = {'length': LENGTH, 'causal': causal, 'protocol': rules, 'rngs': nnx.Rngs(seed)}
  return make_mixer('dlr', WIDTH, options={'state_size': STATES} | options, **common)


@nnx.jit
def apply(layer, x_BLD, lengths_B=None):
  return layer(x_BLD, lengths_B=lengths_B)


def inputs(batch=2, seed=0):
  return np.random.default_rng(seed).normal(size=(batch, LENGTH, WIDTH)).astype(np.float32)


def kernels(layer, length):
  """K [S, D, length] in float64, lag by lag."""
  p = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(layer.kernel)))
  poles = np.exp(-(p['lambda_root'] ** 2) + 1j * p['lambda_imag'])
  return np.stack([((p['w_real'] + 1j * p['w_imag']) @ poles**lag).real for lag in range(length)], -1)


@pytest.mark.parametrize('causal', [False, True])
def test_agrees_with_numpy(convolution_layer, causal):
  layer, x = mixer(causal), inputs()
  lengths = np.array([LENGTH, 13], np.int32)
  expected = convolution_layer(layer, kernels(layer, LENGTH), x, lengths)
  np.testing.assert_allclose(apply(layer, x, lengths), expected, atol=2e-6)
  np.testing.assert_allclose(layer.max_kernel(30), np.abs(kernels(layer, 30)).max((0, 1)), atol=2e-6)


def named(published):
  """The published parameters in our layout."""
  return {
    'kernel/lambda_root': published['kernel.Lambda_log_neg_re'],
    'kernel/lambda_imag': published['kernel.Lambda_im'],
    'kernel/w_real': published['kernel.W'][..., 0],
    'kernel/w_imag': published['kernel.W'][..., 1],
    'skip': published['D'][0],
    'output/linear/kernel': published['output_linear.0.weight'].T,
    'output/linear/bias': published['output_linear.0.bias'],
  }


@pytest.mark.parametrize('name', ['causal', 'bi'])
def test_agrees_with_the_published_code(golden, golden_errors, name):
  values, layer = golden(f'dlr_{name}'), nnx.clone(mixer(name == 'causal'))
  errors = golden_errors(layer, values, named)
  assert errors.pop('y') < 2e-6
  assert max(errors.values()) < 5e-6, errors
  k = layer.kernel(values['x'].shape[1])
  np.testing.assert_allclose(k, values['kernel'], atol=2e-6 * np.abs(values['kernel']).max())


def test_the_published_layer_sees_padding(convolution_layer):
  layer, x = mixer(rules=protocol.PAPER), inputs()
  lengths = np.array([LENGTH, 13], np.int32)
  expected = convolution_layer(layer, kernels(layer, LENGTH), x)
  np.testing.assert_allclose(apply(layer, x, lengths), expected, atol=2e-6)


def test_recurrence_is_convolution(stepped):
  layer, x = mixer(True), inputs(3)
  np.testing.assert_allclose(stepped(layer, x), apply(layer, x), atol=2e-6)


def test_parameters_and_groups(declared):
  layer = mixer(lambda_lr=0.0, w_lr=1e-3)
  assert declared(layer.kernel) == {
    **dict.fromkeys(('lambda_root', 'lambda_imag'), ((STATES,), True, ParameterGroup(None, decay=False))),
    **dict.fromkeys(('w_real', 'w_imag'), ((2, WIDTH, STATES), True, ParameterGroup(1e-3, decay=False))),
  }
  published = nnx.state(mixer().kernel)
  assert {leaf.get_metadata('group') for _, leaf in nnx.to_flat_state(published)} == {
    ParameterGroup(1e-4, decay=False)
  }


def test_initial_values():
  wide = mixer(state_size=1024, dt_min=1e-3, dt_max=0.1)
  p = nnx.to_pure_dict(nnx.state(wide.kernel))
  dt = 2 * np.float64(p['lambda_root']) ** 2
  assert dt.min() >= 0.999e-3
  assert dt.max() <= 0.1001
  assert abs(np.mean(np.log10(dt)) + 2) < 0.1  # log-uniform between -3 and -1
  np.testing.assert_allclose(p['lambda_imag'], 2 * np.pi * np.arange(1, 1025) / 1024, rtol=1e-6)
  for part in (p['w_real'], p['w_imag']):
    assert abs(np.std(part) * 1024 - 1) < 0.05


def test_trains_from_the_published_random_values(redrawn, gradients):
  layer = redrawn(nnx.clone(mixer(seed=1)), 'dlr')
  assert np.std(layer.kernel.w_real[...]) < 0.2
  np.testing.assert_allclose(layer.kernel(4096), kernels(layer, 4096), atol=1e-5)
  for path, gradient in gradients(layer, inputs()).items():
    assert np.isfinite(gradient).all(), path
    assert (np.abs(gradient) > 0).all(), path
