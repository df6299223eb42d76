"""Rows of state-space models: published architectures, and the completion of a task's table.

For the sizes of S4 and DLR the paper refers to their authors (C.1.2, C.1.3); we take them from the paper's
published code. S4D, S5 and LRU are not in the paper: their rows are 'ours', after the sources named below.
"""

import math

from configs.rows import STATE_SPACE_MODELS, both, code, ours, paper

NOT_IN_THE_PAPER = ('s4d', 's5', 'lru')


def s4(width, depth, *, norm, prenorm, copies, dropout=0.0, rates=(1e-3, 1e-3, 1e-3), dt_min=1e-3) -> dict:
  """The published S4: NPLR of HiPPO-LegS, 64 states, bidirectional, gated output, no feed-forward layer.

  Args:
    width, depth, norm, prenorm, dropout: of the encoder; dropout also in the layer, tied over positions.
    copies: independent pairs (A, B), each shared by width / copies channels (n_ssm).
    rates: learning rates of dt, A and B, which have no weight decay; 0.0: the stage's rate.
    dt_min: the smallest initial step.
  """
  return (
    _encoder(width, depth, norm=norm, prenorm=prenorm, dropout=dropout, tied_dropout=True)
    | code(
      {
        'model.mixer.state_size': 64,
        'model.mixer.copies': copies,
        'model.mixer.dt_min': dt_min,
        'model.mixer.dt_max': 0.1,
        'model.mixer.dt_lr': rates[0],
        'model.mixer.a_lr': rates[1],
        'model.mixer.b_lr': rates[2],
        'model.mixer.parametrization': 'truncated',  # of C
      }
    )
    | ours({'model.mixer.name': 's4'})
  )


def dlr(width, depth, *, prenorm) -> dict:
  """The published DLR: all channels share 1,024 states. Its dt_min and dt_max are the values that the
  published code uses; its config files set others, which it does not read."""
  return (
    _encoder(width, depth, prenorm=prenorm)
    | paper(
      {
        'model.norm': 'layer',  # C.1.3
        'model.mixer.state_size': 1024,  # C.1.3
      }
    )
    | code(
      {
        'model.mixer.dt_min': 1e-4,
        'model.mixer.dt_max': 0.1,
        'model.mixer.lambda_lr': 1e-4,  # without decay, like W's
        'model.mixer.w_lr': 1e-4,
      }
    )
    | ours({'model.mixer.name': 'dlr'})
  )


def s4_cited(row, *, lr, batch_size, cosine, warmup_steps=1000, more=None) -> dict:
  """S4 from scratch, whose accuracies the paper cites: `row` with the values of S4's authors
  (github.com/state-spaces/s4, v3.0.0, configs/experiment), not those with which the paper's code finetunes.

  Args:
    cosine, warmup_steps: num_training_steps and num_warmup_steps of their schedule, which is of one kind on
      all tasks.
    more: {key: value} of other differences.
  """
  schedule = {
    'finetune.schedule.name': 'cosine',
    'finetune.schedule.total_steps': cosine,
    'finetune.schedule.warmup_steps': warmup_steps,
  }
  return row | code(tuned(lr, batch_size) | code(schedule | (more or {})))


def s4d(s4_row) -> dict:
  """S4D-LegS (Gu et al. 2022, arXiv 2206.11893) with the values of S4, as in the published code for Image,
  which discretises diagonal kernels bilinearly by default (kernel.py:687)."""
  row = {key: value for key, value in s4_row.items() if key != 'model.mixer.parametrization'}
  mixer = {'name': 's4d', 'init': 'legs', 'discretization': 'bilinear', 'train_b': True}
  return ours(row | {f'model.mixer.{key}': value for key, value in mixer.items()})


def s5(
  width,
  depth,
  *,
  states,
  blocks,
  rate,
  gate='half_glu1',
  c_init='lecun_normal',
  b_group='stage',
  c_group='stage',
  dropout=0.0,
  dt_min=1e-3,
  dt_global=False,
) -> dict:
  """S5 (Smith, Warrington, Linderman 2023, arXiv 2208.04933; github.com/lindermanlab/S5).

  Args:
    width, depth, dropout: as in `s4`.
    states, blocks, rate: P, J and the SSM learning rate.
    gate, c_init: activation_fn and C_init.
    b_group, c_group: 'stage' for their opt_config BfastandCdecay, 'ssm_decay' for BandCdecay, 'ssm' for
      standard, and both 'ssm' for noBCdecay.
    dt_min: the smallest initial step.
    dt_global: their option of this name; dt has the stage's rate and decay.
  """
  return ours(
    _encoder(width, depth, norm='batch', prenorm=True, dropout=dropout, tied_dropout=True)
    | ({} if c_group == 'stage' else {'model.mixer.c_group': c_group})
    | {
      'model.mixer.name': 's5',
      'model.mixer.state_size': states,
      'model.mixer.blocks': blocks,
      'model.mixer.dt_min': dt_min,
      'model.mixer.dt_max': 0.1,
      'model.mixer.c_init': c_init,
      'model.mixer.gate': gate,
      'model.mixer.ssm_lr': rate,
      'model.mixer.b_group': b_group,
      'model.mixer.dt_global': dt_global,
      'model.mixer.clip_eigenvalues': True,  # theirs: on Image only
    }
  )


