"""minGRU and minLSTM: golden values, both forms against a loop over positions, initial values, errors."""

import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.min_lstm import MinLSTM
from lra_spt.models.mixers.mingru import MinGRU

L, D = 10, 6
GATES = {MinGRU: 'to_hidden_and_gate.weight', MinLSTM: 'to_hidden_and_f_i_gate.weight'}


def make(causal=True, width=D, cls=MinGRU, **options):
  return cls(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **{'expansion': 1.5, **options})


@pytest.mark.parametrize('cls, file', [(MinGRU, 'mingru'), (MinLSTM, 'min_lstm')])
def test_layer_is_the_published_one(golden, assert_golden, cls, file):
  names = {'gates.kernel': GATES[cls], 'out.kernel': 'to_out.weight'}
  assert_golden(make(cls=cls), golden(file), names, lambda path, weight: weight.T)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def reference(mixer, x_LD):
  """y in float64, position by position from the start of each direction."""
  kernel = np.float64(mixer.gates.kernel[...])
  total = 0
  for direction, matrix in enumerate(np.split(kernel, 1 if mixer.causal else 2, axis=1)):
    h, states = np.zeros(mixer.inner), []
    for x in np.float64(x_LD)[:: -1 if direction else 1]:
      c, *gates = np.split(x @ matrix, mixer.maps)
      if mixer.positive:
        c = np.where(c >= 0, c + 0.5, sigmoid(c))
      if isinstance(mixer, MinLSTM):
        f, i = map(sigmoid, gates)
        h = (f * h + i * c) / (f + i)
      else:
        h = (1 - sigmoid(gates[0])) * h + sigmoid(gates[0]) * c
      states.append(h)
    total = total + np.stack(states)[:: -1 if direction else 1]
  return total @ np.float64(mixer.out.kernel[...]) if mixer.has_out else total


@pytest.mark.parametrize(
  'cls, causal, expansion, positive',
  [
    (MinGRU, False, 1.5, True),
    (MinGRU, False, 1.0, False),
    (MinGRU, True, 1.0, True),
    (MinLSTM, False, 1.0, True),
  ],
)
def test_layer_matches_a_loop_over_positions(cls, causal, expansion, positive, assert_follows_positions):
  mixer = make(causal, cls=cls, expansion=expansion, positive=positive)
  assert_follows_positions(mixer, reference, D, (L, 4, 1), 3, 2e-6)


@pytest.mark.parametrize('cls', [MinGRU, MinLSTM])
def test_recurrent_form_is_the_scan(cls, assert_recurrent):
  assert_recurrent(make(cls=cls), make(causal=False, cls=cls), L, D)


def test_closed_gates_give_finite_gradients(gradients):
  """Both gates of minLSTM are 0 in float32, but not their quotient."""
  mixer = make(cls=MinLSTM, expansion=1.0)
  mixer.gates.kernel.set_value(-100 * np.abs(mixer.gates.kernel[...]))
  actual = gradients(mixer, 100 * np.ones((1, L, D), np.float32))
  assert all(np.isfinite(leaf).all() for leaf in actual.values())


def test_parameters(declared):
  """All parameters are in the stage's group and start uniform in +-1 / sqrt(fan-in)."""
  assert declared(make(width=64, expansion=1.0)) == {'kernel': ((64, 128), False, None)}
  kernel = np.abs(make(causal=False, width=64).gates.kernel[...])
  assert kernel.shape == (64, 2 * 2 * 96)
  assert kernel.max() == pytest.approx(1 / 8, rel=0.01)
  assert kernel.mean() == pytest.approx(1 / 16, rel=0.03)
  out = np.abs(make(width=64).out.kernel[...])
  assert (out.shape, out.max()) == ((96, 64), pytest.approx(1 / np.sqrt(96), rel=0.01))


def test_an_expansion_too_small_is_refused():
  with pytest.raises(
    ValueError, match='model.mixer.expansion is 0.1, which leaves no channel of model.width 6'
  ):
    make(expansion=0.1)
