"""RetNet: golden values, both forms against all pairs of positions, initial values, operations, errors."""

import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.retnet import RetNet

L, D, H, N, P = 13, 8, 2, 4, 8
NAMES = {'input.kernel': 'in_proj', 'out.kernel': 'o_proj.weight', 'norm': 'g_norm_swish_gate.weight'}


def make(causal=True, width=D, **options):
  options = {'heads': H} | options
  return RetNet(width, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


def ours(path, array):
  """Transposes weights, which are (out, in) in PyTorch. The published code rotates channel m of a head with
  channel m + N / 2, ours with its neighbour."""
  if path == 'input.kernel':
    pairs = np.arange(N).reshape(2, N // 2).T.reshape(-1)
    order = (np.arange(0, 2 * H * N, N)[:, None] + pairs).reshape(-1)
    array = np.concatenate([array[order], array[2 * H * N :]])
  return array.T


def test_layer_is_the_published_one(golden, assert_golden):
  assert_golden(make(), golden('retnet'), NAMES, ours)


def reference(mixer, x_LD):
  """y in float64; a pair of channels is a complex number, which positions turn."""
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  p = {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}
  q, k, v, z = np.split(np.float64(x_LD) @ p['input.kernel'], (H * N, 2 * H * N, 2 * H * N + H * P), axis=1)
  q, k = (x.reshape(-1, H, N // 2, 2) @ [1, 1j] for x in (q, k))
  v, y = v.reshape(-1, H, P), np.zeros((len(x_LD), H, P))
  for t in range(len(y)):
    for s in range(t + 1 if mixer.causal else len(y)):
      turned = np.exp(1j * (t - s) * 10_000.0 ** (-2 * np.arange(N // 2) / N))
      for head in range(H):
        product = (q[t, head] * turned * k[s, head].conj()).real.sum() / np.sqrt(N)
        y[t, head] += (1 - 2.0 ** (-5 - head)) ** abs(t - s) * product * v[s, head]
  y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-5) * p['norm']
  return (y.reshape(z.shape) * z / (1 + np.exp(-z))) @ p['out.kernel']


@pytest.mark.parametrize('causal', [False, True])
def test_layer_matches_all_pairs_of_positions(causal, assert_follows_positions, perturbed):
  assert_follows_positions(perturbed(make(causal)), reference, D, (L, 5, 1), 1, 5e-6)


def test_recurrent_form_is_the_parallel_one(assert_recurrent):
  assert_recurrent(make(), make(causal=False), L, D)


def test_operations_are_counted():
  each = 4 * H * N * P + 2 * L * (H * N + H * P)
  assert make().flops(L) == L * (each + 6 * H * N)
  assert make(causal=False).flops(L) == L * (2 * each + 6 * H * N)


@pytest.mark.parametrize(
  'options, message',
  [
    ({'heads': 3}, 'model.mixer.expand_k is 1.0, which makes 8 channels of model.width 8, not a positive'),
    ({'expand_v': 0.1}, 'model.mixer.expand_v is 0.1, which makes 1 channels'),
    (
      {'heads': 8},
      'model.mixer.heads=8, which makes 1 channels per head of model.width 8, but rotations need',
    ),
  ],
)
def test_errors_name_the_option(options, message):
  with pytest.raises(ValueError, match=message):
    make(**options)
