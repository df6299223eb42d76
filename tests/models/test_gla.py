"""GLA: golden values, both forms against a loop over positions, initial values, operations, errors."""

import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.gla import GLA

L, D, H, N, P, R = 13, 8, 2, 3, 4, 3
NAMES = {
  'input.kernel': 'in_proj',
  'decay_gate': 'gk_proj.1.weight',
  'decay_gate_bias': 'gk_proj.1.bias',
  'out.kernel': 'o_proj.weight',
  'norm': 'g_norm_swish_gate.weight',
}


def make(causal=True, width=D, **options):
  options = {'heads': H, 'expand_k': 0.75, 'rank': R} | options
  return GLA(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def ours(path, array):
  """Transposes weights, which are (out, in) in PyTorch, and adds the axis of directions to the gate."""
  return array.T[None] if 'gate' in path else array.T


def test_layer_is_the_published_one(golden, assert_golden):
  assert_golden(make(), golden('gla'), NAMES, ours)


def reference(mixer, x_LD):
  """y in float64, position by position from the start of each direction."""
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  p = {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}
  cuts = np.cumsum([H * N, H * N, H * P, H * P])
  q, k, v, z, r = np.split(np.float64(x_LD) @ p['input.kernel'], cuts, axis=1)
  q, k, v = q.reshape(-1, H, N), k.reshape(-1, H, N), v.reshape(-1, H, P)
  y = np.zeros_like(v)
  for direction in range(len(p['decay_gate'])):
    gate = r[:, direction * R : (direction + 1) * R] @ p['decay_gate'][direction]
    a = (1 / (1 + np.exp(-gate - p['decay_gate_bias'][direction]))) ** (1 / mixer.normalizer)
    for head in range(H):
      s = np.zeros((N, P))
      for t in range(len(v))[:: -1 if direction else 1]:
        s = a.reshape(k.shape)[t, head, :, None] * s + np.outer(k[t, head], v[t, head])
        y[t, head] += q[t, head] @ s / np.sqrt(N)
  y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-5) * p['norm']
  return (y.reshape(z.shape) * z / (1 + np.exp(-z))) @ p['out.kernel']


@pytest.mark.parametrize('causal', [False, True])
def test_layer_matches_a_loop_over_positions(causal, assert_follows_positions, perturbed):
  mixer = perturbed(make(causal, normalizer=2))
  assert_follows_positions(mixer, reference, D, (L, 5, 1), 1, 5e-6)


def test_recurrent_form_is_the_scan(assert_recurrent, perturbed):
  assert_recurrent(perturbed(make()), make(causal=False), L, D)


def test_initial_values():
  mixer = make(causal=False, width=64, rank=16)
  assert mixer.input.kernel.shape == (64, 2 * 48 + 2 * 64 + 2 * 16)
  assert mixer.decay_gate.shape == (2, 16, 48)
  for value in (mixer.decay_gate, mixer.decay_gate_bias):
    assert np.abs(value[...]).max() == pytest.approx(1 / 4, rel=0.05)


def test_operations_are_counted():
  """There are 13 positions in one chunk of 16."""
  each = 2 * R * H * N + 4 * H * N * P + 2 * 16 * (H * P + 5 * H * N)
  assert make().flops(L) == L * each
  assert make(causal=False).flops(L) == 2 * L * each


@pytest.mark.parametrize(
  'options, message',
  [
    ({'heads': 3}, 'model.mixer.expand_v is 1.0, which makes 8 channels of model.width 8, not a positive'),
    ({'expand_k': 0.1}, 'model.mixer.expand_k is 0.1, which makes 1 channels'),
  ],
)
def test_errors_name_the_option(options, message):
  with pytest.raises(ValueError, match=message):
    make(**options)
