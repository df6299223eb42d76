"""Heart rate from 8 s of BIDMC's pulse oximetry and ECG at 31.25 Hz, split by patient (`pulse_mini`).

  lra-spt prepare pulse_mini --raw_dir=RAW --data_dir=data
  lra-spt train --config=configs/mini/pulse.py:model=s4,regime=masked --workdir=runs/mini

Expect a test R2 of about 0.54 with the learning rate that validation chose (docs/mini.md).

Arguments: model, regime, protocol, seed and, with regime=scratch, causal=true.
"""

from configs.mini import recipe


def get_config(arg=''):
  """The config of 'model=...,regime=...'; default: model=transformer,regime=masked."""
  return recipe.config(arg, task='pulse_mini', mask_rate=0.25)
