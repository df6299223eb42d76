"""The S4 layer: numbers of the published code, NumPy, recurrent form, causality, parameters."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from lra_spt.config import protocol
from lra_spt.models import ParameterGroup, make_mixer
from lra_spt.models.hippo import legs

WIDTH, LENGTH, STATES = 6, 20, 8


@functools.cache
def mixer(causal=False, length=LENGTH, seed=0, **options):
  options = {'state_size': STATES, 'copies': 3} | options
  common = {'length': length, 'causal': causal, 'protocol': protocol.CLEAN, 'rngs': nnx.Rngs(seed)}
  return make_mixer('s4', WIDTH, options=options, **common)


@nnx.jit
def apply(layer, x_BLD, lengths_B=None):
  return layer(x_BLD, lengths_B=lengths_B)


def inputs(batch=2, length=LENGTH, seed=0):
  return np.random.default_rng(seed).normal(size=(batch, length, WIDTH)).astype(np.float32)


def kernels(layer, length, built=LENGTH):
  """K [S, D, length] in float64, channel by channel from dense matrices."""
  values = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(layer.kernel)))
  w, p, b = (
    re + 1j * im
    for re, im in (
      (-np.exp(values['inv_w_real']), values['w_imag']),
      (values['p_real'], values['p_imag']),
      (values['b_real'], values['b_imag']),
    )
  )
  c = values['c_real'] + 1j * values['c_imag']
  out = np.zeros((*c.shape[:2], length))
  for channel in range(WIDTH):
    w2, p2, b2 = (np.concatenate([x, x.conj()]) for x in (a[channel % len(w)] for a in (w, p, b)))
    c2 = np.concatenate([c[:, channel], c[:, channel].conj()], axis=1)
    dt, eye = np.exp(values['log_dt'][channel]), np.eye(len(w2))
    half = dt / 2 * (np.diag(w2) - np.outer(p2, p2.conj()))
    abar, x = np.linalg.solve(eye - half, eye + half), np.linalg.solve(eye - half, dt * b2)
    if layer.kernel.truncated:
      c2 = c2 @ np.linalg.inv(eye - np.linalg.matrix_power(abar, built))
    for lag in range(length):
      out[:, channel, lag] = (c2 @ x).real
      x = abar @ x
  return out


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('parametrization', ['truncated', 'plain'])
def test_agrees_with_numpy(convolution_layer, causal, parametrization):
  layer, x = mixer(causal, parametrization=parametrization), inputs()
  k, lengths = kernels(layer, LENGTH), np.array([LENGTH, 13], np.int32)
  np.testing.assert_allclose(apply(layer, x, lengths), convolution_layer(layer, k, x, lengths), atol=2e-6)
  short = x[:, :7]  # shorter than the length for which the layer was built
  np.testing.assert_allclose(apply(layer, short), convolution_layer(layer, k, short), atol=2e-6)


def named(published):
  """The published parameters in our layout; their complex numbers are pairs in the last axis."""
  kernel = {
    key.removeprefix('kernel.kernel.'): value
    for key, value in published.items()
    if key.startswith('kernel.kernel.')
  }
  pairs = {'p': kernel['P'][0], 'b': kernel['B'][0], 'c': kernel['C']}
  return {
    **{f'kernel/{name}': kernel[name] for name in ('log_dt', 'inv_w_real', 'w_imag')},
    **{f'kernel/{name}_real': value[..., 0] for name, value in pairs.items()},
    **{f'kernel/{name}_imag': value[..., 1] for name, value in pairs.items()},
    'skip': published['D'][0],
    'output/linear/kernel': published['output_linear.0.weight'].T,
    'output/linear/bias': published['output_linear.0.bias'],
  }


@pytest.mark.parametrize('name, built', [('causal', 19), ('bi', 20), ('bi_short', 20), ('bi_long', 20)])
def test_agrees_with_the_published_code(golden, golden_errors, name, built):
  values = golden(f's4_{name}')
  layer = nnx.clone(mixer(name == 'causal', built))
  errors = golden_errors(layer, values, named)
  assert errors.pop('y') < 2e-6
  assert max(errors.values()) < 5e-6, errors
  k = layer.kernel(values['x'].shape[1])
  np.testing.assert_allclose(k, values['kernel'], atol=2e-6 * np.abs(values['kernel']).max())


@pytest.mark.parametrize('states', [4, 8, 64])
def test_starts_as_the_published_code(golden, states):
  """P and B of a pair of states may be rotated by one phase, which cancels in the product with P."""
  values, initial = golden('s4_init'), legs(states)
  ours = {'w': initial.w, 'p_abs': np.abs(initial.p), 'b_abs': np.abs(initial.b)}
  ours['p_conj_b'] = initial.p.conj() * initial.b
  for name, value in ours.items():
    np.testing.assert_allclose(value, values[f'{name}{states}'], rtol=2e-6, atol=3e-5, err_msg=name)


def test_parametrizations_start_as_one_system():
  plain, truncated = (mixer(parametrization=name) for name in ('plain', 'truncated'))
  np.testing.assert_allclose(plain.kernel(LENGTH), truncated.kernel(LENGTH), atol=1e-5)
  np.testing.assert_allclose(plain.max_kernel(LENGTH), np.abs(kernels(plain, LENGTH)).max((0, 1)), atol=1e-5)
  assert truncated.kernel(LENGTH + 9).shape == (2, WIDTH, LENGTH)
  np.testing.assert_array_equal(truncated.kernel(5), truncated.kernel(LENGTH)[..., :5])


@pytest.mark.parametrize('parametrization', ['truncated', 'plain'])
def test_recurrence_is_convolution(stepped, parametrization):
  layer, x = mixer(True, parametrization=parametrization), inputs(3)
  np.testing.assert_allclose(stepped(layer, x), apply(layer, x), atol=2e-6)


def test_parameters_and_groups(declared):
  layer = mixer(dt_lr=0.0, a_lr=1e-3, b_lr=5e-4)
  a, b = (ParameterGroup(rate, decay=False) for rate in (1e-3, 5e-4))
  system, output = (3, STATES // 2), (2, WIDTH, STATES // 2)
  assert declared(layer.kernel) == {
    'log_dt': ((WIDTH,), True, ParameterGroup(None, decay=False)),
    **dict.fromkeys(('inv_w_real', 'w_imag', 'p_real', 'p_imag'), (system, True, a)),
    **dict.fromkeys(('b_real', 'b_imag'), (system, True, b)),
    **dict.fromkeys(('c_real', 'c_imag'), (output, True, None)),
  }
  values = nnx.to_pure_dict(nnx.state(mixer(dt_min=0.01, dt_max=0.02, parametrization='plain').kernel))
  assert (np.exp(values['log_dt']) >= 0.0099).all()
  assert (np.exp(values['log_dt']) <= 0.0201).all()
  np.testing.assert_allclose(values['inv_w_real'], np.log(0.5), atol=1e-6)
  start = legs(STATES)
  np.testing.assert_allclose(values['w_imag'], np.tile(start.w.imag, (3, 1)), atol=1e-5)
  np.testing.assert_allclose(np.hypot(values['p_real'], values['p_imag'])[1], np.abs(start.p), atol=1e-5)
  wide = make_mixer(
    's4', 64, options={'state_size': 64, 'copies': 1, 'parametrization': 'plain'}, length=8, causal=False,
    protocol=protocol.CLEAN, rngs=nnx.Rngs(0),
  )  # fmt: skip
  for part in (wide.kernel.c_real[...], wide.kernel.c_imag[...]):
    assert abs(np.var(part) - 0.5) < 0.05


@pytest.mark.parametrize('parametrization', ['truncated', 'plain'])
def test_trains_from_the_published_random_values(redrawn, gradients, parametrization):
  layer = redrawn(nnx.clone(mixer(seed=1, parametrization=parametrization)), 's4')
  assert np.std(layer.kernel.c_real[...]) < 0.2
  np.testing.assert_allclose(layer.kernel(LENGTH), kernels(layer, LENGTH), atol=1e-6)
  for path, gradient in gradients(layer, inputs()).items():
    assert np.isfinite(gradient).all(), path
    assert (np.abs(gradient) > 0).all(), path


def test_wrong_options_get_a_sentence():
  with pytest.raises(ValueError, match='copies is 7; choose 1 to model.width=6, or 0 for the width'):
    mixer(copies=7)
  with pytest.raises(ValueError, match='state_size is 5; states come in conjugate pairs'):
    mixer(state_size=5)
  with pytest.raises(ValueError, match='dt_min is 1.0 and dt_max is 0.1'):
    mixer(dt_min=1.0)
