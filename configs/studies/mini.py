"""LRA-mini: what self-pretraining gains on small tasks, against training from scratch with as many steps.

  for set in image text pulse; do lra-spt prepare ${set}_mini --raw_dir=RAW --data_dir=data; done
  for set in listops pathfinder; do lra-spt prepare ${set}_mini --data_dir=data; done
  lra-spt study configs/studies/mini.py --workdir=runs/mini --processes=2
  lra-spt study configs/studies/mini.py --workdir=runs/mini --only=task=text_mini,model=s4
  lra-spt study configs/studies/mini.py:models=s4+my_mixer --workdir=runs/mini --register=my_mixer.py
  lra-spt study configs/studies/mini.py:part=labels --workdir=runs/mini_labels

Arguments: part, one of the studies below, and for those that search the models, names of mixers joined by +.
A mixer without a row of its own in `configs/mini/recipe.py` is the task's Transformer with that mixer.

table: six models on five tasks. Every arm of every model chooses one of two learning rates (of finetuning, or
of training from scratch) by mean validation over seeds 0 and 1. Then seeds 2, 3 and 4 run with it. The other
parts differ from it in what is said here.
arms: also from scratch for the steps of finetuning only, the baseline of published tables, and causal forms.
random: S4 and DLR from random values, the question of the paper's Figure 2 and Table 7.
further: architectures that the paper does not have.
longer, longer_tasks, longer_random: up to 6,000 steps of finetuning instead of 1,500, which is too short for
the stopping rule (six validations without improvement). Nothing is searched; the learning rates are those
that validation chose above.
labels: S4 with 3 to 100 % of the labels of Text, the question of the paper's Figure 3. "On the part":
pretraining sees the inputs of the same reviews as finetuning. Smaller parts are subsets of larger ones. Rates
are those that validation chose with all labels, and validation has all its labels.
length: two models at the full length of Image and ListOps, with complete training sets and one seed, for
curves of validation over operations. That makes 2.8 and 1.3 epochs, where the paper has up to 200.

docs/mini.md has the results, and says when each protocol was fixed.
"""

from configs.mini import recipe
from lra_spt.config import loading, mixers
from lra_spt.errors import ConfigError
from lra_spt.studies.study import Cell, Chart, Search, Study

TASKS = {'text': 'Text', 'image': 'Image', 'listops': 'ListOps', 'pathfinder': 'Pathfinder', 'pulse': 'Pulse'}
MODELS = {  # name in a config: name in a table
  'transformer_rotary': 'Transformer + Rotary',
  's4': 'S4',
  'transformer': 'Transformer',
  'dlr': 'DLR',
  's5': 'S5',
  'lru': 'LRU',
}
RANDOM = {'s4': 'S4', 's4_random': 'S4 random', 'dlr': 'DLR', 'dlr_random': 'DLR random'}
FURTHER = {'mega': 'MEGA', 'mamba2': 'Mamba-2', 'rglru': 'RG-LRU', 'gated_deltanet': 'Gated DeltaNet'}
BOTH = {'finetune.max_steps': recipe.PRETRAIN_STEPS + recipe.FINETUNE_STEPS}
ARMS = {  # argument of the config, overrides
  'scratch': ('regime=scratch', BOTH),
  'masked': ('regime=masked', {}),
}
ALL_ARMS = ARMS | {
  'scratch, steps of finetuning': ('regime=scratch', {}),
  'scratch, causal form': ('regime=scratch,causal=true', BOTH),
  'causal': ('regime=causal', {}),
}
LOW, HIGH = RATES = (1e-3, 4e-3)
SEARCH = Search((tuple({'finetune.optimizer.lr': rate} for rate in RATES),), seeds=(0, 1))
SEEDS = (2, 3, 4)
FINETUNE_STEPS = 6_000  # of the longer studies
STEPS = {'scratch': recipe.PRETRAIN_STEPS + FINETUNE_STEPS, 'masked': FINETUNE_STEPS}  # with labels, at most
LIMITS = (
  'In the table of LRA-mini finetuning ends before its stopping rule can apply; here it may take '
  f'{STEPS["masked"]:,} steps, and training from scratch {STEPS["scratch"]:,}, as many as both stages.'
)


