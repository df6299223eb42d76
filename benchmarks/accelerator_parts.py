"""The parts of accelerator.py: what their processes run. Each is a generator of rows, one per measured case.

Their arguments: the command's options, and `known`, the rows of earlier runs by case, which are not measured
again.
"""

import functools
import importlib.metadata
import json
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import ssm_parts  # beside this file
from ssm import COMPARED

from lra_spt import parallel
from lra_spt.ops.attention import Causal, Full, attention

PACKAGES = ('jax', 'jaxlib', 'jax-cuda12-plugin', 'jax-cuda13-plugin', 'nvidia-cudnn-cu12',
            'nvidia-cudnn-cu13', 'flax', 'optax', 'grain', 'numpy', 'torch')
FEWEST_SAMPLES, MOST_SAMPLES, SAMPLING_SECONDS = 5, 200, 1.0
# Batch, length, heads, head dimension.
ATTENTION_SHAPES = {'image': (64, 1024, 4, 64), 'pathx': (4, 16384, 4, 32)}
KERNEL_SHAPES = ((2, 200, 2, 16), (1, 4096, 4, 64))
# Dtype, precision of products ('default' may be TF32 on a GPU), and bound on the largest error, relative to
# max(1, largest value).
KERNEL_PRECISIONS = (
  ('float32', 'highest', 5e-5), ('float32', 'default', 5e-3), ('bfloat16', 'default', 2e-2))
STEPS_BETWEEN_WAITS = 32
SSM_SIZES = ssm_parts.Size(8, 1024, 128, 4), ssm_parts.Size(2, 4096, 128, 4)
PATHX_SIZE = ssm_parts.Size(16, 16384, 256, 6)
# Least milliseconds of that S4 step in float32: operations of the FFTs of 16 sequences and of the kernels of
# all layers, forward and backward, at the 67 Tflop/s of an H100-class GPU; memory traffic takes 2.8 ms there.
PATHX_FLOOR = 1e3 * (16 * 9.89e9 + 145e9) / 67e12
TRAINING_SHARE = 0.42  # of the part's minutes for each of the two arms; the rest is for compiling and testing


def machine(options, known):
  """One row: hardware and versions, or why jax does not see the platform."""
  del options, known
  try:
    hardware = parallel.hardware()
  except RuntimeError as error:
    yield {'case': 'machine', 'not_run': str(error).splitlines()[0]}
    return
  query = ['nvidia-smi', '--query-gpu=name,driver_version,memory.total,power.limit', '--format=csv,noheader']
  try:
    done = subprocess.run(query, capture_output=True, text=True, check=True)
    hardware['nvidia_smi'] = done.stdout.splitlines()
  except (OSError, subprocess.CalledProcessError):
    hardware['nvidia_smi'] = None
  versions = {'python': sys.version.split()[0]}
  for package in PACKAGES:
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      continue
  yield {'case': 'machine', 'hardware': hardware, 'versions': versions}


def draw(shape_BLHK, dtype):
  """q, k, v and a gradient of the output; values that bfloat16 holds exactly."""
  rng = np.random.default_rng(0)
  arrays = (jnp.asarray(rng.standard_normal(shape_BLHK), jnp.bfloat16) for _ in range(4))
  return [array.astype(dtype) for array in arrays]


def value_and_gradients(attend):
  """Jitted (q, k, v, d_out) -> (out, dq, dk, dv)."""
  def both(q_BLHK, k_BLHK, v_BLHK, d_out_BLHK):
    out_BLHK, pull = jax.vjp(attend, q_BLHK, k_BLHK, v_BLHK)
    return out_BLHK, *pull(d_out_BLHK)

  return jax.jit(both)


