"""DeltaNet: golden values, both forms against a loop over positions, recurrent form, operations, errors."""

import pytest
from flax import nnx

from lra_spt.models.mixers.deltanet import DeltaNet
from tests.models import delta_layer

L, D, H, N, P = 20, 8, 2, 3, 6


def make(causal=True, **options):
  options = {'heads': H, 'expand_k': 0.75, 'expand_v': 1.5} | options
  return DeltaNet(D, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def test_layer_is_the_published_one(golden, golden_errors):
  errors = golden_errors(make(negative=True), golden('deltanet'), delta_layer.ours(['b_proj']))
  delta_layer.assert_published(errors)


def reference(mixer, x_LD):
  def rule(p, direction, gates, k_1HN, v_1HP):
    return 1, mixer.largest * delta_layer.sigmoid(gates[0])[None], k_1HN, v_1HP

  return delta_layer.reference(mixer, x_LD, (H * N, H * P, H), H, 1, rule, lambda p, y_LE, gates: y_LE)


@pytest.mark.parametrize('causal, negative', [(False, False), (True, True)])
def test_layer_matches_a_loop_over_positions(causal, negative, perturbed, assert_follows_positions):
  assert_follows_positions(perturbed(make(causal, negative=negative)), reference, D, (L, 5, 1), 1, 1e-5)


def test_recurrent_form_is_the_scan(assert_recurrent):
  assert_recurrent(make(negative=True), make(causal=False), L, D)


def test_operations_are_counted():
  """There are 20 positions in chunks of 16."""
  keys, values = H * N, H * P
  chunk = 16 * (6 * keys + 4 * values) + 4 * 16**2 * 3 * H
  assert make().flops(L) == L * (2 * 4 * (2 * keys + values) + 6 * H * N * P + chunk)
  assert make(causal=False).flops(L) == 2 * make().flops(L)


@pytest.mark.parametrize(
  'options, message',
  [
    ({'heads': 4}, 'model.mixer.expand_k is 0.75, which makes 6 channels of model.width 8, not a positive'),
    ({'expand_v': 1.25, 'heads': 3}, 'expand_v is 1.25, which makes 10 channels .* of model.mixer.heads=3'),
    ({'heads': 0}, 'model.mixer.heads=0'),
  ],
)
def test_errors_name_the_option(options, message):
  with pytest.raises(ValueError, match=message):
    make(**options)
