"""Signals ask a run to save and end."""

import os
import signal
import threading

import pytest

from lra_spt.cli import main as cli
from lra_spt.distributed import processes, signals
from lra_spt.studies import demo


@pytest.fixture(autouse=True)
def as_at_the_start():
  """Sets the signal handlers of a program that is started in a terminal."""
  before = {number: signal.getsignal(number) for number in signals.NUMBERS}
  for number in signals.NUMBERS:
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


@pytest.mark.parametrize('number', signals.NUMBERS)
def test_every_signal_asks_a_run_to_end(number, capfd):
  before = signal.getsignal(number)
  with processes.heeding_signals():
    assert not processes.asked_to_end()
    os.kill(os.getpid(), number)
    assert processes.asked_to_end()
    repeated = number not in (signal.SIGINT, signal.SIGTERM)
    for _ in range(3 * repeated):  # the kernel repeats this signal
      os.kill(os.getpid(), number)
  assert not processes.asked_to_end()
  assert signal.getsignal(number) is before
  assert capfd.readouterr().err.count('the run saves its state and ends') == 1


def test_a_second_interrupt_ends_the_process_at_once():
  with processes.heeding_signals():
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)


def test_several_processes_pass_a_signal_on(monkeypatch):
  """jax.distributed catches SIGTERM and informs all processes."""
  sent = []
  monkeypatch.setattr(processes.distributed.global_state, 'num_processes', 2)
  monkeypatch.setattr(processes.os, 'kill', lambda process, number: sent.append(number))
  with processes.heeding_signals():
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    signal.raise_signal(signal.SIGUSR1)
  assert sent == [signal.SIGTERM]


def test_handlers_of_others_stay():
  """nohup ignores SIGHUP, and a user's file may handle SIGUSR1. Other threads may not change any handler."""

  def theirs(number, frame):
    pass

  signal.signal(signal.SIGHUP, signal.SIG_IGN)
  signal.signal(signal.SIGUSR1, theirs)
  signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a batch script may ignore it for itself
  with signals.heeded(lambda number: None):
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGUSR1) is theirs
    assert signal.getsignal(signal.SIGUSR2) is not signal.SIG_IGN
  assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
  seen = []

  def in_thread():
    with processes.heeding_signals():
      seen.append(signal.getsignal(signal.SIGXCPU))

  thread = threading.Thread(target=in_thread)
  thread.start()
  thread.join()
  assert seen == [signal.SIG_DFL]


def test_the_demo_saves_too(monkeypatch, tmp_path):
  asked = []

  def run_all(workdir, seeds, *, smoke):
    os.kill(os.getpid(), signal.SIGUSR1)
    asked.append(processes.asked_to_end())

  monkeypatch.setattr(demo, 'run_all', run_all)
  assert cli.main(['demo', f'--workdir={tmp_path}']) == 0
  assert asked == [True]
