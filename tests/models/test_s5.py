"""S5: numbers of the published code, float64 NumPy, both forms, groups, initial values."""

import jax
import numpy as np
import pytest
from flax import nnx

from lra_spt.models.hippo import legs
from lra_spt.models.mixers.s5 import S5
from lra_spt.models.registry import ParameterGroup

B, L, D, P = 2, 20, 6, 8


def make(causal=False, seed=0, **options):
  options = {'state_size': P, 'blocks': 2, **options}
  return S5(D, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(seed), **options)


def numbers(mixer):
  """{name: float64 or complex128 array}, with pairs of real and imaginary parts joined."""
  flat = {
    '.'.join(path): np.asarray(leaf[...], np.float64)
    for path, leaf in nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  }
  for name in [name.removesuffix('_real') for name in flat if name.endswith('_real')]:
    flat[name] = flat.pop(f'{name}_real') + 1j * flat.pop(f'{name}_imag')
  return flat


def kernels(p, length):
  """K [S, L, D, D] of y_t = sum_l K_l u_{t-l}: 2 Re C Abar^l Bbar with zero-order hold."""
  dt = np.exp(p['log_dt'])
  a = np.exp(p['lambda'] * dt)
  b = ((a - 1) / p['lambda'])[:, None] * p['b']
  powers = a[None] ** np.arange(length)[:, None]
  return 2 * np.einsum('sdn,ln,ne->slde', p['c'], powers, b).real


def output(p, y, g, gate):
  """The output of the gate, from sums y and g = GELU(y)."""
  z = g @ p['output.linear.kernel'] + p['output.linear.bias']
  if gate == 'full_glu':
    return z[..., :D] / (1 + np.exp(-z[..., D:]))
  return {'half_glu1': g, 'half_glu2': y}[gate] / (1 + np.exp(-z))


def inputs(seed=0):
  return jax.random.normal(jax.random.key(seed), (B, L, D))


@pytest.mark.parametrize('causal, gate', [(False, 'half_glu1'), (False, 'half_glu2'), (True, 'full_glu')])
def test_layer_matches_direct_summation(mimo_sums, exact_gelu, causal, gate):
  mixer = make(causal, gate=gate)
  ours = nnx.jit(lambda mixer, x: mixer(x))(mixer, inputs())
  p = numbers(mixer)
  y = mimo_sums(kernels(p, L), p['skip'], np.float64(inputs()))
  theirs = output(p, y, exact_gelu(y), gate)
  np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


