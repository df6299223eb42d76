"""Image (LRA): grayscale CIFAR-10, one pixel a position, length 1,024, 10 classes.

  lra-spt prepare cifar10 --data_dir=data
  lra-spt train --config=configs/image.py:model=transformer_rotary,regime=masked --workdir=runs/image

Expect a test accuracy of 86.04 % (paper, Table 2). The paper's numbers for all configs, test accuracy in %:

  model                scratch          masked          causal
  transformer          42.44 (Tay)      74.22 (T1)      76.00 (T1)
  transformer_rotary   75.04 (T2)       86.04 (T2)      not in the paper

Tay: Tay et al. (2020), as cited in Table 1 (T1). We have not run these configs at full size.
The argument takes model, regime, protocol (clean or paper), seed, and with regime=scratch causal=true.
"""
from configs import common

# Table 4. In print the first row's pretraining learning rate is "1e03".
ROWS = common.complete({
    # model, regime                   width depth heads FF, pool, lr FT, PT, batch FT, PT, decay
    ('transformer', 'masked'):        common.Row(64, 3, 4, 128, 'max', 1e-3, 1e-3, 16, 32, 0.0),
    ('transformer', 'causal'):        common.Row(64, 3, 4, 128, 'max', 1e-3, 5e-3, 32, 32, 0.0),
    ('transformer_rotary', 'masked'): common.Row(256, 6, 4, 512, 'mean', 1e-3, 1e-3, 64, 32, 0.0),
})


def get_config(arg=''):
  """The config of 'model=...,regime=...'; default: model=transformer,regime=masked."""
  return common.from_row(
      ROWS, common.choose(arg), task='image', mask_rate=0.5,
      # Published code, experiment lra/transformer-lra-cifar and its -mlm twin; (finetuning, pretraining).
      head='mlp', epochs=(200, 50), warmup_steps=(2000, 2500))
