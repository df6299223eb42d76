"""LRA-mini, recipe 1: a mixer among baselines that have the same steps, seeds and search (`lra-spt compare`).

  lra-spt compare --register=my_mixer.py --model=moving_average --workdir=runs/compare --processes=2

Each task is trained from scratch and after self-pretraining. Pretraining takes 2,500 steps and finetuning at
most 6,000; training from scratch takes at most 8,500, as many as both stages. Sizes and stopping rule are
those of LRA-mini (`configs/mini/recipe.py`), limits those of `configs/studies/mini_longer.py`.

Every arm of every model chooses one of three learning rates (of finetuning, or of training from scratch) by
mean validation over seeds 0 and 1. Then seeds 2, 3 and 4 run with it. A change of any of this is another
recipe, with another number. Runs of different recipes are never compared.

Arguments: models, tasks and regimes, each joined by +; quick=true for a first look: one task, one seed, a
fixed rate, and at most seven minutes of training.
"""

from configs.studies import mini_longer, mini_table
from lra_spt.config import loading, mixers
from lra_spt.errors import ConfigError
from lra_spt.studies.study import Cell, Search, Study

RECIPE = 1
TASKS = ('listops', 'pathfinder', 'text', 'image')  # the first two are generated, so everybody has the same
BASELINES = {name: mini_table.ALL[name] for name in ('transformer_rotary', 's4', 'lru')}
RATES = (2.5e-4, 1e-3, 4e-3)
SEARCH = Search((tuple({'finetune.optimizer.lr': rate} for rate in RATES),), seeds=mini_table.SEARCH.seeds)
ARMS = {  # regime: {name of the arm: (argument of the config, its steps in `mini_longer.STEPS`)}
  'masked': {'scratch': ('regime=scratch', 'scratch'), 'masked': ('regime=masked', 'masked')},
  'causal': {
    'scratch, causal form': ('regime=scratch,causal=true', 'scratch'),
    'causal': ('regime=causal', 'masked'),
  },
}
QUICK_STEPS = {'pretrain': 500, 'finetune': 1_000}
QUICK_SECONDS = 420.0  # of training, for all arms together
ABOUT = (
  'Small tasks, models of about 70,000 parameters. Training from scratch is compute-tied: it may take as '
  'many steps as pretraining and finetuning together. Validation on two other seeds chose each learning '
  f'rate from {", ".join(f"{rate:g}" for rate in RATES)}.'
)
QUICK_ABOUT = (
  f'A quick look: one task, one seed, {QUICK_STEPS["finetune"]:,} steps of finetuning and a fixed learning '
  'rate. It shows that the mixer trains. Its numbers are not comparable with those of the recipe.'
)


def get_study(arg=''):
  """The study of 'models=...,tasks=...,regimes=...,quick=...'; by default the baselines on ListOps and
  Pathfinder, from scratch and after masked self-pretraining."""
  choice = loading.arguments(
    arg, models='+'.join(BASELINES), tasks='+'.join(TASKS[:2]), regimes='masked', quick=False
  )
  models, tasks = choice.models.split('+'), _chosen('task', choice.tasks, TASKS)
  arms = {
    name: arm for regime in _chosen('regime', choice.regimes, ARMS) for name, arm in ARMS[regime].items()
  }
  if choice.quick:
    tasks = tasks[:1]
  cells = [
    Cell(
      f'{mini_table.ALL.get(model, model)}, {name}',
      mini_table.TASKS[task],
      f'configs/mini/{task}.py:model={model},{argument}',
      _quick(steps, len(arms)) if choice.quick else {'finetune.max_steps': mini_longer.STEPS[steps]},
    )
    for task in tasks
    for model in dict.fromkeys(models)
    for name, (argument, steps) in arms.items()
    if 'causal' not in argument or mixers.has_causal_form(model)
  ]
  name, title = f'compare_{RECIPE}', f'LRA-mini, recipe {RECIPE}'
  if choice.quick:
    return Study(
      f'{name}_quick', f'{title}: quick look', cells, about=QUICK_ABOUT, seeds=mini_table.SEEDS[:1]
    )
  return Study(name, title, cells, about=ABOUT, seeds=mini_table.SEEDS, search=SEARCH)


def _chosen(what, text, known):
  names = list(dict.fromkeys(filter(None, text.split('+'))))
  if unknown := [name for name in names if name not in known]:
    raise ConfigError(f'Recipe {RECIPE} has no {what} {unknown[0]!r}: choose from {", ".join(known)}.')
  return names or list(known)[:1]


def _quick(steps, arms: int) -> dict:
  """Overrides of an arm; arms: their number, which share the time."""
  seconds, pretrain, finetune = QUICK_SECONDS / arms, *QUICK_STEPS.values()
  if steps == 'scratch':
    return {'finetune.max_steps': pretrain + finetune, 'finetune.max_seconds': seconds}
  return {
    'pretrain.max_steps': pretrain,
    'pretrain.max_seconds': seconds / 3,
    'finetune.max_steps': finetune,
    'finetune.max_seconds': seconds * 2 / 3,
  }
