"""Config files: where they are found, what they may import and return, and what they register."""

import os
import pathlib
import subprocess
import sys

import pytest

from lra_spt.config import loading, user_files
from lra_spt.errors import ConfigError
from tests.config.small_file import FILE


def test_a_file_in_the_working_directory_comes_before_the_installed_one(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  installed = loading.load('configs/image.py')
  assert installed.task == 'image'
  (tmp_path / 'configs').mkdir()
  (tmp_path / 'configs' / 'image.py').write_text(FILE)
  assert loading.load('configs/image.py').model.width == 64
  assert loading.load('configs/image.py').task == 'mine'


@pytest.mark.parametrize('name', ['configs/nowhere.py', '/nowhere/image.py', 'configs', 'configs/image', ''])
def test_missing_file(name):
  with pytest.raises(ConfigError, match=f'no config file {name}.*write a path such as configs/image'):
    loading.load(name)


def test_files_that_are_no_config_files(tmp_path):
  (tmp_path / 'empty.py').write_text('')
  (tmp_path / 'plain.py').write_text('def get_config():\n  return None\n')
  (tmp_path / 'value.py').write_text('get_config = 3\n')
  with pytest.raises(ConfigError, match='has no function get_config'):
    loading.load(str(tmp_path / 'empty.py'))
  with pytest.raises(ConfigError, match='takes no argument: leave out :a=1'):
    loading.load(str(tmp_path / 'plain.py') + ':a=1')
  with pytest.raises(ConfigError, match='value.py has no function get_config'):
    loading.load(str(tmp_path / 'value.py'))


def test_a_file_without_argument_may_have_its_regime_overridden(tmp_path):
  text = FILE.replace("get_config(arg='')", 'get_config()').replace('arguments(arg,', "arguments('',")
  (tmp_path / 'plain.py').write_text(text)
  assert loading.load(str(tmp_path / 'plain.py'), ['regime=causal']).regime == 'causal'


def test_a_module_beside_a_config_file_can_be_imported(tmp_path, monkeypatch):
  """From any working directory, and another module of that name beside another file."""
  monkeypatch.chdir(tmp_path)
  for name, seed in (('a', 1), ('b', 2)):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'beside_the_config.py').write_text(f'SEED = {seed}\n')
    text = 'import beside_the_config\n' + FILE.replace("'seed': 0", "'seed': beside_the_config.SEED")
    (tmp_path / name / 'mine.py').write_text(text)
  path = list(sys.path)
  assert [loading.load(f'{name}/mine.py').seed for name in 'aba'] == [1, 2, 1]
  assert sys.path == path


def test_a_module_beside_may_be_imported_when_the_config_is_made(tmp_path):
  (tmp_path / 'late_beside.py').write_text('SEED = 5\n')
  text = FILE.replace('  choice =', '  import late_beside\n  choice =').replace(
    "'seed': 0", "'seed': late_beside.SEED"
  )
  (tmp_path / 'mine.py').write_text(text)
  assert loading.load(str(tmp_path / 'mine.py')).seed == 5


@pytest.mark.parametrize('imported_before', [False, True])
def test_python_started_in_a_folder_with_its_own_configs(tmp_path, repository, imported_before):
  (tmp_path / 'configs').mkdir()
  (tmp_path / 'configs' / '__init__.py').write_text('OWN = True\n')
  (tmp_path / 'configs' / 'common.py').write_text('OWN = True\n')
  program = (
    'import configs.common\n' * imported_before + 'from lra_spt import config\n'
    "assert config.load('configs/demo.py').task == 'stripes'\n"
    "assert config.load('configs/image.py:model=s4').model.mixer.state_size == 64\n"
    'import configs.common\nassert configs.OWN and configs.common.OWN\n'
  )
  environment = os.environ | {'PYTHONPATH': os.pathsep.join([str(tmp_path), str(repository)])}
  done = subprocess.run(
    [sys.executable, '-c', program],
    cwd=tmp_path,
    env=environment,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr


def test_a_folder_called_configs_sees_itself_before_ours(tmp_path):
  (tmp_path / 'configs').mkdir()
  (tmp_path / 'configs' / 'numbers_of_mine.py').write_text('SEED = 7\n')
  text = 'from configs import common, numbers_of_mine\nassert common.REGIMES\n'
  (tmp_path / 'configs' / 'mine.py').write_text(
    text + FILE.replace("'seed': 0", "'seed': numbers_of_mine.SEED")
  )
  assert loading.load(str(tmp_path / 'configs' / 'mine.py')).seed == 7
  import configs

  assert [pathlib.Path(place).resolve() for place in configs.__path__] == [user_files.INSTALLED]


@pytest.mark.parametrize(
  'key', ['task', 'model', 'protocol', 'regime', 'causal', 'seed', 'finetune', 'runtime']
)
def test_a_config_that_lacks_what_every_config_has(tmp_path, key):
  (tmp_path / 'mine.py').write_text(
    FILE.replace('  return config.from_sources(', '  whole = config.from_sources(')
    + f'  whole.unlock()\n  del whole[{key!r}]\n  return whole\n'
  )
  with pytest.raises(ConfigError, match=f'mine.py lacks the key {key}: every config has task, '):
    loading.load(str(tmp_path / 'mine.py'))


def test_a_file_may_return_a_frozen_config(tmp_path):
  """It may also have sections that are frozen or dicts."""
  mixed = 'ConfigDict(config.to_dict() | {"model": FrozenConfigDict(config.model)})'
  for form in ('FrozenConfigDict(config)', mixed):
    (tmp_path / 'frozen.py').write_text(
      'from ml_collections import ConfigDict, FrozenConfigDict\nfrom configs import demo\n\n'
      f'def get_config(arg=""):\n  config = demo.get_config(arg)\n  return {form}\n'
    )
    loaded = loading.load(f'{tmp_path}/frozen.py:regime=causal', {'finetune.optimizer.lr': '1e-2'})
    expected = loading.load('configs/demo.py:regime=causal', {'finetune.optimizer.lr': 1e-2})
    assert loading.difference(loaded, expected) == ''
    assert loading.digest(loading.identity(loaded)) == loading.digest(loading.identity(expected))


def test_an_import_that_fails_elsewhere_keeps_its_traceback(tmp_path):
  (tmp_path / 'beside.py').write_text('def load():\n  from json import nothing\n')
  for content, message in (
    ('import beside\nbeside.load()', 'cannot import name'),
    ('raise ImportError("no libcuda.so.1")', 'libcuda'),
  ):
    (tmp_path / 'mine.py').write_text(content)
    with pytest.raises(ImportError, match=message):
      loading.register(tmp_path / 'mine.py')


def test_a_file_registers_once(tmp_path, monkeypatch):
  (tmp_path / 'beside_registered.py').write_text('NAME = "registered"\n')
  (tmp_path / 'mine.py').write_text(
    'import beside_registered, dataclasses, sys\n'
    '@dataclasses.dataclass\nclass Kept:\n  name: "str"\n'
    'sys.registered_by_test.append(Kept(beside_registered.NAME).name)\n'
  )
  monkeypatch.setattr(sys, 'registered_by_test', [], raising=False)
  loading.register(tmp_path / 'mine.py')
  monkeypatch.chdir(tmp_path)
  loading.register('mine.py')
  assert sys.registered_by_test == ['registered']
