"""Hyperparameter search within a study: validation chooses for every cell, fresh seeds test the best.

The values of a round are tried side by side; the next round starts from the best. The search of the paper's
appendix C.1 thus has two rounds, over learning rate and batch size of pretraining and then of finetuning.
Runs of a search are in `WORKDIR/search/ROW/COLUMN/roundN/VALUES/seedS` and share stages like all runs of a
study. Only their validation scores are read. Does not need jax.
"""

import dataclasses
import pathlib
import re
import statistics
from collections.abc import Sequence

from lra_spt.config.regimes import get_regime
from lra_spt.errors import ConfigError
from lra_spt.report.runs import run_folder
from lra_spt.studies import runner
from lra_spt.studies.study import Cell, Job, Study, Values, folder_of, jobs, text_of


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
  """values: {dotted key: value} that a round tries in a cell. jobs: its runs, one per development seed.
  score: of validation, the mean of the seeds; None where one is not finished. lost: whether a run met numbers
  that are not finite. broken: the sentence with which a run failed otherwise, or ''."""

  values: Values
  jobs: tuple[Job, ...]
  score: float | None
  lost: bool
  broken: str


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
  """What the search of one cell came to.

  rounds: what was tried, up to the round that is open. winners: of the rounds that are decided. values: what
  was chosen so far. jobs: runs of the open round that have no result and may still win; () when all is
  decided, or cannot be, because all values of a round lost.
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
    """Why it does not go on, as the last command left it; '' where it does."""
    if self.failed:
      return 'no values of its search could be trained, see the logs of its runs'
    broken = [one.broken for one in self.rounds[-1] if one.broken] if self.jobs else []
    return f'its search needs a run that failed: {broken[0]}' if broken else ''

  @property
  def record(self) -> list[dict]:
    """Of study.json: for every round what was tried, with its score, which one won, and why none has."""
    winners = (*self.winners, *[None] * (len(self.rounds) - len(self.winners)))
    return [
      {
        'tried': [{'values': described(one.values), 'score': one.score} for one in tried],
        'won': None if winner is None else described(winner.values),
        'problem': self.problem if winner is None else '',
      }
      for tried, winner in zip(self.rounds, winners, strict=True)
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class Decided:
  """Where the search of a study stands.

  open: runs that it needs next, the first seeds first; () when all is decided that can be. jobs: the runs of
  the study with the values that won, where that is known. problems: {place of a cell: why its search does not
  go on}. stuck: runs of `open` for cells of which one failed by another fault than that of its values.
  records: {folder of a cell: the record of its search}.
  """

  open: tuple[Job, ...]
  jobs: tuple[Job, ...]
  problems: dict[str, str]
  stuck: frozenset[Job]
  records: dict[str, list[dict]]


def decide(study: Study, chosen: Sequence[Job], workdir, overrides: Sequence[str] = ()) -> Decided:
  """What to run next for the chosen runs of a study; those of one without a search are decided.

  Args:
    study: the study.
    chosen: of `study.jobs`.
    workdir: folder of the study.
    overrides: 'KEY=VALUE' for all runs.

  Raises:
    ConfigError, DamagedFile: as `look`.
  """
  if study.search is None:
    return Decided((), tuple(chosen), {}, frozenset(), {})
  seeds = {}
  for job in chosen:
    seeds.setdefault(folder_of(job.cell), []).append(job)
  found = {folder: look(study, same[0].cell, workdir, overrides) for folder, same in seeds.items()}
  decided = [
    dataclasses.replace(
      same[0].cell,
      overrides={**same[0].cell.overrides, **found[folder].values},
      seeds=tuple(job.seed for job in same),
    )
    for folder, same in seeds.items()
    if found[folder].decided
  ]
  open_jobs = sorted((job for one in found.values() for job in one.jobs), key=_turn(study.search.seeds))
  return Decided(
    tuple(open_jobs),
    tuple(jobs(dataclasses.replace(study, cells=decided), overrides=overrides)) if decided else (),
    {same[0].place: found[folder].problem for folder, same in seeds.items() if found[folder].problem},
    frozenset(job for one in found.values() if one.problem for job in one.jobs),
    {str(folder): one.record for folder, one in found.items()},
  )


def _turn(seeds):
  return lambda job: seeds.index(job.seed)


def described(values: Values) -> str:
  """'pretrain.optimizer.lr=0.001, pretrain.batch_size=32'."""
  return ', '.join(f'{key}={text_of(value)}' for key, value in values.items())


def look(study: Study, cell: Cell, workdir, overrides: Sequence[str] = ()) -> Found:
  """What the finished runs of a cell's search say, and which ones it needs next.

  A candidate of which a run met numbers that are not finite loses. One of which a run failed otherwise (a
  full disk, a killed process) is tried again, so that no accident chooses.

  Args:
    study: with a search.
    cell: one of its cells, with a config.
    workdir: folder of the study.
    overrides: 'KEY=VALUE' for all runs.

  Raises:
    ConfigError: a config that cannot be used, named with its cell, or a result of another config.
  """
  workdir, rounds, winners, chosen = pathlib.Path(workdir), [], [], {}
  for number, tried in _rounds(study, cell):
    if len(tried) == 1:  # nothing to choose
      chosen |= tried[0]
      continue
    base = dataclasses.replace(cell, overrides={**cell.overrides, **chosen})
    rounds.append(
      tuple(_candidate(one, _runs(study, base, number, one, overrides), workdir) for one in tried)
    )
    if possible := [one for one in rounds[-1] if one.score is None and not one.lost]:
      missing = (job for one in possible for job in one.jobs if not _finished(job, workdir))
      return Found(tuple(rounds), tuple(winners), chosen, tuple(missing))
    scored = [one for one in rounds[-1] if one.score is not None]
    if not scored:
      break
    winners.append(max(scored, key=lambda one: one.score))  # of equal ones the first
    chosen |= winners[-1].values
  return Found(tuple(rounds), tuple(winners), chosen, ())


def all_jobs(study: Study, chosen: Sequence[Job], overrides: Sequence[str] = ()) -> list[Job]:
  """Every run that the search for the chosen runs takes, as if the first values of each round won: to count
  them."""
  found = []
  for cell in {folder_of(job.cell): job.cell for job in chosen if study.search}.values():
    best = {}
    for number, tried in _rounds(study, cell):
      if len(tried) > 1:
        base = dataclasses.replace(cell, overrides={**cell.overrides, **best})
        found += [job for one in tried for job in _runs(study, base, number, one, overrides)]
      best |= tried[0]
  return found


def _rounds(study, cell):
  """(number, values to try) of the rounds: values of a pretraining that a cell lacks are left out, as are
  rounds of which nothing remains."""
  (job, *_) = jobs(dataclasses.replace(study, cells=[cell]))
  pretrains = get_regime(job.config.regime).objective is not None
  for number, values in enumerate(study.search.rounds):
    tried = []
    for one in values:
      kept = {key: value for key, value in one.items() if pretrains or not key.startswith('pretrain.')}
      if kept and kept not in tried:
        tried.append(kept)
    if tried:
      yield number, tried


def _runs(study, cell, number, values, overrides):
  """The runs with these values, one per development seed."""
  if taken := sorted({item.partition('=')[0] for item in overrides} & {*values}):
    raise ConfigError(f'{taken[0]} is what the study {study.name} searches: leave it out of the command.')
  short = ', '.join(f'{key.replace(".optimizer.", " ")} {text_of(value)}' for key, value in values.items())
  folder = pathlib.PurePosixPath(
    run_folder.SEARCH,
    *folder_of(cell).parts[1:],
    f'round{number + 1}',
    re.sub(r'[^a-z0-9.-]+', '_', short.lower()),
  )
  one = dataclasses.replace(cell, overrides={**cell.overrides, **values}, seeds=tuple(study.search.seeds))
  return tuple(
    dataclasses.replace(job, folder=folder / f'seed{job.seed}', what=f'round {number + 1}, {short}')
    for job in jobs(dataclasses.replace(study, cells=[one], search=None), overrides=overrides)
  )


def _candidate(values, own, workdir):
  runner.check(workdir, own)
  scores = [_validation(workdir / job.folder) for job in own if _finished(job, workdir)]
  failed = [job for job in own if runner.state(workdir, job) == runner.FAILED]
  lost = any(runner.failed_by_its_values(workdir, job) for job in failed)
  broken = '' if lost else next((runner.failure(workdir, job) or 'it left no message' for job in failed), '')
  return Candidate(values, own, statistics.mean(scores) if len(scores) == len(own) else None, lost, broken)


def _finished(job, workdir):
  return runner.state(workdir, job) == runner.FINISHED


def _validation(folder):
  result = run_folder.read_result(folder)
  return result['metrics']['validation'][result['metric']]
