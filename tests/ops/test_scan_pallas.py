"""The kernels of the scan, interpreted (blocks, ends, threads), compiled for TPUs and lowered for GPUs.
test_scan.py tests them as an implementation of `linear_scan`."""

import importlib.util
import json
import pathlib
import platform
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_spt.ops import scan_pallas

PROGRAM = pathlib.Path(__file__).parent / 'tpu_scan.py'


def draw(shape, varying, seed=0):
  """a, x and g as components, with |a| near 1."""
  rng = np.random.default_rng(seed)
  x, g = rng.normal(size=(2, *shape))
  size = shape if varying else shape[2:]
  radius = np.exp(-rng.uniform(0, 0.2, (*size[:-2], 1, size[-1])))
  turn = rng.uniform(0, 2 * np.pi, radius.shape)
  a = radius if shape[2] == 1 else radius * np.concatenate([np.cos(turn), np.sin(turn)], axis=-2)
  return [np.float32(v) for v in (a, x, g)]


def loop(a, x, g, reverse):
  """h, da and dx in double precision, one position after the other."""
  wide = lambda v: np.complex128(v[..., 0, :] + (1j * v[..., 1, :] if v.shape[-2] == 2 else 0))  # noqa: E731
  factors, x, g = np.broadcast_to(wide(a), wide(x).shape), wide(x), wide(g)
  order = list(range(x.shape[1]))[:: -1 if reverse else 1]
  h, dx, da = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
  state = np.zeros_like(x[:, 0])
  for t in order:
    h[:, t] = state = factors[:, t] * state + x[:, t]
  state = np.zeros_like(x[:, 0])
  for place, t in reversed(list(enumerate(order))):
    dx[:, t] = state = g[:, t] + state
    before = h[:, order[place - 1]] if place else 0
    da[:, t] = np.conj(before) * state
    state = np.conj(factors[:, t]) * state
  narrow = lambda v: np.stack([v.real, v.imag][: a.shape[-2]], axis=-2)  # noqa: E731
  return narrow(h), narrow(da if a.ndim == 4 else da.sum((0, 1))), narrow(dx)


def check(kind, shape, varying, reverse, seed=0):
  a, x, g = draw(shape, varying, seed)
  flat_a, flat_x, flat_g = (v.reshape(*v.shape[:-2], -1) for v in (a, x, g))
  h = scan_pallas.states(flat_a, flat_x, shape[2], reverse, kind)
  da, dx = scan_pallas.gradients(flat_a, h, flat_g, shape[2], reverse, kind)
  for ours, theirs in zip((h, da, dx), loop(a, x, g, reverse), strict=True):
    theirs = theirs.reshape(*theirs.shape[:-2], -1)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-6 * np.abs(theirs).max())


@settings(max_examples=8, deadline=None)
@given(
  st.sampled_from(['tpu', 'gpu']),
  st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 2), st.sampled_from([1, 5, 33, 64])),
  st.booleans(),
  st.booleans(),
  st.integers(0, 99),
)
def test_agrees_with_float64(kind, shape, varying, reverse, seed):
  check(kind, shape, varying, reverse, seed)


@pytest.mark.parametrize('reverse', [False, True])
@pytest.mark.parametrize('varying', [False, True])
@pytest.mark.parametrize('length', [64, 61])
def test_blocks_of_a_row_hand_over_their_state(varying, reverse, length, monkeypatch):
  """Blocks have 16 positions, and fill the row or not."""
  blocks = 5 if varying else 4  # of the kernel of the gradient, which has more
  monkeypatch.setattr(scan_pallas, '_BUFFERS', 16 * 2 * 4 * blocks * 128)
  check('tpu', (2, length, 2, 3), varying, reverse)


def test_blocks_divide_the_length_where_they_can():
  assert [scan_pallas._block(*sizes) for sizes in ((1000, 2048), (1024, 1024), (1001, 1024))] == [
    1000, 1024, 1008,
  ]  # fmt: skip
  assert scan_pallas._block(16384, 3000) == 2048
  assert scan_pallas._block(16000, 3000) == 2000
  assert scan_pallas._block(1009 * 8, 3000) == 3000  # no divisor: the last block is cut


@pytest.mark.parametrize('varying', [False, True])
@pytest.mark.parametrize('shape', [(4, 1024, 2, 128), (4, 1001, 1, 40)])
def test_lowers_for_gpus(shape, varying, a_gpu, monkeypatch):
  monkeypatch.setattr(scan_pallas, 'platform', lambda: 'gpu')
  x = jax.ShapeDtypeStruct(shape, jnp.float32)
  a = x if varying else jax.ShapeDtypeStruct(shape[2:], jnp.float32)

  def both(a, x, g):
    h, pull = jax.vjp(lambda a, x: scan_pallas.pallas_scan(a, x, False), a, x)
    return h, *pull(g)

  with a_gpu():
    text = jax.jit(both).trace(a, x, x).lower(lowering_platforms=('cuda',)).as_text()
  assert text.count('@__gpu$xla.gpu.triton') == 2
  assert {'linear_scan_states', 'linear_scan_gradients'} <= set(text.replace('"', ' ').split())
  assert 'stablehlo.transpose' not in text  # kernels read the arrays without a copy


@pytest.fixture(scope='module')
def compiled(for_tpus):
  """{case: {implementation: result of tpu_scan.py}} on 4 chips."""
  if sys.platform != 'linux' or platform.machine() != 'x86_64':
    pytest.skip('libtpu exists for Linux on x86-64 only')
  assert importlib.util.find_spec('libtpu'), "libtpu is missing: pip install -e '.[test]' brings it"

  def compile(topology, *implementations):
    command = [sys.executable, PROGRAM, topology, *implementations]
    run = subprocess.run(command, env=for_tpus, capture_output=True, text=True, timeout=900, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    actual = json.loads(run.stdout.splitlines()[-1])
    print(json.dumps(actual, indent=1))
    return actual

  return compile


@pytest.mark.parametrize('topology', ['v5e:2x2', pytest.param('v4:2x2x1', marks=pytest.mark.slow)])
def test_tpu_programs_move_little(topology, compiled):
  """Rows of a scan and its gradient are split without communication. The kernels make five passes over x
  (eight if a varies). The rest is the loss around them, the shift of da by one position, and the layout of
  few states."""
  for case, actual in compiled(topology, 'pallas').items():
    assert not actual['pallas']['collectives']
    assert actual['pallas']['bytes'] < {'odd': 14, 'varying': 15.5}.get(case, 7.5)


@pytest.mark.slow
def test_tpu_programs_move_less_than_the_tree(compiled):
  for actual in compiled('v5e:2x2', 'pallas', 'associative').values():
    assert actual['pallas']['bytes'] < actual['associative']['bytes'] / 5
    assert actual['pallas']['temporary'] <= actual['associative']['temporary']
