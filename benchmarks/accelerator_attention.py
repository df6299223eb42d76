"""Parts of `accelerator` about attention: its errors, its time and memory, and the search for tiles."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from benchmarks.peers import fused_attention
from lra_spt.ops import attention as attention_lib
from lra_spt.ops.attention import Causal, Full, Neighbours, attention
from lra_spt.ops.attention.patterns import visible_pairs
from lra_spt.ops.attention.triton import tiles_for, triton_attention

# Batch, length, heads, head dimension.
FULL_SHAPES = {'image': (64, 1024, 4, 64), 'pathx': (4, 16384, 4, 32)}
ERROR_SHAPES = ((2, 200, 2, 16), (1, 4096, 4, 64))
BLOCK_SHAPES = {'pathx': (8, 16384, 4, 32), 'pathx narrow': (8, 16384, 8, 16)}
BLOCK = 4096
# Dtype, precision of products ('default' may be TF32 on a GPU), and bound on the largest error, relative to
# max(1, largest value).
PRECISIONS = (('float32', 'highest', 5e-5), ('float32', 'default', 5e-3), ('bfloat16', 'default', 2e-2))
# Head dimensions and dtypes whose tiles are searched for, those of the long tasks first.
TUNED = (
  (32, 'bfloat16'),
  (16, 'bfloat16'),
  (64, 'bfloat16'),
  (32, 'float32'),
  (16, 'float32'),
  (64, 'float32'),
  (128, 'bfloat16'),
  (128, 'float32'),
)


def draw(shape_BLHK, dtype):
  """q, k, v and a gradient of the output; values that bfloat16 holds exactly."""
  rng = np.random.default_rng(0)
  arrays = (jnp.asarray(rng.standard_normal(shape_BLHK), jnp.bfloat16) for _ in range(4))
  return [array.astype(dtype) for array in arrays]


def value_and_gradients(attend):
  """Jitted (q, k, v, d_out) -> (out, dq, dk, dv)."""

  def both(q_BLHK, k_BLHK, v_BLHK, d_out_BLHK):
    out_BLHK, pull = jax.vjp(attend, q_BLHK, k_BLHK, v_BLHK)
    return out_BLHK, *pull(d_out_BLHK)

  return jax.jit(both)


def errors(options):
  """Yields a case per shape, pattern and precision: the largest errors against float64."""
  for shape in ((1, 40, 2, 8),) if options.dry else ERROR_SHAPES:
    short_B = jnp.full(shape[0], shape[1] * 2 // 3, jnp.int32)
    patterns = (
      ('full', Full(), None),
      ('causal', Causal(), None),
      ('padded', Full(), short_B),
      ('blocks', Neighbours(shape[1] // 5), short_B),
    )
    for name, pattern, lengths_B in patterns:
      attend = functools.partial(attention, pattern=pattern, kv_lengths_B=lengths_B)
      expected = functools.cache(functools.partial(_exact, attend, shape))
      for dtype, precision, tolerance in PRECISIONS:
        case = f'{dtype} {precision} {name} {"x".join(map(str, shape))}'
        yield case, functools.partial(_errors, attend, shape, expected, dtype, precision, tolerance)


def _exact(attend, shape):
  with jax.enable_x64(True):
    dense = functools.partial(attend, implementation='reference')
    return [np.asarray(x) for x in value_and_gradients(dense)(*draw(shape, jnp.float64))]


def _errors(attend, shape, expected, dtype, precision, tolerance) -> dict:
  with jax.default_matmul_precision(precision):
    results = value_and_gradients(attend)(*draw(shape, dtype))
  errors = {
    part: float(np.abs(np.asarray(x, np.float64) - y).max() / max(1, np.abs(y).max()))
    for part, x, y in zip(('out', 'dq', 'dk', 'dv'), results, expected(), strict=True)
  }
  largest = max(errors.values())
  return {'ok': largest <= tolerance, 'largest': largest, 'tolerance': tolerance, 'errors': errors}


def jax_run(attend, dtype, shape):
  """(function that runs attention and its gradients once, megabytes that it needs beside its arrays)."""
  arrays = draw(shape, dtype)
  compiled = value_and_gradients(attend).lower(*arrays).compile()
  temporary = compiled.memory_analysis().temp_size_in_bytes / 1e6
  return lambda: jax.block_until_ready(compiled(*arrays)), temporary


def times(options):
  """Yields a case per shape, dtype and implementation: time and memory of attention and its gradients.

  'torch' is PyTorch's fused attention, 'xla' that of jax.nn, which stores all scores. Both see neighbouring
  blocks folded into the batch.
  """
  full, blocks, block = FULL_SHAPES, BLOCK_SHAPES, BLOCK
  if options.dry:
    full, blocks, block = {'toy': (2, 64, 2, 16)}, {'toy': (2, 64, 2, 16)}, 16
  kinds = 'torch', *(name for name in attention_lib.NAMES if name != 'reference'), 'xla'
  calls = [('every key', name, shape, 0) for name, shape in full.items()]
  calls += [('blocks', name, shape, block) for name, shape in blocks.items()]
  for to, name, shape, block in calls:
    for dtype in ('bfloat16', 'float32'):
      for kind in kinds:
        long = kind == 'xla' and shape[1] > 4096  # its stored scores fit for one sequence at most
        if not long or block:
          size = (1, *shape[1:]) if long else shape
          measure = functools.partial(_time, kind, dtype, size, block, 0.05 if options.dry else 1.0)
          yield f'{to} {name} {kind} {dtype}', measure


def _time(kind, dtype, shape, block, sampling) -> dict:
  batch, length, heads, width = shape
  pattern = Neighbours(block) if block else Full()
  if kind == 'torch':
    run, temporary = fused_attention.torch_run(dtype, shape, jax.default_backend(), block)
  elif kind == 'xla':
    attend = functools.partial(jax.nn.dot_product_attention, implementation='xla')
    if block:
      attend = functools.partial(fused_attention.folded, attend, jnp.concatenate, block=block)
    run, temporary = jax_run(attend, dtype, shape)
  else:
    run, temporary = jax_run(functools.partial(attention, pattern=pattern, implementation=kind), dtype, shape)
  row = {'shape_BLHK': shape, 'block': block} | harness.milliseconds(harness.sampled(run, sampling))
  # Two products forward and five backward, each 2 K operations a pair, as FlashAttention's papers count.
  operations = 14 * width * batch * heads * visible_pairs(pattern, length, length)
  row['teraflops_per_second'] = operations / row['milliseconds'] / 1e9
  return row | {'temporary_megabytes': temporary}


def tune(options):
  """Yields a case per head dimension and dtype: the fastest tiles, as a line for ops/attention/triton.py."""
  shape, cases = (8, 16384, 128), TUNED
  if options.dry:
    shape, cases = (1, 32, 16), ((16, 'bfloat16'),)
  for width, dtype in cases:
    shape_BLHK = (*shape[:2], shape[2] // width, width)
    yield f'tune {width} {dtype}', functools.partial(_tune, shape_BLHK, dtype, options.dry)


def _tune(shape_BLHK, dtype, dry) -> dict:
  """One kernel after the other, first its sizes, then its warps and stages, by the time of forward and
  backward together on the blocks of PathX."""
  width, block = shape_BLHK[-1], 16 if dry else BLOCK
  sizes, warps, stages = ((16, 32), (4,), (2,)) if dry else ((32, 64, 128), (4, 8), (1, 2, 3, 4))

  @functools.cache
  def milliseconds(tiles):
    attend = functools.partial(triton_attention, pattern=Neighbours(block), tiles=tiles)
    try:
      run, _ = jax_run(attend, dtype, shape_BLHK)
      return harness.milliseconds(harness.sampled(run, 0.2))['milliseconds']
    except Exception:  # needs more shared memory than there is
      return math.inf

  tiles = before = tiles_for(width, dtype)
  for kernel in tiles._fields:
    for changes in (
      itertools.product(('queries',), sizes, ('keys',), sizes),
      itertools.product(('warps',), warps, ('stages',), stages),
    ):
      tile = getattr(tiles, kernel)
      tried = (dataclasses.replace(tile, **{a: x, b: y}) for a, x, b, y in changes)
      tiles = min([tiles, *(tiles._replace(**{kernel: other}) for other in tried)], key=milliseconds)
  row = {'shape_BLHK': shape_BLHK, 'milliseconds': milliseconds(tiles)}
  row['times_faster_than_before'] = milliseconds(before) / row['milliseconds']
  each = ', '.join(f'Tile({t.queries}, {t.keys}, {t.warps}, {t.stages})' for t in tiles)
  device, size = jax.devices()[0].device_kind, jnp.dtype(dtype).itemsize
  return row | {'line': f'({device!r}, {width}, {size}): Tiles({each}),'}


PARTS = {'errors': errors, 'attention': times, 'tune': tune}
