"""Parts of attention: values of another width, the logsumexp and merges by it, a table for every head, a bias
by distance."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.ops import attention as package
from lra_spt.ops.attention import BlockTable, Causal, Full, HeadTables, Window, attention, merged
from lra_spt.ops.attention.patterns import visible_pairs

LENGTHS = jnp.asarray([29, 11], jnp.int32)
TABLES = HeadTables(
  (BlockTable(8, ((0, 2), (1,), (0, 1, 2, 3), ())), BlockTable(8, ((0,), (0, 1), (2,), (3,))))
)


@pytest.fixture(scope='module')
def arrays():
  """q, k [B, L, H, 4] and v, d_out [B, L, H, 6], d_logsumexp [B, L, H]."""
  rng = np.random.default_rng(0)
  shapes = [(2, 29, 2, 4)] * 2 + [(2, 29, 2, 6)] * 2 + [(2, 29, 2)]
  return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def dense(q, k, v, d_out, d_logsumexp, seen_BHLM, bias_HR=None, q_offset=0):
  """out, logsumexp, dq, dk, dv and, with a bias, its gradient, in float64 by hand."""
  q, k, v, d_out, d_logsumexp = (
    np.moveaxis(np.float64(x), 2, 1) for x in (q, k, v, d_out, d_logsumexp)
  )  # [B, H, L, ...]
  scale = 1 / np.sqrt(q.shape[-1])
  scores = q @ np.swapaxes(k, 2, 3) * scale
  if bias_HR is not None:
    farthest = bias_HR.shape[1] // 2
    distance = np.arange(k.shape[2])[None] - np.arange(q.shape[2])[:, None] - q_offset
    place_LM = np.clip(distance, -farthest, farthest) + farthest
    scores = scores + np.float64(bias_HR)[:, place_LM]
  e = np.where(seen_BHLM, np.exp(scores), 0)
  total = e.sum(-1, keepdims=True)
  p = e / np.where(total, total, 1)
  d_logsumexp = np.where(total[..., 0], d_logsumexp, 0)
  out = p @ v
  ds = p * (d_out @ np.swapaxes(v, 2, 3) - (out * d_out).sum(-1, keepdims=True) + d_logsumexp[..., None])
  with np.errstate(divide='ignore'):
    results = out, np.log(total[..., 0]), ds @ k * scale, np.swapaxes(ds, 2, 3) @ q * scale
  results = [np.moveaxis(x, 1, 2) for x in (*results, np.swapaxes(p, 2, 3) @ d_out)]
  if bias_HR is not None:
    results.append(np.zeros(bias_HR.shape))
    for h in range(len(bias_HR)):
      np.add.at(results[-1][h], place_LM, ds[:, h].sum(0))
  return results


def close(actual, expected):
  for x, y in zip(actual, expected, strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=2e-5 * np.abs(y[np.isfinite(y)]).max())


def pulled(attend, q, k, v, *cotangents):
  """(the one or two arrays that attend returns; dq, dk, dv)."""

  @jax.jit
  def run(q, k, v, *cotangents):
    out, pull = jax.vjp(attend, q, k, v)
    return out, pull(cotangents if isinstance(out, tuple) else cotangents[0])

  return run(q, k, v, *cotangents)


@pytest.mark.parametrize('implementation, together', [('reference', False), ('', False), ('', True)])
def test_logsumexp_and_wide_values(implementation, together, arrays, attention_visibility):
  """The first queries of a window that starts before the keys, and those after the end of a row, see no key:
  their logsumexp is -inf and passes no gradient."""
  call = {'pattern': Window(3, 1), 'kv_lengths_B': LENGTHS, 'q_offset': -4, 'return_logsumexp': True}
  attend = functools.partial(attention, implementation='reference', **call)
  if not implementation:
    tiles = package.blockwise.Tiles(16, 16, together)
    attend = functools.partial(package.blockwise.blockwise_attention, tiles=tiles, **call)
  (out, logsumexp), gradients = pulled(attend, *arrays)
  seen = attention_visibility(Window(3, 1), 29, 29, LENGTHS, q_offset=-4)[:, None]
  close((out, logsumexp, *gradients), dense(*arrays, seen))
  assert logsumexp.dtype == jnp.float32
  assert np.isneginf(logsumexp[:, :3]).all()


def test_parts_merge_to_the_whole(arrays, attention_visibility):
  """The first 5 keys and a window of the later ones: Longformer with global tokens."""

  def attend(q, k, v):
    call = {'kv_lengths_B': LENGTHS, 'return_logsumexp': True}
    first = attention(q, k[:, :5], v[:, :5], pattern=Causal(), **call)
    starts_B = jnp.full(2, 5, jnp.int32)
    return merged(first, attention(q, k, v, pattern=Window(3, 0), kv_starts_B=starts_B, **call))

  *inputs, d_logsumexp = arrays
  out, gradients = pulled(attend, *inputs)
  t, s = np.ogrid[:29, :29]
  seen = (s <= t) & ((s < 5) | (t - s <= 3))
  seen = (seen & (s < np.asarray(LENGTHS)[:, None, None]))[:, None]
  expected = dense(*inputs, np.zeros_like(d_logsumexp), seen)
  close((out, *gradients), [expected[0], *expected[2:]])


def test_parts_that_see_nothing_merge_to_zero(arrays):
  q, k, v, d_out, _ = arrays
  call = {'pattern': Full(), 'kv_lengths_B': jnp.zeros(2, jnp.int32), 'return_logsumexp': True}
  attend = lambda q, k, v: merged(*[attention(q, k, v, **call)] * 2)  # noqa: E731
  out, gradients = pulled(attend, q, k, v, d_out)
  assert not any(np.asarray(x).any() for x in (out, *gradients))


def test_a_table_for_every_head(arrays, attention_visibility):
  attend = functools.partial(attention, pattern=TABLES, kv_lengths_B=LENGTHS, return_logsumexp=True)
  (out, logsumexp), gradients = pulled(attend, *arrays)
  seen = np.stack([attention_visibility(table, 29, 29, LENGTHS) for table in TABLES.tables], axis=1)
  close((out, logsumexp, *gradients), dense(*arrays, seen))
  whole = [attention_visibility(table, 29, 29).sum() for table in TABLES.tables]
  assert visible_pairs(TABLES, 29, 29) == sum(whole)


def test_float64_stays_float64(arrays, attention_visibility):
  with jax.enable_x64(True):
    wide = [jnp.asarray(x, jnp.float64) for x in arrays]
    attend = functools.partial(attention, pattern=Causal(), return_logsumexp=True)
    (out, logsumexp), gradients = pulled(attend, *wide)
  expected = dense(*arrays, attention_visibility(Causal(), 29, 29))
  for x, y in zip((out, logsumexp, *gradients), expected, strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 * np.abs(y).max())


def test_memory_of_parts_is_linear_in_the_length():
  def temporary_bytes(length):
    def loss(q, k, v, bias):
      call = {'return_logsumexp': True}
      window = attention(q, k, v, pattern=Causal(), bias_HR=bias, **call)
      return jnp.sum(merged(window, attention(q, k[:, :16], v[:, :16], pattern=Full(), **call)) ** 2)

    shapes = [(1, length, 2, width) for width in (8, 8, 16)] + [(2, 2 * length + 1)]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(*arrays).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  short, long = temporary_bytes(4096), temporary_bytes(8192)
  assert long <= 2.2 * short
  assert long < 8192 * 8192


BIASES = [
  ('reference', Window(3, 6), -4, False),
  ('blockwise', Full(), 0, False),
  ('blockwise', Causal(), 5, True),
  ('blockwise', Window(3, 6), -4, False),
  ('blockwise', TABLES, 0, False),
]


@pytest.mark.parametrize('implementation, pattern, q_offset, together', BIASES)
def test_bias_by_distance(
  implementation, pattern, q_offset, together, arrays, attention_visibility, monkeypatch
):
  """Distances up to 3 have their bias in either direction; larger ones have that of 3."""
  monkeypatch.setitem(package.blockwise._TILES, 'cpu', package.blockwise.Tiles(16, 16, together))
  bias = jnp.asarray(np.random.default_rng(1).normal(size=(2, 7)), jnp.float32)
  call = {'pattern': pattern, 'kv_lengths_B': LENGTHS, 'q_offset': q_offset, 'return_logsumexp': True}
  attend = functools.partial(attention, implementation=implementation, **call)

  @jax.jit
  def run(q, k, v, bias, *cotangents):
    out, pull = jax.vjp(lambda q, k, v, bias: attend(q, k, v, bias_HR=bias), q, k, v, bias)
    return *out, *pull(cotangents)

  tables = pattern.tables if isinstance(pattern, HeadTables) else (pattern,)
  seen = np.stack([attention_visibility(one, 29, 29, LENGTHS, q_offset=q_offset) for one in tables], axis=1)
  close(run(*arrays[:3], bias, *arrays[3:]), dense(*arrays, seen, bias, q_offset))


@pytest.mark.parametrize('shape', [(2, 6), (1, 7), (7,)])
def test_a_bias_that_does_not_fit_is_refused(shape, arrays):
  q, k, v, *_ = arrays
  with pytest.raises(ValueError, match=r'bias_HR is float32 of shape .*; pass .* \(2, 2 D \+ 1\), one per'):
    attention(q, k, v, pattern=Full(), bias_HR=jnp.zeros(shape))


@pytest.mark.parametrize('implementation', ['triton', 'tokamax', 'cudnn', 'mosaic', 'splash'])
def test_kernels_refuse_parts_by_name(implementation, arrays):
  q, k, v, *_ = arrays
  for values, options, reason in (
    (k, {'return_logsumexp': True}, 'returns no logsumexp'),
    (k, {'bias_HR': jnp.zeros((2, 3))}, 'adds no bias to scores'),
    (v, {}, 'takes values as wide as keys, 4, not 6'),
  ):
    with pytest.raises(ValueError, match=f"attention implementation '{implementation}' {reason}; choose"):
      attention(q, k, values, pattern=Full(), implementation=implementation, **options)


@pytest.mark.slow
def test_every_kernel_takes_tables_of_heads_or_says_why_not(arrays):
  q, k, _, d_out, _ = arrays
  tables = HeadTables(tuple(BlockTable(16, table.table[:2]) for table in TABLES.tables))
  expected = attention(q, k, k, pattern=tables, implementation='reference')
  for implementation in ('triton', 'splash'):
    actual = attention(q, k, k, pattern=tables, implementation=implementation)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5)
  half = [x.astype(jnp.bfloat16) for x in (q, k, k)]
  half = [jnp.concatenate([x, x], axis=-1) for x in half]
  with pytest.raises(ValueError, match="'cudnn' has no mask for BlockTable"):
    attention(*half, pattern=tables, implementation='cudnn')


def test_tables_that_do_not_fit_are_refused(arrays):
  q, k, v, *_ = arrays
  with pytest.raises(ValueError, match='HeadTables has 1 tables for 2 heads; give one for every head'):
    attention(q, k, v, pattern=HeadTables(TABLES.tables[:1]))
  with pytest.raises(ValueError, match='q_offset is 3, but queries of a BlockTable start at position 0'):
    attention(q, k, v, pattern=TABLES, q_offset=3)
  with pytest.raises(ValueError, match='HeadTables has no table; give one for every head'):
    HeadTables(())
