"""Checks before a study starts: all missing data sets in one message, and the steps of every stage."""

from collections.abc import Iterable, Mapping

from lra_spt.config import user_files
from lra_spt.data.examples import open_split
from lra_spt.data.tasks import Task
from lra_spt.errors import DataError, MissingFile, within
from lra_spt.report.runs.run_folder import STAGES
from lra_spt.studies.study import Job

Steps = Mapping[Job, Mapping[str, int]]  # of every stage of every run


def check(jobs: Iterable[Job]) -> Steps:
  """Returns the steps of every stage of every run.

  Raises:
    DataError: prepared sets are missing or damaged; the message names all of them.
  """
  steps, missing = plan(jobs)
  if missing:
    count = f'{len(missing)} data sets are' if len(missing) > 1 else 'A data set is'
    raise DataError(f'{count} missing:\n' + '\n'.join(missing))
  return steps


def plan(jobs: Iterable[Job]) -> tuple[Steps, list[str]]:
  """Returns the steps, and a sentence per missing set in place of an error. A missing set counts with its
  published number of examples."""
  from lra_spt.runs.build import resolve  # needs jax; this module is imported without it

  sizes, missing, steps = {}, {}, {}
  for job in jobs:
    run = resolve(job.config)
    key = run.task.name, run.protocol.name, run.runtime.data_dir
    if key not in sizes:
      try:
        train = open_split(run.task, 'train', run.runtime.data_dir)
        sizes[key] = {'pretrain': len(train), 'finetune': len(train.labelled)}
      except (DataError, MissingFile) as error:
        missing[str(error)] = None
        if (size := _published_size(run.task)) is None:
          raise
        sizes[key] = dict.fromkeys(STAGES, size)
    steps[job] = {stage: _steps(run.stages[stage], sizes[key][stage], stage) for stage in job.stages}
  return steps, list(missing)


def _published_size(task: Task) -> int | None:
  """The number of training examples of a set that is not prepared; None for a user's set."""
  user_files.claim_data_prep()
  from data_prep import catalogue  # imported only if data is missing

  counts = catalogue.published_counts(task)
  return counts and counts['train']


def _steps(spec, examples: int, stage: str) -> int:
  used = examples if spec.data_fraction == 1 else max(1, int(spec.data_fraction * examples))
  with within(stage):
    return spec.total_steps(used)
