"""Verifies kernels on the machine that they run on.

Before a stage trains on an accelerator, every implementation that its step could use is compiled for the
shapes in use, compared with the plain route in value and gradient, and timed; the fastest correct one runs.
An implementation that fails is left out, with one line of output. Choices are kept with the compiled
programs, by kind of device, versions and shapes. On CPUs there is nothing to choose, and nothing is timed.
"""

import dataclasses
import math
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import lra_spt
from lra_spt import files
from lra_spt.distributed import processes, sharding
from lra_spt.errors import DamagedFile, UserError, touching
from lra_spt.ops import selection
from lra_spt.ops.attention import attention
from lra_spt.ops.fft_conv import fft_conv
from lra_spt.ops.scan import scan_components
from lra_spt.training.programs import forget_programs
from lra_spt.training.step import train_steps

FILE = 'kernels.json'
ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class Operation:
  """How calls of an operation are tried.

  arrays: call -> arrays to differentiate by; run: (call, implementation) -> function of them;
  reference: the implementation that all are compared with; tolerance: the largest error, as a part of the
  largest number.
  """

  arrays: Callable
  run: Callable
  reference: str
  tolerance: float


LACKS_MEMORY = 'lacks memory'


@dataclasses.dataclass(frozen=True)
class Finding:
  """What was found about an implementation. seconds: of value and gradients, the least of several; error: the
  largest, as a part of the largest number; problem: why it is left out, or ''."""

  name: str
  seconds: float | None = None
  error: float | None = None
  problem: str = ''


