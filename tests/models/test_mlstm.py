"""mLSTM: golden values, both forms against a loop over positions, large gates, initial values, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.mlstm import MLSTM, read_memory

L, D, E, H = 12, 8, 64, 2
NAMES = {
  'up.kernel': 'proj_up.weight',
  'down.kernel': 'proj_down.weight',
  'query': 'q_proj.weight',
  'key': 'k_proj.weight',
  'value': 'v_proj.weight',
  'conv': 'conv1d.conv.weight',
  'conv_bias': 'conv1d.conv.bias',
  'input_gate': 'mlstm_cell.igate.weight',
  'input_gate_bias': 'mlstm_cell.igate.bias',
  'forget_gate': 'mlstm_cell.fgate.weight',
  'forget_gate_bias': 'mlstm_cell.fgate.bias',
  'skip': 'learnable_skip',
  'norm': 'mlstm_cell.outnorm.weight',
}


def make(causal=True, width=D, **options):
  options = {'heads': H} | options
  return MLSTM(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def ours(path, array):
  """Transposes weights, which are (out, in) in PyTorch, and adds the axis of directions to the recurrence."""
  if path in ('query', 'key', 'value', 'norm'):
    return array
  if '.' in path:
    return array.T
  return (array[:, 0] if path == 'conv' else array).T[None]


def test_layer_is_the_published_one(golden, assert_golden):
  assert_golden(make(), golden('mlstm_layer'), NAMES, ours, backward=1e-5)


def test_memory_is_the_published_one(golden):
  """The published code has a parallel form and one in chunks, which differ by 1.6e-6."""
  values = golden('mlstm_cell')  # published as [B, H, L, ...]
  q, k, v, i, f = (jnp.asarray(values[key].swapaxes(1, 2)) for key in ('q', 'k', 'v', 'igate', 'fgate'))
  v = jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1)
  h = read_memory(q * np.float32(q.shape[-1] ** -0.5), k, v, i, jax.nn.log_sigmoid(f))
  for key in ('h', 'h_chunkwise'):
    expected = values[key].swapaxes(1, 2)
    np.testing.assert_allclose(h, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def silu(x):
  return x / (1 + np.exp(-x))


def recurrence(p, a_LE, direction):
  """h and c of one direction in float64, position by position from its start, without rescaled gates."""
  a_LE = a_LE[::-1] if direction else a_LE
  conv, size = p['conv'][direction], E // H
  h_LE, c_LE = np.zeros_like(a_LE), np.zeros_like(a_LE)
  states, normals = np.zeros((H, size, size)), np.zeros((H, size))
  for t in range(len(a_LE)):
    taps = [conv[len(conv) - 1 - lag] * a_LE[t - lag] for lag in range(min(t + 1, len(conv)))]
    c_LE[t] = silu(p['conv_bias'][direction] + sum(taps))
    inputs = (c_LE[t], c_LE[t], a_LE[t])
    kernels = (p['query'], p['key'], p['value'])
    qkv = [np.einsum('gi,goi->go', x.reshape(-1, 4), w).ravel() for x, w in zip(inputs, kernels, strict=True)]
    joined = np.concatenate(qkv)
    i = np.exp(joined @ p['input_gate'][direction] + p['input_gate_bias'][direction])
    f = 1 / (1 + np.exp(-joined @ p['forget_gate'][direction] - p['forget_gate_bias'][direction]))
    for head, (q, k, v) in enumerate(zip(*(np.split(x, H) for x in qkv), strict=True)):
      states[head] = f[head] * states[head] + i[head] * np.outer(k, v) / np.sqrt(size)
      normals[head] = f[head] * normals[head] + i[head] * k / np.sqrt(size)
      h_LE[t, head * size : head * size + size] = q @ states[head] / max(abs(q @ normals[head]), 1)
  return (h_LE[::-1], c_LE[::-1]) if direction else (h_LE, c_LE)


def reference(mixer, x_LD):
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  p = {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}
  a_LE, z_LE = np.split(np.float64(x_LD) @ p['up.kernel'], 2, axis=1)
  h_LE, skipped_LE = 0, 0
  for direction in range(len(p['conv'])):
    h, c = recurrence(p, a_LE, direction)
    h_LE, skipped_LE = h_LE + h, skipped_LE + p['skip'][direction] * c
  heads = [h - h.mean(1, keepdims=True) for h in np.split(h_LE, H, axis=1)]
  h_LE = np.hstack([h / np.sqrt((h**2).mean(1, keepdims=True) + 1e-5) for h in heads]) * (1 + p['norm'])
  return ((h_LE + skipped_LE) * silu(z_LE)) @ p['down.kernel']


@pytest.mark.parametrize('causal', [False, True])
def test_layer_matches_a_loop_over_positions(causal, assert_follows_positions, perturbed):
  assert_follows_positions(perturbed(make(causal), 0.3), reference, D, (L, 5, 1), 1, 1e-5)


def test_recurrent_form_is_the_scan(assert_recurrent, perturbed):
  assert_recurrent(perturbed(make(), 0.3), make(causal=False), L, D)


def test_gates_far_from_0_overflow_nowhere(gradients, perturbed):
  """exp(300) is too large for float32."""
  mixer = perturbed(make(causal=False), 0.3)
  mixer.input_gate_bias.set_value(jnp.float32([[-300, 300]] * 2))
  actual = gradients(mixer, jax.random.normal(jax.random.key(0), (1, L, D)))
  assert all(np.isfinite(leaf).all() for leaf in actual.values())


def test_initial_values():
  mixer = make(causal=False, width=256, depth=6, heads=4)
  assert mixer.up.kernel.shape == (256, 1024)
  assert mixer.norm.shape == (512,)
  for value, deviation in (
    (mixer.up.kernel, (2 / (5 * 256)) ** 0.5),
    (mixer.query, (2 / (5 * 256)) ** 0.5),
    (mixer.down.kernel, 2 / (6 * 16)),
    (mixer.conv, 0.5 / 3**0.5),
  ):
    assert float(value[...].std()) == pytest.approx(deviation, rel=0.05)
  assert not any(np.any(v[...]) for v in (mixer.input_gate, mixer.forget_gate, mixer.norm))
  np.testing.assert_allclose(mixer.forget_gate_bias[1], [3, 4, 5, 6])
  assert np.abs(mixer.input_gate_bias[...]).max() < 0.4


def test_operations_are_counted():
  assert make().flops(L) == L * E * (2 * (4 + 12 + 12) + 4 * 33 + 4 * L)


def test_heads_that_do_not_divide_the_channels_are_refused():
  with pytest.raises(ValueError, match='model.mixer.heads is 3, which does not divide the 64 channels'):
    make(heads=3)
