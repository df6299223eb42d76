"""`lra-spt compile`: compiles the train step of a config for a TPU slice, on a machine without a TPU.

It reports whether the step fits in a device's memory, its operations and memory traffic, the shortest
possible time, and the smallest slice on which it fits. Nothing runs and no array is made.
"""

import contextlib
import dataclasses
import math
import os
import re
import sys
import threading
import time

import jax

from lra_spt.data import examples as examples_lib
from lra_spt.distributed import settings, sharding
from lra_spt.errors import ConfigError
from lra_spt.models import execution
from lra_spt.runs.aot import topologies
from lra_spt.runs.aot.cost_report import roofline, smallest_table, table
from lra_spt.runs.aot.program_cost import ProgramCost, read_program
from lra_spt.runs.build import RunSpec, build
from lra_spt.runs.stage import Built
from lra_spt.training import device_data
from lra_spt.training.step import train_steps


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes on one device: the total, and its parts unless the compiler gave up.

  Parts: arguments (state and batch), temporaries, outputs beyond the donated state, program, and the training
  set if a run would store it there.
  """

  total: int
  parts: dict[str, int] | None = None


@dataclasses.dataclass(frozen=True)
class Compiled:
  """A train step compiled for some devices; without `cost` if it was too large for them.

  least: see `least_traffic`; None if it is not reported.
  xla_flops: per device, counted by XLA.
  set_known: False if the training set is not prepared here and may be added to `memory`.
  remat: see `execution.chosen_remat`.
  """

  mesh: dict[str, int]
  memory: Memory
  seconds: float
  cost: ProgramCost | None = None
  least: dict[str, int] | None = None
  xla_flops: float | None = None
  set_known: bool = True
  remat: str = ''


@settings.fixed()
def compile_step(
  built: Built, stage: str, devices, mesh_shape: dict[str, int], hbm: int | None = None
) -> Compiled:
  """Compiles one optimizer step of a stage for `devices`, with `hbm` bytes each if they are accelerators.

  Raises:
    ConfigError: mesh or batch size do not fit the number of devices, or the compiler refuses the program for
      another reason than its size.
  """
  start = time.monotonic()
  mesh = sharding.make_mesh(**mesh_shape, devices=devices, members=built.runtime.members)
  spec, runtime = built.spec, built.runtime
  sharding.check_batch_size(spec.batch_size, mesh, f'{stage}.batch_size', runtime.microbatches)
  arguments = built.abstract_step(mesh)
  set_bytes = _set_bytes(built, mesh, hbm)
  known = set_bytes is not None
  with settings.fixed(runtime.matmul_precision), jax.set_mesh(mesh):
    common = {'set_known': known, 'remat': execution.chosen_remat(built.mixer.execution)}
    try:
      compiled = train_steps(built.typical_program).lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
      if (needed := _needed_bytes(str(error))) is None:
        reason = str(error).strip().split('\n')[0]
        kind = devices[0].device_kind
        raise ConfigError(f'the compiler refuses the {stage} step for {kind}: {reason}') from error
      memory = Memory(needed + (set_bytes or 0))
      return Compiled(dict(mesh.shape), memory, time.monotonic() - start, **common)
  analysis = compiled.memory_analysis()
  parts = {
    'arguments': analysis.argument_size_in_bytes,
    'temporaries': analysis.temp_size_in_bytes,
    'outputs': max(0, analysis.output_size_in_bytes - analysis.alias_size_in_bytes),
    'program': analysis.generated_code_size_in_bytes,
  } | ({'training set': set_bytes} if set_bytes else {})
  cost = read_program(compiled.as_text())
  flops = compiled.cost_analysis().get('flops')
  seconds = time.monotonic() - start
  return Compiled(
    dict(mesh.shape), Memory(sum(parts.values()), parts), seconds, cost, xla_flops=flops, **common
  )


def least_traffic(built: Built, mesh) -> dict[str, int]:
  """The bytes that a step moves to and from the memory of each device, if no array stays on the chip.

  In small steps the compiler may leave arrays on the chip, or recompute them, and then moves less.

  Returns:
    state: read once and written once (parameters, statistics, optimizer);
    batch: read once;
    kept: arrays that the forward pass saves for the backward pass, written once and read once.
  """
  state, batch, *_ = built.abstract_step(mesh)
  sizes = {
    name: sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(part))
    for name, part in (('state', state), ('batch', batch))
  }
  residuals = built.runtime.microbatches * built.residual_bytes(mesh)
  return {'state': 2 * sizes['state'], 'batch': sizes['batch'], 'kept': 2 * residuals}


def _set_bytes(built: Built, mesh, hbm: int | None) -> int | None:
  """The bytes of the training set on a device, 0 if a run leaves it on the host (see `device_data.choose`);
  None if the set is not prepared in runtime.data_dir."""
  placement = built.runtime.placement
  if placement == 'host' or (not placement and hbm is None):
    return 0
  if (train := _training_split(built)) is None:
    return None
  share = device_data.share(train, mesh)
  return share if placement or share <= hbm * device_data.LARGEST_SHARE else 0


def _needed_bytes(message: str) -> int | None:
  """The bytes that a program needs on a device, if the TPU compiler's message says that it has too few."""
  unit = {'': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}
  number = r'([\d.]+)([KMGT]?)i?B?'
  words = rf'Used {number} of [\d.]+\w* hbm|required for [\w ]+ \({number}\) exceeds available HBM'
  if (match := re.search(words, message)) is None:
    return None
  size, prefix = match[1] or match[3], match[2] or match[4]
  return int(float(size) * unit[prefix or ''])


