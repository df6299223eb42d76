"""Outcomes of the slow tests, and the errors of kernels to float64 that tests measure."""

import json
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from benchmarks import harness


def outcome(case):
  """'passed', or the kind of the outcome and its reason."""
  for kind in ('failure', 'error', 'skipped'):
    if (element := case.find(kind)) is not None:
      return f'{kind}: {element.get("message", "")[:200]}'
  return 'passed'


def pytest(marker: str, *options: str):
  """Runs the tests of a marker in this environment, with further options of pytest.

  Returns:
    exit status of pytest, and the elements `testcase` of its report.
  """
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'tests.xml'
    command = [sys.executable, '-m', 'pytest', '-n', '0', '-m', marker, f'--junitxml={path}', *options]
    status = subprocess.run(command, cwd=harness.ROOT, check=False).returncode
    return status, list(xml.etree.ElementTree.parse(path).iter('testcase'))


def run_slow_tests(arguments):
  """Runs the tests marked slow and notes the outcome and seconds of each; returns the exit status of pytest.

  Tests that need real data skip without it (set LRA_SPT_SHARED); skips are noted too.
  """
  options = harness.parser(run_slow_tests, 'slow_tests.json').parse_args(arguments)
  harness.cpu_only()
  report = harness.report('slow_tests', 'tests marked slow')
  status, cases = pytest('slow')
  report['tests'] = [
    {
      'test': f'{case.get("classname")}.{case.get("name")}',
      'outcome': outcome(case),
      'seconds': round(float(case.get('time', 0)), 1),
    }
    for case in cases
  ]
  harness.write(options.json, report)
  print(f'{len(cases)} slow tests, pytest exit status {status}; written to {options.json}')
  return status


def measured(case) -> list[dict]:
  """The rows of a test; case: an element `testcase` of pytest's report."""
  test = f'{case.get("classname")}.{case.get("name")}'
  noted = [one for one in case.iter('property') if one.get('name') == 'numerics']
  return [{'test': test} | json.loads(one.get('value')) for one in noted]


def run_numerics(arguments):
  """Collects errors of the kernels of state-space models at 16,384 and 65,536 positions, against float64.

  Runs the tests that are marked `numerics` (tests/ops), which have the references, and collects the errors
  that they measured, with the bounds that they assert: of values and of gradients, relative to the largest
  value. Takes minutes; pytest shows the progress. Writes nothing if a test fails. Returns the exit status of
  pytest.
  """
  parser = harness.parser(run_numerics, 'numerics.json')
  parser.add_argument('--only', default='', metavar='EXPRESSION', help='tests by name (-k of pytest)')
  given = parser.parse_args(arguments)
  harness.cpu_only()
  report = harness.report('numerics', 'errors of kernels against float64')
  status, cases = pytest('numerics', '-k', given.only, 'tests/ops')
  if status:
    print(f'Nothing is written: the tests ended with status {status}.')
    return status
  report['rows'] = [row for case in cases for row in measured(case)]
  harness.write(given.json, report)
  print(f'{len(report["rows"])} errors of {len(cases)} tests; written to {given.json}')
  return 0
