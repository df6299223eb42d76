"""Too many open files are no damage, and caches, homes and owners may be missing."""

import contextlib
import errno
import os
import pwd
import resource
import tempfile

import pytest
from etils import epath

from lra_spt import files
from lra_spt.cli import main as cli
from lra_spt.cli import streams
from lra_spt.cli.commands import list as list_command
from lra_spt.data import prepared
from lra_spt.errors import CheckpointError, DamagedFile, TooManyOpenFiles, too_many_open_files, touching
from lra_spt.runs import doctor
from lra_spt.training.checkpoints import diagnosis


@contextlib.contextmanager
def nothing_can_be_opened():
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def wrapped(code=errno.EMFILE):
  """The error of a library that says that a file is damaged, because it could not open it."""
  try:
    try:
      raise OSError(code, os.strerror(code), 'state/_METADATA')
    except OSError as error:
      raise RuntimeError('could not read the index') from error
  except RuntimeError as error:
    return error


def test_a_limit_is_not_a_damaged_file(tmp_path):
  files.write_json(tmp_path / 'a.json', {})
  with (
    nothing_can_be_opened(),
    pytest.raises(TooManyOpenFiles, match=r'may, 0 \(see ulimit -n\); raise the limit'),
  ):
    files.read_json(tmp_path / 'a.json', 'a result', 'delete it')
  assert files.read_json(tmp_path / 'a.json', 'a result', 'delete it') == {}


@pytest.mark.parametrize(
  'error', [OSError(errno.EMFILE, 'x'), RuntimeError('a: Too many open files [b]'), wrapped()]
)
def test_the_limit_is_recognised_below_errors_of_libraries(tmp_path, error):
  with pytest.raises(TooManyOpenFiles), touching(tmp_path, 'read'):
    raise error
  assert isinstance(diagnosis.refusal(error, tmp_path), TooManyOpenFiles)


def test_the_limit_of_the_machine_has_its_own_advice():
  assert 'end other programs' in str(too_many_open_files(wrapped(errno.ENFILE)))
  assert too_many_open_files(wrapped(errno.EIO)) is None
  first, second = ValueError('first'), ValueError('second')
  first.__cause__, second.__cause__ = second, first  # it went round for ever
  assert too_many_open_files(first) is None


@pytest.mark.parametrize('kind', [DamagedFile, ImportError, OSError])
def test_commands_print_one_sentence(monkeypatch, capsys, kind):
  def fail(argv):
    raise kind('this file is damaged; delete it') from wrapped()

  monkeypatch.setattr(list_command, 'main', fail)
  assert cli.main(['list']) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('lra-spt: This process has as many files open as it may')


def test_doctor_finds_no_damage_where_nothing_can_be_opened():
  def check():
    raise CheckpointError('step 5 cannot be read; delete it') from wrapped()

  health = doctor.Health()
  with pytest.raises(TooManyOpenFiles):
    health.attempt(check)
  assert health.problems == []


def unknown(*arguments):
  raise KeyError('not found')


def test_the_owner_of_a_file_may_be_unknown(tmp_path, monkeypatch):
  """As in a container under docker run --user: Orbax and TFDS ask for the size of files only."""
  monkeypatch.setattr(pwd, 'getpwuid', unknown)
  (tmp_path / 'a').write_bytes(b'abc')
  for path in (files.literal(tmp_path / 'a'), epath.Path(os.fspath(tmp_path / 'a'))):
    actual = path.stat()
    assert (actual.length, actual.is_directory) == (3, False)


@pytest.mark.parametrize('home', [None, '/proc', 'HERE'])
def test_sets_are_copied_somewhere_without_a_home(tmp_path, monkeypatch, home):
  monkeypatch.delenv('LRA_SPT_SETS', raising=False)
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  monkeypatch.setattr(pwd, 'getpwuid', unknown)
  monkeypatch.setattr(os, 'access', lambda path, mode: False)  # root may write anywhere
  if home is None:
    monkeypatch.delenv('HOME', raising=False)
  else:
    monkeypatch.setenv('HOME', home.replace('HERE', f'{tmp_path}/home'))
  assert prepared._folder_of_copies().parent == tmp_path


def test_temporary_files_lie_in_memory_where_no_disk_can_be_written(tmp_path, monkeypatch):
  def none():
    raise FileNotFoundError(errno.ENOENT, 'No usable temporary directory found')

  monkeypatch.setattr(tempfile, 'gettempdir', none)
  monkeypatch.setattr(tempfile, 'tempdir', None)
  monkeypatch.setenv('TMPDIR', '/none')
  monkeypatch.setattr(streams, 'IN_MEMORY', str(tmp_path))
  streams.find_temporary_folder()
  assert os.environ['TMPDIR'] == tempfile.tempdir == str(tmp_path)
