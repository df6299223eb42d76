"""Hidden tiles are not read: NaN in keys that a block of queries does not see must not reach it, nor NaN in
queries the keys that they do not see. 0 * NaN is NaN, so a mask alone would not stop it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.ops.attention import BlockTable, Causal, Neighbours, Window, splash
from lra_spt.ops.attention.blockwise import blockwise_attention
from lra_spt.ops.attention.mosaic import mosaic_attention
from lra_spt.ops.attention.splash import splash_attention
from lra_spt.ops.attention.tiles import Tiles
from lra_spt.ops.attention.triton import KernelTiles, Tile, triton_attention

IN_TILES = {
  'blockwise': (16, functools.partial(blockwise_attention, tiles=Tiles(16, 16, False))),
  'triton': (16, functools.partial(triton_attention, tiles=KernelTiles(*[Tile(16, 16)] * 3))),
  'splash': (128, splash_attention),
  'mosaic': (128, mosaic_attention),
}
# Interpreted, it takes seconds a call.
MOSAIC = pytest.mark.slow, pytest.mark.skipif(jax.__version_info__ < (0, 11), reason='needs jax 0.11')


def patterns(block):
  yield Causal()
  yield Window(block, 0)
  yield Neighbours(block)
  yield Neighbours(block, 1, 0, causal=True)
  yield BlockTable(block, ((1, 3), (1,), (0, 2), (0, 1, 2, 3)))
  yield BlockTable(block, ((0,), (0, 1), (1, 2), (0, 3)), causal=True)


CASES = [
  pytest.param(name, pattern, id=f'{name} {pattern}', marks=MOSAIC if name == 'mosaic' else ())
  for name, (block, _) in IN_TILES.items()
  for pattern in patterns(block)
]


@pytest.mark.parametrize('name, pattern', CASES)
def test_hidden_blocks_are_not_read(
  name, pattern, monkeypatch, draw_attention, value_and_gradients, attention_visibility
):
  block, attend = IN_TILES[name]
  if not isinstance(pattern, BlockTable):  # the tiles of tables follow their blocks
    monkeypatch.setattr(splash, '_QUERIES', (128,))
    monkeypatch.setattr(splash, '_KEYS', (128,))
  q, k, v, d_out = draw_attention((1, 4 * block, 1, 16), (1, 4 * block, 1, 16))
  seen = attention_visibility(pattern, 4 * block, 4 * block).reshape(4, block, 4, block).any((1, 3))
  run = jax.jit(functools.partial(value_and_gradients, functools.partial(attend, pattern=pattern)))
  for number in range(4):
    here = slice(number * block, (number + 1) * block)
    out, dq, _, _ = run(q, k.at[:, here].set(jnp.nan), v.at[:, here].set(jnp.nan), d_out)
    _, _, dk, dv = run(q.at[:, here].set(jnp.nan), k, v, d_out.at[:, here].set(jnp.nan))
    for reached, arrays in ((seen[:, number], (out, dq)), (seen[number], (dk, dv))):
      for x in arrays:
        finite = np.isfinite(x).reshape(4, -1)
        np.testing.assert_array_equal(finite.all(1), ~reached)
