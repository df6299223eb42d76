"""The config files: their rows are the paper's, every choice builds, the models have the published sizes."""

import ast
import dataclasses
import importlib
import itertools
import json
import math
import pathlib
import re

import jax
import pytest

from configs import bidmc, rows
from lra_spt.config import loading
from lra_spt.errors import ConfigError
from lra_spt.report import published
from lra_spt.runs.build import build, resolve
from tests.config import identities
from tests.config.choices import ALL, BIDMC, FORMS, TASKS, load

EXAMPLES = {  # of training, protocol clean; of BIDMC 5,565
  'listops': 96_000,
  'text': 22_500,
  'retrieval': 147_086,
  'image': 45_000,
  'scifar': 45_000,
  'pathfinder': 160_000,
  'pathx': 160_000,
  'speech_commands': 84_843,
}
# Section 2 and C.3; others 0.5.
MASK_RATES = {
  'listops': 0.1,
  'text': 0.15,
  'retrieval': 0.15,
  'speech_commands': 0.25,
  **dict.fromkeys(BIDMC, 0.25),
}

# Table 4, written out once more: width, depth, heads, FF, pool, lr (FT, PT), batch (FT, PT), weight decay.
TABLE_4 = {
  ('listops', 'transformer', 'masked'): (512, 6, 8, 1024, 'mean', (1e-4, 1e-3), (64, 128), 0.1),
  ('listops', 'transformer', 'causal'): (512, 6, 8, 1024, 'last', (5e-4, 5e-4), (128, 32), 0.1),
  ('listops', 'transformer_rotary', 'masked'): (512, 6, 8, 1024, 'mean', (1e-4, 1e-3), (64, 256), 0.05),
  ('text', 'transformer', 'masked'): (512, 6, 8, 1024, 'mean', (1e-4, 5e-4), (64, 32), 0.1),
  ('text', 'transformer', 'causal'): (512, 6, 8, 1024, 'mean', (1e-4, 1e-3), (64, 32), 0.1),
  ('text', 'transformer_rotary', 'masked'): (512, 6, 8, 1024, 'mean', (5e-4, 5e-4), (64, 8), 0.1),
  ('retrieval', 'transformer', 'masked'): (128, 4, 4, 512, 'mean', (5e-4, 5e-3), (16, 32), 0),
  ('retrieval', 'transformer', 'causal'): (128, 4, 4, 512, 'mean', (1e-3, 5e-3), (48, 32), 0),
  ('retrieval', 'transformer_rotary', 'masked'): (128, 6, 4, 512, 'mean', (5e-4, 5e-3), (16, 32), 0),
  ('image', 'transformer', 'masked'): (64, 3, 4, 128, 'max', (1e-3, 1e-3), (16, 32), 0),
  ('image', 'transformer', 'causal'): (64, 3, 4, 128, 'max', (1e-3, 5e-3), (32, 32), 0),
  ('image', 'transformer_rotary', 'masked'): (256, 6, 4, 512, 'mean', (1e-3, 1e-3), (64, 32), 0),
  ('scifar', 'transformer_rotary', 'masked'): (256, 6, 4, 512, 'mean', (1e-3, 1e-3), (64, 32), 0),
  ('pathfinder', 'transformer', 'masked'): (128, 4, 8, 128, 'mean', (5e-4, 1e-3), (16, 16), 0),
  ('pathfinder', 'transformer', 'causal'): (128, 4, 8, 128, 'mean', (1e-3, 1e-3), (256, 128), 0),
  ('pathfinder', 'transformer_rotary', 'masked'): (128, 6, 4, 512, 'mean', (5e-4, 1e-3), (64, 32), 0),
  ('pathx', 'transformer', 'masked'): (128, 4, 8, 128, 'max', (5e-4, 5e-4), (32, 8), 0),
  ('pathx', 'transformer', 'causal'): (128, 4, 8, 128, 'max', (5e-4, 1e-3), (256, 8), 0),
  ('pathx', 'transformer_rotary', 'masked'): (128, 5, 4, 512, 'max', (5e-4, 1e-3), (32, 8), 0),
  ('speech_commands', 'transformer_rotary', 'masked'): (128, 4, 4, 128, 'max', (1e-3, 1e-3), (256, 8), 0),
  ('speech_commands', 'transformer_rotary', 'causal'): (128, 4, 4, 128, 'max', (1e-3, 1e-3), (256, 32), 0),
  ('bidmc_hr', 'transformer_rotary', 'masked'): (128, 4, 4, 128, 'max', (5e-4, 5e-4), (32, 16), 0),
  ('bidmc_rr', 'transformer_rotary', 'masked'): (128, 4, 4, 128, 'max', (5e-4, 5e-4), (32, 16), 0),
  ('bidmc_spo2', 'transformer_rotary', 'masked'): (128, 4, 4, 128, 'max', (1e-4, 5e-4), (8, 16), 0),
}

