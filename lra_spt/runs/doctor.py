"""`lra-spt doctor` finds damage in stored runs and prepared sets, and changes nothing.

It compares every file with its checksum: JSON, predictions and curves of runs, every array of their
checkpoints, every file of a set and the fingerprint of its examples.
"""

import contextlib
import dataclasses
import gc
import logging
import os
import pathlib
import tempfile

import tqdm

from lra_spt import files
from lra_spt.data import fingerprints, prepared
from lra_spt.errors import (
  CheckpointError,
  DamagedFile,
  FileAccessError,
  MissingFile,
  UserError,
  counted,
  too_many_open_files,
)
from lra_spt.report.runs import inside, kernels, restored, run_folder, unfinished
from lra_spt.report.runs import run as runs
from lra_spt.report.study import notes
from lra_spt.report.study import record as studies


@dataclasses.dataclass
class Health:
  """The numbers of examined runs, checkpoints and sets, and the findings."""

  runs: int = 0
  checkpoints: int = 0
  sets: int = 0
  problems: list[str] = dataclasses.field(default_factory=list)  # a sentence each
  notes: list[str] = dataclasses.field(default_factory=list)  # sentences on other facts

  @property
  def summary(self) -> str:
    """One line, such as '2 runs, 8 checkpoints, 1 set: good'."""
    counts = (self.runs, 'run'), (self.checkpoints, 'checkpoint'), (self.sets, 'set')
    verdict = counted(len(self.problems), 'problem') if self.problems else 'good'
    return f'{", ".join(counted(*pair) for pair in counts)}: {verdict}'

  def attempt(self, check, *arguments):
    """Runs a check and returns its result. If it raises a UserError, records its text and returns None."""
    try:
      return check(*arguments)
    except UserError as error:
      if limited := too_many_open_files(error):
        raise limited from error
      if str(error) not in self.problems:  # several checks may read one file
        self.problems.append(str(error))
    return None


def examine_runs(workdir, health: Health) -> None:
  """Examines all runs in or below a folder, finished or not, and the stages that runs share.

  Raises:
    MissingFile: there is none.
  """
  workdir = files.place(workdir)
  if not workdir.is_dir():
    raise MissingFile(f'there is no folder {workdir}; name the folder that holds your runs')
  folders = {path.parent for path in workdir.rglob(run_folder.RESULT)}
  folders |= {folder for folder in unfinished.folders(workdir) if _may_be_run(folder)}
  stages = {stage for folder in folders for stage in run_folder.stages_in(folder)}
  stages |= {path for stage in run_folder.STAGES for path in workdir.rglob(f'{stage}-*') if path.is_dir()}
  if not folders and not stages:
    raise MissingFile(f'there is no run in or below {workdir}; name the folder that holds your runs')
  for path in sorted(workdir.rglob(run_folder.STUDY)):
    health.attempt(studies.read_record, path.parent)
  numbers = 0
  for folder in tqdm.tqdm(sorted(folders), desc='runs', unit='run', disable=None):
    if not _is_in_use(folder, health):
      health.runs += 1
      numbers += _is_of_numbers(folder)
      _examine_run(folder, health)
  if numbers:
    health.notes.append(
      f'{numbers:,} of the runs are stored as numbers, without config and checkpoints, as if restored from a '
      'file of results: reports show them, but no command can evaluate or continue them.'
    )
  whole = {path.resolve(): path for path in sorted(stages)}  # runs of a study link to the same stages
  for real, path in tqdm.tqdm(whole.items(), desc='stages', unit='stage', disable=None):
    if not files.is_owned(path.parent) and not _is_in_use(real, health):
      _examine_stage(path, health)


def _may_be_run(folder):
  with contextlib.suppress(UserError):
    return unfinished.read(folder) is not None
  return True


def _is_in_use(folder, health) -> bool:
  if in_use := files.is_owned(folder):
    health.notes.append(f'{folder} is being trained and was left out.')
  return in_use


def _examine_run(folder, health):
  if (folder / run_folder.CONFIG).exists():
    health.attempt(run_folder.read_config, folder)
  elif not _is_of_numbers(folder) and not _is_recorded(folder):
    health.problems.append(
      f'{folder} has no {run_folder.CONFIG}; restore it from a copy, or move the folder away.'
    )
  health.attempt(run_folder.read_failure, folder)
  if (folder / run_folder.RESULT).exists():
    health.attempt(_check_result, folder)
  for path in health.attempt(_lost_stages, folder) or ():
    link = f' (a link to {path.readlink()})' if path.is_symlink() else ''
    health.problems.append(
      f'{path}{link}, a stage of the run in {folder}, is gone; restore it from a copy, or repeat the run in '
      'another --workdir.'
    )
  if (folder / run_folder.KERNELS).exists():
    health.attempt(kernels.read_kernels, folder / run_folder.KERNELS)
  if (folder / run_folder.INSIDE).exists():
    health.attempt(inside.read_inside, folder / run_folder.INSIDE)
  health.attempt(restored.read_restored, folder)


