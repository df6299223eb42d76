"""`lra-spt doctor --cluster` accepts one process with 8 devices and two with one each, and finds planted
faults."""

import dataclasses
import json
import os
import socket
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lra_spt.cli import main as cli
from lra_spt.runs.cluster import checks

CONFIG = 'tests/tiny_config.py:model=transformer,regime=masked'
NAMES = {'devices', *checks.COLLECTIVES, 'shared files', 'locks', 'losses', 'scaling', 'kill and resume'}


@pytest.mark.parametrize('name', checks.COLLECTIVES)
def test_collectives(name):
  actual = checks.collective(name)
  assert actual['passed'], actual
  assert actual['gigabytes_per_second'] > 0


def test_a_wrong_sum_is_found(monkeypatch):
  _, expected, share = checks.COLLECTIVES['all-reduce']
  forgets_one = lambda x: lax.psum(jnp.where(lax.axis_index(checks.AXIS) == 3, 0, x), checks.AXIS)  # noqa: E731
  monkeypatch.setitem(checks.COLLECTIVES, 'all-reduce', (forgets_one, expected, share))
  assert not checks.collective('all-reduce')['passed']


def test_shared_files_and_locks(tmp_path):
  assert checks.shared_files(tmp_path)['passed']
  assert checks.locks(tmp_path / 'locked')['passed']


def test_losses_agree_unless_a_mesh_computes_others(monkeypatch):
  built = checks._built(CONFIG, precision='float32')
  monkeypatch.setattr(checks, '_meshes', lambda: {'fsdp=2': {'fsdp': 2}})
  actual = checks.losses(built)
  assert actual['passed'], actual
  assert 0 < actual['apart']['fsdp=2'] < checks.BOUND
  taken = checks.steps

  def wrong(built, mesh, rows, **options):
    one = taken(built, mesh, rows, **options)
    return checks.Steps(one.losses * (1 + 1e-3 * (mesh.size > 1)), one.norms, one.seconds, one.flops)

  monkeypatch.setattr(checks, 'steps', wrong)
  assert not checks.losses(built)['passed']


def test_apart():
  one = checks.Steps(np.ones(2, np.float32), np.ones(2, np.float32), 0.0, 0.0)
  assert checks._apart(one, one) == 0
  for name in ('losses', 'norms'):
    assert checks._apart(dataclasses.replace(one, **{name: np.float32([1, np.nan])}), one) == 1


@pytest.mark.parametrize(
  'flags, sentence',
  [
    (['--cluster'], 'needs --workdir, a new folder'),
    (['--workdir=W', '--processes=2'], 'are for lra-spt doctor --cluster'),
    (['--cluster', '--workdir=W'], 'holds the report of an earlier check'),
  ],
)
def test_wrong_usage(flags, sentence, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'W').mkdir()
  (tmp_path / 'W' / 'cluster.json').write_text('{}')
  assert cli.main(['doctor', *flags]) == 2
  assert sentence in capsys.readouterr().err


@pytest.fixture
def accept(repository, compilation_cache, on_devices, tmp_path):
  """accept(devices, processes) -> (the printed text of each process, the report)."""

  def run(devices, processes):
    command = [sys.executable, '-m', 'lra_spt', 'doctor', '--cluster', f'--workdir={tmp_path / "shared"}']
    environment = os.environ | compilation_cache | on_devices(devices) | {'PYTHONPATH': str(repository)}
    options = {'cwd': repository, 'env': environment, 'stdout': subprocess.PIPE, 'text': True}
    several = []
    if processes > 1:
      with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        several = [f'--coordinator=127.0.0.1:{probe.getsockname()[1]}', f'--processes={processes}']
    started = [
      subprocess.Popen(
        [*command, f'--config={CONFIG}', *several, *([f'--process={i}'] if several else [])],
        stderr=subprocess.STDOUT,
        **options,
      )
      for i in range(processes)
    ]
    try:
      printed = [process.communicate(timeout=3000)[0] for process in started]
    finally:
      for process in started:
        process.kill()
    logs = ''.join(path.read_text() for path in (tmp_path / 'shared').glob('*.log'))
    assert [process.returncode for process in started] == [0] * processes, (printed, logs[-6000:])
    return printed, json.loads((tmp_path / 'shared' / 'cluster.json').read_text())

  return run


@pytest.mark.slow
@pytest.mark.parametrize('devices, processes', [(8, 1), (1, 2)])  # two processes of two CPU devices may hang
def test_acceptance(devices, processes, accept):
  printed, report = accept(devices, processes)
  assert report['items'].keys() == NAMES
  assert all(item['passed'] for item in report['items'].values())
  assert report['hardware']['devices'] == devices * processes
  assert report['hardware']['processes'] == processes
  assert 0 < report['items']['kill and resume']['step'] < 60
  counts = [rate['devices'] for rate in report['items']['scaling']['by_devices']]
  assert counts == ([1, 2, 4, 8] if processes == 1 else [1, 2])
  assert printed[0].count('passed') == len(NAMES)
  assert printed[1:] == [''] * (processes - 1)
