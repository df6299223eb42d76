"""Linear recurrences as Pallas kernels that read and write every number once: one for the states, one for
both gradients. They are tested in the interpreter on CPUs, compiled for TPUs and lowered for GPUs, but have
run on neither.

TPU: a program owns a row; its chunks of positions follow each other and pass on one state. Eight positions,
the sublanes of a register, are one small scan of three steps (Hillis and Steele 1986), whose factors, powers
of a constant a, are computed once. The power that takes a state from one register to the next is a pair of
floats: a rounded one is wrong in the same direction every time.
GPU (through Triton): a program owns a row and 32 states, one per thread, and walks the positions. Operands of
several steps are loaded ahead, so the walk waits for arithmetic and not for memory.

Within a kernel a number is the tuple of its components; J is their total number, C N.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plgpu

from lra_spt.distributed.sharding import platform
from lra_spt.ops.components import adjoint, powers_in_parts, times

_ROWS = 8  # positions of a register of a TPU
_LANES = 128
_BUFFERS = 6 * 2**20  # bytes of a TPU's vector memory for blocks, each of which is there twice
_THREADS = 32  # states of a program on a GPU
_AHEAD = 8  # positions whose loads are in flight there


def pallas_scan(a, x_BLCN: jax.Array, reverse: bool, save_states: bool = False) -> jax.Array:
  """h [B, L, C, N] of h_t = a_t h_{t-1} + x_t, differentiable in reverse mode.

  a is [C, N] or in the shape of x; for save_states see `scan.linear_scan`. Arrays that kernels read, and
  those saved for the gradient, have components and states on one axis, as matrix products do. With an axis of
  2, TPUs would copy them to another layout.
  """
  flat = lambda v: v.reshape(*v.shape[:-2], -1)  # noqa: E731
  return _scan(reverse, x_BLCN.shape[2], save_states, flat(a), flat(x_BLCN)).reshape(x_BLCN.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _scan(reverse, components, save_states, a, x_BLJ):
  return states(a, x_BLJ, components, reverse)


def _scan_forward(reverse, components, save_states, a, x_BLJ):
  h_BLJ = states(a, x_BLJ, components, reverse)
  h_BLJ = checkpoint_name(h_BLJ, 'mixer') if save_states else h_BLJ
  return h_BLJ, (a, h_BLJ)


def _scan_backward(reverse, components, save_states, residuals, g_BLJ):
  return gradients(*residuals, g_BLJ, components, reverse)


_scan.defvjp(_scan_forward, _scan_backward)


def states(a, x_BLJ, components: int, reverse: bool, kind: str | None = None) -> jax.Array:
  """h [B, L, J]; a is [J] or in the shape of x.

  kind: the kernel, 'tpu' or 'gpu'. None: that of the platform; CPUs interpret the one for TPUs.
  """
  launch = _on_gpu if (kind or platform()) == 'gpu' else _on_tpu
  return launch(_ScanLaunch(x_BLJ.shape, components, a.ndim == 1, reverse, gradient=False), a, x_BLJ)[0]


def gradients(a, h_BLJ, g_BLJ, components: int, reverse: bool, kind: str | None = None):
  """(da in the shape of a, dx): the pull-back of `states` at the cotangent g, from the states h.

  The kernel walks against the recurrence and computes h*_t dx_{t+1}, where * is the conjugate. This is the
  gradient of a_{t+1}; its sum is the gradient of a constant a.
  """
  launch = _on_gpu if (kind or platform()) == 'gpu' else _on_tpu
  job = _ScanLaunch(h_BLJ.shape, components, a.ndim == 1, not reverse, gradient=True)
  dx_BLJ, da = launch(job, a, g_BLJ, h_BLJ)
  if job.constant:
    return jnp.sum(da, (0, 1)), dx_BLJ
  none = jnp.zeros_like(da[:, :1])
  return jnp.concatenate([da[:, 1:], none] if reverse else [none, da[:, :-1]], axis=1), dx_BLJ


@dataclasses.dataclass(frozen=True)
class _ScanLaunch:
  """Constants of a compiled kernel."""

  shape: tuple[int, int, int]  # B, L, J
  components: int
  constant: bool  # a is the same at every position
  reverse: bool  # the kernel walks from the end
  gradient: bool  # it also returns the gradient of a
  size: int = 0  # positions of a block on a TPU

  @property
  def length(self):
    return self.shape[1]

  @property
  def states(self):
    return self.shape[2] // self.components

  @property
  def summed(self):
    """True if the gradient of a is a sum over positions."""
    return self.gradient and self.constant

  @property
  def name(self):
    return f'linear_scan_{"gradients" if self.gradient else "states"}'

  def parts(self, v):
    """Splits numbers [..., J] into their components."""
    return (v,) if self.components == 1 else (v[..., : self.states], v[..., self.states :])


def _product(p, q):
  if len(p) == 1:
    return (p[0] * q[0],)
  return p[0] * q[0] - p[1] * q[1], p[0] * q[1] + p[1] * q[0]


def _adjoint(p):
  return p if len(p) == 1 else (p[0], -p[1])


def _sum(p, q):
  return tuple(a + b for a, b in zip(p, q, strict=True))


def _launch(kernel, job, operands, in_specs, out_specs, outputs, **options):
  numbers = sum(math.prod(shape) for shape in [*outputs, *(v.shape for v in operands)])
  flops = math.prod(job.shape) * 2 * job.components * (1 + job.gradient)
  return pl.pallas_call(
    functools.partial(kernel, job=job),
    in_specs=in_specs,
    out_specs=out_specs,
    out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in outputs],
    cost_estimate=pl.CostEstimate(flops=flops, bytes_accessed=4 * numbers, transcendentals=0),
    interpret=platform() == 'cpu',
    name=job.name,
    **options,
  )(*operands)


# TPU


def _on_tpu(job, a, *arrays):
  batch, length, width = job.shape
  blocks = len(arrays) + (1 if job.constant else 2 + job.gradient) + job.summed
  most = _BUFFERS // (2 * 4 * blocks * -(-width // _LANES) * _LANES) // _ROWS * _ROWS
  job = dataclasses.replace(job, size=_block(length, max(most, _ROWS)))
  chunks = pl.cdiv(length, job.size)
  order = (lambda k: chunks - 1 - k) if job.reverse else (lambda k: k)
  along = pl.BlockSpec((None, job.size, width), lambda b, k: (b, order(k), 0))
  sums = pl.BlockSpec((None, _ROWS, width), lambda b, k: (b, 0, 0))
  factors, spec = a, along
  if job.constant:
    a_CN = a.reshape(job.components, job.states)
    factors = _factors(adjoint(a_CN) if job.gradient else a_CN, job.reverse)
    spec = pl.BlockSpec(factors.shape, lambda b, k: (0, 0, 0))
  return _launch(
    _tpu_kernel, job, (factors, *arrays),
    in_specs=[spec, *(along for _ in arrays)],
    out_specs=[along] + job.gradient * [sums if job.summed else along],
    outputs=[job.shape] + job.gradient * [(batch, _ROWS, width) if job.summed else job.shape],
    grid=(batch, chunks),
    scratch_shapes=[pltpu.VMEM((1, width), jnp.float32)] * 2,
    compiler_params=pltpu.CompilerParams(dimension_semantics=('parallel', 'arbitrary')),
  )  # fmt: skip


def _block(length, most):
  """The positions of a block: all if they fit, else the largest divisor above half of `most`, else `most`."""
  if length <= most:
    return pl.cdiv(length, _ROWS) * _ROWS
  sizes = range(most, most // 2, -_ROWS)
  return next((size for size in sizes if length % size == 0), most)


def _factors(a_CN, reverse):
  """The factors of a register, float32 [5, 8, J].

  Rows 0 to 2 multiply the values 1, 2 and 4 positions before, and are 0 where the register has no such
  position. Row 3 has the powers that multiply the state before the register. Row 4 has the rounding error of
  the last of these powers, which reaches the next register, and 0 for the others.
  """
  (one, _), (two, _), (four, _), (eight, left) = powers_in_parts(a_CN, 4)
  three, five, six = times(two, one), times(four, one), times(four, two)
  carried = jnp.stack([one, two, three, four, five, six, times(four, three), eight])
  rows = lax.broadcasted_iota(jnp.int32, carried.shape, 0)
  steps = [jnp.where(rows >= s, v[None], 0) for s, v in ((1, one), (2, two), (4, four))]
  rest = jnp.where(rows == _ROWS - 1, left[None], 0)
  factors = jnp.stack([*steps, carried, rest]).reshape(5, _ROWS, -1)
  return jnp.flip(factors, 1) if reverse else factors


def _tpu_kernel(a_ref, x_ref, *references, job):
  """Runs one chunk of a row.

  References: h if there is a gradient; the states or dx; the gradient of a; and two scratch rows, the carried
  state and the last factor.
  """
  if job.gradient:
    h_ref, out_ref, da_ref, carry_ref, factor_ref = references
  else:
    out_ref, carry_ref, factor_ref = references
  chunk = pl.program_id(1)

  @pl.when(chunk == 0)
  def _():
    carry_ref[...] = jnp.zeros_like(carry_ref)
    factor_ref[...] = jnp.zeros_like(factor_ref)
    if job.summed:
      da_ref[...] = jnp.zeros_like(da_ref)

  first = (pl.num_programs(1) - 1 - chunk if job.reverse else chunk) * job.size
  count = job.size // _ROWS
  rows = lax.broadcasted_iota(jnp.int32, (_ROWS, 1), 0)
  walked = _ROWS - 1 - rows if job.reverse else rows  # in the order of the walk
  edge = slice(0, 1) if job.reverse else slice(_ROWS - 1, _ROWS)
  constants = [job.parts(a_ref[i]) for i in range(5)] if job.constant else None

  def before(p, steps, filling):
    """The values `steps` positions before, in the order of the walk; `filling` at the beginning."""
    shift = _ROWS - steps if job.reverse else steps
    pairs = zip(p, filling, strict=True)
    return tuple(jnp.where(walked >= steps, pltpu.roll(v, shift, 0), other) for v, other in pairs)

  def small_scan(factors, x, carry):
    nothing, one = [0.0] * len(x), [1.0] + [0.0] * (len(x) - 1)
    for steps in (1, 2, 4):
      x = _sum(x, _product(factors, before(x, steps, nothing)))
      factors = _product(factors, before(factors, steps, one))
    return _sum(x, _product(factors, carry))

  def constant_scan(x, carry):
    for steps, factors in zip((1, 2, 4), constants, strict=False):
      shift = _ROWS - steps if job.reverse else steps
      x = _sum(x, _product(factors, tuple(pltpu.roll(v, shift, 0) for v in x)))
    x = _sum(x, _product(constants[4], carry))  # first: added after the larger product it would round away
    return _sum(x, _product(constants[3], carry))

  def step(i, state):
    carry, factor = state
    at = pl.ds((count - 1 - i if job.reverse else i) * _ROWS, _ROWS)

    def load(reference):
      v = reference[at, :]
      if job.length % job.size:  # memory beyond the end may hold any number
        v = jnp.where(first + at.start + rows < job.length, v, 0)
      return job.parts(v)

    x = load(x_ref)
    if job.constant:
      out = constant_scan(x, carry)
    else:
      a = load(a_ref)
      if job.gradient:  # dx_t needs a_{t+1}
        a, factor = _adjoint(before(a, 1, factor)), tuple(v[edge] for v in a)
      out = small_scan(a, x, carry)
    out_ref[at, :] = jnp.concatenate(out, axis=1)
    if job.gradient:
      da = _product(_adjoint(load(h_ref)), before(out, 1, carry))
      if job.constant:
        da_ref[...] += jnp.concatenate(da, axis=1)
      else:
        da_ref[at, :] = jnp.concatenate(da, axis=1)
    return tuple(v[edge] for v in out), factor

  carry, factor = lax.fori_loop(0, count, step, (job.parts(carry_ref[...]), job.parts(factor_ref[...])))
  carry_ref[...] = jnp.concatenate(carry, axis=1)
  factor_ref[...] = jnp.concatenate(factor, axis=1)


# GPU


def _on_gpu(job, a, *arrays):
  batch, _, width = job.shape
  along = pl.BlockSpec((None, *job.shape[1:]), lambda b, j: (b, 0, 0))
  sums = pl.BlockSpec((None, 1, width), lambda b, j: (b, 0, 0))
  return _launch(
    _gpu_kernel, job, (a, *arrays),
    in_specs=[pl.BlockSpec((width,), lambda b, j: (0,)) if job.constant else along, *(along for _ in arrays)],
    out_specs=[along] + job.gradient * [sums if job.summed else along],
    outputs=[job.shape] + job.gradient * [(batch, 1, width) if job.summed else job.shape],
    grid=(batch, pl.cdiv(job.states, _THREADS)),
    compiler_params=plgpu.CompilerParams(num_warps=_THREADS // 32, num_stages=1),
  )  # fmt: skip


def _gpu_kernel(a_ref, x_ref, *references, job):
  """Runs 32 states of a row. References are those of `_tpu_kernel` without the last two, which are registers
  here."""
  h_ref, out_ref, da_ref = references if job.gradient else (None, *references, None)
  length, states = job.length, job.states
  first = pl.program_id(1) * _THREADS
  there = first + lax.iota(jnp.int32, _THREADS) < states
  each = [pl.ds(c * states + first, _THREADS) for c in range(job.components)]

  def load(reference, *place, mask=there):
    return tuple(plgpu.load(reference.at[*place, lanes], mask=mask, other=0.0) for lanes in each)

  def store(reference, p, *place, mask=there):
    for lanes, v in zip(each, p, strict=True):
      plgpu.store(reference.at[*place, lanes], v, mask=mask)

  nothing = (jnp.zeros(_THREADS, jnp.float32),) * job.components
  constant = load(a_ref) if job.constant else None

  def steps(i, state):
    carry, factor, total = state
    moments = [i * _AHEAD + ahead for ahead in range(_AHEAD)]
    masks = [there & (t < length) if length % _AHEAD else there for t in moments]
    moments = [jnp.minimum(t, length - 1) for t in moments]
    places = [length - 1 - t if job.reverse else t for t in moments]
    loads = [
      [load(ref, t, mask=mask) for t, mask in zip(places, masks, strict=True)]
      for ref in (x_ref, None if job.constant else a_ref, h_ref) if ref is not None
    ]  # fmt: skip
    for t, mask, (x, *rest) in zip(places, masks, zip(*loads, strict=True), strict=True):
      a = constant if job.constant else rest.pop(0)
      if job.gradient:
        da = _product(_adjoint(rest.pop()), carry)
        if job.constant:
          total = _sum(total, da)
        else:
          store(da_ref, da, t, mask=mask)
          a, factor = factor, a  # dx_t needs a_{t+1}
        a = _adjoint(a)
      carry = _sum(x, _product(a, carry))
      store(out_ref, carry, t, mask=mask)
    return carry, factor, total

  _, _, total = lax.fori_loop(0, pl.cdiv(length, _AHEAD), steps, (nothing, nothing, nothing))
  if job.summed:
    store(da_ref, total, jnp.int32(0))  # the interpreter does not accept a Python int
