"""The benchmarks start and explain themselves; the one for accelerators runs at toy size and resumes."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent.parent / 'benchmarks'
COMMANDS = sorted(path.name for path in FOLDER.glob('*.py') if 'ArgumentParser(' in path.read_text())
NO_GPU = {'CUDA_VISIBLE_DEVICES': ''}  # also on a machine that has one


@pytest.fixture(scope='module')
def run_script(repository, compilation_cache):
  """Runs a file of benchmarks/; returns the finished process."""
  def run(name, *flags, **environment):
    environment = os.environ | compilation_cache | {'PYTHONPATH': str(repository)} | environment
    return subprocess.run(
      [sys.executable, repository / 'benchmarks' / name, *flags], env=environment, timeout=400,
      capture_output=True, text=True)

  return run


@pytest.mark.parametrize('name', COMMANDS)
def test_help(run_script, name):
  done = run_script(name, '--help')
  assert done.returncode == 0, done.stderr
  assert name in done.stdout


@pytest.mark.parametrize('flags, sentence', [
  (['--parts=kernels,games'], "there is no part 'games'; the parts are tests, kernels, benchmarks, training"),
  (['--minutes=kernels'], "--minutes is 'kernels'; write it as tests=2,training=10"),
  (['--platform=cpu'], 'add --tiny'),
])
def test_accelerator_refuses(run_script, flags, sentence, tmp_path):
  done = run_script('accelerator.py', *flags, f'--output={tmp_path / "out.json"}')
  assert done.returncode == 2
  assert sentence in done.stderr
  assert not list(tmp_path.iterdir())


def test_accelerator_without_a_gpu(run_script, tmp_path):
  done = run_script(
    'accelerator.py', f'--output={tmp_path / "out.json"}', f'--workdir={tmp_path / "work"}', **NO_GPU)
  assert done.returncode == 2, done.stdout + done.stderr
  assert 'accelerator.py: jax sees no GPU here; run this on a machine with an NVIDIA GPU' in done.stderr
  assert not (tmp_path / 'out.json').exists()


@pytest.fixture(scope='module')
def tiny(run_script, tmp_path_factory):
  """(a function that runs the accelerator benchmark at toy size, its output file, the first process)."""
  folder = tmp_path_factory.mktemp('accelerator')

  def again(*flags):
    return run_script('accelerator.py', '--platform=cpu', '--tiny', '--parts=kernels,benchmarks',
                      f'--output={folder / "out.json"}', f'--workdir={folder / "work"}', *flags)

  return again, folder / 'out.json', again()


def test_accelerator_at_toy_size(tiny):
  _, output, done = tiny
  assert done.returncode == 0, done.stdout + done.stderr
  report = json.loads(output.read_text(encoding='utf-8'))
  assert report['tiny'] is True
  assert report['hardware']['platform'] == 'cpu'
  assert report['versions']['jax']
  assert {name: part['status'] for name, part in report['parts'].items()} == {
    'kernels': 'finished', 'benchmarks': 'finished'}
  kernels = report['parts']['kernels']['rows']
  assert len(kernels) == 9
  assert all(row['ok'] and 0 < row['largest'] <= row['tolerance'] for row in kernels)
  rows = {row['case']: row for row in report['parts']['benchmarks']['rows']}
  assert 'not_run' in rows['attention tiny cudnn bfloat16']  # cuDNN needs a GPU
  for case in ('attention tiny blockwise float32', 'step demo float32 2 per dispatch'):
    assert rows[case]['milliseconds'] > 0
    assert rows[case]['teraflops_per_second'] > 0
    assert {'commit', 'date'} <= rows[case].keys()


def test_accelerator_resumes(tiny):
  """A run that was killed in the middle goes on with what is missing and keeps what it had."""
  again, output, _ = tiny
  report = json.loads(output.read_text(encoding='utf-8'))
  part = report['parts']['kernels']
  # The first six cases are of two patterns; their times tell that they were not measured again.
  part |= {'status': 'running', 'rows': [row | {'date': 'before'} for row in part['rows'][:6]]}
  output.write_text(json.dumps(report), encoding='utf-8')
  done = again()
  assert done.returncode == 0, done.stdout + done.stderr
  assert 'benchmarks: finished before' in done.stdout
  rows = json.loads(output.read_text(encoding='utf-8'))['parts']['kernels']['rows']
  assert [row['date'] == 'before' for row in rows] == [True] * 6 + [False] * 3


def test_accelerator_keeps_results_of_another_machine(tiny):
  again, output, _ = tiny
  text = output.read_text(encoding='utf-8')
  other = json.loads(text)
  other['device']['device_kind'] = 'NVIDIA H200'
  output.write_text(json.dumps(other), encoding='utf-8')
  done = again()
  assert done.returncode == 1
  assert 'holds results of another kind (device' in done.stderr
  assert json.loads(output.read_text(encoding='utf-8')) == other
  output.write_text(text, encoding='utf-8')
