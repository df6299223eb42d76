"""Gated DeltaProduct: golden values, both forms against a loop over positions, recurrent form, operations,
errors."""

import numpy as np
import pytest
from flax import nnx

from lra_spt.config.protocol import CLEAN
from lra_spt.models.mixers.gated_deltaproduct import GatedDeltaProduct
from lra_spt.models.registry import make_mixer
from tests.models import delta_layer

L, D, H, N, P = 20, 8, 2, 3, 6


def make(causal=True, **options):
  options = {'heads': H} | options
  return GatedDeltaProduct(D, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


@pytest.mark.parametrize(
  'name, options',
  [
    ('gated_deltaproduct', {}),
    pytest.param('gated_deltaproduct_three', {'factors': 3, 'negative': False}, marks=pytest.mark.slow),
  ],
)
def test_layer_is_the_published_one(name, options, golden, golden_errors):
  others = {'dt_bias': ('dt_bias', lambda x: x[None]), 'decay': ('A_log', lambda x: x[None])}
  named = delta_layer.ours(['g_proj', 'b_proj', 'a_proj'], others)
  delta_layer.assert_published(golden_errors(make(**options), golden(name), named))


def reference(mixer, x_LD):
  factors = mixer.factors

  def rule(p, direction, gates, k_JHN, v_JHP):
    _, e_C, d_H = gates
    rate_H = delta_layer.softplus(d_H + p['dt_bias'][direction])
    a_H1 = np.exp(-np.exp(p['decay'][direction]) * rate_H)[:, None]
    return a_H1, mixer.largest * delta_layer.sigmoid(e_C).reshape(factors, H), k_JHN, v_JHP

  def output(p, y_LE, gates):
    return y_LE * delta_layer.silu(gates[0])

  return delta_layer.reference(mixer, x_LD, (H * N, H * P, H * P, factors * H, H), H, factors, rule, output)


@pytest.mark.parametrize('causal, options', [(False, {'factors': 3}), (True, {'negative': False})])
def test_layer_matches_a_loop_over_positions(causal, options, perturbed, assert_follows_positions):
  assert_follows_positions(perturbed(make(causal, **options)), reference, D, (L, 5, 1), 1, 1e-5)


def test_recurrent_form_is_the_scan(assert_recurrent):
  assert_recurrent(make(), make(causal=False), L, D)


def test_operations_are_counted():
  """There are 40 factors in chunks of 16."""
  keys, values = H * N, H * P
  chunk = 16 * (6 * keys + 4 * values) + 4 * 16**2 * 3 * H
  assert make().flops(L) == L * (2 * 4 * (3 * keys + 2 * values) + 2 * (6 * H * N * P + chunk))


@pytest.mark.parametrize(
  'options, message',
  [
    ({'heads': 4}, 'model.mixer.expand_k is 0.75, which makes 6 channels of model.width 8, not a positive'),
    ({'factors': 0}, 'model.mixer.factors is 0; it must be at least 1'),
  ],
)
def test_errors_name_the_option(options, message):
  with pytest.raises(ValueError, match=message):
    make_mixer(
      'gated_deltaproduct',
      D,
      options={'heads': H} | options,
      length=L,
      causal=True,
      protocol=CLEAN,
      rngs=nnx.Rngs(0),
    )
