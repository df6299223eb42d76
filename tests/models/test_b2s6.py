"""B2S6: both forms against a loop over positions, S4D as its special case, initial values, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config.protocol import CLEAN
from lra_spt.models import ParameterGroup, make_mixer
from lra_spt.models.hippo import legs
from lra_spt.models.mixers.b2s6 import B2S6

L, D, N, J = 11, 6, 3, 2


def make(causal=True, width=D, **options):
  options = {'blocks': J, 'state_size': 2 * N} | options
  return B2S6(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def recurrence(p, x_LD, s):
  """y of direction s in float64, from its start, channel by channel."""
  a = -np.exp(p['a_log_real']) + 1j * p['a_imag']
  x_LD = x_LD[::-1] if s else x_LD
  h, y_LD = np.zeros((D, N), complex), np.zeros(x_LD.shape)
  for t, x_D in enumerate(x_LD):
    for channel in range(D):
      j, i = divmod(channel, D // J)
      u_P = np.split(x_D, J)[j]
      dt = np.log1p(np.exp(p['dt'][s, j] @ u_P + p['dt_bias'][s, j, i]))
      real, imag = np.split(u_P @ p['select'][s, j], 2)
      beta = p['input_bias'][s, j, i, 0] + 1j * p['input_bias'][s, j, i, 1]
      abar = np.exp(dt * a)
      h[channel] = abar * h[channel] + (abar - 1) / a * (real + 1j * imag + beta) * x_D[channel]
      y_LD[t, channel] = 2 * (u_P @ p['read'][s, j] @ h[channel]).real
  return y_LD[::-1] if s else y_LD


@pytest.fixture
def reference(exact_gelu):
  """reference(mixer, x_LD) -> output in float64."""

  def layer(mixer, x_LD):
    flat, x_LD = nnx.to_flat_state(nnx.state(mixer, nnx.Param)), np.float64(x_LD)
    p = {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}
    y_LD = sum(recurrence(p, x_LD, s) for s in range(len(p['dt']))) + p['skip'] * x_LD
    z = exact_gelu(y_LD) @ p['output.linear.kernel'] + p['output.linear.bias']
    return z[:, :D] / (1 + np.exp(-z[:, D:]))

  return layer


@pytest.mark.parametrize('causal', [False, True])
def test_layer_matches_a_loop_over_positions(causal, reference, assert_follows_positions, perturbed):
  assert_follows_positions(perturbed(make(causal), 0.3), reference, D, (L, 5, 1), 1, 2e-6)


def test_recurrent_form_is_the_scan(assert_recurrent, perturbed):
  assert_recurrent(perturbed(make(), 0.3), make(causal=False), L, D)


def test_without_selection_it_is_s4d():
  """With W = 0, w = 0 and a C that does not see the input, each channel is a system of S4D with B = beta."""
  mixer = make(width=1, blocks=1)
  s4d = make_mixer(
    's4d', 1, options={'state_size': 2 * N}, length=L, causal=True, protocol=CLEAN, rngs=nnx.Rngs(1)
  )
  mixer.dt.set_value(jnp.zeros_like(mixer.dt[...]))
  mixer.select.set_value(jnp.zeros_like(mixer.select[...]))
  s4d.kernel.log_dt.set_value(jnp.log(jax.nn.softplus(mixer.dt_bias[0, 0])))
  s4d.kernel.c_real.set_value(mixer.read[...][0])
  s4d.kernel.c_imag.set_value(jnp.zeros_like(mixer.read[...][0]))
  s4d.skip.set_value(mixer.skip[...])
  nnx.update(s4d.output, nnx.state(mixer.output))
  x = np.zeros((1, L, 1), np.float32)
  x[0, 0], ones = 1, np.ones((1, L, 1), np.float32)
  # C u = C where u = 1. With inputs of 1 the last output is the sum over the kernel.
  np.testing.assert_allclose(mixer(ones), s4d(ones), rtol=2e-6)


def test_initial_values_and_groups(declared):
  mixer = make(causal=False, width=64, blocks=4, state_size=32, ssm_lr=0.002)
  np.testing.assert_allclose(mixer.a_imag[...], legs(32).w.imag, rtol=1e-5)
  np.testing.assert_allclose(mixer.a_log_real[...], np.log(0.5), rtol=1e-5)
  dt = jax.nn.softplus(mixer.dt_bias[...])
  assert 0.00099 < dt.min() < 0.002 < 0.05 < dt.max() < 0.1001
  assert np.abs(mixer.select[...]).max() == pytest.approx(1 / 4, rel=0.01)
  assert float(mixer.read[...].std()) == pytest.approx(1 / 4, rel=0.05)
  np.testing.assert_array_equal(mixer.input_bias[...][..., 0, :], 1)
  slow = ParameterGroup(0.002, decay=False)
  groups = declared(mixer)
  assert {name for name in groups if groups[name][1:] == (True, slow)} == {'a_log_real', 'a_imag', 'dt_bias'}
  assert groups['dt'] == ((2, 4, 16), False, ParameterGroup(0.002, decay=True))
  assert groups['input_bias'] == ((2, 4, 16, 2, 16), False, None)


def test_operations_are_counted():
  assert make(causal=False).flops(L) == L * 2 * D * (2 * (1 + 3 * N) + 24 * N)


def test_blocks_that_do_not_divide_the_width_are_refused():
  with pytest.raises(ValueError, match='model.mixer.blocks is 4, which does not divide model.width 6'):
    make(blocks=4)
