"""SGConv: numbers of the published code, float64 NumPy, the stored norm, parameters."""

import functools

import numpy as np
import pytest
from flax import nnx

from lra_spt.config import protocol
from lra_spt.models import ParameterGroup, make_mixer

WIDTH, LENGTH = 5, 19


@functools.cache
def mixer(causal=False, width=WIDTH, length=LENGTH, **options):
  common = {'length': length, 'causal': causal, 'protocol': protocol.CLEAN, 'rngs': nnx.Rngs(0)}
  return make_mixer('sgconv', width, options={'kernel_dim': 3} | options, **common)


@nnx.jit
def apply(layer, x_BLD, lengths_B=None):
  return layer(x_BLD, lengths_B=lengths_B)


def inputs():
  return np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH)).astype(np.float32)


def kernels(pieces, decay, mode, linear):
  """K [S, D, lags] in float64 and before the division, value by value."""
  S, D, count, d = pieces.shape
  lags = d * 2 ** (count - 1)
  out = np.zeros((S, D, lags))
  for s, c in np.ndindex(S, D):
    start = 0
    for j in range(count):
      factor = 2 ** (max(0, j - 1) if mode == 'cat' else j)
      at = (np.arange(d * factor) + 0.5) / factor
      piece = pieces[s, c, j]
      values = np.interp(at, np.arange(d) + 0.5, piece) if linear else piece[np.int64(at)]
      out[s, c, start : start + d * factor] += values * decay[c] ** (count - 1 - j)
      start += d * factor if mode == 'cat' else 0
  return out


GOLDEN = {
  'cat_randn_bi': {},
  'cat_randn_causal': {},
  'cat_randn_nearest_bi': {'interpolation': 'nearest'},
  'sum_randn_bi': {'mode': 'sum'},
  'decay_1_2': {'decay_min': 1.0, 'gate': 'none'},
}


@pytest.mark.parametrize('name', GOLDEN)
def test_agrees_with_the_published_code(golden, golden_errors, name):
  values, linear = golden(f'sgconv_{name}'), 'output_linear' if name == 'decay_1_2' else 'output_linear.0'

  def named(published):
    return {
      'kernel/pieces': np.stack([published[f'kernel_list.{i}'] for i in range(values['num_scales'])], 2),
      'skip': published['D'].reshape(4),
      'output/linear/kernel': published[f'{linear}.weight'].T,
      'output/linear/bias': published[f'{linear}.bias'],
    }

  layer = nnx.clone(mixer(name == 'cat_randn_causal', 4, 24, kernel_dim=4, **GOLDEN[name]))
  errors = golden_errors(layer, values, named)
  assert errors.pop('y') < 2e-6
  assert max(errors.values()) < 2e-6, errors
  np.testing.assert_allclose(layer.kernel.norm[...], values['buffer:kernel_norm'], rtol=1e-6)


@pytest.mark.parametrize(
  'causal, options',
  [
    (True, {'mode': 'sum', 'interpolation': 'nearest'}),
    (False, {'decay_min': 1.2, 'decay_max': 3.0}),
    (False, {'kernel_dim': 32}),
  ],
)
def test_agrees_with_numpy(convolution_layer, causal, options):
  layer, x = mixer(causal, **options), inputs()
  decay = np.linspace(options.get('decay_min', 2), options.get('decay_max', 2), WIDTH)
  mode, linear = options.get('mode', 'cat'), options.get('interpolation') is None
  k = kernels(np.float64(layer.kernel.pieces[...]), decay, mode, linear)
  k /= np.sqrt((k**2).sum(-1, keepdims=True))
  np.testing.assert_allclose(layer.kernel(LENGTH), k[..., :LENGTH], atol=1e-6)
  np.testing.assert_allclose(layer.max_kernel(9), np.abs(k[..., :9]).max((0, 1)), rtol=1e-5)
  lengths = np.array([LENGTH, 13], np.int32)
  expected = convolution_layer(layer, k, x, lengths)
  np.testing.assert_allclose(apply(layer, x, lengths), expected, atol=2e-6)


def test_training_does_not_change_the_norm_of_a_kernel():
  layer = nnx.clone(mixer())
  layer.kernel.pieces[...] *= 3
  np.testing.assert_allclose(layer.kernel(LENGTH), 3 * mixer().kernel(LENGTH), atol=1e-6)


def test_random_values_have_separate_norms_in_every_layer(make_model):
  model = make_model(mixer={'name': 'sgconv', 'kernel_dim': 4}, random_init='ssm')
  kernel = model.encoder.blocks.mixer.kernel
  assert abs(np.std(kernel.pieces[...]) - 0.1) < 0.02
  pieces = np.float64(kernel.pieces[...])  # [depth, S, D, J, d]
  k = np.stack([kernels(layer, np.full(8, 2.0), 'cat', True) for layer in pieces])
  np.testing.assert_allclose(kernel.norm[..., 0], np.sqrt((k**2).sum(-1)), rtol=1e-5)


def test_parameters_and_groups(declared):
  def abstract(**options):
    return nnx.eval_shape(lambda: mixer.__wrapped__(**options)).kernel

  # 3 * 2^9 = 1536 is the smallest number of lags that covers 1000.
  kernel = abstract(length=1000, kernel_lr=5e-4)
  assert declared(kernel) == {'pieces': ((2, WIDTH, 10, 3), True, ParameterGroup(5e-4, decay=True))}
  assert abstract(kernel_lr=0.0).pieces.get_metadata('group') == ParameterGroup(None, decay=True)
  for length, kernel_dim, count in ((1024, 32, 6), (1025, 32, 7), (8, 32, 1)):
    assert abstract(length=length, kernel_dim=kernel_dim).pieces.shape[2] == count
  assert abs(np.std(mixer(kernel_dim=32).kernel.pieces[...]) - 1) < 0.15


def test_decays_in_the_wrong_order_are_refused():
  with pytest.raises(ValueError, match='model.mixer.decay_min is 3.0 and decay_max is 2.0'):
    mixer(decay_min=3.0)
