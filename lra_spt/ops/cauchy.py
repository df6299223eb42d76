"""Convolution kernels of diagonal plus rank-one state-space models (S4), through their generating function.

A system has N pairs of conjugate states, A = diag(w) - P Q^T over the 2N states with Q = conj(P). With the
bilinear discretisation at step dt (Gu, Goel and Re 2022, S4, section 2.3) its kernel is K_l = C Abar^l Bbar.
With C-tilde = (I - Abar^L)^T C, the kernel's DFT of length L is a rational function without any power of Abar
(S4, appendix C.3). At the root of unity omega = exp(-i theta) this function needs
z = 2 (1 - omega) / (1 + omega) = i t with t = 2 tan(theta / 2), and 2 / (1 + omega) = 1 + i t / 2:

    DFT(K) = (1 + i t/2) C-tilde (i t - dt A)^-1 dt B = (1 + i t/2) (r_BC - r_BQ r_PC / (1 + r_PQ)),
    r_v = sum over states of dt v / (i t - dt w) = sum over pairs of (even_v + i t odd_v) / den,
    odd_v = 2 dt Re v,   even_v = 2 dt (alpha Re v - beta Im v),   dt w = -alpha + i beta,
    den = alpha^2 + beta^2 - t^2 + 2 i t alpha.

All sums share the denominators, and t is real. They are therefore real matrix products with two real arrays
over pairs and nodes, which are computed block by block and never stored.

Near a resonance, t ~ beta, the difference t - beta is small. Therefore beta and t are held as pairs of
float32, which keeps the difference accurate to 2^-35 of beta. The node omega = -1 (t infinite) is evaluated
at t = 2^24, where the function has long reached its limit: the deviation is |dt w| / t.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_spt.distributed.sharding import platform
from lra_spt.ops.fourier import frequencies, irdft

_FAR = 2.0**24
# Values in one real array of pairs and nodes. A block makes about ten such arrays, more in the backward pass.
# CPU: measured; they fit the caches, and the loop over blocks costs little. Accelerators need large blocks to
# be busy. A TPU's loops cost no launches, so the blocks of its backward pass are small enough that all arrays
# stay in vector memory. In the forward pass such small blocks move more data: XLA then places the input of
# the convolution there too, and moves it out and in again for every group of channels (compiled:
# benchmarks/compiled.py).
_BLOCK = {'cpu': 2**18}
_TPU_BACKWARD_BLOCK = 2**20
_ACCELERATOR_BLOCK = 2**23


def dplr_kernel(
  dt_D, w_DN, p_DN, b_DN, c_SDN, *, length: int, implementation: str | None = None
) -> jax.Array:
  """Kernels of D single-input systems with N conjugate pairs of states each.

  Args:
    dt_D: float32 [D], step, positive.
    w_DN: complex64 [D, N], one of each pair of diagonal entries; real parts negative.
    p_DN: complex64 [D, N], low-rank term: A = diag(w) - P P^*.
    b_DN: complex64 [D, N], input vector.
    c_SDN: complex64 [S, D, N], S output vectors per channel as C-tilde = (I - Abar^length)^T C, see
      `lra_spt.ops.dplr`. K_l is real, because it sums over the 2N states of all pairs.
    length: L, number of kernel values.
    implementation: implementation of the inverse DFT, see `lra_spt.ops.fourier.frequencies`.

  Returns:
    float32 [S, D, L].

  Raises:
    ValueError: shapes do not fit, or L < 1; also as for `lra_spt.ops.fourier.frequencies`.
  """
  shape = w_DN.shape
  if dt_D.shape != shape[:1] or p_DN.shape != shape or b_DN.shape != shape or c_SDN.shape[1:] != shape:
    raise ValueError(
      f'dplr_kernel got dt {dt_D.shape}, w {shape}, p {p_DN.shape}, b {b_DN.shape}, c {c_SDN.shape}; give '
      '[D], three times [D, N] and [S, D, N]'
    )
  plan = _plan(*shape, length, implementation)
  spectrum_DSK = _spectrum(plan, dt_D, w_DN, p_DN, b_DN, jnp.swapaxes(c_SDN, 0, 1))
  return irdft(jnp.swapaxes(spectrum_DSK, 0, 1), length, implementation)


@dataclasses.dataclass(frozen=True)
class _SpectrumPlan:
  """The static part of a call; hashable."""

  length: int  # of the kernel
  implementation: str | None  # of the DFT
  K: int  # number of nodes
  channels: int  # in a block
  nodes: int  # in a block


def _plan(width, pairs, length, implementation, backward=False):
  size = _BLOCK.get(platform(), _ACCELERATOR_BLOCK)
  if backward and platform() == 'tpu':
    size = _TPU_BACKWARD_BLOCK
  K = len(frequencies(length, implementation))
  pieces = -(-K * pairs // size)
  nodes = K if pieces == 1 else -(-K // (16 * pieces)) * 16
  channels = max(d for d in range(1, width + 1) if width % d == 0 and (d == 1 or d * nodes * pairs <= size))
  return _SpectrumPlan(length, implementation, K, channels, nodes)


def _nodes(plan):
  """t of every node as a pair of float32 [J, nodes]; t = 0 beyond the spectrum."""
  k_K = frequencies(plan.length, plan.implementation)
  t_K = np.clip(2 * np.tan(np.pi * (k_K / plan.length)), -_FAR, _FAR)
  t_JK = np.pad(t_K, (0, -len(t_K) % plan.nodes)).reshape(-1, plan.nodes)
  high_JK = t_JK.astype(np.float32)
  return jnp.asarray(high_JK), jnp.asarray((t_JK - high_JK).astype(np.float32))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _spectrum(plan, dt_D, w_DN, p_DN, b_DN, c_DSN):
  """complex64 [D, S, K], the DFT of the kernels."""

  def channels(system):
    S = system[-1].shape[1]
    poles, numerators = _poles(*system[:2]), _numerators(*system)

    def nodes(t):
      r_DVK = _sums(poles, numerators, t)
      feedback_D1K = _divide(r_DVK[:, -2:-1], 1 + r_DVK[:, -1:])
      return _half_circle(t) * (r_DVK[:, :S] - feedback_D1K * r_DVK[:, S:-2])

    return _join(_over_nodes(nodes, _nodes(plan)), plan.K)

  return _over_channels(channels, (dt_D, w_DN, p_DN, b_DN, c_DSN), plan.channels)


def _spectrum_forward(plan, *system):
  return _spectrum(plan, *system), system


def _spectrum_backward(plan, system, d_spectrum_DSK):
  """Computes the gradients by the adjoint system.

  With x = (i t - dt A)^-1 dt B, u = (i t - dt A)^-T G C and G the gradient of C x, summed over nodes:

    d(dt w) = u x,  d(dt B) = u,  dC = G x,  d(dt P) = -u (Q x),  dQ = -x (P u),  d(dt) = i t u x / dt.

  The last one holds because C x depends on t / dt alone. Differentiating the sums r_v would subtract large
  numbers twice where P moves a resonance, which loses four digits of d(dt) in HiPPO systems.
  """

  width, pairs = system[1].shape
  plan = _plan(width, pairs, plan.length, plan.implementation, backward=True)

  def channels(block):
    *system, d_spectrum_DSK = block
    dt_D, w_DN, p_DN, b_DN, c_DSN = system
    D = len(dt_D)
    poles, (even_DVN, odd_DVN) = _poles(dt_D, w_DN), _numerators(*system)
    numerators = even_DVN[:, c_DSN.shape[1] :], odd_DVN[:, c_DSN.shape[1] :]  # without r_BC
    step_D11 = dt_D[:, None, None].astype(jnp.complex64)
    input_DMV = _both_states(step_D11 * jnp.stack([b_DN, -p_DN], axis=-1))
    output_DMV = _both_states(jnp.moveaxis(jnp.concatenate([c_DSN, -jnp.conj(p_DN)[:, None]], axis=1), 1, 2))

    def nodes(block):
      t, d_spectrum_DSK = block
      r_DVK = _sums(poles, numerators, t)
      pu_DSK, qx_D1K = (_divide(r, 1 + r_DVK[:, -1:]) for r in (r_DVK[:, :-2], r_DVK[:, -2:-1]))
      gain_DSK = _half_circle(t) * d_spectrum_DSK
      drive_DVK = jnp.concatenate([jnp.ones_like(qx_D1K), qx_D1K], axis=1)
      gain_DVK = jnp.concatenate([gain_DSK, jnp.sum(gain_DSK * pu_DSK, axis=1, keepdims=True)], axis=1)
      inverse_DMK = _inverse(poles, t)
      x_DMK = _multiply(_product(input_DMV, drive_DVK), inverse_DMK)
      u_DMK = _multiply(_product(output_DMV, gain_DVK), inverse_DMK)
      powers_DVK = jnp.broadcast_to(jnp.stack([jnp.ones_like(t[0]), t[0]]), (D, 2, len(t[0])))
      products_DVK = (drive_DVK[:, :, None] * gain_DVK[:, None]).reshape(D, -1, len(t[0]))
      return _contract(_multiply(u_DMK, x_DMK), powers_DVK), _contract(inverse_DMK, products_DVK)

    d_pole_DMV, moments_DMV = _sum_over_nodes(nodes, (_nodes(plan), _cut(d_spectrum_DSK, plan.nodes)))
    # u = inverse * output * gain and x = inverse * input * drive; the moments sum inverse * drive * gain.
    moments_DMXU = moments_DMV.reshape(*input_DMV.shape, -1)
    d_input_DVN = jnp.moveaxis(_fold(jnp.sum(moments_DMXU * output_DMV[:, :, None], axis=3)), 2, 0)
    d_output_DMV = jnp.sum(moments_DMXU * input_DMV[..., None], axis=2)
    d_w_DN, d_b_DN, d_p_DN = (step_D11[..., 0] * d for d in (_fold(d_pole_DMV[..., 0]), *d_input_DVN))
    d_output_DSN = jnp.moveaxis(_fold(d_output_DMV), 2, 1)
    d_dt_D = -jnp.sum(d_pole_DMV[..., 1].imag, axis=1) / dt_D
    return d_dt_D, d_w_DN, -d_p_DN - jnp.conj(d_output_DSN[:, -1]), d_b_DN, d_output_DSN[:, :-1]

  return _over_channels(channels, (*system, d_spectrum_DSK), plan.channels)


_spectrum.defvjp(_spectrum_forward, _spectrum_backward)


def _poles(dt_D, w_DN):
  """alpha and beta of dt w = -alpha + i beta, beta as a pair of float32; [D, N, 1]."""
  step_D11, w_DN1 = dt_D[:, None, None], w_DN[..., None]
  return -step_D11 * w_DN1.real, *_exact_product(step_D11, w_DN1.imag)


def _exact_product(x, y):
  """x * y as a sum of two float32, accurate to 2^-35 of it: the leading 12 bits, and the rest.

  Leading parts are made by cutting bits and not by rounding, so that no compiler can contract them with other
  operations.
  """

  def leading(x):
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return lax.bitcast_convert_type(bits & jnp.uint32(0xFFFFF000), jnp.float32)

  high_x, high_y, high = leading(x), leading(y), leading(x * y)
  low_x, low_y = x - high_x, y - high_y
  return high, (high_x * high_y - high) + (high_x * low_y + (low_x * high_y + low_x * low_y))


def _numerators(dt_D, w_DN, p_DN, b_DN, c_DSN):
  """even_v and odd_v, float32 [D, V, N], of v = B C (one for each C), P C, B Q, P Q."""
  q_D1N, p_D1N, b_D1N = jnp.conj(p_DN)[:, None], p_DN[:, None], b_DN[:, None]
  v_DVN = jnp.concatenate([b_D1N * c_DSN, p_D1N * c_DSN, b_D1N * q_D1N, p_D1N * q_D1N], axis=1)
  odd_DVN = 2 * dt_D[:, None, None] * v_DVN.real
  # alpha Re v - beta Im v = -Re(v conj(dt w))
  return -2 * (dt_D * dt_D)[:, None, None] * (v_DVN * jnp.conj(w_DN)[:, None]).real, odd_DVN


def _sums(poles, numerators, t):
  """r_v of all pairs, complex64 [D, V, K]."""
  alpha_DN1, high_DN1, low_DN1 = poles
  t_11K, low_11K = t[0][None, None], t[1][None, None]
  even_DVN, odd_DVN = numerators
  both_DWN = jnp.concatenate([even_DVN, odd_DVN], axis=1)
  # den = X + i Y; Re(1 / den) = X / |den|^2, Im(1 / den) = -2 t alpha / |den|^2.
  low_DN1, low_11K = low_DN1 * jnp.sign(high_DN1), low_11K * jnp.sign(t_11K)
  distance_DNK = (jnp.abs(high_DN1) - jnp.abs(t_11K)) + (low_DN1 - low_11K)
  x_DNK = alpha_DN1 * alpha_DN1 + distance_DNK * ((jnp.abs(high_DN1) + low_DN1) + jnp.abs(t_11K))
  squared_DNK = 1 / (x_DNK * x_DNK + (alpha_DN1 * alpha_DN1) * (4 * t_11K * t_11K))
  x_DWK = _dot('dwn,dnk->dwk', both_DWN, x_DNK * squared_DNK)
  y_DWK = _dot('dwn,dnk->dwk', both_DWN * jnp.swapaxes(alpha_DN1, 1, 2), squared_DNK)
  (even_x, odd_x), (even_y, odd_y) = (jnp.split(z, 2, axis=1) for z in (x_DWK, y_DWK))
  return lax.complex(even_x + 2 * t_11K * t_11K * odd_y, t_11K * (odd_x - 2 * even_y))


def _inverse(poles, t):
  """1 / (i t - dt w) of both states of every pair: real and imaginary part [D, M, K], M = 2N."""
  alpha_DM1, high_DM1, low_DM1 = (
    jnp.concatenate([x, sign * x], axis=1) for x, sign in zip(poles, (1, -1, -1), strict=True)
  )
  distance_DMK = (t[0][None, None] - high_DM1) + (t[1][None, None] - low_DM1)
  scale_DMK = 1 / (alpha_DM1 * alpha_DM1 + distance_DMK * distance_DMK)
  return alpha_DM1 * scale_DMK, -distance_DMK * scale_DMK


def _both_states(x_DNV):
  """The values of the N stored states, then those of their conjugates."""
  return jnp.concatenate([x_DNV, jnp.conj(x_DNV)], axis=1)


def _fold(d_DM):
  """The gradient of the N stored states from that of all 2N."""
  stored, conjugate = jnp.split(d_DM, 2, axis=1)
  return stored + jnp.conj(conjugate)


def _half_circle(t):
  """2 / (1 + omega)."""
  return lax.complex(jnp.ones_like(t[0]), t[0] / 2)[None, None]


def _divide(x, y):
  """x / y of complex numbers that neither overflow nor underflow when squared."""
  scale = 1 / (y.real * y.real + y.imag * y.imag)
  return x * lax.complex(y.real * scale, -y.imag * scale)


def _multiply(x, y):
  """Product of complex numbers given as (real, imaginary)."""
  return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def _product(m_DMV, v_DVK):
  """Complex matrix product, as (real, imaginary)."""
  re, im = m_DMV.real, m_DMV.imag
  m_real = jnp.concatenate([jnp.concatenate([re, -im], axis=2), jnp.concatenate([im, re], axis=2)], axis=1)
  parts = _dot('dmv,dvk->dmk', m_real, jnp.concatenate([v_DVK.real, v_DVK.imag], axis=1))
  return jnp.split(parts, 2, axis=1)


def _contract(x, v_DVK):
  """sum_k x_mk v_vk, complex64 [D, M, V]; x is (real, imaginary), v complex or real."""
  if not jnp.iscomplexobj(v_DVK):
    return lax.complex(*(_dot('dmk,dvk->dmv', part, v_DVK) for part in x))
  both_DWK = jnp.concatenate([v_DVK.real, v_DVK.imag], axis=1)
  (rr, ri), (ir, ii) = (jnp.split(_dot('dmk,dwk->dmw', part, both_DWK), 2, axis=2) for part in x)
  return lax.complex(rr - ii, ri + ir)


def _dot(subscripts, x, y):
  return jnp.einsum(subscripts, x, y, precision=lax.Precision.HIGHEST)


def _over_channels(function, arrays, channels):
  """Applies `function` to blocks of channels (axis 0), one block after the other."""
  D = arrays[0].shape[0]
  if channels == D:
    return function(arrays)
  blocks = jax.tree.map(lambda x: x.reshape(D // channels, channels, *x.shape[1:]), arrays)
  return jax.tree.map(lambda x: x.reshape(D, *x.shape[2:]), lax.map(function, blocks))


def _over_nodes(function, xs):
  """lax.map, without a loop around a single block."""
  if xs[0].shape[0] > 1:
    return lax.map(function, xs)
  return function(jax.tree.map(lambda x: x[0], xs))[None]


def _sum_over_nodes(function, xs):
  """Sums the results of `function` over blocks of nodes."""
  start = function(jax.tree.map(lambda x: x[0], xs))
  if len(xs[-1]) == 1:
    return start

  def add(totals, block):
    return jax.tree.map(jnp.add, totals, function(block)), None

  return lax.scan(add, start, jax.tree.map(lambda x: x[1:], xs))[0]


def _cut(x_DSK, nodes):
  """Blocks of nodes [J, D, S, nodes], zeros beyond the spectrum."""
  D, S, K = x_DSK.shape
  padded = jnp.pad(x_DSK, ((0, 0), (0, 0), (0, -K % nodes)))
  return jnp.moveaxis(padded.reshape(D, S, -1, nodes), 2, 0)


def _join(x_JDSK, K):
  """The inverse of `_cut`."""
  J, D, S, nodes = x_JDSK.shape
  return jnp.moveaxis(x_JDSK, 0, 2).reshape(D, S, J * nodes)[..., :K]
