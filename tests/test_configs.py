"""The config files: their rows are the paper's, every choice builds, the models have the published sizes."""

import ast
import dataclasses
import functools
import importlib
import itertools
import math
import pathlib
import re

import jax
import pytest

from configs import rows
from lra_spt import config as config_lib
from lra_spt import experiment
from lra_spt.config import ConfigError
from lra_spt.data import tasks
from lra_spt.studies import published

TASKS = ('listops', 'image', 'scifar', 'pathfinder')

# Table 4, written out once more: width, depth, heads, FF, pool, lr (FT, PT), batch (FT, PT), weight decay.
TABLE_4 = {
  ('listops', 'transformer', 'masked'): (512, 6, 8, 1024, 'mean', (1e-4, 1e-3), (64, 128), 0.1),
  ('listops', 'transformer', 'causal'): (512, 6, 8, 1024, 'last', (5e-4, 5e-4), (128, 32), 0.1),
  ('listops', 'transformer_rotary', 'masked'): (512, 6, 8, 1024, 'mean', (1e-4, 1e-3), (64, 256), 0.05),
  ('image', 'transformer', 'masked'): (64, 3, 4, 128, 'max', (1e-3, 1e-3), (16, 32), 0),
  ('image', 'transformer', 'causal'): (64, 3, 4, 128, 'max', (1e-3, 5e-3), (32, 32), 0),
  ('image', 'transformer_rotary', 'masked'): (256, 6, 4, 512, 'mean', (1e-3, 1e-3), (64, 32), 0),
  ('scifar', 'transformer_rotary', 'masked'): (256, 6, 4, 512, 'mean', (1e-3, 1e-3), (64, 32), 0),
  ('pathfinder', 'transformer', 'masked'): (128, 4, 8, 128, 'mean', (5e-4, 1e-3), (16, 16), 0),
  ('pathfinder', 'transformer', 'causal'): (128, 4, 8, 128, 'mean', (1e-3, 1e-3), (256, 128), 0),
  ('pathfinder', 'transformer_rotary', 'masked'): (128, 6, 4, 512, 'mean', (5e-4, 1e-3), (64, 32), 0),
}

# Parameters of the published backbones: blocks and final norm, without embedding and head.
BACKBONE = {
  ('listops', 'transformer'): 12_617_728,
  ('listops', 'transformer_rotary'): 12_617_728,
  ('image', 'transformer'): 100_544,
  ('image', 'transformer_rotary'): 3_163_136,
  ('scifar', 'transformer'): 100_544,
  ('scifar', 'transformer_rotary'): 3_163_136,
  ('pathfinder', 'transformer'): 398_592,
  ('pathfinder', 'transformer_rotary'): 1_189_888,
  ('listops', 's4'): 595_968,
  ('image', 's4'): 3_559_680,
  ('scifar', 's4'): 3_559_680,
  ('pathfinder', 's4'): 1_287_680,
  ('listops', 'dlr'): 4_477_952,
  ('image', 'dlr'): 15_757_312,
  ('scifar', 'dlr'): 15_757_312,
  ('pathfinder', 'dlr'): 7_098_368,  # as on PathX, whose sizes it has
}

FORMS = (('scratch', False), ('scratch', True), ('masked', False), ('causal', True))
EVERY_CHOICE = [(*choice, *form) for choice in itertools.product(TASKS, rows.MODELS) for form in FORMS]
FLOATS = (
  'epochs', 'lr', 'weight_decay', 'clip_norm', 'max_seconds', 'mask_rate', 'factor', 'dropout', 'random_std',
  'dt_min', 'dt_max', 'r_min', 'r_max', 'max_phase', 'ssm_lr', 'dt_lr', 'a_lr', 'b_lr', 'lambda_lr', 'w_lr')


@functools.cache
def load(task, model, regime, causal=False):
  return config_lib.load(f'configs/{task}.py:model={model},regime={regime},causal={str(causal).lower()}')


def leaves(tree, where=''):
  found = {}
  for key, value in tree.items():
    found.update(leaves(value, f'{where}{key}.') if isinstance(value, dict) else {where + key: value})
  return found


