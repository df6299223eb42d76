"""Structured initial values of state-space models: HiPPO-LegS and its diagonal approximations.

The host computes them in float64; models round once to float32. Sources: Gu et al. 2020 (HiPPO), Gu, Goel and
Re 2022 (S4, appendix C.1), Gu et al. 2022 (S4D, section 4), published code `hippo.py:64-72,140-142,195-258`.
"""

import dataclasses
import functools

import numpy as np

from lra_spt.errors import ConfigError

DIAGONALS = ('legs', 'lin', 'inv')


@dataclasses.dataclass(frozen=True, eq=False)
class Legs:
  """HiPPO-LegS of N states in the basis that makes A + P P^T diagonal, with one state of every conjugate
  pair: A ~ diag(w) - p p^*, B ~ b.

  w, p, b: complex128 [N/2]. v: complex128 [N, N/2], the eigenvectors of these states as columns, so that
  p = v^* P and b = v^* B. The real parts of w are -1/2, the imaginary parts negative and ascending.
  """

  w: np.ndarray
  p: np.ndarray
  b: np.ndarray
  v: np.ndarray


def legs_matrices(states: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """A [N, N], B [N] and P [N] of HiPPO-LegS, float64: A_nk = -sqrt(2n+1) sqrt(2k+1) below the diagonal,
  -(n+1) on it, 0 above; B_n = sqrt(2n+1); P = B / sqrt(2)."""
  b_N = np.sqrt(2 * np.arange(states) + 1)
  a_NN = -np.tril(np.outer(b_N, b_N), -1) - np.diag(np.arange(states) + 1.0)
  return a_NN, b_N, b_N / np.sqrt(2)


@functools.cache
def legs(states: int) -> Legs:
  """HiPPO-LegS in diagonal plus low-rank form; `states` counts both halves of the conjugate pairs.

  Raises:
    ConfigError: `states` is not a positive even number.
  """
  _check(states)
  a_NN, b_N, p_N = legs_matrices(states)
  normal_NN = a_NN + np.outer(p_N, p_N)  # -1/2 on the diagonal, skew-symmetric off it
  imaginary_N, v_NN = np.linalg.eigh(-1j * normal_NN - 0.5j * np.eye(states))
  v_NM = v_NN[:, imaginary_N < 0]
  w_M = -0.5 + 1j * imaginary_N[imaginary_N < 0]
  return Legs(w_M, v_NM.conj().T @ p_N, v_NM.conj().T @ b_N, v_NM)


def diagonal(kind: str, states: int) -> np.ndarray:
  """Eigenvalues complex128 [N/2] of a diagonal A (S4D, section 4): 'legs' as in `legs`, 'lin'
  -1/2 + i pi n, 'inv' -1/2 + i N/pi (N/(2n+1) - 1).

  Raises:
    ConfigError: another kind, or `states` is not a positive even number.
  """
  _check(states)
  n_M = np.arange(states // 2)
  if kind == 'legs':
    return legs(states).w
  if kind == 'lin':
    return -0.5 + 1j * np.pi * n_M
  if kind == 'inv':
    return -0.5 + 1j * states / np.pi * (states / (2 * n_M + 1) - 1)
  raise ConfigError(f'model.mixer.init is {kind!r}; choose one of {", ".join(DIAGONALS)}')


def circle(systems: int, states: int) -> np.ndarray:
  """Angles float64 [systems, N/2] that divide the half circle evenly: those of system h are
  2 pi (n + h / systems) / N (S4D-DFouT, arXiv 2508.20441, section 4.2, for real inputs).

  Raises:
    ConfigError: `states` is not a positive even number.
  """
  _check(states)
  return 2 * np.pi / states * (np.arange(states // 2)[None] + np.arange(systems)[:, None] / systems)


def _check(states: int) -> None:
  if states < 2 or states % 2:
    raise ConfigError(
      f'model.mixer.state_size is {states}; states come in conjugate pairs, so choose an even number from 2'
    )
