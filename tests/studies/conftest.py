"""Studies of runs that take seconds (tests/tiny_study.py)."""

import os
import subprocess
import sys

import pytest


@pytest.fixture(scope='module')
def run_study(repository, tiny_data, compilation_cache, on_devices):
  """run_study(workdir, *flags, arg, **options) starts `lra-spt study tests/tiny_study.py`; the Popen."""
  # A run that is asked to end writes a line. If every step has one, lines do not depend on that moment.
  lines = ['--config.runtime.steps_per_dispatch=1', '--config.runtime.log_every=1']
  environment = os.environ | compilation_cache | on_devices(1) | {'PYTHONPATH': str(repository)}

  def start(workdir, *flags, arg='', **options):
    command = [sys.executable, '-m', 'lra_spt', 'study', f'tests/tiny_study.py{":" + arg if arg else ""}']
    command += [f'--workdir={workdir}', f'--config.runtime.data_dir={tiny_data}', *lines, *flags]
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True}
    return subprocess.Popen(
      command, cwd=repository, env=environment, start_new_session=True, **pipes, **options
    )

  return start
