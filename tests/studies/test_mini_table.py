"""The configs of LRA-mini and its study: models of one size, arms that differ in nothing else."""

import pytest

from configs.mini import recipe
from lra_spt import config
from lra_spt.build import build_stage
from lra_spt.studies import study

TASKS = ('image', 'listops', 'pathfinder', 'pulse', 'text')
MODELS = ('transformer', 'transformer_rotary', 's4', 's4d', 'dlr', 's5', 'lru')


@pytest.mark.parametrize(
  ('task', 'model'), [*(('image', model) for model in MODELS), *((task, 's4') for task in TASKS[1:])]
)
def test_models_have_about_70_thousand_parameters(task, model):
  built = build_stage(config.load(f'configs/mini/{task}.py:model={model},regime=scratch'), 'finetune')
  assert built.task.name == f'{task}_mini'
  assert 60_000 < built.model.parameter_count < 90_000


@pytest.mark.parametrize('task', TASKS)
def test_every_value_is_ours_and_alike_for_all_models(task):
  shared = []
  for model in MODELS:
    for regime in ('masked', 'causal', 'scratch'):
      one = config.load(f'configs/mini/{task}.py:model={model},regime={regime}')
      keys = ('batch_size', 'max_steps', 'patience', 'pool', 'data_fraction')
      shared.append({key: one.finetune[key] for key in keys})
      assert one.finetune.optimizer.lr == recipe.RATE
      assert one.pretrain.optimizer.lr == recipe.PRETRAIN_RATE
      assert one.pretrain.data_fraction == one.finetune.data_fraction  # it sees the same inputs
      assert one.origins.finetune.max_steps == one.origins.finetune.data_fraction == 'ours'
  assert all(one == shared[0] for one in shared)


@pytest.mark.parametrize('argument, cells', [('', 12), (':arms=all', 30), (':arms=all,models=all', 90)])
def test_the_table_is_one_question(argument, cells):
  one = study.load(f'configs/studies/mini_table.py{argument}')
  jobs = study.jobs(one, seeds=(2,))
  assert len(jobs) == len(one.cells) == cells
  # Seeds that choose learning rates do not test them, and every arm has the same ones to choose from.
  assert not {*one.seeds} & {*one.search.seeds}
  assert [{*values} for values in one.search.rounds[0]] == [{'finetune.optimizer.lr'}] * 2
  for job in jobs:
    both = job.config.pretrain.max_steps + recipe.FINETUNE_STEPS
    expected = both if job.cell.row.endswith((', scratch', 'causal form')) else recipe.FINETUNE_STEPS
    assert job.config.finetune.max_steps == expected
