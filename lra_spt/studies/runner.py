"""Runs the jobs of a study, each in its own process, so a failed run or a dead process does not affect the
others. Does not need jax.
"""

import contextlib
import ctypes
import functools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from lra_spt import files
from lra_spt.config import loading
from lra_spt.config.regimes import get_regime
from lra_spt.errors import ConfigError, DamagedFile, InUse, NonFiniteError, touching
from lra_spt.report.runs import run_folder
from lra_spt.studies.study import Job, command, together

GRACE = 120.0  # seconds in which a process that was asked to end saves its state
AGAIN = 75  # exit status of a run that saved when it was asked to end
PAUSE = 120.0  # seconds until a run is tried again that needs a folder which another process owns
# Of jax: how much of a GPU's memory a process takes, where that is not most of it.
MEMORY = 'XLA_PYTHON_CLIENT_PREALLOCATE', 'XLA_PYTHON_CLIENT_MEM_FRACTION', 'XLA_PYTHON_CLIENT_ALLOCATOR'
WAITING, RUNNING, FINISHED, FAILED, HELD_UP = 'waiting', 'running', 'finished', 'failed', 'held up'
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


class Attempt:
  """Jobs that one process trains, mostly one, while it runs. slot: number of the devices and cores that it
  has. What it says is in the log of the first job, to which those of the others point."""

  def __init__(self, jobs: list[Job], workdir: pathlib.Path, slot: int, slots: int, register, stages):
    self.jobs, self.slot, self.start = jobs, slot, time.monotonic()
    self.log = workdir / jobs[0].folder / run_folder.LOG
    for job in jobs:
      folder = workdir / job.folder
      with touching(folder, 'written to'):
        folder.mkdir(parents=True, exist_ok=True)
        run_folder.forget_failure(folder)
        with (folder / run_folder.LOG).open('a', encoding='utf-8') as log:
          if job is not jobs[0]:
            log.write(f'Trained together with {jobs[0].folder.name}, see its {run_folder.LOG}.\n')
    words = [sys.executable, '-m', 'lra_spt', *command(jobs, workdir, stages)[1:]]
    words += [f'--register={path}' for path in register]
    with self.log.open('ab') as log:
      self.said_before = log.tell()  # bytes of earlier attempts
      self.process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment(workdir, slot, slots),
        process_group=0,  # Ctrl-C is ours: they are asked to save. A session of its own would not heed `nice`
        preexec_fn=_end_with_parent if sys.platform == 'linux' else None,
      )
    _give_cores(self.process.pid, slot, slots)

  @property
  def seconds(self) -> float:
    """Each job's share of its time so far."""
    return (time.monotonic() - self.start) / len(self.jobs)

  def ask_to_end(self) -> None:
    """Asks the run to save and end."""
    with contextlib.suppress(ProcessLookupError):
      self.process.terminate()

  def end(self) -> None:
    """Ends it and what it started, at once."""
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self.process.pid, signal.SIGKILL)
    self.process.wait()


def _end_with_parent():
  """In a child: SIGTERM when the parent dies, so that nothing trains on unseen. After that it saves."""
  ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)


def environment(workdir: pathlib.Path, slot: int, slots: int) -> dict[str, str]:
  """Of a run's process: its GPU, where there are several processes, and one cache for all programs."""
  found = dict(os.environ)
  found.setdefault('JAX_COMPILATION_CACHE_DIR', str(run_folder.cache_of_programs(workdir)))
  found.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.5')
  gpus = _gpus()
  if slots > 1 and gpus:
    found['CUDA_VISIBLE_DEVICES'] = gpus[slot % len(gpus)]
  return found


def check_processes(processes: int) -> None:
  """Raises a ConfigError where several processes would each take most of one GPU's memory, as jax does unless
  it is told otherwise."""
  gpus = _gpus()
  if gpus and processes > max(1, len(gpus)) and not any(os.environ.get(name) for name in MEMORY):
    there = 'there is one GPU' if len(gpus) == 1 else f'there are {len(gpus)} GPUs'
    raise ConfigError(
      f'--processes is {processes}, but {there}, and a run takes most of the memory of its own: give '
      f'--processes={len(gpus)}, or set XLA_PYTHON_CLIENT_PREALLOCATE=false for runs that fit together.'
    )


def _gpus() -> list[str]:
  """What CUDA_VISIBLE_DEVICES may name, one by one; none where it hides all, where jax is to use no GPU, or
  without the driver's tool."""
  platforms = os.environ.get('JAX_PLATFORMS', '')
  if platforms and not {'cuda', 'gpu'} & {*platforms.split(',')}:
    return []
  if (given := os.environ.get('CUDA_VISIBLE_DEVICES')) is not None:
    return [name for name in given.split(',') if name.strip()]
  return _all_gpus()


@functools.cache
def _all_gpus() -> list[str]:
  if shutil.which('nvidia-smi') is None:
    return []
  try:
    done = subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True, check=False, timeout=60)
  except (OSError, subprocess.TimeoutExpired) as error:
    raise ConfigError(
      'nvidia-smi -L does not say which GPUs there are; name them (CUDA_VISIBLE_DEVICES=0,1), or none '
      '(JAX_PLATFORMS=cpu).'
    ) from error
  return [str(number) for number, line in enumerate(done.stdout.splitlines()) if line.startswith('GPU ')]


