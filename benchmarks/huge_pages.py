"""What a training step gains from huge pages, in which `lra-spt` trains on Linux.

  python -m benchmarks huge_pages [--json PATH] [--rounds N] [--contenders NAME,...] [--quick]

The steps are those of benchmarks.ssm, 8 x 1,024, 4 layers of width 128, and the same with full attention.
Each runs in two processes, one with the setting of lra_spt/huge_pages.py and one without. They take turns of
about a second, like a dispatch of many steps in training.
"""

import argparse

from benchmarks import harness, ssm_parts
from benchmarks.ssm_parts import Size

KINDS = {'attention': {'name': 'attention', 'heads': 8}} | {
  name: ssm_parts.CONTENDERS[name] for name in ('s4', 's5 64', 'lru')
}
SIZE, SMALL = Size(8, 1024, 128, 4), Size(2, 32, 16, 1)


def measured(kind: str, size: Size, rounds: int) -> dict:
  """The columns of a row."""
  workers = {}
  try:
    for name, pages in (('huge', True), ('small', False)):
      workers[name] = harness.Worker('huge_pages', '--serve', kind, *size, pages=pages)
      workers[name].answer()
    samples = harness.workers_in_turns(workers, rounds)
  finally:
    for worker in workers.values():
      worker.close()
  rows = {
    name: harness.milliseconds(taken) | {'peak_megabytes': round(taken[-1]['peak_bytes'] / 1e6)}
    for name, taken in samples.items()
  }
  return rows | {'times_faster': harness.ratios(samples['small'], samples['huge'])}


def main(arguments=None):
  parser = harness.parser('huge_pages', __doc__, 'huge_pages.json')
  parser.add_argument('--rounds', type=int, default=7, help='turns of each (%(default)s)')
  parser.add_argument('--contenders', default=','.join(KINDS), help='(%(default)s)')
  parser.add_argument('--quick', action='store_true', help='toy size, to see that everything works')
  parser.add_argument('--serve', nargs=5, help=argparse.SUPPRESS)
  harness.add_resume(parser)
  given = parser.parse_args(arguments)
  if given.serve:
    kind, *size = given.serve
    return harness.serve(*ssm_parts.training_step(KINDS[kind], Size(*map(int, size))))
  kinds = harness.chosen(parser, 'contender', given.contenders, KINDS)
  harness.cpu_only()
  size, rounds = (SMALL, 1) if given.quick else (SIZE, given.rounds)
  what = 'a training step with and without huge pages'
  report = harness.report('huge_pages', what, quick=given.quick, size=size._asdict(), rows=[])
  cases = [{'contender': kind} for kind in kinds]
  harness.fill(given, report, cases, lambda contender: measured(contender, size, rounds))


if __name__ == '__main__':
  main()
