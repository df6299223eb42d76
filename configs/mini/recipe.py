"""What the tasks of LRA-mini share: models of 67 to 87 thousand parameters, and how long they are trained.

All values are ours, set on development seed 0 and fixed on 2026-11-22, before any other seed ran. They are
the same for every model and arm but for the learning rate of finetuning and of training from scratch, which
the studies (`configs/studies/mini_*.py`) choose by validation among the same values for all. Pretraining is
as long for every model, at one learning rate. In the studies training from scratch ends after as many steps
as both stages have, or when validation has not improved for `PATIENCE` evaluations. So would finetuning, but
so many evaluations are all of it. All models are 64 wide and as deep as their parameters allow (causal state
space models, which need fewer, have 50 to 55 thousand). Steps, eigenvalues and, of S4 and DLR, input maps of
state spaces learn at most at 1e-3, the rest of them at the learning rate of the stage.
"""

from configs import common, ssm
from configs.rows import ours, transformer, transformers

WIDTH, DEPTH, HEADS, BATCH = 64, 2, 2, 32  # depth and heads: of the Transformers
RATE, PRETRAIN_RATE = 1e-3, 2e-3
PRETRAIN_STEPS, FINETUNE_STEPS, EVERY, PATIENCE = 2_500, 1_500, 250, 6
RING = (0.5, 0.99)  # of LRU: states that remember some ten to some hundred positions


def rows(pool, causal_pool, part=1.0) -> dict:
  """{(model, arm): row} of all models; pool, causal_pool: over the positions, in either form; part: of the
  training examples, for either stage."""
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
  found = transformers(lines, head='linear', epochs=epochs, warmup_steps=warmup)
  found |= ssm.complete(table, causal_pool=causal_pool)
  part = {'pretrain.data_fraction': part, 'finetune.data_fraction': part}
  return {arm: ours(row | _TRAINING | part) for arm, row in found.items()}


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
  """The config of 'model=...,regime=...' for a task of LRA-mini; part: of its training examples."""
  return _config(common.choose(arg), task, mask_rate, rows(pool, causal_pool, part), batch=250)


def config_or_full(arg, *, task, mask_rate, part=1.0):
  """Likewise, of `task`_mini, or with 'full=true' of the task at its full length and with all its training
  examples, by the same models in the same steps."""
  choice = common.choose(arg, full=False)
  if choice.full:
    return _config(choice, task, mask_rate, rows('mean', 'mean'), batch=20)
  return _config(choice, f'{task}_mini', mask_rate, rows('mean', 'mean', part), batch=250)


def _config(choice, task, mask_rate, table, batch):
  """batch: of the evaluation."""
  found = common.from_row(table, choice, task=task, mask_rate=mask_rate)
  found.runtime.update(devices=1, evaluation_batch_size=batch, tensorboard=False)
  return found
