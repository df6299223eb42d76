"""Progress of the runs of a study on a terminal: bars that are redrawn, or a line per event."""

import math
import pathlib
import statistics
import sys
import time
from collections.abc import Sequence

import tqdm

from lra_spt import files
from lra_spt.report.runs.unfinished import progress_of
from lra_spt.report.study.arms import duration
from lra_spt.studies import runner
from lra_spt.studies.budget import Steps
from lra_spt.studies.study import Job

REDRAW = 1.0  # seconds
LEAST = 0.02  # the part of the steps of a run that is needed to know its speed
OPEN = runner.WAITING, runner.HELD_UP


class Progress:
  """Shows the progress of `runner.run_all`, which calls `tell` and `watch`. `steps`: of every stage, see
  `budget.check`."""

  def __init__(
    self, jobs: Sequence[Job], workdir: pathlib.Path, steps: Steps, processes: int, say=tqdm.tqdm.write
  ):
    self.jobs, self.workdir, self.steps, self.processes = tuple(jobs), workdir, steps, processes
    self.states = {job: runner.state(workdir, job) for job in jobs}
    self.states = {job: runner.WAITING if s == runner.FAILED else s for job, s in self.states.items()}
    finished = (job for job, s in self.states.items() if s == runner.FINISHED)
    self._trained = {key for job in finished for key in job.stages.values()}  # stages that others can use
    self._note_trained(job for job, s in self.states.items() if s != runner.FINISHED)
    self.seconds: dict[str, list[float]] = {}  # of whole runs, by program
    self.kinds: dict[str, Job] = {}
    self._begun: dict[Job, float] = {}  # the part of its steps that was done before this attempt
    self._held: set[Job] = set()
    self._say, self._bars, self._drawn = say, [], 0.0

  def __enter__(self):
    if sys.stderr.isatty():
      self._bars = [
        tqdm.tqdm(total=100, position=number, leave=False, bar_format='{desc} {bar:20} {postfix}')
        for number in range(self.processes + 1)
      ]
    return self

  def __exit__(self, *_):
    for bar in self._bars:
      bar.close()

  def tell(self, job: Job, what: str, seconds: float) -> None:
    """Records and prints an event of a run."""
    self.states[job] = what
    if what == runner.RUNNING:
      self._note_trained(other for other, s in self.states.items() if s == runner.RUNNING)
      self._begun[job] = self._share(job)
      if not self._bars and job not in self._held:
        self._say(f'{self._count()} {job.name}: started')
      return
    if what == runner.FINISHED:
      self._trained |= {*job.stages.values()}
      if (trained := 1 - self._begun.get(job, 0.0)) > LEAST:  # a smaller part does not show the speed
        self.seconds.setdefault(job.program, []).append(seconds / trained)
      event = f'finished ({duration(seconds)})'
    elif what == runner.HELD_UP:
      if job in self._held:
        return
      self._held.add(job)
      if files.is_owned(folder := self.workdir / job.folder):
        event = f'waiting for another process, which is training in {folder}'
      else:
        event = f'waiting. {runner.failure(self.workdir, job)} Trying again every {runner.PAUSE:.0f} s.'
    elif what == runner.FAILED:
      event = self._failed(job, runner.failure(self.workdir, job))
    else:
      event = 'saved and stopped, as asked'
    self._say(f'{self._count()} {job.name}: {event}{self._rest()}')

  def ending(self) -> None:
    """Prints that the runs save and end, which can take a while."""
    text = 'lra-spt: the runs save their states and end; interrupt again to end them at once.'
    tqdm.tqdm.write(text, file=sys.stderr)

  def _failed(self, job, sentence):
    first = self.kinds.setdefault(runner.kind_of(sentence), job)
    alike = '' if first is job else f' (like {first.name}: probably the same cause)'
    return f'FAILED{alike}: {sentence}'

  def _count(self):
    done = sum(state in (runner.FINISHED, runner.FAILED) for state in self.states.values())
    return f'[{done}/{len(self.jobs)}]'

  def _rest(self, running=None):
    """', about 12 min left', or '' if this is not known."""
    left = self.seconds_left(running or {})
    return '' if not left else f', about {duration(left)} left'

  def seconds_left(self, running) -> float | None:
    """The seconds until all runs have ended, None if unknown. A step takes as long as earlier ones of its
    program or, without any, the mean of other programs. A shared stage is trained once."""
    known = {program: statistics.median(seconds) for program, seconds in self.seconds.items()}
    done = [job for job in self.jobs if self.states[job] == runner.FINISHED and job.program in known]
    speeds = [known[job.program] / max(1, self._total(job)) for job in done]
    for job, attempt in running.items():
      elapsed, share = attempt.seconds, self._share(job) - self._begun.get(job, 0.0)
      if share > LEAST:
        known.setdefault(job.program, elapsed / share)
        speeds.append(elapsed / share / max(1, self._total(job)))
    if not speeds:
      return None
    total: dict[str, float] = {}  # of every stage, by its key
    for job in self.jobs:
      if self.states[job] in (*OPEN, runner.RUNNING):
        whole = known.get(job.program)
        speed = whole / max(1, self._total(job)) if whole else statistics.mean(speeds)
        for key, steps in self._left(job).items():  # the run that trains a shared stage has fewest left
          total[key] = min(total.get(key, math.inf), speed * steps)
    return sum(total.values()) / self.processes

  def _note_trained(self, jobs) -> None:
    """Records the stages that unfinished runs have trained."""
    for job in jobs:
      self._trained |= {*job.stages.values()} - {*runner.left(job, self.workdir)}

  def _left(self, job) -> dict[str, int]:
    """{key of a stage: steps that a run still has to train}, from its folder; 0 if another run trained it."""
    stage, step, _ = progress_of(self.workdir / job.folder)
    done = dict.fromkeys(job.stages, 0) | ({} if step is None else {stage: step})
    if stage == 'finetune':
      done['pretrain'] = math.inf
    done |= {name: math.inf for name, key in job.stages.items() if key in self._trained}
    return {job.stages[name]: max(0, steps - done[name]) for name, steps in self.steps[job].items()}

  def _share(self, job) -> float:
    """The part of the steps of a run that is done, by itself or by a run that shares a stage with it."""
    return 1 - sum(self._left(job).values()) / max(1, self._total(job))

  def _total(self, job) -> int:
    return sum(self.steps[job].values())

  def watch(self, running) -> None:
    """Redraws the bars on a terminal: one for all runs, and one for each run that is training."""
    if not self._bars or time.monotonic() - self._drawn < REDRAW:
      return
    self._drawn = time.monotonic()
    done = sum(self._share(job) if s == runner.RUNNING else s not in OPEN for job, s in self.states.items())
    self._draw(0, self._count(), done / len(self.jobs), f'{len(running)} running{self._rest(running)}')
    by_slot = {attempt.slot: job for job, attempt in running.items()}
    for slot in range(self.processes):
      if job := by_slot.get(slot):
        stage, step, _ = progress_of(self.workdir / job.folder)
        took = duration(time.monotonic() - running[job].start)
        self._draw(slot + 1, job.name, self._share(job), f'{stage or "starting"}, step {step or 0:,}, {took}')
      else:
        self._draw(slot + 1, '', 0.0, '')

  def _draw(self, number, name, share, text):
    bar = self._bars[number]
    bar.n = round(100 * share)
    bar.set_description_str(name, refresh=False)
    bar.set_postfix_str(text)
