"""Long convolution by Fourier transforms: every channel has its own kernel, as long as the sequence.

A two-sided kernel becomes one circular kernel, with lags t >= 0 at its front and lags -t at its back, so it
costs as much as a causal one. Channels do not mix. Where the arrays of all channels would be large, groups of
channels are processed one after the other.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from lra_spt.distributed.sharding import platform
from lra_spt.ops import fourier, selection

# float32 values of one zero-padded array of a group of channels. CPU: several groups at any size, because
# without a loop XLA fuses the operations around a transposition into it, which is slow (measured:
# benchmarks/ssm.py). Accelerators: enough to be busy. A TPU needs less, because its loops cost no launches.
_GROUP = {'cpu': 2**18, 'tpu': 2**22}
_ACCELERATOR_GROUP = 2**24


def fft_conv(u_BLD: jax.Array, kernel_SDL: jax.Array, *, implementation: str | None = None) -> jax.Array:
  """y_t = sum_j k0_j u_{t-j}, and with two directions + sum_j k1_j u_{t+1+j}; u is 0 outside of 0..L-1.

  The convolution of state-space models (Gu, Goel and Re 2022, S4, section 2.4; two-sided: Goel et al. 2022,
  "It's Raw!", section 4). Computed in float32. Works under jit, vmap, scan, checkpoint and shard_map (rows of
  the batch split over devices, the kernel whole). Differentiable once, in reverse mode; the backward pass
  keeps only the two arguments.

  Args:
    u_BLD: inputs, floating point.
    kernel_SDL: floating point [S, D, any length]: S = 1 causal (k0); S = 2 with the anti-causal k1 as well,
      which starts at lag 1. Lags beyond the sequence are ignored; missing ones are 0.
    implementation: implementation of the Fourier transforms, 'fft' or 'matmul'. None: 'fft' on CPUs;
      elsewhere the one that `lra_spt.training.autotune` has verified or, before that, 'matmul' on TPUs and
      'fft' on GPUs.

  Returns:
    Array [B, L, D] of the dtype of u.

  Raises:
    ValueError: an unknown implementation, or shapes or dtypes that do not fit together.
  """
  _check(u_BLD, kernel_SDL)
  if implementation is None:
    implementation = _selected(u_BLD, kernel_SDL)
  else:
    selection.named('long convolution', implementation)
  B, L, D = u_BLD.shape
  causal = min(kernel_SDL.shape[2], L)
  anticausal = min(kernel_SDL.shape[2], L - 1) if kernel_SDL.shape[0] == 2 else 0
  n = fourier.fast_length(L + max(causal - 1, anticausal), implementation)
  values = _GROUP.get(platform(), _ACCELERATOR_GROUP)
  channels = _largest_divisor(D, values // (B * n))
  by_rows = platform() == 'tpu' and channels < D and D * n <= values
  rows = _largest_divisor(B, values // (D * n)) if by_rows else 0
  return _convolve(_ConvolutionPlan(n, causal, anticausal, rows, channels, implementation), u_BLD, kernel_SDL)


def _largest_divisor(n: int, limit: int) -> int:
  return max(d for d in range(1, n + 1) if n % d == 0 and (d == 1 or d <= limit))


def _selected(u, kernel) -> str | None:
  """Returns the implementation that `selection` picks on accelerators, None on CPUs."""
  if platform() == 'cpu':
    return None
  candidates = ('matmul', 'fft') if platform() == 'tpu' else ('fft', 'matmul')
  sizes = (('u', u.shape[1:], u.dtype.name, True), ('kernel', kernel.shape, kernel.dtype.name, False))
  return selection.select(
    selection.Call('long convolution', sizes, (), u.shape[0], candidates, candidates[0])
  )


def _check(u, kernel):
  """Raises ValueError where the arrays do not fit together."""
  if u.ndim != 3 or kernel.ndim != 3 or kernel.shape[0] not in (1, 2) or kernel.shape[1] != u.shape[2]:
    raise ValueError(
      f'fft_conv got inputs {u.shape} and a kernel {kernel.shape}; pass inputs [B, L, D] and a kernel '
      '[1 or 2, D, lags]'
    )
  if 0 in u.shape or 0 in kernel.shape:
    raise ValueError(
      f'fft_conv got an empty array: inputs {u.shape}, kernel {kernel.shape}; every size must be at least 1'
    )
  if not (jnp.issubdtype(u.dtype, jnp.floating) and jnp.issubdtype(kernel.dtype, jnp.floating)):
    raise ValueError(
      f'fft_conv got inputs of {u.dtype} and a kernel of {kernel.dtype}; both must be floating point'
    )


@dataclasses.dataclass(frozen=True)
class _ConvolutionPlan:
  """The static part of a call; hashable."""

  n: int  # length of the transform
  causal: int  # lags used of the causal kernel
  anticausal: int  # lags used of the anti-causal kernel
  rows: int  # of a group in the backward pass; 0: it has groups of channels too
  channels: int  # of a group
  implementation: str | None  # of the transforms

  def spectrum(self, x):
    return fourier.rdft(x.astype(jnp.float32), self.n, self.implementation)

  def signal(self, spectrum, length):
    return fourier.irdft(spectrum, self.n, self.implementation, length=length)

  def circular(self, kernel_SDL):
    """The kernel as one signal [D, causal or n], lag -j at n - j."""
    causal_DL = kernel_SDL[0, :, : self.causal]
    if not self.anticausal:
      return causal_DL
    anticausal_DL = jnp.flip(kernel_SDL[1, :, : self.anticausal], axis=1)
    gap = self.n - self.causal - self.anticausal
    return jnp.concatenate([jnp.pad(causal_DL, ((0, 0), (0, gap))), anticausal_DL], axis=1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _convolve(plan, u_BLD, kernel_SDL):
  def group(u_BLD, kernel_SDL):
    product_BDK = plan.spectrum(u_BLD.swapaxes(1, 2)) * plan.spectrum(plan.circular(kernel_SDL))[None]
    y_BDL = plan.signal(product_BDK, u_BLD.shape[1])
    return (y_BDL.swapaxes(1, 2).astype(u_BLD.dtype),)

  return _each_group(plan, group, (u_BLD, kernel_SDL), like=(u_BLD,))[0]


def _convolve_forward(plan, u_BLD, kernel_SDL):
  return _convolve(plan, u_BLD, kernel_SDL), (u_BLD, kernel_SDL)


def _convolve_backward(plan, arguments, dy_BLD):
  """Correlations of dy with the kernel and, summed over rows, with u."""

  def group(u_BLD, kernel_SDL, dy_BLD):
    kernel_DL, circular_transpose = jax.vjp(plan.circular, kernel_SDL)
    dy_BDK = plan.spectrum(dy_BLD.swapaxes(1, 2))
    du_BDL = plan.signal(dy_BDK * jnp.conj(plan.spectrum(kernel_DL))[None], u_BLD.shape[1])
    dkernel_DK = jnp.sum(dy_BDK * jnp.conj(plan.spectrum(u_BLD.swapaxes(1, 2))), axis=0)
    dkernel_DL = plan.signal(dkernel_DK, kernel_DL.shape[1])
    (dkernel_SDL,) = circular_transpose(dkernel_DL.astype(kernel_SDL.dtype))
    return du_BDL.swapaxes(1, 2).astype(u_BLD.dtype), dkernel_SDL

  # Without the barrier XLA may merge the transforms of u, and hold its spectrum from the forward to the
  # backward pass. On CPUs it does so anyway if all channels are one group; that is fast, and the array small.
  u_BLD, kernel_SDL = lax.optimization_barrier(arguments)
  return _each_group(plan, group, (u_BLD, kernel_SDL, dy_BLD), like=arguments, rows=plan.rows)


_convolve.defvjp(_convolve_forward, _convolve_backward)


def _each_group(plan, function, arrays, like, rows=0):
  """Applies function(*arrays) to groups of `rows` rows or, if that is 0, of channels. The arrays `like` have
  the shapes and dtypes of the results."""
  B, _, D = arrays[0].shape
  size, whole, axes = plan.channels, D, (2, 1, 2)  # axes of inputs, kernel, and gradients of outputs
  if rows:
    size, whole, axes = rows, B, (0, None, 0)  # all rows share the kernel: its gradient is a sum over rows
  if size == whole:
    return function(*arrays)

  def cut(x, start, axis):
    return x if axis is None else lax.dynamic_slice_in_dim(x, start, size, axis)

  def put(result, part, start, axis):
    return result + part if axis is None else lax.dynamic_update_slice_in_dim(result, part, start, axis)

  def step(group, results):
    start = group * size
    parts = function(*(cut(x, start, axis) for x, axis in zip(arrays, axes, strict=False)))
    return tuple(put(x, y, start, axis) for x, y, axis in zip(results, parts, axes, strict=False))

  return lax.fori_loop(0, whole // size, step, tuple(jnp.zeros_like(x) for x in like))
