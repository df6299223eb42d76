"""Imports go one way: parallel <- ops <- models, data, objectives, training, experiment, studies, cli."""

LEAVES = {'lra_spt.errors', 'lra_spt.files', 'lra_spt.protocol', 'lra_spt.config', 'lra_spt.provenance'}
LEAVES |= {'lra_spt.regimes'}
SHARDING = {'lra_spt.processes', 'lra_spt.parallel', 'lra_spt.errors'}
MODELS = {*SHARDING, 'lra_spt.ops', 'lra_spt.protocol'}
KERNELS = {'lra_spt.parallel', 'lra_spt.processes', 'lra_spt.ops'}
TRAINING = {*MODELS, 'lra_spt.models', 'lra_spt.data', 'lra_spt.objectives'}
BUILD = {*TRAINING, *LEAVES, 'lra_spt.training', 'configs'}
EXPERIMENT = {*BUILD, 'lra_spt.build', 'lra_spt.run_folder'}
COMMANDS = {*EXPERIMENT, 'lra_spt.experiment', 'lra_spt.flags', 'lra_spt.config_files', 'lra_spt.fit'}
COMMANDS |= {'lra_spt.studies', 'lra_spt.report', 'lra_spt.inspection'}

# Room: what of this project it may import, besides itself. A room of one module is written as the module.
ALLOWED = {
  'lra_spt.errors': set(),
  'lra_spt.files': {'lra_spt.errors'},
  'lra_spt.protocol': {'lra_spt.errors'},
  'lra_spt.regimes': {'lra_spt.errors'},
  'lra_spt.config_files': {'lra_spt.errors'},
  'lra_spt.config': {'lra_spt.errors', 'lra_spt.config_files', 'lra_spt.regimes'},
  'lra_spt.flags': {'lra_spt.errors', 'lra_spt.config'},
  'lra_spt.processes': {'lra_spt.errors'},
  'lra_spt.provenance': {'lra_spt.processes'},
  'lra_spt.parallel': {'lra_spt.errors', 'lra_spt.processes'},
  'lra_spt.ops': SHARDING,
  'lra_spt.models': MODELS,
  'lra_spt.data': {'lra_spt.errors'},
  'lra_spt.objectives': {
    'lra_spt.errors',
    'lra_spt.data.tasks',
    'lra_spt.models.heads',
    'lra_spt.models.layers',
    'lra_spt.protocol',
  },
  'lra_spt.training': TRAINING,
  'lra_spt.build': {*BUILD, 'lra_spt.run_folder'},
  'lra_spt.run_folder': {
    'lra_spt.errors',
    'lra_spt.files',
    'lra_spt.config',
    'lra_spt.processes',
    'lra_spt.regimes',
  },
  'lra_spt.experiment': EXPERIMENT,
  'lra_spt.report': {'lra_spt.errors', 'lra_spt.data', 'lra_spt.protocol'},
  'lra_spt.inspection': {'lra_spt.errors', 'lra_spt.data', 'lra_spt.protocol'},
  'lra_spt.fit': {*EXPERIMENT, 'lra_spt.experiment'},
  'lra_spt.studies': {*EXPERIMENT, 'lra_spt.experiment', 'lra_spt.report'},
  'lra_spt.commands': COMMANDS,
  'lra_spt.cli': {'lra_spt.errors', 'lra_spt.commands'},
  'configs': LEAVES,
  'data_prep': {'lra_spt.errors', 'lra_spt.data'},
}
# Importers that may also import data_prep, inside a function only: training needs none of the generators.
DATA_PREP_LAZILY = {'lra_spt.commands.list', 'lra_spt.commands.prepare', 'lra_spt.studies.demo'}
OURS = {'lra_spt', 'data_prep', 'configs'}


def test_every_module_has_a_room(source_imports):
  homeless = {i.importer for i in source_imports if i.importer != 'lra_spt' and _room(i.importer) is None}
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


def test_data_and_its_preparation_run_no_jax_transformations(source_imports):
  """Neither a preparation machine nor a reader of our sets needs jax, flax and optax."""
  wrong = [
    str(i)
    for i in source_imports
    if (_top(i.importer) == 'data_prep' or _within(i.importer, 'lra_spt.data'))
    and _top(i.module) in {'jax', 'flax', 'optax', 'orbax'}
  ]
  assert not wrong, '\n'.join(wrong)


def test_orbax_stays_in_one_module(source_imports):
  """Its v1 names still move between releases; one file has to follow them."""
  importers = {i.importer for i in source_imports if _top(i.module) == 'orbax'}
  assert importers == {'lra_spt.training.checkpoints'}


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
