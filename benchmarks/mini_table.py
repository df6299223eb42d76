"""What the runs of LRA-mini say so far, for the pages.

  python -m benchmarks.mini_table --workdir=runs/mini --data_dir=data

Reads the folder of `lra-spt study configs/studies/mini_table.py` and writes the file of that name in
benchmarks/results: every cell with its state, the learning rates that were tried, what self-pretraining gains
(told: after Holm over all gains), and what the finished cells say together. `mini_runs.jsonl` beside it holds
the runs themselves, without weights; those that the folder has not are put there first, so that the study
goes on with them (`benchmarks.kept_runs`).
"""

import functools
import json
import pathlib
import sys

import numpy as np

from benchmarks import harness, kept_runs
from lra_spt import run_folder
from lra_spt.data import examples
from lra_spt.errors import DataError, UserError
from lra_spt.report import conclusions, export, studies

RUNS = harness.RESULTS / 'mini_runs.jsonl'
KEPT = ('row', 'column', 'task', 'model', 'regime', 'state', 'seeds', 'score', 'low', 'high', 'scores')
KEPT += ('parameters', 'flops', 'seconds')


def collected(workdir) -> dict:
  """The content of the file; DataError while no run of the table is finished."""
  table = studies.read_table(workdir)
  if not table.runs:
    raise DataError(f'{workdir} has no finished run of the table yet; go on with its study.')
  results = [run_folder.read_result(run.path) for run in table.runs]
  lines = [{key: line[key] for key in KEPT} for line in export.study_lines(table)]
  searched = {(cell['row'], cell['column']): cell['search'] for cell in table.record['cells']}
  return {
    'command': 'lra-spt study configs/studies/mini_table.py',
    'cells': [line | {'search': searched[line['row'], line['column']]} for line in lines],
    'gains': [_gain(pair) for pair in table.findings.pairs if pair.main],
    'answers': conclusions.sentences(table.findings),
    'date': max(result['date'] for result in results),
    **{f'{key}s': _distinct(result[key] for result in results) for key in ('commit', 'hardware')},
    'versions': results[-1]['versions'],
  }


def _gain(pair) -> dict:
  interval, (scratch, pretrained) = pair.interval, pair.values()
  return {
    'column': pair.place,
    'model': pair.name,
    'regime': pair.regime,
    'seeds': list(pair.seeds),
    'scratch': scratch,
    'pretrained': pretrained,
    **{key: getattr(interval, key) for key in ('estimate', 'low', 'high')},
    'told': bool(pair.told),
  }


def _distinct(values) -> list:
  """In the order in which they first come: a study takes days, and machines change."""
  return list({json.dumps(value, sort_keys=True): value for value in values}.values())


def main(arguments=None):
  parser = harness.parser('mini_table', __doc__, 'mini_table.json')
  parser.add_argument('--workdir', default='runs/mini', help='folder of the study (%(default)s)')
  parser.add_argument('--data_dir', default='data', help='folder of the prepared sets (%(default)s)')
  parser.add_argument('--runs', type=pathlib.Path, default=RUNS, help='file of the runs (%(default)s)')
  options = parser.parse_args(arguments)

  @functools.cache
  def labels(task):
    test = examples.open_split(task, 'test', options.data_dir)
    return test.gather(np.arange(len(test)))['label']

  try:
    put = kept_runs.restore(options.runs, options.workdir, labels)
    kept = kept_runs.keep(options.workdir, options.runs)
    found = collected(options.workdir)
  except UserError as error:
    sys.exit(f'mini_table: {error}')
  harness.write(options.json, found)
  print('\n'.join([f'{kept} runs, {put} of them from {options.runs}.', *found['answers']]))


if __name__ == '__main__':
  main()
