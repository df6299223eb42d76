"""Log-linear Mamba-2: golden values, both forms against a loop over positions, initial values, operations."""

import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.log_linear_mamba2 import LogLinearMamba2
from lra_spt.models.mixers.mamba2 import Mamba2
from lra_spt.models.registry import ParameterGroup

L, D, H, N, P, J = 13, 8, 4, 6, 4, 5
NAMES = {
  'input.kernel': 'in_proj.weight',
  'out.kernel': 'out_proj.weight',
  'levels.kernel': 'in_proj.weight',
  'level_scale': 'L',
  'conv': 'conv1d.weight',
  'conv_bias': 'conv1d.bias',
  'decay': 'A_log',
  'dt_bias': 'dt_bias',
  'norm': 'norm.weight',
  'skip': 'D',
}


def make(causal=True, cls=LogLinearMamba2, **options):
  options = {'state_size': N, 'head_dim': P} | options
  return cls(D, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def ours(path, array):
  """Transposes weights, which are (out, in) in PyTorch, and adds the axis of directions. The published layer
  has 15 levels, of which these positions use the first 5."""
  if path == 'norm':
    return array
  if path == 'level_scale':
    return array[None, :, :J]
  rows = len(array) - H * 15
  if path == 'levels.kernel':
    return array[rows:].reshape(H, 15, D)[:, :J].reshape(-1, D).T
  if path == 'input.kernel':
    return array[:rows].T
  if path == 'conv':
    array = array[:, 0].T
  return array.T if '.' in path else array[None]


def test_layer_is_the_published_one(golden, assert_golden):
  assert_golden(make(), golden('log_linear_mamba2'), NAMES, ours)


def silu(x):
  return x / (1 + np.exp(-x))


def softplus(x):
  return np.log1p(np.exp(x))


def forward(rate, values, b, c, scale):
  """The published recurrence: a state for every level, of which those that complete a block are merged."""
  y, states = np.zeros_like(values), {}
  for t in range(len(values)):
    if t:
      complete = (t & -t).bit_length()
      states[complete] = sum(states.pop(level) for level in range(complete) if level in states)
    states = {level: np.exp(-rate[t]) * state for level, state in states.items()}
    states[0] = np.outer(b[t], values[t])
    y[t] = sum(scale[t, level] * c[t] @ state for level, state in states.items())
  return y


def backward(rate, values, b, c, scale):
  """Pair by pair: the level of a pair is that of the smallest block that has both."""
  y = np.zeros_like(values)
  for t in range(len(values)):
    for s in range(t, len(values)):
      level = next(j for j in range(8) if t >> j == s >> j)
      y[t] += scale[t, level] * np.exp(-rate[t:s].sum()) * (c[t] @ b[s]) * values[s]
  return y


def reference(mixer, x_LD):
  """y in float64."""
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  p = {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}
  x_LD, inner = np.float64(x_LD), H * P
  projected = x_LD @ p['input.kernel']
  w = (x_LD @ p['levels.kernel']).reshape(len(x_LD), *p['level_scale'].shape)
  y = np.zeros((len(x_LD), H, P))
  for direction in range(len(p['skip'])):
    turn = -1 if direction else 1
    mixed, taps = projected[::turn, inner:-H], p['conv'][direction]
    padded = np.pad(mixed, ((len(taps) - 1, 0), (0, 0)))
    conv = sum(taps[i] * padded[i : i + len(mixed)] for i in range(len(taps)))
    x, b, c = np.split(silu(conv + p['conv_bias'][direction])[::turn], (inner, inner + N), axis=1)
    dt = softplus(projected[:, -H:] + p['dt_bias'][direction])
    rate, scale = dt * np.exp(p['decay'][direction]), softplus(p['level_scale'][direction] * w[:, direction])
    for head in range(H):
      values = x[:, head * P : head * P + P]
      read = backward if direction else forward
      y[:, head] += read(rate[:, head], dt[:, head, None] * values, b, c, scale[:, head])
      y[:, head] += p['skip'][direction, head] * values
  y = y.reshape(len(x_LD), -1) * silu(projected[:, :inner])
  return (y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-5) * p['norm']) @ p['out.kernel']


@pytest.mark.parametrize('causal', [False, True])
def test_layer_matches_a_loop_over_positions(causal, assert_follows_positions, perturbed):
  assert_follows_positions(perturbed(make(causal), 0.2), reference, D, (L, 6, 1), 1, 5e-6)


def test_recurrent_form_is_the_scan(assert_recurrent, perturbed):
  assert_recurrent(perturbed(make(groups=2), 0.2), make(causal=False), L, D)


def test_parameter_groups(declared):
  assert declared(make())['level_scale'][::2] == ((1, H, J), ParameterGroup(None, False))


def test_operations_are_counted():
  """16 positions are in a chunk, so only longer sequences read states of several chunks."""
  mixer, mamba2 = make(causal=False), make(False, Mamba2)
  assert mixer.flops(L) == mamba2.flops(L)
  assert mixer.flops(64) == mamba2.flops(64) + 64 * 2 * 2 * N * H * P
