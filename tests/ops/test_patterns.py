"""Patterns: inverses, tiles and counts against brute force over pairs, and bad values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_spt.ops.attention.patterns import (
  BlockTable,
  Causal,
  Full,
  Neighbours,
  Window,
  dense_mask,
  visible_pairs,
)

INTERVALS = st.one_of(
  st.just(Full()),
  st.just(Causal()),
  st.builds(Window, st.integers(0, 9), st.integers(0, 9)),
  st.builds(Neighbours, st.integers(1, 12), st.integers(0, 2), st.integers(0, 2)),
  st.builds(lambda block, back: Neighbours(block, back, 0, True), st.integers(1, 12), st.integers(0, 2)),
)


@settings(deadline=None, max_examples=30)
@given(INTERVALS, st.integers(1, 40), st.integers(1, 40), st.data())
def test_intervals(attention_visibility, pattern, queries, keys, data):
  seen = attention_visibility(pattern, queries, keys)
  np.testing.assert_array_equal(dense_mask(pattern, queries, keys), seen)
  assert visible_pairs(pattern, queries, keys) == seen.sum()
  q0 = data.draw(st.integers(0, queries - 1))
  q1 = data.draw(st.integers(q0 + 1, queries))
  k0 = data.draw(st.integers(0, keys - 1))
  k1 = data.draw(st.integers(k0 + 1, keys))
  inside = lambda interval, size: np.isin(np.arange(size), np.arange(*np.clip(interval, 0, size)))  # noqa: E731
  np.testing.assert_array_equal(inside(pattern.seen_by_any(q0, q1), keys), seen[q0:q1].any(0))
  np.testing.assert_array_equal(inside(pattern.seen_by_all(q0, q1), keys), seen[q0:q1].all(0))
  np.testing.assert_array_equal(inside(pattern.seeing_any(k0, k1), queries), seen[:, k0:k1].any(1))
  np.testing.assert_array_equal(inside(pattern.seeing_all(k0, k1), queries), seen[:, k0:k1].all(1))


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 5), st.booleans(), st.data())
def test_block_tables(attention_visibility, block, query_blocks, key_blocks, causal, data):
  mask = np.array(
    data.draw(st.lists(st.booleans(), min_size=query_blocks * key_blocks, max_size=query_blocks * key_blocks))
  ).reshape(query_blocks, key_blocks)
  pattern = BlockTable.from_mask(block, mask, causal)
  assert hash(pattern) == hash(BlockTable(block, pattern.table, causal))
  np.testing.assert_array_equal(pattern.mask(key_blocks), mask)
  queries, keys = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
  seen = attention_visibility(pattern, queries, keys)
  np.testing.assert_array_equal(dense_mask(pattern, queries, keys), seen)
  q, k = np.meshgrid(np.arange(queries), np.arange(keys), indexing='ij')
  np.testing.assert_array_equal(pattern.visible(q, k), seen)
  assert visible_pairs(pattern, queries, keys) == seen.sum()


def test_the_papers_pattern():
  # 16,384 tokens in blocks of 4,096: inner blocks see three blocks, edge blocks two.
  assert visible_pairs(Neighbours(4096), 16384, 16384) == 4096 * 4096 * (2 + 3 + 3 + 2)
  causal = Neighbours(4096, back=1, forward=0, causal=True)
  assert visible_pairs(causal, 16384, 16384) == 4 * 4096 * 4097 // 2 + 3 * 4096**2


@pytest.mark.parametrize(
  'make, message',
  [
    (lambda: Window(-1, 0), 'left and right'),
    (lambda: Window(0, 2**30), '0 to 536,870,912'),
    (lambda: Neighbours(4096, 10**6, 0), 'spans more than 536,870,912 tokens'),
    (lambda: Neighbours(0), 'block must be at least 1'),
    (lambda: Neighbours(4, back=-1), 'back and forward at least 0'),
    (lambda: Neighbours(4, causal=True), 'set forward=0'),
    (lambda: BlockTable(4, ()), 'both must be at least 1'),
    (lambda: BlockTable(4, ((0,), (2, 1))), r'row 1 is \(2, 1\)'),
    (lambda: BlockTable(4, ((-1,),)), 'row 0'),
  ],
)
def test_wrong_patterns_get_a_sentence(make, message):
  with pytest.raises(ValueError, match=message):
    make()
