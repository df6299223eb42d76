"""Which packages `configs` and `data_prep` are, where a user has some of these names."""

import importlib
import sys
import types

import pytest

from lra_spt.cli import main as cli
from lra_spt.config import user_files
from lra_spt.errors import ConfigError


@pytest.fixture
def no_data_prep():
  """As in a process that has not imported data_prep."""

  def taken():
    return {n: sys.modules.pop(n) for n in list(sys.modules) if n.split('.')[0] == 'data_prep'}

  before = taken()
  yield
  taken()
  sys.modules.update(before)


@pytest.fixture
def theirs(monkeypatch, tmp_path):
  """A package data_prep of the user, which Python finds first."""
  (tmp_path / 'data_prep').mkdir()
  (tmp_path / 'data_prep' / '__init__.py').write_text('mine = True')
  monkeypatch.syspath_prepend(tmp_path)
  importlib.invalidate_caches()
  return tmp_path


def test_ours_is_imported_beside_another(no_data_prep, theirs):
  user_files.claim_data_prep()
  user_files.claim_data_prep()
  assert importlib.import_module('data_prep.verification').__file__.startswith(str(user_files.PROJECT))


def test_a_program_keeps_its_package(no_data_prep, theirs):
  """A config file gets ours, if it asks; afterwards the program can import its own."""
  file = theirs / 'config.py'
  file.write_text('import data_prep\n')
  assert not hasattr(user_files.run(file, '_test_').data_prep, 'mine')
  assert importlib.import_module('data_prep').mine
  with pytest.raises(
    ConfigError, match=f'data_prep, but {theirs}/data_prep/__init__.py is imported under that'
  ):
    user_files.claim_data_prep()
  assert user_files.run(file, '_test_').data_prep.mine
  sys.modules['data_prep'] = types.ModuleType('data_prep')
  with pytest.raises(ConfigError, match='but another module is imported under that name: rename yours'):
    user_files.claim_data_prep()


def test_processes_that_start_search_the_project_first(theirs):
  with user_files.project_first():
    assert sys.path[0] == str(user_files.PROJECT)
  assert sys.path[0] == str(theirs)


@pytest.mark.parametrize(
  'files, arguments, first',
  [
    (
      {'mine': 'one = {}\none["a"]\n'},
      ['list', 'models', '--register={}/mine.py'],
      'mine.py", line 2, in <module>',
    ),
    (
      {'mine': 'import beside\n', 'beside': 'def work():\n  return 1 / 0\nwork()\n'},
      ['list', 'models', '--register={}/mine.py'],
      'mine.py", line 1, in <module>',
    ),
    (
      {'mine': 'import os\ndef get_config():\n  return os.environ[b"a"]\n'},
      ['config', '{}/mine.py'],
      'mine.py", line 3, in get_config',
    ),
  ],
)
def test_an_error_in_a_file_of_a_user_shows_its_own_lines(
  tmp_path, capsys, monkeypatch, files, arguments, first
):
  for name, text in files.items():
    (tmp_path / f'{name}.py').write_text(text)
  arguments = [argument.format(tmp_path) for argument in arguments]
  assert cli.main(arguments) == 2
  printed = capsys.readouterr().err
  assert printed.splitlines()[1] == f'  File "{tmp_path}/{first}'
  assert 'lra_spt/' not in printed
  assert printed.splitlines()[-1].startswith('lra-spt: the error came through your own file')
  monkeypatch.setenv('LRA_SPT_TRACEBACK', '1')
  with pytest.raises((KeyError, ZeroDivisionError, TypeError)):
    cli.main(arguments)
