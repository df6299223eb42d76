"""Settings of every test: 8 CPU devices, strict promotion; warnings are errors (pyproject.toml).

They are set in the environment, so that processes started by tests have them too, and before jax is imported.
"""

import ast
import dataclasses
import os
import pathlib

DEVICES = 8
os.environ['JAX_PLATFORMS'] = os.environ.get('LRA_SPT_TEST_PLATFORM', 'cpu')
os.environ['XLA_FLAGS'] = ' '.join(
  [os.environ.get('XLA_FLAGS', ''), f'--xla_force_host_platform_device_count={DEVICES}']
).strip()
os.environ['JAX_NUMPY_DTYPE_PROMOTION'] = 'strict'
os.environ['JAX_NUMPY_RANK_PROMOTION'] = 'raise'

import jax  # noqa: E402
import pytest  # noqa: E402
from absl import flags  # noqa: E402

# A plugin may have imported jax before this file set the variables.
jax.config.update('jax_platforms', os.environ['JAX_PLATFORMS'])
jax.config.update('jax_numpy_dtype_promotion', 'strict')
jax.config.update('jax_numpy_rank_promotion', 'raise')

# Grain's worker processes read absl flags, which nobody parses under pytest.
flags.FLAGS.mark_as_parsed()

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope='session')
def repository():
  """The folder that holds lra_spt, configs, tests, ..."""
  return ROOT


@pytest.fixture(scope='session')
def shared_folder():
  """Folder with real data (LRA_SPT_SHARED, or `shared` beside the repository); skips where there is none."""
  path = pathlib.Path(os.environ.get('LRA_SPT_SHARED', ROOT.parent / 'shared'))
  if not path.is_dir():
    pytest.skip(f'no folder {path}: set LRA_SPT_SHARED to the folder with the real data')
  return path


@dataclasses.dataclass(frozen=True)
class Import:
  """One import in a source file: `module` is absolute; `lazy` means inside a function."""

  importer: str
  module: str
  lazy: bool
  line: int

  def __str__(self):
    return f'{self.importer}:{self.line} imports {self.module}{" (lazily)" if self.lazy else ""}'


@pytest.fixture(scope='session')
def source_imports():
  """Every import in lra_spt, data_prep and configs, read from the sources without running them."""
  return [
    found
    for package in ('lra_spt', 'data_prep', 'configs')
    for path in sorted((ROOT / package).rglob('*.py'))
    for found in _imports_of(path)
  ]


def _imports_of(path):
  parts = list(path.relative_to(ROOT).with_suffix('').parts)
  package = parts[:-1]
  importer = '.'.join(package if parts[-1] == '__init__' else parts)
  tree = ast.parse(path.read_text(), str(path))
  functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
  in_functions = {id(child) for function in functions for child in ast.walk(function)}
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      # `from lra_spt import config` imports the module lra_spt.config; `from m import name` counts as m.name.
      base = package[: len(package) + 1 - node.level] if node.level else []
      base += node.module.split('.') if node.module else []
      modules = ['.'.join([*base, alias.name]) for alias in node.names]
    else:
      continue
    for module in modules:
      yield Import(importer, module, id(node) in in_functions, node.lineno)