def kernels(options, known):
  """A row per shape, pattern and precision: the largest errors of output and gradients against float64."""
  for shape in ((1, 40, 2, 8),) if options.tiny else KERNEL_SHAPES:
    short_B = jnp.full(shape[0], shape[1] * 2 // 3, jnp.int32)
    patterns = ('full', Full(), None), ('causal', Causal(), None), ('padded', Full(), short_B)
    for name, pattern, lengths_B in patterns:
      size = 'x'.join(map(str, shape))
      cases = {f'{kind[0]} {kind[1]} {name} {size}': kind for kind in KERNEL_PRECISIONS}
      if all(case in known for case in cases):
        continue
      attend = functools.partial(attention, pattern=pattern, kv_lengths_B=lengths_B)
      with jax.enable_x64(True):
        dense = functools.partial(attend, implementation='reference')
        expected = [np.asarray(x) for x in value_and_gradients(dense)(*draw(shape, jnp.float64))]
      for case, (dtype, precision, tolerance) in cases.items():
        with jax.default_matmul_precision(precision):
          results = value_and_gradients(attend)(*draw(shape, dtype))
        errors = {part: float(np.abs(np.asarray(x, np.float64) - y).max() / max(1, np.abs(y).max()))
                  for part, x, y in zip(('out', 'dq', 'dk', 'dv'), results, expected, strict=True)}
        largest = max(errors.values())
        row = {'case': case, 'ok': largest <= tolerance, 'largest': largest, 'tolerance': tolerance}
        yield row | {'errors': errors}


def jax_attention(kind, dtype, shape):
  """A function that runs attention and its gradients once, and the bytes that it needs beside its arrays."""
  def attend(q_BLHK, k_BLHK, v_BLHK):
    if kind == 'blockwise':
      return attention(q_BLHK, k_BLHK, v_BLHK, pattern=Full(), implementation=kind)
    return jax.nn.dot_product_attention(q_BLHK, k_BLHK, v_BLHK, implementation=kind)

  arrays = draw(shape, dtype)
  compiled = value_and_gradients(attend).lower(*arrays).compile()
  temporary = compiled.memory_analysis().temp_size_in_bytes
  return lambda: jax.block_until_ready(compiled(*arrays)), temporary


def torch_attention(dtype, shape, platform):
  """A function that does the same in PyTorch, in the same layout."""
  import torch  # here, because it is no requirement of the project

  settings = {'dtype': getattr(torch, dtype), 'device': 'cuda' if platform == 'gpu' else 'cpu'}
  q, k, v, d_out = (torch.randn(shape, **settings).transpose(1, 2).requires_grad_() for _ in range(4))

  def run():
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.autograd.grad(out, (q, k, v), d_out)
    if platform == 'gpu':
      torch.cuda.synchronize()

  return run


def seconds_of(run):
  """Wall seconds of several runs after two that do not count."""
  samples = []
  for _ in range(2):
    run()
  while len(samples) < FEWEST_SAMPLES or (sum(samples) < SAMPLING_SECONDS and len(samples) < MOST_SAMPLES):
    start = time.perf_counter()
    run()
    samples.append(time.perf_counter() - start)
  return samples


def attention_rows(options, known):
  """A row per shape and contender; cuDNN first, to which the others are compared."""
  contenders = (('cudnn', 'bfloat16'), ('blockwise', 'bfloat16'), ('blockwise', 'float32'),
                ('torch', 'bfloat16'), ('xla', 'bfloat16'))
  for name, shape in ({'tiny': (2, 64, 2, 16)} if options.tiny else ATTENTION_SHAPES).items():
    batch, length, heads, width = shape
    for kind, dtype in contenders:
      case = f'attention {name} {kind} {dtype}'
      if case in known or (kind == 'xla' and length > 4096):  # its scores would need tens of gigabytes
        continue
      row = {'case': case, 'shape_BLHK': shape}
      try:
        if kind == 'torch':
          run, temporary = torch_attention(dtype, shape, options.platform), None
        else:
          run, temporary = jax_attention(kind, dtype, shape)
        seconds = seconds_of(run)
      except Exception as error:  # what this machine lacks or cannot run must not end the comparison
        yield row | {'not_run': ' '.join(f'{type(error).__name__}: {error}'.split())[:300]}
        continue
      median = statistics.median(seconds)
      row |= {'milliseconds': 1e3 * median, 'fastest_milliseconds': 1e3 * min(seconds)}
      row['samples'] = len(seconds)
      # Two products forward and five backward, each 2 B H L L K operations, as FlashAttention's papers count.
      row['teraflops_per_second'] = 14 * batch * heads * length**2 * width / median / 1e12
      row['temporary_megabytes'] = None if temporary is None else temporary / 1e6
      base = known.get(f'attention {name} cudnn bfloat16', {}).get('milliseconds')
      yield row | ({'time_over_cudnn': row['milliseconds'] / base} if base else {})


def step_rows(options, known):
  """A row per Image config, precision and number of steps per dispatch."""
  from lra_spt import config as config_lib

  models = ('transformer_rotary', 'transformer')
  configs = {f'image {model}': f'configs/image.py:model={model},regime=scratch' for model in models}
  precisions, dispatches = ('bfloat16', 'float32'), (32, 8, 1)
  if options.tiny:
    configs, precisions, dispatches = {'demo': 'configs/demo.py:regime=scratch'}, ('float32',), (1, 2)
  for name, spec in configs.items():
    for precision in precisions:
      for count in dispatches:
        case = f'step {name} {precision} {count} per dispatch'
        if case not in known:
          config = config_lib.load(spec, {'runtime.precision': precision})
          yield {'case': case} | measure_steps(config, count, 2 if options.tiny else STEPS_BETWEEN_WAITS)


def measure_steps(config, count, between_waits):
  """Time of a finetuning step on random bytes in dispatches of `count`, with moving batches to the device."""
  from lra_spt import experiment
  from lra_spt.training import state as states
  from lra_spt.training.step import StepProgram, train_steps

  built = experiment.build(config, 'finetune')
  spec, task, mesh = built.spec, built.task, parallel.make_mesh(**built.runtime.mesh)
  rng, shape = np.random.default_rng(0), (count, spec.batch_size)
  chunk = {
    'inputs': rng.integers(0, 256, (*shape, task.length), np.uint8), 'weight': np.ones(shape, np.float32),
    'label': rng.integers(0, task.classes, shape, np.int32), 'lengths': np.full(shape, task.length, np.int32),
    'index': np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)}
  rows = parallel.local_rows(mesh, spec.batch_size)
  program = StepProgram(built.model, built.objective, spec.optimizer, spec.schedule.resolved(1000), 100)
  dispatches = max(1, between_waits // count)
  with jax.set_mesh(mesh):
    state = states.create(built.model, spec.optimizer, built.objective.selection[1], jax.random.key(0), mesh)
    dispatch, key = train_steps(program), jax.random.key(1)

    def run():
      nonlocal state
      for _ in range(dispatches):  # in flight together, as in training
        placed = parallel.to_devices(chunk, mesh, spec.batch_size, rows, leading=1)
        state, records = dispatch(state, placed, jnp.int32(count), key)
      jax.block_until_ready(records)

    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    step = statistics.median(seconds_of(run)) / (dispatches * count)
  return {
    'milliseconds': 1e3 * step, 'examples_per_second': spec.batch_size / step, 'batch_size': spec.batch_size,
    'teraflops_per_second': 3 * built.model.flops * spec.batch_size / step / 1e12,
    'first_call_seconds': first, 'parameters': built.model.parameter_count}


def benchmarks(options, known):
  """Attention alone, then whole steps."""
  yield from attention_rows(options, known)
  yield from step_rows(options, known)


def ssm(options, known):
  """Steps of state-space models beside plain implementations, then S4 on PathX beside its floor."""
  cases = [(size, kind, 'float32') for size in SSM_SIZES for kind in ssm_parts.CONTENDERS]
  cases += [(PATHX_SIZE, 's4', precision) for precision in ('float32', 'bfloat16')]
  if options.tiny:
    size = ssm_parts.Size(2, 32, 8, 2)
    cases = [(size, 's4 plain', 'float32'), (size, 's4', 'float32')]
  cases.sort(key=lambda case: bool(COMPARED[case[1]]))  # what others are compared with comes first
  for size, kind, precision in cases:
    shape = f'ssm {size.batch}x{size.length} width {size.width}, {size.layers} layers'
    case = f'{shape} {kind} {precision}'
    if case in known:
      continue
    row = {'case': case} | size._asdict()
    try:
      run, sizes, _ = ssm_parts.training_step(kind, size, precision=precision)
      count = 2 if options.tiny else STEPS_BETWEEN_WAITS
      seconds = [sample / count for sample in seconds_of(functools.partial(run, count))]
    except Exception as error:  # a peer that does not fit must not end the comparison
      yield row | {'not_run': ' '.join(f'{type(error).__name__}: {error}'.split())[:300]}
      continue
    row |= sizes | {'milliseconds': 1e3 * statistics.median(seconds), 'samples': len(seconds)}
    row['fastest_milliseconds'] = 1e3 * min(seconds)
    for other in COMPARED[kind]:
      base = known.get(f'{shape} {other} float32', {}).get('milliseconds')
      row |= {f'times_faster_than {other}': base / row['milliseconds']} if base else {}
    yield row | ({'time_over_floor': row['milliseconds'] / PATHX_FLOOR} if size == PATHX_SIZE else {})


def training(options, known):
  """A row per arm: its budget and what result.json says."""
  from lra_spt import config as config_lib
  from lra_spt import experiment

  budget = round(options.minutes['training'] * 60 * TRAINING_SHARE)
  runtime = {'data_dir': str(options.data_dir), 'tensorboard': False, 'progress': False}
  if options.tiny:
    from data_prep.prepare import prepare

    prepare('stripes', options.workdir / 'data', examples=100)
    name, argument, runtime['data_dir'] = 'demo', '', str(options.workdir / 'data')
    keys = ('max_steps', 'evaluate_every')
    limits = {f'{stage}.{key}': 4 for stage in ('pretrain', 'finetune') for key in keys}
  else:
    name, argument, limits = 'image', 'model=transformer_rotary,', {}
    runtime |= {'precision': 'bfloat16', 'steps_per_dispatch': 32, 'evaluation_batch_size': 512}
  runtime = {f'runtime.{key}': value for key, value in runtime.items()}
  for regime in ('scratch', 'masked'):
    case = f'{name} {regime} {budget} s'
    if case in known:
      continue
    stages = ('finetune',) if regime == 'scratch' else ('pretrain', 'finetune')
    seconds = {f'{stage}.max_seconds': budget / len(stages) for stage in stages}
    config = config_lib.load(f'configs/{name}.py:{argument}regime={regime}', runtime | limits | seconds)
    result = experiment.run(config, options.workdir / case.replace(' ', '-'))
    kept = ('metrics', 'stages', 'parameters', 'seed', 'protocol', 'date', 'config', 'fingerprints')
    row = {'case': case, 'test_accuracy': result['metrics']['test']['accuracy'], 'budget_seconds': budget}
    yield row | {'runtime': config.runtime.to_dict()} | {key: result[key] for key in kept}


PARTS = {part.__name__: part for part in (machine, kernels, benchmarks, ssm, training)}


def rows_of(part, options):
  """The rows of a part that the output file does not hold yet; what failed is measured again."""
  known = {}
  if part != 'machine' and options.output.exists():
    stored = json.loads(options.output.read_text(encoding='utf-8'))['parts'].get(part, {}).get('rows', [])
    known = {row['case']: row for row in stored if row.get('ok', True) and 'not_run' not in row}
  for row in PARTS[part](options, known):
    known[row['case']] = row
    yield row
