"""LRA-mini with longer finetuning: what self-pretraining gains where both arms may stop by themselves.

  lra-spt prepare listops_mini --data_dir=data
  lra-spt study configs/studies/mini_longer.py --workdir=runs/mini_longer --processes=2
  lra-spt study configs/studies/mini_longer.py:models=all --workdir=runs/mini_longer --processes=2

In `mini_table.py` finetuning lasts 1,500 steps, which is too short for its stopping rule (six validations
without improvement), and on ListOps 12 of 18 finetuned runs were best at their last validation. Here
finetuning may take 6,000 steps and training from scratch as many as both stages together, 8,500. Everything
else is as in that table, including pretraining and the learning rates that validation chose there, so nothing
is searched. Fixed on 2026-11-28, after the runs of that table and before any of these.

Argument: models=main or all, as in `mini_table.py`.
"""

from configs.mini import recipe
from configs.studies import mini_table
from lra_spt.config import loading as config
from lra_spt.studies.study import Cell, Study

FINETUNE_STEPS = 6_000
STEPS = {'scratch': recipe.PRETRAIN_STEPS + FINETUNE_STEPS, 'masked': FINETUNE_STEPS}  # with labels, at most
LIMITS = (
  'In the table of LRA-mini finetuning ends before its stopping rule can apply; here it may take '
  f'{STEPS["masked"]:,} steps, and training from scratch {STEPS["scratch"]:,}, as many as both stages.'
)


def get_study(arg=''):
  """The study of 'models=...'; default: models=main."""
  return Study(
    'mini_longer',
    'LRA-mini with longer finetuning',
    cells(('listops',), models(arg)),
    about=f'Expressions of at most 126 tokens. {LIMITS}',
    seeds=mini_table.SEEDS,
  )


def models(arg: str) -> dict[str, str]:
  """{name in a config: name in the table} of 'models=main' or 'models=all'."""
  choice = config.arguments(arg, models=('main', 'all'))
  return mini_table.MODELS['main'] | mini_table.MODELS[choice.models]


def cells(tasks, models: dict[str, str], chosen=mini_table.CHOSEN) -> list[Cell]:
  """Scratch and masked with these limits; chosen: learning rates, as mini_table.CHOSEN."""
  return [
    Cell(
      f'{name}, {arm}',
      mini_table.TASKS[task],
      f'configs/mini/{task}.py:model={model},regime={arm}',
      {'finetune.max_steps': steps, 'finetune.optimizer.lr': rate},
    )
    for task in tasks
    for model, name in models.items()
    for (arm, steps), rate in zip(STEPS.items(), chosen[task][model], strict=True)
  ]
