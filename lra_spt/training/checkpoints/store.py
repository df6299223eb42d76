"""Checkpoints of one stage.

This is the only module that knows Orbax (v1 API). There are two folders: `latest` holds the last two whole
states, for resuming, and `best` holds step, parameters and statistics of the best validation.

Orbax writes a checkpoint beside its final place and renames it, or in a bucket marks it as complete. An older
checkpoint is deleted only when the new one is on disk, so neither a killed process nor a power cut loses
both. The previous best is also kept until a `latest` records the new best. A run that is killed between the
two saves the new best again, and Orbax deletes what it overwrites. Each checkpoint holds a checksum of every
array. A damaged checkpoint is not loaded; in `latest`, the one before takes its place.

A save may run in the background, on a copy that the devices make, while training continues: see `background`.
"""

import contextlib
import functools
import logging
import os
import pathlib
import shutil
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.sharding import SingleDeviceSharding
from orbax.checkpoint import v1 as ocp

from lra_spt import files
from lra_spt.distributed import processes
from lra_spt.errors import CheckpointError, one_line, touching
from lra_spt.training.checkpoints import diagnosis
from lra_spt.training.checkpoints.background import Background, copied
from lra_spt.training.checkpoints.digests import digests, of_all, whole
from lra_spt.training.checkpoints.transfer import by_name

BEST_KEYS = ('step', 'params', 'stats')
DIGESTS = 'digests'  # the key of the checksums, in checkpoints only
KEPT = 2  # checkpoints in `latest`
# In bytes. Devices that all hold an array write a part of it each, but only if the parts are at least this
# large. Many small parts take longer than the whole, and each shape is a program to compile (see
# benchmarks/).
PART = 2**24
COMMITTED = 'commit_success.txt'  # Orbax's mark of a whole checkpoint in a bucket

with contextlib.suppress(ImportError):  # other versions of Orbax may have it elsewhere
  from orbax.checkpoint._src.path import gcs_utils

  # To remove empty folders, Orbax would ask every bucket for its kind, with another package and permission.
  gcs_utils.is_hierarchical_namespace_enabled = lambda path: False


class DamagedCheckpoint(CheckpointError):
  """A checkpoint that cannot be read, or is not what was saved. `what`: the message without the remedy."""

  def __init__(self, what: str, remedy: str):
    super().__init__(f'{what}; {remedy}')
    self.what = what


def _open(directory: pathlib.Path) -> ocp.training.Checkpointer:
  context = ocp.Context()
  # A directory that cannot be made raises its error here, and not in a thread that another one waits for.
  context.async_options.create_directories_asynchronously = False
  context.array_options.saving.min_slice_bytes_for_replica_parallel = PART
  _quieten_threads()
  if jax.process_count() > 1:
    _meet_without_devices()
  with touching(directory, 'written'):
    return ocp.training.Checkpointer(files.literal(directory), context=context, cleanup_tmp_directories=True)


@functools.cache
def _meet_without_devices() -> None:
  """Makes processes that save wait for each other in jax's service. Collectives would not do: those of a
  thread and of training have another order in each process. Orbax reads the setting from absl's flags."""
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
  flags.FLAGS.experimental_orbax_use_distributed_barrier = True


@functools.cache
def _quieten_threads() -> None:
  """Keeps threads from printing tracebacks of a failed save, whose error is raised anyway. Threads of Orbax
  log them, threads of TensorStore report to a loop that Orbax has closed, and Python warns of writes that
  never began."""
  logging.getLogger('absl').addFilter(lambda record: f'{os.sep}orbax{os.sep}' not in record.pathname)
  warnings.filterwarnings('ignore', "coroutine '.*' was never awaited", RuntimeWarning)
  show = sys.unraisablehook

  def show_others(unraisable):
    error = unraisable.exc_value
    if not (isinstance(error, RuntimeError) and str(error) == 'Event loop is closed'):
      show(unraisable)

  sys.unraisablehook = show_others


