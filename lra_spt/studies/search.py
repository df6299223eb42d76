"""Hyperparameter search within a study: validation chooses values for every cell, and fresh seeds test them.

A round tries its values independently; the next round starts from the best. The search of the paper's
appendix C.1 thus has two rounds, over learning rate and batch size of pretraining and then of finetuning.
Runs of a search are in `WORKDIR/search/ROW/COLUMN/roundN/VALUES/seedS` and share stages like all runs of a
study. The search reads only their validation scores. It needs no jax.
"""

import dataclasses
import pathlib
import re
import statistics
from collections.abc import Sequence

from lra_spt.errors import ConfigError
from lra_spt.report.runs import run_folder
from lra_spt.studies import runner
from lra_spt.studies.study import Cell, Job, Study, Values, folder_of, jobs, text_of


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
  """Values that a round tries in a cell.

  values: {dotted key: value}.
  jobs: the runs, one per development seed.
  score: the mean validation score of the seeds; None if one is not finished, or has none.
  loss: their mean validation loss, which takes the place of a score that is not defined; else None.
  lost: a run met numbers that are not finite.
  broken: the sentence with which a run failed for another reason, or ''.
  """

  values: Values
  jobs: tuple[Job, ...]
  score: float | None
  loss: float | None
  lost: bool
  broken: str

  @property
  def is_finished(self) -> bool:
    return self.score is not None or self.loss is not None

  @property
  def rank(self) -> tuple[bool, float]:
    """The better, the larger: a score is better than none."""
    return (False, -self.loss) if self.score is None else (True, self.score)


