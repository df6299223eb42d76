"""The demo: the direction of stripes in noisy 8 x 8 images, read pixel by pixel (generated; not in LRA).

  lra-spt demo                                                                  # all arms and the report
  lra-spt prepare stripes --data_dir=data                                       # or one run by hand
  lra-spt train --config=configs/demo.py:regime=masked --workdir=runs/demo

Expect a test accuracy of about 75 to 90 % after self-pretraining and 25 to 60 % from scratch under the same
finetuning budget; the README has the measured numbers. Every value is ours: the task was chosen, and the
sizes and learning rates set, on development seeds 0 and 1 and then frozen. The argument takes regime,
causal=true
(regime=scratch: causal form), protocol and seed.
"""

from configs import common
from lra_spt import config as config_lib
from lra_spt import protocol
from lra_spt.regimes import REGIMES, get_regime

PRETRAIN_STEPS, FINETUNE_STEPS = 500, 400


def get_config(arg=''):
  """The config of 'regime=...,seed=...'; default: regime=masked."""
  choice = config_lib.arguments(
    arg, regime=tuple(REGIMES), causal=False, protocol=tuple(protocol.PROTOCOLS), seed=0
  )
  stage = {
    **common.stage_of_the_code(),
    **common.stage_of_ours(),
    'batch_size': 50,
    'epochs': 1e6,  # max_steps is the limit
    'max_seconds': 0.0,
    'optimizer.lr': 1e-3,
    'optimizer.weight_decay': 0.0,
    'schedule.warmup_steps': 50,
    'evaluate_every': 100,
  }
  return config_lib.from_sources(
    ours={
      'task': 'stripes',
      'protocol': choice.protocol,
      'regime': choice.regime,
      'causal': choice.causal or get_regime(choice.regime).causal,
      'seed': choice.seed,
      'model': {
        'name': 'transformer',
        'width': 64,
        'depth': 2,
        'feed_forward': 128,
        'position': 'sinusoidal',
        'norm': 'layer',
        'prenorm': True,
        'dropout': 0.0,
        'shuffle': False,
        'mixer': {'name': 'attention', 'heads': 4, 'rotary': False},
      },
      'pretrain': {**stage, 'max_steps': PRETRAIN_STEPS, 'mask_rate': 0.5},
      'finetune': {**stage, 'max_steps': FINETUNE_STEPS, 'pool': 'mean', 'head': 'linear'},
      'runtime': {
        **common.runtime(),
        'devices': 1,  # batches of 50 do not split over every machine, and one device is enough
        'evaluation_batch_size': 250,
        'tensorboard': False,
      },
    }
  )
