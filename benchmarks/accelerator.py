"""Everything worth doing on a freshly lent GPU machine: one command, under 30 minutes.

  python benchmarks/accelerator.py --data_dir=data                 # all parts; the same command resumes
  python benchmarks/accelerator.py --parts=kernels,benchmarks --minutes=benchmarks=5
  python benchmarks/accelerator.py --platform=cpu --tiny           # toy sizes, no GPU: does the command work?

Parts, each in processes of its own and killed when its minutes are over:

  tests       pytest -m gpu
  kernels     attention and its gradients, float32 and bfloat16, against float64
  benchmarks  attention, forward and backward, beside jax's cuDNN and XLA routes and PyTorch's fused attention (where
              torch is installed); training steps of the Image configs by steps per dispatch and precision
  training    Image, rotary Transformer with the values of the paper's Table 4: from scratch and with masked
              self-pretraining under equal total times, on `lra-spt prepare cifar10` in --data_dir

The output file is written after every measured case, so a killed run keeps what it has: the next run of the same
command measures what is missing, and training goes on from its checkpoints in --workdir.

This has run at toy size on CPUs only. It has not been run on a GPU yet: nothing here says how fast one is.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MINUTES = {'tests': 3.0, 'kernels': 3.0, 'benchmarks': 8.0, 'training': 13.0}
PACKAGES = ('jax', 'jaxlib', 'jax-cuda12-plugin', 'jax-cuda13-plugin', 'nvidia-cudnn-cu12', 'nvidia-cudnn-cu13',
            'flax', 'optax', 'grain', 'numpy', 'torch')
ROW = 'ROW '  # a line of a part's process that starts so is a result
FEWEST_SAMPLES, SAMPLING_SECONDS = 5, 1.0
# Batch, length, heads, head dimension.
ATTENTION_SHAPES = {'image': (64, 1024, 4, 64), 'pathx': (4, 16384, 4, 32)}
# Precision of float32 products ('default' may be TF32 on a GPU) and largest error, relative to max(1, largest value).
KERNEL_PRECISIONS = (('float32', 'highest', 5e-5), ('float32', 'default', 5e-3), ('bfloat16', 'default', 2e-2))
TRAINING_SHARE = 0.42  # of the part's minutes for each of the two arms; the rest is for compiling and testing


# What the processes of the parts run: generators of rows. `known` holds the rows of earlier runs by case.


def machine(options, known):
  """One row: hardware and versions, or why jax does not see the platform."""
  import jax

  from lra_spt import parallel

  try:
    hardware = parallel.hardware()
  except RuntimeError as error:
    yield {'case': 'machine', 'not_run': str(error).splitlines()[0]}
    return
  query = ['nvidia-smi', '--query-gpu=name,driver_version,memory.total,power.limit', '--format=csv,noheader']
  try:
    hardware['nvidia_smi'] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
  except (OSError, subprocess.CalledProcessError):
    hardware['nvidia_smi'] = None
  hardware['matmul_precision'] = jax.config.jax_default_matmul_precision
  versions = {'python': sys.version.split()[0]}
  for package in PACKAGES:
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      continue
  yield {'case': 'machine', 'hardware': hardware, 'versions': versions}


def draw(shape_BLHK, dtype):
  """q, k, v and a gradient of the output; values that bfloat16 holds exactly."""
  import jax.numpy as jnp
  import numpy as np

  rng = np.random.default_rng(0)
  arrays = (jnp.asarray(rng.standard_normal(shape_BLHK), jnp.bfloat16) for _ in range(4))
  return [array.astype(dtype) for array in arrays]


def value_and_gradients(attend):
  """Jitted (q, k, v, d_out) -> (out, dq, dk, dv)."""
  import jax

  def both(q, k, v, d_out):
    out, pull = jax.vjp(attend, q, k, v)
    return out, *pull(d_out)

  return jax.jit(both)


def kernels(options, known):
  """A row per shape, pattern and precision, with the largest errors of the output and the gradients."""
  import functools

  import jax
  import jax.numpy as jnp
  import numpy as np

  from lra_spt.ops.attention import Causal, Full, attention

  shapes = [(1, 40, 2, 8)] if options.tiny else [(2, 200, 2, 16), (1, 4096, 4, 64)]
  for shape in shapes:
    short = jnp.full(shape[0], shape[1] * 2 // 3, jnp.int32)
    for name, pattern, lengths_B in (('full', Full(), None), ('causal', Causal(), None), ('padded', Full(), short)):
      cases = {f'{dtype}/{precision} {name} {"x".join(map(str, shape))}': (dtype, precision, tolerance)
               for dtype, precision, tolerance in KERNEL_PRECISIONS}
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
        good = all(error <= tolerance for error in errors.values())
        yield {'case': case, 'ok': good, 'tolerance': tolerance, 'errors': errors}


def jax_attention(kind, dtype, shape):
  """A function that runs attention and its gradients once, and the bytes that it needs beside its arrays."""
  import jax

  from lra_spt.ops.attention import Full, attention

  def attend(q, k, v):
    if kind == 'blockwise':
      return attention(q, k, v, pattern=Full(), implementation=kind)
    return jax.nn.dot_product_attention(q, k, v, implementation=kind)

  arrays = draw(shape, dtype)
  compiled = value_and_gradients(attend).lower(*arrays).compile()
  temporary = compiled.memory_analysis().temp_size_in_bytes
  return lambda: jax.block_until_ready(compiled(*arrays)), temporary


def torch_attention(dtype, shape, platform):
  """The same in PyTorch, in the same layout."""
  import torch

  device = 'cuda' if platform == 'gpu' else 'cpu'
  options = {'dtype': getattr(torch, dtype), 'device': device}
  q, k, v, d_out = (torch.randn(shape, **options).transpose(1, 2).requires_grad_() for _ in range(4))

  def run():
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.autograd.grad(out, (q, k, v), d_out)
    if device == 'cuda':
      torch.cuda.synchronize()

  return run, None


def seconds_of(run):
  """Wall seconds of several runs after two that do not count."""
  samples = []
  for _ in range(2):
    run()
  while len(samples) < FEWEST_SAMPLES or sum(samples) < SAMPLING_SECONDS and len(samples) < 200:
    start = time.perf_counter()
    run()
    samples.append(time.perf_counter() - start)
  return samples


def attention_rows(options, known):
  """A row per shape and contender; cuDNN first, to which the others are compared."""
  shapes = {'tiny': (2, 64, 2, 16)} if options.tiny else ATTENTION_SHAPES
  contenders = (('cudnn', 'bfloat16'), ('blockwise', 'bfloat16'), ('blockwise', 'float32'), ('torch', 'bfloat16'),
                ('xla', 'bfloat16'))
  for name, shape in shapes.items():
    batch, length, heads, width = shape
    for kind, dtype in contenders:
      case = f'attention {name} {kind} {dtype}'
      if case in known or (kind == 'xla' and length > 4096):  # its scores would need tens of gigabytes
        continue
      row = {'case': case, 'shape_BLHK': shape}
      try:
        make = torch_attention(dtype, shape, options.platform) if kind == 'torch' else jax_attention(kind, dtype, shape)
        run, temporary = make
        seconds = seconds_of(run)
      except Exception as error:  # a contender that a machine lacks or cannot run must not end the comparison
        yield row | {'not_run': f'{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ""}'[:300]}
        continue
      median = statistics.median(seconds)
      # Two products forward, five backward, as FlashAttention's papers count.
      row |= {'milliseconds': 1e3 * median, 'fastest_milliseconds': 1e3 * min(seconds), 'samples': len(seconds),
              'teraflops_per_second': 14 * batch * heads * length**2 * width / median / 1e12,
              'temporary_megabytes': None if temporary is None else temporary / 1e6}
      base = known.get(f'attention {name} cudnn bfloat16', {}).get('milliseconds')
      yield row | ({'time_over_cudnn': row['milliseconds'] / base} if base else {})


def step_rows(options, known):
  """A row per Image config, precision and number of steps per dispatch, on random bytes in the task's shapes."""
  from lra_spt import config as config_lib

  configs = {'demo': 'configs/demo.py:regime=scratch'} if options.tiny else {
    f'image {model}': f'configs/image.py:model={model},regime=scratch' for model in ('transformer_rotary', 'transformer')}
  precisions, dispatches = (('float32',), (1, 2)) if options.tiny else (('bfloat16', 'float32'), (32, 8, 1))
  for name, spec in configs.items():
    for precision in precisions:
      for count in dispatches:
        case = f'step {name} {precision} {count} per dispatch'
        if case not in known:
          config = config_lib.load(spec, {'runtime.precision': precision})
          yield {'case': case} | measure_steps(config, count)