@pytest.mark.parametrize('task, model, regime', TABLE_4)
def test_rows_of_table_4(task, model, regime):
  config = load(task, model, regime, regime == 'causal')
  stages = (config.finetune, config.pretrain)
  assert TABLE_4[task, model, regime] == (
    config.model.width,
    config.model.depth,
    config.model.mixer.heads,
    config.model.feed_forward,
    config.finetune.pool,
    tuple(stage.optimizer.lr for stage in stages),
    tuple(stage.batch_size for stage in stages),
    config.finetune.optimizer.weight_decay,
  )
  assert config.pretrain.optimizer.weight_decay == config.finetune.optimizer.weight_decay
  assert config.model.mixer.rotary == (model == 'transformer_rotary')
  assert config.model.position == ('none' if config.model.mixer.rotary else 'sinusoidal')
  origins = config.origins
  for origin in (
    origins.model.width,
    origins.model.mixer.heads,
    origins.finetune.pool,
    origins.finetune.optimizer.lr,
    origins.pretrain.batch_size,
    origins.pretrain.mask_rate,
  ):
    assert origin == 'paper'
  assert origins.finetune.schedule.warmup_steps == origins.finetune.epochs == origins.finetune.head == 'code'


@pytest.mark.parametrize('task', TASKS)
def test_every_choice_has_the_same_keys_with_an_origin(task):
  keys = set()
  for choice in EVERY_CHOICE:
    if choice[0] != task:
      continue
    config = load(*choice)
    assert (config.task, config.model.name, config.regime, config.causal) == choice
    assert (config.protocol, config.seed) == ('clean', 0)
    values = config.to_dict()
    origins, values = leaves(values.pop('origins')), leaves(values)
    assert set(origins) == set(values)
    assert set(origins.values()) == {'paper', 'code', 'ours'}
    for key, value in values.items():
      assert value is not None, key
      if key.split('.')[-1] in FLOATS:  # an override keeps the type, so every rate must be a float
        assert type(value) is float, key
    keys.add(frozenset(key for key in values if not key.startswith('model.mixer.')))
  assert len(keys) == 1


@pytest.mark.parametrize('task', TASKS)
def test_what_the_paper_does_not_give_for_transformers_is_ours(task):
  for model in rows.TRANSFORMERS:
    masked, scratch = load(task, model, 'masked'), load(task, model, 'scratch')
    masked_identity, scratch_identity = config_lib.identity(masked), config_lib.identity(scratch)
    assert config_lib.difference(masked_identity, scratch_identity) == "regime: 'masked' -> 'scratch'"
    causal, causal_scratch = load(task, model, 'causal', True), load(task, model, 'scratch', True)
    assert causal.finetune.to_dict() == causal_scratch.finetune.to_dict()
    for origins in (scratch.origins, causal_scratch.origins):
      assert {origins.finetune.pool, origins.finetune.optimizer.lr, origins.finetune.batch_size} == {'ours'}
  causal = load(task, 'transformer_rotary', 'causal', True)
  origins = causal.origins
  assert {origins.model.width, origins.finetune.pool, origins.pretrain.optimizer.lr} == {'ours'}


@pytest.mark.parametrize(
  'task, head, epochs, warmup_steps',
  [
    ('listops', 'linear', (100, 100), (2000, 2000)),
    ('image', 'mlp', (200, 50), (2000, 2500)),
    ('scifar', 'mlp', (200, 200), (2000, 2000)),
    ('pathfinder', 'linear', (200, 50), (5000, 2500)),
  ],
)
def test_published_code_of_transformers(task, head, epochs, warmup_steps):
  config = load(task, 'transformer_rotary', 'masked')
  stages = (config.finetune, config.pretrain)
  assert config.finetune.head == head
  assert tuple(stage.epochs for stage in stages) == epochs
  assert tuple(stage.schedule.warmup_steps for stage in stages) == warmup_steps
  assert {stage.schedule.name for stage in stages} == {'constant'}


@pytest.mark.parametrize('task', TASKS)
def test_what_all_rows_of_a_task_share(task):
  table = importlib.import_module(f'configs.{task}').ROWS
  assert set(table) == set(itertools.product(rows.MODELS, rows.ARMS))
  for model in rows.MODELS:
    config = load(task, model, 'masked')
    assert config.pretrain.mask_rate == (0.1 if task == 'listops' else 0.5)
    assert {stage.max_seconds for stage in (config.finetune, config.pretrain)} == {86400.0}


