"""Paths are taken literally: a folder with any name works, or is refused before a file is written."""

import os
import pathlib

import jax
import numpy as np
import pytest

from lra_spt import files
from lra_spt.cli.commands import demo, prepare, record, study, train
from lra_spt.config import loading
from lra_spt.data.tasks import get_task, preparation
from lra_spt.distributed import sharding
from lra_spt.errors import ConfigError
from lra_spt.report.runs import run_folder
from lra_spt.training.checkpoints import store

NAMES = [
  *(
    '[1]',
    '[',
    '*',
    '?',
    '**',
    '[!a]',
    '{a,b}',
    '%20',
    '%s',
    '#1',
    'a b',
    ' ',
    "'",
    '"',
    '$HOME',
    '~',
    '..a',
  ),
  *(
    '..a',
    ';',
    '|',
    '&',
    '<b>',
    '(',
    '^',
    ',',
    '=',
    ':',
    'a.py:b',
    '@2',
    'a\nb',
    '\t',
    '\x7f',
    'e\u0301',
    '\u65e5',
  ),
]
UNUSABLE = {
  'a\\b': 'a backslash',
  os.fsdecode(b'a\xe9'): 'bytes that are not UTF-8',
  'a\0b': 'a zero byte',
  'gs:/run': 'a folder whose name ends in gs:',
  'a.__lock': 'a folder whose name ends in .__lock',
}


def saved(folder, step):
  """Saves a state into a folder and returns its description for loading."""
  state = {
    'step': np.int32(step),
    'params': {'w': np.full(4, step, np.float32)},
    'stats': {'m': np.ones(2, np.float32)},
  }
  state = jax.device_put(state, sharding.state_shardings(state, sharding.make_mesh()))
  checkpoints = store.Checkpoints(folder)
  checkpoints.save_best(state)
  checkpoints.save_latest(state)
  checkpoints.close()
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # of Orbax
@pytest.mark.parametrize('name', ['[1]', '**', ' #%20~\n'])
def test_checkpoints_are_those_of_the_folder(tmp_path, name):
  """If the name of the folder were read as a pattern, it would match the other folder too."""
  saved(tmp_path / '1', 1)
  abstract = saved(tmp_path / name, 2)
  checkpoints = store.Checkpoints(tmp_path / name)
  assert checkpoints.load_latest(abstract)['params']['w'].tolist() == [2, 2, 2, 2]
  checkpoints.close()
  assert store.read_best(tmp_path / name, abstract)['step'] == 2
  assert store.verify(tmp_path / name / 'latest') == 2


def test_a_folder_called_gs_is_no_bucket(tmp_path):
  for folder in ('/gs/bucket', '/s3/bucket'):
    assert os.fspath(files.literal(folder) / 'a') == f'{folder}/a'


@pytest.mark.parametrize('name', NAMES)
def test_a_name_is_taken_as_it_is(tmp_path, name):
  path = run_folder.folder_of(tmp_path / name / 'run', '--workdir')
  assert os.fspath(path) == f'{tmp_path}/{name}/run'
  path.mkdir(parents=True)
  for other in ('1', 'other'):
    (tmp_path / other / 'run').mkdir(parents=True, exist_ok=True)
    (tmp_path / other / 'run' / 'x').touch()
  (path / 'x').touch()
  assert list(files.literal(path).glob('*')) == [path / 'x']


@pytest.mark.parametrize('name', UNUSABLE)
def test_a_name_that_cannot_be_used_is_refused(tmp_path, name):
  for flag in ('--workdir', '--stages'):
    with pytest.raises(ConfigError, match=f'{flag} is .*, but .* cannot use a path with {UNUSABLE[name]}'):
      run_folder.folder_of(tmp_path / name, flag)
  assert list(tmp_path.iterdir()) == []


def test_every_command_refuses_it_before_anything_is_made(tmp_path):
  path = tmp_path / 'a\\b'
  for command, *arguments in (
    (prepare, 'stripes', f'--data_dir={path}'),
    (train, '--config=configs/demo.py', f'--workdir={path}'),
    (study, 'configs/studies/table2.py', f'--workdir={path}'),
    (study, 'configs/studies/table2.py', f'--workdir={tmp_path}', f'--stages={path}'),
    (demo, f'--workdir={path}'),
    (
      record,
      '--task=stripes',
      '--model=m',
      '--regime=scratch',
      '--predictions=p',
      '--data_dir=d',
      f'--out={path}',
    ),
  ):
    with pytest.raises(ConfigError, match='a path with a backslash'):
      command.main(arguments)
  assert list(tmp_path.iterdir()) == []


def test_a_relative_path_in_such_a_folder_is_refused(tmp_path, monkeypatch):
  (tmp_path / 'a\\b').mkdir()
  monkeypatch.chdir(tmp_path / 'a\\b')
  with pytest.raises(ConfigError, match='a backslash'):
    run_folder.folder_of('run', '--workdir')


def test_a_tilde_is_a_home_only_at_the_beginning_of_what_was_written(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('HOME', '/home/her')
  assert files.place('~/a') == pathlib.Path('/home/her/a')
  for name in ('./~', './~/a', './~no-such-user'):
    path = files.place(name)
    assert path == tmp_path / name
    assert files.place(path) == run_folder.folder_of(path, '--workdir') == path
  with pytest.raises(ConfigError, match='home of a user who is not known'):
    files.place('~no-such-user/a')


def test_a_config_file_below_a_folder_with_its_mark(tmp_path):
  folder = tmp_path / 'a.py:b'
  folder.mkdir()
  text = pathlib.Path(loading.user_files.INSTALLED, 'demo.py').read_text(encoding='utf-8')
  (folder / 'mine.py').write_text(text, encoding='utf-8')
  assert loading.load(f'{folder}/mine.py').regime == 'masked'
  assert loading.load(f'{folder}/mine.py:regime=scratch').regime == 'scratch'


def test_commands_in_messages_can_be_copied():
  assert preparation(get_task('stripes'), 'a b$(c)') == "lra-spt prepare stripes --data_dir 'a b$(c)'"
  assert preparation(get_task('stripes'), 'gs://x/a b').endswith("data/stripes 'gs://x/a b/'")
