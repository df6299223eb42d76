"""Shared values of the tasks of LRA-mini: models of 67 to 87 thousand parameters, and the length of training.

All values are ours, set on development seed 0 and fixed on 2026-11-22, before any other seed ran. They are
the same for every model and arm, except the learning rates of finetuning and of training from scratch: the
studies (`configs/studies/mini.py`) choose these by validation, from the same candidates for all.

Pretraining has the same length and learning rate for every model. In the studies, training from scratch ends
after as many steps as both stages together, or when validation has not improved for `PATIENCE` evaluations.
The same rule holds for finetuning, but has no effect there: finetuning lasts only `PATIENCE` evaluations
(`part=longer` gives it more).

All models but MEGA are 64 wide, and as deep as the number of parameters allows (causal state-space models,
which need fewer, have 52 to 65 thousand). In state-space models, step sizes, eigenvalues and (in S4 and DLR)
input maps learn at 1e-3 at most; their other parameters learn at the stage's rate.
"""

from configs import common, ssm
from configs.rows import ARMS, of_mixer, ours, transformer, transformers

WIDTH, DEPTH, HEADS, BATCH = 64, 2, 2, 32  # depth and heads: of the Transformers
RATE, PRETRAIN_RATE = 1e-3, 2e-3
PRETRAIN_STEPS, FINETUNE_STEPS, EVERY, PATIENCE = 2_500, 1_500, 250, 6
RING = (0.5, 0.99)  # of LRU: states that remember some ten to some hundred positions
OTHERS = {  # differences from the Transformer's row; blocks as in their papers
  # Values and feed-forward layers twice as wide as the model, as published for LRA.
  'mega': {'model.width': 48, 'model.feed_forward': 96, 'model.mixer.v': 96, 'model.mixer.z': 32},
  'mamba2': {'model.feed_forward': 0, 'model.mixer.ssm_lr': 1e-3},
  'rglru': {'model.gated_feed_forward': True, 'model.mixer.ssm_lr': 1e-3},
  'gated_deltanet': {'model.gated_feed_forward': True, 'model.feed_forward': 64, 'model.mixer.ssm_lr': 1e-3},
}


def rows(pool, causal_pool, part=1.0) -> dict:
  """{(model, arm): row} of all models.

  Args:
    pool, causal_pool: over the positions, in the bidirectional and in the causal form.
    part: fraction of the training examples, in both stages.
  """
  epochs, warmup = (1e6, 1e6), (100, 100)  # max_steps is the limit
  lines = {
    (model, regime): transformer(
      WIDTH,
      DEPTH,
      HEADS,
      2 * WIDTH,
      pool if regime == 'masked' else causal_pool,
      RATE,
      PRETRAIN_RATE,
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
  tuned |= ssm.tuned(RATE, BATCH, PRETRAIN_RATE, BATCH)
  s4 = ssm.s4(WIDTH, 4, norm='layer', prenorm=True, copies=2)
  architectures = {
    's4': s4,
    's4d': ssm.s4d(s4),
    'dlr': ssm.dlr(WIDTH, 3, prenorm=True) | ours({'model.mixer.state_size': 64}),
    's5': ssm.s5(WIDTH, 4, states=64, blocks=4, rate=1e-3),
    'lru': ssm.lru(WIDTH, 3, states=48, ring=RING, rate=1e-3),
  }
  table = {
    (model, regime): row | tuned for model, row in architectures.items() for regime in ('masked', 'scratch')
  }
  rows = transformers(lines, head='linear', epochs=epochs, warmup_steps=warmup)
  rows |= ssm.complete(table, causal_pool=causal_pool)
  for model, values in OTHERS.items():
    rows |= {(model, arm): of_mixer(model, rows['transformer', arm]) | ours(values) for arm in ARMS}
  part = {'pretrain.data_fraction': part, 'finetune.data_fraction': part}
  return {arm: ours(row | _TRAINING | part) for arm, row in rows.items()}


_TRAINING = ours(
  {
    'pretrain.max_steps': PRETRAIN_STEPS,
    'pretrain.evaluate_every': 500,
    'finetune.max_steps': FINETUNE_STEPS,
    'finetune.evaluate_every': EVERY,
    'finetune.patience': PATIENCE,
  }
)


def config(arg, *, task, mask_rate, pool='mean', causal_pool='mean', part=1.0):
  """The config of 'model=...,regime=...' for a task of LRA-mini. part: fraction of its training examples."""
  return of_choice(common.choose(arg), task, mask_rate, rows(pool, causal_pool, part), batch=250)


def config_or_full(arg, *, task, mask_rate, part=1.0):
  """The config for the task `task`_mini or, with 'full=true', for the task at full length with all its
  training examples, and the same models and steps."""
  choice = common.choose(arg, full=False)
  if choice.full:
    return of_choice(choice, task, mask_rate, rows('mean', 'mean'), batch=20)
  return of_choice(choice, f'{task}_mini', mask_rate, rows('mean', 'mean', part), batch=250)


def of_choice(choice, task, mask_rate, table, batch):
  """The config of a choice from `common.choose`, with a row of `rows`. batch: size of evaluation batches."""
  config = common.from_row(table, choice, task=task, mask_rate=mask_rate)
  config.runtime.update(devices=1, evaluation_batch_size=batch, tensorboard=False)
  return config
