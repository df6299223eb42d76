"""ListOps (LRA): nested lists of operations on digits, up to 2,048 tokens, 10 classes.

  lra-spt prepare listops --data_dir=data
  lra-spt train --config=configs/listops.py:model=transformer_rotary,regime=masked --workdir=runs/listops

Expect a test accuracy of 61.49 % (paper, Table 2). The paper's numbers for all configs, test accuracy in %:

  model                scratch          masked          causal
  transformer          36.37 (Tay)      59.75 (T1)      59.15 (T1)
  transformer_rotary   47.90 (T2)       61.49 (T2)      not in the paper

Tay: Tay et al. (2020), as cited in Table 1 (T1). We have not run these configs at full size.
The argument takes model, regime, protocol (clean or paper), seed, and with regime=scratch causal=true.
"""
from configs import common

# Table 4. The published code's config has a feed-forward size of 2,048 and no weight decay.
ROWS = common.complete({
    # model, regime                   width depth heads FF, pool, lr FT, PT, batch FT, PT, decay
    ('transformer', 'masked'):        common.Row(512, 6, 8, 1024, 'mean', 1e-4, 1e-3, 64, 128, 0.1),
    ('transformer', 'causal'):        common.Row(512, 6, 8, 1024, 'last', 5e-4, 5e-4, 128, 32, 0.1),
    ('transformer_rotary', 'masked'): common.Row(512, 6, 8, 1024, 'mean', 1e-4, 1e-3, 64, 256, 0.05),
})


def get_config(arg=''):
  """The config of 'model=...,regime=...'; default: model=transformer,regime=masked."""
  return common.from_row(
      ROWS, common.choose(arg), task='listops', mask_rate=0.1,
      # Published code, experiment lra/transformer-lra-listops and its -mlm twin; (finetuning, pretraining).
      head='linear', epochs=(100, 100), warmup_steps=(2000, 2000))
