"""SPADE: golden values of its attention and buckets, the first layer against S4 in float64, other layers."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config.protocol import CLEAN
from lra_spt.models import ExecutionSpec, make_mixer
from lra_spt.models.mixers.spade import t5_buckets

L, D, H = 14, 8, 2
SMALL = {'heads': H, 'radius': 3, 'buckets': 8, 'max_distance': 6, 'state_size': 4}


def make(causal=False, layer=0, length=L, **options):
  common = {'length': length, 'causal': causal, 'protocol': CLEAN, 'rngs': nnx.Rngs(0)}
  return make_mixer('spade', D, options=SMALL | options, offered={'layer': layer, 'depth': 3}, **common)


class NoConvolution(nnx.Module):
  """Takes the place of the convolution, which later layers do not run and which compiles long."""

  def __call__(self, x_BLD, *, lengths_B=None):
    return x_BLD


@pytest.mark.parametrize('causal', [False, True])
def test_attention_is_the_published_one(causal, golden, assert_golden):
  """Compares the output of any layer but the first."""
  values = golden(f'spade_local_attention_{"causal" if causal else "bi"}')
  values |= {key: values[key].swapaxes(0, 1) for key in ('x', 'y', 'dx', 'dy')}  # published as [L, B, D]
  names = {f'{ours}.kernel': f'{ours[0]}.weight' for ours in ('query', 'key', 'value', 'out')}
  names |= {'bias': 'relative_attention_bias.weight'}
  mixer = make(causal, layer=1, length=11)
  mixer.s4 = NoConvolution()
  read = lambda path, array: array if path == 'bias' else array.T  # noqa: E731
  assert_golden(mixer, values, names, read, lengths_B=np.int32(values['valid'].sum(1)))


def test_buckets_are_the_published_ones(golden):
  values = golden('t5_buckets')
  for form in ('bi', 'causal'):
    actual = t5_buckets(values['relative_position'], 32, 128, form == 'causal')
    np.testing.assert_array_equal(actual, values[form])


def normed(x, norm):
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
  return x * np.float64(norm.scale[...]) + np.float64(norm.bias[...])


@pytest.mark.parametrize('causal', [False, True])
def test_first_layer_adds_the_convolution(causal, assert_follows_positions):
  """The reference loops over positions and uses the kernel of S4."""
  mixer, later = make(causal), make(causal, layer=2)
  later.s4 = NoConvolution()
  kernel_SDL = np.float64(mixer.s4.kernel(L))

  def reference(mixer, x_LD):
    x = np.float64(x_LD)
    a = np.float64(nnx.jit(lambda later, x: later(x))(later, x_LD[None]))[0]
    s = np.float64(mixer.s4.skip[...]) * x
    for t, u in np.ndindex(len(x), len(x)):
      if u <= t:
        s[t] += kernel_SDL[0, :, t - u] * x[u]
      elif not causal:
        s[t] += kernel_SDL[1, :, u - t - 1] * x[u]
    both = np.concatenate([normed(s, mixer.global_norm), normed(a, mixer.local_norm)], axis=-1)
    return both @ np.float64(mixer.combine.kernel[...]) + np.float64(mixer.combine.bias[...])

  assert_follows_positions(mixer, reference, D, (L, 9), 1, 2e-5)


def test_frozen_state_space_parameters_do_not_train(declared):
  assert not any(ssm for _, ssm, _ in declared(make()).values())
  assert any(ssm for _, ssm, _ in declared(make(freeze_s4=False)).values())
  assert sum(path[0] == 's4' for path, _ in nnx.to_flat_state(nnx.state(make(), nnx.Param))) == 0


def test_only_the_first_layer_is_marked(make_model):
  model = make_model(mixer={'name': 'spade'} | SMALL, depth=3, position='none')
  np.testing.assert_array_equal(model.encoder.blocks.mixer.is_first[...], [True, False, False])


@pytest.mark.slow
@pytest.mark.parametrize('scan_layers', ['never', 'always'])
def test_only_the_first_layer_of_a_model_convolves(scan_layers, make_model):
  execution = ExecutionSpec(scan_layers=scan_layers)
  model = make_model(mixer={'name': 'spade'} | SMALL, depth=3, position='none', execution=execution)
  used = nnx.jit(nnx.grad(lambda model, x: jnp.sum(model.encoder(x) ** 2)))(model, jnp.ones((1, 16, 2)))
  combined = np.abs(used.encoder.blocks.mixer.combine.kernel[...]).max((1, 2))
  assert combined[0] > 0
  assert not combined[1:].any()


def test_initial_values_and_operations():
  mixer = make()
  assert np.abs(mixer.query.kernel[...]).max() <= np.sqrt(3 / D / 2) < np.abs(mixer.out.kernel[...]).max()
  t, s = np.ogrid[:L, :L]
  unused = 2 * L * 2 * D * D * 2
  assert mixer.flops(L) == 4 * D * (np.abs(t - s) <= 3).sum() + (mixer.s4.flops(L) - unused) // 3


@pytest.mark.parametrize('options', [{'radius': -1}, {'buckets': 6}, {'max_distance': 4}])
def test_options_out_of_range_are_refused(options):
  with pytest.raises(ValueError, match='model.mixer has radius=.*; choose 0 or more, a multiple of 4'):
    make(**options)