class Checkpoints:
  """`latest` and `best` of one stage below `directory`, an absolute path.

  background: writes saves in their order, while the calls return at once and the state may be donated. A save
  waits until those of an earlier step are on the disk. After a save fails, nothing more is saved, and the
  next call raises its error. Runs that train together share it. All processes call the same saves.
  """

  def __init__(self, directory, *, background: Background | None = None):
    self.directory = directory
    self._background = background
    self._latest = _open(directory / 'latest')
    self._best = _open(directory / 'best')

  def save_latest(self, state: dict) -> None:
    """Saves the whole state under its step.

    Raises:
      FileAccessError: the operating system refuses; the previous checkpoint is unchanged.
    """
    self._save(self._save_latest, state)

  def save_best(self, state: dict) -> None:
    """Saves step, parameters and statistics, before `save_latest` of that step; raises as that does."""
    self._save(self._save_best, {key: state[key] for key in BEST_KEYS})

  def _save(self, save, state):
    step, content = int(state['step']), state | {DIGESTS: digests(state)}
    if self._background is None:
      return save(step, content)
    return self._background.start(step, functools.partial(save, step, copied(content)))

  def _save_latest(self, step, content):
    _save(self._latest, self.directory / 'latest', step, content)
    earlier = [each for each in _steps(self._latest) if each < step]  # later ones are damaged
    _keep_only(self._latest, self.directory / 'latest', [step, *earlier[: KEPT - 1]])
    _keep_only(self._best, self.directory / 'best', _steps(self._best)[:1])

  def _save_best(self, step, content):
    _save(self._best, self.directory / 'best', step, content)
    recorded = self._latest.latest is not None and self._latest.latest.step >= step
    earlier = [each for each in _steps(self._best) if each < step and not recorded]
    _keep_only(self._best, self.directory / 'best', [step, *earlier])

  def check(self) -> None:
    """Raises the error of a save in the background that failed."""
    if self._background is not None:
      self._background.check()

  def wait(self) -> None:
    """Returns when all saves are on the disk; raises like `save_latest`."""
    if self._background is not None:
      self._background.wait()

  def latest_step(self) -> int | None:
    """The step of the state to resume from, None before the first save."""
    self.wait()
    return self._latest.latest.step if self._latest.latest else None

  def load_latest_at(self, step: int, abstract_state: dict) -> dict | None:
    """Loads the state of an earlier step than the latest. Returns None if it is deleted or damaged, or if the
    best validation came after it: that checkpoint would be of another course of training."""
    self.wait()
    best, state = self._best.latest, None
    if step in _steps(self._latest) and (best is None or best.step <= step):
      with contextlib.suppress(DamagedCheckpoint):
        state = _load(self._latest, self.directory / 'latest', abstract_state, step)
    return None if processes.any_says(state is None) else state

  def load_latest(self, abstract_state: dict) -> dict:
    """Loads the state to resume from, laid out like `abstract_state`; skips a damaged one, and prints that.

    Raises:
      CheckpointError: it is missing or of another model, or all are damaged.
    """
    self.wait()
    directory, damaged = self.directory / 'latest', []
    for step in _steps(self._latest):
      error, state = None, None
      try:
        state = _load(self._latest, directory, abstract_state, step)
      except DamagedCheckpoint as caught:
        error = caught
      if not processes.any_says(error is not None):
        for each in damaged:
          print(f'{each.what}; training resumes from step {step}.', file=sys.stderr)
        return state
      unseen = DamagedCheckpoint(
        f'{directory}/{step} is damaged, as another process found', _remedy(directory)
      )
      damaged.append(error or unseen)
    if damaged:
      raise damaged[0]
    return _load(self._latest, directory, abstract_state)  # says that there is none

  def load_best(self, abstract_state: dict) -> dict:
    """Loads {step, params, stats} of the best validation; raises as `load_latest` does."""
    self.wait()
    return _load(self._best, self.directory / 'best', {key: abstract_state[key] for key in BEST_KEYS})

  def keep_best(self, step: int) -> None:
    """Makes the best checkpoint of a step the only one, without reading it.

    The state to resume from records that step; a later best checkpoint is of steps that are trained again. If
    the checkpoint of the step is gone, a later one takes its place.

    Raises:
      CheckpointError: there is no best checkpoint.
    """
    self.wait()
    directory = self.directory / 'best'
    if step in _steps(self._best):
      _keep_only(self._best, directory, [step])
    if self._best.latest is None:
      raise CheckpointError(
        f'{directory} holds no checkpoint of the best validation, although {self.directory / "latest"} '
        f'records one; {_remedy(directory)}'
      )

  def close(self) -> None:
    """Waits for saves and closes Orbax's checkpointers. It raises nothing: `wait` raises the errors."""
    with contextlib.suppress(Exception):
      self.wait()
    for checkpointer in (self._latest, self._best):
      with contextlib.suppress(Exception):
        checkpointer.close()


