"""Functions with which all benchmarks measure and report.

The load of a shared machine varies, so contenders take turns. A ratio is computed in each turn, and the
median is reported: of wall time, and of processor time, which a busy machine disturbs less.
"""

import argparse
import datetime
import importlib.metadata
import inspect
import json
import math
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time

import jax

from lra_spt import files
from lra_spt.cli import huge_pages
from lra_spt.runs import provenance

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'benchmarks' / 'results'
SLOW = 5.0  # a step that takes more seconds has only two turns
FEWEST_SAMPLES, MOST_SAMPLES, SAMPLING_SECONDS = 5, 200, 1.0
TURN = 1.5  # least seconds of a worker's turn


# Flags.


def parser(run, output: str | None = None) -> argparse.ArgumentParser:
  """The parser of a benchmark, the function `run_NAME`, whose docstring is the help.

  output: name of the result file, for the flag --json; None where there is none.
  """
  raw, name = argparse.RawDescriptionHelpFormatter, run.__name__.removeprefix('run_')
  made = argparse.ArgumentParser(
    f'python -m benchmarks {name}', description=inspect.getdoc(run), formatter_class=raw
  )
  if output:
    made.add_argument('--json', type=pathlib.Path, default=RESULTS / output, help='output (%(default)s)')
  return made


def add_names(made: argparse.ArgumentParser, flag: str, known, default=None) -> None:
  """Adds a flag that takes some of the `known` names, separated by commas; without it all, or `default`."""
  known = [*known]

  def names(text):
    chosen = text.split(',')
    if unknown := [name for name in chosen if name not in known]:
      raise argparse.ArgumentTypeError(f'there is no {unknown[0]!r}; choose from {", ".join(known)}')
    return chosen

  given = known if default is None else [*default]
  made.add_argument(flag, type=names, default=given, metavar='NAME,...', help=f'default: {",".join(given)}')


def add_quick(made: argparse.ArgumentParser, rounds: int) -> None:
  """Adds --rounds, the number of turns, and --quick."""
  made.add_argument('--rounds', type=int, default=rounds, help='turns of each (%(default)s)')
  made.add_argument(
    '--quick', action='store_true', help='toy sizes, one turn: shows that the command works, measures nothing'
  )


def add_resume(made: argparse.ArgumentParser, limit: float | None = None) -> None:
  """Adds the flags of a benchmark whose cases may take minutes each, see `fill`.

  limit: seconds that a case may take, where it can be stopped.
  """
  if limit:
    made.add_argument('--limit', type=float, default=limit, help='seconds for each (%(default)s)')
  made.add_argument('--resume', action='store_true', help='keep the rows that --json has already')


def cpu_only() -> None:
  """Makes this process and those that it starts leave accelerators alone; call it before jax is used."""
  os.environ['JAX_PLATFORMS'] = 'cpu'
  jax.config.update('jax_platforms', 'cpu')


# Time.


def timed(run, *, children: bool = False) -> dict[str, float]:
  """Wall and processor seconds of one call; with `children` those of processes that ended meanwhile count."""

  def clocks():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), time.process_time() + children * (used.ru_utime + used.ru_stime)

  before = clocks()
  run()
  wall, processor = (b - a for a, b in zip(before, clocks(), strict=True))
  return {'seconds': wall, 'processor_seconds': processor}


def turns(runs: dict, rounds: int) -> dict:
  """{name: samples} of functions that take turns; a first round is not counted."""
  for run in runs.values():
    run()
  samples = {name: [] for name in runs}
  for _ in range(rounds):
    for name, run in runs.items():
      samples[name].append(timed(run))
  return samples


def sampled(run, sampling: float = SAMPLING_SECONDS) -> list[dict[str, float]]:
  """Samples of a function alone, as many as fit into `sampling` seconds; two calls are not counted."""
  samples = []
  for _ in range(2):
    run()
  spent = 0.0
  while len(samples) < FEWEST_SAMPLES or (spent < sampling and len(samples) < MOST_SAMPLES):
    samples.append(timed(run))
    spent += samples[-1]['seconds']
  return samples