def smallest_fitting(slices, known: dict, measure):
  """Returns the smallest slice on which a step fits, or None. If `measure` ends the search, it is the
  smallest slice that is known to fit.

  It assumes that a larger slice needs no more memory per device. Temporaries shrink with the rows per device,
  so it first compiles for the smallest slice that should fit.

  Args:
    slices: slices of one kind of chip, by size.
    known: {slice: Memory}, at least one; more are added.
    measure: measure(slice, open) returns the Memory, or None to end the search; `open` is the number of
      slices that may still be tried.
  """

  def fits(s):
    return known[s].total <= s.chip.hbm

  while True:
    low = max((i for i, s in enumerate(slices) if s in known and not fits(s)), default=-1)
    high = min((i for i, s in enumerate(slices) if s in known and fits(s)), default=len(slices))
    smallest = slices[high] if high < len(slices) else None
    if high - low <= 1:
      return smallest
    inside = slices[low + 1 : high]
    guess = next((s for s in inside if _predicted(s, known) <= s.chip.hbm), inside[-1])
    if (memory := measure(guess, len(inside))) is None:
      return smallest
    known[guess] = memory


def _predicted(wanted, known) -> float:
  """Predicts the bytes on a device of a slice from those of the known slice of the nearest size."""
  nearest = min(known, key=lambda s: abs(s.size.bit_length() - wanted.size.bit_length()))
  memory = known[nearest]
  parts = memory.parts or {'temporaries': memory.total}
  return memory.total + parts['temporaries'] * (nearest.size / wanted.size - 1)


def report(run: RunSpec, stage: str, built: Built, name: str, compiled: Compiled, chip=None) -> dict:
  """The JSON of one stage (`--json`): bytes, operations and seconds as plain numbers."""
  devices, members = math.prod(compiled.mesh.values()), built.runtime.members
  batch, memory = built.spec.batch_size, compiled.memory
  result = {
    'task': run.task.name, 'model': run.model.name, 'regime': run.regime.name, 'stage': stage,
    'length': built.task.length, 'documents': built.task.documents,
    'batch_size': batch, 'microbatches': built.runtime.microbatches,
    'members': members, 'remat': compiled.remat, 'precision': built.runtime.precision,
    'topology': name, 'devices': devices, 'mesh': compiled.mesh, 'parameters': built.model.parameter_count,
    'jax': jax.__version__, 'compile_seconds': round(compiled.seconds, 1),
    'bytes_per_device': {**(memory.parts or {}), 'total': memory.total},
    'training_set_known': compiled.set_known,
    'flops_per_step': built.flops_per_step * members,
  }  # fmt: skip
  if chip:
    result['hbm'] = chip.hbm
    result['fits'] = memory.total <= chip.hbm
  if compiled.cost:
    result['xla_flops_per_step'] = (compiled.xla_flops or 0) * devices
    result['memory_bytes_per_device'] = compiled.cost.memory_bytes
    if compiled.least:
      result['least_memory_bytes_per_device'] = compiled.least
    result['largest_traffic'] = [dataclasses.asdict(part) for part in compiled.cost.largest]
    result['collectives'] = {k: dataclasses.asdict(c) for k, c in compiled.cost.collectives.items()}
    if compiled.cost.between_slices:
      result['between_slices'] = {k: dataclasses.asdict(c) for k, c in compiled.cost.between_slices.items()}
    # The loop over the steps of a dispatch is always unknown: its length is an argument of the program.
    result['unknown_loops'] = max(0, compiled.cost.unknown_loops - 1)
  if chip and compiled.cost:
    sent = sum(c.sent for c in compiled.cost.collectives.values())
    result['seconds_at_best'] = roofline(
      chip, result['flops_per_step'] / devices, compiled.cost.memory_bytes, sent
    )
    if train := _training_split(built):
      steps = len(train) / batch
      result['epoch_seconds_at_best'] = steps * max(result['seconds_at_best'].values())
  return result


