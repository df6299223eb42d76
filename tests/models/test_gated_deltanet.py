"""Gated DeltaNet: golden values, both forms against a loop over positions, initial values, operations,
errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.gated_deltanet import GatedDeltaNet

L, D, H, N, P = 13, 8, 2, 3, 6
NAMES = {
  'input.kernel': 'in_proj',
  'out.kernel': 'out_proj.weight',
  'norm': 'norm.weight',
  'conv': 'conv1d.weight',
  'dt_bias': 'dt_bias',
  'decay': 'A_log',
}


def make(causal=True, width=D, **options):
  options = {'heads': H} | options
  return GatedDeltaNet(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def ours(path, array):
  """Transposes weights, which are (out, in) in PyTorch, and adds the axis of directions to the recurrence."""
  if path == 'norm':
    return array
  if '.' in path:
    return array.T
  return (array[:, 0].T if path == 'conv' else array)[None]


def test_layer_is_the_published_one(golden, assert_golden):
  assert_golden(make(), golden('gated_deltanet'), NAMES, ours)


def silu(x):
  return x / (1 + np.exp(-x))


def recurrence(mixer, p, u_LM, e_LH, d_LH, direction):
  """y [L, H, P] of one direction in float64, position by position from its start."""
  if direction:
    u_LM, e_LH, d_LH = u_LM[::-1], e_LH[::-1], d_LH[::-1]
  conv, y_LHP, states = p['conv'][direction], np.zeros((len(u_LM), H, P)), np.zeros((H, N, P))
  for t in range(len(u_LM)):
    taps = [conv[len(conv) - 1 - lag] * u_LM[t - lag] for lag in range(min(t + 1, len(conv)))]
    q, k, v = np.split(silu(sum(taps)), (H * N, 2 * H * N))
    for head in range(H):
      unit = [x.reshape(H, N)[head] for x in (q, k)]
      unit = [x / np.sqrt(x @ x + 1e-6) for x in unit]
      b = mixer.largest / (1 + np.exp(-e_LH[t, head]))
      rate = np.log1p(np.exp(d_LH[t, head] + p['dt_bias'][direction, head]))
      states[head] *= np.exp(-np.exp(p['decay'][direction, head]) * rate)
      states[head] = (np.eye(N) - b * np.outer(unit[1], unit[1])) @ states[head]
      states[head] += b * np.outer(unit[1], v.reshape(H, P)[head])
      y_LHP[t, head] = unit[0] @ states[head] / np.sqrt(N)
  return y_LHP[::-1] if direction else y_LHP


def reference(mixer, x_LD):
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  p = {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}
  mixed = 2 * H * N + H * P
  cuts = (mixed, mixed + H * P, mixed + H * P + H)
  u_LM, z_LE, e_LH, d_LH = np.split(np.float64(x_LD) @ p['input.kernel'], cuts, axis=1)
  y_LHP = sum(recurrence(mixer, p, u_LM, e_LH, d_LH, direction) for direction in range(len(p['conv'])))
  y_LHP = y_LHP / np.sqrt((y_LHP**2).mean(-1, keepdims=True) + 1e-5) * p['norm']
  return (y_LHP.reshape(z_LE.shape) * silu(z_LE)) @ p['out.kernel']


@pytest.mark.parametrize('causal, negative', [(False, False), (True, True)])
def test_layer_matches_a_loop_over_positions(causal, negative, assert_follows_positions):
  assert_follows_positions(make(causal, negative=negative), reference, D, (L, 5, 1), 1, 1e-5)


@pytest.mark.parametrize('negative', [False, True])
def test_recurrent_form_is_the_scan(negative, assert_recurrent):
  assert_recurrent(make(negative=negative), make(causal=False), L, D)


def test_initial_values():
  mixer = make(causal=False, width=512, heads=128)
  assert mixer.input.kernel.shape == (512, 2 * 384 + 2 * 768 + 2 * 128)
  assert mixer.conv.shape == (2, 4, 2 * 384 + 768)
  dt_SH = jax.nn.softplus(mixer.dt_bias[...])
  rate_SH = jnp.exp(mixer.decay[...])
  for value, low, high in ((dt_SH, 0.001, 0.1), (rate_SH, 0, 16), (mixer.conv[...], -0.5, 0.5)):
    assert low - 1e-6 <= float(value.min()) <= float(value.max()) <= high + 1e-6
  assert float(jnp.log(dt_SH).mean()) == pytest.approx(np.log(0.01), abs=0.25)
  assert float(rate_SH.mean()) == pytest.approx(8, abs=1)
  assert (mixer.norm[...] == 1).all()


def test_operations_are_counted():
  """There are 13 positions in one chunk of 16."""
  keys, values = H * N, H * P
  chunk = 16 * (6 * keys + 4 * values) + 4 * 16**2 * 3 * H
  assert make().flops(L) == L * (2 * 4 * (2 * keys + values) + 6 * H * N * P + chunk)
  assert make(causal=False).flops(L) == 2 * make().flops(L)


@pytest.mark.parametrize(
  'options, message',
  [
    ({'heads': 4}, 'model.mixer.expand_k is 0.75, which makes 6 channels of model.width 8, not a positive'),
    ({'heads': 3}, 'expand_v is 1.25, which makes 10 channels .* multiple of model.mixer.heads=3'),
    ({'heads': 0}, 'model.mixer.heads=0'),
  ],
)
def test_errors_name_the_option(options, message):
  with pytest.raises(ValueError, match=message):
    make(**{'expand_v': 1.25} | options)
