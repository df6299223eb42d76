"""Checkpoints of one stage, and the transfer from a pretrained stage to a finetuned one.

The only module that knows Orbax (v1 API). Two folders: `latest` (the whole state, for resuming) and `best`
(step, parameters and statistics of the best validation). Orbax writes a checkpoint beside its final place and
renames it, and the one before is deleted when the new one is on the disk, so neither a killed process nor a
power cut loses both. Each holds a digest of every array, and what was damaged since is not loaded.
"""

import contextlib
import functools
import os
import pathlib
import shutil
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging as absl_logging
from orbax.checkpoint import v1 as ocp

from lra_spt import files, processes
from lra_spt.errors import CheckpointError, touching
from lra_spt.training.digests import digests, whole
from lra_spt.training.state import leaf_names

BEST_KEYS = ('step', 'params', 'stats')
DIGESTS = 'digests'  # beside the keys of the state, in a checkpoint only


def _open(directory: pathlib.Path) -> ocp.training.Checkpointer:
  # Directories that cannot be made are to be an error here, not in a thread that another waits for.
  context = ocp.Context()
  context.async_options.create_directories_asynchronously = False
  _quieten_threads()
  with touching(directory, 'written'):
    return ocp.training.Checkpointer(directory, context=context, cleanup_tmp_directories=True)


@functools.cache
def _quieten_threads() -> None:
  """Once: what a save that fails raises where it was called is not also printed by threads, as tracebacks.

  Orbax's log them. TensorStore's report every other write of that save to a loop that Orbax has closed, and
  Python warns of those that never began.
  """
  absl_logging.get_absl_logger().addFilter(lambda record: f'{os.sep}orbax{os.sep}' not in record.pathname)
  warnings.filterwarnings('ignore', "coroutine '.*' was never awaited", RuntimeWarning)
  show = sys.unraisablehook

  def show_others(unraisable):
    error = unraisable.exc_value
    if not (isinstance(error, RuntimeError) and str(error) == 'Event loop is closed'):
      show(unraisable)

  sys.unraisablehook = show_others


class Checkpoints:
  """`latest` and `best` of one stage below `directory`, an absolute path."""

  def __init__(self, directory):
    self.directory = directory
    self._latest = _open(directory / 'latest')
    self._best = _open(directory / 'best')

  def save_latest(self, state: dict) -> None:
    """Saves the whole state under its step.

    Raises:
      FileAccessError: the operating system refuses; the checkpoint before is as it was.
    """
    _save(self._latest, self.directory / 'latest', state)

  def save_best(self, state: dict) -> None:
    """Saves what finetuning or testing needs under its step; raises like `save_latest`."""
    _save(self._best, self.directory / 'best', {key: state[key] for key in BEST_KEYS})

  def latest_step(self) -> int | None:
    """Step of the state to resume from, None before the first save."""
    return self._latest.latest.step if self._latest.latest else None

  def load_latest(self, abstract_state: dict) -> dict:
    """The state to resume from, laid out as `abstract_state` says.

    Raises:
      CheckpointError: it is missing, damaged or of another model.
    """
    return _load(self._latest, self.directory / 'latest', abstract_state)

  def load_best(self, abstract_state: dict) -> dict:
    """{step, params, stats} of the best validation; raises like `load_latest`."""
    return _load(self._best, self.directory / 'best', {key: abstract_state[key] for key in BEST_KEYS})

  def close(self) -> None:
    """Ends what Orbax runs for this. Saves have ended before; what failed in one was raised there."""
    for checkpointer in (self._latest, self._best):
      with contextlib.suppress(Exception):
        checkpointer.close()


def read_best(directory: pathlib.Path, abstract_state: dict) -> dict | None:
  """What `Checkpoints(directory).load_best` gives, or None before the first save.

  It changes nothing on disk, so it may look at a stage that another process is training.

  Raises:
    CheckpointError: it is damaged or of another model.
  """
  best = directory / 'best'
  if not best.is_dir():  # opening it would make it
    return None
  with contextlib.closing(ocp.training.Checkpointer(best)) as reader:
    if reader.latest is None:
      return None
    return _load(reader, best, {key: abstract_state[key] for key in BEST_KEYS})


def _save(checkpointer, directory, state) -> None:
  step, size = int(state['step']), sum(x.nbytes for x in jax.tree.leaves(state))
  with touching(directory / str(step), 'written', size):
    checkpointer.save(step, state | {DIGESTS: digests(state)}, force=True, overwrite=True)
    if processes.is_first():
      files.sync(directory / str(step))
  processes.wait_for_everybody('saved')
  before = [each.step for each in checkpointer.checkpoints if each.step != step]
  for each in before if processes.is_first() else ():
    _remove(directory / str(each))
  if before:
    processes.wait_for_everybody('removed')
    checkpointer.reload()


def _remove(folder: pathlib.Path) -> None:
  """Removes a checkpoint, its name first: Orbax removes at the next start what is left of one so named."""
  nameless = folder.with_name(f'{folder.name}.orbax-checkpoint-tmp')
  with touching(folder, 'removed'):
    folder.rename(nameless)
    shutil.rmtree(nameless)


def _load(checkpointer, directory, abstract_state) -> dict:
  if checkpointer.latest is None:
    raise CheckpointError(f'{directory} holds no complete checkpoint; run the stage that writes it first')
  step = checkpointer.latest.step
  remedy = f'restore the folder from a copy, or delete {directory.parent.parent} to train that stage again'
  leaves = jax.tree.leaves(abstract_state)
  kept = jax.ShapeDtypeStruct((len(leaves),), jnp.uint32, sharding=whole(leaves[0]))
  try:
    state = checkpointer.load(step, abstract_state | {DIGESTS: kept})
  except MemoryError:
    raise
  except Exception as error:  # Orbax, TensorStore and the file system each raise their own kinds
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    raise CheckpointError(
      f'the checkpoint {directory}/{step} cannot be read or does not fit this model ({reason}); {remedy}'
    ) from error
  expected = np.asarray(state.pop(DIGESTS))
  wrong = np.flatnonzero(np.asarray(digests(state)) != expected)
  if len(wrong):
    name = leaf_names(state)[wrong[0]]
    raise CheckpointError(
      f'the checkpoint {directory}/{step} is damaged: {name} is not what was saved; {remedy}'
    )
  return state


def transfer(pretrained: dict, fresh: dict, *, drop_flag_input: bool) -> dict:
  """A finetuning state with a pretrained encoder (its parameters and BatchNorm statistics) and a fresh head.

  Args:
    pretrained: {params, stats} of the pretraining stage, each with a tree 'encoder'.
    fresh: the finetuning state to start from.
    drop_flag_input: the pretrained embedding has one more input, the mask flag: the last row of its
      [C + 1, D] kernel, which is cut off.

  Raises:
    CheckpointError: naming the first parameter that is missing, left over, or of another shape.
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
  """`source` laid out as `target`."""

  def by_name(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator='/'): x for path, x in leaves}

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
