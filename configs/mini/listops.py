"""ListOps with expressions of at most 126 tokens; 10,000 generated ones for training (`listops_mini`).

  lra-spt prepare listops_mini --data_dir=data
  lra-spt train --config=configs/mini/listops.py:model=s4,regime=masked --workdir=runs/mini

Expect a test accuracy of about 43.1 % with the learning rate that validation chose (docs/mini.md).

Arguments: model, regime, protocol, seed; with regime=scratch, causal=true; and full=true, which trains the
same models for the same steps on LRA's ListOps: 96,000 expressions of at most 2,000 tokens
(`lra-spt prepare listops`).
"""

from configs.mini import recipe


def get_config(arg=''):
  """The config of 'model=...,regime=...'; default: model=transformer,regime=masked."""
  return recipe.config_or_full(arg, task='listops', mask_rate=0.1)
