"""A repository in which the launch scripts are committed, and the cloud that they use."""

import shutil
import subprocess

import pytest

from tests.launch.cloud import Cloud


@pytest.fixture
def checkout(repository, tmp_path):
  """A small repository in which our scripts are committed."""
  folder = tmp_path / 'checkout'
  shutil.copytree(repository / 'launch', folder / 'launch')
  (folder / 'code.py').write_text('committed\n')
  (folder / '.gitignore').write_text('/launch_logs/\n/.venv/\n/ignored\n')
  (folder / 'ignored').write_text('large\n')
  name = ['-c', 'user.name=tests', '-c', 'user.email=tests@example.org', '-c', 'commit.gpgsign=false']
  for words in (['init', '-q'], ['add', '-A'], [*name, 'commit', '-q', '-m', 'all']):
    subprocess.run(['git', *words], cwd=folder, check=True)
  return folder


@pytest.fixture
def cloud(tmp_path, checkout):
  made = Cloud(tmp_path / 'cloud', checkout)
  yield made
  made.put('go', '')  # ends a training command that still waits
