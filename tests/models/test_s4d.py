"""The S4D layer: published numbers, NumPy, recurrent form, discretisations, parameters."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config import protocol
from lra_spt.models import ParameterGroup, make_mixer
from lra_spt.models.hippo import diagonal, legs

WIDTH, LENGTH, STATES = 6, 19, 8


@functools.cache
def mixer(causal=False, seed=0, **options):
  options = {'state_size': STATES, 'copies': 3} | options
  common = {'length': LENGTH, 'causal': causal, 'protocol': protocol.CLEAN, 'rngs': nnx.Rngs(seed)}
  return make_mixer('s4d', WIDTH, options=options, **common)


@nnx.jit
def apply(layer, x_BLD, lengths_B=None):
  return layer(x_BLD, lengths_B=lengths_B)


def inputs(batch=2, seed=0):
  return np.random.default_rng(seed).normal(size=(batch, LENGTH, WIDTH)).astype(np.float32)


def kernels(layer, length):
  """K [S, D, length] in float64: both states of every pair, recurrences of scalars."""
  p = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(layer.kernel)))
  a = -np.exp(p['a_log_real']) + 1j * p['a_imag']
  b = p['b_real'] + 1j * p['b_imag'] if 'b_real' in p else np.ones_like(a)
  c = p['c_real'] + 1j * p['c_imag']
  out = np.zeros((*c.shape[:2], length))
  for channel in range(WIDTH):
    dt, a2, b2, c2 = (
      np.exp(p['log_dt'][channel]),
      *(np.concatenate([x, x.conj()], -1) for x in (a[channel % len(a)], b[channel % len(a)], c[:, channel])),
    )
    if layer.kernel.discretization == 'zoh':
      abar, x = np.exp(dt * a2), (np.exp(dt * a2) - 1) / a2 * b2
    else:
      abar, x = (1 + dt * a2 / 2) / (1 - dt * a2 / 2), dt * b2 / (1 - dt * a2 / 2)
    for lag in range(length):
      out[:, channel, lag] = (c2 @ x).real
      x = abar * x
  return out


@pytest.mark.parametrize(
  'causal, options',
  [
    (False, {'init': 'legs'}),
    (True, {'init': 'lin', 'discretization': 'bilinear'}),
    (False, {'init': 'inv', 'train_b': True}),
  ],
)
def test_agrees_with_numpy(convolution_layer, causal, options):
  layer, x = mixer(causal, **options), inputs()
  lengths = np.array([LENGTH, 13], np.int32)
  expected = convolution_layer(layer, kernels(layer, LENGTH), x, lengths)
  np.testing.assert_allclose(apply(layer, x, lengths), expected, atol=2e-6)


def named(published):
  """Published parameters in our layout, of state-spaces/s4, which stores -Im A, or of the paper's code."""
  p = {
    key.split('.', 1)[1]: value for key, value in published.items() if key.startswith(('layer.', 'kernel.'))
  }
  skip = published.get('layer.D', published.get('D'))
  a = (
    {'log_dt': p['kernel.inv_dt'][:, 0], 'a_log_real': p['kernel.A_real'], 'a_imag': -p['kernel.A_imag']}
    if 'kernel.inv_dt' in p
    else {'log_dt': p['kernel.log_dt'], 'a_log_real': p['kernel.inv_A_real'], 'a_imag': p['kernel.A_imag']}
  )
  b, c = p['kernel.B'].reshape(-1, STATES // 2, 2), p['kernel.C']
  system = a | {'b_real': b[..., 0], 'b_imag': b[..., 1], 'c_real': c[..., 0], 'c_imag': c[..., 1]}
  return {f'kernel/{name}': value for name, value in system.items()} | {
    'skip': skip[0],
    'output/linear/kernel': published['output_linear.0.weight'].T,
    'output/linear/bias': published['output_linear.0.bias'],
  }


@pytest.mark.parametrize('name', ['zoh_causal', 'zoh_bi', 'bilinear_bi', 'paper_bi'])
def test_agrees_with_the_published_code(golden, golden_errors, name):
  values = golden(f's4d_{name}')
  discretization = 'zoh' if 'zoh' in name else 'bilinear'
  layer = nnx.clone(mixer('bi' not in name.split('_'), discretization=discretization, train_b=True))
  errors = golden_errors(layer, values, named)
  assert errors.pop('y') < 2e-6
  assert max(errors.values()) < 5e-6, errors
  k = layer.kernel(values['x'].shape[1])
  np.testing.assert_allclose(k, values['kernel'], atol=2e-6 * np.abs(values['kernel']).max())


@pytest.mark.parametrize('discretization', ['zoh', 'bilinear'])
@pytest.mark.parametrize('init', ['legs', 'lin', 'inv'])
def test_long_kernels(init, discretization):
  layer = mixer(init=init, discretization=discretization, state_size=64, copies=1, dt_min=1e-4)
  k = kernels(layer, 4096)
  np.testing.assert_allclose(nnx.jit(lambda layer: layer.kernel(4096))(layer), k, atol=2e-5 * np.abs(k).max())
  np.testing.assert_allclose(layer.max_kernel(9), np.abs(k[..., :9]).max((0, 1)), rtol=1e-4)


@pytest.mark.parametrize('discretization', ['zoh', 'bilinear'])
def test_recurrence_is_convolution(stepped, discretization):
  layer, x = mixer(True, discretization=discretization), inputs(3)
  np.testing.assert_allclose(stepped(layer, x), apply(layer, x), atol=2e-6)


def test_parameters_and_groups(declared):
  layer = mixer(dt_lr=0.0, a_lr=1e-3, b_lr=5e-4, train_b=True)
  a, b = (ParameterGroup(rate, decay=False) for rate in (1e-3, 5e-4))
  system, output = (3, STATES // 2), (2, WIDTH, STATES // 2)
  assert declared(layer.kernel) == {
    'log_dt': ((WIDTH,), True, ParameterGroup(None, decay=False)),
    **dict.fromkeys(('a_log_real', 'a_imag'), (system, True, a)),
    **dict.fromkeys(('b_real', 'b_imag'), (system, True, b)),
    **dict.fromkeys(('c_real', 'c_imag'), (output, True, None)),
  }
  assert not {'b_real', 'b_imag'} & nnx.to_pure_dict(nnx.state(mixer().kernel)).keys()
  assert mixer(copies=0).kernel.a_imag.shape == (WIDTH, STATES // 2)


def test_initial_values():
  for init in ('lin', 'inv', 'legs'):
    p = nnx.to_pure_dict(nnx.state(mixer(init=init, dt_min=0.01, dt_max=0.02).kernel))
    np.testing.assert_allclose(p['a_imag'], np.tile(diagonal(init, STATES).imag, (3, 1)), rtol=1e-5)
    np.testing.assert_allclose(p['a_log_real'], np.log(0.5), rtol=1e-6)
    assert (np.exp(p['log_dt']) >= 0.0099).all()
    assert (np.exp(p['log_dt']) <= 0.0201).all()
  wide = nnx.to_pure_dict(nnx.state(mixer(init='lin', state_size=4096).kernel))
  for part in (wide['c_real'], wide['c_imag']):
    assert abs(np.var(part) - 0.5) < 0.02


@pytest.mark.parametrize('init', ['legs', 'lin', 'inv'])
def test_starts_as_the_published_code(golden, init):
  values = golden('s4d_init')
  p = nnx.to_pure_dict(nnx.state(mixer(init=init, state_size=64, train_b=True).kernel))
  np.testing.assert_allclose(-np.exp(p['a_log_real'][0]), values[init].real, rtol=2e-6)
  # Either state of a conjugate pair may be stored.
  np.testing.assert_allclose(np.abs(p['a_imag'][0]), np.abs(values[init].imag), rtol=2e-6, atol=3e-5)
  np.testing.assert_array_equal(np.hypot(p['b_real'], p['b_imag']), 1)
  # Theirs too in version 3 and in the paper's code, but LegS since version 4, from which these are.
  theirs = np.minimum(np.abs(legs(64).b), 2) if init == 'legs' else 1
  np.testing.assert_allclose(values[f'{init}_b_abs'], theirs, rtol=1e-3)


@pytest.mark.parametrize('discretization', ['zoh', 'bilinear'])
def test_trains_from_the_published_random_values(redrawn, gradients, discretization):
  layer = redrawn(nnx.clone(mixer(seed=1, discretization=discretization, train_b=True)), 's4d')
  assert np.std(layer.kernel.c_real[...]) < 0.2
  np.testing.assert_allclose(layer.kernel(4096), kernels(layer, 4096), atol=1e-6)
  for path, gradient in gradients(layer, inputs()).items():
    assert np.isfinite(gradient).all(), path
    assert (np.abs(gradient) > 0).all(), path


def test_the_zero_of_the_bilinear_transform_is_finite():
  """At dt A = -2 the logarithm of the bilinear transform does not exist."""
  layer = nnx.clone(mixer(init='lin', discretization='bilinear'))
  layer.kernel.log_dt[...] = jnp.full(WIDTH, math.log(4))

  def loss(layer):
    return jnp.sum(layer.kernel(9) ** 2)

  value, gradients = nnx.jit(nnx.value_and_grad(loss))(layer)
  np.testing.assert_allclose(layer.kernel(9), kernels(layer, 9), atol=5e-3)
  assert np.isfinite(value)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
