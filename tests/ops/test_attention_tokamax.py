"""The adapter to tokamax, with its dense scores in XLA on a CPU: masks, offsets, hidden keys, refusals. Its
kernels run in test_attention_gpu.py."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.ops import attention as package
from lra_spt.ops import selection
from lra_spt.ops.attention import BlockTable, Causal, Full, Neighbours, Window, attention, tokamax

INSTALLED = jax.__version_info__ >= (0, 11) and importlib.util.find_spec('tokamax') is not None
needs_tokamax = pytest.mark.skipif(
  not INSTALLED,
  reason="needs jax 0.11 and the package tokamax: pip install 'lra_spt[gpu]'",
)


@pytest.fixture
def loosely():
  """tokamax promotes ranks and types."""
  with jax.numpy_rank_promotion('allow'), jax.numpy_dtype_promotion('standard'):
    yield


@needs_tokamax
@pytest.mark.parametrize(
  'pattern, q_offset',
  [
    (Full(), 0),
    (Causal(), 0),
    (Causal(), -7),
    (Window(9, 4), 30),
    (Neighbours(16), jnp.int32(-20)),
    (Neighbours(24, 2, 0, causal=True), 5),
  ],
)
@pytest.mark.parametrize('lengths, starts', [(None, None), ((40, 0, 7), (0, 0, 5))])
def test_agrees_with_float64(
  pattern, q_offset, lengths, starts, loosely, draw_attention, value_and_gradients, check_attention,
  attention_oracle,
):  # fmt: skip
  q, k, v, d_out = draw_attention((3, 33, 2, 8), (3, 40, 2, 8))
  edges = [None if x is None else jnp.asarray(x, jnp.int32) for x in (lengths, starts)]
  attend = functools.partial(
    attention, pattern=pattern, kv_lengths_B=edges[0], kv_starts_B=edges[1], q_offset=q_offset,
    implementation='tokamax')  # fmt: skip
  results = value_and_gradients(attend, q, k, v, d_out)
  expected = attention_oracle(pattern, q, k, v, d_out, lengths, starts, int(q_offset))
  check_attention(results, expected)
  assert all(np.isfinite(x).all() for x in results)


@needs_tokamax
def test_under_transformations(loosely, draw_attention, assert_transforms, attention_oracle):
  q, k, v, d_out = draw_attention((2, 20, 2, 8), (2, 20, 2, 8))
  attend = functools.partial(attention, pattern=Neighbours(8), implementation='tokamax')
  _, *gradients = attention_oracle(Neighbours(8), q, k, v, d_out)
  assert_transforms(attend, (q, k, v), d_out, gradients)


def test_autotune_tries_it_on_gpus_and_mosaic_only_where_named(monkeypatch):
  monkeypatch.setattr(package, 'platform', lambda: 'gpu')
  q = jax.ShapeDtypeStruct((1, 64, 1, 16), jnp.float32)
  with selection.recording() as calls:
    jax.eval_shape(lambda q: attention(q, q, q, pattern=Full()), q)
  (call,) = calls
  assert set(call.candidates) == {'triton', 'blockwise', *(['tokamax'] if INSTALLED else [])}
  assert call.candidates[0] == 'triton'


def test_refuses():
  q = jax.ShapeDtypeStruct((1, 64, 1, 16), jnp.float32)
  refuses = functools.partial(tokamax.refuses, q, q, q, q_offset=0)
  assert refuses(pattern=BlockTable(64, ((0,),))) == (
    'shows one interval of keys per query, so it has no BlockTable'
  )


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason='needs jax 0.11: an older one is refused first')
def test_a_missing_package_is_named(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(ValueError, match=r"'tokamax' needs the package tokamax: pip install 'lra_spt\[gpu\]'"):
    attention(*[jnp.zeros((1, 4, 1, 4))] * 3, pattern=Full(), implementation='tokamax')


@needs_tokamax
def test_its_triton_kernels_lower_for_gpus(loosely, a_gpu):
  """Those for Hopper look for a GPU when they are traced."""
  from tokamax import config

  q = jax.ShapeDtypeStruct((2, 300, 4, 64), jnp.bfloat16)

  def loss(q):
    return tokamax.tokamax_attention(q, q, q, pattern=Neighbours(128), kernel='triton').astype(float).sum()

  with config.cross_compile(True), a_gpu():
    text = jax.jit(jax.grad(loss)).trace(q).lower(lowering_platforms=('cuda',)).as_text()
  assert text.count('@__gpu$xla.gpu.triton') == 2
