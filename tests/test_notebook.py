"""Notebooks run from top to bottom and use only public names; the quickstart defines no function or class."""

import ast
import functools
import importlib
import json
import os
import shutil
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import nbformat
import pytest
from flax import nnx

import lra_spt

# A separate process: warnings of Jupyter's client libraries must not fail these tests.
EXECUTE = """
import os, pathlib, sys
sys.path.insert(0, str(pathlib.Path(sys.argv[1]).parent))
import nbformat, store
nbformat.write(store.tidied(store.execute(sys.argv[1], '.', timeout=300), os.getcwd()), sys.argv[2])
"""


@pytest.fixture(scope='module')
def path(repository):
  return repository / 'notebooks' / f'{QUICKSTART}.ipynb'


@pytest.fixture(scope='module')
def notebook(path):
  return json.loads(path.read_text(encoding='utf-8'))


@pytest.fixture(scope='module')
def sources(notebook):
  """{id: source} of every code cell."""
  return {cell['id']: ''.join(cell['source']) for cell in notebook['cells'] if cell['cell_type'] == 'code'}


@pytest.fixture(scope='module')
def execute(repository, compilation_cache, on_devices, tmp_path_factory):
  return functools.partial(_execute, repository, compilation_cache, on_devices, tmp_path_factory)


@pytest.fixture(scope='module')
def executed(execute, path):
  return execute(path)


