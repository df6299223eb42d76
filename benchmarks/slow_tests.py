"""Runs the tests marked slow and notes the outcome: python -m benchmarks slow_tests

Writes benchmarks/results/slow_tests.json: every slow test with its outcome and seconds, date, commit,
hardware and versions. Tests that need real data skip without it (set LRA_SPT_SHARED); skips are noted too.
"""

import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from benchmarks import harness


def outcome(case):
  """'passed', or what happened and why."""
  for kind in ('failure', 'error', 'skipped'):
    if (found := case.find(kind)) is not None:
      return f'{kind}: {found.get("message", "")[:200]}'
  return 'passed'


def run(marker: str, *options: str):
  """Runs the tests of a marker in this environment, with further options of pytest.

  Returns:
    exit status of pytest, and the elements `testcase` of its report.
  """
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'tests.xml'
    command = [sys.executable, '-m', 'pytest', '-n', '0', '-m', marker, f'--junitxml={path}', *options]
    status = subprocess.run(command, cwd=harness.ROOT, check=False).returncode
    return status, list(xml.etree.ElementTree.parse(path).iter('testcase'))


def main(arguments=None):
  """Exit status of pytest."""
  options = harness.parser('slow_tests', __doc__, 'slow_tests.json').parse_args(arguments)
  harness.cpu_only()
  report = harness.report('slow_tests', 'tests marked slow')
  status, cases = run('slow')
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


if __name__ == '__main__':
  sys.exit(main())
