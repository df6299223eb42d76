"""Speed and memory of state-space models, side by side with plain implementations.

  python benchmarks/ssm.py [--json PATH] [--rounds N] [--parts=steps,memory,lengths,layer] [--quick]

Parts:

  steps    a training step (forward, backward, AdamW, float32) of pre-norm encoders with LayerNorm: 4 layers
           of width 128, both directions, no dropout, a linear head. Ours are built as in training; the peers
           in benchmarks/peers are plain functions with the same surroundings. Every contender is a process of
           its own. They stay alive and take turns, so that a busy machine slows all of them alike. Ratios are
           taken round by round, and their median is reported: of wall time, and of processor time, which a
           busy machine disturbs less. Peak memory is what a process adds after its parameters, so with
           compilation.
  memory   what the compiler allocates for DLR's kernel with its gradient at length 16,384, and for the step
           of S4 at length 65,536 (batch 1, width 256, 6 layers), which also runs.
  lengths  steps of one layer of width 32 from length 1,024 to 65,536, at a constant number of tokens and,
           from 8,192 on, of one sequence; the slope is that of log(time of a sequence) over log(length).
  layer    the parts of one layer, forward and backward.

's4 plain' sums over states as the formula has it; 's4 products' is the same with matrix products.
--quick: toy sizes, one round. It shows that the command works, and measures nothing.
"""

import argparse
import datetime
import functools
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

from attention import RESULTS, hardware  # beside this file

FIELDS = ('batch', 'length', 'width', 'layers')
# What a contender is compared with.
COMPARED = {
  's4': ('s4 plain', 's4 products'), 's4 plain': (), 's4 products': (), 's4d': ('s4 plain',),
  'dlr': ('s4 plain',), 's5 64': ('s5 64 peer',), 's5 64 peer': (), 's5 256': ('s5 256 peer',),
  's5 256 peer': (), 'lru': ()}  # fmt: skip
FULL = {
  'steps': ((8, 1024, 128, 4), (2, 4096, 128, 4)),
  'dlr kernel': {'states': 1024, 'width': 128, 'length': 16384},
  'long': (1, 65536, 256, 6),
  'lengths': [2**n for n in range(10, 17)],
  'one sequence from': 8192,
  'swept': ('s4', 's4d', 's5 64', 'dlr'),
  'swept width': 32,
  'layer': ((8, 1024, 128, 1), (2, 4096, 128, 1)),
  'taken apart': ('s4', 's4d', 'dlr', 's5 64', 's5 256', 'lru', 's4 plain', 's4 products'),
}
QUICK = FULL | {
  'steps': ((2, 32, 8, 2),),
  'dlr kernel': {'states': 16, 'width': 8, 'length': 64},
  'long': (1, 64, 8, 2),
  'lengths': [16, 32],
  'one sequence from': 32,
  'swept': ('s4',),
  'swept width': 8,
  'layer': ((2, 32, 8, 1),),
  'taken apart': ('s4', 's4 plain'),
}
SLOW = 5.0  # seconds: what takes longer runs twice, whatever the number of rounds


def spawn(*arguments):
  """This file in a process of its own, with one CPU device."""
  root = str(pathlib.Path(__file__).resolve().parent.parent)
  environment = os.environ | {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': root, 'XLA_FLAGS': ''}
  command = [sys.executable, __file__, *map(str, arguments)]
  pipe = subprocess.PIPE
  return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, bufsize=1)


def answer(worker):
  line = worker.stdout.readline()
  if not line:
    raise SystemExit(f'ssm.py: {" ".join(worker.args[1:])} ended early, with status {worker.wait()}')
  return json.loads(line)


def take_turns(kinds, size, rounds):
  """A row per contender; all of them alive together, one step each per round."""
  workers, rows = {}, {}
  samples = {kind: [] for kind in kinds}
  try:
    for kind in kinds:  # they compile one after the other
      workers[kind] = spawn('--serve', kind, *size)
      rows[kind] = answer(workers[kind])
    for turn in range(rounds):
      for kind, worker in workers.items():
        if turn < 2 or samples[kind][0]['seconds'] < SLOW:
          worker.stdin.write('\n')
          samples[kind].append(answer(worker))
  finally:
    for worker in workers.values():
      worker.stdin.close()
      worker.wait()
  for kind, row in rows.items():
    row |= summary(samples[kind]) | {'peak_megabytes': round(samples[kind][-1]['peak_bytes'] / 1e6)}
    row['times_faster_than'] = {
      other: ratios(samples[kind], samples[other]) for other in COMPARED[kind] if other in samples
    }
  return [{'contender': kind} | dict(zip(FIELDS, size, strict=True)) | row for kind, row in rows.items()]


