"""LRA-mini: what self-pretraining gains on five small tasks, against scratch with the compute of both stages.

  for set in image text pulse; do lra-spt prepare ${set}_mini --raw_dir=RAW --data_dir=data; done
  for set in listops pathfinder; do lra-spt prepare ${set}_mini --data_dir=data; done
  lra-spt study configs/studies/mini_table.py --workdir=runs/mini --processes=2
  lra-spt study configs/studies/mini_table.py --workdir=runs/mini --only=task=image_mini,model=s4

Every arm of every model chooses one of three learning rates by validation, as the mean of seeds 0 and 1; then
seeds 2, 3 and 4 run with it. Not run so far.
"""

from configs.mini import recipe
from lra_spt.studies.study import Cell, Search, Study

TASKS = {
  'listops': 'ListOps',
  'image': 'Image',
  'text': 'Text',
  'pathfinder': 'Pathfinder',
  'pulse': 'Pulse',
}
MODELS = {
  'transformer_rotary': 'Transformer + Rotary',
  's4': 'S4',
  'transformer': 'Transformer',
  'dlr': 'DLR',
  's5': 'S5',
  'lru': 'LRU',
}
LONGER = {'finetune.max_steps': recipe.PRETRAIN_STEPS + recipe.FINETUNE_STEPS, 'finetune.patience': 0}
ARMS = {  # argument of the config, overrides
  'scratch': ('regime=scratch', {}),
  'scratch, compute of both stages': ('regime=scratch', LONGER),
  'masked': ('regime=masked', {}),
  'scratch, causal form': ('regime=scratch,causal=true', {}),
  'causal': ('regime=causal', {}),
}
RATES = (5e-4, 1e-3, 2e-3)


def get_study():
  return Study(
    'mini_table',
    'LRA-mini: the question of the paper on small tasks',
    [
      Cell(f'{name}, {arm}', column, f'configs/mini/{task}.py:model={model},{argument}', overrides)
      for model, name in MODELS.items()
      for arm, (argument, overrides) in ARMS.items()
      for task, column in TASKS.items()
    ],
    about='Five tasks of 128 to 256 positions with few labels, models of about 100,000 parameters; every '
    'arm has a learning rate that its validation chose. How much does self-pretraining on the same training '
    'inputs gain, also over training from scratch that takes as long, and do the models change places?',
    seeds=(2, 3, 4),
    search=Search(
      (tuple({'pretrain.optimizer.lr': rate, 'finetune.optimizer.lr': rate} for rate in RATES),),
      seeds=(0, 1),
    ),
  )
