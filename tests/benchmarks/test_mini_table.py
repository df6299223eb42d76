"""The configs of LRA-mini and its study: models of one size, arms that differ in nothing else."""

import json
import pathlib

import pytest

from configs.mini import recipe
from lra_spt.config import loading
from lra_spt.errors import ConfigError
from lra_spt.runs.build import build, resolve
from lra_spt.studies import study

RESULTS = pathlib.Path(__file__).parents[2] / 'benchmarks' / 'results'
MINI = 'configs/studies/mini.py'
TASKS = ('image', 'listops', 'pathfinder', 'pulse', 'text')
MODELS = ('transformer', 'transformer_rotary', 's4', 's4d', 'dlr', 's5', 'lru', *recipe.OTHERS)


@pytest.mark.parametrize(
  ('task', 'model'), [*(('image', model) for model in MODELS), *((task, 's4') for task in TASKS[1:])]
)
def test_models_have_about_70_thousand_parameters(task, model):
  built = build(resolve(loading.load(f'configs/mini/{task}.py:model={model},regime=scratch')), 'finetune')
  assert built.task.name == f'{task}_mini'
  assert 60_000 < built.model.parameter_count < 90_000


@pytest.mark.parametrize('task', TASKS)
def test_every_value_is_ours_and_alike_for_all_models(task):
  shared = []
  for model in MODELS:
    for regime in ('masked', 'causal', 'scratch'):
      one = loading.load(f'configs/mini/{task}.py:model={model},regime={regime}')
      keys = ('batch_size', 'max_steps', 'patience', 'pool', 'data_fraction')
      shared.append({key: one.finetune[key] for key in keys})
      assert one.finetune.optimizer.lr == recipe.RATE
      assert one.pretrain.optimizer.lr == recipe.PRETRAIN_RATE
      assert one.pretrain.data_fraction == one.finetune.data_fraction  # it sees the same inputs
      assert one.origins.finetune.max_steps == one.origins.finetune.data_fraction == 'ours'
  assert all(one == shared[0] for one in shared)


@pytest.mark.parametrize('part, cells', [('table', 60), ('arms', 90)])
def test_the_table_is_one_question(part, cells):
  one = study.load(f'{MINI}:part={part}')
  jobs = study.jobs(one, seeds=(2,))
  assert len(jobs) == len(one.cells) == cells
  # Seeds that choose learning rates do not test them, and every arm has the same ones to choose from.
  assert not {*one.seeds} & {*one.search.seeds}
  assert [{*values} for values in one.search.rounds[0]] == [{'finetune.optimizer.lr'}] * 2
  for job in jobs:
    both = job.config.pretrain.max_steps + recipe.FINETUNE_STEPS
    expected = both if job.cell.row.endswith((', scratch', 'causal form')) else recipe.FINETUNE_STEPS
    assert job.config.finetune.max_steps == expected


def test_models_by_name():
  one = study.load(f'{MINI}:models=mamba2+dlr+')
  table = study.load(MINI)
  assert one.rows == ['mamba2, scratch', 'mamba2, masked', 'DLR, scratch', 'DLR, masked']
  assert [cell for cell in one.cells if 'DLR' in cell.row] == [c for c in table.cells if 'DLR' in c.row]
  (job,) = study.jobs(one, seeds=(2,), only={'model': 'mamba2', 'task': 'text_mini', 'regime': 'masked'})
  assert job.config.model.mixer.name == 'mamba2'
  with pytest.raises(ConfigError, match='model=mamba9 is unknown: .* Did you mean mamba'):
    study.jobs(study.load(f'{MINI}:models=mamba9'))
  with pytest.raises(ConfigError, match='part=longer searches no learning rates'):
    study.load(f'{MINI}:part=longer,models=mamba2')


def test_a_mixer_without_a_causal_form_has_the_other_arms():
  rows = study.load(f'{MINI}:part=arms,models=linformer+s4').rows
  of_it = [row for row in rows if row.startswith('linformer')]
  assert of_it == ['linformer, scratch', 'linformer, masked', 'linformer, scratch, steps of finetuning']
  assert 'S4, causal' in rows


def test_arms_with_fewer_labels_see_the_same_reviews():
  one = study.load(f'{MINI}:part=labels')
  jobs = study.jobs(one, seeds=(2,))
  assert len(jobs) == len(one.cells) == 11
  assert one.search is None
  for job in jobs:
    assert job.config.finetune.data_fraction == job.cell.x
    if 'masked' in job.cell.row:
      of_all = job.cell.row.endswith('all inputs')
      assert job.config.pretrain.data_fraction == (1.0 if of_all else job.cell.x)
      assert job.config.pretrain.max_steps == recipe.PRETRAIN_STEPS


