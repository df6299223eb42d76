"""Imports go one way: parallel <- ops <- models, data, objectives, training, experiment, studies, cli.

Read from the sources: direct imports room by room, circles module by module, and whatever reaches jax.
"""

import collections
import subprocess
import sys

import pytest

from docs import rooms

FILES = {'lra_spt.errors', 'lra_spt.files', 'lra_spt.seals'}
LEAVES = {*FILES, 'lra_spt.protocol', 'lra_spt.config', 'lra_spt.regimes', 'lra_spt.provenance'}
SHARDING = {'lra_spt.processes', 'lra_spt.parallel', 'lra_spt.errors'}
MODELS = {*SHARDING, 'lra_spt.ops', 'lra_spt.protocol', 'lra_spt.mixer_rows', 'lra_spt.config_values'}
KERNELS = {'lra_spt.parallel', 'lra_spt.processes', 'lra_spt.ops'}
TRAINING = {*FILES, *MODELS, 'lra_spt.chips', 'lra_spt.models', 'lra_spt.data', 'lra_spt.objectives'}
BUILD = {*TRAINING, *LEAVES, 'lra_spt.training', 'lra_spt.run_folder', 'configs'}
EXPERIMENT = {*BUILD, 'lra_spt.build'}
COMMANDS = {*EXPERIMENT, 'lra_spt.planning', 'lra_spt.experiment', 'lra_spt.flags', 'lra_spt.fit'}
COMMANDS |= {'lra_spt.studies', 'lra_spt.report', 'lra_spt.inspection', 'lra_spt.doctor', 'lra_spt.record'}
COMMANDS |= {'lra_spt.api', 'lra_spt.peers', 'lra_spt.weights', 'lra_spt.selftest', 'lra_spt.config_files'}
COMMANDS |= {'lra_spt.config_keys'}

