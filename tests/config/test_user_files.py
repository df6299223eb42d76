"""Which packages `configs` and `data_prep` are, where a user has some of these names."""

import importlib
import sys
import types

import pytest

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