@pytest.mark.parametrize(
  ('part', 'column'),
  [
    ('labels', 'Text'),
    ('length', 'Image'),
    ('length', 'ListOps'),
    ('longer', 'ListOps'),
    ('longer_random', 'ListOps'),
    ('longer_tasks', 'Text'),
    ('longer_tasks', 'Image'),
    ('longer_tasks', 'Pathfinder'),
  ],
)
def test_learning_rates_are_those_of_the_table(part, column):
  """Those that validation chose there, or with random values, as benchmarks/results has them."""
  files = [RESULTS / f'{study}.json' for study in ('mini_table', 'mini_random')]
  cells = [cell for file in files for cell in json.loads(file.read_text())['cells']]
  of_column = [cell for cell in cells if cell['column'] == column and cell['search']]
  chosen = {cell['row']: cell['search'][0]['won'] for cell in of_column}
  jobs = study.jobs(study.load(f'{MINI}:part={part}'), seeds=(2,))
  jobs = [job for job in jobs if job.config.task.removesuffix('_mini') == column.lower()]
  assert jobs
  for job in jobs:
    arm = 'scratch' if job.cell.row.endswith('scratch') else 'masked'
    won = chosen[f'{job.cell.row.split(", ")[0]}, {arm}']
    assert won == f'finetune.optimizer.lr={job.config.finetune.optimizer.lr}'


@pytest.mark.parametrize(
  ('longer', 'shorter', 'cells'),
  [('longer', 'table', 12), ('longer_tasks', 'table', 36), ('longer_random', 'random', 8)],
)
def test_longer_finetuning_differs_in_nothing_else(longer, shorter, cells):
  jobs, of_shorter = (study.jobs(study.load(f'{MINI}:part={one}'), seeds=(2,)) for one in (longer, shorter))
  of_table = {(job.cell.row, job.cell.column): job for job in of_shorter}
  assert len(jobs) == cells
  for job in jobs:
    other = of_table[job.cell.row, job.cell.column]
    assert job.stages.get('pretrain') == other.stages.get('pretrain')
    more, less = job.config.to_dict(), other.config.to_dict()
    assert more['finetune'].pop('max_steps') - less['finetune'].pop('max_steps') == 4_500
    for one in (more, less):
      one['finetune']['optimizer'].pop('lr')
      one['origins']['finetune'].pop('max_steps'), one['origins']['finetune']['optimizer'].pop('lr')
    assert more == less


def test_full_length_changes_the_set_and_nothing_else():
  for task in ('image', 'listops'):
    full = loading.load(f'configs/mini/{task}.py:model=s4,regime=masked,full=true').to_dict()
    mini = loading.load(f'configs/mini/{task}.py:model=s4,regime=masked').to_dict()
    assert (full['task'], mini['task']) == (task, f'{task}_mini')
    parts = [[one[stage].pop('data_fraction') for stage in ('pretrain', 'finetune')] for one in (full, mini)]
    assert parts == [[1.0] * 2, [{'image': 0.4, 'listops': 1.0}[task]] * 2]
    for one in (full, mini):
      del one['task'], one['runtime']['evaluation_batch_size']
    assert full == mini
  table = study.jobs(study.load(MINI), seeds=(2,))
  of_table = {(job.cell.row, job.config.task): job.config.to_dict() for job in table}
  short = 0
  for job in study.jobs(study.load(f'{MINI}:part=length')):
    if same := of_table.get((job.cell.row, job.config.task)):  # a run of the table, at the rate it chose
      short += 1
      one = job.config.to_dict()
      for config_of in (one, same):
        config_of['finetune']['optimizer'].pop('lr')
        config_of['origins']['finetune']['optimizer'].pop('lr', None)
      assert one == same
  assert short == 8


def test_random_values_differ_in_nothing_else():
  one = study.load(f'{MINI}:part=random')
  table = study.load(MINI)
  assert one.search == table.search
  assert one.seeds == table.seeds
  configs = {(job.cell.row, job.cell.column): job.config for job in study.jobs(one, seeds=(2,))}
  for (row, column), random in configs.items():
    if 'random' in row:
      assert random.model.random_init == 'all'
      made = configs[row.replace(' random', ''), column].to_dict()
      assert random.to_dict() | {key: made[key] for key in ('model', 'origins')} == made
  same = {(job.cell.row, job.cell.column): job.config for job in study.jobs(table, seeds=(2,))}
  shared = configs.keys() & same.keys()
  assert len(shared) == 8
  for place in shared:
    assert configs[place].to_dict() == same[place].to_dict()
