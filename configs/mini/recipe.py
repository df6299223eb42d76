"""What the tasks of LRA-mini share: models of about 100 thousand parameters, and how long they are trained.

All values are ours. They are the same for every model and arm but for the learning rate, which the studies
(`configs/studies/mini_*.py`) choose by validation among the same values for all; the one here is the middle.
Training ends when validation has not improved for so long (`patience`), or at the cap. Pretraining has no
patience: it is as long for every model. Sizes and budgets are still those of development: they will be fixed
before the study runs. State space parameters learn at most at 1e-3, as everywhere.
"""

from configs import common, ssm
from configs.rows import ours, transformer, transformers

WIDTH, DEPTH, HEADS, BATCH, RATE = 64, 3, 2, 32, 1e-3  # of the Transformers; batch and rate of all
PRETRAIN_STEPS, FINETUNE_STEPS, EVERY, PATIENCE = 2_000, 3_000, 100, 10
RING = (0.5, 0.99)  # of LRU: states that remember some ten to some hundred positions


def rows(pool, causal_pool) -> dict:
  """{(model, arm): row} of all models; pool, causal_pool: over the positions, in either form."""
  epochs, warmup = (1e6, 1e6), (100, 100)  # max_steps is the limit
  lines = {
    (model, regime): transformer(
      WIDTH,
      DEPTH,
      HEADS,
      2 * WIDTH,
      pool if regime == 'masked' else causal_pool,
      RATE,
      RATE,
      BATCH,
      BATCH,
      0.0,
    )
    for model, regime in (
      ('transformer', 'masked'),
      ('transformer', 'causal'),
      ('transformer_rotary', 'masked'),
    )
  }
  tuned = ssm.stages(pool=pool, weight_decay=0.0, epochs=epochs, warmup_steps=warmup)
  tuned |= ssm.tuned(RATE, BATCH, RATE, BATCH)
  s4 = ssm.s4(80, 4, norm='layer', prenorm=True, copies=2)
  architectures = {
    's4': s4,
    's4d': ssm.s4d(s4),
    'dlr': ssm.dlr(64, 4, prenorm=True) | ours({'model.mixer.state_size': 64}),
    's5': ssm.s5(80, 4, states=64, blocks=4, rate=1e-3),
    'lru': ssm.lru(64, 4, states=48, ring=RING, rate=1e-3),
  }
  table = {
    (model, regime): row | tuned for model, row in architectures.items() for regime in ('masked', 'scratch')
  }
  found = transformers(lines, head='linear', epochs=epochs, warmup_steps=warmup)
  found |= ssm.complete(table, causal_pool=causal_pool)
  return {arm: ours(row | _TRAINING) for arm, row in found.items()}


_TRAINING = ours(
  {
    'pretrain.max_steps': PRETRAIN_STEPS,
    'pretrain.evaluate_every': 200,
    'finetune.max_steps': FINETUNE_STEPS,
    'finetune.evaluate_every': EVERY,
    'finetune.patience': PATIENCE,
  }
)


def config(arg, *, task, mask_rate, pool='mean', causal_pool='mean'):
  """The config of 'model=...,regime=...' for a task of LRA-mini."""
  found = common.from_row(rows(pool, causal_pool), common.choose(arg), task=task, mask_rate=mask_rate)
  found.runtime.update(devices=1, evaluation_batch_size=250, tensorboard=False)
  return found
