"""A further process imports the package from where this one did."""

import os
import pathlib
import subprocess

from lra_spt.distributed import children

ROOT = pathlib.Path(__file__).parents[2]


def test_a_folder_of_the_same_name_is_not_taken_for_the_package(tmp_path, monkeypatch):
  """In the folder that a clone was made in, for one, `lra_spt` is the clone."""
  (tmp_path / 'lra_spt').mkdir()
  (tmp_path / 'lra_spt' / '__init__.py').write_text('raise ImportError("another one")')
  monkeypatch.chdir(tmp_path)
  command = [*children.python(), '-m', 'lra_spt', '--version']
  subprocess.run(command, env=os.environ | {'PYTHONPATH': str(ROOT)}, check=True)


def test_a_checkout_that_is_not_installed_works_from_its_root(monkeypatch):
  monkeypatch.chdir(ROOT)
  environment = {key: value for key, value in os.environ.items() if key != 'PYTHONPATH'}
  subprocess.run([*children.python(), '-m', 'lra_spt', '--version'], env=environment, check=True)
