"""Parts of `accelerator` about training: GPU tests, time of a step, its kernels, autotune, and short runs."""

import collections
import contextlib
import dataclasses
import functools
import gzip
import importlib.util
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness, several, ssm
from benchmarks.ssm import Size
from configs.studies import image_epochs
from data_prep.prepare import prepare
from lra_spt.config import loading
from lra_spt.distributed import sharding
from lra_spt.runs import experiment
from lra_spt.runs.build import build, resolve
from lra_spt.studies import study
from lra_spt.training import autotune, device_data
from lra_spt.training.step import StepProgram, train_steps

STEPS_BETWEEN_WAITS = 32
DRY = 'configs/demo.py:model=transformer'
MODELS = {  # of the part `steps`, by task
  'image': ('transformer_rotary', 'transformer', 's4', 's5', 'mamba2', 'gated_deltanet'),
  'pathx': ('transformer_rotary', 's4', 's5', 'mamba2'),
}
PROFILED = 'configs/image.py:model=transformer_rotary', 'configs/image.py:model=s4'
LOOPS = {'': {}, ', layers in a loop': {'runtime.scan_layers': 'always'}}
STEPS, MOST = 8, 12  # steps of a profiled dispatch; slowest kernels in its row
# Settings that run a step in other ways than the default.
WAYS = {
  'layers in a loop': {'runtime.scan_layers': 'always'},
  'layers in a loop, elementwise again': {'runtime.scan_layers': 'always', 'runtime.remat': 'elementwise'},
  'layers in a loop, all but products again': {'runtime.scan_layers': 'always', 'runtime.remat': 'dots'},
  'layers in a loop, attention by cudnn': {'runtime.scan_layers': 'always', 'runtime.attention': 'cudnn'},
  'attention by cudnn': {'runtime.attention': 'cudnn'},
  'attention by tokamax': {'runtime.attention': 'tokamax'},
  'elementwise again': {'runtime.remat': 'elementwise'},
}
SSM_SIZES = Size(8, 1024, 128, 4), Size(2, 4096, 128, 4)


def tests(options):
  """Yields one case: pytest -m gpu."""

  def measure():
    environment = os.environ | {'LRA_SPT_TEST_PLATFORM': 'cpu' if options.dry else 'cuda'}
    # Other files may need test requirements that a bare machine lacks.
    files = sorted(
      path for path in (harness.ROOT / 'tests').rglob('test_*.py') if 'mark.gpu' in path.read_text()
    )
    # The project's options ask for pytest-xdist, which a bare machine lacks too.
    flags = ['-o', 'addopts=--import-mode=importlib', '-m', 'gpu', '-p', 'no:cacheprovider']
    flags += ['-p', 'no:benchmark']  # pytest-benchmark, where there is one, warns of xdist
    if not options.dry and importlib.util.find_spec('xdist'):
      flags += ['-n', str(min(8, os.cpu_count()))]
    command = [sys.executable, '-m', 'pytest', '-q', '-rs', *flags, *map(str, files)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, flush=True)
    summary = done.stdout.strip().splitlines()[-1]
    # Without a GPU all of them are skipped; on a GPU that would mean that nothing was tested.
    return {'ok': done.returncode == 0 and (options.dry or 'passed' in summary), 'summary': summary}

  yield 'pytest -m gpu', measure


def step_rows(options):
  """Yields a case per step: all models in bfloat16, and the first one in other ways, too."""
  for case, (spec, overrides, count, placement) in step_cases(options.dry).items():
    waits = 2 if options.dry else 8 if 'pathx' in spec else STEPS_BETWEEN_WAITS  # PathX takes longer
    yield case, functools.partial(_step, spec, overrides, count, waits, placement)


def step_cases(dry) -> dict:
  """{case: (config, overrides, steps per dispatch, placement of the examples)}."""
  if dry:
    models, dispatches, ways = {'demo': DRY}, (1, 2), list(WAYS)[:1]
  else:
    models = {f'{task} {m}': f'configs/{task}.py:model={m}' for task, names in MODELS.items() for m in names}
    dispatches, ways = (8, 1, 32), WAYS
  specs = {name: f'{spec},regime=scratch' for name, spec in models.items()}
  half, full = ({'runtime.precision': precision} for precision in ('bfloat16', 'float32'))
  most = dispatches[-1]
  cases = {
    f'step {name} bfloat16 {dispatches[0]} per dispatch': (spec, half, dispatches[0], 'host')
    for name, spec in specs.items()
  }
  name, spec = next(iter(specs.items()))
  for precision, setting in (('bfloat16', half), ('float32', full)):
    case = f'step {name} {precision}'
    cases |= {f'{case} {count} per dispatch': (spec, setting, count, 'host') for count in dispatches}
    cases[f'{case} {most} per dispatch, examples on the device'] = spec, setting, most, 'device'
  for way in ways:
    cases[f'step {name} bfloat16 8 per dispatch, {way}'] = spec, WAYS[way] | half, 8, 'host'
  return cases


