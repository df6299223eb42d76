"""With positions split over 'seq', mixers agree with one device and exchange only the expected arrays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config.protocol import CLEAN
from lra_spt.distributed import sharding
from lra_spt.models import make_mixer
from lra_spt.ops.attention import BlockTable, Causal, Full, HeadTables, Neighbours, Window, sharded
from lra_spt.ops.attention.sharded import sharded_attention
from lra_spt.ops.scan import scan_components
from tests.distributed.split_positions import (
  LENGTH,
  LENGTHS,
  ROWS,
  assert_close,
  moves,
  normal,
  on_mesh,
  on_one_device,
)


def test_moves_reads_hlo():
  text = """%p.1 = f32[2,3]{1,0} collective-permute(%x), channel_id=1
  ROOT %a = (f32[6]{0}, f32[6]{0}, /*index=2*/f32[6]{0}) all-to-all(%x, %y, %z)
  %g = (f32[6]{0}, f32[48]{0}) all-gather-start(%x), dimensions={0}
  %add = f32[48]{0} add(%all-gather.1, %reduce-scatter)"""
  assert moves(text) == {'collective-permute': 1, 'all-to-all': 1, 'all-gather': 1}


TABLE = BlockTable(6, ((0, 3), (1,), (2,), (3, 5), tuple(range(8)), (5,), (), (7,)))
# Shards have 48 / 8 = 6 or 48 / 4 = 12 positions. Counts of moves are for forward and backward pass together.
ATTENTION = [
  (Full(), 8, (1, 1, 8), {'all-to-all': 4}),
  (Full(), 3, (1, 2, 4), {'all-gather': 1, 'reduce-scatter': 1}),
  (Causal(), 4, (2, 1, 4), {'all-to-all': 4}),
  (Causal(), 3, (1, 1, 8), {'all-gather': 1, 'reduce-scatter': 1}),
  (TABLE, 4, (2, 1, 4), {'all-to-all': 4}),
  (Window(3, 5), 8, (1, 1, 8), {'collective-permute': 4}),
  (Window(9, 0), 3, (1, 1, 8), {'collective-permute': 4}),  # 9 positions reach two shards back
  (Neighbours(3), 8, (1, 1, 8), {'collective-permute': 4}),
  (Neighbours(6, 1, 0, causal=True), 4, (2, 1, 4), {'collective-permute': 2}),
  (Neighbours(12), 3, (1, 1, 8), {'collective-permute': 12}),  # half a block per shard, so three on each side
  (Neighbours(12), 8, (1, 1, 8), {'all-to-all': 4}),
  (Neighbours(5), 4, (1, 2, 4), {'collective-permute': 4}),  # 2.4 blocks per shard
  (Neighbours(7, 2, 1), 3, (2, 1, 4), {'collective-permute': 6}),
  (Neighbours(10, 1, 0, causal=True), 3, (1, 1, 8), {'collective-permute': 6}),  # 0.6 blocks per shard
  (Neighbours(24), 1, (4, 1, 2), {'all-gather': 1, 'reduce-scatter': 1}),  # every shard needs all keys
]


def attend(q, k, v, cotangent, *lengths_B, **options):
  """Returns the output of attention and its gradients."""
  function = functools.partial(sharded_attention, kv_lengths_B=lengths_B[0] if lengths_B else None, **options)
  out, pull = jax.vjp(function, q, k, v)
  return out, pull(cotangent)


@pytest.mark.parametrize('case', [0, 1, 5, 13])  # split by heads, gathered, two kinds of neighbours
def test_a_bias_by_distance_agrees_with_one_device(case):
  """The bias and its gradient are whole on every device."""
  pattern, heads, shape, _ = ATTENTION[case]
  arrays = [normal(ROWS, LENGTH, heads, 4, seed=seed) for seed in range(4)]
  bias = normal(heads, 41, seed=4)

  def attend(q, k, v, cotangent, bias):
    function = lambda q, k, v, bias: sharded_attention(  # noqa: E731
      q, k, v, bias_HR=bias, pattern=pattern, kv_lengths_B=LENGTHS, implementation='reference'
    )
    out, pull = jax.vjp(function, q, k, v, bias)
    return out, pull(cotangent)

  actual, _ = on_mesh(shape, attend, arrays, bias)
  assert_close(actual, on_one_device(attend, *arrays, bias), atol=5e-6)


FULL_LENGTH = [ATTENTION[i] for i in (1, 5, 8, 11)]  # also tested without padding


@pytest.mark.parametrize(
  'pattern, heads, shape, expected, padded',
  [(*case, True) for case in ATTENTION] + [(*case, False) for case in FULL_LENGTH],
)
def test_attention_agrees_with_one_device(pattern, heads, shape, expected, padded):
  arrays = [normal(ROWS, LENGTH, heads, 4, seed=seed) for seed in range(4)]
  lengths = (LENGTHS,) if padded else ()
  function = functools.partial(attend, pattern=pattern, implementation='reference')
  actual, moved = on_mesh(shape, function, arrays, *lengths)
  assert_close(actual, on_one_device(function, *arrays, *lengths), atol=3e-6)
  assert moved == expected


@pytest.mark.parametrize(
  'implementation, pattern',
  [(None, Neighbours(3)), (None, Neighbours(5)), ('triton', Neighbours(5)), ('splash', Neighbours(6))],
)
def test_attention_by_other_implementations(implementation, pattern):
  """They are those of this platform, and those of accelerators in interpret mode."""
  arrays = [normal(ROWS, LENGTH, 3, 8, seed=seed) for seed in range(4)]
  function = functools.partial(attend, pattern=pattern, implementation=implementation)
  actual, _ = on_mesh((2, 1, 4), function, arrays, LENGTHS)
  reference = functools.partial(attend, pattern=pattern, implementation='reference')
  expected = on_one_device(reference, *arrays, LENGTHS)
  assert_close(actual, expected, atol=3e-6)


@pytest.mark.parametrize(
  'pattern, offset, keys',
  [
    (Full(), 0, 48),
    (Window(2, 1), 2, 9),
    (Neighbours(3), 3, 12),
    (Neighbours(2, 1, 0, causal=True), 2, 8),
    (Neighbours(4), None, 16),  # positions 6 to 11 lie in blocks 1 and 2, and see blocks 0 to 3
  ],
)
def test_offsets_are_constants_where_shards_hold_whole_blocks(monkeypatch, pattern, offset, keys):
  """Kernels that make masks while tracing need a constant offset. They also get only the keys they need."""
  calls = []

  def spy(q, k, v, *, q_offset=0, **options):
    calls.append((q_offset, k.shape[1], options))
    return q

  monkeypatch.setattr(sharded, 'attention', spy)
  x = jax.ShapeDtypeStruct((ROWS, LENGTH, 3, 4), jnp.float32)
  with jax.set_mesh(sharding.make_mesh(1, 1, 8)):
    jax.eval_shape(functools.partial(sharded_attention, pattern=pattern), x, x, x)
  ((actual, count, options),) = calls
  assert (actual if isinstance(actual, int) else None) == offset
  assert count == keys
  hides = [name for name in ('kv_starts_B', 'kv_lengths_B') if options.get(name) is not None]
  right = isinstance(pattern, Window | Neighbours) and not getattr(pattern, 'causal', False)
  assert ('kv_lengths_B' in hides) == right
  assert ('kv_starts_B' in hides) == (isinstance(pattern, Window | Neighbours) and offset is not None)


@pytest.mark.parametrize('components', [1, 2])
@pytest.mark.parametrize('reverse', [False, True])
@pytest.mark.parametrize('shape, length', [((1, 1, 8), 48), ((2, 1, 4), 48), ((1, 1, 8), 8)])
def test_scan_agrees_with_one_device(reverse, components, shape, length):
  magnitude, angle = np.linspace(0.8, 1.0, 5), np.linspace(0.1, 2.0, 5)
  a = magnitude * np.exp(1j * angle) if components == 2 else magnitude[None]
  a_CN = jnp.asarray(np.stack([a.real, a.imag]) if components == 2 else a, jnp.float32)
  x, cotangent = (normal(ROWS, length, components, 5, seed=seed) for seed in range(2))

  def scan(x, cotangent, a_CN, axis=None):
    ours = functools.partial(scan_components, reverse=reverse, axis=axis)
    island = sharding.rows_island(lambda x, a: ours(a, x), whole=(1,), split=(0,))
    h, pull = jax.vjp(island, x, a_CN)
    return h, pull(cotangent)

  actual, moved = on_mesh(shape, functools.partial(scan, axis='seq'), (x, cotangent), a_CN)
  assert_close(actual, on_one_device(scan, x, cotangent, a_CN), rtol=2e-5, atol=2e-5)
  assert moved == {'all-gather': 2}  # of end states, and of their gradients


def test_scan_over_shards_loses_no_digits():
  """With |a| = 1 over 2^13 steps, the error to float64 is below that of a loop over positions on one
  device."""
  length, angle = 2**13, 0.1
  a = np.float32([[np.cos(angle)], [np.sin(angle)]])
  x = np.zeros((8, length, 2, 1), np.float32)
  x[:, 0, 0] = 1
  island = sharding.rows_island(lambda x, a: scan_components(a, x, axis='seq'), whole=(1,), split=(0,))
  actual, _ = on_mesh((1, 1, 8), island, (x,), a)
  exact = (a[0, 0].astype(np.float64) + 1j * a[1, 0].astype(np.float64)) ** np.arange(length)
  error = np.abs(actual[0, :, 0, 0] + 1j * actual[0, :, 1, 0] - exact).max()
  loop = np.asarray(on_one_device(scan_components, a, x))
  assert error < np.abs(loop[0, :, 0, 0] + 1j * loop[0, :, 1, 0] - exact).max()


def test_scan_over_an_axis_takes_a_constant():
  x = normal(1, 2, 1, 3)
  for a, initial in ((x, None), (x[0, 0], x[:, 0])):
    with pytest.raises(ValueError, match='takes a constant a and no initial state'):
      scan_components(a, x, initial=initial, axis='seq')


def test_what_cannot_be_split_gets_a_sentence():
  mega = make_mixer(
    'mega',
    8,
    options={'chunk': 4, 'function': 'laplace'},
    length=LENGTH,
    causal=True,
    protocol=CLEAN,
    rngs=nnx.Rngs(0),
  )
  q = normal(ROWS, LENGTH, 3, 4)
  convolution = make_mixer(
    'dlr', 6, options={'state_size': 4}, length=LENGTH, causal=True, protocol=CLEAN, rngs=nnx.Rngs(0)
  )
  with jax.set_mesh(sharding.make_mesh(1, 1, 8)):
    with pytest.raises(ValueError, match='seq is 8, which does not divide sequences of 44 positions'):
      sharded_attention(*[q[:, :44]] * 3, pattern=Full())
    with pytest.raises(ValueError, match='seq is 8, which does not divide the 3 heads .* BlockTable'):
      sharded_attention(q, q, q, pattern=TABLE)
    with pytest.raises(ValueError, match='seq is 8, but this attention has one table per head'):
      sharded_attention(q, q, q, pattern=HeadTables((TABLE,) * 3))
    with pytest.raises(
      ValueError, match='seq is 8, which leaves each shard 6 positions, but model.mixer.chunk 4 of'
    ):
      jax.eval_shape(mega, normal(ROWS, LENGTH, 8))
    with pytest.raises(ValueError, match='seq is 8, which does not divide model.width 6, but long conv'):
      convolution(normal(ROWS, LENGTH, 6))