# Parameters of the published backbones: blocks and final norm, without embedding and head.
BACKBONE = {
  ('listops', 'transformer'): 12_617_728,
  ('listops', 'transformer_rotary'): 12_617_728,
  ('text', 'transformer'): 12_617_728,
  ('text', 'transformer_rotary'): 12_617_728,
  ('retrieval', 'transformer'): 793_344,
  ('retrieval', 'transformer_rotary'): 1_189_888,
  ('image', 'transformer'): 100_544,
  ('image', 'transformer_rotary'): 3_163_136,
  ('scifar', 'transformer'): 100_544,
  ('scifar', 'transformer_rotary'): 3_163_136,
  ('pathfinder', 'transformer'): 398_592,
  ('pathfinder', 'transformer_rotary'): 1_189_888,
  ('pathx', 'transformer'): 398_592,  # as on Pathfinder, with other heads
  ('pathx', 'transformer_rotary'): 991_616,
  ('speech_commands', 'transformer_rotary'): 398_592,
  ('bidmc_hr', 'transformer_rotary'): 398_592,
  ('listops', 's4'): 595_968,
  ('text', 's4'): 1_287_680,
  ('retrieval', 's4'): 1_287_680,
  ('image', 's4'): 3_559_680,
  ('scifar', 's4'): 3_559_680,
  ('pathfinder', 's4'): 1_287_680,
  ('pathx', 's4'): 1_287_680,
  ('speech_commands', 's4'): 373_504,
  ('bidmc_hr', 's4'): 603_904,
  ('listops', 'dlr'): 4_477_952,
  ('text', 'dlr'): 7_098_368,
  ('retrieval', 'dlr'): 7_098_368,  # as on Text, whose sizes it has
  ('image', 'dlr'): 15_757_312,
  ('scifar', 'dlr'): 15_757_312,
  ('pathfinder', 'dlr'): 7_098_368,  # as on PathX, whose sizes it has
  ('pathx', 'dlr'): 7_098_368,
}

EVERY_CHOICE = [(*choice, *form) for choice in itertools.product(ALL, rows.MODELS) for form in FORMS]
FLOATS = (
  'epochs lr weight_decay clip_norm max_seconds mask_rate factor dropout random_std dt_min dt_max '
  'r_min r_max max_phase ssm_lr dt_lr a_lr b_lr lambda_lr w_lr'
).split()


def test_no_config_has_other_values_or_origins_than_before():
  """If one should: `python -m tests.config.identities`."""
  for file, models in json.loads(identities.FILE.read_text()).items():
    assert {model: identities.digest_of(file, model) for model in models} == models, file


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


@pytest.mark.parametrize('task', ALL)
def test_every_choice_has_the_same_keys_with_an_origin(task):
  keys = set()
  for choice in EVERY_CHOICE:
    if choice[0] != task:
      continue
    config = load(*choice)
    assert (config.task, config.model.name, config.regime, config.causal) == choice
    assert (config.protocol, config.seed) == ('clean', 0)
    values = config.to_dict()
    origins, values = loading.flattened(values.pop('origins')), loading.flattened(values)
    assert set(origins) == set(values)
    assert set(origins.values()) == {'paper', 'code', 'ours'}
    for key, value in values.items():
      assert value is not None, key
      if key.split('.')[-1] in FLOATS:  # an override keeps the type, so every rate must be a float
        assert type(value) is float, key
    keys.add(frozenset(key for key in values if not key.startswith('model.mixer.')))
  assert len(keys) == 1


@pytest.mark.parametrize('task', ALL)
def test_every_stage_leaves_its_warmup(task):
  examples = EXAMPLES.get(task, 5565)
  for choice in EVERY_CHOICE:
    if choice[0] != task:
      continue
    config = load(*choice)
    for stage in ('pretrain', 'finetune') if config.regime != 'scratch' else ('finetune',):
      spec = resolve(config).stages[stage]
      total = spec.total_steps(examples)
      assert spec.schedule.resolved(total).warmup_steps < total / 2, (choice, stage)