def summary(samples):
  """Milliseconds over rounds."""

  def median(key):
    return round(1e3 * statistics.median(sample[key] for sample in samples), 2)

  return {
    'milliseconds': median('seconds'),
    'fastest_milliseconds': round(1e3 * min(sample['seconds'] for sample in samples), 2),
    'processor_milliseconds': median('processor_seconds'),
    'rounds': len(samples),
  }


def ratios(samples, others):
  """Medians of the ratios of the rounds: others' time over ours."""
  pairs = list(zip(samples, others, strict=False))

  def median(key):
    return round(statistics.median(other[key] / own[key] for own, other in pairs), 2)

  return {'wall': median('seconds'), 'processor': median('processor_seconds')}


def in_process(part, sizes, rounds):
  """The rows of a part of ssm_parts.py, in a process of its own."""
  worker = spawn('--serve_part', part, json.dumps(sizes), rounds)
  worker.stdin.close()
  for line in worker.stdout:
    yield json.loads(line)
  if worker.wait():
    raise SystemExit(f'ssm.py: {part} failed with status {worker.returncode}')


def steps(sizes, rounds):
  for size in sizes['steps']:
    yield from take_turns(sizes['contenders'], size, rounds)


def memory(sizes, rounds):
  yield from in_process('dlr_kernel', sizes, rounds)
  yield from take_turns(['s4'], sizes['long'], 1)


PARTS = {
  'steps': steps,
  'memory': memory,
  'lengths': functools.partial(in_process, 'lengths'),
  'layer': functools.partial(in_process, 'layer'),
}


def show(row):
  """One line for a person."""
  row = {key: value for key, value in row.items() if key not in ('rounds', 'states', 'first_loss')}
  size = 'x'.join(str(row.pop(key)) for key in FIELDS if key in row)
  names = ' '.join(row.pop(key) for key in ('contender', 'part', 'mode') if key in row)
  for other, ratio in row.pop('times_faster_than', {}).items():
    row[f'x faster than {other}'] = f'{ratio["wall"]} ({ratio["processor"]} cpu)'
  print(f'{names:26} {size:16}' + ', '.join(f'{key} {value}' for key, value in row.items()), flush=True)


def commit():
  """The commit of this checkout, '+' when files differ; None outside of one."""
  try:
    head, changed = (
      subprocess.run(['git', *words], cwd=RESULTS, capture_output=True, text=True, check=True).stdout.strip()
      for words in ('rev-parse --short=12 HEAD'.split(), 'status --porcelain -uno'.split())
    )
    return head + ('+' if changed else '')
  except (OSError, subprocess.CalledProcessError):
    return None


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--json', type=pathlib.Path, default=RESULTS / 'ssm_cpu.json', help='output')
  parser.add_argument('--rounds', type=int, default=9, help='timed steps of each contender')
  parser.add_argument('--parts', default=','.join(PARTS), help='some of them, separated by commas')
  parser.add_argument('--contenders', default=','.join(COMPARED), help='some of them, for the part steps')
  parser.add_argument('--quick', action='store_true', help='toy sizes, to see that everything works')
  parser.add_argument('--serve', nargs=5, help=argparse.SUPPRESS)
  parser.add_argument('--serve_part', nargs=3, help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.serve or arguments.serve_part:
    import ssm_parts  # here, because it imports jax

    if arguments.serve:
      return ssm_parts.serve(*arguments.serve)
    return ssm_parts.serve_part(*arguments.serve_part)
  chosen, contenders = arguments.parts.split(','), arguments.contenders.split(',')
  for what, names, known in (('part', chosen, PARTS), ('contender', contenders, COMPARED)):
    unknown = [name for name in names if name not in known]
    if unknown:
      parser.error(f'there is no {what} {unknown[0]!r}; choose from {", ".join(known)}')

  sizes, rounds = (QUICK, 1) if arguments.quick else (FULL, arguments.rounds)
  sizes = sizes | {'contenders': contenders}
  report = {
    'what': __doc__.splitlines()[0],
    'quick': arguments.quick,
    'date': datetime.date.today().isoformat(),
    'commit': commit(),
    'hardware': hardware(),
    'versions': {'python': platform.python_version()},
    'load_average_before': os.getloadavg()[0],
  }
  arguments.json.parent.mkdir(parents=True, exist_ok=True)
  for name in chosen:
    report[name] = []
    for row in PARTS[name](sizes, rounds):
      report['versions'] |= row.pop('versions', {})
      report[name].append(row)
      show(row)
      report['load_average_after'] = os.getloadavg()[0]
      arguments.json.write_text(json.dumps(report, indent=2) + '\n')
  print(f'written to {arguments.json}')


if __name__ == '__main__':
  main()
