"""LRU: numbers of a third party, float64 NumPy, recurrent form, groups, initial values, errors."""

import jax
import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.lru import LRU
from lra_spt.models.registry import ParameterGroup

B, L, D, N = 2, 20, 6, 4


def make(causal=False, **options):
  return LRU(D, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **{'state_size': N, **options})


def numbers(mixer):
  """{name: float64 array}."""
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  return {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}


def kernels(p, length):
  """K [S, L, D, D] = Re C lambda^l exp(gamma_log) B."""
  a = np.exp(-np.exp(p['nu_log']) + 1j * np.exp(p['theta_log']))
  b = np.exp(p['gamma_log'])[:, None] * (p['b_real'] + 1j * p['b_imag'])
  powers = a[None] ** np.arange(length)[:, None]
  return np.einsum('sdn,ln,ne->slde', p['c_real'] + 1j * p['c_imag'], powers, b).real


def output(p, g):
  """The GLU of g, which is the result of GELU."""
  z = g @ p['output.linear.kernel'] + p['output.linear.bias']
  return z[..., :D] / (1 + np.exp(-z[..., D:]))


def inputs():
  return jax.random.normal(jax.random.key(0), (B, L, D))


@pytest.mark.parametrize('causal', [False, True])
def test_layer_matches_direct_summation(mimo_sums, exact_gelu, causal):
  mixer = make(causal)
  ours = nnx.jit(lambda mixer, x: mixer(x))(mixer, inputs())
  p = numbers(mixer)
  theirs = output(p, exact_gelu(mimo_sums(kernels(p, L), p['skip'], np.float64(inputs()))))
  np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())
  np.testing.assert_allclose(
    mixer.max_kernel(50), np.abs(kernels(numbers(mixer), 50)).max((0, 2, 3)), atol=1e-5
  )


def named(published):
  """The published parameters in our layout."""
  p = {key.removeprefix('seq.'): value for key, value in published.items()}
  return {
    **{name: p[name] for name in ('nu_log', 'theta_log', 'gamma_log')},
    'b_real': p['B_re'],
    'b_imag': p['B_im'],
    'c_real': p['C_re'][None],
    'c_imag': p['C_im'][None],
    'skip': p['D'],
    'output/linear/kernel': np.concatenate([p['out1.kernel'], p['out2.kernel']], axis=1),
    'output/linear/bias': np.concatenate([p['out1.bias'], p['out2.bias']]),
  }


def test_agrees_with_the_published_code(golden, golden_errors, published_gelu):
  errors = golden_errors(make(causal=True), golden('lru_causal'), named)
  assert errors.pop('y') < 2e-6
  assert max(errors.values()) < 5e-6, errors


def test_recurrent_form_is_the_scan(assert_recurrent):
  assert_recurrent(make(causal=True), make(), L, D)


def test_eigenvalues_start_on_the_ring():
  p = numbers(make(state_size=2000, r_min=0.5, r_max=0.9, max_phase=1.0))
  radius, phase = np.exp(-np.exp(p['nu_log'])), np.exp(p['theta_log'])
  assert (0.5 <= radius).all()
  assert (radius <= 0.9 + 1e-6).all()
  assert np.mean(radius**2) == pytest.approx((0.25 + 0.81) / 2, rel=0.03)  # uniform in area
  assert phase.max() <= 1
  assert phase.mean() == pytest.approx(0.5, rel=0.05)
  np.testing.assert_allclose(np.exp(2 * p['gamma_log']), 1 - radius**2, rtol=1e-4)
  assert p['b_real'].std() == pytest.approx(1 / np.sqrt(2 * D), rel=0.05)
  assert p['c_imag'].std() == pytest.approx(1 / np.sqrt(2000), rel=0.05)


def test_parameter_groups_and_counts():
  state = nnx.to_flat_state(nnx.state(make(ssm_lr=0.002), nnx.Param))
  group = ParameterGroup(0.002, False)
  grouped = {path[-1] for path, leaf in state if leaf.get_metadata('group', None) == group}
  assert grouped == {'nu_log', 'theta_log', 'gamma_log', 'b_real', 'b_imag'}
  marked = {path[-1] for path, leaf in state if leaf.get_metadata('ssm', False)}
  assert marked == grouped | {'c_real', 'c_imag'}
  assert sum(leaf[...].size for _, leaf in state) == 3 * N + 2 * N * D * 3 + D + 2 * D * D + 2 * D


def test_gradients_stay_finite_from_random_values(redrawn, gradients):
  x = jax.random.normal(jax.random.key(0), (1, 4096, D))
  assert all(np.isfinite(leaf).all() for leaf in gradients(redrawn(make(), 'lru'), x).values())


@pytest.mark.parametrize(
  'options, message', [({'r_min': 0.9, 'r_max': 0.5}, 'r_min=0.9'), ({'max_phase': 7.0}, 'max_phase=7.0')]
)
def test_errors_name_the_option(options, message):
  with pytest.raises(ValueError, match=message):
    make(**options)
