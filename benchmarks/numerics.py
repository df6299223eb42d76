"""Errors of the kernels of state-space models at 16,384 and 65,536 positions, against float64.

  python -m benchmarks numerics [--only scan]

Runs the tests that are marked `numerics` (tests/ops), which have the references, and collects the errors that
they measured with the bounds that they held them to: of values and of gradients, relative to the largest
value. Minutes; pytest shows how far it is. Writes benchmarks/results/numerics.json, unless a test failed.
"""

import json
import sys

from benchmarks import harness, slow_tests


def measured(case) -> list[dict]:
  """The rows of a test, an element `testcase` of pytest's report."""
  test = f'{case.get("classname")}.{case.get("name")}'
  noted = [one for one in case.iter('property') if one.get('name') == 'numerics']
  return [{'test': test} | json.loads(one.get('value')) for one in noted]


def main(arguments=None):
  """Exit status of pytest."""
  parser = harness.parser('numerics', __doc__, 'numerics.json')
  parser.add_argument('--only', default='', metavar='EXPRESSION', help='tests by name (-k of pytest)')
  given = parser.parse_args(arguments)
  harness.cpu_only()
  report = harness.report('numerics', __doc__.splitlines()[0])
  status, cases = slow_tests.run('numerics', '-k', given.only, 'tests/ops')
  if status:
    print(f'Nothing is written: the tests ended with status {status}.')
    return status
  report['rows'] = [row for case in cases for row in measured(case)]
  harness.write(given.json, report)
  print(f'{len(report["rows"])} errors of {len(cases)} tests; written to {given.json}')
  return 0


if __name__ == '__main__':
  sys.exit(main())
