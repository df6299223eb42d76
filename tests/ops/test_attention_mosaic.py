"""The kernel for Hopper GPUs: interpreted on the CPU against float64, lowered for a GPU, refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.ops.attention import BlockTable, Causal, Full, Neighbours, Window, attention, mosaic

interprets = pytest.mark.skipif(
  jax.__version_info__ < (0, 11), reason='needs jax 0.11, which interprets and lowers kernels of Mosaic GPU'
)
TABLE = BlockTable(64, ((0, 1, 2), (0, 1), (), (1,)))


@pytest.fixture
def agrees(draw_attention, value_and_gradients, check_attention, attention_oracle):
  """Compares value and gradients with the oracle; the bounds are those of values."""

  def run(pattern, length, keys, width, dtype='bfloat16', lengths=None, starts=None, q_offset=0, batch=1):
    q, k, v, d_out = draw_attention((batch, length, 1, width), (batch, keys, 1, width), jnp.dtype(dtype))
    edges = (None if x is None else jnp.asarray(x, jnp.int32) for x in (lengths, starts))
    attend = functools.partial(
      mosaic.mosaic_attention, pattern=pattern, q_offset=q_offset,
      **dict(zip(('kv_lengths_B', 'kv_starts_B'), edges, strict=True)))  # fmt: skip
    results = value_and_gradients(attend, q, k, v, d_out)
    exact = (np.asarray(x, np.float64) for x in (q, k, v, d_out))
    expected = attention_oracle(pattern, *exact, lengths, starts, q_offset)
    check_attention(results, expected, tolerance=2e-2)
    # Relative to the largest value; float32 is not rounded to TF32 in the interpreter.
    bound = {'bfloat16': 5e-3, 'float16': 1e-3, 'float32': 1e-5}[dtype]
    error = np.abs(np.asarray(results[0], np.float64) - expected[0]).max() / max(1, np.abs(expected[0]).max())
    assert error < bound

  return run


@interprets
@pytest.mark.parametrize(
  'pattern, length, keys, width, options',
  [
    (TABLE, 200, 170, 16, {}),  # two places of the ring are used again; the last queries see no key
    (Neighbours(40, 1, 0, causal=True), 70, 70, 24, {'dtype': 'float32', 'lengths': (61,)}),
  ],
)
def test_agrees_with_float64(agrees, pattern, length, keys, width, options):
  agrees(pattern, length, keys, width, **options)


TABLES = (
  BlockTable(64, ((0,), (0, 1), (1, 2), (0, 3), (4,)), causal=True),
  BlockTable(128, ((0, 1, 2), (), (0, 2))),
  BlockTable(192, ((1,), (0, 1))),
)


@interprets
@pytest.mark.slow
@pytest.mark.parametrize(
  'length, keys, width, dtype',
  [(63, 65, 8, 'float32'), (129, 300, 32, 'bfloat16'), (301, 257, 128, 'float16'), (1, 1, 64, 'bfloat16'),
   (200, 190, 128, 'float32')],
)  # fmt: skip
@pytest.mark.parametrize(
  'pattern',
  [
    Full(),
    Causal(),
    Window(70, 9),
    Neighbours(64),
    Neighbours(37, 2, 0),
    Neighbours(50, 1, 0, True),
    *TABLES,
  ],
)
def test_agrees_with_float64_at_odd_lengths(agrees, pattern, length, keys, width, dtype):
  offset = 0 if isinstance(pattern, BlockTable) else -20
  agrees(pattern, length, keys, width, dtype, (keys, keys // 2), (0, keys // 3), offset, batch=2)


@interprets
@pytest.mark.parametrize('pattern', [Full(), TABLE])
def test_the_interpreter_finds_no_race(pattern, draw_attention):
  q, k, v, _ = draw_attention((1, 250, 1, 16), (1, 250, 1, 16), jnp.bfloat16)
  attend = functools.partial(mosaic.mosaic_attention, pattern=pattern, detect_races=True)
  assert np.isfinite(np.asarray(attend(q, k, v), np.float32)).all()


@interprets
@pytest.mark.parametrize(
  'pattern, width, dtype',
  [
    (Full(), 64, 'bfloat16'),
    (Causal(), 128, 'float16'),
    (Window(100, 20), 24, 'bfloat16'),
    (Neighbours(4000, 1, 0, causal=True), 16, 'float32'),
    (BlockTable(64, ((0, 1), (0, 1, 2), (1, 2, 3), (2, 3))), 32, 'bfloat16'),
  ],
)
def test_lowers_for_hopper(pattern, width, dtype, a_gpu):
  """jax finds registers and layouts for the kernel as it runs on a GPU, with weights in registers."""
  q = jax.ShapeDtypeStruct((2, 1000, 4, width), dtype)
  lengths_B, q_offset = jax.ShapeDtypeStruct((2,), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)
  attend = functools.partial(mosaic.mosaic_attention, pattern=pattern, interpret=False)
  run = jax.jit(lambda q, lengths_B, q_offset: attend(q, q, q, kv_lengths_B=lengths_B, q_offset=q_offset))
  with a_gpu():
    text = run.trace(q, lengths_B, q_offset).lower(lowering_platforms=('cuda',)).as_text()
  assert text.count('@mosaic_gpu_v2') == 1


@interprets
@pytest.mark.filterwarnings('ignore:The Pallas Triton backend is deprecated:DeprecationWarning')
def test_gradients_lower_under_transformations(a_gpu):
  """The interpreter cannot run under jax.checkpoint, which models use."""

  def loss(q):
    attend = lambda q: mosaic.mosaic_attention(q, q, q, pattern=Neighbours(128), interpret=False)  # noqa: E731
    layers = jax.lax.scan(lambda x, _: (x + jax.checkpoint(attend)(x), None), q, length=2)[0]
    return layers.astype(jnp.float32).sum()

  q = jax.ShapeDtypeStruct((3, 2, 500, 4, 64), jnp.bfloat16)
  with a_gpu():
    gradient = jax.jit(jax.grad(lambda q: jax.vmap(loss)(q).sum()))
    text = gradient.trace(q).lower(lowering_platforms=('cuda',)).as_text()
  assert text.count('@mosaic_gpu_v2') == 2  # forward, and again for the gradient
  assert text.count('@__gpu$xla.gpu.triton') == 2  # gradients of queries, and of keys and values


def test_refuses():
  q = jax.ShapeDtypeStruct((1, 64, 1, 16), jnp.float32)
  refuses = functools.partial(mosaic.refuses, q, q, q, q_offset=0)
  assert 'a multiple of 64 tokens in a BlockTable, not 96' in refuses(pattern=BlockTable(96, ((0,),)))
  assert refuses(pattern=BlockTable(64, ((0,),))) == refuses(pattern=Full())


@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason='needs jax older than 0.11')
@pytest.mark.parametrize('name', ['mosaic', 'tokamax'])
def test_an_old_jax_is_named(name):
  arrays = [jnp.zeros((1, 4, 1, 4))] * 3
  with pytest.raises(ValueError, match=f"'{name}' needs jax 0.11 or newer, not {jax.__version__}; choose"):
    attention(*arrays, pattern=Full(), implementation=name)