def measure_steps(config, count):
  """Milliseconds per finetuning step, in dispatches of `count` steps; moving batches to the device is included."""
  import jax
  import jax.numpy as jnp
  import numpy as np

  from lra_spt import experiment, parallel
  from lra_spt.training import state as states
  from lra_spt.training.step import StepProgram, train_steps

  built = experiment.build(config, 'finetune')
  spec, task, mesh = built.spec, built.task, parallel.make_mesh()
  rng, shape = np.random.default_rng(0), (count, spec.batch_size)
  chunk = {
    'inputs': rng.integers(0, 256, (*shape, task.length), np.uint8), 'weight': np.ones(shape, np.float32),
    'label': rng.integers(0, task.classes, shape, np.int32), 'lengths': np.full(shape, task.length, np.int32),
    'index': np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)}
  rows = parallel.local_rows(mesh, spec.batch_size)
  program = StepProgram(built.model, built.objective, spec.optimizer, spec.schedule.resolved(1000), 100)
  with jax.set_mesh(mesh):
    state = states.create(built.model, spec.optimizer, 'max', jax.random.key(0), mesh)
    dispatch = train_steps(program)

    def run():
      nonlocal state
      for _ in range(max(1, 32 // count)):  # several dispatches in flight, as in training
        placed = parallel.to_devices(chunk, mesh, spec.batch_size, rows, leading=1)
        state, records = dispatch(state, placed, jnp.int32(count), jax.random.key(1))
      return float(records['loss'][-1])

    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    step = statistics.median(seconds_of(run)) / (max(1, 32 // count) * count)
  flops = 3 * built.model.flops * spec.batch_size
  return {'milliseconds': 1e3 * step, 'examples_per_second': spec.batch_size / step, 'batch_size': spec.batch_size,
          'teraflops_per_second': flops / step / 1e12, 'first_call_seconds': first,
          'parameters': built.model.parameter_count}


def benchmarks(options, known):
  """Both kinds of rows."""
  yield from attention_rows(options, known)
  yield from step_rows(options, known)


def training(options, known):
  """A row per arm: its budget and what result.json says."""
  from lra_spt import config as config_lib
  from lra_spt import experiment

  budget = round(options.minutes['training'] * 60 * TRAINING_SHARE)
  runtime = {'runtime.data_dir': str(options.data_dir), 'runtime.tensorboard': False, 'runtime.progress': False}
  if options.tiny:
    from data_prep.prepare import prepare

    prepare('stripes', options.workdir / 'data', examples=100)
    name, runtime['runtime.data_dir'] = 'demo', str(options.workdir / 'data')
    limits = {f'{stage}.{key}': 4 for stage in ('pretrain', 'finetune') for key in ('max_steps', 'evaluate_every')}
  else:
    name, limits = 'image', {}
    runtime |= {'runtime.precision': 'bfloat16', 'runtime.steps_per_dispatch': 32, 'runtime.evaluation_batch_size': 512}
  for regime in ('scratch', 'masked'):
    case = f'{name} {regime} {budget} s'
    if case in known:
      continue
    stages = ('finetune',) if regime == 'scratch' else ('pretrain', 'finetune')
    seconds = {f'{stage}.max_seconds': budget / len(stages) for stage in stages}
    model = '' if options.tiny else 'model=transformer_rotary,'
    config = config_lib.load(f'configs/{name}.py:{model}regime={regime}', runtime | limits | seconds)
    result = experiment.run(config, options.workdir / case.replace(' ', '-'))
    kept = ('metrics', 'stages', 'parameters', 'seed', 'protocol', 'date', 'config', 'fingerprints')
    yield {'case': case, 'budget_seconds': budget, 'runtime': config.runtime.to_dict()} | {k: result[k] for k in kept}


# The command itself: it never imports jax, so that the parts have the GPU's memory for themselves.


def command_of(part, options, arguments):
  """(command, environment) of a part's process."""
  gpu = options.platform == 'gpu'
  environment = os.environ | {'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cuda' if gpu else 'cpu'}
  environment.setdefault('JAX_COMPILATION_CACHE_DIR', str(options.workdir / 'compiled'))
  if not gpu:
    environment['XLA_FLAGS'] = ''
  if part in ('kernels', 'benchmarks'):  # torch needs memory beside jax
    environment['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
  if part != 'tests':
    return [sys.executable, str(pathlib.Path(__file__).resolve()), *arguments, '--serve', part], environment
  environment['LRA_SPT_TEST_PLATFORM'] = 'cuda' if gpu else 'cpu'
  # Only files with such tests: the others may need test requirements that a lent machine lacks.
  files = [str(path) for path in sorted((ROOT / 'tests').rglob('test_*.py')) if 'mark.gpu' in path.read_text()]
  return [sys.executable, '-m', 'pytest', '-q', '-rs', '-m', 'gpu', '-p', 'no:cacheprovider', *files], environment


def row_in(part, line):
  """The result that a line of output holds, or None."""
  if line.startswith(ROW):
    return json.loads(line.removeprefix(ROW))
  summary = part == 'tests' and re.search(r'\d+ (passed|failed|skipped|error).* in [\d.]+s', line)
  return {'case': 'pytest -m gpu', 'ok': not re.search('failed|error', line), 'summary': summary[0]} if summary else None


def run_part(part, options, arguments, keep):
  """Runs a part's process until its end or its time limit; keep(row) for every result. Returns a status."""
  command, environment = command_of(part, options, arguments)
  process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
  late = threading.Event()

  def stop():
    late.set()
    process.kill()

  timer = threading.Timer(60 * options.minutes.get(part, 3), stop)
  timer.start()
  try:
    for line in process.stdout:
      row = row_in(part, line)
      if row:
        keep(row)
      if not row or part == 'tests':
        print(line, end='', flush=True)
    code = process.wait()
  finally:
    timer.cancel()
    process.kill()
    process.wait()
  return 'stopped' if late.is_set() else 'failed' if code else 'finished'


def parse(arguments):
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--parts', default=','.join(MINUTES), help='which of them, separated by commas (default: all)')
  parser.add_argument('--minutes', default='', help='limits such as tests=2,training=10 (defaults: '
                      + ', '.join(f'{part}={minutes:g}' for part, minutes in MINUTES.items()) + ')')
  parser.add_argument('--platform', choices=('gpu', 'cpu'), default='gpu')
  parser.add_argument('--tiny', action='store_true', help='toy sizes, to see that everything works')
  parser.add_argument('--again', action='store_true', help='measure the parts anew, whatever the output file holds')
  parser.add_argument('--data_dir', type=pathlib.Path, default=pathlib.Path('data'), help='prepared sets (training)')
  parser.add_argument('--workdir', type=pathlib.Path, default=pathlib.Path('runs/accelerator'), help='runs, caches')
  parser.add_argument('--output', type=pathlib.Path, default=ROOT / 'benchmarks/results/accelerator.json')
  parser.add_argument('--commit', help='what to note as the commit, where the files are no git checkout')
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  options = parser.parse_args(arguments)
  options.parts = options.parts.split(',')
  try:
    limits = {part: float(text) for part, text in (item.split('=') for item in options.minutes.split(',') if item)}
  except ValueError:
    parser.error(f'--minutes is {options.minutes!r}; write it as tests=2,training=10')
  unknown = [part for part in (*options.parts, *limits) if part not in MINUTES]
  if unknown:
    parser.error(f'there is no part {unknown[0]!r}; the parts are {", ".join(MINUTES)}')
  if options.platform == 'cpu' and not options.tiny:
    parser.error('--platform=cpu measures nothing worth having at full size; add --tiny')
  options.minutes = MINUTES | limits
  for name in ('data_dir', 'workdir', 'output'):
    setattr(options, name, getattr(options, name).absolute())
  return options


def commit_of(options):
  """The commit of this checkout, '+' when files differ; None outside of one."""
  try:
    git = [subprocess.run(['git', *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
           for words in (('rev-parse', '--short=12', 'HEAD'), ('status', '--porcelain', '--untracked-files=no'))]
    return git[0] + ('+' if git[1] else '')
  except (OSError, subprocess.CalledProcessError):
    return options.commit


def opened(options, found):
  """The report to go on with: a new one, or that of the output file, which must be of the same kind of machine."""
  device = {key: found['hardware'][key] for key in ('platform', 'device_kind', 'devices')}
  report = {'what': __doc__.splitlines()[0], 'tiny': options.tiny, 'device': device, **found, 'parts': {}}
  if options.output.exists():
    before = json.loads(options.output.read_text(encoding='utf-8'))
    differing = [key for key in ('tiny', 'device', 'versions') if before.get(key) != report[key]]
    if differing:
      key = differing[0]
      raise SystemExit(f'accelerator.py: {options.output} holds results of another kind ({key}: {before.get(key)}, now '
                       f'{report[key]}); move it away or choose another --output')
    report['parts'] = before['parts']
  return report


def main(arguments):
  options = parse(arguments)
  if options.serve:
    known = {}
    if options.serve != 'machine' and options.output.exists():
      rows = json.loads(options.output.read_text(encoding='utf-8'))['parts'].get(options.serve, {}).get('rows', [])
      known = {row['case']: row for row in rows if row.get('ok', True) and 'not_run' not in row}
    for row in globals()[options.serve](options, known):
      known[row['case']] = row
      print(ROW + json.dumps(row), flush=True)
    return 0

  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` ends the part's process
  found = []
  status = run_part('machine', options, arguments, found.append)
  if status != 'finished' or not found or 'not_run' in found[0]:
    print(f'accelerator.py: jax sees no {options.platform.upper()} here; run this on a machine with an NVIDIA GPU and '
          'jax with CUDA, or add --platform=cpu --tiny to try it at toy size', file=sys.stderr)
    return 2
  report = opened(options, {key: found[0][key] for key in ('hardware', 'versions')})
  commit = commit_of(options)

  def save():
    report['updated'] = datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draft = options.output.with_name(options.output.name + '.part')
    draft.write_text(json.dumps(report, indent=2) + '\n', encoding='utf-8')
    os.replace(draft, options.output)

  for part in options.parts:
    if options.again:
      report['parts'].pop(part, None)
    done = report['parts'].setdefault(part, {'status': 'running', 'rows': []})
    if done['status'] == 'finished':
      print(f'{part}: finished before; --again measures it anew')
      continue

    def keep(row, part=part, done=done):
      done['rows'] = [other for other in done['rows'] if other['case'] != row['case']]
      done['rows'].append(row | {'commit': commit, 'date': datetime.date.today().isoformat()})
      save()
      short = {key: value for key, value in row.items() if isinstance(value, int | float | str) and key != 'case'}
      print(f'{part}: {row["case"]}: '
            + ', '.join(f'{k} {v:.4g}' if isinstance(v, float) else f'{k} {v}' for k, v in short.items()), flush=True)

    done |= {'status': 'running', 'minutes': options.minutes[part]}
    save()
    start = time.monotonic()
    status = run_part(part, options, arguments, keep)
    wrong = not done['rows'] or any(not row.get('ok', True) for row in done['rows'])
    done |= {'status': 'failed' if status == 'finished' and wrong else status,
             'seconds': round(done.get('seconds', 0) + time.monotonic() - start, 1)}
    if part == 'training':  # how far the arms came that have no row yet
      lines = {path: path.read_text(encoding='utf-8').splitlines() for path in options.workdir.rglob('metrics.jsonl')}
      done['last_lines'] = {str(path.parent.relative_to(options.workdir)): text[-1] for path, text in lines.items() if text}
    save()
    print(f'{part}: {done["status"]} after {done["seconds"]:.0f} s')
  print(f'written to {options.output}')
  return 0 if all(report['parts'][part]['status'] == 'finished' for part in options.parts) else 1


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
