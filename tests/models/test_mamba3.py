"""Mamba-3: golden values, both forms against a loop over positions, initial values, operations, errors."""

import jax
import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.mamba3 import Mamba3
from lra_spt.models.registry import ParameterGroup

L, D, H, N, P, M = 12, 8, 4, 8, 4, 2
NAMES = {
  'input.kernel': 'in_proj.weight',
  'out.kernel': 'out_proj.weight',
  'dt_bias': 'dt_bias',
  'b_bias': 'B_bias',
  'c_bias': 'C_bias',
  'b_norm': 'B_norm.weight',
  'c_norm': 'C_norm.weight',
  'skip': 'D',
}


def make(causal=True, width=D, **options):
  options = {'state_size': N, 'head_dim': P, 'groups': 2} | options
  return Mamba3(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def ours(path, array):
  """Transposes weights, which are (out, in) in PyTorch, and adds the axis of directions to the recurrence."""
  if 'norm' in path:
    return array
  if array.ndim == 3:  # an axis of outputs, of which the form with one output has one
    array = array[:, 0]
  return array.T if '.' in path else array[None]


@pytest.mark.parametrize('name', ['mamba3', 'mamba3_groups'])
def test_block_is_the_published_one(name, golden, assert_golden):
  values = golden(name)
  assert_golden(make(groups=int(values['ngroups'])), values, NAMES, ours)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def normed(x, scale):
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale


def reference(mixer, x_LD):
  """y in float64, position by position from the start of each direction. Rotations are complex numbers that
  turn the state, where ours turn B and C."""
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  p = {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}
  groups, inner = mixer.groups, H * P
  cuts = np.cumsum([inner, inner, groups * N, groups * N])
  z, x, b, c, gates = np.split(np.float64(x_LD) @ p['input.kernel'], cuts, axis=1)
  b, c = (normed(v.reshape(-1, groups, N), p[f'{name}_norm']) for v, name in ((b, 'b'), (c, 'c')))
  x, y = x.reshape(-1, H, P), np.zeros((len(x_LD), H, P))
  for direction in range(len(p['skip'])):
    d, a, trapezoid, w = np.split(
      gates[:, direction * (3 * H + M) :][:, : 3 * H + M], (H, 2 * H, 3 * H), axis=1
    )
    dt = np.log1p(np.exp(d + p['dt_bias'][direction]))
    a = -np.maximum(np.where(a >= 0, 1 + a, 1 / (1 + np.abs(a))), 1e-4)
    for head in range(H):
      state, before = np.zeros((N // 2, P), complex), np.zeros((N // 2, P))
      for t in range(len(x))[:: -1 if direction else 1]:
        bs, cs = (
          v[t, head * groups // H].reshape(-1) + bias[direction, head]
          for v, bias in ((b, p['b_bias']), (c, p['c_bias']))
        )
        bs, cs = (v.reshape(-1, 2) @ [1, 1j] for v in (bs, cs))
        turn = np.exp(-1j * np.pi * np.pad(np.tanh(w[t]), (0, N // 2 - M)) * dt[t, head])[:, None]
        share = sigmoid(trapezoid[t, head])
        state = np.exp(dt[t, head] * a[t, head]) * turn * (state + (1 - share) * dt[t, head] * before)
        before = np.outer(bs, x[t, head])
        state = state + share * dt[t, head] * before
        y[t, head] += (cs.conj() @ state).real + p['skip'][direction, head] * x[t, head]
  return (y.reshape(z.shape) * z * sigmoid(z)) @ p['out.kernel']


@pytest.mark.parametrize('causal', [False, True])
def test_block_matches_a_loop_over_positions(causal, assert_follows_positions, perturbed):
  assert_follows_positions(perturbed(make(causal)), reference, D, (L, 5, 1), 1, 5e-6)


def test_recurrent_form_is_the_scan(assert_recurrent, perturbed):
  assert_recurrent(perturbed(make()), make(causal=False), L, D)


def test_initial_values():
  mixer = make(False, 128, dt_min=0.01)
  dt = np.asarray(jax.nn.softplus(mixer.dt_bias[...]))
  assert (dt.min(), dt.max()) == (pytest.approx(0.01, rel=0.05), pytest.approx(0.1, rel=0.05))
  assert all(np.all(v[...] == 1) for v in (mixer.skip, mixer.b_bias, mixer.c_bias, mixer.b_norm))
  assert mixer.b_bias.shape == (2, 64, N)
  assert mixer.input.kernel.shape == (128, 2 * 256 + 4 * N + 2 * (3 * 64 + M))


def test_operations_are_counted():
  each = 4 * N * H * P + 2 * L * (H * N + H * P) + 12 * H * N
  assert make().flops(L) == L * each
  assert make(causal=False).flops(L) == 2 * L * each


def test_parameter_groups(declared):
  actual = declared(make(ssm_lr=0.002))
  assert {name for name, (_, ssm, _) in actual.items() if ssm} == {'dt_bias'}
  assert actual['dt_bias'][2] == ParameterGroup(0.002, False)
  assert actual['skip'][2] == ParameterGroup(None, False)


@pytest.mark.parametrize(
  'options, message',
  [
    ({'head_dim': 5}, 'model.mixer.head_dim is 5, which does not divide the 16 channels'),
    ({'groups': 3}, 'model.mixer.groups is 3, which does not divide 4 heads'),
    ({'state_size': 7}, 'model.mixer.state_size is 7, but a quarter of the states turn in pairs'),
  ],
)
def test_errors_name_the_option(options, message):
  with pytest.raises(ValueError, match=message):
    make(**options)