def _of_all(*pairs) -> dict[str, tuple]:
  return dict(zip(MODELS, pairs, strict=True))


CHOSEN = {  # what the search chose, from scratch and after pretraining, for studies that search nothing
  'text': _of_all((HIGH, LOW), (HIGH, HIGH), (LOW, LOW), (HIGH, HIGH), (LOW, LOW), (HIGH, LOW)),
  'image': _of_all((LOW, LOW), (HIGH, HIGH), (LOW, LOW), (LOW, HIGH), (LOW, LOW), (LOW, HIGH)),
  'listops': _of_all((LOW, LOW), (HIGH, HIGH), (LOW, LOW), (HIGH, HIGH), (LOW, HIGH), (HIGH, HIGH))
  | {'s4_random': (HIGH, HIGH), 'dlr_random': (HIGH, HIGH)},
  'pathfinder': _of_all((LOW, LOW), (HIGH, HIGH), (LOW, LOW), (LOW, HIGH), (HIGH, HIGH), (LOW, LOW)),
}
SEARCHED = {  # part: title, tasks, models, arms, about
  'table': (
    'LRA-mini: the question of the paper on small tasks',
    TASKS,
    MODELS,
    ARMS,
    'Tasks of 128 to 256 positions with few labels, models of about 70,000 parameters. Training from scratch '
    'is compute-tied: it may take as many steps as pretraining and finetuning together, and stops before '
    'where validation no longer improves. Every arm has the learning rate that its validation chose on other '
    'seeds. How much does self-pretraining on the same training inputs gain, and do models change places?',
  ),
  'arms': (
    'LRA-mini in all arms',
    ('listops', 'image', 'text'),
    MODELS,
    ALL_ARMS,
    'Masked and causal self-pretraining against training from scratch, for the steps of finetuning and '
    'for those of both stages. How much of a gain would longer training have given as well, and does the '
    'causal form gain as much?',
  ),
  'random': (
    'LRA-mini from random values',
    ('text', 'listops'),
    RANDOM,
    ARMS,
    'S4 and DLR with their hand-made values and with random ones, from scratch with the compute of '
    'both stages and after masked self-pretraining on the same inputs. Do the values matter less after it?',
  ),
  'further': (
    'LRA-mini for further architectures',
    ('listops',),
    FURTHER,
    ARMS,
    'Four architectures that the paper does not have, with the protocol of the table of LRA-mini. '
    'What does masked self-pretraining on the same training inputs gain them?',
  ),
}
LONGER = {  # part: title, tasks, models, about
  'longer': (
    'LRA-mini with longer finetuning',
    ('listops',),
    MODELS,
    'Expressions of at most 126 tokens.',
  ),
  'longer_tasks': (
    'LRA-mini with longer finetuning: Image, Pathfinder and Text',
    ('image', 'pathfinder', 'text'),
    MODELS,
    'Images, drawn curves and reviews.',
  ),
  'longer_random': (
    'LRA-mini from random values with longer finetuning',
    ('listops',),
    RANDOM,
    'S4 and DLR with their hand-made values and with random ones on expressions of at most 126 tokens.',
  ),
}
PARTS = (*SEARCHED, *LONGER, 'labels', 'length')
LABELS = (0.03, 0.1, 0.3, 1.0)  # fractions of the training set
LENGTHS = {  # task, further argument of its config: column
  ('image', ''): 'Image, 12 x 12',
  ('listops', ''): 'ListOps, 128',
  ('image', ',full=true'): 'Image',
  ('listops', ',full=true'): 'ListOps',
}