# Room: what of this project it may import, besides itself. A room of one module is written as the module.
ALLOWED = {
  'lra_spt.errors': set(),
  'lra_spt.huge_pages': set(),
  'lra_spt.streams': {'lra_spt.errors'},
  'lra_spt.buckets': {'lra_spt.errors'},
  'lra_spt.leases': {'lra_spt.errors', 'lra_spt.buckets'},
  'lra_spt.files': {'lra_spt.errors', 'lra_spt.buckets', 'lra_spt.leases'},
  'lra_spt.seals': {'lra_spt.errors', 'lra_spt.files'},
  'lra_spt.protocol': {'lra_spt.errors'},
  'lra_spt.regimes': {'lra_spt.errors'},
  'lra_spt.mixer_rows': {'lra_spt.errors'},
  'lra_spt.config_files': {'lra_spt.errors'},
  'lra_spt.config_values': {'lra_spt.errors'},
  'lra_spt.config': {
    'lra_spt.errors',
    'lra_spt.config_files',
    'lra_spt.config_values',
    'lra_spt.mixer_rows',
    'lra_spt.regimes',
  },
  'lra_spt.config_keys': set(),
  'lra_spt.flags': {'lra_spt.errors', 'lra_spt.config'},
  'lra_spt.processes': {'lra_spt.errors', 'lra_spt.peers'},
  'lra_spt.peers': {'lra_spt.errors'},
  'lra_spt.chips': set(),
  'lra_spt.provenance': {'lra_spt.processes'},
  'lra_spt.parallel': {'lra_spt.errors', 'lra_spt.processes'},
  'lra_spt.ops': SHARDING,
  'lra_spt.models': MODELS,
  'lra_spt.data': FILES,
  'lra_spt.objectives': {
    'lra_spt.errors',
    'lra_spt.data.tasks',
    'lra_spt.models.heads',
    'lra_spt.models.layers',
    'lra_spt.protocol',
  },
  'lra_spt.training': TRAINING,
  'lra_spt.build': {*BUILD, 'lra_spt.config_values', 'lra_spt.own_code'},
  'lra_spt.run_schemas': set(),
  'lra_spt.run_folder': {*FILES, 'lra_spt.config', 'lra_spt.regimes', 'lra_spt.run_schemas'},
  'lra_spt.results': {'lra_spt.data', 'lra_spt.report.statistics'},
  'lra_spt.weights': {*FILES, 'lra_spt.data.neox_tokens', 'lra_spt.models', 'lra_spt.training'},
  'lra_spt.record': {
    *FILES,
    'lra_spt.data',
    'lra_spt.protocol',
    'lra_spt.regimes',
    'lra_spt.report.statistics',
    'lra_spt.results',
    'lra_spt.run_folder',
  },
  'lra_spt.selftest': {*FILES, *SHARDING, 'lra_spt.ops', 'lra_spt.training'},
  'lra_spt.own_code': set(),
  'lra_spt.planning': {*EXPERIMENT, 'lra_spt.own_code', 'lra_spt.weights'},
  'lra_spt.stage_notes': {*EXPERIMENT, 'lra_spt.ops.selection', 'lra_spt.selftest'},
  'lra_spt.experiment': {
    *EXPERIMENT,
    'lra_spt.own_code',
    'lra_spt.planning',
    'lra_spt.results',
    'lra_spt.stage_notes',
  },
  'lra_spt.pages': FILES,
  'lra_spt.report': {*FILES, 'lra_spt.config', 'lra_spt.run_folder', 'lra_spt.run_schemas', 'lra_spt.pages'},
  'lra_spt.inspection': {*FILES, 'lra_spt.data', 'lra_spt.protocol', 'lra_spt.pages'},
  'lra_spt.doctor': {*TRAINING, 'lra_spt.training', 'lra_spt.run_folder', 'lra_spt.report'},
  'lra_spt.api': {*EXPERIMENT, 'lra_spt.experiment', 'lra_spt.results'},
  'lra_spt.fit': {*EXPERIMENT, 'lra_spt.experiment'},
  'lra_spt.studies': {
    *EXPERIMENT,
    'lra_spt.experiment',
    'lra_spt.report',
    'lra_spt.config_files',
    'lra_spt.own_code',
  },
  'lra_spt.commands': COMMANDS,
  'lra_spt.cli': {'lra_spt.errors', 'lra_spt.commands', 'lra_spt.huge_pages', 'lra_spt.streams'},
  'configs': {*LEAVES, 'lra_spt.mixer_rows'},
  'configs.studies': {
    'configs',
    'lra_spt.config',
    'lra_spt.mixer_rows',
    'lra_spt.report.published',
    'lra_spt.studies.study',
  },
  'data_prep': {*FILES, 'lra_spt.data'},
  'benchmarks': {'lra_spt', 'configs', 'data_prep'},
}
# Importers that may also import data_prep, inside a function only: training needs none of the generators.
DATA_PREP_LAZILY = {
  'lra_spt.commands.list',
  'lra_spt.commands.prepare',
  'lra_spt.studies.budget',
  'lra_spt.studies.demo',
}
OURS = {'lra_spt', 'data_prep', 'configs', 'benchmarks'}
# Rooms that start without jax: help, lists, configs and reports at once, our sets for PyTorch, and machines
# that only prepare data.
WITHOUT_JAX = (
  'lra_spt',
  'lra_spt.errors',
  'lra_spt.huge_pages',
  'lra_spt.streams',
  'lra_spt.buckets',
  'lra_spt.leases',
  'lra_spt.files',
  'lra_spt.seals',
  'lra_spt.protocol',
  'lra_spt.config',
  'lra_spt.config_keys',
  'lra_spt.config_values',
  'lra_spt.regimes',
  'lra_spt.run_folder',
  'lra_spt.run_schemas',
  'lra_spt.data',
  'lra_spt.results',
  'lra_spt.record',
  'lra_spt.pages',
  'lra_spt.report',
  'lra_spt.inspection',
  'lra_spt.doctor',
  'lra_spt.flags',
  'lra_spt.config_files',
  'lra_spt.mixer_rows',
  'lra_spt.studies.study',
  'lra_spt.studies.records',
  'lra_spt.studies.runner',
  'lra_spt.studies.progress',
  'lra_spt.studies.queues',
  'lra_spt.studies.budget',
  'lra_spt.commands',
  'lra_spt.cli',
  'configs',
  'data_prep',
)
TENSORFLOW = {'tensorflow', 'tensorflow_cpu', 'tensorboard', 'tf_keras'}
JAX = {'jax', 'jaxlib', 'flax', 'optax', 'orbax', 'grain'}  # grain imports jax where it is installed


