"""One command measures everything worth measuring on a fresh GPU machine, in about an hour, and can resume.

Each part is a process. The command itself does not use jax, so a part has the whole memory of the GPU.
"""

import argparse
import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

from benchmarks import harness
from lra_spt.runs import provenance

PACKAGES = 'jax-cuda12-plugin', 'jax-cuda13-plugin', 'nvidia-cudnn-cu12', 'nvidia-cudnn-cu13', 'tokamax'
PACKAGES += 'torch', 'triton', 'flash-linear-attention', 'mamba-ssm'
PARTS = {  # name: (minutes that it may take, question)
  'tests': (4, 'does `pytest -m gpu` pass?'),
  'errors': (2, 'how far are attention and its gradients from float64?'),
  'attention': (6, 'attention by every implementation, to every key and to the blocks of PathX'),
  'recurrences': (8, 'recurrences and long convolutions, beside flash-linear-attention and mamba-ssm'),
  'steps': (
    12,
    'training steps of Image and PathX, and their memory, by model, precision and way of running',
  ),
  'training': (9, 'epochs of Image: configs/studies/image_epochs.py on `lra-spt prepare cifar10`'),
  'profile': (2, 'on which kernels is the time of a step spent?'),
  'members': (3, 'steps of several runs of LRA-mini as one program, beside programs of one run'),
  'ssm': (6, 'steps of state-space models, beside plain implementations'),
  'proofs': (6, 'what autotune finds for Image and PathX: every implementation compared and timed'),
  'tune': (15, 'the fastest tiles of the Triton kernels, as lines for ops/attention/triton.py'),
}
DEFAULT = [part for part in PARTS if part != 'tune']
BESIDE_TORCH = ('tests', 'attention', 'recurrences')  # jax must leave memory to others
ROW = 'ROW '  # a line of a part's output that begins so is a result


def run_part(part, options, arguments, keep):
  """Runs a part's process until its end or its time limit, and calls keep(row) for every result.

  All other output goes to WORKDIR/PART.log.

  Returns:
    ('finished', 'failed' or 'stopped', the last line of the log).
  """
  paths = [str(harness.ROOT), *filter(None, [os.environ.get('PYTHONPATH')])]
  environment = os.environ | {'PYTHONPATH': os.pathsep.join(paths)}
  environment.setdefault('JAX_COMPILATION_CACHE_DIR', str(options.workdir / 'compiled'))
  if options.dry:
    environment['XLA_FLAGS'] = ''  # tests ask for several CPU devices
  if part in BESIDE_TORCH:
    environment['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
  command = [sys.executable, '-m', 'benchmarks', 'accelerator', *arguments, '--serve', part]
  pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True, 'start_new_session': True}
  process = subprocess.Popen(command, env=environment, cwd=harness.ROOT, **pipes)
  late, last = threading.Event(), ''

  def end():
    try:
      os.killpg(process.pid, signal.SIGKILL)  # pytest too
    except ProcessLookupError:
      pass

  def stop():
    late.set()
    end()

  minutes = options.minutes.get(part, 3) * (10 if options.dry else 1)  # a CPU may be slow and busy
  timer = threading.Timer(60 * minutes, stop)
  timer.start()
  options.workdir.mkdir(parents=True, exist_ok=True)
  try:
    with (options.workdir / f'{part}.log').open('a', encoding='utf-8') as log:
      for line in process.stdout:
        if line.startswith(ROW):
          keep(json.loads(line.removeprefix(ROW)))
          continue
        print(line, end='', file=log, flush=True)
        last = line.strip() or last
    code = process.wait()
  finally:
    timer.cancel()
    end()
    process.wait()
  return 'stopped' if late.is_set() else 'failed' if code else 'finished', last


