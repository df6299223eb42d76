"""Parts of accelerator.py about training steps: how long they take, and on which kernels."""

import collections
import contextlib
import gzip
import itertools
import json
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from lra_spt.config import loading
from lra_spt.distributed import sharding
from lra_spt.runs.build import build_stage
from lra_spt.training import device_data
from lra_spt.training.step import StepProgram, train_steps

STEPS_BETWEEN_WAITS = 32
CONFIGS = ('configs/image.py:model=transformer_rotary', 'configs/image.py:model=s4')
TINY = 'configs/demo.py:model=transformer'
LOOPS = {'': {}, ', layers in a loop': {'runtime.scan_layers': 'always'}}
STEPS, MOST = 8, 12  # of a profiled dispatch; kernels of its row
# How a step may be run otherwise than by default.
WAYS = {
  'layers in a loop': {'runtime.scan_layers': 'always'},
  'layers in a loop, elementwise again': {'runtime.scan_layers': 'always', 'runtime.remat': 'elementwise'},
  'layers in a loop, all but products again': {'runtime.scan_layers': 'always', 'runtime.remat': 'dots'},
  'layers in a loop, attention by cudnn': {'runtime.scan_layers': 'always', 'runtime.attention': 'cudnn'},
  'elementwise again': {'runtime.remat': 'elementwise'},
}


def step_rows(options, known):
  """A row per Image config, precision, number of steps per dispatch and, for the first of these, placement of
  the training examples; then a row per other way of running the first config."""
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
  found = {}
  for (name, spec), precision, count in itertools.product(specs.items(), precisions, dispatches):
    case, setting = f'step {name} {precision} {count} per dispatch', {'runtime.precision': precision}
    found[case] = spec, setting, count, 'host'
    if count == dispatches[0]:
      found[f'{case}, examples on the device'] = spec, setting, count, 'device'
  name, spec = next(iter(specs.items()))
  for way, overrides in ways.items():
    setting = overrides | {'runtime.precision': precisions[0]}
    found[f'step {name} {precisions[0]} 8 per dispatch, {way}'] = spec, setting, 8, 'host'
  return found


class RandomExamples:
  """Stands in for a split of images in gray: random bytes in memory."""

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
    """They have no other place."""


def measure_steps(config, count, between_waits, placement):
  """Time of a finetuning step on random bytes in dispatches of `count`: with moving batches to the device, or
  gathered there from a set of 50,000."""
  built = build_stage(config, 'finetune')
  spec, task, mesh = built.spec, built.task, sharding.make_mesh(**built.runtime.mesh)
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
          placed = device_data.Chunk(on_device, sharding.everywhere(positions, mesh))
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
  """Jitted steps of a stage, as training has them."""
  spec = built.spec
  return train_steps(
    StepProgram(built.model, built.objective, spec.optimizer, spec.schedule.resolved(1000), 100)
  )


@contextlib.contextmanager
def _finetuning(config, count):
  """(dispatch of `count` steps: (state, chunk) -> (state, records); a state; a chunk), on random bytes."""
  built = build_stage(config, 'finetune')
  size, mesh = built.spec.batch_size, sharding.make_mesh(**built.runtime.mesh)
  positions = np.arange(size * count, dtype=np.int32).reshape(count, size)
  chunk = RandomExamples(built.task, size * count).gather(positions)
  with jax.set_mesh(mesh):
    placed = sharding.to_devices(chunk, mesh, size, sharding.local_rows(mesh, size), leading=1)
    steps, key = _dispatch(built), jax.random.key(1)
    yield lambda state, chunk: steps(state, chunk, jnp.int32(count), key), built.fresh_state(mesh), placed


def profile(options, known):
  """A row per config and way of running its layers: milliseconds of a step by kernel, the largest of them."""
  for spec in (TINY,) if options.tiny else CONFIGS:
    for name, overrides in LOOPS.items():
      case = f'{spec}, bfloat16{name}'
      if case not in known:
        config = loading.load(f'{spec},regime=scratch', overrides | {'runtime.precision': 'bfloat16'})
        yield {'case': case} | kernels_of(config)


def kernels_of(config) -> dict:
  """Milliseconds of a finetuning step on random bytes: in all, and of the kernels that take most."""
  with _finetuning(config, STEPS) as (dispatch, state, chunk):
    state, _ = jax.block_until_ready(dispatch(state, chunk))  # which compiles
    with tempfile.TemporaryDirectory() as folder:
      with jax.profiler.trace(folder, create_perfetto_trace=True):
        jax.block_until_ready(dispatch(state, chunk))
      (path,) = pathlib.Path(folder).rglob('perfetto_trace.json.gz')
      with gzip.open(path, 'rt') as file:
        found = kernel_times(json.load(file))
  most = {
    name: round(found[name] / 1e3 / STEPS, 3) for name in sorted(found, key=found.get)[: -MOST - 1 : -1]
  }
  return {'milliseconds': round(sum(found.values()) / 1e3 / STEPS, 3), 'kernels': most}


def kernel_times(trace) -> dict[str, float]:
  """Microseconds by name of what ran on the streams of a device, in a trace of Perfetto; {} of a CPU's."""
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
