"""LongConv: numbers of the published code, float64 NumPy, dropout of kernels, initial values, parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config import protocol
from lra_spt.models import ParameterGroup, make_mixer
from lra_spt.models.mixers.longconv import decays

WIDTH, LENGTH = 6, 19


@functools.cache
def mixer(causal=False, width=WIDTH, length=LENGTH, **options):
  common = {'length': length, 'causal': causal, 'protocol': protocol.CLEAN, 'rngs': nnx.Rngs(0)}
  return make_mixer('longconv', width, options={'init': 'exp'} | options, **common)


@nnx.jit
def apply(layer, x_BLD, lengths_B=None, keys_B=None):
  return layer(x_BLD, lengths_B=lengths_B, deterministic=keys_B is None, rngs=keys_B)


def inputs(batch=2, length=LENGTH):
  return np.random.default_rng(0).normal(size=(batch, length, WIDTH)).astype(np.float32)


@pytest.mark.parametrize('causal', [False, True])
def test_agrees_with_the_published_code(golden, golden_errors, causal):
  values = golden('longconv_causal' if causal else 'longconv_bi')

  def named(published):
    return {
      'kernel/taps': published['kernel.kernel'].reshape(-1, 8, 12),
      'skip': published['D'].reshape(8),
      'output/linear/kernel': published['output_linear.0.weight'].T,
      'output/linear/bias': published['output_linear.0.bias'],
    }

  layer = nnx.clone(mixer(causal, 4, 12))
  errors = golden_errors(layer, values, named, values['lengths'].astype(np.int32))
  assert errors.pop('y') < 2e-6
  assert max(errors.values()) < 2e-6, errors
  np.testing.assert_array_equal(layer.kernel(12).reshape(-1, 4, 12), values['kernel_squashed'])


@pytest.mark.parametrize('causal, kernels, gate', [(False, 3, 'glu'), (True, 1, 'none')])
def test_agrees_with_numpy(convolution_layer, causal, kernels, gate):
  layer, x = mixer(causal, kernels=kernels, gate=gate), inputs()
  taps = np.float64(layer.kernel.taps[...])
  squashed = np.where(np.abs(taps) > 0.003, taps - np.copysign(0.003, taps), 0)
  lengths = np.array([LENGTH, 13], np.int32)
  expected = convolution_layer(layer, squashed, x, lengths)
  np.testing.assert_allclose(apply(layer, x, lengths), expected, atol=2e-6)
  np.testing.assert_allclose(layer.max_kernel(9), np.abs(squashed[..., :9]).max((0, 1)), atol=1e-8)


def test_dropout_of_kernels():
  layer, x = mixer(kernels=2, threshold=0.0), np.tile(inputs(1), (2, 1, 1))
  keys = jax.random.split(jax.random.key(0), 4)
  first, again, other = (apply(layer, x, None, keys[i : i + 2]) for i in (0, 0, 2))
  np.testing.assert_array_equal(first, again)
  np.testing.assert_array_equal(first[0], first[1])  # rows share the dropped values
  assert np.abs(first - other).max() > 1e-4
  assert np.abs(first - apply(layer, x)).max() > 1e-4
  dropped = layer.kernel.drop(jnp.ones((2, 12, 4000)), keys[0])
  assert set(np.unique(dropped)) == {np.float32(0), np.float32(1.25)}
  assert abs(np.mean(dropped) - 1) < 0.01
  some = jnp.array([7, 3])
  np.testing.assert_array_equal(layer.kernel.drop(jnp.ones((2, 2, 4000)), keys[0], some), dropped[:, some])
  same = mixer(kernels=2, threshold=0.0, kernel_dropout=0.0)
  np.testing.assert_array_equal(apply(same, x, None, keys[:2]), apply(same, x))


def test_initial_values(golden):
  values = golden('longconv_double_exp')
  np.testing.assert_allclose(np.broadcast_to(decays(4, 12), (2, 4, 12)), values['ratio'], rtol=1e-6)
  np.testing.assert_allclose(decays(4, 12)[None] * values['raw'], values['kernel'], rtol=1e-6)
  random = np.asarray(mixer(length=999, init='random').kernel.taps[...])
  assert random.shape == (2, 12, 999)
  assert abs(random.std() / 0.002 - 1) < 0.02
  # The squash sets values within 1.5 deviations to 0.
  assert abs(np.mean(np.asarray(mixer(length=999, init='random').kernel(999)) == 0) - 0.866) < 0.01
  undone = np.asarray(mixer(length=999).kernel.taps[...]) / np.tile(decays(WIDTH, 999), (2, 1))
  assert abs(undone.std() / 0.02 - 1) < 0.02


def test_parameters_and_groups(declared):
  assert declared(mixer(kernel_lr=5e-4).kernel) == {
    'taps': ((2, 2 * WIDTH, LENGTH), True, ParameterGroup(5e-4, decay=False))
  }
  layer = mixer()
  assert layer.kernel.taps.get_metadata('group') == ParameterGroup(1e-3, decay=False)
  assert layer.output.linear.kernel[...].shape == (2 * WIDTH, 2 * WIDTH)
  assert layer.flops(8) == 2 * WIDTH * 320


@pytest.mark.parametrize(
  'options, message',
  [
    ({'threshold': -1.0}, 'model.mixer.threshold is -1.0'),
    ({'kernel_dropout': 1.0}, 'model.mixer.kernel_dropout is 1.0'),
  ],
)
def test_wrong_options_get_a_sentence(options, message):
  with pytest.raises(ValueError, match=message):
    mixer(**options)


def test_there_is_no_recurrent_form():
  with pytest.raises(ValueError, match='no recurrent form: its kernel is not a sum of few exponentials'):
    mixer(True).init_state(2)