def _execute(repository, compilation_cache, on_devices, tmp_path_factory, path):
  """(folder that it ran in, {cell id: outputs}) of one run with small settings."""
  folder = tmp_path_factory.mktemp('notebook')
  environment = (
    os.environ
    | compilation_cache
    | on_devices(1)
    | {
      'LRA_SPT_NOTEBOOK_SMALL': '1',
      'JAX_PLATFORMS': 'cpu',
      'PYTHONPATH': str(repository),
      'IPYTHONDIR': str(folder / 'ipython'),
      'MPLCONFIGDIR': str(folder / 'matplotlib'),
    }
  )
  done = subprocess.run(
    [sys.executable, '-c', EXECUTE, path, 'executed.ipynb'],
    cwd=folder,
    env=environment,
    timeout=400,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr[-4000:]
  cells = json.loads((folder / 'executed.ipynb').read_text(encoding='utf-8'))['cells']
  return folder, {cell['id']: cell['outputs'] for cell in cells if cell['cell_type'] == 'code'}


def printed(outputs):
  return ''.join(''.join(output['text']) for output in outputs if output['output_type'] == 'stream')


def pictures(outputs):
  return [output for output in outputs if 'image/png' in output.get('data', {})]


QUICKSTART, *OTHERS = NAMES = (
  '01_quickstart',
  '02_bring_your_own_mixer',
  '03_inside_s4',
  '04_reading_results',
  '05_exercise_solution',
  'why_it_helps',
)
EXERCISE = '05_exercise'
WRITE = '%%writefile neighbours_mixer.py\n'
LONG = '02_bring_your_own_mixer', '03_inside_s4', '05_exercise_solution', 'why_it_helps'


@pytest.mark.parametrize('name', [*NAMES, EXERCISE])
def test_badge(repository, name):
  """docs/build.py writes the badge into the first cell, once there is an address."""
  notebook = json.loads((repository / 'notebooks' / f'{name}.ipynb').read_text(encoding='utf-8'))
  assert f'\n\n<!-- badge {name} -->' in ''.join(notebook['cells'][0]['source'])


@pytest.mark.parametrize('name', NAMES)
def test_format(repository, name, sources):
  """The notebook is valid, of version 4.5 (cells have ids), and has the outputs of one run from top to
  bottom. Its install cell is that of the quickstart, which is tested below. It imports only public names."""
  text = (repository / 'notebooks' / f'{name}.ipynb').read_text(encoding='utf-8')
  content = json.loads(text)
  nbformat.validate(content)
  assert (content['nbformat'], content['nbformat_minor']) == (4, 5)
  cells = [cell for cell in content['cells'] if cell['cell_type'] == 'code']
  assert [cell['execution_count'] for cell in cells] == [*range(1, len(cells) + 1)]
  assert 'jax ' in printed(next(cell for cell in cells if cell['id'] == 'check-device')['outputs'])
  assert not {output['output_type'] for cell in cells for output in cell['outputs']} & {'error'}
  code = {cell['id']: ''.join(cell['source']).removeprefix(WRITE) for cell in cells}
  assert all(code[cell] == sources[cell] for cell in ('install', 'check-device'))
  nodes = [node for source in code.values() for node in ast.walk(ast.parse(source))]
  imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
  imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
  ours = {
    each for each in imported if each.split('.')[0] in ('lra_spt', 'configs', 'data_prep', 'benchmarks')
  }
  assert ours <= {'lra_spt', 'lra_spt.data.examples', 'lra_spt.models', 'lra_spt.config.protocol'}


def test_the_exercise_is_its_solution_with_blanks(repository, monkeypatch):
  monkeypatch.syspath_prepend(repository / 'notebooks')
  store = importlib.import_module('store')
  solution, exercise = (
    nbformat.read(repository / 'notebooks' / f'{name}.ipynb', as_version=4)
    for name in ('05_exercise_solution', EXERCISE)
  )
  assert store.exercise(solution) == exercise, 'run python notebooks/store.py 05_exercise_solution'
  text = '\n'.join(cell.source for cell in exercise.cells)
  assert 'SOLUTION' not in text
  assert text.count('raise NotImplementedError(') == 5
  assert not [cell.outputs for cell in exercise.cells if cell.cell_type == 'code' and cell.outputs]


def test_blanks_say_what_is_missing(repository):
  notebook = json.loads((repository / 'notebooks' / f'{EXERCISE}.ipynb').read_text(encoding='utf-8'))
  source = {cell['id']: ''.join(cell['source']) for cell in notebook['cells']}
  namespace = {}
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(lra_spt, 'register_mixer', lambda name: lambda mixer: mixer)
    exec(source['mixer'].removeprefix(WRITE), namespace)
  form = {'length': 4, 'causal': False, 'protocol': None, 'rngs': nnx.Rngs(0)}
  with pytest.raises(NotImplementedError, match='Make padded_BLD: zeros before x_BLD'):
    namespace['Neighbours'](3, **form)(jnp.zeros((1, 4, 3)), lengths_B=None, deterministic=True, rngs=None)


@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in OTHERS]
)
def test_it_runs(execute, repository, name):
  _, outputs = execute(repository / 'notebooks' / f'{name}.ipynb')
  if name == '02_bring_your_own_mixer':
    assert printed(outputs['look']).strip().endswith('40')  # its causal form does not look ahead
    assert 'moving_average, causal: ' in printed(outputs['train'])
    assert 'causal self-pretraining' in printed(outputs['report'])
  elif name == '03_inside_s4':
    assert [len(pictures(outputs[cell])) for cell in ('kernel', 'pictures')] == [1, 1]
    assert float(printed(outputs['forms']).split()[-1]) < 1e-4
  elif name == '05_exercise_solution':
    assert printed(outputs['check']).count('  ok: ') == 8
    assert printed(outputs['field']).count('reads up to a distance of 18, predicted 18') == 4
    assert printed(outputs['gain']).count(' points\n') >= 2
  elif name == 'why_it_helps':
    assert printed(outputs['parts']).count('%') == 4
    assert [len(pictures(outputs[cell])) for cell in ('inside', 'plot')] == [1, 1]
  else:
    one_seed = ' '.join(printed(outputs['one']).split())
    assert 'McNemar p' in one_seed
    assert 'One seed compares two runs' in one_seed
    assert '3 seeds' in printed(outputs['all'])
    one, several = (float(line.split()[-2]) for line in printed(outputs['chance']).splitlines())
    assert 2.5 < one < 4.5
    assert 0.5 < several < one / 1.4
    assert len(pictures(outputs['chance'])) == 1


