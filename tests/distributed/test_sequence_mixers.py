"""Mixers and pools with positions split over 'seq' agree with one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config.protocol import CLEAN
from lra_spt.models import make_mixer
from lra_spt.models.encoder import increment
from lra_spt.models.heads import pool
from tests.distributed.split_positions import (
  LENGTH,
  LENGTHS,
  ROWS,
  assert_close,
  normal,
  on_mesh,
  on_one_device,
)

MIXERS = [
  ('s4', {'state_size': 6, 'copies': 3}, True, (2, 1, 4), {'all-to-all': 4}),
  ('s4', {'state_size': 6, 'parametrization': 'plain'}, False, (1, 1, 8), {'all-to-all': 4}),
  ('s4d', {'state_size': 6, 'copies': 2, 'train_b': True}, False, (1, 2, 4), {'all-to-all': 4}),
  ('dlr', {'state_size': 12}, False, (2, 1, 4), {'all-to-all': 4}),
  ('dss', {'state_size': 6}, False, (1, 1, 8), {'all-to-all': 4}),
  ('sgconv', {'kernel_dim': 6, 'decay_min': 1.5}, False, (1, 2, 4), {'all-to-all': 4}),
  ('longconv', {}, False, (2, 1, 4), {'all-to-all': 4}),
  ('lru', {'state_size': 6}, True, (1, 1, 8), {'all-gather': 2}),
  ('s5', {'state_size': 12, 'blocks': 2}, False, (1, 2, 4), {'all-gather': 4}),
  ('linoss', {'state_size': 3}, False, (2, 1, 4), {'all-gather': 4}),
  ('attention', {'heads': 4, 'rotary': True}, True, (2, 1, 4), {'all-to-all': 4}),
  ('forgetting_attention', {'heads': 4}, False, (2, 1, 4), {'all-to-all': 6}),
  pytest.param(  # 8 shards do not divide 4 heads
    'forgetting_attention',
    {'heads': 4},
    True,
    (1, 1, 8),
    {'all-gather': 2, 'reduce-scatter': 2},
    marks=pytest.mark.slow,
  ),
  ('linformer', {}, False, (2, 1, 4), {}),
  ('longformer', {'window': 6}, True, (1, 1, 8), {'collective-permute': 2}),
  (
    'longformer',
    {'window': 6, 'global_tokens': 2},
    False,
    (2, 1, 4),
    {'all-gather': 6, 'collective-permute': 1},
  ),
  ('reformer', {'chunk': 8}, False, (2, 1, 4), {'all-gather': 3}),
  ('mingru', {}, False, (2, 1, 4), {'all-to-all': 11}),
  ('mingru', {'expansion': 0.4}, True, (1, 2, 4), {'all-gather': 4}),  # 4 shards do not divide 6 channels
  ('hgrn2', {}, True, (1, 1, 8), {'all-to-all': 6}),
  ('mamba2', {'head_dim': 4, 'state_size': 6}, True, (2, 1, 4), {'all-to-all': 10, 'collective-permute': 12}),
  pytest.param(
    'mamba2',
    {'head_dim': 16, 'state_size': 6},
    False,
    (2, 1, 4),
    {'all-gather': 9, 'collective-permute': 24},  # 4 shards do not divide 2 heads
    marks=pytest.mark.slow,
  ),
  pytest.param(
    'log_linear_mamba2',
    {'head_dim': 4, 'state_size': 6},
    True,
    (2, 1, 4),
    {'all-to-all': 12, 'collective-permute': 12},
    marks=pytest.mark.slow,
  ),
  ('mamba3', {'head_dim': 4, 'state_size': 8}, True, (2, 1, 4), {'all-to-all': 12, 'collective-permute': 3}),
  pytest.param(
    'mesanet',
    {'heads': 4, 'steps': 4},
    True,
    (2, 1, 4),
    {'all-to-all': 14, 'collective-permute': 12},
    marks=pytest.mark.slow,
  ),
  pytest.param(
    'ttt_linear', {'heads': 4, 'chunk': 8}, False, (2, 1, 4), {'all-gather': 6}, marks=pytest.mark.slow
  ),
  ('retnet', {'heads': 4}, False, (2, 1, 4), {'all-to-all': 9}),
  ('gla', {'heads': 4}, True, (2, 1, 4), {'all-to-all': 10}),
  ('gated_deltanet', {'heads': 4}, True, (2, 1, 4), {'all-to-all': 12, 'collective-permute': 12}),
  pytest.param(
    'gated_deltaproduct',
    {'heads': 4},
    True,
    (2, 1, 4),
    {'all-to-all': 12, 'collective-permute': 12},
    marks=pytest.mark.slow,
  ),
  ('kda', {'heads': 4}, True, (2, 1, 4), {'all-to-all': 12, 'collective-permute': 12}),
  pytest.param(
    'path_attention',
    {'heads': 4, 'rank': 3},
    False,
    (2, 1, 4),
    {'all-to-all': 21, 'collective-permute': 22},
    marks=pytest.mark.slow,
  ),
  pytest.param(
    'rwkv7',
    {'heads': 4, 'rank': 3, 'gate_rank': 3},
    True,
    (2, 1, 4),
    {'all-to-all': 12, 'collective-permute': 2},
    marks=pytest.mark.slow,
  ),
  pytest.param(
    'mamba',
    {'state_size': 3},
    True,
    (1, 2, 4),
    {'all-to-all': 6, 'all-gather': 2, 'reduce-scatter': 2, 'collective-permute': 12},
    marks=pytest.mark.slow,
  ),
  ('slstm', {'heads': 4}, False, (2, 1, 4), {'all-to-all': 7, 'collective-permute': 24}),
  ('b2s6', {'blocks': 4, 'state_size': 6}, True, (2, 1, 4), {'all-to-all': 10}),
  ('linear_transformer', {'heads': 4}, True, (2, 1, 4), {'all-to-all': 8}),
  pytest.param(
    'mlstm',
    {'heads': 4},
    False,
    (2, 1, 4),
    {'all-to-all': 19, 'all-gather': 6, 'collective-permute': 24},  # gates are gathered
    marks=pytest.mark.slow,
  ),
  ('hyena', {'features': 5, 'hidden': 8}, True, (2, 1, 4), {'all-to-all': 4, 'collective-permute': 12}),
  ('performer', {'heads': 2, 'features': 'favor', 'random_features': 6}, False, (2, 1, 4), {}),
  (
    'rglru',
    {'heads': 4},
    False,
    (1, 1, 8),
    {'all-to-all': 11, 'collective-permute': 33},
  ),  # short convolutions
  ('mega', {'z': 4}, False, (2, 1, 4), {'all-gather': 1, 'all-to-all': 4, 'reduce-scatter': 1}),
  ('mega', {'z': 4, 'chunk': 8}, True, (1, 1, 8), {'all-to-all': 4, 'collective-permute': 2}),
  (
    'mega',
    {'z': 4, 'function': 'laplace'},
    True,
    (1, 2, 4),
    {'all-gather': 1, 'all-to-all': 4, 'reduce-scatter': 1},
  ),
  ('mega', {'z': 4, 'function': 'laplace', 'chunk': 6}, False, (2, 1, 4), {'all-to-all': 4}),
]


@pytest.mark.parametrize('name, options, causal, shape, expected', MIXERS)
def test_mixers_agree_with_one_device(name, options, causal, shape, expected):
  make = functools.partial(make_mixer, name, 16, options=options, length=LENGTH, causal=causal)
  graphdef, abstract = nnx.split(nnx.eval_shape(lambda: make(protocol=CLEAN, rngs=nnx.Rngs(0))))
  parameters = jax.tree.map(lambda leaf: 0.3 * normal(*leaf.shape, seed=leaf.size), abstract)

  def mix(x, cotangent, parameters, lengths_B):
    function = lambda x, parameters: nnx.merge(graphdef, parameters)(x, lengths_B=lengths_B)  # noqa: E731
    y, pull = jax.vjp(lambda *a: increment(a[0], function(*a)), x, parameters)
    return y, pull(cotangent)

  arrays = [normal(ROWS, LENGTH, 16, seed=seed) for seed in range(2)]
  actual, moved = on_mesh(shape, mix, arrays, parameters, LENGTHS)
  expected_arrays = on_one_device(mix, *arrays, parameters, LENGTHS)
  for (path, a), b in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected_arrays), strict=True):
    # Sums have another order. Gradients of parameters reach thousands, other arrays stay below 1. On some
    # processors the gradient of S5's poles differs by 1.01e-5 of its largest value.
    where = jax.tree_util.keystr(path)
    np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * np.abs(b).max(), err_msg=where)
  assert moved == expected


@pytest.mark.parametrize('kind', ['mean', 'max', 'last'])
def test_pools_move_no_positions(kind):
  def both(h, lengths_B):
    out, pull = jax.vjp(lambda h: pool(h, kind, lengths_B), h)
    return out, pull(jnp.ones_like(out))

  h = normal(ROWS, LENGTH, 8)
  actual, moved = on_mesh((2, 1, 4), both, (h,), LENGTHS)
  assert_close(actual, on_one_device(both, h, LENGTHS), atol=1e-6)
  assert moved == {}
