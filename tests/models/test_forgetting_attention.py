"""FoX: golden values, both forms against all pairs of positions, weights, operations, errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.models.mixers.forgetting_attention import ForgettingAttention

L, D, H, K = 13, 8, 2, 4
NAMES = {
  'query.kernel': 'q_proj.weight',
  'key.kernel': 'k_proj.weight',
  'value.kernel': 'v_proj.weight',
  'out.kernel': 'o_proj.weight',
  'forget.kernel': 'f_proj.weight',
  'forget.bias': 'f_proj.bias',
}
PRO = NAMES | {'gate.kernel': 'g_proj.weight', 'query_scale': 'q_norm.weight', 'key_scale': 'k_norm.weight'}


def make(causal=True, **options):
  options = {'heads': H} | options
  return ForgettingAttention(D, length=L, causal=causal, protocol=None, rngs=nnx.Rngs(0), **options)


@pytest.mark.parametrize('pro', [False, True])
def test_layer_is_the_published_one(pro, golden, assert_golden):
  values = golden('forgetting_attention' + '_pro' * pro)
  assert_golden(make(qk_norm=pro, gate=pro), values, PRO if pro else NAMES, lambda path, array: array.T)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def reference(mixer, x_LD):
  """y in float64, pair by pair."""
  flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
  p = {'.'.join(path): np.asarray(leaf[...], np.float64) for path, leaf in flat}
  x_LD = np.float64(x_LD)
  q, k, v = ((x_LD @ p[f'{name}.kernel']).reshape(-1, H, K) for name in ('query', 'key', 'value'))
  f = sigmoid(x_LD @ p['forget.kernel'] + p['forget.bias']).reshape(len(x_LD), H, -1)
  y = np.zeros_like(v)
  for t in range(len(y)):
    for head in range(H):
      scores = []
      for s in range(t + 1 if mixer.causal else len(y)):
        gates = f[s + 1 : t + 1, head, 0] if s <= t else f[t:s, head, 1]
        scores.append(np.log(gates).sum() + q[t, head] @ k[s, head] / np.sqrt(K))
      weights = np.exp(np.array(scores) - max(scores))
      y[t, head] = weights @ v[: len(scores), head] / weights.sum()
  return y.reshape(x_LD.shape) @ p['out.kernel']


@pytest.mark.parametrize('causal', [False, True])
def test_layer_matches_all_pairs_of_positions(causal, assert_follows_positions, perturbed):
  assert_follows_positions(perturbed(make(causal)), reference, D, (L, 5, 1), 1, 5e-6)


@pytest.mark.parametrize('causal', [False, True])
def test_weights_are_those_of_the_output(causal, perturbed):
  mixer, x_BLD = perturbed(make(causal)), jnp.asarray(np.random.default_rng(0).normal(size=(2, L, D)), 'f4')
  lengths_B = jnp.int32([L, 6])
  weights_BHLM = mixer.attention_weights(x_BLD, lengths_B=lengths_B)
  v_BLHK = mixer.value(x_BLD).reshape(2, L, H, K)
  y_BLD = mixer.out(jnp.einsum('bhlm,bmhk->blhk', weights_BHLM, v_BLHK).reshape(x_BLD.shape))
  np.testing.assert_allclose(y_BLD, mixer(x_BLD, lengths_B=lengths_B), atol=1e-6)


def test_operations_are_counted():
  assert make(causal=False).flops(L) == 4 * D * L * L
  assert make().flops(L) == 4 * D * L * (L + 1) // 2


@pytest.mark.parametrize('heads', [0, 3])
def test_heads_that_do_not_divide_the_width_are_refused(heads):
  with pytest.raises(ValueError, match=f'model.width is 8, which model.mixer.heads={heads} does not divide'):
    make(heads=heads)
