"""Fixtures of runs that take seconds, in processes of their own (a plugin of tests/conftest.py)."""

import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TINY = str(ROOT / 'tests' / 'tiny_config.py')


@pytest.fixture(scope='session')
def tiny_config():
  """The path of a config whose runs take seconds."""
  return TINY


@pytest.fixture(scope='session')
def start_training(tiny_data, compilation_cache, on_devices):
  """Starts `lra-spt train` on tests/tiny_config.py in a new process group; returns the Popen."""

  def start(
    workdir,
    *flags,
    argument='regime=masked',
    devices=2,
    killed_at=None,
    data_dir=tiny_data,
    log=subprocess.PIPE,
  ):
    program = [ROOT / 'tests' / 'killed_run.py', killed_at] if killed_at else ['-m', 'lra_spt']
    command = [sys.executable, *program, 'train', f'--config={TINY}:{argument}', f'--workdir={workdir}']
    environment = os.environ | compilation_cache | on_devices(devices) | {'PYTHONPATH': str(ROOT)}
    return subprocess.Popen(
      [*command, f'--config.runtime.data_dir={data_dir}', *flags],
      env=environment,
      cwd=ROOT,
      stdout=log,
      stderr=subprocess.STDOUT,
      text=True,
      start_new_session=True,
    )

  return start


@pytest.fixture(scope='session')
def train(start_training):
  """Runs `lra-spt train` to its end or to the moment `killed_at`, and returns its printed text."""

  def run(*arguments, killed_at=None, **options):
    process = start_training(*arguments, killed_at=killed_at, **options)
    try:
      printed, _ = process.communicate(timeout=300)
    finally:
      if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == (-signal.SIGKILL if killed_at else 0), printed
    return printed

  return run


@pytest.fixture(scope='session')
def made_once(tmp_path_factory):
  """made_once(name, make) -> a folder that `make(folder)` fills in the first process of a session that calls
  it; other processes wait."""
  base = tmp_path_factory.getbasetemp()
  base = base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base

  def get(name, make):
    folder, done = base / name, base / f'{name}.done'
    with (base / f'{name}.lock').open('w') as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      if not done.exists():
        make(folder)
        done.touch()
    return folder

  return get


@pytest.fixture(scope='session')
def undisturbed(train, made_once):
  """The workdir of a masked run on 2 devices that was never interrupted. Tests must not change it."""
  return made_once('undisturbed', train)


@pytest.fixture(scope='session')
def trajectory():
  """trajectory(workdir) -> {stage: lines of metrics.jsonl without measured times}."""

  def read(workdir):
    timed = ('seconds', 'examples_per_second', 'mfu')
    stages = {}
    for path in sorted(pathlib.Path(workdir).glob('*/metrics.jsonl')):
      lines = [json.loads(line) for line in path.read_text().splitlines()]
      stages[path.parent.name] = [{k: v for k, v in line.items() if k not in timed} for line in lines]
    return stages

  return read
