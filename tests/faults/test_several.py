"""Two processes of one run, of which one is struck: the short form of `python -m tests.faults.several`."""

import os
import subprocess
import sys

import pytest

from lra_spt.cli import main as cli
from tests.faults import several, struck
from tests.faults.several import Plan


@pytest.fixture(scope='module')
def environment(compilation_cache, on_devices):
  return compilation_cache | on_devices(1) | {struck.QUICK: '1'}


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  assert cli.main(['prepare', 'stripes', f'--data_dir={folder}', '--examples=40']) == 0
  return folder


STRIKES = (
  (Plan('SIGKILL', 1, 'saving'), [several.AGAIN, -9]),
  (Plan('reads', 1, 'compiling'), [2, 2]),
  (Plan('twice', 1, 'pretraining'), [2, 130]),
  (Plan('SIGKILL', 0, 'leaving'), [-9, 0]),
)


@pytest.mark.parametrize('strikes', [STRIKES[:1], pytest.param(STRIKES[1:], marks=pytest.mark.slow)])
def test_every_fault_of_one_process_costs_nothing_but_time(environment, data, tmp_path, strikes):
  """On one folder, one after the other; then the same command ends as if there had been none."""
  whole = several.run(tmp_path / 'whole', data, environment)
  assert whole.statuses == [0, 0], whole
  for plan, statuses in strikes:
    ended = several.run(tmp_path / 'run', data, environment, plan)
    assert several.wrong_end(plan, ended) == '', ended
    assert ended.statuses == statuses, ended
    assert statuses == [-9, 0] or '    @ ' not in ''.join(ended.printed), 'a dump of the stack'
  again = several.run(tmp_path / 'run', data, environment)
  assert again.statuses == [0, 0], again
  assert several.difference(tmp_path / 'run', several.numbers(tmp_path / 'whole')) <= several.TOLERANCE


@pytest.mark.parametrize('process', [0, 1])
def test_a_process_whose_others_never_come_says_so(process, repository):
  """jax would abort it, with a dump of its stack."""
  lines = 'from lra_spt.distributed import processes', 'processes.JOIN = 3.0'
  start = f'processes.start_processes(True, "127.0.0.1:{several.free_port()}", 2, {process})'
  done = subprocess.run(
    [sys.executable, '-c', '\n'.join([*lines, start])],
    env=os.environ | {'PYTHONPATH': str(repository)},
    capture_output=True,
    text=True,
    timeout=240,
    check=False,
  )
  sentence = 'lra-spt: not all processes of this run have joined within 3 s; start all of them again.\n'
  assert (done.returncode, done.stderr) == (several.AGAIN, sentence)
