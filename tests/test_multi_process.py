"""Two processes over loopback train one run, each with its own rows or its own positions; killed, one process
goes on with the same batches and losses."""

import contextlib
import os
import signal
import socket
import time

import numpy as np
import pytest


def free_port():
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    return probe.getsockname()[1]


def stop(processes):
  for process in processes:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)


def run_two(start_training, workdir, killed_at, *flags, devices=2, timeout=240, own=((), ())):
  """Process 0 dies at the moment; process 1, which cannot go on alone, after it. Returns the status of
  process 0 and what they said. own: further flags of each."""
  address, processes = f'127.0.0.1:{free_port()}', []
  logs = [workdir.parent / f'process{i}.log' for i in range(2)]
  with contextlib.ExitStack() as files:
    for i, log in enumerate(logs):
      place = [*own[i], f'--coordinator={address}', '--processes=2', f'--process={i}']
      processes.append(
        start_training(
          workdir,
          *flags,
          *place,
          log=files.enter_context(log.open('w')),
          devices=devices,
          killed_at=killed_at if i == 0 else None,
        )
      )
    try:
      deadline = time.monotonic() + timeout
      while all(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.1)
      # Process 0 holds the coordinator: its death may end process 1 too, before or after it is looked at.
      deadline = time.monotonic() + 5
      while processes[0].poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    finally:
      stop(processes)
  said = '\n'.join(log.read_text()[-4000:] for log in logs)
  return processes[0].returncode, said


@pytest.fixture(scope='module')
def continued(start_training, train, trajectory, tmp_path_factory):
  """Workdir of a run begun by 2 processes of 2 devices, continued by 1 of 4; its lines at the kill."""
  workdir = tmp_path_factory.mktemp('two') / 'run'
  status, said = run_two(start_training, workdir, 'logged:pretrain:11')
  assert status == -signal.SIGKILL, said
  assert '4 device(s)' in said
  before = trajectory(workdir)
  train(workdir, devices=4, killed_at='logged:pretrain:18')  # the rest has nothing to add
  return workdir, before


def compare(lines, expected):
  assert [(line['step'], line['split']) for line in lines] == [(e['step'], e['split']) for e in expected]
  for key in ('loss', 'gradient_norm', 'learning_rate'):
    np.testing.assert_allclose(
      [line.get(key, 0) for line in lines],
      [e.get(key, 0) for e in expected],
      rtol=1e-5 if key != 'gradient_norm' else 1e-3,
    )


def test_two_processes_see_the_batches_of_one(undisturbed, continued, trajectory):
  ((name, lines),) = continued[1].items()
  compare(lines, trajectory(undisturbed)[name][: len(lines)])
  assert lines[-1]['step'] == 11


def test_one_process_goes_on_where_two_stopped(undisturbed, continued, trajectory):
  ((name, lines),) = trajectory(continued[0]).items()
  assert lines[-1]['step'] == 18
  compare(lines, trajectory(undisturbed)[name][: len(lines)])


@pytest.mark.slow
def test_two_processes_share_the_positions(undisturbed, start_training, train, trajectory, tmp_path):
  """One device each and seq=2: every layer crosses processes. What goes on has one device and the whole
  length."""
  workdir = tmp_path / 'run'
  flags = ('--config.runtime.mesh.seq=2',)
  status, said = run_two(start_training, workdir, 'logged:pretrain:11', *flags, devices=1)
  assert status == -signal.SIGKILL, said
  assert '2 device(s)' in said
  ((name, lines),) = trajectory(workdir).items()
  expected = trajectory(undisturbed)[name]
  compare(lines, expected[: len(lines)])
  assert any(line['split'] == 'validation' for line in lines)
  train(workdir, devices=1, killed_at='logged:pretrain:18')
  ((_, lines),) = trajectory(workdir).items()
  compare(lines, expected[: len(lines)])
  assert lines[-1]['step'] == 18


@pytest.mark.slow
def test_two_processes_hold_the_training_set(undisturbed, start_training, train, trajectory, tmp_path):
  """Each process reads the rows of its own two devices; what goes on reads all from the host."""
  workdir = tmp_path / 'run'
  flags = ('--config.runtime.placement=device',)
  status, said = run_two(start_training, workdir, 'logged:pretrain:11', *flags)
  assert status == -signal.SIGKILL, said
  ((name, lines),) = trajectory(workdir).items()
  expected = trajectory(undisturbed)[name]
  assert lines[-1]['step'] == 11
  compare(lines, expected[: len(lines)])
  train(workdir, devices=1, killed_at='logged:pretrain:18')
  ((_, lines),) = trajectory(workdir).items()
  assert lines[-1]['step'] == 18
  compare(lines, expected[: len(lines)])


@pytest.mark.slow
def test_processes_with_different_placements_are_refused(start_training, tmp_path):
  """Or each would wait for the other in a step that it never takes."""
  own = [(f'--config.runtime.placement={placement}',) for placement in ('host', 'device')]
  status, said = run_two(start_training, tmp_path / 'run', None, devices=1, own=own)
  assert status == 2, said
  assert 'see runtime.placement differently' in said
  assert 'start all of them with the same flags' in said
  assert not (tmp_path / 'run').exists()