def test_defines_nothing(sources):
  nodes = [node for source in sources.values() for node in ast.walk(ast.parse(source))]
  assert not [n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
  assert not [node for node in nodes if isinstance(node, ast.Lambda)]


def test_uses_the_public_interface_only(sources):
  """`import lra_spt`, names in its __all__, and the command line."""
  nodes = [node for source in sources.values() for node in ast.walk(ast.parse(source))]
  imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
  imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
  ours = {
    name for name in imported if name.split('.')[0] in ('lra_spt', 'configs', 'data_prep', 'benchmarks')
  }
  assert ours == {'lra_spt'}
  taken = {
    node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == 'lra_spt'
  }
  assert taken == {'load_config', 'train', 'load_run'}
  assert taken <= set(lra_spt.__all__)


def test_a_result_per_regime(executed):
  folder, outputs = executed
  for regime in ('scratch', 'masked'):
    result = json.loads((folder / 'quickstart/runs' / regime / 'result.json').read_text(encoding='utf-8'))
    assert result['regime'] == regime
    assert ('pretrain' in result['stages']) == (regime == 'masked')
    assert 0 <= result['metrics']['test']['accuracy'] <= 1
  assert printed(outputs['train']).count('result in quickstart/runs/') == 2
  assert str(folder.resolve()) not in json.dumps(outputs)  # stored outputs do not name the folder of the run


def test_plots_and_table(executed):
  _, outputs = executed
  assert [len(pictures(outputs[cell])) for cell in ('look-at-data', 'plot', 'restore')] == [1, 1, 1]
  table = printed(outputs['plot'])
  assert 'Self-pretraining against training from scratch' in table
  assert 'a smoke run of a few' in table  # whose numbers are no scores


def test_restores_pixels(executed):
  """The last cell compares the model's guesses with a constant guess; both errors have a plausible size."""
  text = printed(executed[1]['restore'])
  model, constant = (float(part.split(':')[1].split(';')[0]) for part in text.split('; always'))
  assert 0 < model < 3
  assert 0.5 < constant < 1.5  # normalised grey levels, evenly spread


@pytest.fixture
def machine(monkeypatch, sources):
  """Runs the install cell as on another machine; returns (requirements for pip, the cell's namespace)."""

  def install(smi, modules, repository='https://example.org/lra_spt.git'):
    asked = []

    def run(command, **options):
      asked.extend(command[command.index('install') + 1 :] if 'pip' in command else [])
      return types.SimpleNamespace(stdout=smi)

    with monkeypatch.context() as patch:
      patch.setattr(shutil, 'which', lambda name: None if smi is None else f'/usr/bin/{name}')
      patch.setattr(subprocess, 'run', run)
      patch.setattr('importlib.util.find_spec', lambda name: name if name in modules else None)
      namespace = {'REPOSITORY': repository}
      exec(sources['install'], namespace)
    return [word for word in asked if word != '-q'], namespace

  return install


@pytest.mark.parametrize(
  'smi, modules, extra',
  [
    (None, (), ''),
    ('NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.', (), ''),
    ('580.65.06\n', (), '[cuda13]'),
    ('550.54.15\n', (), '[cuda12]'),
    ('580.65.06\n', ('jax_cuda12_plugin',), '[cuda12]'),
  ],
)
def test_install_asks_for_what_the_machine_has(machine, smi, modules, extra):
  asked, _ = machine(smi, modules)
  assert asked == [f'lra_spt{extra} @ git+https://example.org/lra_spt.git']


def test_install_does_nothing_when_installed(machine):
  assert machine('580.65.06\n', ('lra_spt',))[0] == []


def test_install_stops_without_an_address(machine, sources):
  with pytest.raises(SystemExit, match='Set REPOSITORY in the first cell'):
    machine(None, (), '')


def test_stops_when_jax_does_not_see_the_gpu(machine, sources, monkeypatch, capsys):
  monkeypatch.setattr(jax, 'default_backend', lambda: 'cpu')
  monkeypatch.delenv('JAX_PLATFORMS')
  _, namespace = machine('580.65.06\n', ('lra_spt',))
  with pytest.raises(SystemExit, match=r"jax sees only the CPU: run pip install -U 'jax\[cuda13\]', restart"):
    exec(sources['check-device'], namespace | {'os': os})
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')  # a user may choose the CPU
  exec(sources['check-device'], namespace | {'os': os})
  assert jax.__version__ in capsys.readouterr().out