def get_study(arg=''):
  """The study of 'part=...,models=...'; default: part=table with its models."""
  choice = loading.arguments(arg, part=PARTS, models='')
  name = f'mini_{choice.part}'
  if choice.part in SEARCHED:
    title, tasks, models, arms, about = SEARCHED[choice.part]
    if names := list(filter(None, choice.models.split('+'))):  # a cell refuses an unknown one
      models = {name: (MODELS | models).get(name, name) for name in names}
    return Study(name, title, cells(tasks, models, arms), about=about, seeds=SEEDS, search=SEARCH)
  if choice.models:
    raise ConfigError(f'part={choice.part} searches no learning rates for other models: leave out models=.')
  if choice.part in LONGER:
    title, tasks, models, about = LONGER[choice.part]
    return Study(name, title, longer(tasks, models), about=f'{about} {LIMITS}', seeds=SEEDS)
  return _labels(name) if choice.part == 'labels' else _length(name)


def cells(tasks, models: dict[str, str], arms: dict[str, tuple]) -> list[Cell]:
  """Every arm of every model on every task; causal arms only of models that have a causal form."""
  return [
    Cell(f'{name}, {arm}', TASKS[task], f'configs/mini/{task}.py:model={model},{argument}', overrides)
    for task in tasks
    for model, name in models.items()
    for arm, (argument, overrides) in arms.items()
    if 'causal' not in argument or mixers.has_causal_form(model)
  ]


def longer(tasks, models: dict[str, str], chosen=CHOSEN) -> list[Cell]:
  """Scratch and masked with the limits `STEPS`; chosen: learning rates, as `CHOSEN`."""
  return [
    Cell(
      f'{name}, {arm}',
      TASKS[task],
      f'configs/mini/{task}.py:model={model},regime={arm}',
      {'finetune.max_steps': steps, 'finetune.optimizer.lr': rate},
    )
    for task in tasks
    for model, name in models.items()
    for (arm, steps), rate in zip(STEPS.items(), chosen[task][model], strict=True)
  ]


def _labels(name) -> Study:
  scratch, finetune = ({'finetune.optimizer.lr': rate} for rate in CHOSEN['text']['s4'])
  cells = []
  for part in LABELS:
    labels = {'finetune.data_fraction': part}
    arms = {
      'scratch': ('scratch', BOTH | scratch | labels),
      'masked on the part': ('masked', finetune | labels | {'pretrain.data_fraction': part}),
      'masked on all inputs': ('masked', finetune | labels),
    }
    if part == 1:  # the part is all
      del arms['masked on the part']
    for arm, (regime, overrides) in arms.items():
      source = f'configs/mini/text.py:model=s4,regime={regime}'
      cells.append(Cell(f'S4, {arm}', f'{part:.0%}', source, overrides, x=part))
  return Study(
    name,
    'LRA-mini with fewer labels',
    cells,
    about='Is self-pretraining worth more where labels are few? Reviews of 255 characters; training '
    f'from scratch is compute-tied: it may take as many steps as pretraining ({recipe.PRETRAIN_STEPS:,}) and '
    f'finetuning ({recipe.FINETUNE_STEPS:,}) together.',
    seeds=SEEDS,
    chart=Chart('share of the training examples', 'test accuracy', log=True),
  )


def _length(name) -> Study:
  return Study(
    name,
    'LRA-mini at the length of LRA',
    [
      Cell(
        f'{MODELS[model]}, {arm}',
        column,
        f'configs/mini/{task}.py:model={model},{argument}{full}',
        overrides | {'finetune.optimizer.lr': rate},
      )
      for (task, full), column in LENGTHS.items()
      for model in ('transformer_rotary', 's4')
      for (arm, (argument, overrides)), rate in zip(ARMS.items(), CHOSEN[task][model], strict=True)
    ],
    about='Do learning curves on short sequences look like those at full length, for models of the same size '
    'and as many steps? The training sets are 22 and 10 times as large there. One seed, for curves: test '
    'scores and their differences say nothing.',
    seeds=(2,),
    show='operations',
  )
