"""Text (LRA): IMDb film reviews character by character, up to 4,096; do they praise the film? 2 classes.

  lra-spt prepare text --data_dir=data --raw_dir=DOWNLOADS
  lra-spt train --config=configs/text.py:model=transformer_rotary,regime=masked --workdir=runs/text

Expect a test accuracy of 91.02 % (paper, Table 2). The paper's numbers for all configs, test accuracy in %:

  model                scratch          masked          causal
  transformer          64.27 (Tay)      89.27 (T1)      88.81 (T1)
  transformer_rotary   79.08 (T2)       91.02 (T2)      not in the paper
  s4                   86.82 (Gu)       90.34 (T2)      not in the paper
  s4_random            88.34 (T7)       90.50 (T7)      not in the paper
  dlr                  79.65 (T7)       89.94 (T7)      not in the paper
  dlr_random           73.72 (T7)       89.13 (T7)      not in the paper
  s4d, s5, lru         not in the paper; from scratch their authors report 86.18, 89.31 and 89.4

Tay: Tay et al. (2020), as cited in Table 1 (T1); Gu: Gu et al. (2022), as cited in Table 2 (T2).
We have not run these configs at full size.
The argument takes model, regime, length (4096 or 2048), protocol (clean or paper), seed, and with
regime=scratch causal=true.

The published code picks its checkpoints by the test set and pretrains without an output projection;
protocol=paper does so too. protocol=clean holds a tenth of the training reviews out for validation, drawn as
that of Image is. The paper's text speaks of 2,048 positions, its published configs have 4,096, and so have
these under both protocols; length=2048 takes the shorter set (`lra-spt prepare text_2048`).
"""

from configs import common, ssm
from configs.rows import ours, transformer, transformers

# Table 4. The published code's config has a feed-forward size of 2,048; the rest is from there, experiment
# lra/transformer-lra-imdb and its -mlm twin; (finetuning, pretraining).
ROWS = transformers(
  {
    # model, regime                   width depth heads FF, pool, lr FT, PT, batch FT, PT, decay
    ('transformer', 'masked'): transformer(512, 6, 8, 1024, 'mean', 1e-4, 5e-4, 64, 32, 0.1),
    ('transformer', 'causal'): transformer(512, 6, 8, 1024, 'mean', 1e-4, 1e-3, 64, 32, 0.1),
    ('transformer_rotary', 'masked'): transformer(512, 6, 8, 1024, 'mean', 5e-4, 5e-4, 64, 8, 0.1),
  },
  head='mlp',
  epochs=(65, 32),
  warmup_steps=(2000, 5000),
)

# Published code, lra/s4-lra-imdb, lra/dlr-lra-imdb and their -mlm twins.
STAGES = {'pool': 'mean', 'weight_decay': 0.05, 'epochs': (32, 32)}
S4 = ssm.s4(256, 6, norm='batch', prenorm=True, copies=256, rates=(0.0, 1e-3, 1e-3)) | ssm.stages(
  warmup_steps=(5000, 1000), cosine=50_000, **STAGES
)
DLR = ssm.dlr(256, 6, prenorm=True) | ssm.stages(warmup_steps=(2000, 1000), **STAGES)
# The published S5: bin/run_experiments/run_lra_imdb.sh.
S5 = ssm.s5(
  256,
  6,
  states=192,
  blocks=12,
  dropout=0.1,
  rate=1e-3,
  gate='half_glu2',
  b_group='ssm',
  dt_global=True,
) | ssm.alone(lr=4e-3, batch_size=50, weight_decay=0.07, epochs=35, warmup_steps=0)
# 50,000 steps of 32 of all 25,000 reviews; the paper's learning-rate factor of 0.1 is here rate / lr, whose
# lr it does not print.
LRU = ssm.lru(256, 6, states=192, ring=(0.5, 0.9), dropout=0.1, rate=1e-3) | ssm.alone(
  lr=0.01, batch_size=32, weight_decay=0.05, epochs=50_000 * 32 / 25_000, warmup_steps=5000
)

S4_SCRATCH = ssm.s4_cited(S4, lr=0.01, batch_size=16, cosine=50_000)
# Table 5.
ROWS |= ssm.complete(
  {
    # model, regime            lr FT, batch FT, lr PT, batch PT
    ('s4', 'masked'): S4 | ssm.tuned(5e-4, 16, 5e-4, 8),
    ('s4', 'scratch'): S4_SCRATCH,
    # The third number is missing in print: that of the line with structured initialisation.
    ('s4_random', 'masked'): S4 | ssm.tuned(1e-3, 16, None, 32) | ours({'pretrain.optimizer.lr': 5e-4}),
    ('s4_random', 'scratch'): S4 | ssm.tuned(1e-3, 16),
    ('dlr', 'masked'): DLR | ssm.tuned(1e-3, 16, 5e-4, 8),
    ('dlr', 'scratch'): DLR | ssm.tuned(5e-4, 16),
    ('dlr_random', 'masked'): DLR | ssm.tuned(5e-4, 16, 5e-4, 8),
    ('dlr_random', 'scratch'): DLR | ssm.tuned(1e-3, 16),
    ('s4d', 'scratch'): ssm.s4d(S4_SCRATCH),
    ('s5', 'scratch'): S5,
    ('lru', 'scratch'): LRU,
  },
  causal_pool='mean',
)


TASK_NAMES = {4096: 'text', 2048: 'text_2048'}


def get_config(arg=''):
  """The config of 'model=...,regime=...,length=...'; default: model=transformer,regime=masked, 4096."""
  choice = common.choose(arg, length=tuple(TASK_NAMES))
  return common.from_row(ROWS, choice, task=TASK_NAMES[choice.length], mask_rate=0.15)