def test_published_cosines_end_stages_or_rise_again():
  for path, example_count, steps, epochs in (
    ('configs/pythia.py:task=listops,regime=scratch', 96_000, 2000, 300_000),
    ('configs/pathx.py:model=dlr_random,regime=masked', 160_000, 250_000, 500_000),
    ('configs/speech_commands.py:model=s4,regime=scratch', 84_843, 200_000, 212_108),
  ):
    clean, paper = (
      resolve(loading.load(f'{path},protocol={protocol}')).stages['finetune']
      for protocol in ('clean', 'paper')
    )
    assert (clean.total_steps(example_count), paper.total_steps(example_count)) == (steps, epochs)
    assert paper.schedule == dataclasses.replace(clean.schedule, rises=True)


@pytest.mark.parametrize(
  'task, head, epochs, warmup_steps, schedule',
  [
    ('listops', 'linear', (100, 100), (2000, 2000), 'constant'),
    ('text', 'mlp', (65, 32), (2000, 5000), 'constant'),
    ('retrieval', 'match', (32, 32), (5000, 2000), 'constant'),
    ('image', 'mlp', (200, 50), (2000, 2500), 'constant'),
    ('scifar', 'mlp', (200, 200), (2000, 2000), 'constant'),
    ('pathfinder', 'linear', (200, 50), (5000, 2500), 'constant'),
    ('pathx', 'linear', (200, 200), (5000, 5000), 'constant'),
    ('speech_commands', 'linear', (200, 200), (0, 2000), 'plateau'),
    *((task, 'linear', (500, 500), (0, 500), 'multistep') for task in BIDMC),
  ],
)
def test_published_code_of_transformers(task, head, epochs, warmup_steps, schedule):
  config = load(task, 'transformer_rotary', 'masked')
  stages = (config.finetune, config.pretrain)
  assert config.finetune.head == head
  assert tuple(stage.epochs for stage in stages) == epochs
  assert tuple(stage.schedule.warmup_steps for stage in stages) == warmup_steps
  assert (config.finetune.schedule.name, config.pretrain.schedule.name) == (schedule, 'constant')
  assert config.finetune.schedule.patience == (10 if schedule == 'plateau' else 20)


@pytest.mark.parametrize('task', ALL)
def test_what_all_rows_of_a_task_share(task):
  table = bidmc.ROWS[task[6:]] if task in BIDMC else importlib.import_module(f'configs.{task}').ROWS
  assert set(table) == set(itertools.product(rows.MODELS, rows.ARMS))
  for model in rows.MODELS:
    config = load(task, model, 'masked')
    assert config.pretrain.mask_rate == MASK_RATES.get(task, 0.5)
    days = 5 if task in ('pathx', 'speech_commands') and model in rows.TRANSFORMERS else 1  # C.1
    assert {stage.max_seconds for stage in (config.finetune, config.pretrain)} == {days * 86400.0}
    assert config.origins.pretrain.max_seconds == 'paper'
    for form in FORMS:
      assert (load(task, model, *form).finetune.head == 'match') == (task == 'retrieval')


@pytest.mark.parametrize('task', TASKS)
def test_files_open_with_their_command_and_the_numbers_of_the_paper(task, repository):
  text = ast.get_docstring(ast.parse(pathlib.Path(repository, f'configs/{task}.py').read_text()))
  command = next(line for line in text.splitlines() if line.strip().startswith('lra-spt train'))
  spec = next(word for word in command.split() if word.startswith('--config=')).removeprefix('--config=')
  config = loading.load(spec)
  assert (config.task, config.model.name, config.regime) == (task, 'transformer_rotary', 'masked')
  # Tables 2 and 3, rotary Transformer after masked self-pretraining.
  number = {
    'listops': '61.49',
    'text': '91.02',
    'retrieval': '91.57',
    'image': '86.04',
    'scifar': '90.29',
    'pathfinder': '94.16',
    'pathx': '92.98',
    'speech_commands': '91.49',
  }[task]
  assert f'Expect a test accuracy of {number} %' in text
  for model, regime, cell in table_of(text):
    row = published.published_row(task, model, regime, causal=regime == 'causal')
    expected = ('not in the paper', 'chance (Tay)') if row is None else f'{row.value:.2f} ('
    assert cell.startswith(expected), (model, regime)


def table_of(text):
  """(model, regime, cell) of the table of a docstring, which has all models; a line's last cell fills it."""
  header, *lines = re.search(r'  model +scratch.*?\n\n', text, flags=re.DOTALL).group().rstrip().splitlines()
  assert header.split() == ['model', 'scratch', 'masked', 'causal']
  cells = []
  for line in lines:
    names, *values = re.split(' {2,}', line.strip())
    values += values[-1:] * (3 - len(values))
    cells += [
      (name, *pair) for name in names.split(', ') for pair in zip(header.split()[1:], values, strict=True)
    ]
  assert [model for model, regime, _ in cells if regime == 'scratch'] == list(rows.MODELS)
  return cells


