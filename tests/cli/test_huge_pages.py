"""Huge pages: the setting in the environment, and the restarted process."""

import os
import subprocess
import sys

import pytest

from lra_spt.cli.huge_pages import VARIABLE, environment

PROGRAM = """
import os
print('started', flush=True)
os.confstr = lambda name: 'glibc 2.36'
from lra_spt.cli import main as cli
cli.main = lambda: print(os.getpid(), os.environ.get('GLIBC_TUNABLES'))
cli.command()
"""


def started(*arguments, **variables):
  """(process id, lines) of PROGRAM with these arguments."""
  given = {name: value for name, value in os.environ.items() if name != VARIABLE} | variables
  command = [sys.executable, '-c', PROGRAM, *arguments]
  process = subprocess.Popen(command, env=given, stdout=subprocess.PIPE, text=True)
  lines = process.communicate(timeout=60)[0].splitlines()
  assert process.returncode == 0
  return process.pid, lines


@pytest.mark.parametrize(
  ('before', 'after'),
  [
    ({}, 'glibc.malloc.hugetlb=1'),
    ({VARIABLE: 'glibc.malloc.check=1'}, 'glibc.malloc.check=1:glibc.malloc.hugetlb=1'),
    ({VARIABLE: 'glibc.malloc.hugetlb=0'}, 'glibc.malloc.hugetlb=0'),
  ],
)
def test_the_setting_joins_those_that_are_there(monkeypatch, before, after):
  monkeypatch.setattr(os, 'confstr', lambda name: 'glibc 2.36')
  assert environment({'HOME': '/nowhere'} | before) == {'HOME': '/nowhere', VARIABLE: after}


def test_a_training_command_starts_anew_as_the_same_process():
  pid, lines = started('train', '--config=x y.py')
  assert lines == ['started', 'started', f'{pid} glibc.malloc.hugetlb=1']


def test_it_does_not_where_nothing_is_trained_or_the_user_has_chosen():
  for arguments, variables in ((['list'], {}), (['train'], {VARIABLE: 'glibc.malloc.hugetlb=0'})):
    pid, lines = started(*arguments, **variables)
    assert lines == ['started', f'{pid} {variables.get(VARIABLE)}']


@pytest.mark.parametrize('library', ['glibc 2.34', 'musl 1.2', '', None])
def test_other_c_libraries_are_left_alone(monkeypatch, library):
  def confstr(name):
    if library is None:
      raise ValueError(name)
    return library

  monkeypatch.setattr(os, 'confstr', confstr)
  assert environment({}) == {}
