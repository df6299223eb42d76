"""minGRU: golden values, the bidirectional form against a loop over positions, initial values, errors."""

import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.mingru import MinGRU

L, D = 10, 6
NAMES = {'gates.kernel': 'to_hidden_and_gate.weight', 'out.kernel': 'to_out.weight'}


def make(causal=True, width=D, **options):
  return MinGRU(
    width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **{'expansion': 1.5, **options}
  )


def test_layer_is_the_published_one(golden, assert_golden):
  assert_golden(make(), golden('mingru'), NAMES, lambda path, weight: weight.T)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def reference(mixer, x_LD):
  """y in float64, position by position from the start of each direction."""
  kernel = np.float64(mixer.gates.kernel[...])
  total = 0
  for direction, matrix in enumerate(np.split(kernel, 1 if mixer.causal else 2, axis=1)):
    h, states = np.zeros(mixer.inner), []
    for x in np.float64(x_LD)[:: -1 if direction else 1]:
      c, z = np.split(x @ matrix, 2)
      if mixer.positive:
        c = np.where(c >= 0, c + 0.5, sigmoid(c))
      h = (1 - sigmoid(z)) * h + sigmoid(z) * c
      states.append(h)
    total = total + np.stack(states)[:: -1 if direction else 1]
  return total @ np.float64(mixer.out.kernel[...]) if mixer.has_out else total


@pytest.mark.parametrize(
  'causal, expansion, positive', [(False, 1.5, True), (False, 1.0, False), (True, 1.0, True)]
)
def test_layer_matches_a_loop_over_positions(causal, expansion, positive, assert_follows_positions):
  mixer = make(causal, expansion=expansion, positive=positive)
  assert_follows_positions(mixer, reference, D, (L, 4, 1), 3, 2e-6)


def test_recurrent_form_is_the_scan(assert_recurrent):
  assert_recurrent(make(), make(causal=False), L, D)


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
