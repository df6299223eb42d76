"""Does self-pretraining help where 40 to 537 series have labels? Eight sets of archives of time series.

  pip install aeon sktime     # their folders datasets/data have the files
  for name in ACSF1 BasicMotions Covid3Month JapaneseVowels OSULeaf PickupGestureWiimoteZ PLAID Tecator; do
    lra-spt prepare ts --name=${name,,} --train=${name}_TRAIN.ts --test=${name}_TEST.ts --longest=256 \\
      --data_dir=data; done
  lra-spt study configs/studies/archives.py --workdir=runs/archives --processes=2
  python -m benchmarks.peers.rocket --workdir=runs/archives --data_dir=data    # MultiRocket, beside them
  python -m benchmarks mini --study=archives --workdir=runs/archives          # the results as data

360 runs. Series longer than 256 positions are shortened. Models, sizes and learning rates are those of
LRA-mini (`configs/mini/recipe.py`), set on other tasks before; nothing is searched here. docs/data.md has the
plan and the analysis, which were fixed before any of these seeds ran.
"""

from configs.studies import mini
from lra_spt.studies.study import Cell, Study

CLASSES = {  # task: name in a table
  'acsf1': 'ACSF1',
  'basicmotions': 'BasicMotions',
  'japanesevowels': 'JapaneseVowels',
  'osuleaf': 'OSULeaf',
  'pickupgesturewiimotez': 'PickupGesture',
  'plaid': 'PLAID',
}
REGRESSIONS = {'covid3month': 'Covid3Month', 'tecator': 'Tecator'}
MODELS = {model: mini.MODELS[model] for model in ('transformer_rotary', 's4', 'lru')}
SEEDS = (31, 32, 33, 34, 35)
STEPS = 400  # of each stage
ARMS = {  # argument of the config, steps with labels
  'scratch': ('regime=scratch', 2 * STEPS),  # compute-tied
  'scratch, steps of finetuning': ('regime=scratch', STEPS),
  'masked': ('regime=masked', STEPS),
}
TRAINING = {'pretrain.max_steps': STEPS, 'pretrain.evaluate_every': 200, 'finetune.evaluate_every': 50}
TRAINING |= {'finetune.patience': 0, **{f'{stage}.batch_size': 16 for stage in ('pretrain', 'finetune')}}


def get_study():
  return Study(
    'archives',
    'Self-pretraining on eight sets of the archives of time series',
    [
      Cell(
        f'{name}, {arm}',
        column,
        f'configs/mini/own.py:task={task},model={model},{argument}',
        TRAINING | {'finetune.max_steps': steps},
      )
      for task, column in (CLASSES | REGRESSIONS).items()
      for model, name in MODELS.items()
      for arm, (argument, steps) in ARMS.items()
    ],
    about='Does masked self-pretraining help where 40 to 537 series have labels, for as many operations or '
    'for as many steps with labels? Models of about 70,000 parameters on series of at most 256 positions.',
    seeds=SEEDS,
  )