@pytest.mark.parametrize('task', TASKS)
def test_files_open_with_their_command_and_the_numbers_of_the_paper(task, repository):
  text = ast.get_docstring(ast.parse(pathlib.Path(repository, f'configs/{task}.py').read_text()))
  command = next(line for line in text.splitlines() if line.strip().startswith('lra-spt train'))
  spec = next(word for word in command.split() if word.startswith('--config=')).removeprefix('--config=')
  config = config_lib.load(spec)
  assert (config.task, config.model.name, config.regime) == (task, 'transformer_rotary', 'masked')
  # Tables 2 and 3, rotary Transformer after masked self-pretraining.
  number = {'listops': '61.49', 'image': '86.04', 'scifar': '90.29', 'pathfinder': '94.16'}[task]
  assert f'Expect a test accuracy of {number} %' in text
  assert 'We have not run these configs at full size.' in ' '.join(text.split())
  seen = []
  header, *lines = re.search(r'  model +scratch.*?\n\n', text, flags=re.DOTALL).group().rstrip().splitlines()
  assert header.split() == ['model', 'scratch', 'masked', 'causal']
  for line in lines:
    names, *cells = re.split(' {2,}', line.strip())
    cells += cells[-1:] * (3 - len(cells))
    for model in names.split(', '):
      seen.append(model)
      for regime, cell in zip(header.split()[1:], cells, strict=True):
        value = published.published(task, model, regime)
        expected = 'not in the paper' if value is None else f'{100 * value:.2f} ('
        assert cell.startswith(expected), (model, regime)
  assert seen == list(rows.MODELS)


@pytest.mark.parametrize(
  'arg, message',
  [
    ('model=transformer_rotry', 'one of transformer, transformer_rotary.* Did you mean transformer_rotary'),
    ('model=s4_rand', 'Did you mean s4_random'),
    ('regime=mask', 'choose one of masked, scratch, causal'),
    ('protocol=papre', 'choose one of clean, paper. Did you mean paper'),
    ('modle=transformer', 'Did you mean model'),
    ('regime=masked,causal=true', 'Masked pretraining has no causal form'),
    ('seed=one', 'seed takes an integer'),
  ],
)
def test_wrong_choice(arg, message):
  with pytest.raises(ConfigError, match=message):
    config_lib.load(f'configs/image.py:{arg}')


def test_protocol_seed_and_resolution_in_the_argument():
  config = config_lib.load('configs/pathfinder.py:protocol=paper,seed=3,resolution=32')
  assert (config.protocol, config.seed) == ('paper', 3)
  assert (config.model.name, config.regime) == ('transformer', 'masked')
  with pytest.raises(ConfigError, match='resolution=64 is unknown: choose one of 32'):
    config_lib.load('configs/pathfinder.py:resolution=64')


@pytest.mark.parametrize('task', TASKS)
@pytest.mark.parametrize('model', rows.MODELS)
def test_every_model_builds_at_its_published_size(task, model):
  """Building takes time: each kind of model is built once. The test below says that no choice has another."""
  builds = [('masked', 'pretrain'), ('masked', 'finetune'), ('causal', 'pretrain')]
  structured = model.removesuffix('_random')
  for regime, stage in builds if model == structured else builds[:1]:
    config = load(task, model, regime, regime == 'causal')
    params = experiment.build(config, stage).abstract_params
    assert set(params) == {'encoder', 'head'}
    backbone = {name: part for name, part in params['encoder'].items() if name != 'embed'}
    assert set(backbone) == ({'blocks', 'norm'} if config.model.prenorm else {'blocks'})
    # The published state-space models are bidirectional; causal ones have less to learn.
    if (task, structured) in BACKBONE and (model in rows.TRANSFORMERS or regime == 'masked'):
      size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(backbone))
      assert size == BACKBONE[task, structured]


@pytest.mark.parametrize('task', TASKS)
def test_regimes_and_initialisations_share_their_model(task):
  for model in rows.MODELS:
    expected = load(task, model.removesuffix('_random'), 'masked').model.to_dict()
    if model.endswith('_random'):
      expected |= {'name': model, 'random_init': 'all'}
    for form in FORMS:
      assert load(task, model, *form).model.to_dict() == expected


def test_identity_head_is_of_the_paper_protocol_and_of_tasks_that_say_so():
  """Published code denoises Text and Retrieval without an output projection; other tasks keep theirs."""
  listops = tasks.get_task('listops')
  tasks.register_task(dataclasses.replace(listops, name='identity_head', published_identity_head=True))

  def head(task, protocol):
    config = config_lib.load(f'configs/listops.py:protocol={protocol}', {'task': task})
    return experiment.build(config, 'pretrain').abstract_params.get('head', {})

  assert not head('identity_head', 'paper')
  assert head('identity_head', 'clean')
  assert head('listops', 'paper')
