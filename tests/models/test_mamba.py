"""Mamba and Mamba-2: golden values, both forms against a loop over positions, initial values, errors."""

import jax
import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.mamba import Mamba
from lra_spt.models.mixers.mamba2 import Mamba2
from lra_spt.models.registry import ParameterGroup

L, D = 12, 8
SHARED = {
  'input.kernel': 'in_proj.weight',
  'out.kernel': 'out_proj.weight',
  'conv': 'conv1d.weight',
  'conv_bias': 'conv1d.bias',
  'decay': 'A_log',
  'skip': 'D',
}
MAMBA = SHARED | {'select': 'x_proj.weight', 'dt': 'dt_proj.weight', 'dt_bias': 'dt_proj.bias'}
MAMBA2 = SHARED | {'dt_bias': 'dt_bias', 'norm': 'norm.weight'}


def make(cls, causal=True, width=D, **options):
  small = {'state_size': 4} if cls is Mamba else {'state_size': 6, 'head_dim': 4, 'groups': 2}
  return cls(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **(small | options))


def ours(path, array):
  """Transposes weights, which are (out, in) in PyTorch, and adds the axis of directions to the recurrence."""
  if path == 'norm':
    return array
  if path == 'conv':
    array = array[:, 0]
  elif path == 'decay' or array.ndim < 2:
    return array[None]
  return array.T if '.' in path else array.T[None]


@pytest.mark.parametrize('name', ['mamba1', 'mamba2', 'mamba2_init'])
def test_block_is_the_published_one(name, golden, assert_golden):
  values = golden(name)
  if name == 'mamba1':
    mixer, names = make(Mamba, width=6), MAMBA
  else:
    mixer, names = make(Mamba2, groups=int(values['ngroups'])), MAMBA2
  assert_golden(mixer, values, names, ours)


def silu(x):
  return x / (1 + np.exp(-x))


def softplus(x):
  return np.log1p(np.exp(x))


def convolved(p, x_LE, direction):
  """The silu of the convolution over the positions before or, in the second direction, after each one."""
  kernel, y_LE = p['conv'][direction], np.zeros_like(x_LE)
  for t in range(len(x_LE)):
    y_LE[t] = p['conv_bias'][direction]
    for lag in range(len(kernel)):
      s = t + lag if direction else t - lag
      if 0 <= s < len(x_LE):
        y_LE[t] += kernel[len(kernel) - 1 - lag] * x_LE[s]
  return silu(y_LE)


def reference(mixer, x_LD):
  """y in float64, position by position from the start of each direction."""
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  p = {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}
  projected = np.float64(x_LD) @ p['input.kernel']
  sweep = mamba if isinstance(mixer, Mamba) else mamba2
  inner = len(p['out.kernel'])
  gate = projected[:, inner:] if isinstance(mixer, Mamba) else projected[:, :inner]
  y = sum(sweep(mixer, p, projected, direction) for direction in range(len(p['conv']))) * silu(gate)
  if isinstance(mixer, Mamba2):
    groups = np.split(y, mixer.groups, axis=1)
    y = np.hstack([g / np.sqrt(np.mean(g**2, axis=1, keepdims=True) + 1e-5) for g in groups]) * p['norm']
  return y @ p['out.kernel']


def mamba(mixer, p, projected, direction):
  inner, states = p['decay'].shape[1:]
  x = convolved(p, projected[:, :inner], direction)
  rank = p['dt'].shape[1]
  y, h = np.zeros_like(x), np.zeros((inner, states))
  for t in range(len(x))[:: -1 if direction else 1]:
    d, b, c = np.split(x[t] @ p['select'][direction], (rank, rank + states))
    dt = softplus(d @ p['dt'][direction] + p['dt_bias'][direction])
    h = np.exp(-dt[:, None] * np.exp(p['decay'][direction])) * h + np.outer(dt * x[t], b)
    y[t] = h @ c + p['skip'][direction] * x[t]
  return y


