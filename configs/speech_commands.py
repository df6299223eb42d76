"""Speech Commands: one second of sound at 16 kHz, one sample per position, length 16,000; which of 35 words?

  lra-spt prepare speech_commands --data_dir=data
  lra-spt train --config=configs/speech_commands.py:model=transformer_rotary,regime=masked --workdir=runs/sc

Expect a test accuracy of 91.49 % (paper, Table 3). The paper's numbers for all configs, test accuracy in %:

  model                scratch          masked          causal
  transformer          not in the paper (section 3.7 is about rotary Transformers only)
  transformer_rotary   86.93 (T3)       91.49 (T3)      86.13 (T3)
  s4                   96.08 (Gu)       96.52 (T3)      95.09 (T3)
  s4_random            not in the paper
  dlr, dlr_random      not in the paper
  s4d, s5, lru         not in the paper

Causal forms from scratch: transformer_rotary 84.55 (T3), s4 93.60 (Gu).
Gu: Gu et al. (2022), as cited in Table 3 (T3). We have not run these configs at full size.
Arguments: model, regime, protocol (clean or paper), seed and, with regime=scratch, causal=true.

The published code divides samples by 2^15 twice and then normalises every time step by itself;
protocol=paper does so too. protocol=clean has one mean and one deviation for all.
"""

from configs import common, pathx, ssm
from configs.rows import code, neighbours, ours, paper, transformer, transformers

# Table 4; attention in blocks of 4,000: C.3. Section 3.7 has rotary Transformers only: the others are ours.
# The rest: published code, sc/transformer-sc and its -lm twin, whose weight decay of 0.05 is not the paper's.
MASKED = transformer(128, 4, 4, 128, 'max', 1e-3, 1e-3, 256, 8, 0.0)
CAUSAL = transformer(128, 4, 4, 128, 'max', 1e-3, 1e-3, 256, 32, 0.0)
ROWS = transformers(
  {
    ('transformer_rotary', 'masked'): MASKED,
    ('transformer_rotary', 'causal'): CAUSAL,
    ('transformer', 'masked'): ours(MASKED),
    ('transformer', 'causal'): ours(CAUSAL),
  },
  head='linear',
  epochs=(200, 200),
  warmup_steps=(0, 2000),
  more=paper(neighbours(4000))
  | pathx.FIVE_DAYS
  | code({'finetune.schedule.name': 'plateau', 'finetune.schedule.patience': 10}),
)

# Published code, sc/s4-sc and its -lm twin. The twin has LayerNorm, whose scale and bias finetuning takes for
# those of BatchNorm; a run here has one norm.
S4 = (
  ssm.s4(128, 6, norm='batch', prenorm=True, copies=64)
  | ssm.stages(pool='max', weight_decay=0.05, epochs=(40, 40), warmup_steps=(1000, 1000), cosine=200_000)
  | code({'pretrain.schedule.name': 'cosine', 'pretrain.schedule.total_steps': 200_000})
)
DLR = ours(ssm.dlr(128, 6, prenorm=True) | {key: value for key, value in S4.items() if 'model' not in key})
# The published S5: bin/run_experiments/run_speech35.sh.
S5 = ssm.s5(96, 6, states=128, blocks=16, dropout=0.1, rate=2e-3, b_group='ssm', c_group='ssm') | ssm.alone(
  lr=8e-3, batch_size=16, weight_decay=0.04, epochs=40, warmup_steps=84_843 // 16
)

# Table 6 cites the authors of S4 from scratch; its printed values there repeat a row of Table 5.
# The authors have 2 copies instead of 64; here all arms have one model.
S4_SCRATCH = ssm.s4_cited(S4, lr=0.01, batch_size=16, cosine=200_000, more={'finetune.pool': 'mean'})
# Table 6. Random initialisation and DLR with the rates of PathX, LRU as there.
ROWS |= ssm.complete(
  {
    # model, regime            lr FT, batch FT, lr PT, batch PT
    ('s4', 'masked'): S4 | ssm.tuned(5e-3, 16, 1e-3, 32),
    ('s4', 'causal'): S4 | ssm.tuned(5e-4, 16, 1e-3, 32),
    ('s4', 'scratch'): S4_SCRATCH,
    ('s4_random', 'masked'): S4 | ours(ssm.tuned(5e-4, 16, 1e-3, 32)),
    ('s4_random', 'scratch'): S4 | ours(ssm.tuned(5e-4, 16)),
    ('dlr', 'masked'): DLR | ours(ssm.tuned(5e-4, 16, 5e-4, 32)),
    ('dlr', 'scratch'): DLR | ours(ssm.tuned(5e-4, 16)),
    ('s4d', 'scratch'): ssm.s4d(S4_SCRATCH),
    ('s5', 'scratch'): S5,
    ('lru', 'scratch'): pathx.LRU,
  },
  causal_pool='max',
)


def get_config(arg=''):
  """The config of 'model=...,regime=...'; default: model=transformer,regime=masked."""
  choice = common.choose(arg)
  remat = common.remat_at_length(choice)
  return common.from_row(ROWS, choice, task='speech_commands', mask_rate=0.25, remat=remat)
