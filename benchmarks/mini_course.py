"""How two cells of LRA-mini learned, which the page of results draws: python -m benchmarks mini_course

Validation of every seed from scratch and after masked self-pretraining, and three test images as the
pretrained model of the first seed restores them. Reads the folder in which `lra-spt study
configs/studies/mini_table.py` trained; runs that `benchmarks.mini` has put into a folder have neither.
"""

import sys

from benchmarks import harness
from benchmarks.demo_seeds import KEYS, shown
from lra_spt.errors import DataError, UserError
from lra_spt.report.study import table as studies
from lra_spt.runs import restore

ROWS = {'scratch': 'Transformer + Rotary, scratch', 'masked': 'Transformer + Rotary, masked'}
COLUMN = 'Pathfinder'


def course(workdir, data_dir, rows: dict[str, str] = ROWS, column: str = COLUMN) -> dict:
  """The content of the file. Raises DataError unless both cells are whole, with their metrics."""
  table = studies.read_table(workdir)
  runs = {regime: _runs(table, row, column) for regime, row in rows.items()}
  first = runs['masked'][0]
  found = {
    'command': 'python -m benchmarks mini_course',
    'rows': rows,
    'column': column,
    'curves': [_curve(run, regime) for regime, of_regime in runs.items() for run in of_regime],
    'images': {'seed': first.seed} | shown(restore.restore(first.path, data_dir)),
  }
  return found | {key: first.result[key] for key in KEYS}


def _runs(table, row: str, column: str) -> list:
  cell = table.cells.get((row, column))
  if cell is None or cell.open or not cell.runs:
    raise DataError(f'The cell ({row}, {column}) is not whole; go on with its study.')
  for run in cell.runs:
    if 'validation' not in run.curves['finetune']:
      raise DataError(f'{run.path} has no metrics of its finetuning; give the folder that it was trained in.')
  return sorted(cell.runs, key=lambda run: run.seed)


def _curve(run, regime: str) -> dict:
  """Validation in finetuning over the steps of both stages, and the score of the test."""
  stages = run.result['stages']
  before = sum(stage['steps'] for name, stage in stages.items() if name != 'finetune')
  steps, values = run.curves['finetune']['validation'][run.score.key]
  return {
    'regime': regime,
    'seed': run.seed,
    'pretraining': before,
    'step': [before + step for step in steps.tolist()],
    'score': values.tolist(),
    'test': run.value,
  }


def main(arguments=None):
  parser = harness.parser('mini_course', __doc__, 'mini_course.json')
  parser.add_argument('--workdir', default='runs/mini', help='folder of the study (%(default)s)')
  parser.add_argument('--data_dir', default='data', help='folder of the prepared sets (%(default)s)')
  options = parser.parse_args(arguments)
  harness.cpu_only()
  try:
    harness.write(options.json, course(options.workdir, options.data_dir))
  except UserError as error:
    sys.exit(f'mini_course: {error}')


if __name__ == '__main__':
  main()
