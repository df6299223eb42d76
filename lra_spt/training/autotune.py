"""Autotune: chooses kernels on the machine that they run on.

Before a stage trains on an accelerator, every implementation that its step could use is compiled for the
shapes in use, compared with the plain implementation in value and gradient, and timed; the fastest correct
one runs. An implementation that fails is left out, with one line of output. Choices are stored with the
compiled programs, by kind of device, versions and shapes. On CPUs there is nothing to choose, and nothing is
timed.
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
  """Says how calls of an operation are tried.

  arrays: call -> the arrays to differentiate by; run: (call, implementation) -> a function of these arrays;
  reference: the implementation that all are compared with; tolerance: the largest error allowed, relative to
  the largest number; option: the key of `runtime` that names an implementation.
  """

  arrays: Callable
  run: Callable
  reference: str
  tolerance: float
  option: str


LACKS_MEMORY = 'lacks memory'


@dataclasses.dataclass(frozen=True)
class Trial:
  """The result of trying an implementation.

  seconds: the shortest of several runs of value and gradients; error: the largest one, relative to the
  largest number; problem: why the implementation is left out, or ''.
  """

  name: str
  seconds: float | None = None
  error: float | None = None
  problem: str = ''


def prove(call: selection.Call, operation: Operation, clock=time.perf_counter) -> list[Trial]:
  """Tries every candidate of a call, on random arrays from one seed.

  If the plain implementation lacks memory for the batch, the first half of it is tried, or the first quarter,
  and so on.

  Raises:
    UserError: there is not enough memory for one row.
  """
  while (reference := _arrays_and_truth(call, operation)) is None:
    if call.batch == 1:
      raise UserError(
        f'{call.text} cannot be checked here: the plain implementation lacks memory even for one row; name '
        f'an implementation with --config.runtime.{operation.option}, or set runtime.prove_kernels=false'
      )
    call = dataclasses.replace(call, batch=call.batch // 2)
  arrays, expected = reference
  return [_tried(call, operation, name, arrays, expected, clock) for name in call.candidates]


def _arrays_and_truth(call, operation):
  """Returns (arrays, values and gradients of the reference), or None if the memory is too small."""
  try:
    arrays = [jnp.asarray(v) for v in operation.arrays(call)]
    with jax.default_matmul_precision('highest'):
      wide = [v.astype(jnp.float32) for v in arrays]
      return arrays, jax.block_until_ready(_both(operation.run(call, operation.reference))(wide))
  except (MemoryError, jax.errors.JaxRuntimeError) as error:
    if not sharding.lacks_memory(error):
      raise
    return None


def fastest(findings: list[Trial]) -> str | None:
  """Returns the name of the fastest correct implementation, None if there is none."""
  good = [finding for finding in findings if not finding.problem]
  return min(good, key=lambda finding: finding.seconds).name if good else None


def _tried(call, operation, name, arrays, expected, clock):
  try:
    both = _both(operation.run(call, name))
    values = jax.block_until_ready(both(arrays))
    error = _largest_error(values, expected)
    if not error <= operation.tolerance:  # also if the error is not a number
      known = error if math.isfinite(error) else None
      return Trial(name, None, known, f'is off by {error:.2g} of the largest number')
    seconds = []
    for _ in range(ROUNDS):
      start = clock()
      jax.block_until_ready(both(arrays))
      seconds.append(clock() - start)
    return Trial(name, min(seconds), error)
  except Exception as error:  # compilers and drivers raise errors of many types
    reason = next(iter(str(error).strip().splitlines()), '')
    how = LACKS_MEMORY if sharding.lacks_memory(error) else 'fails'
    return Trial(name, problem=f'{how}: {type(error).__name__}: {reason[:200]}')


def _both(function):
  """Returns a function of arrays that computes value and gradients, at a cotangent that varies everywhere."""

  @jax.jit
  def both(arrays):
    out, pull = jax.vjp(function, *arrays)
    cotangent = jnp.sin(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape).astype(out.dtype)
    return out, *pull(cotangent)

  return both


def _largest_error(values, expected) -> float:
  def error(ours, theirs):
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return np.abs(ours - theirs).max() / max(np.abs(theirs).max(), np.finfo(np.float32).tiny)

  return float(max(map(error, values, expected)))


def _normal(call):
  """Draws normal numbers for every array."""
  rng = np.random.default_rng(0)
  return [
    rng.standard_normal((call.batch, *shape) if batched else shape, np.float32).astype(dtype)
    for _, shape, dtype, batched in call.sizes
  ]


def _run_attention(call, name):
  options, rows = dict(call.options), np.arange(call.batch, dtype=np.int32)
  keys = next(shape for array, shape, *_ in call.sizes if array == 'k')[0]
  hidden = rows * max(1, keys // 7) % keys  # a different number of keys in every row
  options['kv_lengths_B'] = keys - hidden if options.pop('kv_lengths') else None
  options['kv_starts_B'] = hidden // 2 if options.pop('kv_starts') else None
  traced = options['q_offset'] is None

  def run(q, k, v, bias_HR=None):
    offset = {'q_offset': jnp.zeros((), jnp.int32)} if traced else {}
    return attention(q, k, v, bias_HR=bias_HR, implementation=name, **options | offset)

  return run


def _scan_arrays(call):
  """Draws x, and a inside the unit circle at 1 - |a| of 0.001 to 0.01, a memory of 100 to 1,000 positions."""
  a, x = _normal(call)
  radius = 1 - np.random.default_rng(1).uniform(0.001, 0.01, a.shape[-1]).astype(np.float32)
  return [a / np.sqrt((a**2).sum(-2, keepdims=True)) * radius, x]


def _run_scan(call, name):
  return lambda a, x_BLCN: scan_components(a, x_BLCN, implementation=name, **dict(call.options))


def _run_convolution(call, name):
  return lambda u_BLD, kernel_SDL: fft_conv(u_BLD, kernel_SDL, implementation=name)


OPERATIONS = {
  # Products of float32 numbers may be rounded to TF32 or bfloat16; see `jax.default_matmul_precision`.
  'attention': Operation(_normal, _run_attention, 'blockwise', 2e-2, 'attention'),
  'linear scan': Operation(_scan_arrays, _run_scan, 'sequential', 1e-3, 'scan'),
  # Both compute in float32, whatever the precision; bfloat16 arrays round their output.
  'long convolution': Operation(_normal, _run_convolution, 'fft', 1e-2, 'convolution'),
}


def calls_of(program, arguments) -> list[selection.Call]:
  """Returns the calls of a training step that several implementations can run and that name none.

  The calls are those that one device of the current mesh makes. Programs that were traced before are dropped.

  Args:
    program: a `StepProgram`.
    arguments: of the step, from `Built.abstract_step`.
  """
  _forget()
  with selection.recording() as calls:
    train_steps(program).trace(*arguments)
  _forget()
  return [call for call in calls if len(call.candidates) > 1]


def _forget():
  forget_programs()
  jax.clear_caches()  # jax.checkpoint caches its traces


def choose(calls, mesh, folder=None, say=print, operations=OPERATIONS) -> dict[str, dict]:
  """Makes calls run the fastest correct implementation on a device of the mesh.

  Every process tries the candidates on a device of its own; all run what the first process chooses.

  Args:
    calls: from `calls_of`.
    mesh: of the stage.
    folder: where choices are stored, or None.
    say: called with a line of text for the reader.
    operations: {name: `Operation`}.

  Returns:
    {text of the call: {'chosen': name, 'findings': the `Trial` of each candidate as a dict}}.

  Raises:
    UserError: no implementation of a call is correct on this machine.
  """
  path = None if folder is None else folder / FILE
  here, tried = _stored(path).get(_here(mesh), {}), {}
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
  # Where an implementation failed, or memory was too small, the next start tries again.
  lasting = {text: one for text, one in tried.items() if _lasts(one)}
  if lasting and path is not None and processes.is_first():
    stored = _stored(path)  # other runs may have added choices meanwhile
    stored[_here(mesh)] = stored.get(_here(mesh), {}) | lasting
    with touching(path, 'written'):
      path.parent.mkdir(parents=True, exist_ok=True)
      files.write_json(path, stored, shared=True)
  chosen, report = {}, {}
  for call, place in zip(calls, processes.first_chooses(places), strict=True):
    if place < 0:
      raise UserError(
        f'no implementation of {call.text} is correct on this machine; name one with --config.runtime.'
        f'{operations[call.operation].option}, or update jax and the driver'
      )
    chosen[call] = call.candidates[place]
    report[call.text] = here[call.text] | {'chosen': chosen[call]}
  selection.install(chosen)
  return report


def _lasts(tried: dict) -> bool:
  problems = [finding['problem'] for finding in tried['findings']]
  return tried['chosen'] is not None and not any(problem.startswith(LACKS_MEMORY) for problem in problems)


def _place(call, name):
  return call.candidates.index(name) if name in call.candidates else -1


def _stored(path) -> dict:
  if path is None or not path.exists():
    return {}
  advice = 'delete it: it is made again'
  stored = files.read_json(path, 'a choice of kernels', advice)
  choices = [
    choice for here in stored.values() for choice in (here.values() if isinstance(here, dict) else [None])
  ]
  if not all(isinstance(choice, dict) and 'chosen' in choice for choice in choices):
    raise DamagedFile(f'{path} is not a choice of kernels; {advice}')
  return stored


def _own_device(mesh):
  mine = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
  return sharding.make_mesh(devices=mine[:1])


def _here(mesh) -> str:
  kind = mesh.devices.flat[0].device_kind
  return f'{kind}, jax {jax.__version__}, jaxlib {jax.lib.__version__}, lra_spt {lra_spt.__version__}'


def described(finding: Trial) -> str:
  """Describes a trial in one line."""
  if finding.problem:
    return f'{finding.name} {finding.problem}: left out'
  return f'{finding.name}: {1e3 * finding.seconds:.3g} ms, off by {finding.error:.1g}'


def wanted() -> bool:
  """Says if kernels are tried on the devices of the current mesh: not on CPUs."""
  return sharding.platform() != 'cpu'
