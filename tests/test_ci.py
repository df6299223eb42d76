"""Checks of continuous integration beside the tests themselves."""

import importlib.util
import os
import subprocess
import sys

import pytest

TPU = '<testcase classname="tests.test_tpu_aot" name="test_train_step"/>'
SKIPS = {
  'beam': "needs Apache Beam: pip install 'lra_spt[beam]'",
  'tracker': "needs wandb: pip install 'lra_spt[wandb]'",
  'tokamax': "needs jax 0.11 and the package tokamax: pip install 'lra_spt[gpu]'",
  'libtpu': 'libtpu exists for Linux on x86-64 only',
  'folder': 'no folder /shared: set LRA_SPT_SHARED to the folder with the real data',
  'images': 'no official Pathfinder images of 64 pixels in /shared/reference/pathfinder',
  'drawn': 'no Pathfinder images of 32 pixels in /shared/reference/pathfinder',
  'archive': 'no /shared/data/unpack.py',
  'other': 'because I say so',
}


@pytest.fixture(scope='module')
def wrong(repository):
  spec = importlib.util.spec_from_file_location('skipped', repository / '.ci' / 'skipped.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.wrong


def report(*cases):
  return f'<testsuites><testsuite>{"".join(cases)}</testsuite></testsuites>'


def skip(name):
  return f'<testcase classname="t" name="{name}"><skipped type="s" message="{SKIPS[name]}"/></testcase>'


def test_skips_are_refused_where_the_files_are(wrong, tmp_path):
  skips = report(TPU, *map(skip, SKIPS))
  assert wrong(skips, tmp_path / 'nothing') == ['t.other was skipped: because I say so']
  names = ['folder', 'images', 'drawn', 'archive', 'other']
  assert wrong(skips, tmp_path) == [f't.{name} was skipped: {SKIPS[name]}' for name in names]


def test_tpu_programs_must_have_been_compiled(wrong, tmp_path):
  assert wrong(report(TPU), tmp_path) == []
  assert wrong(report(), tmp_path) == ['no test compiled for a TPU']
  skipped = TPU.replace('/>', '><skipped message="libtpu exists for Linux on x86-64 only"/></testcase>')
  assert wrong(report(skipped), tmp_path) == ['no test compiled for a TPU']


def test_every_reason_in_the_tests_is_known(wrong, repository, tmp_path):
  """The reasons above occur in the tests."""
  sources = ''.join(
    path.read_text() for path in (repository / 'tests').rglob('*.py') if path.stem != 'test_ci'
  )
  for name, reason in SKIPS.items():
    if name != 'other':
      assert reason.split(' /')[0].split(' of ')[0].split(':')[0] in sources, name


@pytest.mark.parametrize(
  'arguments, workers', [([], 'all'), (['tests/test_ci.py'], 0), (['-m', 'slow'], 0), (['-m', 'gpu'], 0)]
)
def test_all_cores_for_all_tests_and_one_for_some(arguments, workers, repository, monkeypatch):
  """pytest stops before it collects tests, after it printed the number of workers."""
  program = (
    'import pytest, sys\n'
    'class Stop:\n'
    '  def pytest_sessionstart(self, session):\n'
    "    print('workers', session.config.option.numprocesses, session.config.option.dist)\n"
    "    pytest.exit('stopped', 0)\n"
    "sys.exit(pytest.main([*sys.argv[1:], '-p', 'no:cacheprovider'], plugins=[Stop()]))\n"
  )
  environment = {k: v for k, v in os.environ.items() if not k.startswith('PYTEST')}
  command = [sys.executable, '-c', program, *arguments]
  done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
  (line,) = (line for line in done.stdout.splitlines() if line.startswith('workers'))
  _, count, dist = line.split()
  if workers == 0:
    assert (count, dist) == ('0', 'no')
  else:
    assert int(count) >= 1
    assert dist == 'loadfile'
