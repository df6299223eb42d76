"""Every implementation against float64 on generated calls: patterns, shapes, lengths, offsets, dtypes.

Each run draws a few examples, the slow test many. The file of each implementation has fixed corner cases.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lra_spt.ops.attention import BlockTable, attention, cudnn

TOLERANCES = {'float32': 2e-5, 'bfloat16': 2e-2}
IMPLEMENTATIONS = ['reference', 'blockwise', 'triton', 'splash', 'cudnn']


def folded(q, k, v, *, pattern, kv_lengths_B, kv_starts_B, q_offset, implementation):
  """cuDNN's fold around XLA's kernel, which runs everywhere; under strict promotion it takes only float32."""

  def kernel(q, k, v, **options):
    wide = (x.astype(jnp.float32) for x in (q, k, v))
    return jax.nn.dot_product_attention(*wide, implementation='xla', **options).astype(q.dtype)

  return cudnn.folded_attention(kernel, q, k, v, pattern, kv_lengths_B, kv_starts_B, q_offset)


@pytest.fixture(scope='module')
def agrees(interval_patterns, draw_attention, value_and_gradients, check_attention, attention_oracle):
  """Draws a call and compares value and all gradients with the oracle."""
  tables = st.builds(
    BlockTable,
    st.sampled_from([16, 32, 48]),  # whole tiles of a GPU
    st.lists(st.sets(st.integers(0, 7)).map(sorted).map(tuple), min_size=1, max_size=8).map(tuple),
    st.booleans(),
  )

  def run(implementation, data):
    number = functools.partial(st.integers, 1)
    pattern = data.draw(st.one_of(interval_patterns, interval_patterns, tables))
    batch, heads, width = data.draw(number(3)), data.draw(number(2)), data.draw(st.sampled_from([8, 16, 40]))
    length, keys = data.draw(number(150)), data.draw(number(150))
    q_offset = 0 if isinstance(pattern, BlockTable) else data.draw(st.sampled_from([0, 0, -20, 40, 120]))
    if implementation == 'cudnn':
      keys = length if data.draw(st.booleans()) else keys
      assume(cudnn._cannot_fold(length, keys, pattern, q_offset) is None)
    edges = st.none() | st.lists(st.integers(0, keys), min_size=batch, max_size=batch)
    lengths, starts = data.draw(edges), data.draw(edges)
    dtype = data.draw(st.sampled_from(sorted(TOLERANCES)))
    shapes = (batch, length, heads, width), (batch, keys, heads, width)
    q, k, v, d_out = draw_attention(*shapes, jnp.dtype(dtype), seed=length)
    call = functools.partial(
      folded if implementation == 'cudnn' else attention,
      pattern=pattern,
      kv_lengths_B=None if lengths is None else jnp.asarray(lengths, jnp.int32),
      kv_starts_B=None if starts is None else jnp.asarray(starts, jnp.int32),
      q_offset=q_offset,
      implementation=implementation,
    )
    results = value_and_gradients(call, q, k, v, d_out)
    assert {x.dtype.name for x in results} == {dtype}
    expected = attention_oracle(pattern, q, k, v, d_out, lengths, starts, q_offset)
    check_attention(results, expected, TOLERANCES[dtype])

  return run


@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
@settings(deadline=None, max_examples=4)
@given(data=st.data())
def test_agrees_with_float64(agrees, implementation, data):
  agrees(implementation, data)


@pytest.mark.slow
@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_agrees_with_float64_on_many(agrees, implementation, data):
  agrees(implementation, data)
