"""ListOps with expressions of at most 126 tokens, 10,000 generated ones to train (`listops_mini`).

  lra-spt prepare listops_mini --data_dir=data
  lra-spt train --config=configs/mini/listops.py:model=s4,regime=masked --workdir=runs/mini

The argument takes model, regime, protocol, seed, and with regime=scratch causal=true.
"""

from configs.mini import recipe


def get_config(arg=''):
  """The config of 'model=...,regime=...'; default: model=transformer,regime=masked."""
  return recipe.config(arg, task='listops_mini', mask_rate=0.1)
