"""Speed and memory of state-space models, side by side with plain implementations.

  python -m benchmarks ssm [--json PATH] [--rounds N] [--parts=steps,memory,layer] [--quick]

Parts:

  steps    a training step (forward, backward, AdamW, float32) of pre-norm encoders with LayerNorm: 4 layers
           of width 128, both directions, no dropout, a linear head. Ours are built as in training; the peers
           in benchmarks/peers are plain functions with the same surroundings. Every contender is a process of
           its own. They stay alive and take turns, so that a busy machine slows all of them alike. Ratios are
           taken round by round, and their medians are reported, of wall time and of processor time, which a
           busy machine disturbs less. Peak memory is what a process adds after its parameters, so it includes
           compilation.
  memory   what the compiler allocates for DLR's kernel with its gradient at length 16,384, and for the step
           of S4 at length 65,536 (batch 1, width 256, 6 layers), which also runs.
  layer    the parts of one layer, forward and backward.

's4 plain' sums over states as in the formula; 's4 products' does so with matrix products; 's4 torch' (if
PyTorch is installed) is organised like the authors' PyTorch layer without its extension.
--quick: toy sizes, one round. It shows that the command works, and measures nothing.
"""

import argparse
import functools
import json

from benchmarks import harness, ssm_parts
from benchmarks.ssm_parts import COMPARED, Size

FULL = {
  'steps': ((8, 1024, 128, 4), (2, 4096, 128, 4)),
  'dlr kernel': {'states': 1024, 'width': 128, 'length': 16384},
  'long': (1, 65536, 256, 6),
  'layer': ((8, 1024, 128, 1), (2, 4096, 128, 1)),
  'taken apart': ('s4', 's4d', 'dlr', 's5 64', 's5 256', 'lru', 's4 plain', 's4 products'),
}
QUICK = FULL | {
  'steps': ((2, 32, 8, 2),),
  'dlr kernel': {'states': 16, 'width': 8, 'length': 64},
  'long': (1, 64, 8, 2),
  'layer': ((2, 32, 8, 1),),
  'taken apart': ('s4', 's4 plain'),
}


def take_turns(kinds, size, rounds):
  """A row per contender; all of them alive together, a turn each per round."""
  workers, rows = {}, {}
  try:
    for kind in kinds:  # they compile one after the other
      workers[kind] = harness.Worker('ssm', '--serve', kind, *size)
      rows[kind] = workers[kind].answer()
    running = {kind: worker for kind, worker in workers.items() if 'not_run' not in rows[kind]}
    samples = harness.workers_in_turns(running, rounds)
  finally:
    for worker in workers.values():
      worker.close()
  for kind in kinds:
    row = {'contender': kind} | Size(*size)._asdict() | rows[kind]
    if kind not in samples:
      yield row
      continue
    taken = samples[kind]
    row |= harness.milliseconds(taken)
    row['peak_megabytes'] = round(taken[-1]['peak_bytes'] / 1e6)
    others = [other for other in COMPARED[kind] if other in samples]
    yield row | {'times_faster_than': {other: harness.ratios(samples[other], taken) for other in others}}


def in_process(part, sizes, rounds):
  """The rows of a part of ssm_parts.py, in a process of its own."""
  return harness.Worker('ssm', '--serve_part', part, json.dumps(sizes), rounds).answers()


def steps(sizes, rounds):
  for size in sizes['steps']:
    yield from take_turns(sizes['contenders'], size, rounds)


def memory(sizes, rounds):
  yield from in_process('dlr_kernel', sizes, rounds)
  yield from take_turns(['s4'], sizes['long'], 1)


PARTS = {
  'steps': steps,
  'memory': memory,
  'layer': functools.partial(in_process, 'layer'),
}


def show(row):
  """One line for a person."""
  row = {key: value for key, value in row.items() if key not in ('rounds', 'states', 'first_loss')}
  size = 'x'.join(str(row.pop(key)) for key in Size._fields if key in row)
  names = ' '.join(row.pop(key) for key in ('contender', 'part') if key in row)
  for other, ratio in row.pop('times_faster_than', {}).items():
    row[f'x faster than {other}'] = f'{ratio["wall"]} ({ratio["processor"]} cpu)'
  print(f'{names:26} {size:16}' + ', '.join(f'{key} {value}' for key, value in row.items()), flush=True)


def main(arguments=None):
  parser = harness.parser('ssm', __doc__, 'ssm_cpu.json')
  parser.add_argument('--rounds', type=int, default=9, help='turns of each contender')
  parser.add_argument('--parts', default=','.join(PARTS), help='some of them, separated by commas')
  parser.add_argument('--contenders', default=','.join(COMPARED), help='some of them, for the part steps')
  parser.add_argument('--quick', action='store_true', help='toy sizes, to see that everything works')
  parser.add_argument('--serve', nargs=5, help=argparse.SUPPRESS)
  parser.add_argument('--serve_part', nargs=3, help=argparse.SUPPRESS)
  options = parser.parse_args(arguments)
  if options.serve:
    return ssm_parts.serve(*options.serve)
  if options.serve_part:
    return ssm_parts.serve_part(*options.serve_part)

  parts = harness.chosen(parser, 'part', options.parts, PARTS)
  contenders = harness.chosen(parser, 'contender', options.contenders, COMPARED)
  harness.cpu_only()
  sizes, rounds = (QUICK, 1) if options.quick else (FULL, options.rounds)
  sizes = sizes | {'contenders': contenders}
  report = harness.report('ssm', __doc__.splitlines()[0], 'torch', quick=options.quick)
  report['command'] += f' --rounds={rounds} --parts={options.parts}'
  for name in parts:
    report[name] = []
    for row in PARTS[name](sizes, rounds):
      report[name].append(row)
      show(row)
      harness.write(options.json, report)
  print(f'written to {options.json}')


if __name__ == '__main__':
  main()