def _give_cores(process: int, slot: int, slots: int) -> None:
  """Splits the cores of this process among the slots; XLA makes as many threads as it finds cores."""
  if slots == 1 or not hasattr(os, 'sched_setaffinity'):
    return
  cores = sorted(os.sched_getaffinity(0))
  share = cores[slot::slots] or [cores[slot % len(cores)]]
  with contextlib.suppress(OSError):
    os.sched_setaffinity(process, share)


def state(workdir: pathlib.Path, job: Job) -> str:
  """WAITING, FINISHED or FAILED, from the folder of a run."""
  folder = workdir / job.folder
  if (folder / run_folder.RESULT).exists():
    return FAILED if _damage(folder) else FINISHED
  return FAILED if (folder / run_folder.FAILURE).exists() else WAITING


def check(workdir: pathlib.Path, jobs: Sequence[Job]) -> None:
  """Raises a ConfigError where what is finished had another config; of keys that both have, options of mixers
  and weights to start from. Also where it has a seed that these jobs have not, for a cell is the mean of all;
  and where it was recorded, of what it is said to be."""
  named = {job.folder for job in jobs}
  for job in jobs:
    _check(workdir / job.folder, job)
  for cell, job in {job.folder.parent: job for job in jobs}.items():
    for folder in sorted((workdir / cell).glob('seed*')):
      if cell / folder.name not in named:
        _check(folder, job)


def _check(folder, job: Job) -> None:
  if not (folder / run_folder.RESULT).exists() or _damage(folder):
    return
  result = run_folder.read_result(folder)
  changes = _changes(result, job.config, folder.name.removeprefix('seed'))
  if 'code' in result:
    from lra_spt.runs import build, user_code

    now = user_code.as_begun(result, {'code': build.code_of(job.config)})
    changes += loading.difference({'code': result['code']}, now).splitlines()
  # Keys join configs over time, with values that change nothing; options of a mixer are of its file alone.
  own = 'model.mixer.', 'model.weights'
  if lines := [line for line in changes if '(absent)' not in line or line.startswith(own)]:
    raise ConfigError(
      f'{folder} has a result of a different config than {job.place} has now; choose another --workdir, undo '
      'the change, or move that folder away:\n' + '\n'.join(lines)
    )


def _changes(result, config, seed: str) -> list[str]:
  """In what a result is of another config than one with the seed that its folder is named after."""
  seed = int(seed) if seed.isdecimal() else config.seed
  if before := result.get('config'):
    return loading.difference(before, loading.identity(config) | {'seed': seed}).splitlines()
  causal = get_regime(config.regime).causal or config.causal
  wanted = {'task': config.task, 'model': config.model.name, 'regime': config.regime, 'causal': causal}
  wanted |= {'protocol': config.protocol, 'seed': seed}
  return loading.difference({key: result.get(key) for key in wanted}, wanted).splitlines()


def failure(workdir: pathlib.Path, job: Job) -> str:
  """The sentence with which a run failed; '' where it did not."""
  folder = workdir / job.folder
  if (folder / run_folder.RESULT).exists():
    return _damage(folder)
  try:
    note = run_folder.read_failure(folder) or {}
  except (DamagedFile, OSError):
    return ''
  return note.get('error', '')


def failed_by_its_values(workdir: pathlib.Path, job: Job) -> bool:
  """Whether it failed since a number was not finite, and so would again; by nothing that the machine did."""
  return _kind(workdir / job.folder) == NonFiniteError.__name__


def _kind(folder) -> str:
  """The class of the error with which a run failed; '' where none is noted."""
  try:
    return (run_folder.read_failure(folder) or {}).get('kind', '')
  except (DamagedFile, OSError):
    return ''


def _damage(folder) -> str:
  """What is wrong with a result.json; '' for nothing."""
  try:
    run_folder.read_result(folder)
  except (DamagedFile, OSError) as error:
    return str(error)
  return ''


