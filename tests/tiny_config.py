"""A run of seconds: ListOps trees of at most 23 tokens, a Transformer of width 16.

  lra-spt train --config=tests/tiny_config.py:regime=masked --workdir=W --config.runtime.data_dir=D

The fixture `tiny_data` makes D. The argument takes what that of the other config files takes.
"""
import dataclasses

from configs import common
from lra_spt.data import tasks

TASK = tasks.register_task(
  dataclasses.replace(tasks.get_task('listops'), name='tiny_listops', dataset='tiny_listops', length=24))
ROW = common.Row(16, 2, 2, 32, 'mean', 3e-3, 3e-3, 16, 16, 0.05)
ROWS = {(model, regime): ROW for model in common.MODELS for regime in common.REGIMES}


def get_config(arg=''):
  """Each stage: 18 steps of 16 of the 96 examples; evaluated at 6, 12, 18, saved also at 4, 8, 16."""
  config = common.from_row(
    ROWS, common.choose(arg), task=TASK.name, mask_rate=0.2, head='linear', epochs=(3, 3),
    warmup_steps=(4, 4))
  config.runtime.update(steps_per_dispatch=3, log_every=2, checkpoint_every=4, threads=1, tensorboard=False)
  return config
