"""Linear recurrences: values and gradients against a float64 loop, transformations, memory, errors."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

from lra_spt.ops.scan import linear_scan, scan_components

pytestmark = pytest.mark.usefixtures('optimized')

IN_XLA = ('associative', 'sequential', 'chunked')
IMPLEMENTATIONS = (*IN_XLA, 'pallas')  # kernels have lengths and memory in test_scan_pallas.py


def oracle(a, x, g, initial, reverse):
  """h, da, dx and d initial in double precision, for the cotangent g of h (JAX's convention: the bilinear
  form sum g h, without conjugation)."""
  wide = np.complex128 if np.iscomplexobj(x) else np.float64
  constant = np.ndim(a) == 1
  a, x, g, initial = (np.array(v, wide) for v in (np.broadcast_to(a, x.shape), x, g, initial))
  if reverse:
    a, x, g = a[:, ::-1], x[:, ::-1], g[:, ::-1]
  length = x.shape[1]
  before = np.zeros((x.shape[0], length + 1, x.shape[2]), wide)
  before[:, 0] = initial
  for t in range(length):
    before[:, t + 1] = a[:, t] * before[:, t] + x[:, t]
  d_before = np.zeros_like(before)
  da = np.zeros_like(x)
  for t in reversed(range(length)):
    d_before[:, t + 1] += g[:, t]
    da[:, t] = d_before[:, t + 1] * before[:, t]
    d_before[:, t] += d_before[:, t + 1] * a[:, t]
  h, dx = before[:, 1:], d_before[:, 1:]
  if reverse:
    h, da, dx = h[:, ::-1], da[:, ::-1], dx[:, ::-1]
  return h, da.sum((0, 1)) if constant else da, dx, d_before[:, 0]


def draw(shape, dtype, varying, decay, seed=0):
  """a, x, g, initial; |a| = exp(-decay)."""
  rng = np.random.default_rng(seed)

  def normal(shape):
    real = rng.normal(size=shape)
    return (real + 1j * rng.normal(size=shape) if dtype == np.complex64 else real).astype(dtype)

  a_shape = shape if varying else shape[2:]
  a = np.exp(-rng.uniform(*decay, size=a_shape))
  turn = np.exp(2j * np.pi * rng.uniform(size=a_shape)) if dtype == np.complex64 else 1
  return (a * turn).astype(dtype), normal(shape), normal(shape), normal(shape[::2])


def value_and_gradients(a, x, g, initial, reverse, implementation):
  @jax.jit
  def both(a, x, g, initial):
    scan = functools.partial(linear_scan, reverse=reverse, implementation=implementation)
    h, pull = jax.vjp(lambda a, x, initial: scan(a, x, initial_BN=initial), a, x, initial)
    return h, *pull(g)

  return both(a, x, g, initial)


def worst(ours, theirs):
  """The largest errors of values and of gradients, relative to the largest value."""
  errors = [np.abs(np.asarray(o) - t).max() / np.abs(t).max() for o, t in zip(ours, theirs, strict=True)]
  return errors[0], max(errors[1:])


@pytest.mark.parametrize('reverse', [False, True])
@pytest.mark.parametrize('varying', [False, True])
@pytest.mark.parametrize('dtype', [np.float32, np.complex64])
@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
def test_values_and_gradients_match_a_loop(implementation, dtype, varying, reverse):
  # 37 positions fill neither a tree nor the last chunk.
  arrays = draw((2, 37, 3), dtype, varying, decay=(0, 1))
  ours = value_and_gradients(*arrays, reverse, implementation)
  assert [v.dtype for v in ours] == [dtype] * 4
  assert max(worst(ours, oracle(*arrays, reverse))) < 1e-6


@pytest.mark.parametrize('implementation', IN_XLA)
@pytest.mark.parametrize('length', [1, 2, 3, 64])
def test_every_length(length, implementation):
  arrays = draw((2, length, 3), np.complex64, False, decay=(0, 1))
  ours = value_and_gradients(*arrays, True, implementation)
  assert max(worst(ours, oracle(*arrays, True))) < 1e-6


def matrix_oracle(a_NIJ, x_BLIN, g_BLIN, initial_BIN):
  """h, da, dx and d initial of h_t = A h_{t-1} + x_t in double precision, for the cotangent g of h."""
  a, x, g = (np.float64(v) for v in (a_NIJ, x_BLIN, g_BLIN))
  h, before = np.zeros_like(x), [np.float64(initial_BIN)]
  for t in range(x.shape[1]):
    h[:, t] = np.einsum('nij,bjn->bin', a, before[-1]) + x[:, t]
    before.append(h[:, t])
  da, dx, later = np.zeros_like(a), np.zeros_like(x), np.zeros_like(before[0])
  for t in reversed(range(x.shape[1])):
    dx[:, t] = g[:, t] + later
    da += np.einsum('bin,bjn->nij', dx[:, t], before[t])
    later = np.einsum('nij,bin->bjn', a, dx[:, t])
  return h, da, dx, later


def draw_matrices(length, growth, seed=0):
  """A, x, g and initial of 3 states. A rotates in skewed coordinates, and is no power of a number; its
  eigenvalues are exp(-growth) in size at most."""
  rng = np.random.default_rng(seed)
  a_NIJ = np.empty((3, 2, 2))
  for n, angle in enumerate((0.1, 0.7, 2.0)):
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    skew = np.array([[1, 0.5], [0, 0.3 + n]])
    a_NIJ[n] = np.exp(-growth * (n + 1)) * skew @ turn @ np.linalg.inv(skew)
  normal = (rng.normal(size=shape) for shape in ((2, length, 2, 3), (2, length, 2, 3), (2, 2, 3)))
  return tuple(np.float32(v) for v in (a_NIJ, *normal))


def matrix_scan(a_NIJ, x, g, initial, reverse, implementation):
  @jax.jit
  def both(a_4N, x, g, initial):
    scan = functools.partial(scan_components, reverse=reverse, implementation=implementation)
    h, pull = jax.vjp(lambda a, x, initial: scan(a, x, initial=initial), a_4N, x, initial)
    return h, *pull(g)

  h, da_4N, dx, d_initial = both(a_NIJ.reshape(3, 4).T, x, g, initial)
  return h, da_4N.T.reshape(3, 2, 2), dx, d_initial


@pytest.mark.parametrize('reverse', [False, True])
@pytest.mark.parametrize('implementation', IN_XLA)
def test_matrices_match_a_loop(implementation, reverse):
  a, x, g, initial = draw_matrices(37, 0.05)
  ours = matrix_scan(a, x, g, initial, reverse, implementation)
  order = slice(None, None, -1 if reverse else 1)
  h, da, dx, d_initial = matrix_oracle(a, x[:, order], g[:, order], initial)
  assert max(worst(ours, (h[:, order], da, dx[:, order], d_initial))) < 1e-6


@pytest.mark.parametrize('implementation', IN_XLA)
def test_matrices_keep_their_precision(implementation):
  """The tree and chunks use powers of A, each of which is rounded only once."""
  arrays = draw_matrices(4096, 1e-4)
  values, gradients = worst(matrix_scan(*arrays, False, implementation), matrix_oracle(*arrays))
  print(f'{implementation}: {values:.1e}, {gradients:.1e}')
  assert values < 5e-6
  assert gradients < 2e-5


def held(implementation, positions):
  """The arguments of `hold_errors`: file in lra_spt/ops, length, and bounds of the errors.

  The Pallas kernel carries its state by unrounded powers; with rounded ones, errors would be larger.
  """
  if implementation != 'pallas':
    return {'kernel': 'scan', 'positions': positions}
  bounds = {16_384: (5e-6, 1e-5), 65_536: (2e-5, 5e-5)}[positions]
  return {'kernel': 'scan_pallas', 'positions': positions, 'bounds': bounds}


@pytest.mark.numerics
@pytest.mark.parametrize('varying', [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
def test_long_memories_keep_their_precision(implementation, varying, hold_errors):
  arrays = draw((1, 16384, 4), np.complex64, varying, decay=(0, 1e-4))
  values, gradients = worst(value_and_gradients(*arrays, False, implementation), oracle(*arrays, False))
  hold_errors(values=values, gradients=gradients, **held(implementation, 16384))


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.parametrize('dtype', [np.float32, np.complex64])
@pytest.mark.parametrize('varying', [False, True])
@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
def test_65536_positions(implementation, varying, dtype, hold_errors):
  for decay in ((0, 1e-5), (0, 1e-3)):
    arrays = draw((1, 65536, 8), dtype, varying, decay)
    values, gradients = worst(value_and_gradients(*arrays, False, implementation), oracle(*arrays, False))
    print(f'{implementation} {dtype.__name__} varying={varying} {decay}: {values:.1e}, {gradients:.1e}')
    hold_errors(values=values, gradients=gradients, **held(implementation, 65536))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**16), decay=st.floats(0, 3))
def test_a_scan_carries_its_state_across_a_cut(seed, decay):
  a, x, _, initial = draw((2, 24, 3), np.complex64, False, (0, decay), seed)
  for reverse in (False, True):
    scan = _cut_scan(reverse)
    whole = scan(a, x, initial)
    parts = (x[:, 17:], x[:, :17]) if reverse else (x[:, :17], x[:, 17:])
    first = scan(a, parts[0], initial)
    second = scan(a, parts[1], first[:, 0 if reverse else -1])
    joined = np.concatenate([second, first] if reverse else [first, second], axis=1)
    np.testing.assert_allclose(joined, whole, atol=2e-6 * np.abs(whole).max())


@functools.cache
def _cut_scan(reverse):
  return jax.jit(lambda a, x, initial: linear_scan(a, x, initial_BN=initial, reverse=reverse))


def test_vmap_and_checkpoint_change_nothing():
  a, x, _, _ = draw((3, 9, 2), np.float32, True, (0, 1))

  def loss(scan, a, x):
    return jnp.sum(scan(a, x) ** 2)

  plain = jax.grad(functools.partial(loss, linear_scan), (0, 1))(a, x)
  rows = jax.vmap(lambda a, x: jax.checkpoint(linear_scan)(a[None], x[None])[0])
  for ours, theirs in zip(jax.grad(functools.partial(loss, rows), (0, 1))(a, x), plain, strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize(
  ('implementation', 'check_vma'), [*itertools.product(IN_XLA, (False, True)), ('pallas', False)]
)
def test_rows_over_devices_with_gradient(implementation, check_vma):
  a, x, g, _ = draw((8, 16, 3), np.complex64, False, (0, 1))
  mesh = jax.make_mesh((8,), ('data',), axis_types=(AxisType.Auto,))
  rows = PartitionSpec('data')
  scan = functools.partial(linear_scan, implementation=implementation)
  split = jax.shard_map(
    scan, mesh=mesh, in_specs=(PartitionSpec(), rows), out_specs=rows, check_vma=check_vma
  )

  def both(a, x, g):
    h, pull = jax.vjp(split, a, x)
    return h, *pull(g)

  shardings = [jax.NamedSharding(mesh, spec) for spec in (PartitionSpec(), rows, rows)]
  compiled = jax.jit(both, in_shardings=shardings).lower(a, x, g).compile()
  assert not re.search('all-gather|all-to-all|collective-permute', compiled.as_text())
  ours = compiled(*(jax.device_put(v, s) for v, s in zip((a, x, g), shardings, strict=True)))
  assert max(worst(ours, oracle(a, x, g, np.zeros((8, 3)), False)[:3])) < 1e-6


@pytest.mark.parametrize('varying', [False, True])
@pytest.mark.parametrize('implementation', IN_XLA)
def test_memory_is_linear_in_the_length(implementation, varying):
  shape = (8, 60, 16)
  x = jax.ShapeDtypeStruct(shape, jnp.complex64)
  a = x if varying else jax.ShapeDtypeStruct(shape[2:], jnp.complex64)

  def loss(a, x):
    return jnp.sum(jnp.abs(linear_scan(a, x, implementation=implementation)) ** 2)

  compiled = jax.jit(jax.grad(loss, (0, 1))).lower(a, x).compile()
  states = compiled.memory_analysis().temp_size_in_bytes / (np.prod(shape) * 8)
  print(f'{implementation} varying={varying}: {states:.1f} times x')
  assert states < {'sequential': 6, 'chunked': 8, 'associative': 12}[implementation] * (1 + varying)


def test_errors_name_what_is_wrong():
  a, x, _, initial = draw((2, 5, 3), np.float32, False, (0, 1))
  for arguments, message in (
    ((a.astype(np.complex64), x), 'cast both'),
    ((a.astype(np.float16), x.astype(np.float16)), 'cast both'),
    ((a[:2], x), 'pass x'),
    ((a, x[:, :0]), 'every size'),
  ):
    with pytest.raises(ValueError, match=message):
      linear_scan(*arguments)
  with pytest.raises(ValueError, match='initial state of float32'):
    linear_scan(a, x, initial_BN=initial[:, :2])
  with pytest.raises(ValueError, match="'tree' is unknown; choose associative, sequential, chunked, pallas"):
    linear_scan(a, x, implementation='tree')