def test_every_module_has_a_room(source_modules):
  homeless = {module for module in source_modules if module != 'lra_spt' and _room(module) is None}
  assert not homeless, f'add the room of {sorted(homeless)} to ALLOWED'


def test_imports_go_one_way(source_imports):
  wrong = [str(i) for i in source_imports if _top(i.module) in OURS and not _may(i)]
  assert not wrong, '\n'.join(wrong)


def test_kernels_know_neither_flax_nor_configs(source_imports):
  wrong = [
    str(i)
    for i in source_imports
    if _room(i.importer) in KERNELS and _top(i.module) in {'flax', 'ml_collections', 'optax', 'orbax'}
  ]
  assert not wrong, '\n'.join(wrong)


def test_orbax_stays_in_one_module(source_imports):
  """Its v1 names still move between releases; one file has to follow them."""
  importers = {i.importer for i in source_imports if _top(i.module) == 'orbax'}
  assert importers == {'lra_spt.training.checkpoints'}


def test_nothing_imports_itself_through_others(source_imports, source_modules):
  """Also inside a room, and through imports inside functions: what needs those is one module, or three."""
  needs = _needs(source_imports, source_modules, lazy=True)
  circles = [' -> '.join(circle) for circle in _circles(needs)]
  assert not circles, '\n'.join(circles)


@pytest.fixture(scope='module')
def loads(source_imports, source_modules):
  """{module of ours: what it imports when it is imported}."""
  return _needs(source_imports, source_modules, lazy=False)


@pytest.mark.parametrize('room', WITHOUT_JAX)
def test_rooms_without_jax(room, loads):
  """No chain of imports leads there, but for those inside functions."""
  modules = [room] if room == 'lra_spt' else [module for module in loads if _within(module, room)]
  assert modules, f'there is no {room}'
  found = [chain for m in modules for name, chain in _loaded_by(m, loads).items() if _top(name) in JAX]
  assert not found, '\n'.join(' -> '.join(chain) for chain in found)


def test_nothing_imports_tensorflow(source_imports):
  wrong = [str(i) for i in source_imports if i.module.split('.')[0] in TENSORFLOW]
  assert not wrong, '\n'.join(wrong)


def test_importing_everything(source_modules, repository):
  """In a new process: rooms without jax load none, through packages of others neither, and nothing loads
  TensorFlow. With every warning an error, because an import that warns today breaks on a later release."""
  without = [m for m in source_modules if any(_within(m, room) for room in WITHOUT_JAX[1:])]
  program = (
    'import importlib, sys\n'
    f'for module in {without!r}: importlib.import_module(module)\n'
    "print('jax' in sys.modules)\n"
    f'for module in {sorted(source_modules)!r}: importlib.import_module(module)\n'
    f'print(sorted({TENSORFLOW!r}.intersection(sys.modules)))'
  )
  command = [sys.executable, '-W', 'error', '-c', program]
  run = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
  assert run.returncode == 0, run.stderr
  assert run.stdout.splitlines() == ['False', '[]']


