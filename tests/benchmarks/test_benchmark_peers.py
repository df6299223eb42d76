"""Peers, beside which our implementations are timed, compute the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks import field
from benchmarks.peers import fused_attention, mamba2_torch, mega_torch, s4_plain, s4_torch
from lra_spt.config.protocol import CLEAN
from lra_spt.models import make_mixer
from lra_spt.models.encoder import increment
from lra_spt.ops.attention import Full, Neighbours, attention


@pytest.fixture
def lenient_jax():
  """jax as its users have it: peers owe nothing to our stricter settings."""
  with jax.numpy_dtype_promotion('standard'), jax.numpy_rank_promotion('allow'):
    yield


@pytest.mark.parametrize('products', [False, True])
def test_plain_s4_is_ours(lenient_jax, products):
  width, states, length = 3, 8, 24
  ours = make_mixer(
    's4', width, options={'state_size': states}, length=length, causal=False, protocol=CLEAN, rngs=nnx.Rngs(0)
  )
  kernel, linear = ours.kernel, ours.output.linear
  params = {
    'log_dt_D': kernel.log_dt,
    'log_decay_DN': kernel.inv_w_real,
    'frequency_DN': kernel.w_imag,
    'p_DN_real': kernel.p_real,
    'p_DN_imag': kernel.p_imag,
    'b_DN_real': kernel.b_real,
    'b_DN_imag': kernel.b_imag,
    'c_SDN_real': kernel.c_real,
    'c_SDN_imag': kernel.c_imag,
    'skip_D': ours.skip,
    'glu_DE': linear.kernel,
    'glu_bias_E': linear.bias,
  }
  params = {name: param[...] for name, param in params.items()}
  initial = s4_plain.init_plain(jax.random.key(0), width, states)
  assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, initial)
  x_BLD = jax.random.normal(jax.random.key(1), (2, length, width))
  y_BLD, expected_BLD = ours(x_BLD), s4_plain.plain_layer(params, x_BLD, products=products)
  np.testing.assert_allclose(y_BLD, expected_BLD, rtol=0, atol=1e-4 * np.abs(expected_BLD).max())


def test_s4_of_pytorch_is_the_plain_one(lenient_jax):
  torch = pytest.importorskip('torch', reason='PyTorch is not installed')
  params = s4_plain.init_plain(jax.random.key(0), 3, 8)
  x_BLD = jax.random.normal(jax.random.key(1), (2, 24, 3))
  expected_BLD = s4_plain.plain_layer(params, x_BLD)
  arrays = {name: torch.tensor(np.asarray(array)) for name, array in params.items()}
  y_BDL = s4_torch.torch_layer(arrays, torch.tensor(np.asarray(x_BLD)).transpose(1, 2))
  difference = np.abs(y_BDL.transpose(1, 2).numpy() - expected_BLD).max()
  assert difference < 1e-4 * np.abs(expected_BLD).max()


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('name', ['mamba2', 'mega'])
def test_mixers_of_pytorch_are_ours(name, causal):
  torch = pytest.importorskip('torch', reason='PyTorch is not installed')
  options = {'mamba2': {'head_dim': 4, 'state_size': 6}, 'mega': {'z': 4, 'h': 3, 'truncation': 100}}[name]
  block = {'mamba2': mamba2_torch.block, 'mega': functools.partial(mega_torch.block, truncation=100)}[name]
  of = {'length': 128, 'causal': causal, 'protocol': CLEAN, 'rngs': nnx.Rngs(0)}  # two chunks
  ours = make_mixer(name, 8, options=options, **of)
  shaken = jax.tree.map(lambda value: 2 * value + 0.1, nnx.state(ours, nnx.Param))
  nnx.update(ours, shaken)
  x_BLD, y_BLD = jax.random.normal(jax.random.key(1), (2, 2, 128, 8))
  expected_BLD = x_BLD + increment(x_BLD, ours(y_BLD))
  params = {path: torch.tensor(array) for path, array in field.arrays(ours).items()}
  found_BLD = block(params, *(torch.tensor(np.asarray(v)) for v in (x_BLD, y_BLD)))
  np.testing.assert_allclose(found_BLD, expected_BLD, rtol=0, atol=1e-5 * np.abs(expected_BLD).max())


def test_folded_attention_sees_the_same_pairs():
  q, k, v = (np.random.default_rng(i).normal(size=(2, 20, 2, 4)).astype(np.float32) for i in range(3))
  dense = functools.partial(attention, implementation='reference')
  every_key = functools.partial(dense, pattern=Full())
  out = fused_attention.folded(every_key, jnp.concatenate, q, k, v, block=5)
  np.testing.assert_allclose(out, dense(q, k, v, pattern=Neighbours(5)), atol=1e-5)
