"""Runs the jobs of a study, each in its own process, so a failed run or a dead process does not affect the
others. It needs no jax.
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
from lra_spt.distributed import children
from lra_spt.errors import ConfigError, DamagedFile, InUse, NonFiniteError, touching
from lra_spt.report.runs import run_folder
from lra_spt.studies.study import Job, command, together

GRACE = 120.0  # seconds that a process gets to save its state and end
AGAIN = 75  # exit status of a run that saved its state after a signal
PAUSE = 120.0  # seconds before the next attempt of a run that needs a folder of another process
# jax's variables that limit how much of a GPU's memory a process takes; without them it is most of it.
MEMORY = 'XLA_PYTHON_CLIENT_PREALLOCATE', 'XLA_PYTHON_CLIENT_MEM_FRACTION', 'XLA_PYTHON_CLIENT_ALLOCATOR'
WAITING, RUNNING, FINISHED, FAILED, HELD_UP = 'waiting', 'running', 'finished', 'failed', 'held up'
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
# A scheduler may send SIGTERM to all processes of a study, and a second SIGTERM would end a run unsaved.
_ASK = signal.SIGUSR2


class Attempt:
  """A running process that trains one job or several. `slot` is the number of its devices and cores. Its
  output is in the log of the first job; the logs of the others name that file."""

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
    words = [*children.python(), '-m', 'lra_spt', *command(jobs, workdir, stages)[1:]]
    words += [f'--register={path}' for path in register]
    words += ['--processes=1']  # also if the study is itself a process in the step of a cluster
    with self.log.open('ab') as log:
      self.logged_before = log.tell()  # bytes of earlier attempts
      self.process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment(workdir, slot, slots),
        process_group=0,  # Ctrl-C reaches only us, and we end the runs. A new session would ignore `nice`
        preexec_fn=_end_with_parent if sys.platform == 'linux' else None,
      )
    _give_cores(self.process.pid, slot, slots)

  @property
  def seconds(self) -> float:
    """The time so far, divided by the number of jobs."""
    return (time.monotonic() - self.start) / len(self.jobs)

  def ask_to_end(self) -> None:
    """Sends a signal at which the run saves its state and ends."""
    with contextlib.suppress(ProcessLookupError):
      self.process.send_signal(_ASK)

  def end(self) -> None:
    """Kills the process and its children."""
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self.process.pid, signal.SIGKILL)
    self.process.wait()


def _end_with_parent():
  """Makes a child get _ASK when its parent dies, so that no run continues unseen. The child then saves."""
  ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, _ASK)


def environment(workdir: pathlib.Path, slot: int, slots: int) -> dict[str, str]:
  """The environment of a run's process: one cache for all programs and, with several processes, one GPU."""
  variables = dict(os.environ)
  variables.setdefault('JAX_COMPILATION_CACHE_DIR', str(run_folder.cache_of_programs(workdir)))
  variables.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.5')
  gpus = _gpus()
  if slots > 1 and gpus:
    variables['CUDA_VISIBLE_DEVICES'] = gpus[slot % len(gpus)]
  return variables


def check_processes(processes: int) -> None:
  """Raises ConfigError if several processes would each take most of the memory of one GPU, jax's default."""
  gpus = _gpus()
  if gpus and processes > max(1, len(gpus)) and not any(os.environ.get(name) for name in MEMORY):
    there = 'there is one GPU' if len(gpus) == 1 else f'there are {len(gpus)} GPUs'
    raise ConfigError(
      f'--processes is {processes}, but {there}, and a run takes most of the memory of a GPU: give '
      f'--processes={len(gpus)}, or set XLA_PYTHON_CLIENT_PREALLOCATE=false for runs that fit together.'
    )


def _gpus() -> list[str]:
  """The GPUs that CUDA_VISIBLE_DEVICES may name. There are none if it hides all, if JAX_PLATFORMS names no
  GPU, or without nvidia-smi."""
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
  """Splits the cores of this process among the slots. XLA starts one thread per core that it sees."""
  if slots == 1 or not hasattr(os, 'sched_setaffinity'):
    return
  cores = sorted(os.sched_getaffinity(0))
  share = cores[slot::slots] or [cores[slot % len(cores)]]
  with contextlib.suppress(OSError):
    os.sched_setaffinity(process, share)


def state(workdir: pathlib.Path, job: Job) -> str:
  """Returns WAITING, FINISHED or FAILED, from the folder of a run."""
  folder = workdir / job.folder
  if (folder / run_folder.RESULT).exists():
    return FAILED if _damage(folder) else FINISHED
  return FAILED if (folder / run_folder.FAILURE).exists() else WAITING


def check(workdir: pathlib.Path, jobs: Sequence[Job]) -> None:
  """Raises ConfigError if a finished run had another config.

  It compares keys that both configs have, options of mixers, and weights to start from. It also checks runs
  with seeds that these jobs do not have, because a cell is the mean of all its runs. For recorded predictions
  it compares the fields of their result.
  """
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
  if lines := differences(run_folder.read_result(folder), job, folder.name.removeprefix('seed')):
    raise ConfigError(
      f'{folder} has a result of a different config than {job.place} has now; choose another --workdir, undo '
      'the change, or move that folder away:\n' + '\n'.join(lines)
    )


