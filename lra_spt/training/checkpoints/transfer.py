"""Moves a pretrained encoder into the state that finetuning starts from."""

import jax
import jax.numpy as jnp

from lra_spt.config.schema import EVERYTHING
from lra_spt.errors import CheckpointError
from lra_spt.training import parameters
from lra_spt.training.checkpoints.diagnosis import difference


def by_name(tree) -> dict:
  """Flattens a tree to {'params/encoder/norm/scale': leaf}."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path, simple=True, separator='/'): leaf for path, leaf in leaves}


def transfer(
  pretrained: dict,
  fresh: dict,
  *,
  drop_flag_input: bool,
  patterns: tuple[str, ...] = EVERYTHING,
  name: str = 'the pretrained checkpoint',
) -> dict:
  """Returns a finetuning state with a pretrained encoder (parameters and BatchNorm statistics) and a fresh
  head.

  Args:
    pretrained: {params, stats} of the pretraining stage, each with a tree 'encoder'.
    fresh: the finetuning state to start from.
    patterns: parameters that are taken over, see `parameters.chosen`; the others stay fresh. Averages of
      BatchNorm are taken over with all parameters of their module.
    drop_flag_input: drops the last row of the pretrained embedding [C + 1, D], which reads the mask flag.
    name: the place that `pretrained` comes from, for the error.

  Raises:
    CheckpointError: a parameter is missing, left over, or of another shape or dtype; names the first one.
  """
  source = pretrained['params']['encoder']
  if drop_flag_input:
    embed = source['embed']
    source = source | {'embed': embed | {'kernel': embed['kernel'][:-1]}}
  wanted = {tree: _encoder(fresh[tree]) for tree in ('params', 'stats')}
  theirs = by_name({'params': {'encoder': source}, 'stats': _encoder(pretrained['stats'])})
  ours = by_name(wanted)
  whole = patterns == EVERYTHING
  moving = {*ours} if whole else _moving(patterns, wanted)
  others = {} if whole else theirs  # what stays fresh need not fit
  if what := difference(theirs, others | {key: x for key, x in ours.items() if key in moving}):
    raise CheckpointError(
      f'{name} does not fit the model to finetune ({what}); pretrain and finetune the same model'
    )
  sources = ((theirs[key] if key in moving else x, x) for key, x in ours.items())
  leaves = [jax.device_put(jnp.asarray(source), x.sharding) for source, x in sources]
  moved = jax.tree.unflatten(jax.tree.structure(wanted), leaves)
  return fresh | {tree: fresh[tree] | moved[tree] for tree in wanted}


def _moving(patterns, wanted) -> set[str]:
  """The names in `by_name(wanted)` of the leaves that patterns take over."""
  params, stats = (list(by_name(wanted[tree])) for tree in ('params', 'stats'))
  moving = parameters.chosen(patterns, params)
  averages = parameters.of_modules(moving, params, stats)
  return {f'params/{name}' for name in moving} | {f'stats/{name}' for name in averages}


def _encoder(tree: dict) -> dict:
  return {key: part for key, part in tree.items() if key == 'encoder'}
