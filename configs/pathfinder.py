"""Pathfinder (LRA): 32 x 32 drawings, one pixel a position, length 1,024; are the two dots joined? 2 classes.

  lra-spt prepare pathfinder32 --data_dir=data
  lra-spt train --config=configs/pathfinder.py:model=transformer_rotary,regime=masked --workdir=runs/pf

Expect a test accuracy of 94.16 % (paper, Table 2). The paper's numbers for all configs, test accuracy in %:

  model                scratch          masked          causal
  transformer          71.40 (Tay)      88.45 (T1)      88.49 (T1)
  transformer_rotary   76.64 (T2)       94.16 (T2)      not in the paper

Tay: Tay et al. (2020), as cited in Table 1 (T1). We have not run these configs at full size.
The argument takes model, regime, protocol (clean or paper), seed, with regime=scratch causal=true, and
resolution, which is 32 so far: the larger pictures have hyperparameters and an attention of their own.
"""
from configs import common

# Table 4. In print the second row is labelled "Masked" like the first; its place is that of the causal row.
ROWS = common.complete({
    # model, regime                   width depth heads FF, pool, lr FT, PT, batch FT, PT, decay
    ('transformer', 'masked'):        common.Row(128, 4, 8, 128, 'mean', 5e-4, 1e-3, 16, 16, 0.0),
    ('transformer', 'causal'):        common.Row(128, 4, 8, 128, 'mean', 1e-3, 1e-3, 256, 128, 0.0),
    ('transformer_rotary', 'masked'): common.Row(128, 6, 4, 512, 'mean', 5e-4, 1e-3, 64, 32, 0.0),
})


def get_config(arg=''):
  """The config of 'model=...,regime=...,resolution=32'; default: model=transformer,regime=masked."""
  return common.from_row(
      ROWS, common.choose(arg, resolution=(32,)), task='pathfinder', mask_rate=0.5,
      # Published code, lra/transformer-lra-pathfinder and its -mlm twin; (finetuning, pretraining).
      head='linear', epochs=(200, 50), warmup_steps=(5000, 2500))
