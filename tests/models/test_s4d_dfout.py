"""S4D-DFouT: the published S4D with the same poles, a float64 kernel, poles, recurrent form, groups."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config import protocol
from lra_spt.models import ParameterGroup, make_mixer

WIDTH, LENGTH, STATES = 6, 19, 8


def make(causal=False, **options):
  options = {'state_size': STATES} | options
  common = {'length': LENGTH, 'causal': causal, 'protocol': protocol.CLEAN, 'rngs': nnx.Rngs(0)}
  return make_mixer('s4d_dfout', WIDTH, options=options, **common)


def kernels(layer, length):
  """K [S, D, length] in float64: both states of every pair, recurrences of scalars."""
  p = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(layer.kernel)))
  xi_D1 = np.exp(p['log_dt'])[:, None]
  logarithm = -xi_D1 * np.exp(p['a_log_real']) + 1j * p['a_imag']
  x = (p['c_real'] + 1j * p['c_imag']) * xi_D1 * (np.exp(logarithm) - 1) / logarithm
  out = []
  for _ in range(length):
    out.append((x + x.conj()).sum(-1).real)
    x = x * np.exp(logarithm)
  return np.stack(out, -1)


@pytest.mark.parametrize('causal', [False, True])
def test_agrees_with_numpy(convolution_layer, causal):
  layer, lengths = make(causal), np.int32([LENGTH, 13])
  x = np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)
  actual = nnx.jit(lambda layer, x: layer(x, lengths_B=lengths))(layer, x)
  expected = convolution_layer(layer, kernels(layer, LENGTH), x, lengths)
  np.testing.assert_allclose(actual, expected, atol=2e-6)


def of_s4d(p):
  """Our parameters for the poles of a published S4D, which has 3 systems (A, B) for 6 channels."""
  dt_D1 = jnp.exp(p['layer.kernel.inv_dt'])
  copies = np.arange(WIDTH) % len(p['layer.kernel.A_real'])
  b_DN, c_SDN = (jax.lax.complex(v[..., 0], v[..., 1]) for v in (p['layer.kernel.B'][0], p['layer.kernel.C']))
  c_SDN = c_SDN * b_DN[copies][None]
  kernel = {
    'log_dt': p['layer.kernel.inv_dt'][:, 0],
    'a_log_real': p['layer.kernel.A_real'][copies],
    'a_imag': -dt_D1 * p['layer.kernel.A_imag'][copies],  # published: -Im A
    'c_real': c_SDN.real,
    'c_imag': c_SDN.imag,
  }
  linear = {'kernel': p['output_linear.0.weight'].T, 'bias': p['output_linear.0.bias']}
  return {'kernel': kernel, 'output': {'linear': linear}, 'skip': p['layer.D'][0]}


@pytest.mark.parametrize('file', ['s4d_zoh_causal', 's4d_zoh_bi'])
def test_agrees_with_a_published_s4d_that_has_these_poles(golden, file):
  values = golden(file)
  graphdef, _, rest = nnx.split(make('causal' in file), nnx.Param, ...)
  wanted = {key.removeprefix('grad:'): value for key, value in values.items() if key.startswith('grad:')}

  @jax.jit
  def run(p, x, dy):
    y, pull = jax.vjp(lambda p, x: nnx.merge(graphdef, of_s4d(p), rest)(x), p, x)
    return y, *pull(dy)

  published = {name: jnp.asarray(values[f'param:{name}']) for name in wanted}
  y, gradients, dx = run(published, values['x'], values['dy'])
  pairs = {'dx': (dx, values['dx'])} | {name: (gradients[name], wanted[name]) for name in wanted}
  assert np.abs(y - values['y']).max() < 2e-6 * np.abs(values['y']).max()
  for name, (actual, expected) in pairs.items():
    assert np.abs(actual - expected).max() < 1e-5 * np.abs(expected).max(), name


def test_poles_start_evenly_spaced_over_the_half_circle():
  layer = make(dt_min=0.01, dt_max=0.02)
  p = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(layer.kernel)))
  angles = np.sort(p['a_imag'].ravel())
  np.testing.assert_allclose(angles, np.pi * np.arange(angles.size) / angles.size, atol=1e-6)
  np.testing.assert_allclose(p['a_imag'][0], 2 * np.pi * np.arange(STATES // 2) / STATES, rtol=1e-6)
  decays = np.exp(p['log_dt'])[:, None] * np.exp(p['a_log_real'])
  assert (0.0049 <= decays).all()
  assert (decays <= 0.0101).all()
  assert np.ptp(decays, axis=1).max() == 0


def test_long_kernels():
  layer = make(state_size=64, dt_min=1e-4)
  k = kernels(layer, 4096)
  np.testing.assert_allclose(nnx.jit(lambda layer: layer.kernel(4096))(layer), k, atol=2e-5 * np.abs(k).max())


def test_recurrent_form_is_the_convolution(assert_recurrent):
  assert_recurrent(make(True), make(), LENGTH, WIDTH)


def test_parameters_and_groups(declared):
  a, free = ParameterGroup(1e-3, decay=False), ParameterGroup(None, decay=False)
  assert declared(make(a_lr=1e-3, dt_lr=0.0).kernel) == {
    'log_dt': ((WIDTH,), True, free),
    **dict.fromkeys(('a_log_real', 'a_imag'), ((WIDTH, STATES // 2), True, a)),
    **dict.fromkeys(('c_real', 'c_imag'), ((2, WIDTH, STATES // 2), True, None)),
  }


def test_an_odd_number_of_states_is_refused():
  with pytest.raises(ValueError, match='model.mixer.state_size is 7; states come in conjugate pairs'):
    make(state_size=7)
