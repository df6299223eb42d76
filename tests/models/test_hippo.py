"""HiPPO-LegS against its definition, and the S4D formulas; test_s4.py has numbers of the published code."""

import numpy as np
import pytest

from lra_spt.models import hippo


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
