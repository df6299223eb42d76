"""RWKV-7: golden values, both forms against a loop over positions, recurrent form, initial values,
operations, errors."""

import numpy as np
import pytest
from flax import nnx

from lra_spt.models.delta import recurrence_flops
from lra_spt.models.mixers.rwkv7 import RWKV7
from tests.models.delta_layer import assert_published, parameters, sigmoid

L, D, H, N = 20, 8, 2, 4


def make(causal=True, width=D, **options):
  options = {'heads': H, 'rank': 3, 'gate_rank': 5} | options
  return RWKV7(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def named(published):
  """Published parameters in our layout."""
  maps = {'r_proj': 'query', 'k_proj': 'key', 'v_proj': 'value', 'o_proj': 'out'}
  maps |= {'w_lora.lora.0': 'decay_in', 'w_lora.lora.2': 'decay_out', 'a_lora.lora.0': 'rate_in'}
  maps |= {'a_lora.lora.2': 'rate_out', 'g_lora.lora.0': 'gate_in', 'g_lora.lora.2': 'gate_out'}
  vectors = {'w_lora.lora.2.bias': 'decay_bias', 'a_lora.lora.2.bias': 'rate_bias', 'k_k': 'forget_scale'}
  vectors |= {'k_a': 'rate_scale', 'r_k': 'skip'}
  ours = {f'{name}/kernel': published[f'{theirs}.weight'].T for theirs, name in maps.items()}
  ours |= {name: published[theirs][None] for theirs, name in vectors.items()}
  ours['shift'] = np.stack([published[f'x_{name}'][0, 0] for name in 'rwkvag'])[None]
  return ours | {'norm_scale': published['g_norm.weight'], 'norm_bias': published['g_norm.bias']}


def test_layer_is_the_published_one(golden, golden_errors):
  assert_published(golden_errors(make(), golden('rwkv7'), named))


def reference(mixer, x_LD):
  """[L, D] in float64, position by position, with the state [N values, N keys] of the paper."""
  p, x_LD = parameters(mixer), np.float64(x_LD)
  mixed_LD = np.zeros(x_LD.shape)
  for direction in range(len(p['shift'])):
    of = {
      name: p[name][direction] for name in ('decay_bias', 'rate_bias', 'forget_scale', 'rate_scale', 'skip')
    }
    states, before = np.zeros((H, N, N)), np.zeros(D)
    for t in np.arange(len(x_LD))[:: -1 if direction else 1]:
      r, w, k, v, a, g = (x_LD[t] + m * (before - x_LD[t]) for m in p['shift'][direction])
      before = x_LD[t]
      r, k, v = r @ p['query.kernel'], k @ p['key.kernel'], v @ p['value.kernel']
      w = of['decay_bias'] + np.tanh(w @ p['decay_in.kernel']) @ p['decay_out.kernel']
      w = np.exp(-np.exp(-0.5) * sigmoid(w))
      a = sigmoid(of['rate_bias'] + a @ p['rate_in.kernel'] @ p['rate_out.kernel'])
      g = sigmoid(g @ p['gate_in.kernel']) @ p['gate_out.kernel']
      z = (k * of['forget_scale']).reshape(H, N)
      z /= np.linalg.norm(z, axis=1, keepdims=True)
      s = (k * (1 + (a - 1) * of['rate_scale'])).reshape(H, N)
      r, w, v, a = (array.reshape(H, N) for array in (r, w, v, a))
      for head in range(H):
        transition = np.diag(w[head]) - np.outer(z[head], a[head] * z[head])
        states[head] = states[head] @ transition + np.outer(v[head], s[head])
      y = np.einsum('hpn,hn->hp', states, r)
      y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5 * N)
      y = y.reshape(D) * p['norm_scale'] + p['norm_bias']
      mixed_LD[t] += g * (y + ((r * of['skip'] * s).sum(1, keepdims=True) * v).reshape(D))
  return mixed_LD @ p['out.kernel']


@pytest.mark.parametrize('causal', [False, True])
def test_layer_matches_a_loop_over_positions(causal, perturbed, assert_follows_positions):
  assert_follows_positions(perturbed(make(causal)), reference, D, (L, 5, 1), 1, 2e-5)


def test_recurrent_form_is_the_scan(perturbed, assert_recurrent):
  assert_recurrent(perturbed(make(), 0.3), make(causal=False), L, D)


def test_initial_values():
  """Those of the second of three layers, by the published formulas at some channels."""
  mixer = make(causal=False, width=16, heads=4, depth=3, layer=1)
  assert mixer.shift.shape == (2, 6, 16)
  np.testing.assert_allclose(
    mixer.shift[1, :, 4], 1 - 0.25 ** (2 / 3 * np.array([2, 9, 7, 7, 9, 2]) / 10), 1e-5
  )
  power = 1 + 0.5**0.3
  expected = [-6 + 0.5 - 2.5, -6 + 6 * (6 / 15) ** power + 0.5 + 2.5 / 9, 0.5 + 2.5]
  np.testing.assert_allclose(mixer.decay_bias[0, np.array([0, 6, 15])], expected, rtol=1e-5)
  np.testing.assert_allclose(
    mixer.rate_bias[0, np.array([0, 15])], [-0.19 - 0.3 - 0.2, -0.19 + 0.3 + 0.2], 1e-5
  )
  np.testing.assert_allclose(mixer.forget_scale[0, np.array([0, 15])], [0.76, 0.66], 1e-5)
  np.testing.assert_allclose(mixer.norm_scale[...], (2 / 3) ** 0.7, 1e-5)
  assert not mixer.out.kernel[...].any()
  assert 0.04 / 4 < float(abs(mixer.key.kernel[...]).max()) <= 0.05 / 4
  assert make(width=256, rank=0, gate_rank=0).gate_in.kernel.shape == (256, 64)


def test_operations_are_counted():
  assert make().flops(L) == recurrence_flops(2 * L, D, D, H, by_channel=True)
  assert make(causal=False).flops(L) == 2 * make().flops(L)


@pytest.mark.parametrize('heads', [0, 3])
def test_errors_name_the_option(heads):
  with pytest.raises(ValueError, match=f'model.width is 8, which model.mixer.heads={heads} does not divide'):
    make(heads=heads)
