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
def test_models_have_about_100_thousand_parameters(task, model):
  built = build_stage(config.load(f'configs/mini/{task}.py:model={model},regime=scratch'), 'finetune')
  assert built.task.name == f'{task}_mini'
  assert 80_000 < built.model.parameter_count < 120_000


@pytest.mark.parametrize('task', TASKS)
def test_every_value_is_ours_and_alike_for_all_models(task):
  shared = []
  for model in MODELS:
    for regime in ('masked', 'causal', 'scratch'):
      one = config.load(f'configs/mini/{task}.py:model={model},regime={regime}')
      shared.append({key: one.finetune[key] for key in ('batch_size', 'max_steps', 'patience', 'pool')})
      assert one.finetune.optimizer.lr == one.pretrain.optimizer.lr == recipe.RATE
      assert one.origins.finetune.max_steps == 'ours'
  assert all(one == shared[0] for one in shared)


def test_the_table_is_one_question():
  one = study.load('configs/studies/mini_table.py')
  jobs = study.jobs(one, seeds=(2,))
  assert len(jobs) == len(one.cells) == 5 * 6 * 5
  # Seeds that choose learning rates do not test them, and every arm has the same ones to choose from.
  assert not {*one.seeds} & {*one.search.seeds}
  assert all(len({*values.values()}) == 1 for values in one.search.rounds[0])
  longer = next(job.config for job in jobs if 'compute of both' in job.cell.row)
  masked = next(job.config for job in jobs if job.cell.row.endswith('masked'))
  assert longer.finetune.max_steps == masked.pretrain.max_steps + masked.finetune.max_steps
  assert longer.finetune.patience == 0
