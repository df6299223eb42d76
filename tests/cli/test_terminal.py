"""Terminals and logs of other encodings, and output that cannot be written."""

import os
import subprocess
import sys

import pytest

from lra_spt.cli import streams
from tests.report.conftest import make_run


@pytest.fixture
def printing(repository, tmp_path):
  """Runs `lra-spt` in a shell, which may redirect or close the streams; returns the finished process."""

  def run(command, **environment):
    return subprocess.run(
      ['sh', '-c', f'exec "$PYTHON" -m lra_spt {command}'],
      cwd=tmp_path,
      env=os.environ | {'PYTHONPATH': str(repository), 'PYTHON': sys.executable} | environment,
      capture_output=True,
      timeout=120,
    )

  return run


ASCII = {'LC_ALL': 'POSIX', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'}


@pytest.mark.parametrize(
  'environment',
  [{'PYTHONIOENCODING': 'ascii'}, {'PYTHONIOENCODING': 'iso-8859-1'}, ASCII, {'PYTHONIOENCODING': 'utf-8'}],
)
def test_a_report_is_written_whatever_the_terminal_can_print(printing, tmp_path, environment):
  for regime, accuracy in (('scratch', 0.6), ('masked', 0.4)):
    make_run(tmp_path / 'runs' / regime, regime=regime, accuracy=accuracy)
  done = printing('report --workdir=runs', **environment)
  assert (done.returncode, done.stderr) == (0, b'')
  utf8 = environment.get('PYTHONIOENCODING') == 'utf-8'
  minus, arrow = map(str.encode, '\u2212\u2192') if utf8 else (b'?', b'?')
  assert minus + b'20.0 points' in done.stdout
  assert b'60.0 % ' + arrow + b' 40.0 %' in done.stdout
  assert '\u2212' in (tmp_path / 'runs' / 'report.html').read_text(encoding='utf-8')


@pytest.mark.parametrize('unbuffered', ['', '1'])
def test_output_that_cannot_be_written_is_a_sentence(printing, tmp_path, unbuffered):
  make_run(tmp_path / 'runs' / 'a')
  for command in ('list tasks', 'list', 'report --workdir=runs'):
    done = printing(f'{command} > /dev/full', PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 2, command
    assert done.stderr.decode() == (
      'lra-spt: standard output could not be written: no space is left on the disk; make room and run the '
      'same command again.\n'
    )


def test_closed_output_is_no_error(printing, tmp_path):
  make_run(tmp_path / 'runs' / 'a')
  for command in ('list tasks >&-', 'report --workdir=runs >&-', 'report --workdir=runs >&- 2>&- <&-'):
    done = printing(command)
    assert (done.returncode, done.stdout, done.stderr) == (0, b'', b''), command
  page = (tmp_path / 'runs' / 'report.html').read_text(encoding='utf-8')
  assert page.startswith('<!')
  assert '\u2013' in page
  done = printing('train --config=absent.py --workdir=W 2>&-')  # this command restarts its process first
  assert (done.returncode, done.stdout, done.stderr) == (2, b'', b'')


def test_a_terminal_that_is_closed_ends_no_command(monkeypatch):
  """SIGHUP asks a run to save; what it prints then has nowhere to go."""
  ours, theirs = os.openpty()
  for name in ('stdout', 'stderr'):
    monkeypatch.setattr(sys, name, open(os.dup(theirs), 'w', encoding='ascii'))
  opened = [sys.stdout, sys.stderr]
  streams.prepare()
  assert (sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.errors) == (True, 'ascii', 'replace')
  print('a \u2212')
  assert os.read(ours, 100) == b'a ?\r\n'
  os.close(ours)
  for stream in (sys.stdout, sys.stderr):
    print('to nobody', file=stream, flush=True)
  for stream in (sys.stdout, sys.stderr, *opened):
    stream.close()
  os.close(theirs)