def mamba2(mixer, p, projected, direction):
  inner, heads, groups, n = len(p['norm']), p['skip'].shape[1], mixer.groups, mixer.state_size
  mixed = convolved(p, projected[:, inner:-heads], direction)
  y, size = np.zeros((len(mixed), inner)), inner // heads
  for head in range(heads):
    channels, s = slice(head * size, head * size + size), np.zeros((size, n))
    first = inner + head * groups // heads * n
    for t in range(len(mixed))[:: -1 if direction else 1]:
      x, b = mixed[t, channels], mixed[t, first : first + n]
      c = mixed[t, first + groups * n : first + groups * n + n]
      dt = softplus(projected[t, -heads + head] + p['dt_bias'][direction, head])
      s = np.exp(-dt * np.exp(p['decay'][direction, head])) * s + dt * np.outer(x, b)
      y[t, channels] = s @ c + p['skip'][direction, head] * x
  return y


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('cls', [Mamba, Mamba2])
def test_block_matches_a_loop_over_positions(cls, causal, assert_follows_positions, perturbed):
  assert_follows_positions(perturbed(make(cls, causal)), reference, D, (L, 5, 1), 1, 2e-6)


@pytest.mark.parametrize('cls', [Mamba, Mamba2])
def test_recurrent_form_is_the_scan(cls, assert_recurrent, perturbed):
  assert_recurrent(perturbed(make(cls)), make(cls, causal=False), L, D)


def test_initial_values():
  for cls in (Mamba, Mamba2):
    mixer = make(cls, False, 128, dt_min=0.01)
    dt = np.asarray(jax.nn.softplus(mixer.dt_bias[...]))
    assert (dt.min(), dt.max()) == (pytest.approx(0.01, rel=0.05), pytest.approx(0.1, rel=0.05))
    assert np.log(dt).mean() == pytest.approx(np.log(0.1 * 0.01) / 2, abs=0.1)
    assert np.all(mixer.skip[...] == 1)
    for value, bound in (
      (mixer.conv, 0.5),
      (mixer.conv_bias, 0.5),
      (mixer.input.kernel, 128**-0.5),
      (mixer.out.kernel, 256**-0.5),
    ):
      assert np.abs(value[...]).max() == pytest.approx(bound, rel=0.01)
    a = np.exp(mixer.decay[...])
    if cls is Mamba:
      np.testing.assert_allclose(a[1, 7], [1, 2, 3, 4], rtol=1e-6)
      assert mixer.dt.shape == (2, 8, 256)
      assert np.abs(mixer.dt[...]).max() == pytest.approx(8**-0.5, rel=0.01)
    else:
      assert (a.min(), a.max()) == (pytest.approx(1, abs=0.5), pytest.approx(16, abs=0.5))


@pytest.mark.parametrize('cls', [Mamba, Mamba2])
def test_initial_steps_are_in_the_given_range(cls):
  bias = np.float64(make(cls, width=32, dt_min=1e-6, dt_max=1e-5).dt_bias[...])
  steps = np.log1p(np.exp(bias))
  assert 0.99e-6 < steps.min() < 9e-6
  assert steps.max() < 1.01e-5


def test_operations_are_counted():
  assert make(Mamba).flops(L) == L * 16 * (2 * (4 + 9 + 1) + 9 * 4)
  assert make(Mamba2, False).flops(L) == L * 2 * (2 * 4 * 40 + 4 * 6 * 16 + 2 * L * (12 + 16))


@pytest.mark.parametrize('cls, more', [(Mamba, {'dt'}), (Mamba2, set())])
def test_parameter_groups(cls, more, declared):
  actual = declared(make(cls, ssm_lr=0.002))
  assert {name for name, (_, ssm, _) in actual.items() if ssm} == {'dt_bias', 'decay'}
  assert {name for name, (*_, group) in actual.items() if group} == {'dt_bias', 'decay', 'skip'} | more
  assert actual['decay'][2] == actual['dt_bias'][2] == ParameterGroup(0.002, False)
  assert actual['skip'][2] == ParameterGroup(None, False)
  assert cls is Mamba2 or actual['dt'][2] == ParameterGroup(0.002, True)


@pytest.mark.parametrize(
  'cls, options, message',
  [
    (Mamba2, {'head_dim': 5}, 'model.mixer.head_dim is 5, which does not divide the 16 channels'),
    (Mamba2, {'groups': 3}, 'model.mixer.groups is 3, which does not divide 4 heads'),
  ],
)
def test_errors_name_the_option(cls, options, message):
  with pytest.raises(ValueError, match=message):
    make(cls, **options)
