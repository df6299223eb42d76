"""Reruns the frozen demo on five fresh seeds and notes the pooled gains: python -m benchmarks demo_seeds

Each seed generates its own data. Writes benchmarks/results/demo_seeds.json and, beside it,
demo_restored.json: three images of the first seed as its pretrained model restores them. Takes about 15
minutes on 2 idle CPU cores; the same command continues after an interruption. Seeds 0 and 1, on which the
task was chosen, are not used.
"""

import json
import math
import pathlib

from benchmarks import harness
from lra_spt.report.runs import restored, run_folder
from lra_spt.report.runs.run import collect
from lra_spt.report.study import arms as tables
from lra_spt.studies import demo

SEEDS = (101, 102, 103, 104, 105)
KEYS = ('date', 'commit', 'hardware', 'versions')


def interval(found):
  """In accuracy, 0 to 1."""
  return {'estimate': found.estimate, 'low': found.low, 'high': found.high, 'method': found.method}


def shown(found: restored.RestoredInputs, count: int = 3) -> dict:
  """The first images of a masked run, which pages show: as they are, what is hidden, and restored."""
  side = math.isqrt(found.hidden.shape[1])
  images = {
    key: getattr(found, key)[:count].reshape(-1, side, side).tolist()
    for key in ('original', 'hidden', 'restored')
  }
  return {'index': found.index[:count].tolist()} | images


def main(arguments=None):
  """0 when the pooled gain of masked self-pretraining over scratch excludes 0, else 1."""
  parser = harness.parser('demo_seeds', __doc__, 'demo_seeds.json')
  parser.add_argument('--workdir', default='demo_seeds_run', help='folder of the runs (%(default)s)')
  options = parser.parse_args(arguments)
  demo.run_all(options.workdir, SEEDS, smoke=False)
  runs = collect(options.workdir)
  (group,) = tables.summarise(runs)
  first = json.loads(next(pathlib.Path(options.workdir).glob('seed*/*/result.json')).read_text())
  gains = {f'{gain.arm.name} over {gain.against.name}': interval(gain.interval) for gain in group.gains}
  report = {
    'command': 'python -m benchmarks demo_seeds',
    'seeds': SEEDS,
    'test_examples_per_seed': first['metrics']['test']['examples'],
    'accuracy': {arm.name: interval(arm.score) for arm in group.arms},
    'accuracy_per_seed': {arm.name: {run.seed: run.value for run in arm.runs} for arm in group.arms},
    'gains': gains,
  }
  # Where the runs come from, which may be older than this report.
  harness.write(options.json, report | {key: first[key] for key in KEYS})
  folder = pathlib.Path(options.workdir) / f'seed{SEEDS[0]}' / 'masked'
  run = run_folder.read_result(folder)
  images = {'command': 'lra-spt demo', 'seed': run['seed']} | shown(restored.read_restored(folder))
  harness.write(options.json.with_name('demo_restored.json'), images | {key: run[key] for key in KEYS})
  decisive = gains['masked self-pretraining over scratch']
  return 0 if decisive['low'] > 0 else 1


if __name__ == '__main__':
  raise SystemExit(main())
