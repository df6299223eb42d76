"""Steps of diagonal plus rank-one systems and C-tilde, against dense float64 matrices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.ops import dplr

pytestmark = pytest.mark.usefixtures('optimized')

DTS = (1e-4, 1e-3, 1e-2, 1e-1)


@functools.cache
def system(kind):
  """dt [D], w, p, b [D, N], c [2, D, N]: D = 4 steps, N = 32 pairs; 'legs' from its dense definition."""
  rng = np.random.default_rng(0)

  def normal(*shape):
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)

  if kind == 'legs':
    n = np.arange(64)
    root = np.sqrt(2 * n + 1)
    a = -np.tril(np.outer(root, root), -1) - np.diag(n + 1.0)
    values, vectors = np.linalg.eig(a + np.outer(root, root) / 2)
    negative = values.imag < 0
    w, v = values[negative], vectors[:, negative].conj().T
    w, p, b = (np.tile(x, (4, 1)) for x in (w, v @ root / np.sqrt(2), v @ root))
  else:
    w, p, b = -0.5 + 1j * rng.uniform(-1300, 1300, (4, 32)), 0.01 * normal(4, 32), normal(4, 32)
  return np.float32(DTS), *(x.astype(np.complex64) for x in (w, p, b, normal(2, 4, 32)))


def dense(dt, w, p, b):
  """Abar [D, 2N, 2N] and Bbar [D, 2N], stored states first, then their conjugates."""
  w, p, b = (np.concatenate([x, x.conj()], -1).astype(complex) for x in (w, p, b))
  a = np.stack([np.diag(w) - np.outer(p, p.conj()) for w, p in zip(w, p, strict=True)])
  half, eye = np.float64(dt)[:, None, None] / 2 * a, np.eye(64)
  return np.linalg.solve(eye - half, eye + half), np.linalg.solve(
    eye - half, (np.float64(dt)[:, None] * b)[..., None]
  )[..., 0]


@pytest.mark.parametrize('kind', ['legs', 'resonant'])
def test_step(kind):
  dt, w, p, b, _ = system(kind)
  abar, bbar = dense(dt, w, p, b)
  rng = np.random.default_rng(1)
  state = (rng.normal(size=(3, 4, 32)) + 1j * rng.normal(size=(3, 4, 32))).astype(np.complex64)
  u = rng.normal(size=(3, 4)).astype(np.float32)
  actual = jax.jit(dplr.step)(state, u, dt, w, p, b)
  both = np.concatenate([state, state.conj()], -1)
  expected = np.einsum('dmn,bdn->bdm', abar, both) + bbar[None] * u[..., None]
  np.testing.assert_allclose(actual, expected[..., :32], atol=5e-6 * np.abs(expected).max())


@pytest.mark.parametrize('length', [1, 1000, 16384])
@pytest.mark.parametrize('kind, bound', [('legs', 5e-6), ('resonant', 2e-3)])
def test_truncated_output(kind, bound, length):
  """The bound is the error of float32 powers for states that turn by a radian per step and hardly decay."""
  dt, w, p, b, c = system(kind)
  truncate = jax.jit(functools.partial(dplr.truncate_output, length=length))
  truncated = np.asarray(truncate(c, dt, w, p))
  power = np.linalg.matrix_power(dense(dt, w, p, b)[0], length)
  both = np.concatenate([c, c.conj()], -1).astype(complex)
  expected = (both - np.einsum('sdm,dmn->sdn', both, power))[..., :32]
  scale = np.abs(expected).max(axis=(0, 2), keepdims=True)  # of every channel by itself
  np.testing.assert_allclose(truncated / scale, expected / scale, atol=bound)
  back = jax.jit(functools.partial(dplr.untruncate_output, length=length))(truncated, dt, w, p)
  np.testing.assert_allclose(back, c, atol=2e-5 * np.abs(c).max() if kind == 'legs' else 1e-3)


def test_gradients_of_truncation():
  """Compares directional derivatives with differences in float64."""
  dt, w, p, b, c = system('legs')
  d_out = np.random.default_rng(2).normal(size=c.shape).astype(np.float32)

  def loss(c, dt, w, p):
    return jnp.sum(dplr.truncate_output(c, dt, w, p, length=200).real * d_out)

  gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(c, dt, w, p)

  def exact(c, dt, w, p):
    both = np.concatenate([c, c.conj()], -1)
    power = np.linalg.matrix_power(dense(dt, w, p, b)[0], 200)
    return np.sum((both - np.einsum('sdm,dmn->sdn', both, power))[..., :32].real * d_out)

  arguments = [np.complex128(c), np.float64(dt), np.complex128(w), np.complex128(p)]
  for place, gradient in enumerate(gradients):
    direction = np.random.default_rng(place).normal(size=gradient.shape) * arguments[place] * 1e-6
    ahead, behind = (
      exact(*(x + step if i == place else x for i, x in enumerate(arguments)))
      for step in (direction, -direction)
    )
    slope = (ahead - behind) / 2
    terms = (np.asarray(gradient) * direction).real
    np.testing.assert_allclose(terms.sum(), slope, atol=1e-4 * np.abs(terms).sum())


def test_a_length_below_one_is_refused():
  dt, w, p, _, c = system('legs')
  with pytest.raises(ValueError, match='length of a kernel is 0'):
    dplr.truncate_output(c, dt, w, p, length=0)
