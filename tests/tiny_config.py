"""A run that takes seconds: ListOps trees of at most 23 tokens, a model of width 16.

  lra-spt train --config=tests/tiny_config.py:regime=masked --workdir=W --config.runtime.data_dir=D

The fixture `tiny_data` makes D. The argument has the form of other config files.
"""

import dataclasses

from configs import common, ssm
from configs.rows import ours, transformer, transformers
from lra_spt.data import tasks

TASK = tasks.register_task(
  dataclasses.replace(
    tasks.get_task('listops').with_inputs(length=24), name='tiny_listops', dataset='tiny_listops'
  )
)
LINE = transformer(16, 2, 2, 32, 'mean', 3e-3, 3e-3, 16, 16, 0.05)
LINES = dict.fromkeys(
  (('transformer', 'masked'), ('transformer', 'causal'), ('transformer_rotary', 'masked')), LINE
)
STAGES = {'epochs': (3, 3), 'warmup_steps': (4, 4)}
TUNED = ssm.stages(pool='mean', weight_decay=0.05, **STAGES) | ssm.tuned(3e-3, 16, 3e-3, 16)
ARCHITECTURES = {
  's4': ssm.s4(16, 2, norm='batch', prenorm=True, copies=16),
  's4d': ssm.s4d(ssm.s4(16, 2, norm='batch', prenorm=True, copies=16)),
  'dlr': ssm.dlr(16, 2, prenorm=True),
  's5': ssm.s5(16, 2, states=8, blocks=2, rate=1e-3),
  'lru': ssm.lru(16, 2, states=8, ring=(0.0, 0.99), rate=1e-3),
}
ROWS = transformers(LINES, head='linear', **STAGES) | ssm.complete(
  {
    (model, regime): row | TUNED | ours({'model.mixer.state_size': 8})
    for model, row in ARCHITECTURES.items()
    for regime in ('masked', 'scratch')
  },
  causal_pool='mean',
)


def get_config(arg=''):
  """Each stage has 18 steps of 16 of the 96 examples: evaluated at 6, 12, 18, also saved at 4, 8, 16."""
  config = common.from_row(ROWS, common.choose(arg), task=TASK.name, mask_rate=0.2)
  config.runtime.update(steps_per_dispatch=3, log_every=2, checkpoint_every=4, threads=1, tensorboard=False)
  config.runtime.check_mixer = False  # tests/models/test_check.py checks mixers, once for all these runs
  return config
