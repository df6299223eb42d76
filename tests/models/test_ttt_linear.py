"""TTT-Linear: golden values, both forms against gradient descent position by position, operations, errors."""

import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.ttt_linear import TTTLinear

L, D, H, N, T = 13, 8, 2, 4, 4
NAMES = {
  'query.kernel': 'q_proj.weight',
  'key.kernel': 'k_proj.weight',
  'value.kernel': 'v_proj.weight',
  'out.kernel': 'o_proj.weight',
  'norm.scale': 'post_norm.weight',
  'norm.bias': 'post_norm.bias',
  'rate.kernel': 'learnable_ttt_lr_weight',
  'rate.bias': 'learnable_ttt_lr_bias',
  'memory': 'W1',
  'memory_bias': 'b1',
  'norm_scale': 'ttt_norm_weight',
  'norm_bias': 'ttt_norm_bias',
  'token_shift': 'learnable_token_idx',
}


def make(causal=True, length=L, **options):
  options = {'heads': H, 'chunk': T} | options
  return TTTLinear(D, length=length, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def ours(path, array):
  """Transposes weights, which are (out, in) in PyTorch, and adds the axis of directions to the memory."""
  if path.startswith('rate'):
    return array[:, 0].T
  if path == 'memory_bias':
    array = array[:, 0]
  return array.T if '.' in path else array[None]


def test_layer_is_the_published_one(golden, assert_golden):
  """13 positions are three mini-batches and a part of one."""
  assert_golden(make(), golden('ttt_linear'), NAMES, ours, backward=1e-5)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def standardised(x):
  return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def slope(loss, x):
  """The gradient by central differences in float64."""
  steps = 1e-5 * np.eye(x.size).reshape(x.size, *x.shape)
  return np.array([loss(x + step) - loss(x - step) for step in steps]).reshape(x.shape) / 2e-5


def reference(mixer, x_LD):
  """y in float64. The gradients of the memory are differences of the loss."""
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  p = {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}
  x_LD = np.float64(x_LD)
  q, k, v = ((x_LD @ p[f'{name}.kernel']).reshape(-1, H, N) for name in ('query', 'key', 'value'))
  angles = np.arange(len(x_LD))[:, None, None] % T * 10_000.0 ** (-2 * np.arange(N // 2) / N)
  q, k = (((x.reshape(-1, H, N // 2, 2) @ [1, 1j]) * np.exp(1j * angles)) for x in (q, k))
  q, k = (np.stack([x.real, x.imag], -1).reshape(-1, H, N) for x in (q, k))
  rate = sigmoid(x_LD @ p['rate.kernel'] + p['rate.bias']).reshape(len(x_LD), -1, H) / N
  y = np.zeros_like(q)
  for direction in range(len(p['memory'])):
    token = np.maximum(1 / np.arange(1, T + 1) + p['token_shift'][direction], 0)
    for head in range(H):
      scale, bias = p['norm_scale'][direction, head], p['norm_bias'][direction, head]

      def loss(model, t, scale=scale, bias=bias, head=head):
        error = standardised(k[t, head] @ model[:N] + model[N]) * scale + bias - (v[t, head] - k[t, head])
        return (error**2).sum() / 2

      model = np.concatenate([p['memory'][direction, head], p['memory_bias'][direction, head][None]])
      learned, total = model, 0
      for t in range(len(x_LD))[:: -1 if direction else 1]:
        place = T - 1 - t % T if direction else t % T
        if place == 0:
          model, total = learned, 0
        total = total + rate[t, direction, head] * slope(lambda m, t=t: loss(m, t), model)
        learned = model - token[place] * total
        read = standardised(q[t, head] @ learned[:N] + learned[N]) * scale + bias
        y[t, head] += q[t, head] + read
  y = standardised(y.reshape(x_LD.shape)) * p['norm.scale'] + p['norm.bias']
  return y @ p['out.kernel']


@pytest.mark.parametrize('causal', [False, True])
def test_layer_matches_gradient_descent(causal, assert_follows_positions, perturbed):
  assert_follows_positions(perturbed(make(causal)), reference, D, (L, 6, 1), 1, 1e-5)


def test_recurrent_form_is_the_parallel_one(assert_recurrent, perturbed):
  assert_recurrent(perturbed(make()), make(causal=False), L, D)


def test_operations_are_counted():
  assert make().flops(L) == L * D * 6 * (N + T)
  assert make(causal=False).flops(L) == 2 * make().flops(L)


@pytest.mark.parametrize(
  'options, message',
  [
    ({'heads': 8}, 'model.width is 8 and model.mixer.heads 8, but heads need an even number of channels'),
    ({'chunk': 14}, 'model.mixer.chunk is 14, longer than the 13 positions of the sequence'),
  ],
)
def test_errors_name_the_option(options, message):
  with pytest.raises(ValueError, match=message):
    make(**options)
