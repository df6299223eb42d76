"""Hyena: golden values, the bidirectional form against loops over positions, initial values, errors."""

import jax
import numpy as np
import pytest
from flax import nnx
from jax import lax

from lra_spt.models.mixers.hyena import Hyena
from lra_spt.models.registry import ParameterGroup

L, D = 16, 6
NAMES = {
  'input.kernel': 'in_proj.weight',
  'input.bias': 'in_proj.bias',
  'out.kernel': 'out_proj.weight',
  'out.bias': 'out_proj.bias',
  'conv': 'short_filter.weight',
  'conv_bias': 'short_filter.bias',
  'skip': 'filter_fn.bias',
  'positions': 'filter_fn.pos_emb.z',
  'first': 'filter_fn.implicit_filter.0.weight',
  'first_bias': 'filter_fn.implicit_filter.0.bias',
  'frequencies': 'filter_fn.implicit_filter.1.freq',
  'second': 'filter_fn.implicit_filter.2.weight',
  'second_bias': 'filter_fn.implicit_filter.2.bias',
  'third': 'filter_fn.implicit_filter.4.weight',
  'third_bias': 'filter_fn.implicit_filter.4.bias',
  'last': 'filter_fn.implicit_filter.6.weight',
}


def make(causal=True, width=D, **options):
  options = {'features': 5, 'hidden': 8} | options
  return Hyena(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def ours(path, array):
  """Transposes weights, which are (out, in) in PyTorch."""
  if path in ('positions', 'frequencies'):
    return array[0]
  return array[:, 0].T if path == 'conv' else array.T


@pytest.mark.parametrize('order', [2, 3])
def test_operator_is_the_published_one(order, golden, assert_golden):
  values = golden(f'hyena_order{order}')
  features = values['param:filter_fn.pos_emb.z'].shape[2]
  assert_golden(make(order=order, features=features), values, NAMES, ours, backward=2e-5)


def reference(mixer, x_LD):
  """y in float64, lag by lag."""
  p = {
    '.'.join(path): np.asarray(leaf[...], np.float64)
    for path, leaf in nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  }
  z = p['positions']
  for name in ('first', 'second', 'third'):
    z = np.sin(p['frequencies'] * (z @ p[name] + p[f'{name}_bias']))
  convolutions = mixer.order - 1
  kernels = (z @ p['last']).reshape(L, -1, D, convolutions)  # [lag, direction, channel, convolution]
  rates = np.linspace(np.log(100) / 1.5, np.log(100) / 0.3, D * convolutions).reshape(D, convolutions)
  kernels *= np.exp(-np.arange(L)[:, None, None] / (L - 1) * rates)[:, None]
  length, skip = len(x_LD), p['skip'].reshape(D, convolutions)
  projected = np.float64(x_LD) @ p['input.kernel'] + p['input.bias']
  streams, taps = np.zeros_like(projected) + p['conv_bias'], len(p['conv'])
  for t in range(length):
    for j in range(taps):
      s = t + j - (taps - 1 if mixer.causal else taps // 2)
      if 0 <= s < length:
        streams[t] += p['conv'][j] * projected[s]
  *gates, v = np.split(streams, mixer.order + 1, axis=1)
  for o in range(convolutions):
    u = v * gates[convolutions - o]
    v = skip[:, o] * u
    for t in range(length):
      for s in range(length):
        if s <= t:
          v[t] += kernels[t - s, 0, :, o] * u[s]
        elif not mixer.causal:
          v[t] += kernels[s - t - 1, 1, :, o] * u[s]
  return (v * gates[0]) @ p['out.kernel'] + p['out.bias']


@pytest.mark.parametrize('causal, order', [(False, 2), (False, 3), (True, 2)])
def test_operator_matches_a_loop_over_positions(causal, order, assert_follows_positions):
  assert_follows_positions(make(causal, order=order), reference, D, (L, 5, 1), 2, 5e-6)


def test_initial_values_and_groups(declared, golden):
  values = golden('hyena_order2')
  np.testing.assert_allclose(make().positions[...], values['param:filter_fn.pos_emb.z'][0], atol=0.3)
  mixer = make(width=64, hidden=64)
  for value, inputs in ((mixer.conv, 3), (mixer.conv_bias, 3), (mixer.second, 64), (mixer.last, 64)):
    assert np.abs(value[...]).max() == pytest.approx(inputs**-0.5, rel=0.05)
  assert float(mixer.skip[...].std()) == pytest.approx(1, abs=0.3)
  actual = declared(mixer)
  assert actual['last'][2] == actual['frequencies'][2] == ParameterGroup(1e-3, False)
  assert actual['positions'][2] == ParameterGroup(1e-5, False)
  assert actual['conv'][2] is None


def test_the_network_of_the_kernels_asks_for_full_precision():
  jaxpr = jax.make_jaxpr(make().kernels, static_argnums=0)(L)
  products = [eqn.params['precision'] for eqn in jaxpr.eqns if eqn.primitive is lax.dot_general_p]
  assert products == [(lax.Precision.HIGHEST, lax.Precision.HIGHEST)] * 4


def test_operations_are_counted():
  assert make().flops(L) == 2 * 2.5 * 32 * 5 * D + 2 * 3 * L * 3 * D


@pytest.mark.parametrize(
  'options, message',
  [
    ({'order': 1}, 'model.mixer.order is 1'),
    ({'features': 4}, 'model.mixer.features is 4; choose an odd number from 3 on'),
  ],
)
def test_errors_name_the_option(options, message):
  with pytest.raises(ValueError, match=message):
    make(**options)
