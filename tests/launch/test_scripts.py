"""All scripts under shellcheck, the Dockerfile under hadolint, and the script for all GPUs of a machine."""

import os
import shutil
import subprocess
import sysconfig

from tests.launch.cloud import FLAGS, executable

SCRIPTS = ('gke_xpk.sh', 'multi_gpu.sh', 'queued_resource.sh', 'slurm.sbatch', 'tpu_vm.sh')


def checker(name):
  """The path of a program of the extra `test`, whose environment may not be on the PATH."""
  return shutil.which(name, path=sysconfig.get_path('scripts')) or name


def test_shellcheck_finds_nothing(repository):
  scripts = [repository / 'launch' / name for name in (*SCRIPTS, '../.ci/run')]
  done = subprocess.run(
    [checker('shellcheck'), '--exclude=SC1091', *scripts], capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stdout


def test_hadolint_finds_nothing(repository):
  command = [checker('hadolint'), '--no-color', repository / 'Dockerfile']
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout


def test_all_gpus_of_one_machine(checkout):
  command = ['bash', checkout / 'launch' / 'multi_gpu.sh', *FLAGS]
  missing = subprocess.run(command, capture_output=True, text=True, check=False)
  assert missing.returncode == 2
  assert f'{checkout}/.venv/bin/lra-spt' in missing.stderr
  executable(checkout / '.venv/bin/lra-spt', '#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
  environment = os.environ | {'CONFIG': 'configs/a.py', 'WORKDIR': 'runs/my run'}
  done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
  assert done.stdout.splitlines() == ['train', '--config=configs/a.py', '--workdir=runs/my run', *FLAGS]
