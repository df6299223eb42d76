"""Everything worth measuring on a fresh GPU machine: one command, under 30 minutes, which resumes.

The command itself does not use jax, so its parts, processes of it, have the GPU's memory to themselves.
"""

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

from benchmarks import harness
from lra_spt.runs import provenance

PACKAGES = 'jax-cuda12-plugin', 'jax-cuda13-plugin', 'nvidia-cudnn-cu12', 'nvidia-cudnn-cu13', 'torch'
MINUTES = {
  'tests': 3.5,
  'kernels': 1.5,
  'proofs': 2.0,
  'attention': 2.0,
  'benchmarks': 4.0,
  'profile': 1.5,
  'members': 2.0,
  'ssm': 4.0,
  'training': 9.0,
  'tune': 15.0,
}
DEFAULT = [part for part in MINUTES if part != 'tune']
ROW = 'ROW '  # begins a line of a part's process that is a result


def command_of(part, options, arguments):
  """(command, environment) of a part's process."""
  gpu = options.platform == 'gpu'
  environment = os.environ | {'JAX_PLATFORMS': 'cuda' if gpu else 'cpu'}
  paths = [str(harness.ROOT), *filter(None, [os.environ.get('PYTHONPATH')])]  # there may be packages
  environment['PYTHONPATH'] = os.pathsep.join(paths)
  environment.setdefault('JAX_COMPILATION_CACHE_DIR', str(options.workdir / 'compiled'))
  if not gpu:
    environment['XLA_FLAGS'] = ''
  if part in ('tests', 'attention', 'benchmarks', 'ssm'):  # others need memory beside jax
    environment['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
  if part != 'tests':
    return [sys.executable, '-m', 'benchmarks', 'accelerator', *arguments, '--serve', part], environment
  environment['LRA_SPT_TEST_PLATFORM'] = 'cuda' if gpu else 'cpu'
  # Other files may need test requirements that a bare machine lacks.
  files = sorted(
    path for path in (harness.ROOT / 'tests').rglob('test_*.py') if 'mark.gpu' in path.read_text()
  )
  # The project's options ask for pytest-xdist, which a bare machine lacks too.
  options = ['-o', 'addopts=--import-mode=importlib', '-m', 'gpu', '-p', 'no:cacheprovider']
  options += ['-p', 'no:benchmark']  # pytest-benchmark, where there is one, warns of xdist
  if gpu and importlib.util.find_spec('xdist'):
    options += ['-n', str(min(8, os.cpu_count()))]
  pytest = [sys.executable, '-m', 'pytest', '-q', '-rs', *options]
  return [*pytest, *map(str, files)], environment


def row_in(part, line, platform):
  """The result in a line of output, or None."""
  if line.startswith(ROW):
    return json.loads(line.removeprefix(ROW))
  summary = part == 'tests' and re.search(r'\d+ (passed|failed|skipped|error).* in [\d.]+s', line)
  if not summary:
    return None
  # On a CPU all of them are skipped; on a GPU that would mean that nothing was tested.
  good = not re.search('failed|error', line) and ('passed' in line or platform == 'cpu')
  return {'case': 'pytest -m gpu', 'ok': good, 'summary': summary[0]}


def run_part(part, options, arguments, keep):
  """Runs a part's process until its end or its time limit, and calls keep(row) for every result.

  Returns:
    'finished', 'failed' or 'stopped'.
  """
  command, environment = command_of(part, options, arguments)
  process = subprocess.Popen(command, env=environment, cwd=harness.ROOT, stdout=subprocess.PIPE, text=True)
  late = threading.Event()

  def stop():
    late.set()
    process.kill()

  timer = threading.Timer(60 * options.minutes.get(part, 3), stop)
  timer.start()
  try:
    for line in process.stdout:
      row = row_in(part, line, options.platform)
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
  """The flags of the command."""
  parser = harness.parser(run_accelerator)
  harness.add_names(parser, '--parts', MINUTES, DEFAULT)
  parser.add_argument(
    '--minutes',
    default='',
    help='limits such as tests=2,training=10 (defaults: '
    + ', '.join(f'{part}={minutes:g}' for part, minutes in MINUTES.items())
    + ')',
  )
  parser.add_argument('--platform', choices=('gpu', 'cpu'), default='gpu')
  parser.add_argument('--tiny', action='store_true', help='toy sizes, to see that everything works')
  parser.add_argument('--study', default='epochs=8', help='argument of the study of training (%(default)s)')
  parser.add_argument('--again', action='store_true', help='measure the parts anew')
  for name, default, text in (
    ('data_dir', 'data', 'prepared sets, for training'),
    ('workdir', 'runs/accelerator', 'runs and compiled programs'),
    ('output', harness.RESULTS / 'accelerator.json', 'JSON file'),
  ):
    parser.add_argument(f'--{name}', type=pathlib.Path, default=default, help=f'{text} ({default})')
  parser.add_argument('--commit', help='the commit, where the files are no git checkout')
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  options = parser.parse_args(arguments)
  try:
    pairs = (item.split('=') for item in options.minutes.split(',') if item)
    limits = {part: float(text) for part, text in pairs}
  except ValueError:
    parser.error(f'--minutes is {options.minutes!r}; write it as tests=2,training=10')
  if unknown := limits.keys() - MINUTES.keys():
    parser.error(f'--minutes: there is no part {min(unknown)!r}; choose from {", ".join(MINUTES)}')
  if options.platform == 'cpu' and not options.tiny:
    parser.error('--platform=cpu measures nothing worth having at full size; add --tiny')
  options.minutes = MINUTES | limits
  for name in ('data_dir', 'workdir', 'output'):
    setattr(options, name, getattr(options, name).absolute())
  return options


def opened(options, known):
  """The report to go on with: a new one, or that of the output file if it is of the same kind of machine.

  known: hardware and versions of this machine.
  """
  device = {key: known['hardware'][key] for key in ('platform', 'device_kind', 'devices')}
  report = {'what': 'everything worth measuring on a GPU machine', 'tiny': options.tiny, 'device': device}
  report |= known | {'parts': {}}
  if options.output.exists():
    before = json.loads(options.output.read_text(encoding='utf-8'))
    differing = [key for key in ('tiny', 'device', 'versions') if before.get(key) != report[key]]
    if differing:
      key = differing[0]
      raise SystemExit(
        f'{options.output} holds results of another kind ({key}: {before.get(key)}, '
        f'now {report[key]}); move it away or choose another --output'
      )
    report['parts'] = before['parts']
  return report


def machine(options, known):
  """Yields one row: hardware and versions, or why jax does not see the platform."""
  del options, known
  try:
    hardware = provenance.hardware()
  except RuntimeError as error:
    yield {'case': 'machine', 'not_run': str(error).splitlines()[0]}
    return
  query = ['nvidia-smi', '--query-gpu=name,driver_version,memory.total,power.limit', '--format=csv,noheader']
  try:
    done = subprocess.run(query, capture_output=True, text=True, check=True)
    hardware['nvidia_smi'] = done.stdout.splitlines()
  except (OSError, subprocess.CalledProcessError):
    hardware['nvidia_smi'] = None
  yield {'case': 'machine', 'hardware': hardware, 'versions': harness.versions(*PACKAGES)}


def rows_of(part, options):
  """Yields the rows of a part that the output file lacks; a case that failed is measured again.

  A part is a generator of rows, one per measured case. Its arguments are the command's options, and `known`,
  the rows of earlier runs by case, which it does not measure again.
  """
  # Here, because these load everything that the parts need.
  from benchmarks import accelerator_attention, accelerator_steps

  parts = {'machine': machine, **accelerator_attention.PARTS, **accelerator_steps.PARTS}
  known = {}
  if part != 'machine' and options.output.exists():
    stored = json.loads(options.output.read_text(encoding='utf-8'))['parts'].get(part, {}).get('rows', [])
    known = {row['case']: row for row in stored if row.get('ok', True) and 'not_run' not in row}
  for row in parts[part](options, known):
    known[row['case']] = row
    yield row


def run_accelerator(arguments):
  """Measures everything worth measuring on a fresh GPU machine, in under 30 minutes.

    python -m benchmarks accelerator --data_dir=data                 # all parts; the same command resumes
    python -m benchmarks accelerator --parts=kernels,benchmarks --minutes=benchmarks=5
    python -m benchmarks accelerator --platform=cpu --tiny           # toy sizes, no GPU: does it work?

  Each part runs in a process, which is killed when its minutes are over:

    tests       pytest -m gpu
    kernels     attention and its gradients, float32 and bfloat16, against float64
    proofs      the findings of `lra-spt selftest` at the shapes of Image and PathX: every implementation of
                attention and of linear recurrences, compiled, compared, timed
    attention   block-neighbour attention at PathX's size, forward and backward, by every route, beside its
                floor and PyTorch's fused attention to the same pairs
    benchmarks  attention to every key, forward and backward, beside jax's cuDNN and XLA routes and PyTorch's
                fused attention (if torch is installed); training steps of the Image configs, several
                precisions and numbers of steps per dispatch
    members     steps of 2 and 8 runs of LRA-mini as one program, beside programs of one run
    ssm         training steps of state-space models beside plain implementations (benchmarks/peers), and of
                S4 on PathX beside its floor
    profile     the kernels on which the time of a step is spent
    training    configs/studies/image_epochs.py: Image at the size of the paper, from scratch and with masked
                self-pretraining, on `lra-spt prepare cifar10` in --data_dir
    tune        only when named: the fastest tiles of the Pallas kernels, as lines for ops/attention/triton.py

  The output file is written after every measured case, so a killed run keeps its results. The same command
  then measures what is missing, and training resumes from its checkpoints in --workdir.

  It has run on an H100 with jax 0.11.2, except for `proofs`, `tune` and most of `ssm` and `members`, for
  which there was no time (benchmarks/results/accelerator.json).
  """
  options = parse(arguments)
  if options.serve:
    for row in rows_of(options.serve, options):
      print(ROW + json.dumps(row), flush=True)
    return 0

  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` ends the part's process
  rows = []
  status = run_part('machine', options, arguments, rows.append)
  if status != 'finished' or not rows or 'not_run' in rows[0]:
    print(
      f'jax sees no {options.platform.upper()} here; run this on a machine with an '
      'NVIDIA GPU and jax with CUDA, or add --platform=cpu --tiny to try it at toy size',
      file=sys.stderr,
    )
    return 2
  report = opened(options, {key: rows[0][key] for key in ('hardware', 'versions')})
  commit = provenance.commit() or options.commit

  def save():
    report['updated'] = datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
    harness.write(options.output, report)

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
      short = {k: v for k, v in row.items() if isinstance(v, int | float | str) and k != 'case'}
      short = ', '.join(f'{k} {v:.4g}' if isinstance(v, float) else f'{k} {v}' for k, v in short.items())
      print(f'{part}: {row["case"]}: {short}', flush=True)

    done |= {'status': 'running', 'minutes': options.minutes[part]}
    save()
    start = time.monotonic()
    status = run_part(part, options, arguments, keep)
    wrong = not done['rows'] or any(not row.get('ok', True) for row in done['rows'])
    done |= {
      'status': 'failed' if status == 'finished' and wrong else status,
      'seconds': round(done.get('seconds', 0) + time.monotonic() - start, 1),
    }
    if part == 'training':  # the progress of arms that have no row yet
      logs = {path.parent: path.read_text().splitlines() for path in options.workdir.rglob('metrics.jsonl')}
      done['last_lines'] = {str(k.relative_to(options.workdir)): v[-1] for k, v in logs.items() if v}
    save()
    print(f'{part}: {done["status"]} after {done["seconds"]:.0f} s')
  print(f'written to {options.output}')
  return 0 if all(report['parts'][part]['status'] == 'finished' for part in options.parts) else 1
