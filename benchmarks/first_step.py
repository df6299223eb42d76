"""From the shell to the first finished step, part by part, with an empty compile cache and with a full one.

  python -m benchmarks first_step [--rounds=3] [--runs=FOLDER]

Measures `lra-spt train` of the Transformer on Image, on random numbers in the layout of CIFAR-10, in
processes (`benchmarks.started`) that report when each part ended and end after the first step. Then it
measures the commands that only answer: help, lists, a config and, with --runs, the report of a folder of
runs.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import harness, started

TARGETS = {'empty': 15.0, 'full': 8.0}  # seconds, by what the compile cache holds
CONFIG = 'configs/image.py:regime=masked'
COMMANDS = {
  '--help': [],
  'list': ['list'],
  'inspect --help': ['inspect', '--help'],
  'config': ['config', CONFIG],
}
EXAMPLES = {'train': 2000, 'test': 200}


def start(config: str, data_dir, workdir, cache) -> dict[str, float]:
  """Seconds of each part of one start."""
  flags = ['train', f'--config={config}', f'--workdir={workdir}', f'--config.runtime.data_dir={data_dir}']
  # So few examples have fewer steps than the config's schedules warm up for.
  flags += [f'--config.{stage}.schedule.warmup_steps=1' for stage in ('pretrain', 'finetune')]
  environment = os.environ | {'LRA_SPT_CACHE': str(cache), 'JAX_PLATFORMS': 'cpu'}
  run = f'import {started.__name__} as child; child.main()'
  command = [sys.executable, '-c', run, str(time.time()), *flags]
  found = subprocess.run(command, cwd=harness.ROOT, env=environment, stdout=subprocess.PIPE, text=True)
  if found.returncode:
    raise SystemExit(f'{" ".join(command)} failed with status {found.returncode}')
  ends = json.loads(found.stdout.splitlines()[-1])
  begins = [0.0, *ends.values()]
  return {part: end - begin for (part, end), begin in zip(ends.items(), begins, strict=False)}


def made_up(data_dir: pathlib.Path) -> None:
  """Random numbers in the layout of CIFAR-10."""
  import numpy as np

  from data_prep import builders

  def draw(count):
    rng = np.random.default_rng(0)
    return ((rng.integers(0, 256, (1024, 3)).astype(np.uint8), i % 10) for i in range(count))

  source = builders.Source(
    description='made up',
    citation='none',
    files={file: lambda count=count: draw(count) for file, count in EXAMPLES.items()},
    counts=EXAMPLES,
    classes=10,
    shape=(1024, 3),
    origin='random numbers',
    verified=False,
  )
  builders.prepare_set('cifar10', data_dir, EXAMPLES, lambda work: source)


def seconds_of(arguments: list[str], rounds: int) -> float:
  """Median of a command that only answers."""
  command = [sys.executable, '-m', 'lra_spt', *arguments]

  def run():
    subprocess.run(command, cwd=harness.ROOT, check=True, stdout=subprocess.DEVNULL)

  run()
  return round(statistics.median(harness.timed(run)['seconds'] for _ in range(rounds)), 2)


def median(starts: list[dict[str, float]]) -> dict:
  """The start of median length, by parts and in all."""
  middle = sorted(starts, key=lambda parts: sum(parts.values()))[len(starts) // 2]
  parts = {part: round(seconds, 2) for part, seconds in middle.items()}
  return {'parts': parts, 'seconds': round(sum(middle.values()), 2)}


def main(arguments=None):
  parser = harness.parser('first_step', __doc__, 'first_step.json')
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
  report['cache'] = {
    name: median(found) | {'target_seconds': TARGETS[name]} for name, found in starts.items()
  }
  commands = dict(COMMANDS)
  if options.runs:
    count = sum(1 for _ in options.runs.rglob('result.json'))
    commands[f'report of {count} runs'] = ['report', f'--workdir={options.runs}']
  report['commands'] = {name: seconds_of(words, options.rounds) for name, words in commands.items()}
  print(json.dumps({key: report[key] for key in ('cache', 'commands')}, indent=1))
  harness.write(options.json, report)


if __name__ == '__main__':
  main()
