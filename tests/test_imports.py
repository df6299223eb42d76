"""Imports go down the rooms of the package, and some rooms start without jax (rules: pyproject.toml)."""

import subprocess
import sys

UNLOADED = {'tensorflow', 'tensorboard', 'apache_beam', 'wandb', 'mlflow', 'tokamax'}
JAX = {'jax', 'jaxlib', 'flax', 'optax', 'orbax'}
# These rooms are above rooms with jax but start without it; pyproject.toml lists rooms that never import it.
LAZY = ('lra_spt', 'lra_spt.cli', 'lra_spt.studies.study', 'lra_spt.studies.runner', 'lra_spt.runs.doctor')


def test_rooms_keep_to_the_rules(repository):
  run = subprocess.run(
    ['lint-imports', '--no-logo'], cwd=repository, capture_output=True, text=True, check=False
  )
  assert run.returncode == 0, run.stdout


def test_importing_everything(source_modules, repository):
  """In a new process: lazy modules load no jax, and nothing loads TensorFlow or the package of an extra.
  Warnings are errors, because an import that warns today breaks on a later release."""
  lazy = sorted(m for m in source_modules if any(m == room or m.startswith(f'{room}.') for room in LAZY[1:]))
  everything = sorted(set(source_modules) - {'lra_spt.__main__', 'benchmarks.__main__'})
  program = (
    'import importlib, sys\n'
    f'for module in {["lra_spt", *lazy]!r}: importlib.import_module(module)\n'
    f'print(sorted({JAX!r}.intersection(sys.modules)))\n'
    f'for module in {everything!r}: importlib.import_module(module)\n'
    f'print(sorted({UNLOADED!r}.intersection(sys.modules)))'
  )
  command = [sys.executable, '-W', 'error', '-c', program]
  run = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
  assert run.returncode == 0, run.stderr
  assert run.stdout.splitlines() == ['[]', '[]']