def _training_split(built: Built) -> examples_lib.Examples | None:
  """The training examples of the stage, or None if the set is not prepared in runtime.data_dir."""
  with contextlib.suppress(OSError, ValueError):
    train = examples_lib.open_split(built.task, 'train', built.runtime.data_dir)
    return train.part(built.spec.data_fraction)
  return None


@contextlib.contextmanager
def _progress(text: str, expected: float | None):
  """Shows the elapsed time on a terminal, and the time left of `expected` seconds; elsewhere one line."""
  stop, start = threading.Event(), time.monotonic()

  def tick():
    while not stop.wait(1):
      spent = time.monotonic() - start
      left = f', about {expected - spent:.0f} s left' if expected and expected > spent else ''
      print(f'\r{text}: {spent:.0f} s{left}\x1b[K', end='', file=sys.stderr, flush=True)

  ticker = threading.Thread(target=tick, daemon=True)
  if sys.stderr.isatty():
    ticker.start()
  else:
    print(f'{text} ...', file=sys.stderr, flush=True)
  try:
    yield
  finally:
    stop.set()
    if ticker.is_alive():
      ticker.join()
      print('\r\x1b[K', end='', file=sys.stderr, flush=True)


def _cpu_devices(name: str):
  count = name.partition(':')[2]
  if not count.isdigit() or int(count) < 1:
    raise ConfigError(f'--topology is {name!r}; write cpu:N with N at least 1')
  if '--xla_force_host_platform_device_count' not in os.environ.get('XLA_FLAGS', ''):
    with contextlib.suppress(RuntimeError):  # jax has already started, and its number of devices is fixed
      jax.config.update('jax_num_cpu_devices', int(count))
  devices = jax.devices('cpu')
  if len(devices) < int(count):
    raise ConfigError(f'--topology is {name!r}, but jax has started with only {len(devices)} CPU devices')
  return devices[: int(count)]


@settings.fixed()
def compile_stage(run: RunSpec, stage: str, name: str, search_seconds: float) -> dict:
  """Prints and returns the report of a stage on the topology `name`.

  It includes the smallest slice that fits, as far as `search_seconds` suffice to compile for other slices; 0
  leaves it out.

  Raises:
    ConfigError: the config or the topology cannot be used.
  """
  if stage not in run.stages:
    raise ConfigError(f'regime={run.regime.name} has no pretraining; use --stage=finetune')
  asked = None if name.partition(':')[0] == 'cpu' else topologies.get_slice(name)
  built = build(run, stage)
  devices = asked.devices() if asked else _cpu_devices(name)
  axes = dataclasses.asdict(built.runtime.mesh)
  with _progress(f'compiling {stage} for {name}', None):
    compiled = compile_step(built, stage, devices, axes, asked and asked.chip.hbm)
    if compiled.cost and built.runtime.members == 1:
      mesh = sharding.make_mesh(**axes, devices=devices)
      with jax.set_mesh(mesh):
        compiled = dataclasses.replace(compiled, least=least_traffic(built, mesh))
  result = report(run, stage, built, name, compiled, asked and asked.chip)
  print(table(result))
  if asked and search_seconds:
    result['smallest'] = _smallest(built, stage, asked, compiled, search_seconds)
    print(smallest_table(result))
  return result


def _smallest(built, stage, asked, compiled, seconds):
  """Returns {'slice': name or None, 'tried': {name: bytes on a device}, 'estimated': the same for the slices
  on which it might fit too, if `seconds` did not suffice to try them}."""
  known, untried, end = {asked: compiled.memory}, [], time.monotonic() + seconds

  def measure(candidate, open_slices):
    if time.monotonic() + compiled.seconds > end:
      untried.append(candidate)
      return None
    text = f'compiling {stage} for {candidate.name} (one of at most {open_slices} slices to try)'
    with _progress(text, compiled.seconds):
      mesh_shape = dataclasses.asdict(built.runtime.mesh) | {'data': -1}
      return compile_step(built, stage, candidate.devices(), mesh_shape, asked.chip.hbm).memory

  smallest = smallest_fitting(_candidates(built, asked), known, measure)
  tried = sorted(known, key=lambda s: s.size)
  return {
    'slice': smallest and smallest.name,
    'tried': {s.name: known[s].total for s in tried},
    'estimated': {s.name: round(_predicted(s, known)) for s in untried},
  }


def _candidates(built, asked):
  """Slices of the same chip that fit mesh and batch size, by size, and the slice of the command."""
  fsdp, seq = built.runtime.mesh.fsdp, built.runtime.mesh.seq
  parts = built.runtime.microbatches
  slices = [dataclasses.replace(asked, shape=shape) for shape in asked.chip.slices]
  fitting = [
    s
    for s in slices
    if s.size // s.count % (fsdp * seq) == 0 and built.spec.batch_size % (s.size // seq * parts) == 0
  ]
  return sorted({asked, *fitting}, key=lambda s: (s.size, s.shape))
