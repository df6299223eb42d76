"""Everything that a report is made of: finished runs, started ones, and damaged ones, which it names."""

import dataclasses
import pathlib

from lra_spt.errors import DamagedFile, FileAccessError
from lra_spt.files import checksums
from lra_spt.report.runs import restored, run_folder, unfinished
from lra_spt.report.runs import run as runs


@dataclasses.dataclass(frozen=True)
class Damaged:
  """path: of the folder of a run that is left out; sentence: which file of it is damaged, and what to do."""

  path: pathlib.Path
  sentence: str


@dataclasses.dataclass(frozen=True)
class Survey:
  """runs: as `runs.collect`; started: list of `Unfinished`; damaged: list of Damaged, in neither of them."""

  runs: list
  started: list
  damaged: list


def survey(workdir):
  """The Survey of all runs in or below a folder; MissingFile when there is no such folder."""
  damaged = []

  def read_all(read, folders):
    for folder in folders:
      try:
        found = read(folder)
      except (DamagedFile, FileAccessError) as error:
        damaged.append(Damaged(folder, str(error)))
      else:
        if found is not None:
          yield found

  whole = runs.told_apart(workdir, list(read_all(read_whole, runs.finished(workdir))))
  begun = runs.outside_searches(workdir, unfinished.folders(workdir))
  return Survey(whole, list(read_all(unfinished.read, begun)), damaged)


def read_whole(folder):
  """The FinishedRun of a folder, of which every file that a report shows was read.

  Raises:
    DamagedFile: naming the first that is damaged.
    FileAccessError: naming the first that cannot be read.
  """
  run = runs.read_run(folder)
  if (path := run.path / run_folder.CONFIG).exists():
    checksums.read(path, 'the config of a run', run_folder.CONFIG_ADVICE)
  run_folder.read_failure(run.path)
  for stage in run.result['stages']:
    place = run.stage_folder(stage)
    if place is not None:
      run_folder.read_stage(place)
      run_folder.check_metrics(place)
  _ = run.predictions, run.curves, run.kernels
  restored.read_restored(run.path)
  return run
