"""Atomic writers, strict JSON, and the ownership of folders."""

import errno
import fcntl
import json
import os
import pathlib
import subprocess
import sys

import pytest

from lra_spt import files
from lra_spt.errors import ConfigError, DamagedFile, FileAccessError, touching

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


def test_what_was_written_is_on_the_disk_with_its_name(tmp_path, monkeypatch):
  """The content is synced before the rename, the folder after it."""
  done, fsync, replace = [], os.fsync, os.replace
  monkeypatch.setattr(os, 'fsync', lambda file: (done.append(os.fstat(file).st_ino), fsync(file)))
  monkeypatch.setattr(os, 'replace', lambda *paths: (done.append('replace'), replace(*paths)))
  files.write_json(tmp_path / 'a.json', {})
  content, folder = (path.stat().st_ino for path in (tmp_path / 'a.json', tmp_path))
  assert done == [content, 'replace', folder]
  (tmp_path / 'b').mkdir()
  (tmp_path / 'b' / 'c').write_text('')
  done.clear()
  files.sync(tmp_path / 'b')
  assert set(done) == {path.stat().st_ino for path in (tmp_path, tmp_path / 'b', tmp_path / 'b' / 'c')}


@pytest.mark.parametrize('code', [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF])
def test_a_file_system_without_fsync_of_folders_will_do(tmp_path, monkeypatch, code):
  def fsync(file):
    if os.fstat(file).st_ino == tmp_path.stat().st_ino:
      raise OSError(code, os.strerror(code))

  monkeypatch.setattr(os, 'fsync', fsync)
  files.write_json(tmp_path / 'a.json', {})
  assert (tmp_path / 'a.json').exists()


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


def test_the_home_of_the_user_is_known(tmp_path, monkeypatch):
  """Shells do not expand the ~ of --workdir=~/runs."""
  monkeypatch.setenv('HOME', str(tmp_path))
  assert files.place('~/runs') == tmp_path / 'runs'


def test_a_look_at_a_lock_is_no_owner(tmp_path, monkeypatch):
  """A killed owner left the lock, and another process calls `is_owned`."""
  (tmp_path / files.LOCK).write_text('process 7 on gone')
  with (tmp_path / files.LOCK).open() as look:
    fcntl.flock(look, fcntl.LOCK_SH)
    monkeypatch.setattr(files.time, 'sleep', lambda seconds: fcntl.flock(look, fcntl.LOCK_UN))
    with files.owned(tmp_path, 'training in'):
      assert files.is_owned(tmp_path)


@pytest.mark.parametrize('code', files.NO_LOCKS)
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, code):
  """Each of two processes would own the folder and remove the unfinished work of the other."""

  def flock(*arguments):
    raise OSError(code, os.strerror(code))

  monkeypatch.setattr(files.fcntl, 'flock', flock)
  sentence = (
    f'^{tmp_path}/run cannot be locked against other processes, because its file system has no locks .*;'
  )
  with pytest.raises(FileAccessError, match=f'{sentence} .* -o flock; .*, or choose a folder on another'):
    with files.owned(tmp_path / 'run', 'training in'):
      pass
  assert not list((tmp_path / 'run').iterdir())
  (tmp_path / 'run' / files.LOCK).write_text('process 7 on gone')  # on a machine with locks
  assert not files.is_owned(tmp_path / 'run')
  with pytest.raises(FileAccessError, match=sentence), files.owned(tmp_path / 'run', 'training in'):
    pass
  assert (tmp_path / 'run' / files.LOCK).exists()


def test_a_look_that_the_system_refuses_is_named(tmp_path, monkeypatch):
  (tmp_path / files.LOCK).write_text('')

  def flock(*arguments):
    raise OSError(errno.EIO, 'Input/output error')

  monkeypatch.setattr(files.fcntl, 'flock', flock)
  with pytest.raises(FileAccessError, match=f'{files.LOCK} could not be read: Input/output error'):
    files.is_owned(tmp_path)
  with pytest.raises(FileAccessError, match='could not be written to: Input/output error'):
    with files.owned(tmp_path, 'training in'):
      pass


def test_a_disk_that_fails_at_the_lock_is_no_error(tmp_path, monkeypatch):
  """The text in the lock is for people and has no effect."""

  def fail(*arguments, **options):
    raise OSError(errno.EIO, 'Input/output error')

  monkeypatch.setattr(files.socket, 'gethostname', fail)  # while the note is written
  monkeypatch.setattr(pathlib.Path, 'unlink', fail)
  with files.owned(tmp_path, 'training in'):
    assert files.is_owned(tmp_path)
  assert not files.is_owned(tmp_path)
  monkeypatch.undo()
  with files.owned(tmp_path, 'training in'):
    pass


@pytest.mark.parametrize(
  'error, sentence',
  [
    (RuntimeError('file 12: No space left on device [os_error_code=28]'), 'no space is left on the disk; .*'),
    (ValueError('Disk quota exceeded'), r'the disk quota is used up; .* \(it takes about 3 MB\)'),
    (OSError(errno.EFBIG, 'File too large'), r'.* larger than .*ulimit -f.* \(it takes about 3 MB\)'),
    (OSError(errno.EIO, 'Input/output error', '_METADATA'), 'Input/output error; .*'),
    (RuntimeError('flush: Input/output error'), 'Input/output error; .*'),
  ],
)
def test_what_the_system_refuses_to_a_library(tmp_path, error, sentence):
  """C++ raises other kinds of exceptions, and functions on open folders name files without their folder."""
  with pytest.raises(FileAccessError, match=f'^{tmp_path} could not be written: {sentence}\\.$'):
    with touching(tmp_path, 'written', 3_100_000):
      raise error


@pytest.mark.parametrize('error', [BrokenPipeError(errno.EPIPE, 'Broken pipe'), RuntimeError('a defect')])
def test_what_is_no_refusal_stays_as_it_is(tmp_path, error):
  with pytest.raises(type(error)) as raised, touching(tmp_path, 'written'):
    raise error
  assert raised.value is error
