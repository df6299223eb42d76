"""Tiny models on small generated tasks: runs of a few seconds.

  lra-spt prepare listops_mini --data_dir=data
  lra-spt train --config=configs/miniature.py:task=listops_mini,model=s4 --workdir=runs/miniature

Arguments: task (stripes or listops_mini) and those of the other config files. Models are far too small, and
train far too briefly, for the numbers to say anything about them. All values are ours.
"""

from configs import common, ssm
from configs.rows import ours, transformer, transformers

STEPS, EVERY = 60, 20
LINE = transformer(32, 2, 4, 64, 'mean', 1e-3, 1e-3, 50, 50, 0.0)
LINES = dict.fromkeys(
  (('transformer', 'masked'), ('transformer', 'causal'), ('transformer_rotary', 'masked')), LINE
)
STAGES = {'epochs': (1e6, 1e6), 'warmup_steps': (10, 10)}  # max_steps is the limit
TUNED = ssm.stages(pool='mean', weight_decay=0.0, **STAGES) | ssm.tuned(1e-3, 50, 1e-3, 50)
S4 = ssm.s4(32, 2, norm='layer', prenorm=True, copies=2)
ARCHITECTURES = {
  's4': S4,
  's4d': ssm.s4d(S4),
  'dlr': ssm.dlr(32, 2, prenorm=True),
  's5': ssm.s5(32, 2, states=16, blocks=2, rate=1e-3),
  'lru': ssm.lru(32, 2, states=16, ring=(0.0, 0.99), rate=1e-3),
}
SHARED = {'model.mixer.state_size': 16}
SHORT = {
  f'{stage}.{key}': value
  for stage in ('pretrain', 'finetune')
  for key, value in (('max_steps', STEPS), ('evaluate_every', EVERY))
}
ROWS = transformers(LINES, head='linear', **STAGES) | ssm.complete(
  {
    (model, regime): row | TUNED | ours(SHARED)
    for model, row in ARCHITECTURES.items()
    for regime in ('masked', 'scratch')
  },
  causal_pool='mean',
)
ROWS = {arm: ours(row | ours(SHORT)) for arm, row in ROWS.items()}


def get_config(arg=''):
  """The config of 'task=...,model=...,regime=...'; default: task=stripes,model=transformer,regime=masked."""
  choice = common.choose(arg, task=('stripes', 'listops_mini'))
  config = common.from_row(ROWS, choice, task=choice.task, mask_rate=0.5 if choice.task == 'stripes' else 0.2)
  config.runtime.update(devices=1, evaluation_batch_size=250, tensorboard=False, log_every=20)
  return config
