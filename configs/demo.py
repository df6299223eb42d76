"""The demo: the direction of stripes in noisy 8 x 8 images, read pixel by pixel (generated; not in LRA).

  lra-spt demo                                                                  # all arms and the report
  lra-spt prepare stripes --data_dir=data                                       # or one run by hand
  lra-spt train --config=configs/demo.py:regime=masked --workdir=runs/demo

Expect a test accuracy of about 75 to 90 % after self-pretraining and 25 to 60 % from scratch with the same
finetuning budget; the README has the measured numbers. Every value is ours: the task, sizes and learning
rates were chosen on development seeds 0 and 1 and then frozen. Arguments: regime, protocol, seed; with
regime=scratch, causal=true (the causal form) and tied=true (as many steps as pretraining and finetuning
together); and model, any mixer, including your own; nothing was tuned for these.
"""

from configs import common, ssm
from configs.rows import hybrid, hybrids, of_mixer, other_models, ours, without_attention
from lra_spt.config import loading as config_lib
from lra_spt.config import protocol
from lra_spt.config.regimes import REGIMES, get_regime
from lra_spt.errors import ConfigError

PRETRAIN_STEPS, FINETUNE_STEPS = 500, 400
WIDTH, DEPTH = 64, 2
S4 = ssm.s4(WIDTH, DEPTH, norm='batch', prenorm=True, copies=WIDTH)
STATE_SPACE_MODELS = {
  's4': S4,
  's4d': ssm.s4d(S4),
  'dlr': ssm.dlr(WIDTH, DEPTH, prenorm=True) | ours({'model.mixer.state_size': 64}),
  's5': ssm.s5(WIDTH, DEPTH, states=64, blocks=1, rate=1e-3),
  'lru': ssm.lru(WIDTH, DEPTH, states=64, ring=(0.0, 0.99), rate=1e-3),
}


def get_config(arg=''):
  """The config of 'regime=...,seed=...'; default: regime=masked."""
  choice = config_lib.arguments(
    arg,
    model=('transformer', *STATE_SPACE_MODELS, *other_models(), *hybrids(arg)),
    regime=tuple(REGIMES),
    causal=False,
    tied=False,
    protocol=tuple(protocol.PROTOCOLS),
    seed=0,
  )
  common.settle_form(choice)
  if choice.tied and choice.regime != 'scratch':
    raise ConfigError(f'tied=true is for regime=scratch, not for regime={choice.regime}; leave it out')
  stage = {
    **{key: item.value for key, item in common.stage_defaults().items()},
    'batch_size': 50,
    'epochs': 1e6,  # max_steps is the limit
    'max_seconds': 0.0,
    'optimizer.lr': 1e-3,
    'optimizer.weight_decay': 0.0,
    'schedule.warmup_steps': 50,
    'evaluate_every': 100,
  }
  row = ours(
    {
      'model.width': WIDTH,
      'model.depth': DEPTH,
      'model.feed_forward': 128,
      'model.position': 'sinusoidal',
      'model.norm': 'layer',
      'model.prenorm': True,
      'model.dropout': 0.0,
      'model.shuffle': False,
      'model.weights': '',
      'model.mixer.name': 'attention',
      'model.mixer.heads': 4,
      'model.mixer.rotary': False,
      **{f'pretrain.{key}': value for key, value in stage.items()},
      'pretrain.max_steps': PRETRAIN_STEPS,
      'pretrain.mask_rate': 0.5,
      **{f'pretrain.{key}': value for key, value in get_regime(choice.regime).options.items()},
      **{f'finetune.{key}': value for key, value in stage.items()},
      'finetune.max_steps': FINETUNE_STEPS + choice.tied * PRETRAIN_STEPS,
      'finetune.pool': 'mean',
      'finetune.head': 'linear',
      **{key: item.value for key, item in common.PARTS.items()},
    }
  )
  return config_lib.from_sources(
    ours={
      'task': 'stripes',
      'protocol': choice.protocol,
      'regime': choice.regime,
      'causal': choice.causal,
      'seed': choice.seed,
      'model.name': choice.model,
      **{key: item.value for key, item in _row(choice.model, row).items()},
      'runtime': {
        **common.runtime(),
        'devices': 1,  # batches of 50 do not split over every machine, and one device is enough
        'evaluation_batch_size': 250,
        'tensorboard': False,
      },
    }
  )


def _row(model, transformer_row):
  if model == 'transformer':
    return transformer_row
  if '-' in model:
    return hybrid(model, lambda name: _row(name, transformer_row))
  if model in STATE_SPACE_MODELS:
    return ours(without_attention(transformer_row) | STATE_SPACE_MODELS[model])
  return of_mixer(model, transformer_row)
