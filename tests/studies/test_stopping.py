"""A study that is asked to end passes that on to its runs, waits until they have saved, and goes on later."""

import os
import pathlib
import signal
import time
import types

import pytest

from lra_spt.cli import main as cli
from lra_spt.cli.commands import study as study_command
from lra_spt.distributed import signals
from lra_spt.studies import progress, runner


@pytest.mark.parametrize(
  ('first', 'status'), [(runner.FINISHED, 0), (runner.WAITING, 75), (runner.FAILED, 1)]
)
def test_the_exit_status_says_whether_to_run_it_again(monkeypatch, tmp_path, tiny_data, first, status):
  ends = {0: first, 1: runner.WAITING if first == runner.FAILED else runner.FINISHED}

  def run_all(jobs, workdir, **options):
    return {job: ends[min(number, 1)] for number, job in enumerate(jobs)}

  monkeypatch.setattr(runner, 'run_all', run_all)
  file = f'{pathlib.Path(__file__).parents[1]}/tiny_study.py:good'
  arguments = ['study', file, f'--workdir={tmp_path}', f'--config.runtime.data_dir={tiny_data}']
  assert cli.main(arguments) == status


@pytest.mark.parametrize('sign', signals.NUMBERS)
def test_a_study_that_is_asked_to_end_can_be_given_again(
  sign, request, monkeypatch, tmp_path, tiny_data, capsys
):
  def run(*arguments):
    try:
      os.kill(os.getpid(), sign)
      time.sleep(60)
    finally:  # while runs save, a scheduler repeats its signal
      if sign not in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), sign)
        os.kill(os.getpid(), signal.SIGTERM)

  monkeypatch.setattr(study_command, '_run', run)
  # If the tests run in the background, some of these signals may be ignored.
  before = signal.signal(sign, signal.default_int_handler if sign == signal.SIGINT else signal.SIG_DFL)
  request.addfinalizer(lambda: signal.signal(sign, before))
  file = pathlib.Path(__file__).parent.parent / 'tiny_study.py'
  arguments = [str(file), f'--workdir={tmp_path}', f'--config.runtime.data_dir={tiny_data}']
  assert cli.main(['study', *arguments]) == 75
  assert capsys.readouterr().err.endswith(
    'was stopped and its runs are saved; the same command resumes it.\n'
  )
  assert signal.getsignal(sign) in (signal.default_int_handler, signal.SIG_DFL)


def test_a_run_that_the_scheduler_asks_too_is_not_ended_before_it_has_saved():
  """A second SIGTERM or SIGINT would end a run at once, so the study sends another signal."""
  sent = []
  attempt = object.__new__(runner.Attempt)
  attempt.process = types.SimpleNamespace(send_signal=sent.append)
  attempt.ask_to_end()
  assert sent == [signal.SIGUSR2]


def test_a_process_of_several_runs_is_asked_to_end_once():

  class Attempt:
    asked = 0
    process = types.SimpleNamespace(poll=lambda: 75)

    def ask_to_end(self):
      self.asked += 1

  attempt = Attempt()
  runner._end(dict.fromkeys(('seed0', 'seed1', 'seed2'), attempt))
  assert attempt.asked == 1


class Unheeding:
  """An attempt of two runs that ignores the request to end."""

  jobs, log, logged_before, slot, seconds = ('seed0', 'seed1'), None, 0, 0, 0.0

  def __init__(self, *_):
    self.events, self.status = [], None
    self.process = types.SimpleNamespace(poll=lambda: self.status)

  def ask_to_end(self):
    self.events.append('asked')

  def end(self):
    self.events.append('ended')
    self.status = -9


@pytest.mark.parametrize('grace', [0.0, 60.0])
def test_runs_that_had_to_be_killed_are_not_called_saved(monkeypatch, grace):
  def ending():
    attempt.events.append('told')
    if grace:
      raise KeyboardInterrupt  # the second interruption

  attempt = Unheeding()
  monkeypatch.setattr(runner, 'GRACE', grace)
  assert runner._end({'seed0': attempt, 'seed1': attempt}, ending) == 2
  assert attempt.events == ['asked', 'told', 'ended']


def test_an_interruption_is_answered_at_once_and_in_the_end(monkeypatch, tmp_path, tiny_data, capsys):
  def interrupt(self, running):
    raise KeyboardInterrupt

  monkeypatch.setattr(runner, 'Attempt', Unheeding)
  monkeypatch.setattr(runner, 'GRACE', 0.0)
  monkeypatch.setattr(progress.Progress, 'watch', interrupt)
  file = f'{pathlib.Path(__file__).parents[1]}/tiny_study.py:good'
  arguments = ['study', file, f'--workdir={tmp_path}', f'--config.runtime.data_dir={tiny_data}']
  assert cli.main(arguments) == 75
  message, ended = capsys.readouterr().err.splitlines()[-2:]
  assert message == 'lra-spt: the runs save their states and end; interrupt again to end them at once.'
  assert ended == (
    'lra-spt: the study was stopped before 2 of its runs had saved; the same command resumes from their '
    'last checkpoints.'
  )
