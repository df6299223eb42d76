"""Parts of `accelerator` about steps and training: time of a step, its kernels, proofs, short runs."""

import collections
import contextlib
import dataclasses
import functools
import gzip
import itertools
import json
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import accelerator_attention, harness, several, ssm
from benchmarks.ssm import Size
from lra_spt.config import loading
from lra_spt.distributed import sharding
from lra_spt.runs.build import build, resolve
from lra_spt.training import device_data
from lra_spt.training.step import StepProgram, train_steps

STEPS_BETWEEN_WAITS = 32
CONFIGS = ('configs/image.py:model=transformer_rotary', 'configs/image.py:model=s4')
TINY = 'configs/demo.py:model=transformer'
LOOPS = {'': {}, ', layers in a loop': {'runtime.scan_layers': 'always'}}
STEPS, MOST = 8, 12  # of a profiled dispatch; kernels of its row
# Other ways of running a step than the default.
WAYS = {
  'layers in a loop': {'runtime.scan_layers': 'always'},
  'layers in a loop, elementwise again': {'runtime.scan_layers': 'always', 'runtime.remat': 'elementwise'},
  'layers in a loop, all but products again': {'runtime.scan_layers': 'always', 'runtime.remat': 'dots'},
  'layers in a loop, attention by cudnn': {'runtime.scan_layers': 'always', 'runtime.attention': 'cudnn'},
  'elementwise again': {'runtime.remat': 'elementwise'},
}

SSM_SIZES = Size(8, 1024, 128, 4), Size(2, 4096, 128, 4)
PATHX_SIZE = Size(16, 16384, 256, 6)
# Least milliseconds of that S4 step in float32: operations of the FFTs of 16 sequences and of the kernels of
# all layers, forward and backward, at the 67 Tflop/s of an H100-class GPU; memory traffic takes 2.8 ms there.
PATHX_FLOOR = 1e3 * (16 * 9.89e9 + 145e9) / 67e12


def step_rows(options, known):
  """Yields times of steps: by Image config, precision, steps per dispatch and placement of the examples.

  Then yields a row per other way of running the first config.
  """
  waits = 2 if options.tiny else STEPS_BETWEEN_WAITS
  for case, (spec, overrides, count, placement) in _cases(options.tiny).items():
    if case not in known:
      config = loading.load(f'{spec},regime=scratch', overrides)
      yield {'case': case} | measure_steps(config, count, waits, placement)


def _cases(tiny) -> dict:
  """{case: (config, overrides, steps per dispatch, placement of the examples)}."""
  specs = {'image transformer_rotary': CONFIGS[0], 'image transformer': 'configs/image.py:model=transformer'}
  precisions, dispatches, ways = ('bfloat16', 'float32'), (32, 8, 1), WAYS
  if tiny:
    specs, precisions, dispatches = {'demo': TINY}, ('float32',), (1, 2)
    ways = {name: WAYS[name] for name in list(WAYS)[:1]}
  cases = {}
  for (name, spec), precision, count in itertools.product(specs.items(), precisions, dispatches):
    case, setting = f'step {name} {precision} {count} per dispatch', {'runtime.precision': precision}
    cases[case] = spec, setting, count, 'host'
    if count == dispatches[0]:
      cases[f'{case}, examples on the device'] = spec, setting, count, 'device'
  name, spec = next(iter(specs.items()))
  for way, overrides in ways.items():
    setting = overrides | {'runtime.precision': precisions[0]}
    cases[f'step {name} {precisions[0]} 8 per dispatch, {way}'] = spec, setting, 8, 'host'
  return cases


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
    dispatch, key = _dispatch(built), jax.random.key(1)

    def run():
      nonlocal state
      for _ in range(dispatches):  # in flight together, as in training
        if resides:
          placed = device_data.PlacedChunk(on_device, sharding.everywhere(positions, mesh))
        else:
          placed = sharding.to_devices(chunk, mesh, spec.batch_size, rows, leading=1)
        state, records = dispatch(state, placed, jnp.int32(count), key)
      jax.block_until_ready(records)

    first = harness.timed(run)['seconds']
    times = harness.milliseconds(harness.sampled(run), per=dispatches * count)
  step = times['milliseconds'] / 1e3
  return times | {
    'examples_per_second': spec.batch_size / step,
    'batch_size': spec.batch_size,
    'teraflops_per_second': built.flops_per_step / step / 1e12,
    'first_call_seconds': first,
    'parameters': built.model.parameter_count,
  }


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


def profile(options, known):
  """Yields a row per config and way of running its layers: milliseconds of a step by kernel."""
  for spec in (TINY,) if options.tiny else CONFIGS:
    for name, overrides in LOOPS.items():
      case = f'{spec}, bfloat16{name}'
      if case not in known:
        config = loading.load(f'{spec},regime=scratch', overrides | {'runtime.precision': 'bfloat16'})
        yield {'case': case} | kernels_of(config)