def lru(width, depth, *, states, ring, rate, dropout=0.0, max_phase=2 * math.pi) -> dict:
  """LRU (Orvieto et al. 2023, arXiv 2303.06349, Tables 8 and 9), whose authors use the bidirectional form on
  Pathfinder and PathX only.

  Args:
    states, ring, rate: N, (r_min, r_max) and the learning rate of the recurrence.
    max_phase: the largest initial phase.
  """
  return ours(
    _encoder(width, depth, norm='batch', prenorm=True, dropout=dropout, tied_dropout=True)
    | {
      'model.mixer.name': 'lru',
      'model.mixer.state_size': states,
      'model.mixer.r_min': ring[0],
      'model.mixer.r_max': ring[1],
      'model.mixer.max_phase': max_phase,
      'model.mixer.ssm_lr': rate,
    }
  )


def _encoder(width, depth, *, prenorm, norm='layer', dropout=0.0, tied_dropout=False):
  return code(
    {
      'model.width': width,
      'model.depth': depth,
      'model.feed_forward': 0,
      'model.position': 'none',
      'model.norm': norm,
      'model.prenorm': prenorm,
      'model.dropout': dropout,  # of a layer's output
      'model.tied_dropout': tied_dropout,
      'model.mixer.dropout': dropout,  # inside the layer, after its GELU
      'model.mixer.tied_dropout': tied_dropout,
    }
  )


def stages(*, pool, weight_decay, epochs, warmup_steps, cosine=0) -> dict:
  """Values of the published config besides sizes; pairs are (finetuning, pretraining).

  Args:
    pool, weight_decay, epochs, warmup_steps: see `rows`.
    cosine: steps of finetuning's cosine schedule; 0: the rate stays constant after the warmup, as it does in
      every pretraining.
  """
  return code(
    {
      'finetune.pool': pool,
      'finetune.head': 'linear',
      **both(
        {
          'optimizer.weight_decay': (weight_decay, weight_decay),
          'epochs': tuple(map(float, epochs)),
          'schedule.warmup_steps': warmup_steps,
          'schedule.name': ('cosine' if cosine else 'constant', 'constant'),
          'schedule.total_steps': (cosine, 0),
        }
      ),
    }
  )


def tuned(finetune_lr, finetune_batch, pretrain_lr=None, pretrain_batch=None) -> dict:
  """A cell of Table 5 or 6, in the order of the paper."""
  cell = {
    'finetune.optimizer.lr': finetune_lr,
    'finetune.batch_size': finetune_batch,
    'pretrain.optimizer.lr': pretrain_lr,
    'pretrain.batch_size': pretrain_batch,
  }
  return paper({key: value for key, value in cell.items() if value is not None})


def alone(*, lr, batch_size, weight_decay, epochs, warmup_steps) -> dict:
  """Training from scratch as in the papers of S5 and LRU: mean pooling, cosine to the last step. (In the code
  of S5, the rate reaches 0 one epoch before the end, and the cosine starts with the warmup.)"""
  return ours(
    {
      'finetune.pool': 'mean',
      'finetune.head': 'linear',
      'finetune.optimizer.lr': lr,
      'finetune.batch_size': batch_size,
      'finetune.optimizer.weight_decay': weight_decay,
      'pretrain.optimizer.weight_decay': weight_decay,
      'finetune.epochs': float(epochs),
      'finetune.schedule.warmup_steps': warmup_steps,
      'finetune.schedule.name': 'cosine',
      'finetune.schedule.total_steps': 0,
    }
  )


def complete(table, *, causal_pool) -> dict:
  """{(model, arm): row} of all state-space models.

  Training from scratch has a separate row, because the paper tuned it. Rows that `table` leaves out are ours:
  random initialisation has the rows of the structured one; after masked pretraining S4D has S4's row, and S5
  and LRU have that of `pretrained`; causal forms differ from the bidirectional ones only in pooling, which is
  that of the causal Transformer.

  Args:
    table: {(model, regime): row}, with regimes 'masked' and 'scratch' at least for s4 and dlr, and 'scratch'
      for other models. Rows of regime 'causal' do not change.
    causal_pool: pooling of the causal Transformer (Table 4).
  """
  table, rows = dict(table), {}
  table['s4d', 'masked'] = s4d(table['s4', 'masked'])
  for model in ('s5', 'lru'):
    table[model, 'masked'] = pretrained(table[model, 'scratch'], table)
  pool = ours({'finetune.pool': causal_pool})
  for model in STATE_SPACE_MODELS:
    structured = model.removesuffix('_random')
    initialised = paper({'model.random_init': 'all'}) if model != structured else {}  # C.1.3
    for regime in ('masked', 'scratch'):
      row = table.get((model, regime)) or ours(table[structured, regime])
      rows[model, regime] = table[structured, 'masked'] | row | initialised
    rows[model, 'causal'] = table.get((model, 'causal')) or ours(rows[model, 'masked']) | pool
    rows[model, 'causal scratch'] = ours(rows[model, 'scratch']) | pool
  return rows


def pretrained(row, table) -> dict:
  """The masked row of a model that the paper does not have, from its `row` for training from scratch.

  Pretraining (except its weight decay), and learning rate and batch size of finetuning, are those of S4 in
  `table`. Warmup and cosine last as many epochs as in `row`.
  """
  s4_row = table['s4', 'masked']
  values = {key: value for key, value in s4_row.items() if key.startswith('pretrain')}
  del values['pretrain.optimizer.weight_decay']
  values |= {key: s4_row[key] for key in ('finetune.optimizer.lr', 'finetune.batch_size')}
  shorter = row['finetune.batch_size'].value / s4_row['finetune.batch_size'].value
  for key in ('finetune.schedule.warmup_steps', 'finetune.schedule.total_steps'):
    values[key] = round(row[key].value * shorter)
  return ours(row | values)
