"""MesaNet: golden values, both forms against a fit at every position, initial values, operations, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.mesanet import MesaNet
from lra_spt.models.registry import ParameterGroup

L, D, H, N = 13, 8, 2, 4
NAMES = {
  'input.kernel': 'in_proj',
  'gates.kernel': 'gates.weight',
  'gates.bias': 'gates.bias',
  'conv': 'conv',
  'ridge': 'lambda_params',
  'norm': 'o_norm.weight',
  'out.kernel': 'o_proj.weight',
}


def make(causal=True, **options):
  options = {'heads': H} | options
  return MesaNet(D, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def ours(path, array):
  """Transposes weights, which are (out, in) in PyTorch, and adds the axis of directions to the recurrence."""
  if path == 'ridge':
    return array.reshape(1, H, N)
  return array[:, 0].T[None] if path == 'conv' else array.T


def test_layer_is_the_published_one(golden, assert_golden):
  """With the exact solution of `naive_mesa_net_exact`."""
  assert_golden(make(), golden('mesanet'), NAMES, ours)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def reference(mixer, x_LD):
  """y in float64, from a least-squares fit to all pairs of keys and values up to each position."""
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  p = {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}
  x_LD = np.float64(x_LD)
  mixed, v = np.split(x_LD @ p['input.kernel'], (2 * D,), axis=1)
  gates = sigmoid(x_LD @ p['gates.kernel'] + p['gates.bias']).reshape(len(x_LD), -1, 2, H)
  y = np.zeros((len(x_LD), H, N))
  for direction in range(len(p['conv'])):
    turn, taps = -1 if direction else 1, p['conv'][direction]
    padded = np.pad(mixed[::turn], ((len(taps) - 1, 0), (0, 0)))
    conv = sum(taps[i] * padded[i : i + len(mixed)] for i in range(len(taps)))
    qk = (conv * sigmoid(conv)).reshape(-1, 2, H, N)
    qk = qk / np.sqrt((qk**2).sum(-1, keepdims=True) + 1e-6)
    for head in range(H):
      q, k, values = qk[:, 0, head], qk[:, 1, head], v[::turn].reshape(-1, H, N)[:, head]
      beta, decay = gates[::turn, direction, :, head].T
      penalty = np.log1p(np.exp(p['ridge'][direction, head])) + 0.25
      for t in range(len(q)):
        weight = np.sqrt([beta[s] * np.prod(decay[s + 1 : t + 1]) for s in range(t + 1)])[:, None]
        rows = np.concatenate([weight * k[: t + 1], np.diag(np.sqrt(penalty))])
        targets = np.concatenate([weight * values[: t + 1], np.zeros((N, N))])
        y[::turn][t, head] += q[t] @ np.linalg.lstsq(rows, targets)[0]
  y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-5) * p['norm']
  return y.reshape(x_LD.shape) @ p['out.kernel']


@pytest.mark.parametrize('causal', [False, True])
def test_layer_matches_a_fit_at_every_position(causal, assert_follows_positions, perturbed):
  assert_follows_positions(perturbed(make(causal)), reference, D, (L, 5, 1), 1, 5e-6)


def test_recurrent_form_is_the_parallel_one(assert_recurrent, perturbed):
  assert_recurrent(perturbed(make()), make(causal=False), L, D)


def test_more_steps_come_closer():
  x = jax.random.normal(jax.random.key(0), (1, L, D))
  exact, *others = (make(steps=steps)(x) for steps in (30, 3, 1))
  errors = [float(jnp.abs(other - exact).max()) for other in others]
  assert 1e-5 < errors[0] < errors[1] / 3


def test_small_gradients_are_as_exact_as_large_ones():
  mixer, x = make(), jax.random.normal(jax.random.key(0), (1, L, D))
  _, pull = jax.vjp(mixer, x)
  (large,), (small,) = pull(x), pull(1e-25 * x)
  np.testing.assert_allclose(1e25 * small, large, rtol=0, atol=1e-5 * float(jnp.abs(large).max()))


def test_initial_values(declared):
  mixer = make(causal=False)
  assert mixer.gates.kernel.shape == (D, 2 * 2 * H)
  np.testing.assert_allclose(jax.nn.softplus(mixer.ridge[...]) + 0.25, np.ones((2, H, N)), rtol=1e-6)
  assert declared(mixer)['ridge'][2] == ParameterGroup(None, False)


def test_operations_are_counted():
  assert make().flops(L) == L * (2 * 4 * 2 * D + 31 * D * (4 * N + 4 * L) + 10 * 30 * D)
  assert make(causal=False).flops(L) == 2 * make().flops(L)


def test_errors_name_the_option():
  with pytest.raises(ValueError, match='model.width is 8, which model.mixer.heads=3 does not divide'):
    make(heads=3)