def _is_of_numbers(folder) -> bool:
  """True if the folder holds a result that was stored as numbers: it is not recorded, and has neither a
  config nor the files of a stage."""
  if (folder / run_folder.CONFIG).exists() or not (folder / run_folder.RESULT).exists():
    return False
  stages = run_folder.stages_in(folder)
  return not _is_recorded(folder) and not any(
    (stage / name).exists() for stage in stages for name in (run_folder.STAGE, 'checkpoints')
  )


def _is_of_search(folder) -> bool:
  """True for a run with which a study searched for hyperparameters; no report compares its predictions."""
  return any(
    parent.name == run_folder.SEARCH and (parent.parent / run_folder.STUDY).exists()
    for parent in folder.parents
  )


def _is_recorded(folder) -> bool:
  """True if the folder holds recorded predictions, which have no config; False if its result is damaged."""
  try:
    return bool(run_folder.read_result(folder).get('recorded'))
  except (DamagedFile, FileAccessError):
    return False


def _lost_stages(folder):
  """The missing stages of a run: those of its result, and the targets of its links. Results that were
  recorded, or stored as numbers, have no config.json and no stages."""
  if not (folder / run_folder.CONFIG).exists():
    return []
  lost = set(run_folder.stages_in(folder, gone=True))
  if (folder / run_folder.RESULT).exists():
    run = runs.read_run(folder)
    taken = (
      {'pretrain'} if run.result.get('pretrained') else set()
    )  # it is in another run, which may have moved
    named = [name for name in run.result['stages'] if name not in taken and run.stage(name, 'folder')]
    lost |= {run.stage_folder(name) for name in named}
  return sorted(path for path in lost if not path.is_dir())


def _check_result(folder):
  run = runs.read_run(folder)
  if run.predictions is None and not (_is_of_numbers(folder) and _is_of_search(folder)):
    path = folder / run_folder.PREDICTIONS
    raise MissingFile(f'{path} is missing, so nothing can be compared; {run_folder.REPEAT}.')
  for sentence in notes.contradictions([run]):
    raise DamagedFile(f'{sentence.removesuffix(".")}; {run_folder.REPEAT}.')


def _examine_stage(folder, health):
  done = health.attempt(run_folder.read_stage, folder)
  health.attempt(run_folder.read_attempts, folder)
  health.attempt(run_folder.check_metrics, folder)
  health.attempt(_check_lines, folder / run_folder.METRICS)
  for name in ('latest', 'best'):
    if health.attempt(_verify, folder / 'checkpoints' / name, done if name == 'best' else None):
      health.checkpoints += 1


def _check_lines(path):
  lines = run_folder.metrics_lines(path) if path.exists() else []
  # The last line may be cut off by a kill.
  if bad := [number for number, line in enumerate(lines[:-1], 1) if line is None]:
    shown = ', '.join(map(str, bad[:5])) + (', ...' if len(bad) > 5 else '')
    raise DamagedFile(f'{path} is damaged in line {shown}; delete what is not JSON there.')


def _verify(directory, done):
  """Returns the step of an undamaged checkpoint; None if there is none and none is needed.

  Args:
    done: the content of stage.json, if the checkpoint must be that of the best validation; else None.
  """
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # other processes may train on accelerators
  from lra_spt.distributed import settings, sharding
  from lra_spt.training.checkpoints import store as checkpoints

  sharding.all_devices()  # before Orbax starts them
  loggers = [logging.getLogger(name) for name in ('absl', 'asyncio')]
  before = [logger.level for logger in loggers]
  try:  # Orbax and its threads print errors before they raise them
    for logger in loggers:
      logger.setLevel(logging.CRITICAL)
    with settings.fixed():
      step = checkpoints.verify(directory.absolute(), done and done.get('best_digest'))
  finally:
    gc.collect()
    for logger, level in zip(loggers, before, strict=True):
      logger.setLevel(level)
  if step is None and done:
    raise CheckpointError(
      f'{directory} holds no checkpoint of the best validation; restore it from a copy, or delete '
      f'{directory.parent.parent} to train that stage again.'
    )
  if done and step != done['best_step']:
    raise CheckpointError(
      f'{directory} holds a checkpoint of step {step}, but {run_folder.STAGE} says that the best validation '
      f'was at step {done["best_step"]}; restore it from a copy, or delete {directory.parent.parent} to '
      'train that stage again.'
    )
  return step


def examine_sets(data_dir, health: Health) -> None:
  """Examines all prepared sets of a folder.

  Raises:
    MissingFile: there is none.
  """
  data_dir = files.place(data_dir)
  parts = (prepared.METADATA, prepared.INFO)
  folders = sorted({path.parent for name in parts for path in data_dir.glob(f'*/{prepared.VERSION}/{name}')})
  if not folders:
    raise MissingFile(f'there is no prepared set in {data_dir}; name the folder given to `lra-spt prepare`')
  for folder in folders:
    health.sets += 1
    health.attempt(_check_set, folder)


def _check_set(folder):
  advice = f'prepare {folder.parent.name} again'
  if files.is_bucket(folder):  # it reads all files again, not an older local copy
    with tempfile.TemporaryDirectory() as into, prepared.copied(folder, pathlib.Path(into)) as copy:
      fingerprints.check(copy, prepared.read_metadata(copy, advice, thorough=True))
    return
  fingerprints.check(folder, prepared.read_metadata(folder, advice, thorough=True))