def milliseconds(samples, per: int = 1) -> dict[str, float]:
  """The columns of a row about time: of a sample, or of each of the `per` equal parts of one."""

  def of(choose, key):
    return round(1e3 / per * choose(sample[key] for sample in samples), 3)

  return {
    'milliseconds': of(statistics.median, 'seconds'),
    'fastest_milliseconds': of(min, 'seconds'),
    'processor_milliseconds': of(statistics.median, 'processor_seconds'),
    'rounds': len(samples),
  }


def ratios(above, below, scale: float = 1.0) -> dict[str, float]:
  """Medians of time over time, multiplied by `scale`, over the turns that both had."""
  pairs = list(zip(above, below, strict=False))
  return {
    clock: round(scale * statistics.median(a[key] / b[key] for a, b in pairs), 3)
    for clock, key in (('wall', 'seconds'), ('processor', 'processor_seconds'))
  }


def not_run(error: Exception) -> dict[str, str]:
  """The column of a case without a result: the reason."""
  return {'not_run': ' '.join(f'{type(error).__name__}: {error}'.split())[:300]}


# Memory.


def peak_bytes() -> int:
  """The peak memory of this process until now."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def compiled_bytes(compiled) -> dict[str, float]:
  """Megabytes of a compiled jax program: for intermediate values, and with its arguments and results."""
  sizes = compiled.memory_analysis()
  ends = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
  temporary = sizes.temp_size_in_bytes
  return {
    'temporary_megabytes': round(temporary / 1e6, 1),
    'all_megabytes': round((temporary + ends) / 1e6, 1),
  }


# Contenders in separate processes, which stay alive and take turns.


class Worker:
  """A process `python -m benchmarks NAME ARGUMENTS` on one CPU device, which answers in lines of JSON.

  Its arrays lie in huge pages, as those of `lra-spt train` do, unless `pages` is False.
  """

  def __init__(self, name: str, *arguments, pages: bool = True):
    # Tests set strict jax options, under which peers' libraries fail.
    environment = {key: value for key, value in os.environ.items() if not key.startswith('JAX_NUMPY_')}
    environment |= {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(ROOT), 'XLA_FLAGS': ''}
    environment.pop(huge_pages.VARIABLE, None)
    environment = huge_pages.environment(environment) if pages else environment
    command = [sys.executable, '-m', 'benchmarks', name, *map(str, arguments)]
    pipe = subprocess.PIPE
    self._process = subprocess.Popen(
      command, stdin=pipe, stdout=pipe, text=True, env=environment, bufsize=1, cwd=ROOT
    )

  def answer(self) -> dict:
    """The next line of output. Raises SystemExit when the process has ended."""
    line = self._process.stdout.readline()
    if not line:
      raise SystemExit(f'{self} ended early, with status {self._process.wait()}')
    return json.loads(line)

  def turn(self) -> dict:
    """Starts one turn and returns its sample."""
    self._process.stdin.write('\n')
    return self.answer()

  def answers(self):
    """Yields all lines of output. Raises SystemExit when the process fails."""
    self._process.stdin.close()
    yield from map(json.loads, self._process.stdout)
    if self._process.wait():
      raise SystemExit(f'{self} failed with status {self._process.returncode}')

  def close(self) -> None:
    """Ends the process."""
    self._process.stdin.close()
    self._process.wait()

  def __str__(self):
    return ' '.join(self._process.args[1:])


def serve(run, hello: dict, baseline: int) -> None:
  """Serves as a worker: prints `hello` after a first step, then takes a turn for every line of input.

  A turn is one step after the other, as in training, for about TURN seconds; a sample is the mean of one
  step. A quarter as many steps run before and do not count, since others have used caches and memory.

  Args:
    run: makes a step, waits for it and returns its loss.
    hello: facts that are known before the first turn.
    baseline: peak bytes before compiling; every sample has the bytes added since.
  """
  print(json.dumps(hello | {'first_loss': run()}), flush=True)
  count = max(1, min(MOST_SAMPLES, math.ceil(TURN / timed(run)['seconds'])))

  def steps(number):
    for _ in range(number):
      run()

  for _ in sys.stdin:
    steps(math.ceil(count / 4))
    sample = {name: value / count for name, value in timed(lambda: steps(count)).items()}
    print(json.dumps(sample | {'peak_bytes': peak_bytes() - baseline}), flush=True)


def workers_in_turns(started: dict[str, Worker], rounds: int) -> dict[str, list[dict[str, float]]]:
  """{name: samples} of workers that have given their first answer.

  A first turn of each does not count: a process that waited while others compiled is slow at first.
  """
  for worker in started.values():
    worker.turn()
  samples = {name: [] for name in started}
  for turn in range(rounds):
    for name, worker in started.items():
      if turn < 2 or samples[name][0]['seconds'] < SLOW:
        samples[name].append(worker.turn())
  return samples


def contest(start, kinds, rounds: int) -> tuple[dict[str, dict], dict[str, list]]:
  """({kind: first answer}, {kind: samples}) of a worker per kind, which take turns.

  Args:
    start: kind -> its Worker; they start and compile one after the other.
    kinds: the contenders; one whose first answer has `not_run` takes no turn.
    rounds: number of turns.
  """
  workers, hello = {}, {}
  try:
    for kind in kinds:
      workers[kind] = start(kind)
      hello[kind] = workers[kind].answer()
    running = {kind: worker for kind, worker in workers.items() if 'not_run' not in hello[kind]}
    return hello, workers_in_turns(running, rounds)
  finally:
    for worker in workers.values():
      worker.close()


# Sets.


def random_source(files: dict, counts: dict[str, int], **facts):
  """A `data_prep.builders.Source` of made-up examples; facts: further arguments of it."""
  from data_prep import builders  # here, since most benchmarks prepare nothing

  about = {'description': 'made up', 'citation': 'none', 'origin': 'random numbers', 'verified': False}
  return builders.Source(files=files, counts=counts, **about, **facts)


# Results.


def versions(*packages: str) -> dict[str, str]:
  """Versions of Python, of the packages that every run notes, and of these where they are installed."""
  known = {'python': platform.python_version()} | provenance.versions()
  for package in packages:
    try:
      known[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      continue
  return known


def report(name: str, what: str, *packages: str, **known) -> dict:
  """The head of a result: what was measured, by which command, when, at which commit, on which machine.

  Args:
    name: name of the benchmark.
    what: one line.
    packages: packages whose versions matter beside those that every run notes.
    **known: further entries of the head.
  """
  return {
    'what': what,
    'command': f'python -m benchmarks {name}',
    'date': datetime.date.today().isoformat(),
    'commit': provenance.commit(),
    'hardware': provenance.hardware(),
    'versions': versions(*packages),
    'load_average_before': round(os.getloadavg()[0], 2),
  } | known


def earlier_rows(given, report: dict) -> list[dict]:
  """With --resume the rows of the file; rows of another commit than the report's name it."""
  if not (given.resume and given.json.exists()):
    return []
  before = json.loads(given.json.read_text(encoding='utf-8'))
  old = {} if before['commit'] == report['commit'] else {key: before[key] for key in ('commit', 'date')}
  return [old | row for row in before['rows']]


def fill(given, report: dict, cases: list[dict], measure) -> None:
  """Adds each case with the columns of `measure(**case)` to the report's rows, and writes the file each time.

  given: parsed flags of `parser` and `add_resume`. With --resume the rows of the file stay, and their cases
    are not measured again.
  """
  report['rows'] = earlier_rows(given, report)
  for case in cases:
    if not any(case.items() <= row.items() for row in report['rows']):
      row = case | measure(**case)
      report['rows'].append(row)
      print(json.dumps({key: v for key, v in row.items() if not isinstance(v, list)}), flush=True)
      write(given.json, report)
  print(f'written to {given.json}')


def write(path: pathlib.Path, content: dict) -> None:
  """Writes a result whole or not at all, with the machine's load average now."""
  path.parent.mkdir(parents=True, exist_ok=True)
  if 'load_average_before' in content:
    content['load_average_after'] = round(os.getloadavg()[0], 2)
  files.write_json(path, content)
