"""A config file with a key of each kind."""

FILE = """
from lra_spt.config import loading as config

def get_config(arg=''):
  choice = config.arguments(arg, regime=('scratch', 'causal'), width=64, scale=1.0, fast=False)
  ours = {'regime': choice.regime, 'seed': 0, 'fast': choice.fast, 'limit': None, 'runtime': {'threads': 4}}
  ours |= {'task': 'mine', 'protocol': 'clean', 'causal': False, 'pretrain': {'threshold': -1.0}}
  return config.from_sources(
    paper={'model': {'width': choice.width, 'scale': choice.scale}},
    code={'finetune.optimizer.lr': 1e-3, 'finetune.milestones': (), 'finetune.pool': 'mean'},
    ours=ours,
  )
"""