def read_best(directory: pathlib.Path, abstract_state: dict) -> dict | None:
  """Loads the best checkpoint as `Checkpoints(directory).load_best` does; None before the first save.

  It changes nothing on disk, so that it can read a stage that another process is training.

  Raises:
    CheckpointError: the checkpoint is damaged or of another model.
  """
  best = directory / 'best'
  if not best.is_dir():  # Orbax would make it
    return None
  with contextlib.closing(ocp.training.Checkpointer(files.literal(best))) as reader:
    if reader.latest is None:
      return None
    return _load(reader, best, {key: abstract_state[key] for key in BEST_KEYS})


def _save(checkpointer, directory, step, content) -> None:
  size = sum(x.nbytes for x in jax.tree.leaves(content))
  with touching(directory / str(step), 'written', size):
    _write(checkpointer, directory / str(step), step, content)
    if processes.is_first():
      files.sync(directory / str(step))
  processes.meet(f'{directory}/{step} saved')


def _keep_only(checkpointer, directory, steps) -> None:
  removed = [each for each in _steps(checkpointer) if each not in steps]
  for each in removed if processes.is_first() else ():
    _remove(directory / str(each))
  if removed:
    processes.meet(f'{directory} tidied')
    checkpointer.reload()


def _write(checkpointer, folder, step, content) -> None:
  """Writes a checkpoint. In a bucket, a single process tries four times: if a bucket made a write but its
  answer is lost, it refuses the same write when it is sent again, and TensorStore gives up."""
  for last in (False, False, False, True):
    try:
      return checkpointer.save(step, content, force=True, overwrite=True)
    except ValueError as error:
      if not files.is_bucket(folder):
        raise
      if denied := folder.denial('written', error):
        raise denied from error
      if last or jax.process_count() > 1:
        raise CheckpointError(
          f'{folder} could not be written ({one_line(error)}); the same command resumes from the one before'
        ) from error
      folder.rmtree()


def _steps(checkpointer) -> list[int]:
  """The steps of the checkpoints, newest first."""
  return sorted((each.step for each in checkpointer.checkpoints), reverse=True)


def _remove(folder: pathlib.Path) -> None:
  """Removes a checkpoint after renaming it, so that Orbax removes the rest at the next start after a kill."""
  nameless = folder.with_name(f'{folder.name}.orbax-checkpoint-tmp')
  with touching(folder, 'removed'):
    if files.is_bucket(folder):  # has no renaming, but a mark of complete checkpoints
      (folder / COMMITTED).unlink()
      return folder.rmtree()
    folder.rename(nameless)
    shutil.rmtree(nameless)


