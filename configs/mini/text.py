"""IMDb by character: the first 255 of a review; 5,000 labelled reviews (`text_mini`).

  lra-spt prepare text_mini --raw_dir=RAW --data_dir=data
  lra-spt train --config=configs/mini/text.py:model=s4,regime=masked --workdir=runs/mini

Expect a test accuracy of about 66.8 % with the learning rate that validation chose (docs/mini.md).

Arguments: model, regime, protocol, seed and, with regime=scratch, causal=true.
"""

from configs.mini import recipe


def get_config(arg=''):
  """The config of 'model=...,regime=...'; default: model=transformer,regime=masked."""
  return recipe.config(arg, task='text_mini', mask_rate=0.15)
