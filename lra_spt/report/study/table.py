"""The table of a folder of runs: rows are models and arms, columns are tasks, each cell holds some seeds.

study.json says where the runs of a study belong. `lra_spt.report.study.any_folder` places all other runs.
"""

import dataclasses
import functools
import pathlib

from lra_spt import files
from lra_spt.errors import DamagedFile, FileAccessError, NonFiniteError
from lra_spt.report.published import LRA, TASK_NAMES
from lra_spt.report.runs import run_folder
from lra_spt.report.runs.arm_key import ArmKey, PlannedArm, chosen_by_search, key_of, planned_arm
from lra_spt.report.runs.run import FinishedRun, read_whole
from lra_spt.report.runs.unfinished import progress_of
from lra_spt.report.statistics.scores import SCORES
from lra_spt.report.study.arms import Arm, arm_of
from lra_spt.report.study.comparisons import StudyFindings
from lra_spt.report.study.findings import findings
from lra_spt.report.study.record import read_record

CHANCE = 0.5  # the score of a model that fails on PathX, in the second of AVERAGES
IMPROVING = 'still improving'
# The three ways in which papers average the LRA tasks: name, tasks, whether a failed PathX counts as chance.
AVERAGES = (
  ('mean of 5, no PathX', tuple(task for task in LRA if task != 'pathx'), False),
  ('mean of 6, failed PathX 50', LRA, True),
  ('mean of 5, no ListOps', tuple(task for task in LRA if task != 'listops'), False),
)
PAPERS = AVERAGES[1][0]  # the average of "Never Train from Scratch"


@dataclasses.dataclass(frozen=True)
class OpenRun:
  """A run without a result. progress: 'finetuning, step 20'. failure: the sentence with which it failed, ''
  if it did not. diverged: it met a number that is not finite, so its way of training is the reason."""

  seed: int
  path: pathlib.Path
  progress: str
  failure: str = ''
  diverged: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class TableCell:
  """One row and column of a table. record: with the keys of CellRecord. arm: its finished runs with a score,
  None without any. open: its runs without a result. unscored: its finished runs without a score, or of a
  smoke test."""

  record: dict
  arm: Arm | None
  open: tuple[OpenRun, ...] = ()
  unscored: tuple[FinishedRun, ...] = ()

  row = property(lambda self: self.record['row'])
  column = property(lambda self: self.record['column'])
  published = property(lambda self: self.record.get('published'))
  scored = property(lambda self: self.arm.runs if self.arm else ())
  diverged = property(lambda self: tuple(run.seed for run in self.open if run.diverged))
  failed = property(lambda self: tuple(run.failure for run in self.open if run.failure))
  training = property(lambda self: self.record.get('training') or self.arm.name)
  regime = property(lambda self: self.arm.regime if self.arm else self.plan.regime)
  causal = property(lambda self: self.arm.causal if self.arm else self.plan.causal)

  @functools.cached_property
  def runs(self) -> tuple[FinishedRun, ...]:
    """Its finished runs, by seed."""
    return tuple(sorted((*self.scored, *self.unscored), key=lambda run: run.seed))

  @functools.cached_property
  def chosen(self) -> set[str]:
    """Keys of settings that validation chose for this cell."""
    return chosen_by_search(self.record)

  @functools.cached_property
  def key(self) -> ArmKey:
    """The key of its runs, which must exist, without settings that validation chose."""
    return key_of(self.runs[0].result, self.chosen)

  @functools.cached_property
  def plan(self) -> PlannedArm:
    return planned_arm(self.record, self.chosen)

  @property
  def score(self):
    """The Score of its runs, or accuracy without any."""
    return self.runs[0].score if self.runs else SCORES['accuracy']

  @property
  def state(self) -> str:
    """'' if all runs are finished and have a score, else what is missing, such as 'waiting', 'failed', '1 of
    3 seeds', 'no score', 'smoke run', '2 of 3 with a score'. A cell without seeds has its note, if any."""
    if not self.record['seeds']:
      return self.record['note'] or ('not chosen' if self.record['config'] else 'not run')
    if self.unscored and not (self.scored or self.open):
      return 'no score' if any(run.why_unscored for run in self.unscored) else 'smoke run'
    if self.unscored:
      return f'{len(self.scored)} of {len(self.runs) + len(self.open)} with a score'
    if not self.open:
      return ''
    if not (self.runs or self.failed) and any(part['won'] is None for part in self.record['search']):
      return 'searching'
    if self.failed and not self.runs:
      return 'failed'
    if self.runs:
      return f'{len(self.runs)} of {len(self.runs) + len(self.open)} seeds'
    return 'running' if any(run.progress != 'waiting' for run in self.open) else 'waiting'

  @property
  def remark(self) -> str:
    """`state`, and 'still improving' with the number of seeds whose best validation was their last one."""
    last = sum(run.still_improving for run in self.scored)
    of = '' if last == len(self.scored) else f' ({last} of {len(self.scored)} seeds)'
    return ', '.join(part for part in (self.state, f'{IMPROVING}{of}' * (last > 0)) if part)

  @property
  def text(self) -> str:
    """Its number, or a dash."""
    return self.arm.shown if self.arm else self.score.show(None)


