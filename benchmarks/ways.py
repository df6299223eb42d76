"""What the same maths costs in other ways: a training step of each mixer by other implementations.

  python -m benchmarks ways [--json PATH] [--rounds N] [--mixers NAME,...] [--sizes 8x1024,2x4096] [--resume]

Models, sizes and steps are those of `benchmarks.field`. `ours` is the default on a CPU. It takes turns with
the following, each in a process of its own: attention with its scores stored (`attention=reference`),
convolutions by matrix products instead of an FFT (`convolution=matmul`), recurrences as a tree or in chunks
(`scan=associative`, `scan=chunked`), and linear attention in chunks of other sizes (`chunk=N`), of which one
as long as the sequence stores all weights (`chunk=length`). Mixers that are not listed have only one way.
Ways that took more than five times ours at 8x1024 are left out of longer sequences, where they take minutes
per step.
--quick: toy sizes, one round; it shows that the command works, and measures nothing.
"""

import argparse
import json

from benchmarks import field, harness, ssm_parts
from benchmarks.field import SIZES
from benchmarks.ssm_parts import Size
from lra_spt.ops import linear_attention

SCORES = ('attention=reference',)
CONVOLUTIONS = ('convolution=matmul',)
SCANS = ('scan=associative', 'scan=chunked')
CHUNKS = ('chunk=16', 'chunk=64', 'chunk=256', 'chunk=length')
WAYS = {
  **dict.fromkeys(('attention', 'local', 'longformer', 'bigbird'), SCORES),
  **dict.fromkeys(('spade', 'mega'), (*SCORES, *CONVOLUTIONS)),
  **dict.fromkeys(('s4', 's4d', 'dlr', 'dss', 'sgconv', 'longconv', 'hyena'), CONVOLUTIONS),
  **dict.fromkeys(('s5', 'lru', 'rglru', 'mingru', 'mamba'), SCANS),
  **dict.fromkeys(('linear_transformer', 'performer', 'mamba2', 'mlstm'), CHUNKS),
}
SLOW = [('s5', SCANS[0]), ('lru', SCANS[0]), ('mamba2', CHUNKS[-1]), ('mlstm', CHUNKS[-1])]
CAUSAL = ('linear_transformer', 'performer')  # in their other form all positions are one product


def serve(name: str, way: str, *size: str) -> None:
  """A worker: one mixer at one size, in one way."""
  size = Size(*map(int, size))
  what, _, value = way.partition('=')
  if what == 'chunk':
    linear_attention.chunk_size = lambda keys, values: size.length if value == 'length' else int(value)
  execution = {} if what in ('ours', 'chunk') else {what: value}
  step = ssm_parts.training_step(field.options(name), size, causal=name in CAUSAL, **execution)
  harness.serve(*step)


def measured(name: str, size: Size, rounds: int) -> dict:
  """The columns of a row: of a mixer, {way: its cost and its time over ours}."""
  short = size.length <= 1024
  ways = ('ours', *(way for way in WAYS[name] if short or (name, way) not in SLOW))
  started = {way: harness.Worker('ways', '--serve', name, way, *size) for way in ways}
  try:
    hello = {way: worker.answer() for way, worker in started.items()}
    samples = harness.workers_in_turns(started, rounds)
  finally:
    for worker in started.values():
      worker.close()
  found = {
    way: harness.milliseconds(samples[way])
    | {'temporary_megabytes': hello[way]['temporary_megabytes']}
    | {'times_of_ours': harness.ratios(samples[way], samples['ours'])}
    for way in ways
  }
  least = {key: min(each['times_of_ours'][key] for each in found.values()) for key in ('wall', 'processor')}
  return {
    'causal': name in CAUSAL,
    'ways': found,
    'times_of_cheapest': {key: round(1 / value, 3) for key, value in least.items()},
  }


def main(arguments=None):
  parser = harness.parser('ways', __doc__, 'ways.json')
  parser.add_argument('--rounds', type=int, default=2, help='turns of each way')
  parser.add_argument('--mixers', default=','.join(WAYS), help='some of them, separated by commas')
  parser.add_argument('--sizes', default=','.join(SIZES[:2]), help='batch x length, separated by commas')
  parser.add_argument('--quick', action='store_true', help='toy sizes, to see that everything works')
  parser.add_argument('--serve', nargs=6, help=argparse.SUPPRESS)
  harness.add_resume(parser)
  given = parser.parse_args(arguments)
  if given.serve:
    return serve(*given.serve)

  mixers = harness.chosen(parser, 'mixer', given.mixers, WAYS)
  sizes = harness.chosen(parser, 'size', given.sizes, SIZES)
  harness.cpu_only()
  report = harness.report('ways', __doc__.splitlines()[0], quick=given.quick, rows=[])
  report['command'] += f' --sizes={given.sizes}'
  cases = [{'mixer': name, 'size': text} for text in sizes for name in mixers]

  def measure(mixer, size):
    return measured(mixer, field.size_of(size, given.quick), 1 if given.quick else given.rounds)

  harness.fill(given, report, cases, measure)
  worst = max(report['rows'], key=lambda row: row['times_of_cheapest']['wall'])
  print(f'furthest from the cheapest: {json.dumps({key: worst[key] for key in worst if key != "ways"})}')


if __name__ == '__main__':
  main()