def parse(arguments):
  """The flags of the command."""
  parser = harness.parser(run_accelerator)
  parser.add_argument('--list', action='store_true', help='print the parts, with what the output file has')
  harness.add_names(parser, '--only', PARTS, DEFAULT)
  parser.add_argument('--minutes', default='', help='other limits than those of --list, as tests=2,steps=10')
  parser.add_argument(
    '--dry', action='store_true', help='toy sizes, on a GPU or without: does every part work?'
  )
  parser.add_argument('--study', default='epochs=8', help='argument of the study of training (%(default)s)')
  parser.add_argument('--again', action='store_true', help='measure the parts anew')
  for name, default, text in (
    ('data_dir', 'data', 'prepared sets, for training'),
    ('workdir', 'runs/accelerator', 'runs, logs and compiled programs'),
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
    parser.error(f'--minutes is {options.minutes!r}; write it as tests=2,steps=10')
  if unknown := limits.keys() - PARTS.keys():
    parser.error(f'--minutes: there is no part {min(unknown)!r}; choose from {", ".join(PARTS)}')
  options.minutes = {part: minutes for part, (minutes, _) in PARTS.items()} | limits
  for name in ('data_dir', 'workdir', 'output'):
    setattr(options, name, getattr(options, name).absolute())
  return options


def stored(options) -> dict:
  """The parts that the output file has."""
  if not options.output.exists():
    return {}
  return json.loads(options.output.read_text(encoding='utf-8'))['parts']


def opened(options, known):
  """The report to go on with: a new one, or that of the output file if it is of the same kind of machine.

  known: hardware and versions of this machine.
  """
  device = {key: known['hardware'][key] for key in ('platform', 'device_kind', 'devices')}
  report = {'what': 'everything worth measuring on a GPU machine', 'dry': options.dry, 'device': device}
  report |= known | {'parts': {}}
  if options.output.exists():
    before = json.loads(options.output.read_text(encoding='utf-8'))
    differing = [key for key in ('dry', 'device', 'versions') if before.get(key) != report[key]]
    if differing:
      key = differing[0]
      raise SystemExit(
        f'{options.output} holds results of another kind ({key}: {before.get(key)}, '
        f'now {report[key]}); move it away or choose another --output'
      )
    report['parts'] = before['parts']
  return report


def machine(options):
  """Yields one case: hardware and versions."""
  query = ['nvidia-smi', '--query-gpu=name,driver_version,memory.total,power.limit', '--format=csv,noheader']

  def measure():
    hardware = provenance.hardware()
    try:
      done = subprocess.run(query, capture_output=True, text=True, check=True)
      hardware['nvidia_smi'] = done.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
      hardware['nvidia_smi'] = None
    return {'hardware': hardware, 'versions': harness.versions(*PACKAGES)}

  yield 'machine', measure


def serve(part, options):
  """Measures the cases of a part that the output file lacks, and prints a row for each.

  A part is a generator of (case, function that measures it and returns columns). A case that fails gets the
  reason as `not_run`, and is measured again by the next command.
  """
  from benchmarks import accelerator_attention, accelerator_recurrences, accelerator_steps  # they load jax

  parts = {'machine': machine}
  for module in (accelerator_attention, accelerator_recurrences, accelerator_steps):
    parts |= module.PARTS
  rows = stored(options).get(part, {}).get('rows', []) if part != 'machine' else []
  done = {row['case'] for row in rows if row.get('ok', True) and 'not_run' not in row}
  for case, measure in parts[part](options):
    if case not in done:
      try:
        row = measure()
      except Exception as error:
        row = harness.not_run(error)
      print(ROW + json.dumps({'case': case} | row), flush=True)


def run_accelerator(arguments):
  """Measures everything worth measuring on a fresh GPU machine, in about an hour.

    python -m benchmarks accelerator --dry                           # first: toy sizes, minutes
    python -m benchmarks accelerator --data_dir=data                 # all parts; the same command resumes
    python -m benchmarks accelerator --list                          # the parts, and what is measured
    python -m benchmarks accelerator --only=attention,steps --minutes=steps=20

  Each part runs in a process, which is killed when its minutes are over. The output file is written after
  every measured case, so nothing measured is lost. The same command then measures what is missing, and
  training resumes from its checkpoints in --workdir. A part or a case that fails says so in one line, and the
  next one goes on. With --dry the output is WORKDIR/dry.json unless --output names another file.

  An earlier form has run on an H100 with jax 0.11.2 (benchmarks/results/accelerator.json). `recurrences` and
  the steps of PathX have run nowhere but at toy size on a CPU.
  """
  options = parse(arguments)
  if options.dry and options.output == (harness.RESULTS / 'accelerator.json').absolute():
    options.output = options.workdir / 'dry.json'
  if options.serve:
    serve(options.serve, options)
    return 0
  if options.list:
    parts = stored(options)
    for name, (minutes, question) in PARTS.items():
      state = parts.get(name, {'status': 'not run', 'rows': []})
      print(f'{name:12} {minutes:2} min  {question} ({state["status"]}, {len(state["rows"])} rows)')
    return 0

  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # raises, so that `finally` ends the part
  rows = []
  _, reason = run_part('machine', options, arguments, rows.append)
  row = rows[0] if rows else {'not_run': reason}
  if 'not_run' in row or (row['hardware']['platform'] == 'cpu' and not options.dry):
    why = row.get('not_run', 'jax sees no GPU here')
    print(f'{why}; run this where jax has one, or add --dry to try every part at toy size', file=sys.stderr)
    return 2
  report = opened(options, {key: row[key] for key in ('hardware', 'versions')})
  commit = provenance.commit() or options.commit

  def save():
    report['updated'] = datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
    harness.write(options.output, report)

  for part in options.only:
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
    status, last = run_part(part, options, arguments, keep)
    wrong = [row['case'] for row in done['rows'] if not row.get('ok', True)]
    if status == 'finished' and (wrong or all('not_run' in row for row in done['rows'])):
      status, last = 'failed', f'wrong: {", ".join(wrong)}' if wrong else 'no case ran'
    done |= {'status': status, 'seconds': round(done.get('seconds', 0) + time.monotonic() - start, 1)}
    save()
    why = f': {last} ({options.workdir / part}.log)' if status != 'finished' else ''
    print(f'{part}: {status} after {done["seconds"]:.0f} s{why}')
  print(f'written to {options.output}')
  return 0 if all(report['parts'][part]['status'] == 'finished' for part in options.only) else 1


if __name__ == '__main__':
  sys.exit(run_accelerator(sys.argv[1:]))
