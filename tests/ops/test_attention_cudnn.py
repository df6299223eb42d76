"""Attention by cuDNN: the fold around XLA's kernel (cuDNN's needs a GPU), refusals, lowering."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from lra_spt.ops.attention import BlockTable, Causal, Full, Neighbours, Window, cudnn

LENGTHS, STARTS = (0, 37, 100), (0, 20, 90)


def xla(q, k, v, is_causal, query_seq_lengths=None, key_value_seq_lengths=None):
  """XLA's kernel, but with NaN in value and gradient of rows without a key, which cuDNN's may return."""
  counts = {'query_seq_lengths': query_seq_lengths, 'key_value_seq_lengths': key_value_seq_lengths}
  out = jax.nn.dot_product_attention(q, k, v, is_causal=is_causal, implementation='xla', **counts)
  if key_value_seq_lengths is None:
    return out
  return out * jnp.where(key_value_seq_lengths > 0, 1.0, jnp.nan)[:, None, None, None]


@pytest.fixture
def agrees(attention_oracle, draw_attention, value_and_gradients, check_attention):
  """Checks the fold around XLA's kernel against the oracle, in value and all gradients."""

  def check(pattern, length=100, keys=100, lengths=None, starts=None, q_offset=0):
    q, k, v, d_out = draw_attention((3, length, 2, 8), (3, keys, 2, 8))
    assert cudnn._cannot_fold(length, keys, pattern, q_offset) is None

    def attend(q, k, v):
      limits = (None if limit is None else jnp.asarray(limit, jnp.int32) for limit in (lengths, starts))
      return cudnn.folded_attention(xla, q, k, v, pattern, *limits, q_offset)

    results = value_and_gradients(attend, q, k, v, d_out)
    check_attention(results, attention_oracle(pattern, q, k, v, d_out, lengths, starts, q_offset))

  return check


@pytest.mark.parametrize(('lengths', 'starts'), [(None, None), (LENGTHS, None), (LENGTHS, STARTS)])
@pytest.mark.parametrize(
  'pattern', [Full(), Causal(), Neighbours(20, 1, 1), Neighbours(30, 2, 0), Neighbours(16, 0, 3)]
)
def test_fold_agrees_with_float64(agrees, pattern, lengths, starts):
  agrees(pattern, lengths=lengths, starts=starts)