@dataclasses.dataclass(frozen=True)
class DamagedRun:
  """path: the folder of a run that is left out. sentence: names the damaged file and what to do."""

  path: pathlib.Path
  sentence: str


@dataclasses.dataclass(frozen=True, eq=False)
class ResultTable:
  """All runs of a folder. record: with the keys of StudyRecord; its `study` is '' if the folder is no study.
  cells: {(row, column): TableCell}, not for every pair. damaged: runs outside of all cells."""

  workdir: pathlib.Path
  record: dict
  cells: dict[tuple[str, str], TableCell]
  damaged: tuple[DamagedRun, ...] = ()

  rows = property(lambda self: self.record['rows'])
  columns = property(lambda self: self.record['columns'])
  is_study = property(lambda self: bool(self.record['study']))

  @functools.cached_property
  def runs(self) -> list[FinishedRun]:
    return [run for cell in self.cells.values() for run in cell.runs]

  @functools.cached_property
  def shown_columns(self) -> list[str]:
    """The columns with a run that has begun; all where none has."""
    cells = self.cells.values()
    begun = {c.column for c in cells if c.runs or any(run.progress != 'waiting' for run in c.open)}
    return [name for name in self.columns if name in begun] or self.columns

  @functools.cached_property
  def counts(self) -> dict[str, int]:
    """The numbers of runs that are finished, failed, open and damaged."""
    open_runs = [run for cell in self.cells.values() for run in cell.open]
    return {
      'finished': len(self.runs),
      'failed': sum(bool(run.failure) for run in open_runs),
      'open': sum(not run.failure for run in open_runs),
      'damaged': len(self.damaged),
    }

  @functools.cached_property
  def findings(self) -> StudyFindings:
    """The conclusions that the finished runs allow."""
    return findings(self.cells.values())

  @functools.cached_property
  def main_findings(self) -> StudyFindings:
    """`findings`; if the study is about one model, only those about it."""
    model = self.record.get('focus')
    return self.findings.of_model(model) if model else self.findings

  @functools.cached_property
  def conventions(self) -> list[str]:
    """Names of the averages that the table shows: the three of `AVERAGES` if it has all tasks of the Long
    Range Arena, else the mean over its columns."""
    if not self.record['averages']:
      return []
    of_lra = {TASK_NAMES[task] for task in LRA} <= {*self.columns}
    return [name for name, *_ in AVERAGES] if of_lra else [f'mean of {len(self.columns)}']

  def averages(self, row: str) -> list[tuple[str, float | None, float | None]]:
    """(name of the convention, ours, published) of every one of `conventions`; None where a task is missing
    or where scores are no accuracies."""
    if len(self.conventions) < len(AVERAGES):
      cells = [self.cells.get((row, column)) for column in self.columns]
      alike = all(cell and cell.score.counts for cell in cells)
      means = (_mean([value(cell) for cell in cells]) if alike else None for value in (ours, published))
      return [(name, *means) for name in self.conventions]
    cells = {task: cell for task in LRA if (cell := self.cells.get((row, TASK_NAMES[task])))}
    of_ours = averages({task: ours(cell) for task, cell in cells.items()})
    failed = CHANCE if 'pathx' in cells else None
    of_theirs = averages({task: published(cell) for task, cell in cells.items()}, failed)
    return [(name, mean, of_theirs[name]) for name, mean in of_ours.items()]


