"""Moves a pretrained encoder into the state that finetuning starts from."""

import jax
import jax.numpy as jnp

from lra_spt.errors import CheckpointError


def by_name(tree) -> dict:
  """Flattens a tree to {'params/encoder/norm/scale': leaf}."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path, simple=True, separator='/'): leaf for path, leaf in leaves}


def transfer(pretrained: dict, fresh: dict, *, drop_flag_input: bool) -> dict:
  """Returns a finetuning state with a pretrained encoder (parameters and BatchNorm statistics) and a fresh
  head.

  Args:
    pretrained: {params, stats} of the pretraining stage, each with a tree 'encoder'.
    fresh: the finetuning state to start from.
    drop_flag_input: drops the last row of the pretrained embedding [C + 1, D], which reads the mask flag.

  Raises:
    CheckpointError: a parameter is missing, left over, or of another shape; names the first one.
  """
  params, stats = dict(fresh['params']), dict(fresh['stats'])
  source = pretrained['params']['encoder']
  if drop_flag_input:
    embed = source['embed']
    source = source | {'embed': embed | {'kernel': embed['kernel'][:-1]}}
  params['encoder'] = _matched(source, params['encoder'], 'params/encoder')
  if 'encoder' in stats or 'encoder' in pretrained['stats']:
    source, target = (tree.get('encoder', {}) for tree in (pretrained['stats'], stats))
    stats['encoder'] = _matched(source, target, 'stats/encoder')
  return fresh | {'params': params, 'stats': stats}


def _matched(source, target, where: str):
  """Returns `source` laid out like `target`."""
  given, wanted, treedef = by_name(source), by_name(target), jax.tree.structure(target)
  remedy = 'pretrain and finetune the same model'
  for name in sorted(wanted.keys() - given.keys()):
    raise CheckpointError(
      f'the pretrained checkpoint has no {where}/{name}, which the model to finetune needs; {remedy}'
    )
  for name in sorted(given.keys() - wanted.keys()):
    raise CheckpointError(
      f'the pretrained checkpoint has {where}/{name}, which the model to finetune lacks; {remedy}'
    )
  for name, x in wanted.items():
    if given[name].shape != x.shape:
      raise CheckpointError(
        f'{where}/{name} is {given[name].shape} in the pretrained checkpoint but '
        f'{x.shape} in the model to finetune; {remedy}'
      )
  moved = [jax.device_put(jnp.asarray(given[name]), x.sharding) for name, x in wanted.items()]
  return jax.tree.unflatten(treedef, moved)
