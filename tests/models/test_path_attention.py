"""PaTH attention: golden values, both forms against a loop over positions, operations, errors."""

import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.path_attention import PathAttention
from tests.models.delta_layer import assert_published, parameters, sigmoid, silu

L, D, H, K = 20, 8, 2, 4


def make(causal=True, **options):
  options = {'heads': H} | options
  return PathAttention(D, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def named(published):
  """Published parameters in our layout."""
  maps = {'q_proj': 'query', 'k_proj': 'key', 'v_proj': 'value', 'o_proj': 'out', 'bt_proj': 'rate'}
  maps |= {'w_proj.0': 'turn_in', 'w_proj.1': 'turn_out'}
  ours = {f'{name}/kernel': published[f'{theirs}.weight'].T for theirs, name in maps.items()}
  return ours | {
    'rate/bias': published['bt_proj.bias'],
    'conv': published['w_conv1d.weight'][:, 0].T[None],
  }


def test_layer_is_the_published_one(golden, golden_errors):
  assert_published(golden_errors(make(), golden('path_attention'), named))


def reference(mixer, x_LD):
  """[L, D] in float64, position by position; every position turns the keys behind it."""
  p, x_LD = parameters(mixer), np.float64(x_LD)
  q, k, v = ((x_LD @ p[f'{name}.kernel']).reshape(-1, H, K) for name in ('query', 'key', 'value'))
  turn_LD = x_LD @ p['turn_in.kernel'] @ p['turn_out.kernel']
  beta_LHS = 2 * sigmoid(x_LD @ p['rate.kernel'] + p['rate.bias']).reshape(len(x_LD), H, -1)
  y_LHK = np.zeros(q.shape)
  for direction, conv_JD in enumerate(p['conv']):
    order = np.arange(len(x_LD))[:: -1 if direction else 1]
    for head in range(H):
      keys = []
      for i, t in enumerate(order):
        taps = [conv_JD[len(conv_JD) - 1 - lag] * turn_LD[order[i - lag]] for lag in range(min(i + 1, 3))]
        w = silu(sum(taps)).reshape(H, K)[head]
        w = w / np.sqrt(w @ w + 1e-6)
        keys = [key - beta_LHS[t, head, direction] * w * (w @ key) for key in keys] + [k[t, head]]
        weights = np.exp(np.array(keys) @ q[t, head] / np.sqrt(K))
        y_LHK[t, head] += weights / weights.sum() @ v[order[: i + 1], head]
  return y_LHK.reshape(x_LD.shape) @ p['out.kernel']


@pytest.mark.parametrize('causal', [False, True])
def test_layer_matches_a_loop_over_positions(causal, perturbed, assert_follows_positions):
  assert_follows_positions(perturbed(make(causal)), reference, D, (L, 5, 1), 1, 1e-5)


def test_operations_are_counted():
  assert make().flops(L) == L**2 * (4 * D + 2 * D * K // 32) + 2 * L * 3 * D
  assert make(causal=False).flops(L) == 2 * make().flops(L)


@pytest.mark.parametrize('heads', [0, 3])
def test_errors_name_the_option(heads):
  with pytest.raises(ValueError, match=f'model.width is 8, which model.mixer.heads={heads} does not divide'):
    make(heads=heads)
