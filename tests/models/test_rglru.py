"""RG-LRU: golden values, the bidirectional form against a loop over positions, initial values, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config.protocol import CLEAN
from lra_spt.models import ExecutionSpec, MixerSpec, ModelSpec
from lra_spt.models.mixers.rglru import RGLRU
from lra_spt.models.registry import ParameterGroup

L, D, E, H = 12, 8, 12, 2
LAYER = {  # names of one RG-LRU in the golden files
  'decay': 'a_param',
  'decay_gate': 'a_gate/w',
  'decay_gate_bias': 'a_gate/b',
  'input_gate': 'input_gate/w',
  'input_gate_bias': 'input_gate/b',
}
BLOCK = {path: f'rg_lru/{name}' for path, name in LAYER.items()}
BLOCK |= {'conv': 'conv_1d/w', 'conv_bias': 'conv_1d/b'}
BLOCK |= {
  f'{ours}.{kind}': f'linear_{theirs}/{kind}'
  for ours, theirs in (('gate', 'y'), ('input', 'x'), ('out', 'out'))
  for kind in ('kernel', 'bias')
}


def make(causal=True, width=D, **options):
  options = {'heads': H, 'lru_width': E} | options
  return RGLRU(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def with_directions(path, array):
  """Adds the axis of directions to the parameters of the recurrence."""
  return array if '.' in path else array[None]


def test_block_is_the_published_one(golden, assert_golden):
  assert_golden(make(), golden('rglru_recurrent_block'), BLOCK, with_directions)


@pytest.mark.parametrize('complex_states', [False, True])
def test_recurrence_is_the_published_one(complex_states, golden, assert_golden):
  """The block around the recurrence is the identity."""
  mixer = make(lru_width=D, taps=1, complex_states=complex_states)
  one = 2.9963627  # the tanh approximation of GELU at 3
  mixer.input.kernel.set_value(jnp.eye(D))
  mixer.out.kernel.set_value(jnp.eye(D) / one)
  mixer.gate.kernel.set_value(jnp.zeros((D, D)))
  mixer.gate.bias.set_value(jnp.full(D, 3.0))
  mixer.conv.set_value(jnp.ones((1, 1, D)))
  if complex_states:
    assert_golden(mixer, golden('rglru_complex'), LAYER | {'turn': 'a_imag_param'}, with_directions)
  else:
    assert_golden(mixer, golden('rglru'), LAYER, with_directions)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def recurrence(p, v_LE, direction):
  """h of one direction in float64, position by position from its start."""
  length = len(v_LE)
  v_LE = v_LE[::-1] if direction else v_LE
  theta = p['turn'][direction] if 'turn' in p else 0
  h_LN = np.zeros((length, p['decay'].shape[1]), complex)
  for t in range(length):
    taps = p['conv'][direction]
    u = p['conv_bias'][direction].copy()
    for lag in range(min(t + 1, len(taps))):
      u += taps[len(taps) - 1 - lag] * v_LE[t - lag]

    def gate(name):
      blocks = [b @ w for b, w in zip(np.split(u, H), p[name][direction], strict=True)]  # noqa: B023
      return sigmoid(np.concatenate(blocks) + p[f'{name}_bias'][direction].ravel())

    r, i = gate('decay_gate'), gate('input_gate')
    a = np.exp(r * (1j * theta - 8 * np.log1p(np.exp(p['decay'][direction]))))
    if 'turn' in p:
      u = u[: E // 2] + 1j * u[E // 2 :]
    h_LN[t] = i * u if t == 0 else a * h_LN[t - 1] + np.sqrt(1 - abs(a) ** 2) * i * u
  h_LE = np.concatenate([h_LN.real, h_LN.imag], axis=1) if 'turn' in p else h_LN.real
  return h_LE[::-1] if direction else h_LE


def reference(mixer, x_LD):
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  p = {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}
  x_LD = np.float64(x_LD)
  v_LE = x_LD @ p['input.kernel'] + p['input.bias']
  y_LE = x_LD @ p['gate.kernel'] + p['gate.bias']
  gelu_LE = y_LE / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y_LE + 0.044715 * y_LE**3)))
  h_LE = sum(recurrence(p, v_LE, direction) for direction in range(len(p['decay'])))
  return (gelu_LE * h_LE) @ p['out.kernel'] + p['out.bias']


@pytest.mark.parametrize('complex_states', [False, True])
@pytest.mark.parametrize('causal', [False, True])
def test_layer_matches_a_loop_over_positions(causal, complex_states, assert_follows_positions, perturbed):
  mixer = perturbed(make(causal, complex_states=complex_states))
  assert_follows_positions(mixer, reference, D, (L, 5, 1), 2, 2e-6)


@pytest.mark.parametrize('complex_states', [False, True])
def test_recurrent_form_is_the_scan(complex_states, assert_recurrent, perturbed):
  options = {'complex_states': complex_states}
  assert_recurrent(perturbed(make(**options)), make(causal=False, **options), L, D)


def test_initial_values(golden):
  published = golden('rglru_init')  # quantiles of 4096 draws
  mixer = make(causal=False, lru_width=4096, heads=64, depth=6)
  actual = np.quantile(np.asarray(mixer.decay[...]), published['q'])
  np.testing.assert_allclose(actual[1:], published['quantiles'][1:], atol=0.06)
  np.testing.assert_allclose(actual[0], published['quantiles'][0], atol=0.3)  # the first percent: few draws
  radius = np.exp(-jax.nn.softplus(mixer.decay[...]))
  assert (radius.min(), radius.max()) == (pytest.approx(0.9, abs=1e-3), pytest.approx(0.999, abs=1e-4))
  for value, variance in (
    (mixer.gate.kernel, 1 / D),
    (mixer.input.kernel, 1 / D),
    (mixer.out.kernel, 2 / (6 * 4096)),
    (mixer.conv, 0.01 / 4),
    (mixer.input_gate, 1 / 64),
    (mixer.decay_gate, 1 / 64),
  ):
    assert float(value[...].std()) == pytest.approx(np.sqrt(variance), rel=0.03)
  theta = np.ravel(make(lru_width=4096, heads=64, complex_states=True).turn[...])
  assert theta.shape == (2048,)
  quantiles = np.quantile(theta, [0, 0.25, 0.5, 0.75, 1])
  np.testing.assert_allclose(quantiles, np.pi * np.array([0, 0.025, 0.05, 0.075, 0.1]), atol=0.02)
  biases = [mixer.conv_bias, mixer.input_gate_bias, mixer.decay_gate_bias]
  biases += [layer.bias for layer in (mixer.gate, mixer.input, mixer.out)]
  assert not any(np.any(bias[...]) for bias in biases)


def test_radii_next_to_one_have_a_finite_start():
  assert np.isfinite(make(r_min=0.9999999, r_max=0.99999999).decay[...]).all()


def test_the_depth_of_the_model_reaches_the_mixer():
  model = ModelSpec('rglru', 256, 18, {'name': 'rglru'})
  mixer = MixerSpec(model, L, True, CLEAN, ExecutionSpec()).make(nnx.Rngs(0))
  assert float(mixer.out.kernel[...].std()) == pytest.approx(np.sqrt(2 / (18 * 256)), rel=0.03)


def test_parameter_groups(declared):
  actual = declared(make(ssm_lr=0.002))
  assert actual['decay'] == ((1, E), True, ParameterGroup(0.002, False))
  assert {name for name, (_, ssm, group) in actual.items() if ssm or group} == {'decay'}
  assert declared(make())['decay'][2] == ParameterGroup(None, False)
  actual = declared(make(ssm_lr=0.002, complex_states=True))
  assert actual['turn'] == ((1, E // 2), True, ParameterGroup(0.002, False))


def test_gradients_stay_finite_where_nothing_decays(gradients):
  """At a = 1 the derivative of sqrt(1 - a^2) is not finite."""
  mixer = make()
  mixer.decay.set_value(jnp.full((1, E), -200.0))
  actual = gradients(mixer, jax.random.normal(jax.random.key(0), (1, L, D)))
  assert all(np.isfinite(leaf).all() for leaf in actual.values())


@pytest.mark.parametrize(
  'options, message',
  [
    ({'heads': 5}, 'model.mixer.heads is 5, which does not divide the 12 states'),
    ({'heads': 4, 'complex_states': True}, 'heads is 4, which does not divide the 6 states'),
    ({'lru_width': 9, 'complex_states': True}, 'model.mixer.complex_states halves the 9 channels'),
    ({'r_min': 0.9, 'r_max': 0.5}, 'model.mixer has r_min=0.9, r_max=0.5'),
    ({'r_max': 1.0}, 'r_max=1.0; choose 0 <= r_min < r_max < 1'),
  ],
)
def test_errors_name_the_option(options, message):
  with pytest.raises(ValueError, match=message):
    make(**options)
