"""Checkpoints of one stage.

The only module that knows Orbax (v1 API). There are two folders: `latest` (the whole state, for resuming; the
last two are kept) and `best` (step, parameters and statistics of the best validation). Orbax writes a
checkpoint beside its final place and renames it, or in a bucket marks it as complete. An older one is deleted
only when the new one is on disk, so neither a killed process nor a power cut loses both; the best before also
waits for a `latest` that records the new one, because a run that is killed between the two saves the new one
again, and Orbax deletes what it overwrites. Each checkpoint holds a digest of every array, and a damaged one
is not loaded; in `latest`, the one before takes its place.

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
from lra_spt.errors import CheckpointError, touching
from lra_spt.training.checkpoints import diagnosis
from lra_spt.training.checkpoints.background import Background, copied
from lra_spt.training.checkpoints.digests import digests, of_all, whole
from lra_spt.training.checkpoints.transfer import by_name

BEST_KEYS = ('step', 'params', 'stats')
DIGESTS = 'digests'  # beside the keys of the state, in a checkpoint only
KEPT = 2  # of `latest`
# Devices that all hold an array write a part of it each only where a part has as many bytes: many small ones
# take longer than the whole, and each shape is a program to compile (measured: benchmarks/saves.py).
PART = 2**24
COMMITTED = 'commit_success.txt'  # Orbax's mark of a whole checkpoint in a bucket

with contextlib.suppress(ImportError):  # which other versions may keep elsewhere
  from orbax.checkpoint._src.path import gcs_utils

  # Orbax would ask every bucket for its kind, with another package and a permission of its own, only to
  # remove empty folders, which are no objects, from those that have some.
  gcs_utils.is_hierarchical_namespace_enabled = lambda path: False


class DamagedCheckpoint(CheckpointError):
  """A checkpoint that cannot be read, or is not what was saved; `what` says so without what to do."""

  def __init__(self, what: str, remedy: str):
    super().__init__(f'{what}; {remedy}')
    self.what = what


def _open(directory: pathlib.Path) -> ocp.training.Checkpointer:
  context = ocp.Context()
  # Directories that cannot be made are to be an error here, not in a thread that another waits for.
  context.async_options.create_directories_asynchronously = False
  context.array_options.saving.min_slice_bytes_for_replica_parallel = PART
  _quieten_threads()
  if jax.process_count() > 1:
    _meet_without_devices()
  with touching(directory, 'written'):
    return ocp.training.Checkpointer(directory, context=context, cleanup_tmp_directories=True)


@functools.cache
def _meet_without_devices() -> None:
  """Once: processes that save wait for each other in jax's service, not in collectives, which a thread must
  not start beside those of training: they would come in another order elsewhere. Orbax reads this from flags
  of absl, which nobody here parses."""
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
  flags.FLAGS.experimental_orbax_use_distributed_barrier = True


@functools.cache
def _quieten_threads() -> None:
  """Once: what a save that fails raises where it was called is not also printed by threads, as tracebacks.

  Orbax's log them. TensorStore's report every other write of that save to a loop that Orbax has closed, and
  Python warns of those that never began.
  """
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

  background: in which saves are written, in the order in which they were asked for, while they return at
  once; a save waits until those of an earlier step are on the disk. What one raises, the next call raises,
  and nothing more is saved. The state may be donated meanwhile. Runs that train together share it. Of
  several processes all ask for the same saves.
  """

  def __init__(self, directory, *, background: Background | None = None):
    self.directory = directory
    self._background = background
    self._latest = _open(directory / 'latest')
    self._best = _open(directory / 'best')

  def save_latest(self, state: dict) -> None:
    """Saves the whole state under its step.

    Raises:
      FileAccessError: the operating system refuses; the checkpoint before is as it was.
    """
    self._save(self._save_latest, state)

  def save_best(self, state: dict) -> None:
    """Saves what finetuning or testing needs under its step, before `save_latest` of that step; raises
    likewise."""
    self._save(self._save_best, {key: state[key] for key in BEST_KEYS})

  def _save(self, save, state):
    step, content = int(state['step']), state | {DIGESTS: digests(state)}
    if self._background is None:
      return save(step, content)
    return self._background.start(step, functools.partial(save, step, copied(content)))

  def _save_latest(self, step, content):
    _save(self._latest, self.directory / 'latest', step, content)
    earlier = [each for each in _steps(self._latest) if each < step]  # later ones: damaged, and trained again
    _keep_only(self._latest, self.directory / 'latest', [step, *earlier[: KEPT - 1]])
    _keep_only(self._best, self.directory / 'best', _steps(self._best)[:1])

  def _save_best(self, step, content):
    _save(self._best, self.directory / 'best', step, content)
    recorded = self._latest.latest is not None and self._latest.latest.step >= step
    earlier = [each for each in _steps(self._best) if each < step and not recorded]
    _keep_only(self._best, self.directory / 'best', [step, *earlier])

  def check(self) -> None:
    """Raises what a save in the background has raised."""
    if self._background is not None:
      self._background.check()

  def wait(self) -> None:
    """Returns when all saves are on the disk; raises like `save_latest`."""
    if self._background is not None:
      self._background.wait()

  def latest_step(self) -> int | None:
    """Step of the state to resume from, None before the first save."""
    self.wait()
    return self._latest.latest.step if self._latest.latest else None

  def load_latest_at(self, step: int, abstract_state: dict) -> dict | None:
    """The state after an earlier step than the latest; None where it cannot be gone back to: it was not kept,
    is damaged, or the best validation came after it, and would stay the best of another course."""
    self.wait()
    best, state = self._best.latest, None
    if step in _steps(self._latest) and (best is None or best.step <= step):
      with contextlib.suppress(DamagedCheckpoint):
        state = _load(self._latest, self.directory / 'latest', abstract_state, step)
    return None if processes.any_says(state is None) else state

  def load_latest(self, abstract_state: dict) -> dict:
    """The state to resume from, laid out as `abstract_state` says; a damaged one is told and left out.

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
    """{step, params, stats} of the best validation; raises like `load_latest`."""
    self.wait()
    return _load(self._best, self.directory / 'best', {key: abstract_state[key] for key in BEST_KEYS})

  def keep_best(self, step: int) -> None:
    """Makes the best of a step, which the state to go on from records, the only one: a later one is of steps
    that are trained again. Where it is gone, a later one takes its place. Nothing is read.

    Raises:
      CheckpointError: there is none.
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
    """Waits for saves and ends what Orbax runs for this; what failed is raised by `wait`, not here."""
    with contextlib.suppress(Exception):
      self.wait()
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
  """In a bucket several times: one that does a write and does not answer refuses the same when it is sent
  again, and TensorStore gives up. Several processes cannot begin anew each by itself."""
  for last in (False, False, False, True):
    try:
      return checkpointer.save(step, content, force=True, overwrite=True)
    except ValueError as error:
      if not files.is_bucket(folder):
        raise
      if denied := folder.denial('written', error):
        raise denied from error
      if last or jax.process_count() > 1:
        reason = ' '.join(str(error).split())[:200]
        raise CheckpointError(
          f'{folder} could not be written ({reason}); the same command resumes from the previous checkpoint'
        ) from error
      folder.rmtree()


