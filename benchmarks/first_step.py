"""The time from the shell to the first finished step, part by part.

The head of this file imports only modules that the training command imports too, because `child` reads its
first clock after these imports.
"""

import json
import os
import sys
import time

from lra_spt.cli import huge_pages

TARGETS = {'empty': 10.0, 'full': 5.0}  # seconds, by the compile cache
CONFIG = 'configs/image.py:regime=masked'
COMMANDS = {
  '--help': [],
  'list': ['list'],
  'inspect --help': ['inspect', '--help'],
  'config': ['config', CONFIG],
}
EXAMPLES = {'train': 2000, 'test': 200}


def child() -> None:
  """Trains until the first step is done; prints {part: seconds from the start to its end}.

  Arguments of the command line: the time of the start, then those of `lra-spt`.
  """
  started, arguments, ends = float(sys.argv[1]), sys.argv[2:], {}

  def ended(part):
    ends[part] = time.time() - started

  huge_pages.restart()  # as `lra-spt train` does
  ended('Python')
  import jax

  from lra_spt.cli import main as cli
  from lra_spt.runs import plan as planning
  from lra_spt.runs import stage
  from lra_spt.training import loop

  ended('imports')

  def noted(owner, name, part):
    function = getattr(owner, name)

    def run(*positional, **named):
      result = function(*positional, **named)
      if part not in ends:
        ended(part)
      return result

    setattr(owner, name, run)

  def until_a_step(program):
    step = train_steps(program)

    def dispatch(*positional):
      ended('folders, files, threads')
      result = step(*positional)
      ended('step compiled')
      jax.block_until_ready(result)
      ended('step computed')
      print(json.dumps(ends), flush=True)
      os._exit(0)

    return dispatch

  noted(planning, 'stages_of', 'config and shapes')
  noted(planning.examples_lib, 'open_splits', 'data opened')
  noted(stage.Built, 'check', 'sizes checked')
  noted(stage.Built, 'fresh_state', 'initial values')
  train_steps, loop.train_steps = loop.train_steps, until_a_step
  sys.exit(cli.main(arguments))


def start(config: str, data_dir, workdir, cache) -> dict[str, float]:
  """Seconds of each part of one start."""
  import subprocess

  from benchmarks import harness

  flags = ['train', f'--config={config}', f'--workdir={workdir}', f'--config.runtime.data_dir={data_dir}']
  # These few examples give fewer steps than the warmup of the config has.
  flags += [f'--config.{stage}.schedule.warmup_steps=1' for stage in ('pretrain', 'finetune')]
  environment = os.environ | {'LRA_SPT_CACHE': str(cache), 'JAX_PLATFORMS': 'cpu'}
  program = f'from {__name__} import child; child()'
  command = [sys.executable, '-c', program, str(time.time()), *flags]
  done = subprocess.run(command, cwd=harness.ROOT, env=environment, stdout=subprocess.PIPE, text=True)
  if done.returncode:
    raise SystemExit(f'{" ".join(command)} failed with status {done.returncode}')
  ends = json.loads(done.stdout.splitlines()[-1])
  begins = [0.0, *ends.values()]
  return {part: end - begin for (part, end), begin in zip(ends.items(), begins, strict=False)}


def made_up(data_dir) -> None:
  """Prepares random numbers in the layout of CIFAR-10."""
  import numpy as np

  from benchmarks import harness
  from data_prep import builders

  def draw(count):
    rng = np.random.default_rng(0)
    return ((rng.integers(0, 256, (1024, 3)).astype(np.uint8), i % 10) for i in range(count))

  files = {file: lambda count=count: draw(count) for file, count in EXAMPLES.items()}
  source = harness.random_source(files, EXAMPLES, classes=10, shape=(1024, 3))
  builders.prepare_set('cifar10', data_dir, EXAMPLES, lambda work: source)


def seconds_of(arguments: list[str], rounds: int) -> float:
  """Median seconds of a command that only answers."""
  import statistics
  import subprocess

  from benchmarks import harness

  command = [sys.executable, '-m', 'lra_spt', *arguments]

  def run():
    subprocess.run(command, cwd=harness.ROOT, check=True, stdout=subprocess.DEVNULL)

  run()
  return round(statistics.median(harness.timed(run)['seconds'] for _ in range(rounds)), 2)


def median(starts: list[dict[str, float]]) -> dict:
  """The start of median length: seconds of its parts, and of the whole."""
  middle = sorted(starts, key=lambda parts: sum(parts.values()))[len(starts) // 2]
  parts = {part: round(seconds, 2) for part, seconds in middle.items()}
  return {'parts': parts, 'seconds': round(sum(middle.values()), 2)}


def run_first_step(arguments):
  """Times the start of training, part by part, with an empty compile cache and with a full one.

  Measures `lra-spt train` of the Transformer on Image, on random numbers in the layout of CIFAR-10, in
  processes that report when each part ended and end after the first step. Then it measures the commands that
  only answer: help, lists, a config and, with --runs, the report of a folder of runs.
  """
  import pathlib
  import tempfile

  from benchmarks import harness

  parser = harness.parser(run_first_step, 'first_step.json')
  parser.add_argument('--rounds', type=int, default=3, help='starts of each kind (%(default)s)')
  parser.add_argument('--runs', type=pathlib.Path, help='folder of runs to report')
  options = parser.parse_args(arguments)
  report = harness.report('first_step', 'from the shell to the first finished step', config=CONFIG)
  starts = {name: [] for name in TARGETS}
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    made_up(folder / 'data')
    for turn in range(options.rounds):
      for name in TARGETS:  # the first fills the cache of the second
        starts[name].append(start(CONFIG, folder / 'data', folder / f'{name}{turn}', folder / f'cache{turn}'))
  report['cache'] = {name: median(of) | {'target_seconds': TARGETS[name]} for name, of in starts.items()}
  commands = dict(COMMANDS)
  if options.runs:
    count = sum(1 for _ in options.runs.rglob('result.json'))
    commands[f'report of {count} runs'] = ['report', f'--workdir={options.runs}']
  report['commands'] = {name: seconds_of(words, options.rounds) for name, words in commands.items()}
  print(json.dumps({key: report[key] for key in ('cache', 'commands')}, indent=1))
  harness.write(options.json, report)