def test_circles_and_chains_are_found():
  assert list(_circles({'a': {'b'}, 'b': {'c', 'json'}, 'c': set()})) == []
  assert list(_circles({'a': {'b'}, 'b': {'c'}, 'c': {'b'}, 'd': {'a'}})) == [['b', 'c', 'b']]
  lines = {
    'p.a': ['p.b.name'],
    'p.b': ['p.room.c'],
    'p.room': ['optax'],
    'p.room.c': ['numpy'],
    'p': ['json'],
  }
  imports = [Found(importer, module) for importer, modules in lines.items() for module in modules]
  loads = _needs([*imports, Found('p.a', 'jax', lazy=True)], lines, lazy=False)
  loaded = _loaded_by('p.a', loads)
  assert loaded.keys() == {'p', 'json', 'p.b', 'p.room', 'p.room.c', 'optax', 'numpy'}
  assert loaded['optax'] == ['p.a', 'p.b', 'p.room', 'optax']  # c's package runs before c


Found = collections.namedtuple('Found', 'importer module lazy', defaults=[False])


def _needs(imports, modules, lazy):
  """{module of ours: modules of ours and names of others that it imports}; lazy: also inside functions."""
  needs = {module: set() for module in modules}
  for i in imports:
    name = i.module  # a module, or something in one
    while name and name not in modules:
      name = name.rpartition('.')[0]
    if name != i.importer and (lazy or not i.lazy):
      needs[i.importer].add(name or i.module)
  return needs


def _loaded_by(start, loads):
  """{whatever importing a module loads, ours and others': the shortest chain that leads there}."""
  chains, waiting = {start: [start]}, collections.deque([start])
  while waiting:
    module = waiting.popleft()
    if module not in loads:
      continue
    packages = [module[:at] for at, letter in enumerate(module) if letter == '.']
    for target in [*packages, *sorted(loads[module])]:
      if target in chains:
        continue
      # A package runs because a module inside it is imported: the chain goes on from that one's importer.
      before = chains[module][:-1] if target in packages and len(chains[module]) > 1 else chains[module]
      chains[target] = [*before, target]
      waiting.append(target)
  del chains[start]
  return chains


def _circles(needs):
  """Every circle that a walk along the imports runs into, once."""
  done, path = set(), []

  def walk(module):
    if module in path:
      yield [*path[path.index(module) :], module]
    elif module not in done:
      path.append(module)
      for target in sorted(needs.get(module, ())):
        yield from walk(target)
      done.add(path.pop())

  for module in sorted(needs):
    yield from walk(module)


def _may(imported):
  if _within(imported.module, 'data_prep') and imported.importer in DATA_PREP_LAZILY:
    return imported.lazy
  if imported.module == 'lra_spt.__version__':
    return True
  room = _room(imported.importer)
  if room is None:  # lra_spt/__init__.py: the version and nothing else
    return False
  # The bare package (`import lra_spt`) is only asked for its version and its place.
  targets = {room, *ALLOWED[room]}
  return imported.module == 'lra_spt' or any(_within(imported.module, target) for target in targets)


def _room(module):
  return max((room for room in ALLOWED if _within(module, room)), key=len, default=None)


def _within(module, package):
  return module == package or module.startswith(f'{package}.')


def _top(module):
  return module.split('.')[0]


def _boxes():
  """The box of every room of the picture."""
  return [names for names in rooms.ROOMS for _ in names.split(', ')]


def test_the_picture_of_the_rooms_is_true():
  """Rooms import from those below, on the right also from data; studies and commands from all others."""
  places = {
    name if name in OURS else f'lra_spt.{name}': (left, bottom)
    for names, (_, left, bottom, _) in rooms.ROOMS.items()
    for name in names.split(', ')
  }
  assert set(places) <= set(ALLOWED)
  blue = {place for place, names in zip(places, _boxes(), strict=True) if names in rooms.NO_JAX}
  assert blue <= set(WITHOUT_JAX)
  right = rooms.ROOMS['report'][1]
  for room, (left, bottom) in places.items():
    free = ('lra_spt.data',) if left == right else ()
    for other in ALLOWED[room] & places.keys() - {room, *free}:
      beside = bottom in (0, rooms.ROOMS['experiment, planning, build'][2])  # modules of one box
      above = room in ('lra_spt.studies', 'lra_spt.fit', 'lra_spt.commands', 'lra_spt.cli')
      assert places[other][1] < bottom + beside or above, (room, other)
