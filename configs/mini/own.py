"""A task of your own with the models, steps and stopping rule of LRA-mini.

  lra-spt prepare ts --name=waves --train=Waves_TRAIN.ts --test=Waves_TEST.ts --data_dir=data
  lra-spt train --config=configs/mini/own.py:task=waves,model=s4 --workdir=runs/waves
  lra-spt compare --tasks=waves --model=mamba2 --workdir=runs/compare

Self-pretraining hides half of the values, as on Image, or 15 % of the tokens, as on Text.

Arguments: task (default: stripes, that of the demo), model, regime, protocol, seed and, with regime=scratch,
causal=true.
"""

from configs import common
from configs.mini import recipe
from lra_spt.data.tasks import get_task


def get_config(arg=''):
  """The config of 'task=...,model=...,regime=...'; default: task=stripes,model=transformer,regime=masked."""
  choice = common.choose(arg, task='stripes')
  mask_rate = 0.15 if get_task(choice.task).vocabulary else 0.5
  return recipe.of_choice(choice, choice.task, mask_rate, recipe.rows('mean', 'mean'), batch=250)