def averages(values: dict[str, float | None], failed: float | None = None) -> dict[str, float | None]:
  """{convention: mean}, None where a task is missing.

  Args:
    values: {task: score}, None where there is none.
    failed: the value of a missing PathX in the convention that counts it; None: PathX is not missing because
      a model failed on it.
  """
  means = {}
  for name, tasks, chance in AVERAGES:
    known = values | {'pathx': failed} if chance and values.get('pathx') is None else values
    means[name] = _mean([known.get(task) for task in tasks])
  return means


def _mean(values):
  return None if None in values else sum(values) / len(values)


def ours(cell):
  return cell.arm.score.estimate if cell.arm else None


def published(cell):
  return cell.published['value'] if cell.published else None


def read_table(workdir) -> ResultTable:
  """The ResultTable of a study's folder; a damaged run counts as one that failed.

  Raises:
    DamagedFile: study.json cannot be read.
  """
  workdir = files.place(workdir)
  record = read_record(workdir)
  cells = {(entry['row'], entry['column']): _cell(workdir, entry) for entry in record['cells']}
  run = [cell for cell in cells.values() if cell.runs]
  for cell in run:
    if any(cell.key.is_tied_to(other.key) for other in run if other.column == cell.column):
      cell.record['training'] = f'{cell.key.name}, compute-tied'
  return ResultTable(workdir, record, cells)


def _cell(workdir, entry):
  runs, open_runs = [], []
  problem = next((part['problem'] for part in entry['search'] if part.get('problem')), '')
  for seed in entry['seeds']:
    place = workdir / entry['folder'] / f'seed{seed}'
    if not (place / run_folder.RESULT).exists():
      open_runs.append(OpenRun(seed, place, 'waiting', problem) if problem else open_run(seed, place))
      continue
    try:
      run = read_whole(place)
      if run.seed != seed:
        raise DamagedFile(f'{place} holds a run of seed {run.seed}; move it to where it belongs.')
      runs.append(run)
    except (DamagedFile, FileAccessError) as error:
      open_runs.append(OpenRun(seed, place, 'damaged', str(error)))
  return cell_of(entry, runs, open_runs)


def cell_of(record, runs, open_runs) -> TableCell:
  """The TableCell of finished runs and OpenRuns."""
  scored = [run for run in runs if not run.why_left_out]
  unscored = tuple(run for run in runs if run.why_left_out)
  return TableCell(record, arm_of(scored) if scored else None, tuple(open_runs), unscored)


def open_run(seed, folder) -> OpenRun:
  """The OpenRun in the folder of a run without a result."""
  try:
    note = run_folder.read_failure(folder)
  except DamagedFile as error:
    return OpenRun(seed, folder, 'failed', str(error))
  stage, step, _ = progress_of(folder)
  progress = 'waiting' if step is None else f'{stage}, step {step:,}'
  if note is None:
    return OpenRun(seed, folder, progress)
  diverged = note.get('kind', '') == NonFiniteError.__name__
  return OpenRun(seed, folder, 'failed', note.get('error') or 'failed without a message', diverged)
