"""HGRN2: golden values of both forms, padding against a loop over positions, lower bounds, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.errors import ConfigError
from lra_spt.models import ExecutionSpec
from lra_spt.models.mixers import hgrn2
from lra_spt.models.mixers.hgrn2 import HGRN2

L, D = 10, 8
NAMES = {
  f'{ours}.{kind}': f'{theirs}.{names[kind]}'
  for ours, theirs, names in (
    ('input', 'in_proj', {'kernel': 'weight', 'bias': 'bias'}),
    ('norm', 'norm', {'scale': 'weight', 'bias': 'bias'}),
    ('out', 'out_proj', {'kernel': 'weight', 'bias': 'bias'}),
  )
  for kind in names
}


def make(causal=True, width=D, **options):
  return HGRN2(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


@pytest.mark.parametrize('form', ['causal', 'bi'])
def test_layer_is_the_published_one(form, golden, assert_golden):
  values = golden(f'hgrn2_{form}')
  values |= {key: values[key].swapaxes(0, 1) for key in ('x', 'y', 'dx', 'dy')}  # published as [L, B, D]
  mixer = make(form == 'causal', expand_ratio=int(values['expand_ratio']))
  mixer.lower_bound.set_value(jnp.asarray(values['lower_bound']))
  assert_golden(mixer, values, NAMES, lambda path, array: array.T)


@pytest.mark.parametrize('largest_scanned', [8, 0])
def test_images_are_read_as_published(largest_scanned, golden, assert_golden, monkeypatch):
  monkeypatch.setattr(hgrn2, 'LARGEST_SCANNED', largest_scanned)
  values = golden('hgrn2_2d')
  for key in ('x', 'y', 'dx', 'dy'):  # published as [rows, columns, B, D]
    rows, columns, batch, width = values[key].shape
    values[key] = values[key].transpose(2, 0, 1, 3).reshape(batch, rows * columns, width)
  options = {'expand_ratio': int(values['expand_ratio']), 'columns': columns}
  mixer = HGRN2(D, length=rows * columns, causal=False, protocol=None, rngs=nnx.Rngs(0), **options)
  assert_golden(mixer, values, NAMES, lambda path, array: array.T)


def test_the_end_of_an_image_may_be_missing():
  mixer = HGRN2(D, length=12, causal=False, protocol=None, rngs=nnx.Rngs(0), columns=4)
  x_BLD = jnp.asarray(np.random.default_rng(0).normal(size=(2, 12, D)), jnp.float32)
  lengths_B = jnp.array([8, 6])
  y_BLD = mixer(x_BLD, lengths_B=lengths_B)
  np.testing.assert_allclose(y_BLD[0, :8], mixer(x_BLD[:1, :8])[0], rtol=1e-5, atol=1e-6)
  changed_BLD = mixer(x_BLD.at[1, 6:].set(7.0), lengths_B=lengths_B)
  np.testing.assert_allclose(changed_BLD[1, :6], y_BLD[1, :6], rtol=1e-6)


def test_an_image_has_whole_rows():
  mixer = HGRN2(D, length=12, causal=False, protocol=None, rngs=nnx.Rngs(0), columns=4)
  with pytest.raises(ConfigError, match=r'has 10 positions, not a multiple of model\.mixer\.columns=4'):
    mixer(jnp.ones((1, 10, D)))


def test_the_scan_is_chosen():
  mixer = HGRN2(D, length=12, causal=True, protocol=None, rngs=nnx.Rngs(0), scan='none such')
  with pytest.raises(ConfigError, match="implementation 'none such' is unknown"):
    mixer(jnp.ones((1, 12, D)))


@pytest.mark.parametrize('columns, causal', [(5, False), (-1, False), (4, True)])
def test_columns_of_no_image(columns, causal):
  with pytest.raises(
    ConfigError, match=f'model.mixer.columns is {columns}, .* divisor of the length 12, or 0'
  ):
    HGRN2(D, length=12, causal=causal, protocol=None, rngs=nnx.Rngs(0), columns=columns)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def reference(mixer, x_LD):
  """y in float64, with a matrix per head, position by position from the start of each direction."""
  p = {'.'.join(path): np.float64(leaf[...]) for path, leaf in nnx.to_flat_state(nnx.state(mixer))}
  v, o, f = np.split(np.float64(x_LD) @ p['input.kernel'] + p['input.bias'], 3, axis=-1)
  a = p['lower_bound'] + (1 - p['lower_bound']) * sigmoid(f)
  y, e = np.zeros_like(v), mixer.expand_ratio
  for step in (1,) if mixer.causal else (1, -1):
    for head in range(v.shape[1] // e):
      channels, s = slice(head * e, head * e + e), np.zeros((e, e))
      for t in range(len(v))[::step]:
        s = a[t, channels, None] * s + np.outer(1 - a[t, channels], (v * sigmoid(v))[t, channels])
        y[t, channels] += sigmoid(o)[t, channels] @ s
  y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
  return (y * p['norm.scale'] + p['norm.bias']) @ p['out.kernel'] + p['out.bias']


@pytest.mark.parametrize('width, expand_ratio', [(D, 2), (24, 12)])
@pytest.mark.parametrize('causal', [False, True])
def test_layer_matches_a_loop_over_positions(causal, width, expand_ratio, assert_follows_positions):
  mixer = make(causal, width, expand_ratio=expand_ratio, depth=3, layer=1)
  assert_follows_positions(mixer, reference, width, (L, 4, 1), 2, 5e-6)


@pytest.mark.parametrize('causal', [False, True])
def test_chunks_have_the_gradients_of_the_scan(causal, gradients, monkeypatch):
  """Some a are 0 in float32."""
  mixer = make(causal)
  mixer.input.bias.set_value(mixer.input.bias[...].at[2 * D].set(-200.0))
  x = jax.random.normal(jax.random.key(0), (2, L, D))
  expected = gradients(mixer, x)
  monkeypatch.setattr(hgrn2, 'LARGEST_SCANNED', 1)
  for path, actual in gradients(nnx.clone(mixer), x).items():
    np.testing.assert_allclose(actual, expected[path], rtol=0, atol=1e-5 * np.abs(expected[path]).max())


def test_recurrent_form_is_the_scan(assert_recurrent):
  assert_recurrent(make(), make(causal=False), L, D)


@pytest.mark.parametrize('scan_layers', ['never', 'always'])
def test_each_layer_of_a_model_has_its_bound(scan_layers, make_model, encode):
  """It is i / depth in layer i, before and after a pass, and no parameter."""
  model = make_model(mixer={'name': 'hgrn2'}, depth=4, execution=ExecutionSpec(scan_layers=scan_layers))
  assert np.isfinite(encode(model, jnp.ones((1, 16, 2)))).all()
  bounds = model.encoder.blocks.mixer.lower_bound
  np.testing.assert_array_equal(bounds[...], np.repeat([[0], [0.25], [0.5], [0.75]], 8, axis=1))
  assert not isinstance(bounds, nnx.Param)


def test_operations_are_counted():
  assert make().flops(L) == L * D * 4 * 5
  assert make(False, 32, expand_ratio=16).flops(L) == L * 32 * 2 * (4 * 16 + 2 * 16 * 5)


def test_parameters(declared):
  """All parameters are in the stage's group; linear maps start uniform in +-1 / sqrt(fan-in)."""
  assert not any(ssm or group for _, ssm, group in declared(make()).values())
  mixer = make(width=64)
  for layer, outputs in ((mixer.input, 192), (mixer.out, 64)):
    assert layer.kernel.shape == (64, outputs)
    assert np.abs(layer.kernel[...]).max() == pytest.approx(1 / 8, rel=0.01)
    assert np.abs(layer.kernel[...]).mean() == pytest.approx(1 / 16, rel=0.03)


@pytest.mark.parametrize('expand_ratio', [0, 3])
def test_a_ratio_that_does_not_divide_is_refused(expand_ratio):
  with pytest.raises(
    ValueError, match=f'expand_ratio is {expand_ratio}, which does not divide model.width 8'
  ):
    make(expand_ratio=expand_ratio)