def differences(result: dict, job: Job, seed: str) -> list[str]:
  """Lines that say in which config or code a result is not that of a job with this seed, see `check`."""
  changes = _changes(result, job.config, seed)
  if 'code' in result:
    from lra_spt.runs import build, user_code

    now = user_code.as_begun(result, {'code': build.resolve(job.config).user_code})
    changes += loading.difference({'code': result['code']}, now).splitlines()
  # A key that one config lacks was added later, with a default that changes nothing. Only options of mixers
  # and weights count even then.
  always = 'model.mixer.', 'model.mixers.', 'model.weights'
  return [line for line in changes if '(absent)' not in line or line.startswith(always)]


def _changes(result, config, seed: str) -> list[str]:
  """The differences between the config of a result and `config` with the seed in the name of the folder."""
  seed = int(seed) if seed.isdecimal() else config.seed
  if before := result.get('config'):
    return loading.difference(before, loading.identity(config) | {'seed': seed}).splitlines()
  causal = get_regime(config.regime).causal or config.causal
  wanted = {'task': config.task, 'model': config.model.name, 'regime': config.regime, 'causal': causal}
  wanted |= {'protocol': config.protocol, 'seed': seed}
  return loading.difference({key: result.get(key) for key in wanted}, wanted).splitlines()


def failure(workdir: pathlib.Path, job: Job) -> str:
  """Returns the sentence with which a run failed, or ''."""
  folder = workdir / job.folder
  if (folder / run_folder.RESULT).exists():
    return _damage(folder)
  return _note(folder, 'error')


def failed_by_its_values(workdir: pathlib.Path, job: Job) -> bool:
  """True if the run failed because a number was not finite: it would fail again on any machine."""
  return _note(workdir / job.folder, 'kind') == NonFiniteError.__name__


def _note(folder, key: str) -> str:
  """An entry of failure.json, the sentence or the class of an error; '' if none is recorded."""
  try:
    return (run_folder.read_failure(folder) or {}).get(key, '')
  except (DamagedFile, OSError):
    return ''


def _damage(folder) -> str:
  """Returns a sentence on a damaged result.json, or ''."""
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
  """Runs the jobs that are not finished; an interrupted run continues where it stopped.

  Args:
    jobs: runs from `study.jobs`, in the order in which they start.
    workdir: folder of the study, which the caller owns.
    processes: number of runs at a time, each with a part of the cores, or a GPU.
    register: files for the runs' --register.
    stages: folder for the stages; None: that of the study.
    tell: called with a job, its new state and its seconds. States are RUNNING, FINISHED, FAILED, WAITING (it
      saved and ended after a signal) and HELD_UP (another process owns a folder that it needs; it is tried
      again).
    watch: called a few times a second with the running attempts.
    ending: called when runs save and end, which may take as long as GRACE; a second KeyboardInterrupt kills
      them.

  Returns:
    {job: FINISHED, FAILED or WAITING}.

  Raises:
    ConfigError: see `check`.
    KeyboardInterrupt: all runs have saved their state; Killed if some have not.
  """
  check(workdir, jobs)
  states = {job: FINISHED if state(workdir, job) == FINISHED else WAITING for job in jobs}
  queue = together([job for job in jobs if states[job] == WAITING])
  running: dict[Job, Attempt] = {}
  paused: dict[Job, float] = {}  # until when
  waiting: set[Job] = set()  # for another process, such as a run of an earlier command that still ends
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
  """Returns the first group that can train, or None. A group can train if no other process owns its folders,
  and no other run is training a stage that it needs."""
  busy = {key for job in (*running, *held) for key in left(job, workdir)}
  free = (group for group in queue if not any(job in held or busy & {*job.stages.values()} for job in group))
  return next(free, None)


def left(job: Job, workdir: pathlib.Path) -> list[str]:
  """Keys of the stages that a run has not finished; its folder has only stages of this run."""

  def done(name):
    return any(
      (stage / run_folder.STAGE).exists() for stage in run_folder.stages_in(workdir / job.folder, (name,))
    )

  return [key for name, key in job.stages.items() if not done(name)]


def _outcome(job, attempt, workdir):
  """Returns the state of a job after its process ended, and records a failure that the run could not."""
  status, folder = attempt.process.returncode, workdir / job.folder
  if (folder / run_folder.RESULT).exists():
    return FINISHED
  if status == AGAIN:
    return WAITING
  folders = [workdir / one.folder for one in attempt.jobs]
  if any(_note(each, 'kind') == InUse.__name__ or files.is_owned(each) for each in folders):
    return HELD_UP
  if not (folder / run_folder.FAILURE).exists():
    run_folder.write_failure(folder, RunDied(_last_words(attempt.log, attempt.logged_before, status)))
  return FAILED


class Killed(KeyboardInterrupt):
  """A study was stopped and killed runs that had not saved; its argument is their number."""


class RunDied(RuntimeError):
  """The process of a run ended without a result and without an error."""


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
  """The sentence of a failure without paths and numbers; equal for failures of one kind."""
  return re.sub(r'\S*/\S*|\d+(\.\d+)?', '*', sentence)[:200]


def _end(running, ending=lambda: None) -> int:
  """Lets all runs save and end; after GRACE, or a second Ctrl-C, it kills them. Returns the number of killed
  runs."""
  attempts = set(running.values())
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
