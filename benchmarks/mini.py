"""What the runs of LRA-mini say so far, for the pages.

  python -m benchmarks.mini [--study=mini_table] --workdir=runs/mini --data_dir=data

Reads the folder of `lra-spt study configs/studies/STUDY.py` and writes STUDY.json in benchmarks/results:
every cell with its state, the learning rates that were tried, what self-pretraining gains (told: after Holm
over all gains), and what the finished cells say together. STUDY_runs.jsonl beside it holds the runs
themselves, without weights; those that the folder has not are put there first, so that the study goes on with
them (`benchmarks.kept_runs`).
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
from lra_spt.report import conclusions, export, findings, studies

FILES = 'mini_table.json', 'mini_labels.json', 'mini_random.json'  # each of the study of its name
KEPT = ('row', 'column', 'task', 'model', 'regime', 'state', 'seeds', 'score', 'low', 'high', 'scores')
KEPT += ('parameters', 'flops', 'seconds')


def collected(study: str, workdir) -> dict:
  """The content of the file; DataError where the folder is of another study, or no run is finished."""
  table = studies.read_table(workdir)
  if table.record['study'] != study:
    raise DataError(
      f'{workdir} is of the study {table.record["study"]}, not {study}; give --study or --workdir.'
    )
  if not table.runs:
    raise DataError(f'{workdir} has no finished run of {study} yet; go on with its study.')
  results = [run_folder.read_result(run.path) for run in table.runs]
  # Cells of which some seeds are missing say nothing yet.
  said = findings.findings([cell for cell in table.cells.values() if cell.arm and not cell.open])
  lines = [{key: line[key] for key in KEPT} for line in export.study_lines(table)]
  searched = {(cell['row'], cell['column']): cell['search'] for cell in table.record['cells']}
  return {
    'command': f'lra-spt study configs/studies/{study}.py',
    'cells': [line | {'search': searched[line['row'], line['column']]} for line in lines],
    'gains': [_gain(pair) for pair in said.pairs if pair.main],
    'answers': conclusions.sentences(said),
    'date': max(result['date'] for result in results),
    **{f'{key}s': _distinct(result[key] for result in results) for key in ('commit', 'hardware')},
    'versions': results[-1]['versions'],
  }


def _gain(pair) -> dict:
  interval, (scratch, pretrained) = pair.interval, pair.values()
  return {
    'row': pair.pretrained.record['row'],
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
  parser = harness.parser('mini', __doc__)
  parser.add_argument(
    '--study',
    default='mini_table',
    choices=[name.removesuffix('.json') for name in FILES],
    help='(%(default)s)',
  )
  parser.add_argument('--workdir', default='runs/mini', help='folder of the study (%(default)s)')
  parser.add_argument('--data_dir', default='data', help='folder of the prepared sets (%(default)s)')
  parser.add_argument('--results', type=pathlib.Path, default=harness.RESULTS, help='folder of the files')
  options = parser.parse_args(arguments)
  runs = options.results / f'{options.study}_runs.jsonl'

  @functools.cache
  def labels(task):
    test = examples.open_split(task, 'test', options.data_dir)
    return test.gather(np.arange(len(test)))['label']

  try:
    put = kept_runs.restore(runs, options.workdir, labels)
    found = collected(options.study, options.workdir)
    kept = kept_runs.keep(options.workdir, runs)
  except UserError as error:
    sys.exit(f'mini: {error}')
  harness.write(options.results / f'{options.study}.json', found)
  print('\n'.join([f'{kept} runs, {put} of them from {runs}.', *found['answers']]))


if __name__ == '__main__':
  main()
