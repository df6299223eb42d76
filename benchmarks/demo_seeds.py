"""Reruns the frozen demo on five fresh seeds and notes the pooled gains: python benchmarks/demo_seeds.py

Each seed has generated data of its own. Writes benchmarks/results/demo_seeds.json. About 15 minutes on 2 idle
CPU cores; the same command goes on where an earlier one stopped. Seeds 0 and 1, on which the task was chosen,
take no part.
"""

import argparse
import json
import pathlib

from lra_spt.report import page, tables
from lra_spt.studies import demo

SEEDS = (101, 102, 103, 104, 105)
RESULT = pathlib.Path(__file__).resolve().parent / 'results' / 'demo_seeds.json'


def interval(found):
  """In accuracy, 0 to 1."""
  return {'estimate': found.estimate, 'low': found.low, 'high': found.high, 'method': found.method}


def main():
  """0 when the pooled gain of masked self-pretraining over scratch excludes 0, else 1."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--workdir', default='demo_seeds_run', help='folder of the runs (default: %(default)s)')
  arguments = parser.parse_args()
  demo.run_all(arguments.workdir, SEEDS, smoke=False)
  runs = page.collect(arguments.workdir)
  (group,) = tables.summarise(runs)
  first = json.loads(next(pathlib.Path(arguments.workdir).glob('seed*/*/result.json')).read_text())
  gains = {f'{gain.arm.name} over {gain.against.name}': interval(gain.interval) for gain in group.gains}
  RESULT.write_text(
    json.dumps(
      {
        'command': 'python benchmarks/demo_seeds.py',
        'seeds': SEEDS,
        'test_examples_per_seed': first['metrics']['test']['examples'],
        'accuracy': {arm.name: interval(arm.score) for arm in group.arms},
        'accuracy_per_seed': {arm.name: {run.seed: run.value for run in arm.runs} for arm in group.arms},
        'gains': gains,
        **{key: first[key] for key in ('date', 'commit', 'hardware', 'versions')},
      },
      indent=2,
    )
    + '\n'
  )
  decisive = gains['masked self-pretraining over scratch']
  return 0 if decisive['low'] > 0 else 1


if __name__ == '__main__':
  raise SystemExit(main())
