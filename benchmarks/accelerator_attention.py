"""Parts of `accelerator` about attention: errors, blocks of PathX, every key, and the search for tiles."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from benchmarks.peers import fused_attention
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
# An H200: 16-bit products per second; half as many in TF32; exponentials per second.
OPERATIONS = {'bfloat16': 790e12, 'float32': 395e12}
EXPONENTIALS = 3.9e12
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


def kernels(options, known):
  """Yields a row per shape, pattern and precision: the largest errors against float64."""
  for shape in ((1, 40, 2, 8),) if options.tiny else ERROR_SHAPES:
    short_B = jnp.full(shape[0], shape[1] * 2 // 3, jnp.int32)
    patterns = (
      ('full', Full(), None),
      ('causal', Causal(), None),
      ('padded', Full(), short_B),
      ('blocks', Neighbours(shape[1] // 5), short_B),
    )
    for name, pattern, lengths_B in patterns:
      size = 'x'.join(map(str, shape))
      cases = {f'{kind[0]} {kind[1]} {name} {size}': kind for kind in PRECISIONS}
      if all(case in known for case in cases):
        continue
      attend = functools.partial(attention, pattern=pattern, kv_lengths_B=lengths_B)
      with jax.enable_x64(True):
        dense = functools.partial(attend, implementation='reference')
        expected = [np.asarray(x) for x in value_and_gradients(dense)(*draw(shape, jnp.float64))]
      for case, (dtype, precision, tolerance) in cases.items():
        with jax.default_matmul_precision(precision):
          results = value_and_gradients(attend)(*draw(shape, dtype))
        errors = {
          part: float(np.abs(np.asarray(x, np.float64) - y).max() / max(1, np.abs(y).max()))
          for part, x, y in zip(('out', 'dq', 'dk', 'dv'), results, expected, strict=True)
        }
        largest = max(errors.values())
        row = {'case': case, 'ok': largest <= tolerance, 'largest': largest, 'tolerance': tolerance}
        yield row | {'errors': errors}


def jax_run(attend, dtype, shape):
  """(function that runs attention and its gradients once, bytes that it needs beside its arrays)."""
  arrays = draw(shape, dtype)
  compiled = value_and_gradients(attend).lower(*arrays).compile()
  temporary = compiled.memory_analysis().temp_size_in_bytes
  return lambda: jax.block_until_ready(compiled(*arrays)), temporary


def full_attention(options, known):
  """Yields a row per shape and contender; the first is jax's cuDNN route, the base of comparisons."""
  contenders = (
    ('cudnn', 'bfloat16'),
    ('triton', 'bfloat16'),
    ('triton', 'float32'),
    ('tokamax', 'bfloat16'),
    ('tokamax', 'float32'),
    ('mosaic', 'bfloat16'),
    ('mosaic', 'float32'),
    ('blockwise', 'bfloat16'),
    ('blockwise', 'float32'),
    ('torch', 'bfloat16'),
    ('xla', 'bfloat16'),
  )
  for name, shape in ({'tiny': (2, 64, 2, 16)} if options.tiny else FULL_SHAPES).items():
    batch, length, heads, width = shape
    for kind, dtype in contenders:
      case = f'attention {name} {kind} {dtype}'
      if case in known or (kind == 'xla' and length > 4096):  # its scores would need tens of gigabytes
        continue
      row = {'case': case, 'shape_BLHK': shape}
      if kind in ('cudnn', 'xla'):
        attend = functools.partial(jax.nn.dot_product_attention, implementation=kind)
      else:
        attend = functools.partial(attention, pattern=Full(), implementation=kind)
      try:
        if kind == 'torch':
          run, temporary = fused_attention.torch_run(dtype, shape, options.platform, 0)
        else:
          run, temporary = jax_run(attend, dtype, shape)
        row |= harness.milliseconds(harness.sampled(run, 0.05 if options.tiny else 1.0))
      except Exception as error:  # a route that this machine lacks must not end the comparison
        yield row | harness.not_run(error)
        continue
      # Two products forward and five backward, each 2 B H L L K operations, as FlashAttention's papers count.
      operations = 14 * batch * heads * length**2 * width
      row['teraflops_per_second'] = operations / row['milliseconds'] / 1e9
      row['temporary_megabytes'] = None if temporary is None else temporary / 1e6
      base = known.get(f'attention {name} cudnn bfloat16', {}).get('milliseconds')
      yield row | ({'time_over_cudnn': row['milliseconds'] / base} if base else {})