def _steps(checkpointer) -> list[int]:
  """Newest first."""
  return sorted((each.step for each in checkpointer.checkpoints), reverse=True)


def _remove(folder: pathlib.Path) -> None:
  """Removes a checkpoint, its name first: Orbax removes at the next start what is left of one so named."""
  nameless = folder.with_name(f'{folder.name}.orbax-checkpoint-tmp')
  with touching(folder, 'removed'):
    if files.is_bucket(folder):  # where no name can be taken, but the mark that it was saved whole
      (folder / COMMITTED).unlink()
      return folder.rmtree()
    folder.rename(nameless)
    shutil.rmtree(nameless)


def verify(directory: pathlib.Path, noted: str | None = None) -> int | None:
  """The newest step in a folder `latest` or `best`, None where there is none, after reading all checkpoints
  in it and comparing every digest. Needs no model: what they hold is described in them.

  Args:
    noted: `digests.of_all` of what the newest should hold; None: whatever it is.

  Raises:
    CheckpointError: one is damaged, or the newest is another one.
  """
  if not directory.is_dir():
    return None
  whole, damaged, found = [], [], None
  with contextlib.closing(ocp.training.Checkpointer(directory)) as reader:
    for step in _steps(reader):
      try:
        state = _load(reader, directory, None, step)
        found = found or of_all(state)
        whole.append(step)
      except DamagedCheckpoint as error:
        damaged.append(error)
  if damaged and whole:
    raise CheckpointError(f'{damaged[0].what}; step {whole[0]} is intact, and training resumes from there')
  if damaged:
    raise damaged[0]
  if noted and found and found != noted:
    raise CheckpointError(
      f'{directory}/{whole[0]} is not the checkpoint that its stage ended with, according to the recorded '
      f'digest; {_remedy(directory)}'
    )
  return max(whole, default=None)


def _load(checkpointer, directory, abstract_state, step=None) -> dict:
  """abstract_state: None for whatever is there, on one device. step: None for the newest."""
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
  found = np.asarray(digests(state))
  wrong = np.flatnonzero(found != expected) if found.shape == expected.shape else [0]
  if len(wrong):
    if difference := _difference(checkpointer, step, abstract_state):  # of a dtype that Orbax converted
      raise CheckpointError(f'{where} does not fit this model ({difference}); {remedy}')
    name = list(by_name(state))[wrong[0]]
    raise DamagedCheckpoint(
      f'{where} is damaged: {name} is not what was saved, according to its digest', remedy
    )
  return state


def _remedy(directory) -> str:
  return f'restore the folder from a copy, or delete {directory.parent.parent} to train that stage again'


def _with_digests(abstract_state) -> dict:
  leaves = jax.tree.leaves(abstract_state)
  kept = jax.ShapeDtypeStruct((len(leaves),), jnp.uint32, sharding=whole(leaves[0]))
  return abstract_state | {DIGESTS: kept}


def _described(checkpointer, step) -> dict:
  """What a checkpoint holds, as it says itself, to be loaded on one device."""
  device = SingleDeviceSharding(jax.local_devices()[0])
  there = checkpointer.metadata(step).metadata
  if there is None:  # which is all that Orbax says; loading says why
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', UserWarning)
      checkpointer.load(step)
    raise ValueError('it does not say what it holds')
  if not isinstance(there, dict) or DIGESTS not in there:
    raise ValueError('it holds no digests')
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), there)


def _difference(checkpointer, step, abstract_state) -> str:
  """Of what a checkpoint says that it holds and a model needs; '' where it does not say."""
  try:
    there = by_name(checkpointer.metadata(step).metadata)
  except Exception:  # whatever is wrong is said by the error that this is to explain
    return ''
  return diagnosis.difference(
    there, there if abstract_state is None else by_name(_with_digests(abstract_state)), DIGESTS
  )