def _step(spec, overrides, count, waits, placement) -> dict:
  return measure_steps(loading.load(spec, overrides), count, waits, placement)


class RandomExamples:
  """Random bytes in memory, in place of a split of gray images."""

  def __init__(self, task, size):
    rng = np.random.default_rng(0)
    self.task, self._size = task, size
    self._content = {
      'inputs': rng.integers(0, 256, (size, task.length), np.uint8),
      'weight': np.ones(size, np.float32),
      'label': rng.integers(0, task.classes, size, np.int32),
      'lengths': np.full(size, task.length, np.int32),
      'index': np.arange(size, dtype=np.int32),
    }

  def __len__(self):
    return self._size

  def gather(self, positions):
    return {name: values[positions] for name, values in self._content.items()}

  def forget(self):
    """Does nothing, since the examples are in memory alone."""


def measure_steps(config, count, between_waits, placement):
  """Time of a finetuning step on random bytes in dispatches of `count` steps.

  placement: 'host': batches move to the device; 'device': they are gathered there from 50,000 examples.
  """
  built = build(resolve(config), 'finetune')
  spec, task, mesh = built.spec, built.task, sharding.make_mesh(**dataclasses.asdict(built.runtime.mesh))
  resides = placement == 'device'
  examples = RandomExamples(task, 50_000 if resides else spec.batch_size * count)
  positions = np.random.default_rng(1).permutation(len(examples))[: spec.batch_size * count].astype(np.int32)
  positions = positions.reshape(count, spec.batch_size)
  chunk, rows = examples.gather(positions), sharding.local_rows(mesh, spec.batch_size)
  on_device = device_data.place(examples, mesh, progress=False) if resides else None
  dispatches = max(1, between_waits // count)
  with jax.set_mesh(mesh):
    state = built.fresh_state(mesh)
    key, start = jax.random.key(1), time.perf_counter()

    def placed():
      if resides:
        return device_data.PlacedChunk(on_device, sharding.everywhere(positions, mesh))
      return sharding.to_devices(chunk, mesh, spec.batch_size, rows, leading=1)

    dispatch = _dispatch(built).lower(state, placed(), jnp.int32(count), key).compile()

    def run():
      nonlocal state
      for _ in range(dispatches):  # dispatched without waiting, as in training
        state, records = dispatch(state, placed(), jnp.int32(count), key)
      jax.block_until_ready(records)

    run()
    first = time.perf_counter() - start
    times = harness.milliseconds(harness.sampled(run), per=dispatches * count)
  step = times['milliseconds'] / 1e3
  return (
    times
    | {
      'examples_per_second': spec.batch_size / step,
      'batch_size': spec.batch_size,
      'teraflops_per_second': built.flops_per_step / step / 1e12,
      'first_call_seconds': first,
      'parameters': built.model.parameter_count,
    }
    | harness.compiled_bytes(dispatch)
  )


def _dispatch(built):
  """The jitted steps of a stage, as in training."""
  spec = built.spec
  return train_steps(
    StepProgram(built.model, built.objective, spec.optimizer, spec.schedule.resolved(1000), 100)
  )


@contextlib.contextmanager
def _finetuning(config, count):
  """(dispatch of `count` steps: (state, chunk) -> (state, records); a state; a chunk), on random bytes."""
  built = build(resolve(config), 'finetune')
  size, mesh = built.spec.batch_size, sharding.make_mesh(**dataclasses.asdict(built.runtime.mesh))
  positions = np.arange(size * count, dtype=np.int32).reshape(count, size)
  chunk = RandomExamples(built.task, size * count).gather(positions)
  with jax.set_mesh(mesh):
    placed = sharding.to_devices(chunk, mesh, size, sharding.local_rows(mesh, size), leading=1)
    steps, key = _dispatch(built), jax.random.key(1)
    yield lambda state, chunk: steps(state, chunk, jnp.int32(count), key), built.fresh_state(mesh), placed


def profile(options):
  """Yields a case per config and way of running its layers: milliseconds of a step by kernel."""
  for spec in (DRY,) if options.dry else PROFILED:
    for name, overrides in LOOPS.items():
      overrides = overrides | {'runtime.precision': 'bfloat16'}
      yield f'{spec}, bfloat16{name}', functools.partial(kernels_of, f'{spec},regime=scratch', overrides)


def kernels_of(spec, overrides) -> dict:
  """Milliseconds of a finetuning step on random bytes: in all, and of the slowest kernels."""
  with _finetuning(loading.load(spec, overrides), STEPS) as (dispatch, state, chunk):
    state, _ = jax.block_until_ready(dispatch(state, chunk))  # compiles
    with tempfile.TemporaryDirectory() as folder:
      with jax.profiler.trace(folder, create_perfetto_trace=True):
        jax.block_until_ready(dispatch(state, chunk))
      (path,) = pathlib.Path(folder).rglob('perfetto_trace.json.gz')
      with gzip.open(path, 'rt') as file:
        times = kernel_times(json.load(file))
  most = {
    name: round(times[name] / 1e3 / STEPS, 3) for name in sorted(times, key=times.get)[: -MOST - 1 : -1]
  }
  return {'milliseconds': round(sum(times.values()) / 1e3 / STEPS, 3), 'kernels': most}


def kernel_times(trace) -> dict[str, float]:
  """{kernel: microseconds} on the streams of a device, in a trace of Perfetto; {} for that of a CPU."""
  events = trace['traceEvents'] if isinstance(trace, dict) else trace
  threads = {
    (event['pid'], event['tid']): event['args']['name']
    for event in events
    if event.get('ph') == 'M' and event['name'] == 'thread_name'
  }
  times = collections.Counter()
  for event in events:
    if event.get('ph') == 'X' and 'Stream' in threads.get((event['pid'], event['tid']), ''):
      times[event['name']] += event['dur']
  return dict(times)


def proofs(options):
  """Yields a case per config: the findings of autotune about every call in its step."""
  pairs = [(task, model) for task in ('image', 'pathx') for model in ('transformer_rotary', 's5', 'rglru')]
  configs = [f'configs/{task}.py:model={model},regime=masked' for task, model in pairs]
  for spec in ['configs/demo.py'] if options.dry else configs:
    yield spec, functools.partial(_proof, spec)


def _proof(spec) -> dict:
  built = build(resolve(loading.load(spec, {'runtime.precision': 'bfloat16'})), 'finetune')
  mesh, calls = sharding.make_mesh(**dataclasses.asdict(built.runtime.mesh)), {}
  with jax.set_mesh(mesh):
    for call in autotune.calls_of(built.typical_program, built.abstract_step(mesh)):
      trials = autotune.prove(call, autotune.OPERATIONS[call.operation])
      calls[call.text] = {
        'chosen': autotune.fastest(trials),
        'trials': [dataclasses.asdict(trial) for trial in trials],
      }
  return {'ok': all(one['chosen'] for one in calls.values()), 'calls': calls}


def ssm_rows(options):
  """Yields a case per step of a state-space model, and of a plain implementation."""
  cases = [(size, kind) for size in SSM_SIZES for kind in ssm.CONTENDERS]
  if options.dry:
    cases = [(Size(2, 32, 8, 2), kind) for kind in ('s4 plain', 's4')]
  for size, kind in cases:
    case = f'ssm {size.batch}x{size.length} width {size.width}, {size.layers} layers {kind} float32'
    yield case, functools.partial(_ssm, size, kind, 2 if options.dry else STEPS_BETWEEN_WAITS)


def _ssm(size, kind, count) -> dict:
  run, known, _ = ssm.training_step(kind, size, precision='float32')
  times = harness.sampled(functools.partial(run, count))
  return size._asdict() | known | harness.milliseconds(times, per=count)


def populations(options):
  """Yields a case per model of LRA-mini and number of runs that train as one program."""
  counts, steps, rounds = ((2,), 2, 1) if options.dry else ((2, 8, 32), 16, 5)
  for config, count in itertools.product(several.CASES[-1:] if options.dry else several.CASES, counts):
    yield f'{config}, {count} runs', functools.partial(several.measured, config, count, steps, rounds)


def training(options):
  """Yields a case per run of configs/studies/image_epochs.py, from its result.json.

  The folder is that of the study, which `lra-spt study` and `python -m benchmarks mini` read.
  """
  runtime = {'data_dir': str(options.data_dir), 'tensorboard': False, 'progress': False}
  limits = {}
  if options.dry:
    prepare('stripes', options.workdir / 'data', examples=100)
    runtime['data_dir'] = str(options.workdir / 'data')
    limits = {'task': 'stripes', 'model.width': 16, 'model.depth': 2, 'model.feed_forward': 16}
    for stage in ('pretrain', 'finetune'):
      limits |= {f'{stage}.max_steps': 4, f'{stage}.evaluate_every': 4}
  else:
    runtime |= {'precision': 'bfloat16', 'steps_per_dispatch': 32, 'evaluation_batch_size': 500}
  limits |= {f'runtime.{key}': value for key, value in runtime.items()}
  overrides = [f'{key}={value}' for key, value in limits.items()]
  for job in study.jobs(image_epochs.get_study(options.study), overrides=overrides):
    folder = options.workdir / 'image_epochs' / job.folder
    yield f'{options.study} {job.folder}', functools.partial(_trained, job.config, folder)


def _trained(config, folder) -> dict:
  result = experiment.run(config, folder)
  keys = ('metrics', 'stages', 'parameters', 'seed', 'protocol', 'date', 'config', 'fingerprints')
  row = {'test_accuracy': result['metrics']['test']['accuracy'], 'runtime': config.runtime.to_dict()}
  return row | {key: result[key] for key in keys}


PARTS = {
  'tests': tests,
  'steps': step_rows,
  'training': training,
  'profile': profile,
  'members': populations,
  'ssm': ssm_rows,
  'proofs': proofs,
}