def prove(call: selection.Call, operation: Operation, clock=time.perf_counter) -> list[Finding]:
  """A finding per candidate, in their order; arrays are drawn anew from one seed. Of a batch for which the
  plain route lacks memory, where kernels may not, the first half, or quarter, ... is tried.

  Raises:
    UserError: memory lacks for one row.
  """
  while (found := _arrays_and_truth(call, operation)) is None:
    if call.batch == 1:
      raise UserError(
        f'{call.text} cannot be checked here: the plain route runs out of memory even for one row; name an '
        f'implementation with {_option(call)}, or set runtime.prove_kernels=false'
      )
    call = dataclasses.replace(call, batch=call.batch // 2)
  arrays, expected = found
  return [_tried(call, operation, name, arrays, expected, clock) for name in call.candidates]


def _arrays_and_truth(call, operation):
  """None where memory lacks for them."""
  try:
    arrays = [jnp.asarray(v) for v in operation.arrays(call)]
    with jax.default_matmul_precision('highest'):
      wide = [v.astype(jnp.float32) for v in arrays]
      return arrays, jax.block_until_ready(_both(operation.run(call, operation.reference))(wide))
  except (MemoryError, jax.errors.JaxRuntimeError) as error:
    if not sharding.lacks_memory(error):
      raise
    return None


def fastest(findings: list[Finding]) -> str | None:
  """The fastest correct implementation; None without any."""
  good = [finding for finding in findings if not finding.problem]
  return min(good, key=lambda finding: finding.seconds).name if good else None


def _tried(call, operation, name, arrays, expected, clock):
  try:
    both = _both(operation.run(call, name))
    found = jax.block_until_ready(both(arrays))
    error = _largest_error(found, expected)
    if not error <= operation.tolerance:  # nor where it is no number
      known = error if math.isfinite(error) else None
      return Finding(name, None, known, f'is off by {error:.2g} of the largest number')
    seconds = []
    for _ in range(ROUNDS):
      start = clock()
      jax.block_until_ready(both(arrays))
      seconds.append(clock() - start)
    return Finding(name, min(seconds), error)
  except Exception as error:  # whatever a compiler or a driver may raise: then it cannot be used here
    reason = next(iter(str(error).strip().splitlines()), '')
    how = LACKS_MEMORY if sharding.lacks_memory(error) else 'fails'
    return Finding(name, problem=f'{how}: {type(error).__name__}: {reason[:200]}')


def _both(function):
  """arrays -> value and gradients of a function, at a cotangent that hides nothing."""

  @jax.jit
  def both(arrays):
    out, pull = jax.vjp(function, *arrays)
    cotangent = jnp.sin(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape).astype(out.dtype)
    return out, *pull(cotangent)

  return both


def _largest_error(found, expected) -> float:
  def error(ours, theirs):
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return np.abs(ours - theirs).max() / max(np.abs(theirs).max(), np.finfo(np.float32).tiny)

  return float(max(map(error, found, expected)))


def _normal(call):
  """Normal numbers for every array."""
  rng = np.random.default_rng(0)
  return [
    rng.standard_normal((call.batch, *shape) if batched else shape, np.float32).astype(dtype)
    for _, shape, dtype, batched in call.sizes
  ]


def _run_attention(call, name):
  options, rows = dict(call.options), np.arange(call.batch, dtype=np.int32)
  keys = next(shape for array, shape, *_ in call.sizes if array == 'k')[0]
  hidden = rows * max(1, keys // 7) % keys  # another number of keys in every row
  options['kv_lengths_B'] = keys - hidden if options.pop('kv_lengths') else None
  options['kv_starts_B'] = hidden // 2 if options.pop('kv_starts') else None
  traced = options['q_offset'] is None

  def run(q, k, v, bias_HR=None):
    offset = {'q_offset': jnp.zeros((), jnp.int32)} if traced else {}
    return attention(q, k, v, bias_HR=bias_HR, implementation=name, **options | offset)

  return run


def _scan_arrays(call):
  """a within the circle, as far from it as memories of a hundred to a thousand positions are."""
  a, x = _normal(call)
  radius = 1 - np.random.default_rng(1).uniform(0.001, 0.01, a.shape[-1]).astype(np.float32)
  return [a / np.sqrt((a**2).sum(-2, keepdims=True)) * radius, x]


def _run_scan(call, name):
  return lambda a, x_BLCN: scan_components(a, x_BLCN, implementation=name, **dict(call.options))


def _run_convolution(call, name):
  return lambda u_BLD, kernel_SDL: fft_conv(u_BLD, kernel_SDL, implementation=name)


OPERATIONS = {
  # Products of float32 numbers may have the bits of TF32 or bfloat16; see `jax.default_matmul_precision`.
  'attention': Operation(_normal, _run_attention, 'blockwise', 2e-2),
  'linear scan': Operation(_scan_arrays, _run_scan, 'sequential', 1e-3),
  # Both compute in float32, whatever the precision; bfloat16 arrays round what they put out.
  'long convolution': Operation(_normal, _run_convolution, 'fft', 1e-2),
}
# Which runtime.KEY names the implementation.
OPTIONS = {'attention': 'attention', 'linear scan': 'scan', 'long convolution': 'convolution'}


def calls_of(program, arguments) -> list[selection.Call]:
  """The calls of a training step (`StepProgram`) that several implementations can run and that name none, as
  a device of the mesh in force makes them; arguments: of the step, as `Built.abstract_step` has them.
  Programs that were traced before are forgotten."""
  _forget()
  with selection.recording() as found:
    train_steps(program).trace(*arguments)
  _forget()
  return [call for call in found if len(call.candidates) > 1]


def _forget():
  forget_programs()
  jax.clear_caches()  # of jax.checkpoint, which keeps what it traced


def choose(calls, mesh, folder=None, say=print, operations=OPERATIONS) -> dict[str, dict]:
  """Has calls run what is proven fastest for them on a device of the mesh.

  Returns {text of the call: {'chosen': name, 'findings': what was found about each}}.

  folder: where choices are kept, None: nowhere. Every process tries on a device of its own; all run what the
  first one chooses.

  Raises:
    UserError: no implementation of a call is correct here.
  """
  path = None if folder is None else folder / FILE
  here, tried = _kept(path).get(_here(mesh), {}), {}
  for call in calls:
    if call.text not in here:
      say(f'trying {", ".join(call.candidates)} for {call.text}')
      with jax.set_mesh(_own_device(mesh)):
        findings = prove(call, operations[call.operation])
      for finding in findings:
        say(f'  {described(finding)}')
      tried[call.text] = {
        'chosen': fastest(findings), 'findings': [dataclasses.asdict(finding) for finding in findings],
      }  # fmt: skip
  here |= tried
  places = [_place(call, here[call.text]['chosen']) for call in calls]
  # What may be otherwise at the next start, with another driver or memory, is tried again.
  lasting = {text: one for text, one in tried.items() if _lasts(one)}
  if lasting and path is not None and processes.is_first():
    kept = _kept(path)  # to which other runs may have added theirs meanwhile
    kept[_here(mesh)] = kept.get(_here(mesh), {}) | lasting
    with touching(path, 'written'):
      path.parent.mkdir(parents=True, exist_ok=True)
      files.write_json(path, kept)
  chosen, report = {}, {}
  for call, place in zip(calls, processes.first_chooses(places), strict=True):
    if place < 0:
      raise UserError(
        f'no implementation of {call.text} is correct on this machine; name one with {_option(call)}, or '
        'update jax and the driver'
      )
    chosen[call] = call.candidates[place]
    report[call.text] = here[call.text] | {'chosen': chosen[call]}
  selection.install(chosen)
  return report


def _lasts(tried: dict) -> bool:
  problems = [finding['problem'] for finding in tried['findings']]
  return tried['chosen'] is not None and not any(problem.startswith(LACKS_MEMORY) for problem in problems)


def _option(call) -> str:
  return f'--config.runtime.{OPTIONS.get(call.operation, call.operation)}'


def _place(call, name):
  return call.candidates.index(name) if name in call.candidates else -1


def _kept(path) -> dict:
  if path is None or not path.exists():
    return {}
  advice = 'delete it: it is made again'
  kept = files.read_json(path, 'a choice of kernels', advice)
  choices = [
    choice for here in kept.values() for choice in (here.values() if isinstance(here, dict) else [None])
  ]
  if not all(isinstance(choice, dict) and 'chosen' in choice for choice in choices):
    raise DamagedFile(f'{path} is not a choice of kernels; {advice}')
  return kept


def _own_device(mesh):
  mine = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
  return sharding.make_mesh(devices=mine[:1])


def _here(mesh) -> str:
  kind = mesh.devices.flat[0].device_kind
  return f'{kind}, jax {jax.__version__}, jaxlib {jax.lib.__version__}, lra_spt {lra_spt.__version__}'


def described(finding: Finding) -> str:
  """A finding as a line."""
  if finding.problem:
    return f'{finding.name} {finding.problem}: left out'
  return f'{finding.name}: {1e3 * finding.seconds:.3g} ms, off by {finding.error:.1g}'


def wanted() -> bool:
  """Whether devices of the mesh in force are to be tried: no CPUs."""
  return sharding.platform() != 'cpu'
