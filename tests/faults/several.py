"""Two processes of one run over loopback, of which a fault strikes one: the long form of test_several.py.

  python -m tests.faults.several --folder=F     # half an hour; the same command goes on where it was ended

On tests/faults/tiny_run.py, both stages, one CPU device each. After every fault both must end in a minute:
the one that was struck as the fault says, the other with one sentence and status 75 (run it again), or well
where the run was at its end; no traceback. Then the same command runs without a fault, and must end with the
losses and the test metrics of a run that nothing disturbed. The faults, and where, are in `planned`; waits
are those that users have, but processes may take 30 s to come together, not 300.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np

from benchmarks import harness
from tests.faults import struck, zygote

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUTPUT = harness.RESULTS / 'faults_several.json'
LIMIT = 60.0  # seconds in which all have ended
KILLS, SEED = 20, 0
TOLERANCE = 1e-5
AGAIN = 75
# The status of a process that a fault struck.
STATUS = {'SIGTERM': AGAIN, 'SIGINT': AGAIN, 'SIGKILL': -signal.SIGKILL}


@dataclasses.dataclass(frozen=True)
class Plan:
  """A fault, the process that it strikes, and when: at a phase of struck.py or after a share of the time."""

  fault: str
  process: int
  phase: str = ''
  part: float = 0.0

  @property
  def name(self) -> str:
    return f'{self.fault} of {self.process} at {self.phase or format(self.part, ".3f")}'


def planned() -> list[Plan]:
  """SIGTERM and SIGINT at every phase, SIGKILL at random moments of the whole run, the first process lost at
  some phases, clocks that jump, reads that fail once or always, a disk that is full, SIGINT twice."""
  phases = list(struck.PHASES)
  asked = [
    Plan(fault, (number + turn) % 2, phase)
    for turn, fault in enumerate(('SIGTERM', 'SIGINT'))
    for number, phase in enumerate(phases)
  ]
  chosen = random.Random(SEED)
  kills = [Plan('SIGKILL', chosen.randrange(2), part=round(chosen.random(), 3)) for _ in range(KILLS)]
  first = [Plan('SIGKILL', 0, phase) for phase in ('compiling', 'saving', 'testing', 'leaving')]
  clocks = [Plan(fault, process, 'pretraining') for fault in ('later', 'earlier') for process in (0, 1)]
  reads = [Plan('read', 0, 'compiling'), Plan('read', 1, 'compiling'), Plan('reads', 1, 'compiling')]
  twice = [Plan('twice', process, 'pretraining') for process in (0, 1)]
  return [*asked, *kills, *first, *clocks, *reads, Plan('full', 0, 'saving'), *twice]


@dataclasses.dataclass
class Ended:
  """How the processes of a run ended; seconds: from the fault on; at: the last line of progress before it."""

  statuses: list[int | None]
  printed: list[str]
  seconds: float
  at: str = ''


def free_port() -> int:
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    return probe.getsockname()[1]


def run(folder: pathlib.Path, data: pathlib.Path, environment, plan: Plan | None = None, whole=0.0) -> Ended:
  """Both processes on the run in `folder`, to their end, or for LIMIT after the fault. whole: the seconds of
  an undisturbed run, where the plan names a part of them."""
  address = f'127.0.0.1:{free_port()}'
  logs = [folder.with_name(f'{folder.name}.{kind}{i}') for i in (0, 1) for kind in ('out', 'err')]
  note = folder.with_name(f'{folder.name}.struck')
  note.unlink(missing_ok=True)
  environment = os.environ | environment | {struck.NOTE: str(note), 'PYTHONPATH': str(ROOT)}
  environment['PYTHONUNBUFFERED'] = '1'  # the last line of progress is to be there
  started, begin, at = [], time.monotonic(), ''
  with contextlib.ExitStack() as files:
    out, err = ([files.enter_context(log.open('w+')) for log in logs[k::2]] for k in (0, 1))
    for i in (0, 1):
      struck_here = plan is not None and plan.process == i and plan.phase
      fault = (plan.fault, plan.phase) if struck_here else ('none', '')
      command = [sys.executable, ROOT / 'tests/faults/struck.py', *fault, 'train']
      command += [f'--config={ROOT}/tests/faults/tiny_run.py:regime=masked', f'--workdir={folder}']
      command += [f'--config.runtime.data_dir={data}', '--config.runtime.devices=0']
      command += [f'--coordinator={address}', '--processes=2', f'--process={i}']
      options = {'stdout': out[i], 'stderr': err[i], 'env': environment, 'cwd': folder.parent}
      started.append(subprocess.Popen(command, start_new_session=True, **options))
    since = begin
    try:
      while any(process.poll() is None for process in started):
        now = time.monotonic()
        if plan and plan.part and not at and now - begin >= plan.part * whole:
          lines = logs[0].read_text().splitlines()
          at, since = lines[-1] if lines else 'nothing yet', now
          started[plan.process].send_signal(getattr(signal, plan.fault))
        elif note.exists() and not at:
          at, since = plan.phase, float(note.read_text() or now)
        if now - since > (LIMIT if at else 10 * LIMIT):
          break
        time.sleep(0.05)
      statuses = [process.poll() for process in started]
      seconds = time.monotonic() - since
    finally:
      for process in started:
        with contextlib.suppress(ProcessLookupError):
          os.killpg(process.pid, signal.SIGKILL)
        process.wait()
  return Ended(statuses, [log.read_text() for log in logs[1::2]], round(seconds, 1), at)


def sentences(printed: str) -> list[str]:
  """The messages of a process to its user, without logs of libraries."""
  return [line for line in printed.splitlines() if line.startswith('lra-spt: ')]


def wrong_end(plan: Plan, ended: Ended) -> str:
  """The deviation in how a struck run ended, or ''."""
  if None in ended.statuses:
    return f'it hung: {ended.statuses} after {ended.seconds:.0f} s'
  if any('Traceback' in printed or 'thread started' in printed for printed in ended.printed):
    return f'a traceback: {" ".join(ended.printed)[-3000:]}'
  if not ended.at:
    return f'it was not struck, and ended with {ended.statuses}'
  theirs, others = ended.statuses[plan.process], ended.statuses[1 - plan.process]
  if plan.fault in ('later', 'earlier', 'read'):
    allowed, allowed_others = {0}, {0}
  elif plan.fault == 'twice':
    allowed, allowed_others = {130}, {2, AGAIN}
  elif plan.fault in ('reads', 'full'):
    allowed = allowed_others = {2}
  else:
    allowed, allowed_others = {STATUS[plan.fault], 0}, {AGAIN, 0}
    if plan.phase == 'joining' or plan.part:  # where nothing heeds signals yet
      allowed |= {-signal.SIGTERM, 130} if plan.fault != 'SIGKILL' else set()
  if theirs not in allowed or others not in allowed_others:
    return f'they ended with {ended.statuses}: {" ".join(ended.printed)[-2000:]}'
  for status, printed in zip(ended.statuses, ended.printed, strict=True):
    messages = [line for line in sentences(printed) if 'interrupt again' not in line]
    if status > 0 and len(messages) != 1:
      return f'one ended with {status} and said {printed[-2000:]!r}'
  return ''


def numbers(folder: pathlib.Path) -> dict[str, float]:
  """Losses of every step and of every evaluation, and the metrics of the test."""
  actual = {}
  for path in folder.glob('*/metrics.jsonl'):
    for line in map(json.loads, path.read_text().splitlines()):
      actual[f'{path.parent.name} {line["step"]} {line["split"]}'] = line['loss']
  test = json.loads((folder / 'result.json').read_text())['metrics']['test']
  return actual | {f'test {name}': value for name, value in test.items()}


def difference(folder: pathlib.Path, expected: dict[str, float]) -> float:
  """The largest one, relative; infinite where other steps were taken."""
  actual = numbers(folder)
  if actual.keys() != expected.keys():
    return float('inf')
  return max(abs(actual[key] - expected[key]) / max(abs(expected[key]), 1e-9) for key in expected)


def too_long(folder: pathlib.Path, seconds: float) -> bool:
  """True where stages report more seconds than the processes took, as after a jump of the clock."""
  stages = json.loads((folder / 'result.json').read_text())['stages'].values()
  return not 0 < sum(stage['seconds'] for stage in stages) <= seconds


def tried(folder, data, environment, plan: Plan, expected, whole) -> dict:
  """Strikes a fresh run, and lets it end; a row of the records."""
  shutil.rmtree(folder, ignore_errors=True)
  begin, moment = time.monotonic(), plan
  ended = run(folder, data, environment, moment, whole)
  while not ended.at and plan.part:  # the run was faster than the one that nothing disturbed
    shutil.rmtree(folder)
    moment = dataclasses.replace(moment, part=0.95 * moment.part)
    ended = run(folder, data, environment, moment, whole)
  problem = wrong_end(plan, ended)
  again = run(folder, data, environment)
  apart = difference(folder, expected) if again.statuses == [0, 0] else float('inf')
  if not problem and apart > TOLERANCE:
    problem = (
      f'started again it ended with {again.statuses}, {apart:.2g} apart: {" ".join(again.printed)[-2000:]}'
    )
  if not problem and too_long(folder, time.monotonic() - begin):
    problem = 'its stages took longer than it did'
  messages = {line.removeprefix('lra-spt: ') for printed in ended.printed for line in sentences(printed)}
  messages, at = (
    [text.replace(str(folder.parent), 'F') for text in texts] for texts in (messages, [ended.at])
  )
  row = dataclasses.asdict(plan) | {'at': at[0], 'statuses': ended.statuses, 'seconds': ended.seconds}
  row |= {'sentences': sorted(messages), 'stack_dump': any('    @ ' in printed for printed in ended.printed)}
  return row | {'difference': apart if np.isfinite(apart) else None, 'problem': problem}


def summary(rows: list[dict]) -> list[dict]:
  """A row for each fault and where it strikes; where: a phase, '' for random moments."""
  groups = collections.defaultdict(list)
  for row in rows:
    groups[row['fault'], row['phase']].append(row)
  return [
    {
      'fault': fault,
      'where': phase,
      'tries': len(group),
      'slowest': max(row['seconds'] for row in group),
      'difference': max(row['difference'] for row in group)
      if all(row['difference'] is not None for row in group)
      else None,
      'problems': sum(bool(row['problem']) for row in group),
    }
    for (fault, phase), group in groups.items()
  ]


def main(argv: list[str] | None = None) -> int:
  """0 when nothing was found."""
  parser = argparse.ArgumentParser('python -m tests.faults.several', description=__doc__)
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.add_argument('--folder', type=pathlib.Path, required=True, help='to work in; kept')
  parser.add_argument('--only', default='', help='the faults whose name begins so, as in "SIGTERM of 1"')
  parser.add_argument('--parallel', type=int, default=1, help='runs at once (%(default)s)')
  parser.add_argument('--json', type=pathlib.Path, default=OUTPUT, help='output (%(default)s)')
  arguments = parser.parse_args(argv)
  folder = arguments.folder.absolute()
  folder.mkdir(parents=True, exist_ok=True)
  head = harness.report(
    '', 'two processes of one run over loopback, of which one is struck', 'orbax-checkpoint'
  )
  head['command'] = 'python -m tests.faults.several'
  environment = zygote.compiled_in(folder) | {'XLA_FLAGS': '--xla_force_host_platform_device_count=1'}
  data = folder / 'data'
  if not data.exists():
    command = [sys.executable, '-m', 'lra_spt', 'prepare', 'stripes', f'--data_dir={data}', '--examples=40']
    subprocess.run(command, check=True, env=os.environ | {'PYTHONPATH': str(ROOT)})
  for _ in range(2):  # the second one has compiled programs
    shutil.rmtree(folder / 'undisturbed', ignore_errors=True)
    whole = run(folder / 'undisturbed', data, environment)
    assert whole.statuses == [0, 0], whole
  expected = numbers(folder / 'undisturbed')
  records = folder / 'records.jsonl'
  rows = [json.loads(line) for line in records.read_text().splitlines()] if records.exists() else []
  done = {(row['fault'], row['process'], row['phase'], row['part']) for row in rows}
  left = [plan for plan in planned() if dataclasses.astuple(plan) not in done]
  left = [plan for plan in left if plan.name.startswith(arguments.only)]

  def work(numbered):
    number, plan = numbered
    row = tried(folder / f'run{number}', data, environment, plan, expected, whole.seconds)
    return row | {'commit': head['commit']}

  with concurrent.futures.ThreadPoolExecutor(arguments.parallel) as pool:
    for row in pool.map(work, enumerate(left)):
      rows.append(row)
      with records.open('a') as file:
        file.write(json.dumps(row) + '\n')
      print(json.dumps(row), flush=True)
  problems = [row for row in rows if row['problem']]
  counted = {'seconds_undisturbed': whole.seconds, 'tries': len(rows), 'problems': problems}
  harness.write(arguments.json, head | counted | {'rows': summary(rows), 'each': rows})
  return int(bool(problems))


if __name__ == '__main__':
  sys.exit(main())
