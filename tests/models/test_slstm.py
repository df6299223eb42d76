"""sLSTM: golden values, both forms against a loop over positions, large gates, initial values, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.slstm import SLSTM

L, D, H = 13, 8, 2
K = D // H
NAMES = {
  'conv': 'conv1d.conv.weight',
  'conv_bias': 'conv1d.conv.bias',
  'input_gate': 'fgate.weight',  # the published code calls them the other way round
  'forget_gate': 'igate.weight',
  'value': 'zgate.weight',
  'output_gate': 'ogate.weight',
  'recurrent': 'slstm_cell._recurrent_kernel_',
  'gate_bias': 'slstm_cell._bias_',
  'norm': 'group_norm.weight',
}


def make(causal=True, width=D, **options):
  options = {'heads': H} | options
  return SLSTM(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def ours(path, array):
  """Arrays of PyTorch, where outputs come before inputs, with the axis of directions."""
  if path == 'norm':
    return array
  if path == 'conv':
    return array[:, 0].T[None]
  if path == 'conv_bias':
    return array[None]
  if path == 'gate_bias':
    return array.reshape(4, H, K).swapaxes(0, 1)[None]
  if path == 'recurrent':
    return array.reshape(H, 4, K, K).transpose(0, 3, 1, 2)[None]
  weight = array.swapaxes(1, 2)
  return weight if path in ('value', 'output_gate') else weight[None]


def test_layer_is_the_published_one(golden, assert_golden):
  assert_golden(make(), golden('slstm_layer'), NAMES, ours)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def recurrence(p, x_LD, direction):
  """h of one direction in float64, cell by cell from its start, without rescaled gates."""
  x_LD = x_LD[::-1] if direction else x_LD
  conv, h_LD = p['conv'][direction], np.zeros_like(x_LD)
  s, n, h = np.zeros((3, H, K))
  for t in range(len(x_LD)):
    taps = [conv[len(conv) - 1 - lag] * x_LD[t - lag] for lag in range(min(t + 1, len(conv)))]
    c = p['conv_bias'][direction] + sum(taps)
    c, x = (c * sigmoid(c)).reshape(H, K), x_LD[t].reshape(H, K)
    before = h.copy()
    for head in range(H):
      logits = np.stack(
        [
          c[head] @ p['input_gate'][direction, head],
          c[head] @ p['forget_gate'][direction, head],
          x[head] @ p['value'][head],
          x[head] @ p['output_gate'][head],
        ]
      )
      logits += np.einsum('k,kgo->go', before[head], p['recurrent'][direction, head])
      i, f, z, o = logits + p['gate_bias'][direction, head]
      s[head] = sigmoid(f) * s[head] + np.exp(i) * np.tanh(z)
      n[head] = sigmoid(f) * n[head] + np.exp(i)
      h[head] = sigmoid(o) * s[head] / n[head]
    h_LD[t] = h.ravel()
  return h_LD[::-1] if direction else h_LD


def reference(mixer, x_LD):
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  p = {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}
  h_LD = sum(recurrence(p, np.float64(x_LD), direction) for direction in range(len(p['conv'])))
  heads = [h - h.mean(1, keepdims=True) for h in np.split(h_LD, H, axis=1)]
  return np.hstack([h / np.sqrt((h**2).mean(1, keepdims=True) + 1e-5) for h in heads]) * (1 + p['norm'])


@pytest.mark.parametrize('causal', [False, True])
def test_layer_matches_a_loop_over_positions(causal, assert_follows_positions, perturbed):
  assert_follows_positions(perturbed(make(causal)), reference, D, (L, 5, 1), 1, 1e-5)


def test_recurrent_form_is_the_scan(assert_recurrent, perturbed):
  assert_recurrent(perturbed(make()), make(causal=False), L, D)


def test_gates_far_from_0_overflow_nowhere(gradients, perturbed):
  """exp(300) is too large for float32."""
  mixer = perturbed(make(causal=False))
  mixer.gate_bias.set_value(mixer.gate_bias[...].at[:, :, 0].set(jnp.float32([[-300], [300]])))
  actual = gradients(mixer, jax.random.normal(jax.random.key(0), (1, L, D)))
  assert all(np.isfinite(leaf).all() for leaf in actual.values())


def test_initial_values():
  mixer = make(causal=False, width=256, heads=4)
  assert mixer.recurrent.shape == (2, 4, 64, 4, 64)
  for value, deviation in (
    (mixer.input_gate, (2 / (5 * 256)) ** 0.5),
    (mixer.value, (2 / (5 * 256)) ** 0.5),
    (mixer.conv, 0.5 / 3**0.5),
  ):
    assert float(value[...].std()) == pytest.approx(deviation, rel=0.05)
  assert not any(np.any(v[...]) for v in (mixer.recurrent, mixer.norm))
  # The published code starts the second of three layers so.
  bias_HGK = make(depth=3, layer=1).gate_bias[0]
  np.testing.assert_allclose(bias_HGK[:, 1], [[5, 0.7741, -3.1638, -7]] * H, atol=1e-4)
  assert not np.any(bias_HGK[:, np.array([0, 2, 3])])


def test_operations_are_counted():
  assert make(causal=False).flops(L) == L * D * (2 * (2 * (4 + 6 * K) + 16) + 4 * K)


def test_heads_that_do_not_divide_the_width_are_refused():
  with pytest.raises(ValueError, match='model.width is 8, which model.mixer.heads=3 does not divide'):
    make(heads=3)