def run_all(
  jobs: Sequence[Job],
  workdir: pathlib.Path,
  *,
  processes: int = 1,
  register: Sequence[str] = (),
  stages: pathlib.Path | None = None,
  tell: Callable[[Job, str, float], None] = lambda job, what, seconds: None,
  watch: Callable[[dict[Job, Attempt]], None] = lambda running: None,
  ending: Callable[[], None] = lambda: None,
) -> dict[Job, str]:
  """Runs what is not finished; a run that was interrupted goes on where it stopped.

  Args:
    jobs: of `study.jobs`, in the order in which they start.
    workdir: folder of the study, which the caller owns.
    processes: how many run at a time, each with its part of the cores, or its GPU.
    register: files for the runs' --register.
    stages: folder in which stages are kept; None for the study's own.
    tell: called when a run starts, finishes or fails, with RUNNING, FINISHED, FAILED, WAITING (it was asked
      to end) or HELD_UP (another process has a folder that it needs; it is tried again) and its seconds.
    watch: called a few times a second with the attempts that run.
    ending: called when runs are asked to save and end, which may take as long as GRACE; a second
      KeyboardInterrupt ends them at once.

  Returns:
    {job: FINISHED, FAILED or WAITING}.

  Raises:
    ConfigError: as `check`.
    KeyboardInterrupt: after all runs have saved their state; Killed where some had not.
  """
  check(workdir, jobs)
  states = {job: FINISHED if state(workdir, job) == FINISHED else WAITING for job in jobs}
  queue = together([job for job in jobs if states[job] == WAITING])
  running: dict[Job, Attempt] = {}
  paused: dict[Job, float] = {}  # until when
  waiting: set[Job] = set()  # for another process, such as what an earlier command left to end
  try:
    while queue or running:
      while free := set(range(processes)) - {attempt.slot for attempt in running.values()}:
        held = {job for group in queue for job in group if files.is_owned(workdir / job.folder)}
        for job in held - waiting:
          tell(job, HELD_UP, 0.0)
        waiting = held
        ready = [group for group in queue if paused.get(group[0], 0.0) <= time.monotonic()]
        if (group := _next(ready, running, held, workdir)) is None:
          break
        queue.remove(group)
        for job in group:
          tell(job, RUNNING, 0.0)
        running |= dict.fromkeys(group, Attempt(group, workdir, min(free), processes, register, stages))
      for job, attempt in list(running.items()):
        if attempt.process.poll() is not None:
          del running[job]
          states[job] = _outcome(job, attempt, workdir)
          tell(job, states[job], attempt.seconds)
          if states[job] == HELD_UP and attempt.jobs not in queue:
            paused[attempt.jobs[0]] = time.monotonic() + PAUSE
            queue.append(attempt.jobs)
      watch(running)
      time.sleep(0.1)
  except BaseException as error:
    if (killed := _end(running, ending)) and isinstance(error, KeyboardInterrupt):
      raise Killed(killed) from error
    raise
  return states


def _next(queue, running, held, workdir):
  """What can train first that is not held by another process and needs no stage which is just being trained,
  here or there; None where there is none."""
  busy = {key for job in (*running, *held) for key in left(job, workdir)}
  free = (group for group in queue if not any(job in held or busy & {*job.stages.values()} for job in group))
  return next(free, None)


def left(job: Job, workdir: pathlib.Path) -> list[str]:
  """Keys of the stages that a run has yet to finish; its folder has no other run's."""

  def done(name):
    return any(
      (kept / run_folder.STAGE).exists() for kept in run_folder.stages_in(workdir / job.folder, (name,))
    )

  return [key for name, key in job.stages.items() if not done(name)]


def _outcome(job, attempt, workdir):
  """What a process that ended leaves; notes a failure that the run itself could not."""
  status, folder = attempt.process.returncode, workdir / job.folder
  if (folder / run_folder.RESULT).exists():
    return FINISHED
  if status == AGAIN:
    return WAITING
  folders = [workdir / one.folder for one in attempt.jobs]
  if any(_kind(each) == InUse.__name__ or files.is_owned(each) for each in folders):
    return HELD_UP
  if not (folder / run_folder.FAILURE).exists():
    run_folder.write_failure(folder, RunDied(_last_words(attempt.log, attempt.said_before, status)))
  return FAILED


class Killed(KeyboardInterrupt):
  """A study was stopped before so many of its runs had saved, which were ended at once."""


class RunDied(RuntimeError):
  """A run's process ended without a result and without saying why."""


def _last_words(log, start, status) -> str:
  ended = f'was ended by signal {-status}' if status < 0 else f'ended with status {status}'
  if status == -signal.SIGKILL:
    ended += ' (the system may have run out of memory)'
  with log.open('rb') as file:
    file.seek(max(start, log.stat().st_size - 20_000))
    lines = file.read().decode('utf-8', errors='replace').strip().splitlines()
  last = lines[-1].strip().removeprefix('lra-spt: ')[:500] if lines else 'it printed nothing'
  return last if status == 2 else f'its process {ended}; its last line: {last}'


def kind_of(sentence: str) -> str:
  """What two failures have in common: the sentence without paths and numbers."""
  return re.sub(r'\S*/\S*|\d+(\.\d+)?', '*', sentence)[:200]


def _end(running, ending=lambda: None) -> int:
  """Has all save and end; after GRACE, or a second Ctrl-C, ends them at once. Returns how many runs that
  befell."""
  attempts = set(running.values())  # each is asked once: a second signal would end it at once
  limit = time.monotonic() + GRACE
  with contextlib.suppress(KeyboardInterrupt):
    for attempt in attempts:
      attempt.ask_to_end()
    if attempts:
      ending()
    while any(a.process.poll() is None for a in attempts) and time.monotonic() < limit:
      time.sleep(0.1)
  late = [attempt for attempt in attempts if attempt.process.poll() is None]
  for attempt in late:
    attempt.end()
  return sum(len(attempt.jobs) for attempt in late)