def floors(shape_BLHK, block, dtype):
  """Least milliseconds of the products and exponentials of the visible pairs on an H200.

  Counts two products forward and five backward, and one exponential each way.
  """
  batch, length, heads, width = shape_BLHK
  pairs = batch * heads * visible_pairs(Neighbours(block), length, length)
  return {
    'floor_products': 14e3 * pairs * width / OPERATIONS[dtype],
    'floor_exponentials': 2e3 * pairs / EXPONENTIALS,
  }


def block_attention(options, known):
  """Yields a row per shape, dtype and route of block-neighbour attention, each beside the floor and PyTorch.

  The routes of jax.nn fold the blocks into the batch. 'xla fold' holds all scores, so it gets one sequence.
  """
  shapes, block = BLOCK_SHAPES, BLOCK
  if options.tiny:
    shapes, block = {'tiny': (2, 64, 2, 16)}, 16
  pattern = Neighbours(block)
  ours = {'default': None} | {name: name for name in ('triton', 'tokamax', 'cudnn', 'mosaic', 'blockwise')}
  for name, shape in shapes.items():
    for dtype in ('bfloat16', 'float32'):
      for route in ('torch', *ours, 'xla fold'):
        case = f'attention {name} {route} {dtype}'
        if case in known:
          continue
        size = (1, *shape[1:]) if route == 'xla fold' else shape
        row = {'case': case, 'shape_BLHK': size, 'block': block}
        try:
          if route == 'torch':
            run, temporary = fused_attention.torch_run(dtype, size, options.platform, block)
          elif route == 'xla fold':
            dense = functools.partial(jax.nn.dot_product_attention, implementation='xla')
            attend = functools.partial(fused_attention.folded, dense, jnp.concatenate, block=block)
            run, temporary = jax_run(attend, dtype, size)
          else:
            attend = functools.partial(attention, pattern=pattern, implementation=ours[route])
            run, temporary = jax_run(attend, dtype, size)
          row |= harness.milliseconds(harness.sampled(run, 0.05 if options.tiny else 1.0))
        except Exception as error:  # as above
          yield row | harness.not_run(error)
          continue
        row |= floors(size, block, dtype)
        row['time_over_floor'] = row['milliseconds'] / max(row['floor_products'], row['floor_exponentials'])
        row['temporary_megabytes'] = None if temporary is None else temporary / 1e6
        torch = known.get(f'attention {name} torch {dtype}', {})
        if 'milliseconds' in torch:
          each = torch['milliseconds'] / torch['shape_BLHK'][0]
          row['time_over_torch'] = row['milliseconds'] / size[0] / each
        yield row


def tune(options, known):
  """Yields a row per head dimension and dtype: the fastest tiles, as a line for ops/attention/triton.py.

  One kernel after the other, first its sizes, then its warps and stages, by the time of forward and backward
  together on the blocks of PathX.
  """
  shape, block, cases = (8, 16384, 128), BLOCK, TUNED
  sizes, warps, stages = (32, 64, 128), (4, 8), (1, 2, 3, 4)
  if options.tiny:
    shape, block, cases = (1, 32, 16), 16, ((16, 'bfloat16'),)
    sizes, warps, stages = (16, 32), (4,), (2,)
  for width, dtype in cases:
    case = f'tune {width} {dtype}'
    if case in known:
      continue
    shape_BLHK = (*shape[:2], shape[2] // width, width)

    @functools.cache
    def milliseconds(tiles, shape_BLHK=shape_BLHK, dtype=dtype):
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
    row = {'case': case, 'shape_BLHK': shape_BLHK, 'milliseconds': milliseconds(tiles)}
    row['times_faster_than_before'] = milliseconds(before) / row['milliseconds']
    each = ', '.join(f'Tile({t.queries}, {t.keys}, {t.warps}, {t.stages})' for t in tiles)
    device, size = jax.devices()[0].device_kind, jnp.dtype(dtype).itemsize
    yield row | {'line': f'({device!r}, {width}, {size}): Tiles({each}),'}


PARTS = {'kernels': kernels, 'attention': block_attention, 'tune': tune}
