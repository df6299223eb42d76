"""Gated DeltaNet-2: golden values, both forms against a loop over positions, recurrent form, errors."""

import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.gated_deltanet2 import GatedDeltaNet2
from tests.models import delta_layer

L, D, H, N, P = 20, 8, 2, 4, 6


def make(causal=True, **options):
  options = {'heads': H, 'expand_v': 1.5} | options
  return GatedDeltaNet2(D, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def test_layer_is_the_published_one(golden, golden_errors):
  others = {
    'dt_bias': ('dt_bias', lambda x: x[None]),
    'decay': ('A_log', lambda x: x[None]),
    'to_decay/kernel': ('f_proj.1.weight', np.transpose),
    'to_gate/kernel': ('g_proj.1.weight', np.transpose),
    'to_gate/bias': ('g_proj.1.bias', lambda x: x),
  }
  named = delta_layer.ours(['f_proj.0', 'g_proj.0', 'b_proj', 'w_proj'], others)
  delta_layer.assert_published(golden_errors(make(), golden('gated_deltanet2'), named))


def reference(mixer, x_LD):
  def rule(p, direction, gates, k_1HN, v_1HP):
    f_P, _, e_K, w_E = gates
    rate_HN = delta_layer.softplus(f_P @ p['to_decay.kernel'] + p['dt_bias'][direction]).reshape(H, N)
    a_HN = np.exp(-np.exp(p['decay'][direction])[:, None] * rate_HN)
    erase_1HN = mixer.largest * delta_layer.sigmoid(e_K).reshape(1, H, N) * k_1HN
    return a_HN, np.ones((1, H)), erase_1HN, delta_layer.sigmoid(w_E).reshape(1, H, P) * v_1HP

  def output(p, y_LE, gates):
    return y_LE * delta_layer.sigmoid(gates[1] @ p['to_gate.kernel'] + p['to_gate.bias'])

  return delta_layer.reference(mixer, x_LD, (H * N, H * P, P, P, H * N, H * P), H, 1, rule, output)


@pytest.mark.parametrize('causal, negative', [(False, False), (True, True)])
def test_layer_matches_a_loop_over_positions(causal, negative, perturbed, assert_follows_positions):
  assert_follows_positions(perturbed(make(causal, negative=negative)), reference, D, (L, 5, 1), 1, 1e-5)


def test_recurrent_form_is_the_scan(assert_recurrent):
  assert_recurrent(make(), make(causal=False), L, D)


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
