"""LinOSS: numbers of the published code, a float64 loop, recurrent form, groups, initial values, errors."""

import jax
import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.linoss import LinOSS
from lra_spt.models.registry import ParameterGroup

L, D, N = 17, 6, 4


def make(causal=False, **options):
  return LinOSS(D, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **{'state_size': N, **options})


def numbers(mixer):
  """{name: float64 array}."""
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  return {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}


def positions(p, u_LD, implicit):
  """y [L, N] of the oscillators. The implicit step solves its two equations at every position."""
  stiffness, dt = np.maximum(p['stiffness'], 0), 1 / (1 + np.exp(-p['dt_logit']))
  z, y, states = np.zeros(N, complex), np.zeros(N, complex), []
  for u in u_LD:
    force = (p['b_real'] + 1j * p['b_imag']) @ u
    if implicit:
      for n in range(N):
        equations = np.array([[1, dt[n] * stiffness[n]], [-dt[n], 1]])
        z[n], y[n] = np.linalg.solve(equations, [z[n] + dt[n] * force[n], y[n]])
    else:
      z = z + dt * (force - stiffness * y)
      y = y + dt * z
    states.append(y.copy())
  return np.stack(states)


@pytest.fixture
def reference(exact_gelu):
  """reference(mixer, u_LD) -> output in float64."""

  def layer(mixer, u_LD):
    p, u_LD = numbers(mixer), np.float64(u_LD)
    out = p['skip'] * u_LD
    for direction, c_DN in enumerate(p['c_real'] + 1j * p['c_imag']):
      order = slice(None, None, -1 if direction else 1)
      out += (positions(p, u_LD[order], mixer.implicit)[order] @ c_DN.T).real
    z = exact_gelu(out) @ p['output.linear.kernel'] + p['output.linear.bias']
    return z[:, :D] / (1 + np.exp(-z[:, D:]))

  return layer


@pytest.mark.parametrize('causal, discretization', [(False, 'im'), (True, 'im'), (False, 'imex')])
def test_layer_matches_a_loop_over_positions(causal, discretization, reference, assert_follows_positions):
  mixer = make(causal, discretization=discretization)
  mixer.stiffness.set_value(mixer.stiffness[...].at[1].set(-0.5))  # counts as 0
  assert_follows_positions(mixer, reference, D, (L, 5, 1), 1, 2e-6)


def named(published):
  """The published parameters in our layout."""
  p = published
  return {
    'stiffness': p['A_diag'],
    'dt_logit': p['steps'],
    'b_real': p['B'][..., 0],
    'b_imag': p['B'][..., 1],
    'c_real': p['C'][None, ..., 0],
    'c_imag': p['C'][None, ..., 1],
    'skip': p['D'],
    'output/linear/kernel': np.concatenate([p['w1.weight'].T, p['w2.weight'].T], axis=1),
    'output/linear/bias': np.concatenate([p['w1.bias'], p['w2.bias']]),
  }


@pytest.mark.parametrize('discretization', ['im', 'imex'])
def test_agrees_with_the_published_code(golden, golden_errors, published_gelu, discretization):
  mixer = make(causal=True, discretization=discretization)
  errors = golden_errors(mixer, golden(f'linoss_{discretization}'), named)
  assert errors.pop('y') < 2e-6
  assert max(errors.values()) < 1e-5, errors


def test_recurrent_form_is_the_scan(assert_recurrent):
  assert_recurrent(make(causal=True), make(), L, D)


def test_max_kernel_is_the_largest_entry_per_lag():
  mixer = make()
  p = numbers(mixer)
  pulses = np.eye(D)[:, None] * (np.arange(40) == 0)[:, None]  # at position 0 of one channel each
  responses = np.stack([positions(p, u_LD, True) for u_LD in pulses])
  kernels = np.einsum('sen,dln->slde', p['c_real'] + 1j * p['c_imag'], responses).real
  np.testing.assert_allclose(mixer.max_kernel(40), np.abs(kernels).max((0, 2, 3)), rtol=1e-4)


def test_initial_values_and_groups():
  mixer = make(state_size=1000, ssm_lr=0.002)
  p = numbers(mixer)
  for name in ('stiffness', 'dt_logit'):
    assert 0 <= p[name].min() < 0.01 < 0.99 < p[name].max() <= 1
  assert np.abs(p['b_imag']).max() == pytest.approx(1 / np.sqrt(D), rel=0.01)
  assert np.abs(p['c_real']).max() == pytest.approx(1 / np.sqrt(1000), rel=0.01)
  state = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  group = ParameterGroup(0.002, False)
  grouped = {path[-1] for path, leaf in state if leaf.get_metadata('group', None) == group}
  assert grouped == {'stiffness', 'dt_logit', 'b_real', 'b_imag'}
  marked = {path[-1] for path, leaf in state if leaf.get_metadata('ssm', False)}
  assert marked == grouped | {'c_real', 'c_imag'}


def test_gradients_stay_finite_from_random_values(redrawn, gradients):
  x = jax.random.normal(jax.random.key(0), (1, 4096, D))
  assert all(np.isfinite(leaf).all() for leaf in gradients(redrawn(make(), 'linoss'), x).values())


def test_flops_count_products_and_scans():
  assert make().flops(L) == L * (4 * N * D + 2 * (4 * N * D + 16 * N) + 2 * D)


def test_the_kernel_for_numbers_is_refused():
  with pytest.raises(
    ValueError, match="runtime.scan is 'pallas', which has no kernel for factors that are matrices"
  ):
    make(scan='pallas')(np.zeros((1, L, D), np.float32))