@pytest.mark.parametrize(
  ('pattern', 'length', 'keys', 'q_offset'),
  [
    (Full(), 30, 100, 7),
    (Neighbours(20, 1, 1), 40, 100, 20),  # blocks of one device between those of its neighbours
    (Neighbours(20, 1, 1), 40, 100, -20),
    (Neighbours(20, 1, 2), 100, 50, 60),  # queries beyond the last key
    (Neighbours(20, 7, 9), 100, 90, 0),
    (Neighbours(200, 1, 1, causal=False), 100, 100, 0),  # one block
    (Causal(), 1, 100, 99),  # the last query sees all keys
  ],
)
def test_fold_of_other_keys_than_queries(agrees, pattern, length, keys, q_offset):
  agrees(pattern, length, keys, lengths=(0, keys // 2, keys), starts=(0, 3, 31), q_offset=q_offset)


def test_fold_with_starts_alone(agrees):
  agrees(Neighbours(20, 1, 1), starts=STARTS)


def test_hidden_keys_and_values_do_not_matter(draw_attention, value_and_gradients):
  q, k, v, d_out = draw_attention((1, 60, 2, 8), (1, 60, 2, 8))

  def attend(q, k, v):
    limits = jnp.asarray([41], jnp.int32), jnp.asarray([5], jnp.int32)
    return cudnn.folded_attention(xla, q, k, v, Neighbours(20, 1, 1), *limits, 0)

  before = value_and_gradients(attend, q, k, v, d_out)
  k, v = (x.at[:, 41:].set(1e4).at[:, :5].set(-1e4) for x in (k, v))
  for x, y in zip(before, value_and_gradients(attend, q, k, v, d_out), strict=True):
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
  ('reason', 'pattern', 'changes'),
  [
    (None, Full(), {}),
    (None, Causal(), {}),
    (None, Neighbours(16, 1, 1), {'q_offset': 32}),
    (None, Neighbours(64, 1, 0, causal=True), {'q_offset': 63, 'length': 1}),
    ('not float32', Full(), {'dtype': jnp.float32}),
    ('not 12', Full(), {'width': 12}),
    ('not 136', Full(), {'width': 136}),
    ('with q_offset 0', Causal(), {'q_offset': 1}),
    ('M = L', Causal(), {'length': 63}),
    ('whole blocks of 16', Neighbours(16, 1, 1), {'q_offset': 8}),
    ('no mask for Neighbours that is causal', Neighbours(16, 1, 0, causal=True), {}),
    ('no mask for Window', Window(2, 2), {}),
    ('no mask for BlockTable', BlockTable(64, ((0,),)), {}),
  ],
)
def test_refuses(monkeypatch, reason, pattern, changes):
  call = {'length': 64, 'width': 16, 'dtype': jnp.bfloat16, 'q_offset': 0} | changes
  q = jax.ShapeDtypeStruct((2, call['length'], 4, call['width']), call['dtype'])
  k = jax.ShapeDtypeStruct((2, 64, 4, call['width']), call['dtype'])
  monkeypatch.setattr(cudnn, '_lacks_hardware', lambda: None)
  refusal = cudnn.refuses(q, k, k, pattern=pattern, q_offset=call['q_offset'])
  assert refusal is None if reason is None else reason in refusal


def test_refuses_an_offset_that_is_not_known():
  q = jnp.zeros((1, 32, 1, 8), jnp.bfloat16)

  def reason(q_offset):
    refusals.append(cudnn.refuses(q, q, q, pattern=Neighbours(16, 1, 1), q_offset=q_offset))
    return q_offset

  refusals = []
  jax.jit(reason)(jnp.int32(0))
  assert refusals == ['needs a q_offset known when tracing']


@pytest.mark.parametrize(
  ('platform', 'version', 'capability', 'lacks'),
  [
    ('gpu', 'cuda 12', '8.0', False),
    ('gpu', 'cuda 12', '10.3', False),
    ('gpu', 'cuda 12', '7.5', True),
    ('gpu', 'rocm 6', 'gfx90a', True),
    ('cpu', 'cpu', None, True),
  ],
)
def test_refuses_hardware_without_flash_kernels(monkeypatch, platform, version, capability, lacks):
  client = types.SimpleNamespace(platform_version=version)
  device = types.SimpleNamespace(platform=platform, client=client, compute_capability=capability)
  monkeypatch.setattr(jax, 'local_devices', lambda: [device])
  assert bool(cudnn._lacks_hardware()) == lacks


@pytest.fixture
def lowered(monkeypatch):
  """Lowers forward and backward pass for CUDA and returns the text. Nothing runs, so it needs neither a GPU
  nor cuDNN, whose version jax would check first."""
  stablehlo = pytest.importorskip('jax._src.cudnn.fused_attention_stablehlo')
  monkeypatch.setattr(stablehlo, 'check_cudnn_version', lambda: 91000)

  def lower(pattern, members=(), transform=lambda f: f):
    x = jax.ShapeDtypeStruct((*members, 4, 250, 2, 32), jnp.bfloat16)
    lengths_B = jax.ShapeDtypeStruct((4,), jnp.int32)

    def loss(q, k, v, lengths_B):
      attend = functools.partial(cudnn.cudnn_attention, pattern=pattern)
      out = transform(lambda *arrays: attend(*arrays[:3], kv_lengths_B=arrays[3]))(q, k, v, lengths_B)
      return jnp.sum(out.astype(jnp.float32))

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    return gradient.trace(x, x, x, lengths_B).lower(lowering_platforms=('cuda',)).as_text()

  return lower


def calls(text):
  return re.findall('stablehlo.custom_call @(\\S+?)[(]', text)


@pytest.mark.parametrize(
  ('pattern', 'mask'), [(Full(), 'PADDING'), (Causal(), 'PADDING_CAUSAL'), (Neighbours(64, 1, 1), 'PADDING')]
)
def test_lowers_for_cuda(lowered, pattern, mask):
  text = lowered(pattern)
  assert calls(text) == ['__cudnn$fmhaSoftmax', '__cudnn$fmhaSoftmaxBackward']
  assert text.count(f'mask_type\\22: \\22{mask}\\22') == 2
  assert 'dot_general' not in text


def test_lowers_for_cuda_with_members(lowered):
  """Members of a population have their own queries, keys and values, and share the lengths of rows."""
  text = lowered(Neighbours(64, 1, 1), (3,), lambda f: jax.vmap(f, in_axes=(0, 0, 0, None)))
  assert calls(text) == ['__cudnn$fmhaSoftmax', '__cudnn$fmhaSoftmaxBackward']
  assert f'tensor<{3 * 4 * 4}x64x2x32xbf16>' in text  # members, rows and blocks are one batch


def test_lowers_for_cuda_in_an_island(lowered):
  mesh = jax.make_mesh((2,), ('data',), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
  rows = PartitionSpec('data')
  island = functools.partial(jax.shard_map, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
  assert len([name for name in calls(lowered(Neighbours(64), transform=island)) if 'cudnn' in name]) == 2