@dataclasses.dataclass(frozen=True, eq=False)
class SearchState:
  """The state of the search of one cell.

  rounds: the candidates of each round, up to the open one.
  winners: the winners of the decided rounds.
  values: the values chosen so far.
  jobs: the runs of the open round that have no result and may still win; () if all rounds are decided, or if
    all values of a round lost.
  """

  rounds: tuple[tuple[Candidate, ...], ...]
  winners: tuple[Candidate, ...]
  values: Values
  jobs: tuple[Job, ...]

  @property
  def failed(self) -> bool:
    return not self.jobs and len(self.winners) < len(self.rounds)

  @property
  def decided(self) -> bool:
    return not self.jobs and not self.failed

  @property
  def problem(self) -> str:
    """Why the search stopped after the last command; '' if it can go on."""
    if self.failed:
      return 'no values of its search could be trained, see the logs of its runs'
    broken = [one.broken for one in self.rounds[-1] if one.broken] if self.jobs else []
    return f'its search needs a run that failed: {broken[0]}' if broken else ''

  @property
  def record(self) -> list[dict]:
    """The part of study.json: for every round values and scores, and the winner or why there is none."""
    winners = (*self.winners, *[None] * (len(self.rounds) - len(self.winners)))
    return [
      {
        'tried': [
          {'values': described(one.values), 'score': one.score}
          | ({} if one.loss is None else {'loss': one.loss})
          for one in tried
        ],
        'won': None if winner is None else described(winner.values),
        'problem': self.problem if winner is None else '',
      }
      for tried, winner in zip(self.rounds, winners, strict=True)
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class Decided:
  """The state of the search of a study.

  open: the runs that the search needs next, the first seeds first; () if no more can be decided.
  jobs: the runs of the study with the winning values, for cells that are decided.
  problems: {place of a cell: why its search stopped}.
  stuck: the runs of `open` in cells with a run that failed, but not because of its values.
  records: {folder of a cell: the record of its search}.
  """

  open: tuple[Job, ...]
  jobs: tuple[Job, ...]
  problems: dict[str, str]
  stuck: frozenset[Job]
  records: dict[str, list[dict]]


def decide(study: Study, chosen: Sequence[Job], workdir, overrides: Sequence[str] = ()) -> Decided:
  """Decides which runs come next for the chosen runs of a study. Cells without a search need no decision.

  Args:
    study: the study.
    chosen: runs from `study.jobs`.
    workdir: folder of the study.
    overrides: 'KEY=VALUE' for all runs.

  Raises:
    ConfigError, DamagedFile: see `look`.
  """
  seeds = {}
  for job in chosen:
    seeds.setdefault(folder_of(job.cell), []).append(job)
  states = {
    folder: look(study, same[0].cell, workdir, overrides)
    for folder, same in seeds.items()
    if study.search_of(same[0].cell)
  }
  if not states:
    return Decided((), tuple(chosen), {}, frozenset(), {})
  decided = [
    dataclasses.replace(
      same[0].cell,
      overrides={**same[0].cell.overrides, **(states[folder].values if folder in states else {})},
      seeds=tuple(job.seed for job in same),
    )
    for folder, same in seeds.items()
    if folder not in states or states[folder].decided
  ]
  turns = [
    (study.search_of(seeds[folder][0].cell).seeds.index(job.seed), job)
    for folder, one in states.items()
    for job in one.jobs
  ]
  return Decided(
    tuple(job for _, job in sorted(turns, key=lambda pair: pair[0])),
    tuple(jobs(dataclasses.replace(study, cells=decided), overrides=overrides)) if decided else (),
    {seeds[folder][0].place: one.problem for folder, one in states.items() if one.problem},
    frozenset(job for one in states.values() if one.problem for job in one.jobs),
    {str(folder): one.record for folder, one in states.items()},
  )


def described(values: Values) -> str:
  """Values as text, such as 'pretrain.optimizer.lr=0.001, pretrain.batch_size=32'."""
  return ', '.join(f'{key}={text_of(value)}' for key, value in values.items())


def look(study: Study, cell: Cell, workdir, overrides: Sequence[str] = ()) -> SearchState:
  """Reads the finished runs of a cell's search, and returns its state with the runs that it needs next.

  A candidate loses if one of its runs met numbers that are not finite. If a run failed for another reason (a
  full disk, a killed process), it is tried again, so that accidents do not choose values.

  Args:
    study: the study.
    cell: one of its cells, with a config and a search.
    workdir: folder of the study.
    overrides: 'KEY=VALUE' for all runs.

  Raises:
    ConfigError: a config cannot be used (the message names the cell), or a result is of another config.
  """
  workdir, rounds, winners, chosen = pathlib.Path(workdir), [], [], {}
  for number, tried in _rounds(study, cell):
    if len(tried) == 1:  # there is no choice
      chosen |= tried[0]
      continue
    base = dataclasses.replace(cell, overrides={**cell.overrides, **chosen})
    rounds.append(
      tuple(_candidate(one, _runs(study, base, number, one, overrides), workdir) for one in tried)
    )
    if possible := [one for one in rounds[-1] if not one.is_finished and not one.lost]:
      missing = (job for one in possible for job in one.jobs if not _finished(job, workdir))
      return SearchState(tuple(rounds), tuple(winners), chosen, tuple(missing))
    measured = [one for one in rounds[-1] if one.is_finished]
    if not measured:
      break
    winners.append(max(measured, key=lambda one: one.rank))  # the first one among equal scores
    chosen |= winners[-1].values
  return SearchState(tuple(rounds), tuple(winners), chosen, ())


def all_jobs(study: Study, chosen: Sequence[Job], overrides: Sequence[str] = ()) -> list[Job]:
  """Every run of the search for the chosen runs, if the first values of each round win. It serves to count
  them."""
  runs = []
  for cell in {folder_of(job.cell): job.cell for job in chosen if study.search_of(job.cell)}.values():
    best = {}
    for number, tried in _rounds(study, cell):
      if len(tried) > 1:
        base = dataclasses.replace(cell, overrides={**cell.overrides, **best})
        runs += [job for one in tried for job in _runs(study, base, number, one, overrides)]
      best |= tried[0]
  return runs


def _rounds(study, cell):
  """Yields (number, values to try) of the rounds. It leaves out values of pretraining for cells without it,
  and rounds that become empty."""
  (job, *_) = jobs(dataclasses.replace(study, cells=[cell]))
  for number, values in enumerate(study.search_of(cell).rounds):
    tried = []
    for one in values:
      used = {
        key: value
        for key, value in one.items()
        if 'pretrain' in job.stages or not key.startswith('pretrain.')
      }
      if used and used not in tried:
        tried.append(used)
    if tried:
      yield number, tried


def _runs(study, cell, number, values, overrides):
  """The runs with these values, one per development seed."""
  if taken := sorted({item.partition('=')[0] for item in overrides} & {*values}):
    raise ConfigError(f'The study {study.name} searches {taken[0]}: leave it out of the command.')
  short = ', '.join(f'{key.replace(".optimizer.", " ")} {text_of(value)}' for key, value in values.items())
  folder = pathlib.PurePosixPath(
    run_folder.SEARCH,
    *folder_of(cell).parts[1:],
    f'round{number + 1}',
    re.sub(r'[^a-z0-9.-]+', '_', short.lower()),
  )
  seeds = tuple(study.search_of(cell).seeds)
  one = dataclasses.replace(cell, overrides={**cell.overrides, **values}, seeds=seeds, search=None)
  return tuple(
    dataclasses.replace(job, folder=folder / f'seed{job.seed}', what=f'round {number + 1}, {short}')
    for job in jobs(dataclasses.replace(study, cells=[one], search=None), overrides=overrides)
  )


def _candidate(values, runs, workdir):
  runner.check(workdir, runs)
  folders = [workdir / job.folder for job in runs if _finished(job, workdir)]
  score = loss = None
  if len(folders) == len(runs):
    scores = [_validation(folder) for folder in folders]
    if None in scores:
      loss = statistics.mean(_validation(folder, 'loss') for folder in folders)
    else:
      score = statistics.mean(scores)
  failed = [job for job in runs if runner.state(workdir, job) == runner.FAILED]
  lost = any(runner.failed_by_its_values(workdir, job) for job in failed)
  broken = '' if lost else next((runner.failure(workdir, job) or 'it left no message' for job in failed), '')
  return Candidate(values, runs, score, loss, lost, broken)


def _finished(job, workdir):
  return runner.state(workdir, job) == runner.FINISHED


def _validation(folder, metric=''):
  """A metric of a finished run, by default the score; None where it is not defined."""
  result = run_folder.read_result(folder)
  return result['metrics']['validation'][metric or result['metric']]
