"""Kimi Delta Attention: golden values, both forms against a loop over positions, recurrent form, initial
values, operations, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.kda import KimiDeltaAttention
from tests.models import delta_layer

L, D, H, N, P = 20, 8, 2, 4, 6


def make(causal=True, width=D, **options):
  options = {'heads': H, 'expand_v': 1.5} | options
  return KimiDeltaAttention(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def test_layer_is_the_published_one(golden, golden_errors):
  others = {
    'dt_bias': ('dt_bias', lambda x: x[None]),
    'decay': ('A_log', lambda x: x[None]),
    'to_decay/kernel': ('f_proj.1.weight', np.transpose),
    'to_gate/kernel': ('g_proj.1.weight', np.transpose),
    'to_gate/bias': ('g_proj.1.bias', lambda x: x),
  }
  named = delta_layer.ours(['f_proj.0', 'g_proj.0', 'b_proj'], others)
  delta_layer.assert_published(golden_errors(make(), golden('kda'), named))


def reference(mixer, x_LD):
  def rule(p, direction, gates, k_1HN, v_1HP):
    f_P, _, e_H = gates
    rate_HN = delta_layer.softplus(f_P @ p['to_decay.kernel'] + p['dt_bias'][direction]).reshape(H, N)
    a_HN = np.exp(-np.exp(p['decay'][direction])[:, None] * rate_HN)
    return a_HN, mixer.largest * delta_layer.sigmoid(e_H)[None], k_1HN, v_1HP

  def output(p, y_LE, gates):
    return y_LE * delta_layer.sigmoid(gates[1] @ p['to_gate.kernel'] + p['to_gate.bias'])

  return delta_layer.reference(mixer, x_LD, (H * N, H * P, P, P, H), H, 1, rule, output)


@pytest.mark.parametrize('causal, negative', [(False, False), (True, True)])
def test_layer_matches_a_loop_over_positions(causal, negative, perturbed, assert_follows_positions):
  assert_follows_positions(perturbed(make(causal, negative=negative)), reference, D, (L, 5, 1), 1, 1e-5)


def test_recurrent_form_is_the_scan(assert_recurrent):
  assert_recurrent(make(), make(causal=False), L, D)


def test_initial_values():
  mixer = make(causal=False, width=512, heads=128)
  dt_SC, rate_SH = jax.nn.softplus(mixer.dt_bias[...]), jnp.exp(mixer.decay[...])
  assert (dt_SC.shape, rate_SH.shape) == ((2, 512), (2, 128))
  for value, low, high in ((dt_SC, 0.001, 0.1), (rate_SH, 1, 16)):
    assert low - 1e-6 <= float(value.min()) <= float(value.max()) <= high + 1e-5
  assert float(jnp.log(dt_SC).mean()) == pytest.approx(np.log(0.01), abs=0.25)
  assert float(rate_SH.mean()) == pytest.approx(8.5, abs=1)


def test_operations_are_counted():
  """There are 20 positions in chunks of 16, whose weights are made in 4 levels."""
  keys, values = H * N, H * P
  chunk = 16 * ((2 + 4 * 4) * keys + 4 * values) + 4 * 16**2 * 3 * H
  assert make().flops(L) == L * (2 * 4 * (2 * keys + values) + 6 * H * N * P + chunk)


@pytest.mark.parametrize(
  'options, message',
  [
    ({'heads': 3}, 'model.mixer.expand_k is 1.0, which makes 8 channels of model.width 8, not a positive'),
    ({'heads': 0}, 'model.mixer.heads=0'),
  ],
)
def test_errors_name_the_option(options, message):
  with pytest.raises(ValueError, match=message):
    make(**options)
