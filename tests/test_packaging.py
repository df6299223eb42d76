"""Requirements and shipped files agree with imports, and the commands of the README exist."""

import ast
import importlib.metadata
import platform
import re
import sys

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

STACK = ('jax', 'flax', 'optax', 'orbax-checkpoint', 'tensorflow-datasets', 'grain', 'ml_collections', 'clu')
# Extras and their package, which is imported only inside of functions (test_imports.py).
EXTRAS = {'beam': 'apache_beam', 'wandb': 'wandb', 'mlflow': 'mlflow', 'gpu': 'tokamax'}
# Distributions that are imported under another name.
IMPORT_NAMES = {'orbax-checkpoint': 'orbax', 'absl-py': 'absl', 'pillow': 'PIL', 'protobuf': 'google'}
USED_BY_THE_STACK = {'array_record'}  # tensorflow_datasets imports it only for sets of that format
YOUNG = {'flax', 'grain'}  # in flax, nnx is young
LONGEST_FILE = 450


def import_name(distribution):
  return IMPORT_NAMES.get(distribution, distribution.replace('-', '_'))


@pytest.fixture(scope='module')
def declared(repository):
  """{distribution: version specifier} of requirements.txt."""
  lines = re.sub('#.*', '', (repository / 'requirements.txt').read_text()).split()
  return dict(re.fullmatch(r'([\w.-]+)(.*)', line).groups() for line in lines)


@pytest.fixture(scope='module')
def imports(source_modules):
  """Names that the shipped code imports, read from the sources; benchmarks are not shipped."""
  shipped = (path for name, path in source_modules.items() if not name.startswith('benchmarks'))
  nodes = [node for path in shipped for node in ast.walk(ast.parse(path.read_text()))]
  names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
  actual = (node for node in nodes if isinstance(node, ast.ImportFrom))
  return names | {f'{node.module}.{alias.name}' for node in actual for alias in node.names}


@pytest.fixture(scope='module')
def imported(imports):
  """Top-level names of all packages that the shipped code imports."""
  return {name.split('.')[0] for name in imports}


@pytest.mark.parametrize('distribution', STACK)
def test_stack_is_declared_and_used(distribution, declared, imported):
  assert distribution in declared
  assert import_name(distribution) in imported


def test_every_declared_package_is_used_and_every_used_one_declared(declared, imported):
  names = {*map(import_name, declared)}
  known = {*sys.stdlib_module_names, *EXTRAS.values(), 'lra_spt', 'data_prep', 'configs'}
  assert names - imported - USED_BY_THE_STACK == set(), 'declared in requirements.txt, imported nowhere'
  assert imported - names - known == set(), 'imported, but not in requirements.txt'


def test_upper_bounds_are_where_an_api_is_private_or_young(declared, imports):
  assert all(re.fullmatch(r'>=[\d.]+(,<[\d.]+)?', specifier) for specifier in declared.values()), declared
  private = {name.split('.')[0] for name in imports if '._' in name} - {*EXTRAS.values()}
  bounded = {import_name(name) for name, specifier in declared.items() if '<' in specifier}
  assert bounded == private | YOUNG


def test_constraints_are_versions_that_the_requirements_allow(declared, repository):
  lines = (repository / 'constraints.txt').read_text().splitlines()
  pins = [Requirement(line) for line in lines if not line.startswith('#')]
  for python in ('3.11', '3.12', '3.13'):
    here = [pin for pin in pins if pin.marker is None or pin.marker.evaluate({'python_version': python})]
    pinned = {pin.name: str(pin.specifier).removeprefix('==') for pin in here}
    assert len(here) == len(pinned)
    assert declared.keys() <= pinned.keys()
    for name, specifier in declared.items():
      assert SpecifierSet(specifier).contains(pinned[name]), name
    together = {name: importlib.metadata.version(name) for name in ('jax', 'jaxlib', 'flax', 'numpy')}
    if sys.version_info[:2] == tuple(map(int, python.split('.'))) and together['jax'] == pinned['jax']:
      assert together.items() <= pinned.items()


@pytest.mark.parametrize('name', ['ci', 'nightly'])
def test_the_workflows_run_the_script_of_the_repository(name, repository):
  assert 'run: PYTHON=python bash .ci/run' in (repository / f'.github/workflows/{name}.yml').read_text()


def test_pre_commit_has_the_ruff_of_the_constraints(repository):
  hooks = (repository / '.pre-commit-config.yaml').read_text()
  pinned = re.search(r'^ruff==(.*)$', (repository / 'constraints.txt').read_text(), re.MULTILINE)[1]
  assert f'rev: v{pinned}\n' in hooks


def test_metadata(declared):
  """The metadata of the package agrees with requirements.txt, and the extras exist."""
  metadata = importlib.metadata.metadata('lra_spt')
  required = [r for r in metadata.get_all('Requires-Dist') if 'extra ==' not in r]
  normal = {re.sub(r'[-_.]+', '-', re.split(r'[<>=;\s]', r)[0]).lower() for r in required}
  assert normal == {re.sub(r'[-_.]+', '-', name).lower() for name in declared}
  assert set(metadata.get_all('Provides-Extra')) == {
    *('test', 'beam', 'docs', 'tpu', 'cuda12', 'cuda13', 'gpu', 'wandb', 'mlflow')
  }
  assert metadata['Requires-Python'] == '>=3.11'


def test_files_are_small_enough_to_read(source_modules):
  lengths = {name: len(path.read_text().splitlines()) for name, path in source_modules.items()}
  assert {name: n for name, n in lengths.items() if n >= LONGEST_FILE} == {}
  assert lengths['lra_spt.cli.main'] < 100


def test_ci_runs_the_command_of_contributing(repository):
  for name in ('CONTRIBUTING.md', '.ci/run'):
    assert "pip install -e '.[test]' && pytest" in (repository / name).read_text(), name


def test_declared_versions_of_python_are_tested(repository):
  """setup.py, the workflows and `.ci/run` name the same versions."""
  patterns = {
    'setup.py': r"'Programming Language :: Python :: ([\d.]+)'",
    '.github/workflows/*.yml': r"'(3\.\d+)'",
    '.ci/run': r'python(3\.\d+)',
  }
  for name, pattern in patterns.items():
    text = '\n'.join(path.read_text() for path in repository.glob(name))
    assert set(re.findall(pattern, text)) == {'3.11', '3.12', '3.13'}, name


def test_libtpu_is_installed_where_it_exists():
  """The test extra installs it, so that programs are compiled for TPUs without a TPU; see test_tpu_aot.py."""
  if sys.platform != 'linux' or platform.machine() != 'x86_64':
    pytest.skip('libtpu exists for Linux on x86-64 only')
  assert importlib.metadata.version('libtpu')
