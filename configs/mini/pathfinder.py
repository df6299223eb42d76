"""Pathfinder at 16 x 16; 10,000 generated images for training (`pathfinder_mini`).

  lra-spt prepare pathfinder_mini --data_dir=data
  lra-spt train --config=configs/mini/pathfinder.py:model=s4,regime=masked --workdir=runs/mini

Expect a test accuracy of about 99.4 % with the learning rate that validation chose (docs/mini.md).

Arguments: model, regime, protocol, seed and, with regime=scratch, causal=true.
"""

from configs.mini import recipe


def get_config(arg=''):
  """The config of 'model=...,regime=...'; default: model=transformer,regime=masked."""
  return recipe.config(arg, task='pathfinder_mini', mask_rate=0.5)
