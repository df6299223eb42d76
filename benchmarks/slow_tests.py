"""Runs the tests marked slow and notes the outcome: python benchmarks/slow_tests.py

Writes benchmarks/results/slow_tests.json: every slow test with its outcome and seconds, date, commit,
hardware and versions. Tests that need real data skip without it (set LRA_SPT_SHARED); skips are noted too.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULT = ROOT / 'benchmarks' / 'results' / 'slow_tests.json'


def outcome(case):
  """'passed', or what happened and why."""
  for kind in ('failure', 'error', 'skipped'):
    if (found := case.find(kind)) is not None:
      return f'{kind}: {found.get("message", "")[:200]}'
  return 'passed'


def main():
  """Exit status of pytest."""
  raw = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
  parser.add_argument('--json', type=pathlib.Path, default=RESULT, help='default: %(default)s')
  arguments = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    report = pathlib.Path(folder) / 'tests.xml'
    command = [sys.executable, '-m', 'pytest', '-m', 'slow', f'--junitxml={report}']
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    cases = list(xml.etree.ElementTree.parse(report).iter('testcase'))
  git = ['git', 'rev-parse', '--short=12', 'HEAD']
  commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
  arguments.json.write_text(json.dumps({
    'command': 'python benchmarks/slow_tests.py',
    'date': datetime.date.today().isoformat(),
    'commit': commit.stdout.strip() or None,
    'hardware': {'machine': platform.machine(), 'cpu_count': os.cpu_count()},
    'versions': {'python': platform.python_version(), 'jax': importlib.metadata.version('jax')},
    'tests': [
      {'test': f'{case.get("classname")}.{case.get("name")}', 'outcome': outcome(case),
       'seconds': round(float(case.get('time', 0)), 1)} for case in cases],
  }, indent=2) + '\n')  # fmt: skip
  print(f'{len(cases)} slow tests, pytest exit status {status}; written to {arguments.json}')
  return status


if __name__ == '__main__':
  sys.exit(main())
