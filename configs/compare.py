"""LRA-mini, recipe 1: a mixer among baselines that have the same steps and seeds (`lra-spt compare`).

  lra-spt compare --register=my_mixer.py --model=moving_average --workdir=runs/compare --processes=2

Each task is trained from scratch and after self-pretraining. Pretraining takes 2,500 steps and finetuning at
most 6,000; training from scratch takes at most 8,500, as many as both stages. Sizes and stopping rule are
those of LRA-mini (`configs/mini/recipe.py`), limits those of `configs/studies/mini.py:part=longer`. Runs of
Pathfinder do not stop early, as in `configs/studies/questions.py`.

Every arm of a mixer chooses one of three learning rates (of finetuning, or of training from scratch) by
validation on seed 0. Baselines have the rates that validation chose for LRA-mini, from two and on shorter
runs. Then three other seeds run. A change of any of this is another recipe, with another number. Runs of
different recipes are never compared.

Arguments: models, tasks and regimes, each joined by +; quick=true for a first look: one task, one seed, a
fixed rate, and at most seven minutes of training. A task of your own has the sizes and steps of the others
(`configs/mini/own.py`); on it baselines choose their rates as mixers do.
"""

from configs.studies import mini, questions
from lra_spt.config import loading, mixers
from lra_spt.data import tasks as known_tasks
from lra_spt.errors import IMPORT_FIRST, ConfigError, nearest
from lra_spt.studies.study import Cell, Search, Study

RECIPE = 1
TASKS = ('listops', 'pathfinder', 'text', 'image')  # the first two are generated, so everybody has the same
BASELINES = ('transformer_rotary', 's4', 'dlr')
SEEDS = {'listops': mini.SEEDS}  # of runs that exist; of other tasks `FRESH`
FRESH = questions.SEEDS[:3]
RATES = (2.5e-4, 1e-3, 4e-3)
SEARCH = Search((tuple({'finetune.optimizer.lr': rate} for rate in RATES),), seeds=(0,))
ARMS = {  # regime: {name of the arm: (argument of the config, way of training whose limit and rate it has)}
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
  'many steps as pretraining and finetuning together.'
)
SEARCHED = f'Validation on another seed chose learning rates from {", ".join(f"{rate:g}" for rate in RATES)}.'
FIXED = (
  'Baselines have the learning rates of LRA-mini, chosen from two by shorter runs, which favours other '
  'models slightly.'
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
  models, regimes = _names(choice.models), _names(choice.regimes)
  tasks = _names(choice.tasks)[: 1 if choice.quick else None]
  own_tasks = [name for name, task in known_tasks.TASKS.items() if known_tasks.is_own(task)]
  own_tasks += [name for name in tasks if name not in (*TASKS, *own_tasks) and _is_prepared(name)]
  if unknown := [name for name in tasks if name not in (*TASKS, *own_tasks)]:
    raise ConfigError(
      f'Recipe {RECIPE} has no task {unknown[0]!r}: choose from {", ".join((*TASKS, *own_tasks))}.'
      f'{nearest(unknown[0], (*TASKS, *own_tasks))}{IMPORT_FIRST}'
    )
  if unknown := [name for name in regimes if name not in ARMS]:
    raise ConfigError(f'Recipe {RECIPE} has no regime {unknown[0]!r}: choose from {", ".join(ARMS)}.')
  arms = {name: arm for regime in regimes for name, arm in ARMS[regime].items()}
  cells = [
    _cell(task, model, name, *arm, quick=len(arms) if choice.quick else 0)
    for task in tasks
    for model in models
    for name, arm in arms.items()
    if 'causal' not in arm[0] or mixers.has_causal_form(model)
  ]
  name, title = f'compare_{RECIPE}', f'recipe {RECIPE} of LRA-mini'
  if choice.quick:
    return Study(f'{name}_quick', f'quick look by {title}', cells, about=QUICK_ABOUT)
  rates = [SEARCHED if cell.search else FIXED for cell in cells]
  return Study(name, title, cells, about=' '.join((ABOUT, *dict.fromkeys(rates))))


def _is_prepared(task: str) -> bool:
  """True for the name of a prepared set of your own, which is a task by itself."""
  try:
    return known_tasks.is_own(known_tasks.get_task(task))
  except ConfigError:
    return False


def _names(text: str) -> list[str]:
  return list(dict.fromkeys(filter(None, text.split('+'))))


def _cell(task, model, name, argument, way, quick):
  """quick: the number of arms that share the time of a quick look; 0 for the recipe."""
  file = f'configs/mini/{task}.py:' if task in TASKS else f'configs/mini/own.py:task={task},'
  overrides = {'finetune.max_steps': mini.STEPS[way]}
  if task == 'pathfinder':
    overrides |= questions.WHOLE
  fixed = task in TASKS and model in BASELINES
  if fixed:
    rates = dict(zip(mini.STEPS, mini.CHOSEN[task][model], strict=True))
    overrides['finetune.optimizer.lr'] = rates[way]
  if quick:
    overrides |= _quick(way, quick)
  seeds = SEEDS.get(task, FRESH)
  return Cell(
    f'{mini.MODELS.get(model, model)}, {name}',
    mini.TASKS.get(task, task),
    f'{file}model={model},{argument}',
    overrides,
    seeds=seeds[:1] if quick else seeds,
    search=None if fixed or quick else SEARCH,
  )


def _quick(way, arms: int) -> dict:
  """Overrides of an arm; arms: their number, which share the time."""
  seconds, pretrain, finetune = QUICK_SECONDS / arms, *QUICK_STEPS.values()
  if way == 'scratch':
    return {'finetune.max_steps': pretrain + finetune, 'finetune.max_seconds': seconds}
  return {
    'pretrain.max_steps': pretrain,
    'pretrain.max_seconds': seconds / 3,
    'finetune.max_steps': finetune,
    'finetune.max_seconds': seconds * 2 / 3,
  }
