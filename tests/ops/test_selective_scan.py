"""The selective scan: golden values, values and gradients against a float64 loop, memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from lra_spt.ops.selective_scan import biased_scan, selective_scan

L, E, N = 11, 3, 4


def oracle(x, dt, a, b, c, reverse):
  x, dt, a, b, c = (np.float64(v) for v in (x, dt, a, b, c))
  h, y = np.zeros((len(x), *a.shape)), np.zeros(x.shape)
  for t in range(x.shape[1])[:: -1 if reverse else 1]:
    h = np.exp(dt[:, t, :, None] * a) * h + (dt * x)[:, t, :, None] * b[:, t, None]
    y[:, t] = np.einsum('ben,bn->be', h, c[:, t])
  return y


def draw(length=L):
  rng = np.random.default_rng(0)
  x, b, c = (rng.normal(size=(2, length, size)) for size in (E, N, N))
  dt, a = np.exp(rng.normal(size=(2, length, E))), -np.exp(rng.normal(size=(E, N)))
  return [np.float32(v) for v in (x, dt, a, b, c)]


both_ways = pytest.mark.parametrize('way', ['sequential', 'associative'])


@both_ways
@pytest.mark.parametrize('reverse, chunk', [(False, 1), (True, 4), (False, 4), (True, 64)])
def test_values_and_gradients_match_a_loop(reverse, chunk, way, assert_slopes):
  arrays, dy = draw(), np.float32(np.random.default_rng(1).normal(size=(2, L, E)))

  @jax.jit
  def both(*arrays):
    scan = functools.partial(selective_scan, reverse=reverse, chunk=chunk, implementation=way)
    y, pull = jax.vjp(scan, *arrays)
    return y, pull(dy)

  y, gradients = both(*arrays)
  expected = oracle(*arrays, reverse)
  np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
  loss = lambda *arrays: np.sum(dy * oracle(*arrays, reverse))  # noqa: E731
  assert_slopes(gradients, arrays, loss, seed=2, step=1e-5, floor=0)


def biased_oracle(x, dt, a, b, bias, c, reverse):
  x, dt, c = (np.float64(v) for v in (x, dt, c))
  a, b, bias = (np.float64(v[..., 0, :]) + 1j * np.float64(v[..., 1, :]) for v in (a, b, bias))
  h, y = np.zeros((len(x), *bias.shape), complex), np.zeros(x.shape)
  for t in range(x.shape[1])[:: -1 if reverse else 1]:
    grown = np.exp(dt[:, t, :, None] * a)
    h = grown * h + (grown - 1) / a * (b[:, t, None] + bias) * x[:, t, :, None]
    y[:, t] = 2 * np.einsum('ben,bn->be', h, c[:, t]).real
  return y


@both_ways
@pytest.mark.parametrize('reverse, chunk', [(False, 4), (True, 64)])
def test_biased_values_and_gradients_match_a_loop(reverse, chunk, way, assert_slopes):
  rng = np.random.default_rng(0)
  a = np.stack([-np.exp(rng.normal(size=N)), 3 * rng.normal(size=N)])
  x, b, bias, c = (rng.normal(size=shape) for shape in ((2, L, E), (2, L, 2, N), (E, 2, N), (2, L, N)))
  dt = np.exp(rng.normal(size=(2, L, E)))
  arrays, dy = [np.float32(v) for v in (x, dt, a, b, bias, c)], np.float32(rng.normal(size=(2, L, E)))

  @jax.jit
  def both(*arrays):
    scan = functools.partial(biased_scan, reverse=reverse, chunk=chunk, implementation=way)
    y, pull = jax.vjp(scan, *arrays)
    return y, pull(dy)

  y, gradients = both(*arrays)
  expected = biased_oracle(*arrays, reverse)
  np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
  loss = lambda *arrays: np.sum(dy * biased_oracle(*arrays, reverse))  # noqa: E731
  assert_slopes(gradients, arrays, loss, seed=2, step=1e-5, floor=0)


@both_ways
def test_published_figures(golden, way):
  values = golden('mamba1_selective_scan')  # theirs are [B, channels, L]
  u, delta, b, c, z = (jnp.asarray(values[key].swapaxes(1, 2)) for key in ('u', 'delta', 'B', 'C', 'z'))
  dt = jax.nn.softplus(delta + values['delta_bias'][None, None])
  y = jax.jit(functools.partial(selective_scan, chunk=4, implementation=way))(u, dt, values['A'], b, c)
  y += values['D'][None, None] * u
  expected = values['out'].swapaxes(1, 2)
  np.testing.assert_allclose(y * jax.nn.silu(z), expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@both_ways
def test_states_of_all_positions_are_never_there(way):
  """In both passes 2048 positions take far less memory than their states would."""
  length, channels, states = 2048, 8, 16
  shapes = ((1, length, channels),) * 2 + ((channels, states),) + ((1, length, states),) * 2
  arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  loss = lambda *arrays: jnp.sum(selective_scan(*arrays, implementation=way) ** 2)  # noqa: E731
  program = jax.jit(jax.grad(loss, range(5))).lower(*arrays).compile()
  part = program.memory_analysis().temp_size_in_bytes / (length * channels * states * 4)
  print(f'{part:.2f} times all states')
  assert part < 0.9


@both_ways
def test_vmap_and_rows_over_devices_change_nothing(way):
  x, dt, a, b, c = draw()
  options = {'chunk': 4, 'implementation': way}
  scan = jax.jit(functools.partial(selective_scan, **options))
  plain = scan(x, dt, a, b, c)

  def one(x, dt, b, c):
    return selective_scan(x[None], dt[None], a, b[None], c[None], **options)[0]

  rows, whole = PartitionSpec('data'), PartitionSpec()
  mesh = jax.make_mesh((2,), ('data',), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
  specs = (rows, rows, whole, rows, rows)
  island = jax.shard_map(scan, mesh=mesh, in_specs=specs, out_specs=rows)
  for other in (jax.jit(jax.vmap(one))(x, dt, b, c), jax.jit(island)(x, dt, a, b, c)):
    np.testing.assert_allclose(other, plain, rtol=1e-5, atol=1e-6)