def test_bidmc_opens_with_its_command_and_the_numbers_of_the_paper():
  text = ' '.join(bidmc.__doc__.split())
  for part in (
    'Expect a test R2 of 0.992 (paper, Table 3)',
    'lra-spt prepare bidmc --data_dir=data',
    'lra-spt train --config=configs/bidmc.py:model=transformer_rotary,regime=masked',
    'up to 500 epochs per stage, as in the published code',
  ):
    assert part in text
  for model, regime, cell in table_of(bidmc.__doc__):
    printed = [published.published_row(task, model, regime, causal=regime == 'causal') for task in BIDMC]
    expected = 'not in the paper' if None in printed else ', '.join(row.printed for row in printed)
    assert cell.startswith(expected), (model, regime)


def test_targets_of_bidmc_have_the_published_schedule():
  assert loading.load('configs/bidmc.py').task == 'bidmc_hr'
  for task in BIDMC:
    config = load(task, 'transformer_rotary', 'masked')
    schedule = config.finetune.schedule
    assert (schedule.factor, tuple(schedule.milestones)) == (0.5, (100, 200, 300, 400))
    assert {config.origins.finetune.schedule.factor, config.origins.finetune.schedule.milestones} == {'code'}
    assert 'block' not in config.model.mixer  # attention is full
    for model in ('transformer_rotary', 's4'):
      config = load(task, model, 'masked')
      for stage in ('pretrain', 'finetune'):  # more than the 200 of the paper's text
        assert (config[stage].epochs, config.origins[stage].epochs) == (500.0, 'code')


@pytest.mark.parametrize(
  'spec, message',
  [
    (
      'image.py:model=transformer_rotry',
      'one of `lra-spt list models`. Did you mean transformer_',
    ),
    ('image.py:model=s4_rand', 'Did you mean s4_random'),
    ('image.py:regime=mask', 'choose one of masked, scratch, causal'),
    ('image.py:protocol=papre', 'choose one of clean, paper. Did you mean paper'),
    ('image.py:modle=transformer', 'Did you mean model'),
    ('image.py:regime=masked,causal=true', 'Masked pretraining has no causal form'),
    ('image.py:seed=one', 'seed takes an integer'),
    ('demo.py:regime=masked,causal=true', 'Masked pretraining has no causal form'),
    ('bidmc.py:target=spo', 'target=spo is unknown: choose one of hr, rr, spo2'),
    ('pathx.py:resolution=32', 'resolution=32 is unknown: choose one of 128, 64, 256'),
    ('text.py:length=1000', 'length=1000 is unknown: choose one of 4096, 2048'),
  ],
)
def test_wrong_choice(spec, message):
  with pytest.raises(ConfigError, match=message):
    loading.load(f'configs/{spec}')


@pytest.mark.parametrize('regime, causal', [('masked', False), ('causal', True)])
def test_the_demo_has_the_form_of_its_regime(regime, causal):
  assert loading.load(f'configs/demo.py:regime={regime}').causal == causal


def test_protocol_seed_and_resolution_in_the_argument():
  config = loading.load('configs/pathx.py:protocol=paper,seed=3,resolution=64')
  assert (config.protocol, config.seed, config.task) == ('paper', 3, 'pathfinder64')
  assert (config.model.name, config.regime) == ('transformer', 'masked')
  assert loading.load('configs/pathx.py').task == 'pathx'


@pytest.mark.parametrize('task', [*TASKS, 'bidmc_hr'])  # whose models are those of the other targets
@pytest.mark.parametrize('model', rows.MODELS)
def test_every_model_builds_at_its_published_size(task, model):
  """Building takes time: each kind of model is built once. The test below says that no choice has another."""
  builds = [('masked', 'pretrain'), ('masked', 'finetune'), ('causal', 'pretrain')]
  structured = model.removesuffix('_random')
  for regime, stage in builds if model == structured else builds[:1]:
    config = load(task, model, regime, regime == 'causal')
    params = build(resolve(config), stage).model.params
    assert set(params) == {'encoder', 'head'}
    backbone = {name: part for name, part in params['encoder'].items() if name != 'embed'}
    assert set(backbone) == ({'blocks', 'norm'} if config.model.prenorm else {'blocks'})
    # The published state-space models are bidirectional; causal ones have less to learn.
    if (task, structured) in BACKBONE and (model in rows.TRANSFORMERS or regime == 'masked'):
      size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(backbone))
      assert size == BACKBONE[task, structured]