def kernels_of(config) -> dict:
  """Milliseconds of a finetuning step on random bytes: in all, and of the slowest kernels."""
  with _finetuning(config, STEPS) as (dispatch, state, chunk):
    state, _ = jax.block_until_ready(dispatch(state, chunk))  # which compiles
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


def proofs(options, known):
  """Yields a row per call in the steps of some configs: the findings of `training.autotune` about it."""
  from lra_spt.training import autotune

  pairs = [(task, model) for task in ('image', 'pathx') for model in ('transformer_rotary', 's5', 'rglru')]
  configs = [f'configs/{task}.py:model={model},regime=masked' for task, model in pairs]
  for name in ['configs/demo.py'] if options.tiny else configs:
    config = loading.load(name, {'runtime.precision': 'bfloat16'})
    built = build(resolve(config), 'finetune')
    mesh = sharding.make_mesh(**dataclasses.asdict(built.runtime.mesh))
    with jax.set_mesh(mesh):
      calls = autotune.calls_of(built.typical_program, built.abstract_step(mesh))
      for call in calls:
        if call.text not in known:
          findings = autotune.prove(call, autotune.OPERATIONS[call.operation])
          rows = [dataclasses.asdict(finding) for finding in findings]
          chosen = autotune.fastest(findings)
          yield {'case': call.text, 'config': name, 'ok': bool(chosen), 'chosen': chosen, 'findings': rows}
    yield {'case': name, 'calls': len(calls)}


def benchmarks(options, known):
  """Yields rows of attention alone, then of whole steps."""
  yield from accelerator_attention.full_attention(options, known)
  yield from step_rows(options, known)


def ssm_rows(options, known):
  """Yields steps of state-space models beside plain implementations, then S4 on PathX beside its floor."""
  cases = [(size, kind, 'float32') for size in SSM_SIZES for kind in ssm.CONTENDERS]
  cases += [(PATHX_SIZE, 's4', precision) for precision in ('float32', 'bfloat16')]
  if options.tiny:
    size = Size(2, 32, 8, 2)
    cases = [(size, 's4 plain', 'float32'), (size, 's4', 'float32')]
  # The base of a comparison comes first, and all of a size before the next.
  cases.sort(key=lambda case: (case[0].length, bool(ssm.COMPARED[case[1]])))
  for size, kind, precision in cases:
    shape = f'ssm {size.batch}x{size.length} width {size.width}, {size.layers} layers'
    case = f'{shape} {kind} {precision}'
    if case in known:
      continue
    row = {'case': case} | size._asdict()
    try:
      run, sizes, _ = ssm.training_step(kind, size, precision=precision)
      count = 2 if options.tiny else STEPS_BETWEEN_WAITS
      times = harness.milliseconds(harness.sampled(functools.partial(run, count)), per=count)
    except Exception as error:  # a peer that does not fit must not end the comparison
      yield row | harness.not_run(error)
      continue
    row |= sizes | times
    for other in ssm.COMPARED[kind]:
      base = known.get(f'{shape} {other} float32', {}).get('milliseconds')
      row |= {f'times_faster_than {other}': base / row['milliseconds']} if base else {}
    yield row | ({'time_over_floor': row['milliseconds'] / PATHX_FLOOR} if size == PATHX_SIZE else {})


def populations(options, known):
  """Yields steps of several runs as one program, beside programs of one run."""
  counts, steps, rounds = ((2,), 2, 1) if options.tiny else ((2, 8, 32), 16, 5)
  for config in several.CASES[-1:] if options.tiny else several.CASES:
    for count in counts:
      case = f'{config}, {count} runs'
      if case not in known:
        yield {'case': case} | several.measured(config, count, steps, rounds)


def training(options, known):
  """Yields a row per run of configs/studies/image_epochs.py, from its result.json.

  The folder is that of the study, which `lra-spt study` and `python -m benchmarks mini` read.
  """
  from configs.studies import image_epochs
  from lra_spt.runs import experiment
  from lra_spt.studies import study

  runtime = {'data_dir': str(options.data_dir), 'tensorboard': False, 'progress': False}
  limits = {}
  if options.tiny:
    from data_prep.prepare import prepare

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
    case = f'{options.study} {job.folder}'
    if case not in known:
      result = experiment.run(job.config, options.workdir / 'image_epochs' / job.folder)
      keys = ('metrics', 'stages', 'parameters', 'seed', 'protocol', 'date', 'config', 'fingerprints')
      row = {'case': case, 'test_accuracy': result['metrics']['test']['accuracy']}
      yield row | {'runtime': job.config.runtime.to_dict()} | {key: result[key] for key in keys}


PARTS = {
  'proofs': proofs,
  'benchmarks': benchmarks,
  'profile': profile,
  'members': populations,
  'ssm': ssm_rows,
  'training': training,
}
