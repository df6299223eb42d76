"""Two processes on this machine train one run, split by rows or by positions. After a kill one process
continues with the same batches and losses."""

import contextlib
import json
import os
import re
import shutil
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


def run_several(start_training, workdir, moments, *flags, devices=2, timeout=240, flags_of=None):
  """Starts one process for each of `moments` and waits until all end; returns (statuses, outputs). flags_of:
  further flags of each process."""
  address, count = f'127.0.0.1:{free_port()}', len(moments)
  logs = [workdir.parent / f'process{i}.log' for i in range(count)]
  processes = []
  with contextlib.ExitStack() as files:
    try:
      for i, (log, moment) in enumerate(zip(logs, moments, strict=True)):
        place = (*(flags_of[i] if flags_of else ()), f'--coordinator={address}', f'--processes={count}')
        processes.append(
          start_training(
            workdir,
            *flags,
            *place,
            f'--process={i}',
            log=files.enter_context(log.open('w')),
            devices=devices,
            killed_at=moment,
          )
        )
      deadline = time.monotonic() + timeout
      while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.1)
      statuses = [process.poll() for process in processes]
    finally:
      stop(processes)
  return statuses, [log.read_text() for log in logs]


KILLED, AGAIN = -signal.SIGKILL, 75


@pytest.fixture(scope='module')
def continued(start_training, train, trajectory, tmp_path_factory):
  """(workdir of a run, its lines at the kill). Two processes of 2 devices begin the run. One of them is asked
  to end; both are started again, and one is killed. One process of 4 devices continues."""
  workdir = tmp_path_factory.mktemp('two') / 'run'
  statuses, printed = run_several(start_training, workdir, (None, 'asked:pretrain:4'))
  assert statuses == [AGAIN, AGAIN], printed
  assert '4 device(s)' in printed[0]
  for text in printed:
    stopped = re.search(r'lra-spt: pretrain was asked to end and stopped at step (\d+);', text)
    assert 4 <= int(stopped[1]) < 11, text
    assert 'Traceback' not in text
  statuses, printed = run_several(start_training, workdir, ('quick::', 'logged:pretrain:11'))
  assert statuses == [AGAIN, KILLED], printed
  assert 'lra-spt: process 1 of this run has not answered for ' in printed[0]
  before = trajectory(workdir)
  train(workdir, devices=4, killed_at='logged:pretrain:18')  # the rest would test nothing more
  return workdir, before


@pytest.mark.slow
def test_a_lost_first_process_ends_the_others(start_training, tmp_path):
  statuses, printed = run_several(start_training, tmp_path / 'run', ('logged:pretrain:4', 'quick::'))
  assert statuses == [KILLED, AGAIN], printed
  assert 'lra-spt: the first process of this run no longer answers; ' in printed[1]


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
  # The first process does not wait for others before it logs, so it may be a step ahead of the killed one.
  assert lines[-1]['step'] in (11, 12)


def test_one_process_goes_on_where_two_stopped(undisturbed, continued, trajectory):
  ((name, lines),) = trajectory(continued[0]).items()
  assert lines[-1]['step'] == 18
  compare(lines, trajectory(undisturbed)[name][: len(lines)])


@pytest.mark.slow
def test_four_processes_end_what_two_and_then_one_began(
  undisturbed, continued, start_training, trajectory, tmp_path
):
  """Four devices are divided among two, one and four processes in turn. The four split the parameters."""
  workdir = shutil.copytree(continued[0], tmp_path / 'run')
  flags = ('--config.runtime.mesh.fsdp=2',)
  statuses, printed = run_several(start_training, workdir, (None,) * 4, *flags, devices=1, timeout=600)
  assert statuses == [0] * 4, printed
  assert 'mesh data=2, fsdp=2, seq=1' in printed[0]
  whole, expected = trajectory(workdir), trajectory(undisturbed)
  assert whole.keys() == expected.keys()
  for name, lines in whole.items():
    compare(lines, expected[name])
  accuracies = [
    json.loads((run / 'result.json').read_text())['metrics']['test']['accuracy']
    for run in (undisturbed, workdir)
  ]
  assert accuracies[0] == accuracies[1]


@pytest.mark.slow
def test_two_processes_share_the_positions(undisturbed, start_training, train, trajectory, tmp_path):
  """With seq=2 on two processes of one device each, every layer exchanges data between processes. One device
  with the whole length continues."""
  workdir = tmp_path / 'run'
  flags = ('--config.runtime.mesh.seq=2',)
  statuses, printed = run_several(start_training, workdir, ('logged:pretrain:11', None), *flags, devices=1)
  assert statuses == [KILLED, AGAIN], printed
  assert '2 device(s)' in printed[0]
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
  """Each process reads the rows of its two devices; the process that continues reads all of them."""
  workdir = tmp_path / 'run'
  flags = ('--config.runtime.placement=device',)
  statuses, printed = run_several(start_training, workdir, ('logged:pretrain:11', None), *flags)
  assert statuses == [KILLED, AGAIN], printed
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
  """With different placements, each process would wait forever for a step of the other."""
  placements = [(f'--config.runtime.placement={placement}',) for placement in ('host', 'device')]
  statuses, printed = run_several(
    start_training, tmp_path / 'run', (None, None), devices=1, flags_of=placements
  )
  assert statuses == [2, 2], printed
  for text in printed:
    assert 'see runtime.placement differently' in text
    assert 'start all of them with the same flags' in text
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_two_processes_train_four_runs(start_training, train, trajectory, tmp_path):
  """Each device of two processes has one run; later one process continues all of them."""
  flags = ('--seeds=0..3', '--config.runtime.members=4')
  moments = ('logged:pretrain:11', 'quick::')
  statuses, printed = run_several(start_training, tmp_path / 'runs', moments, *flags)
  assert statuses == [KILLED, AGAIN], printed
  assert 'mesh member=4, data=1' in printed[0]
  statuses, printed = run_several(start_training, tmp_path / 'runs', (None, None), *flags)
  assert statuses == [0, 0], printed
  train(tmp_path / 'alone', devices=1, argument='regime=masked,seed=2')
  lines, expected = trajectory(tmp_path / 'runs' / 'seed2'), trajectory(tmp_path / 'alone')
  assert lines.keys() == expected.keys()
  for name, stage in lines.items():
    assert stage[-1]['step'] == 18
    for line, other in zip(stage, expected[name], strict=True):
      assert (line['step'], line['split']) == (other['step'], other['split'])
      np.testing.assert_allclose(line['loss'], other['loss'], rtol=1e-4)