def named(published):
  """The published parameters in our layout."""
  p = {key.removeprefix('seq.'): value for key, value in published.items()}
  if 'C1' in p:
    c = np.stack([p['C1'], p['C2']])
  else:  # the published code concatenates both directions
    c = np.stack(np.split(p['C'], p['C'].shape[1] // (P // 2), axis=1))
  gate = ('out1', 'out2') if 'out1.bias' in p else ('out2',)
  return {
    'lambda_real': p['Lambda_re'],
    'lambda_imag': p['Lambda_im'],
    'b_real': p['B'][..., 0],
    'b_imag': p['B'][..., 1],
    'c_real': c[..., 0],
    'c_imag': c[..., 1],
    'log_dt': p['log_step'][:, 0],
    'skip': p['D'],
    'output/linear/kernel': np.concatenate([p[f'{name}.kernel'] for name in gate], axis=1),
    'output/linear/bias': np.concatenate([p[f'{name}.bias'] for name in gate]),
  }


PUBLISHED = {
  's5_causal': {'causal': True, 'gate': 'half_glu1'},  # one eigenvalue is clipped
  's5_bi': {'gate': 'half_glu2', 'clip_eigenvalues': False},
  's5_bi_full_glu': {'gate': 'full_glu', 'clip_eigenvalues': False},
}


@pytest.mark.parametrize('name, options', PUBLISHED.items())
def test_agrees_with_the_published_code(golden, golden_errors, published_gelu, name, options):
  errors = golden_errors(make(**options), golden(name), named)
  assert errors.pop('y') < 2e-6
  assert max(errors.values()) < 5e-6, errors


def test_recurrent_form_is_the_scan(assert_recurrent):
  assert_recurrent(make(causal=True), make(), L, D)


@pytest.mark.parametrize('causal', [False, True])
def test_max_kernel_is_the_largest_entry_per_lag(causal):
  mixer = make(causal)
  theirs = np.abs(kernels(numbers(mixer), 300)).max((0, 2, 3))
  np.testing.assert_allclose(mixer.max_kernel(300), theirs, rtol=2e-4)


def test_initial_values(golden):
  mixer = make(state_size=64, blocks=4, dt_min=0.01, dt_max=0.02)
  p = numbers(mixer)
  np.testing.assert_allclose(p['lambda'], np.tile(legs(16).w, 4), rtol=1e-6)
  np.testing.assert_allclose(p['lambda'][:8], golden('s5_init')['lambda16'], rtol=1e-6)
  assert (np.log(0.01) <= p['log_dt']).all()
  assert (p['log_dt'] <= np.log(0.02)).all()
  # V^* B for real B: adding the conjugate half gives back variance 1/P.
  assert p['b'].shape == (32, D)
  assert 2 * np.sum(np.abs(p['b']) ** 2) == pytest.approx(D, rel=0.3)
  # E |C V|^2 per entry is E |C|^2 = 2 variances.
  for c_init, variance in (
    ('lecun_normal', 1 / (64 * D)),
    ('trunc_standard_normal', 1 / 64),
    ('complex_normal', 1 / 2),
  ):
    c = numbers(make(state_size=64, blocks=4, c_init=c_init))['c']
    assert c.shape == (2, D, 32)
    assert np.mean(np.abs(c) ** 2) == pytest.approx(2 * variance, rel=0.2)


def test_parameter_groups_and_counts():
  def groups(**options):
    state = nnx.to_flat_state(nnx.state(make(**options), nnx.Param))
    return {path[-1]: leaf.get_metadata('group', None) for path, leaf in state}

  slow, decaying = ParameterGroup(0.002, decay=False), ParameterGroup(None, decay=True)
  ours = groups(ssm_lr=0.002)
  assert {name for name, group in ours.items() if group == slow} == {
    'lambda_real',
    'lambda_imag',
    'b_real',
    'b_imag',
    'log_dt',
  }
  assert {name for name, group in ours.items() if group == decaying} == {'c_real', 'c_imag'}
  assert all(group in (slow, decaying, None) for group in ours.values())
  assert groups(b_group='stage')['b_real'] == decaying
  assert groups(ssm_lr=0.002, b_group='ssm_decay')['b_real'] == ParameterGroup(0.002, decay=True)
  apart = groups(ssm_lr=0.002, c_group='ssm')
  assert apart['c_real'] == apart['c_imag'] == apart['skip'] == slow
  assert groups(dt_global=True)['log_dt'] == decaying
  assert groups(ssm_lr=0)['lambda_real'] == ParameterGroup(None, decay=False)
  state = nnx.state(make(), nnx.Param)
  n = P // 2
  assert sum(leaf.size for leaf in jax.tree.leaves(state)) == 3 * n + 2 * n * D * 3 + D + D * D + D
  marked = {path[-1] for path, leaf in nnx.to_flat_state(state) if leaf.get_metadata('ssm', False)}
  assert marked == set(ours) - {'kernel', 'bias', 'skip'}  # which D is not, nor in S4


def test_gradients_stay_finite_from_random_values(redrawn, gradients):
  x = jax.random.normal(jax.random.key(0), (1, 4096, D))
  assert all(np.isfinite(leaf).all() for leaf in gradients(redrawn(make(), 's5'), x).values())


def test_flops_count_products_and_scans():
  n, directions = P // 2, 2
  assert make().flops(L) == L * (4 * n * D + directions * (4 * n * D + 8 * n) + 2 * D)


def test_states_that_blocks_do_not_divide_are_refused():
  with pytest.raises(ValueError, match='state_size is 10 in 2 blocks'):
    make(state_size=10)