def verify(directory: pathlib.Path, noted: str | None = None) -> int | None:
  """Reads all checkpoints in a folder `latest` or `best` and compares their checksums; needs no model.

  Args:
    noted: the `digests.of_all` that the newest checkpoint should have; None: any.

  Returns:
    The newest step, None if there is no checkpoint.

  Raises:
    CheckpointError: a checkpoint is damaged, or the newest one has another checksum than `noted`.
  """
  if not directory.is_dir():
    return None
  whole, damaged, newest = [], [], None
  with contextlib.closing(ocp.training.Checkpointer(files.literal(directory))) as reader:
    for step in _steps(reader):
      try:
        state = _load(reader, directory, None, step)
        newest = newest or of_all(state)
        whole.append(step)
      except DamagedCheckpoint as error:
        damaged.append(error)
  if damaged and whole:
    raise CheckpointError(f'{damaged[0].what}; step {whole[0]} is intact, and training resumes from there')
  if damaged:
    raise damaged[0]
  if noted and newest and newest != noted:
    raise CheckpointError(
      f'{directory}/{whole[0]} is not the checkpoint that its stage ended with, according to the recorded '
      f'checksum; {_remedy(directory)}'
    )
  return max(whole, default=None)


def _load(checkpointer, directory, abstract_state, step=None) -> dict:
  """Loads a checkpoint and compares its checksums.

  abstract_state: None loads any content onto one device. step: None loads the newest.
  """
  if checkpointer.latest is None:
    raise CheckpointError(f'{directory} holds no complete checkpoint; run the stage that writes it first')
  step = checkpointer.latest.step if step is None else step
  where, remedy = f'the checkpoint {directory}/{step}', _remedy(directory)
  try:
    abstract = _described(checkpointer, step) if abstract_state is None else _with_digests(abstract_state)
    state = checkpointer.load(step, abstract)
  except MemoryError:
    raise
  except Exception as error:  # Orbax, TensorStore and the file system each raise their own kinds
    if refused := diagnosis.refusal(error, directory / str(step)):
      raise refused from error
    if difference := _difference(checkpointer, step, abstract_state):
      raise CheckpointError(f'{where} does not fit this model ({difference}); {remedy}') from error
    reason = diagnosis.reason(error, directory / str(step))
    raise DamagedCheckpoint(f'{where} cannot be read ({reason})', remedy) from error
  expected = np.asarray(state.pop(DIGESTS))
  loaded = np.asarray(digests(state))
  wrong = np.flatnonzero(loaded != expected) if loaded.shape == expected.shape else [0]
  if len(wrong):
    if difference := _difference(checkpointer, step, abstract_state):  # Orbax converts dtypes
      raise CheckpointError(f'{where} does not fit this model ({difference}); {remedy}')
    name = list(by_name(state))[wrong[0]]
    raise DamagedCheckpoint(
      f'{where} is damaged: {name} is not what was saved, according to its checksum', remedy
    )
  return state


def _remedy(directory) -> str:
  return f'restore the folder from a copy, or delete {directory.parent.parent} to train that stage again'


def _with_digests(abstract_state) -> dict:
  leaves = jax.tree.leaves(abstract_state)
  integers = jax.ShapeDtypeStruct((len(leaves),), jnp.uint32, sharding=whole(leaves[0]))
  return abstract_state | {DIGESTS: integers}


def _described(checkpointer, step) -> dict:
  """Reads from a checkpoint which arrays it holds, to load them onto one device."""
  device = SingleDeviceSharding(jax.local_devices()[0])
  there = checkpointer.metadata(step).metadata
  if there is None:  # Orbax gives no reason; loading raises it
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', UserWarning)
      checkpointer.load(step)
    raise ValueError('it does not list its arrays')
  if not isinstance(there, dict) or DIGESTS not in there:
    raise ValueError('it holds no checksums')
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), there)


def _difference(checkpointer, step, abstract_state) -> str:
  """Describes how the arrays of a checkpoint differ from those of a model; '' if they are unknown or
  equal."""
  try:
    there = by_name(checkpointer.metadata(step).metadata)
  except Exception:  # the error of loading says what is wrong
    return ''
  return diagnosis.difference(
    there, there if abstract_state is None else by_name(_with_digests(abstract_state)), DIGESTS
  )
