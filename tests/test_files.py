"""Atomic writers, strict JSON, and the ownership of folders."""

import json
import os
import subprocess
import sys

import pytest

from lra_spt import files
from lra_spt.errors import ConfigError, DamagedFile, FileAccessError

HOLD = """
import sys
from lra_spt import files
with files.owned(sys.argv[1], 'training in'):
  print('mine', flush=True)
  sys.stdin.readline()
"""


def test_a_file_is_whole_or_as_before(tmp_path):
  path = tmp_path / 'result.json'
  files.write_json(path, {'a': 1})
  with pytest.raises(TypeError), files.replacing(path) as file:
    file.write('half') and file.write(None)
  with pytest.raises(ValueError, match='not JSON compliant'):
    files.write_json(path, {'loss': float('nan')})
  assert json.loads(path.read_text()) == {'a': 1}
  assert [entry.name for entry in tmp_path.iterdir()] == ['result.json']


@pytest.mark.parametrize('text', ['[1]', '{"a": NaN}', '{"a": -Infinity}', '{"a"', '', '[' * 100_000])
def test_what_is_no_json_object_is_refused(tmp_path, text):
  path = tmp_path / 'stage.json'
  path.write_text(text)
  with pytest.raises(DamagedFile, match='stage.json is not a stage .*; repeat it'):
    files.read_json(path, 'a stage', 'repeat it')


def test_a_file_where_a_folder_should_be(tmp_path):
  (tmp_path / 'run').write_text('')
  with pytest.raises(FileAccessError, match='run could not be written to: there is a file of that name'):
    with files.owned(tmp_path / 'run', 'training in'):
      pass
  with pytest.raises(FileAccessError, match='x.part could not be written: a part of the path is a file'):
    files.write_text(tmp_path / 'run' / 'x', '')


@pytest.mark.parametrize('killed', [False, True])
def test_one_owner_and_a_dead_one_is_succeeded(tmp_path, repository, killed):
  command = [sys.executable, '-c', HOLD, str(tmp_path)]
  environment = os.environ | {'PYTHONPATH': str(repository)}
  pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
  with subprocess.Popen(command, env=environment, text=True, **pipes) as owner:
    assert owner.stdout.readline() == 'mine\n'
    with pytest.raises(ConfigError, match=f'process {owner.pid} on .*is training in {tmp_path}; wait'):
      with files.owned(tmp_path, 'training in'):
        pass
    if killed:
      owner.kill()
    else:
      owner.stdin.write('\n')
      owner.stdin.flush()
    owner.wait(timeout=60)
  with files.owned(tmp_path, 'training in'):
    assert (tmp_path / files.LOCK).read_text() == f'process {os.getpid()} on {os.uname().nodename}'
  assert not (tmp_path / files.LOCK).exists()
