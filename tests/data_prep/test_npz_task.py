"""A task with a set of a user is one file outside the package."""

import sys
import textwrap

import pytest

from data_prep import catalogue
from data_prep.sources import npz
from lra_spt import errors
from lra_spt.cli import main as cli
from lra_spt.data import examples as examples_lib
from lra_spt.data import prepared, tasks
from tests.data_prep.npz_files import changed, save

OWN = """
  import dataclasses
  from data_prep import catalogue
  from lra_spt.data import tasks

  catalogue.register_set(catalogue.npz_set('waves', class_names=('calm', 'swell', 'storm', 'ebb')))
  # As stripes: 64 bytes in four classes, in three files.
  tasks.register_task(dataclasses.replace(tasks.get_task('stripes'), name='sea', dataset='waves'))
"""


@pytest.fixture
def forgotten(monkeypatch):
  """Removes the sets, tasks and paths that a test registers."""
  monkeypatch.setattr(catalogue, 'SETS', dict(catalogue.SETS))
  monkeypatch.setattr(tasks, 'TASKS', dict(tasks.TASKS))
  monkeypatch.setattr(sys, 'path', list(sys.path))


@pytest.mark.usefixtures('forgotten')
def test_a_task_with_own_data_is_one_file_outside_the_package(tmp_path, capsys):
  (tmp_path / 'sea.py').write_text(textwrap.dedent(OWN))
  raw, data = tmp_path / 'raw', tmp_path / 'data'
  for file in ('train', 'validation', 'test'):
    save(raw, file, **changed())
  folders = ['--data_dir', str(data)]
  register = ['--register', str(tmp_path / 'sea.py')]
  assert cli.main(['inspect', 'waves', *folders, *register]) == 2
  assert f'make it with `lra-spt prepare npz --name waves --raw_dir RAW --data_dir {data}`' in (
    capsys.readouterr().err
  )
  assert cli.main(['prepare', 'waves', '--raw_dir', str(raw), *folders, *register]) == 0
  assert prepared.read_metadata(prepared.dataset_folder(data, 'waves'), '')['class_names'][2] == 'storm'
  assert cli.main(['inspect', 'sea', *folders]) == 0
  assert '12' in capsys.readouterr().out
  assert len(examples_lib.open_split('sea', 'validation', data)) == 12
  assert cli.main(['prepare', 'sea', *folders]) == 2
  error = capsys.readouterr().err
  assert "'sea' is a task, which reads the set waves; make it with `lra-spt prepare waves`" in error
  assert cli.main(['prepare', 'npz', '--name', 'waves', '--raw_dir', str(raw), *folders]) == 0
  assert 'waves is already prepared' in capsys.readouterr().out


@pytest.mark.usefixtures('forgotten')
def test_names_of_classes_must_be_as_many_as_classes(tmp_path):
  catalogue.register_set(catalogue.npz_set('waves', class_names=('calm', 'storm')))
  raw = save(tmp_path / 'raw', **changed())
  with pytest.raises(errors.DataError, match="'waves' has 4 classes, but 2 class names were registered"):
    npz.prepare_npz(tmp_path / 'data', dataset='waves', raw_dir=raw)


@pytest.mark.usefixtures('forgotten')
def test_a_name_has_one_set():
  entry = catalogue.register_set(catalogue.npz_set('waves'))
  assert catalogue.register_set(catalogue.npz_set('waves')) == entry
  for name in ('waves', 'cifar10', 'bidmc_hr'):
    with pytest.raises(errors.ConfigError, match=f"A different set is already called '{name}'"):
      catalogue.register_set(catalogue.npz_set(name, class_names=('a', 'b')))
  for name in ('npz', 'downloads', 'Waves', '../waves', ''):
    with pytest.raises(errors.ConfigError, match='A set cannot be called'):
      catalogue.register_set(catalogue.npz_set(name))
