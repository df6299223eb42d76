"""HiPPO-LegS against golden values of the published code, its definition, and the S4D formulas."""

import numpy as np
import pytest

from lra_spt.models import hippo


def test_golden_values():
  """The published code printed these values. Phases of b and p depend on the eigenvectors and are free."""
  four = hippo.legs(4)
  np.testing.assert_allclose(four.w, -0.5 - 1j * np.array([4.60329, 0.55650]), atol=1e-5)
  np.testing.assert_allclose(np.abs(four.p), [1.87950, 0.68372], atol=1e-5)
  np.testing.assert_allclose(np.abs(four.b), [2.65801, 0.96693], atol=1e-5)
  eight = hippo.legs(8)
  np.testing.assert_allclose(eight.w.imag, [-19.85741, -5.35421, -1.95779, -0.42749], atol=1e-5)
  np.testing.assert_allclose(np.abs(eight.p), [3.64558, 1.30381, 0.83082, 0.56531], atol=1e-5)
  np.testing.assert_allclose(np.abs(eight.b), [5.15563, 1.84387, 1.17496, 0.79946], atol=1e-5)
  large = hippo.legs(64)
  np.testing.assert_allclose(large.w.imag[[0, -1]], [-1303.27, -0.26386], rtol=2e-5)
  assert large.w.shape == large.p.shape == large.b.shape == (32,)
  assert large.v.shape == (64, 32)


@pytest.mark.parametrize('states', [2, 6, 64])
def test_the_stored_half_gives_the_whole_system(states):
  """A = V diag(w) V^* + conj. - P P^T, with dense matrices from their definition."""
  n = np.arange(states)
  a = np.where(n[:, None] > n, -np.sqrt((2 * n[:, None] + 1) * (2 * n + 1)), 0) - np.diag(n + 1.0)
  b, p = np.sqrt(2 * n + 1), np.sqrt(n + 0.5)
  half = hippo.legs(states)
  normal = 2 * ((half.v * half.w) @ half.v.conj().T).real
  scale = np.abs(a).max()
  np.testing.assert_allclose(normal - np.outer(p, p), a, atol=1e-10 * scale)
  np.testing.assert_allclose(2 * (half.v @ half.b).real, b, atol=1e-9)
  np.testing.assert_allclose(2 * (half.v @ half.p).real, p, atol=1e-9)


def test_diagonals_of_s4d():
  np.testing.assert_allclose(hippo.diagonal('lin', 6), -0.5 + 1j * np.pi * np.array([0, 1, 2]))
  # N = 4: 4/pi (4/1 - 1), 4/pi (4/3 - 1).
  np.testing.assert_allclose(hippo.diagonal('inv', 4), -0.5 + 1j * 4 / np.pi * np.array([3, 1 / 3]))
  np.testing.assert_array_equal(hippo.diagonal('legs', 8), hippo.legs(8).w)


def test_bad_input():
  with pytest.raises(ValueError, match='state_size is 5; states come in conjugate pairs'):
    hippo.legs(5)
  with pytest.raises(ValueError, match="init is 'legt'; choose one of legs, lin, inv"):
    hippo.diagonal('legt', 4)
