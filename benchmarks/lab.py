"""The laboratory (`configs/studies/lab.py`): contrasts of its arms, and how far its models read."""

import sys
import zlib

import numpy as np

import lra_spt
from benchmarks import harness
from lra_spt.errors import DataError, UserError
from lra_spt.report.statistics import bootstrap
from lra_spt.report.study import comparisons
from lra_spt.report.study import table as studies

SCRATCH, TIED, ALL, REST = 'scratch', 'scratch, compute-tied', 'all', 'all but queries and keys'
QUERIES, FROZEN = 'queries and keys only', 'queries and keys frozen'
CONTRASTS = {  # name: rows that are added, rows that are subtracted
  'together beyond the sum of both parts': ((ALL, SCRATCH), (QUERIES, REST)),
  'training queries and keys from scratch': ((SCRATCH,), (f'scratch, {FROZEN}',)),
  'training drawn queries and keys beside pretrained parts': ((REST,), (f'{REST}, which stay as drawn',)),
  'training pretrained queries and keys': ((ALL,), (f'all, {FROZEN}',)),
  'pretrained instead of drawn, both frozen': ((f'all, {FROZEN}',), (f'{REST}, which stay as drawn',)),
}
STATES = 'initial', 'pretrained', 'finetuned', 'scratch', 'tied'


def contrasts(table) -> list[dict]:
  """Signed sums of the accuracies of whole cells, by the method of all reports.

  Args:
    table: `lra_spt.report.study.table.ResultTable` of the study; of other studies there are none.

  Returns:
    A dict per contrast: name, estimate, low, high, p, adjusted (after Holm over all of them), significant.
  """
  cells = {row: cell for (row, _), cell in table.cells.items() if cell.runs and not cell.open}
  names = [name for name, rows in CONTRASTS.items() if {*sum(rows, ())} <= cells.keys()]
  parts = []
  for name in names:
    plus, minus = CONTRASTS[name]
    units = [[run.units for run in cells[row].runs] for row in (*plus, *minus)]
    parts.append(bootstrap.parts(units, [1] * len(plus) + [-1] * len(minus)))
  made = bootstrap.estimates(parts, (-2, 2), stream=zlib.crc32(b'lab'))
  adjusted = bootstrap.holm([one.p for one in made])
  return [
    {'name': name}
    | {key: getattr(one.interval, key) for key in ('estimate', 'low', 'high')}
    | {'p': one.p, 'adjusted': p, 'significant': bool(p <= comparisons.LEVEL)}
    for name, one, p in zip(names, made, adjusted, strict=True)
  ]


def run_inside(arguments):
  """Measures how far the models of the laboratory read, by distance, in five states of training.

    lra-spt study configs/studies/lab.py --workdir=runs/lab --config.runtime.data_dir=data
    python -m benchmarks inside --workdir=runs/lab --data_dir=data

  The states are: before training, after self-pretraining, after finetuning, from scratch for the steps of
  finetuning, and from scratch compute-tied. For each there is a list over seeds of receptive fields and of
  mean attention weights per layer (over the heads). `own` is the share of the gradient at distance 0,
  `uneven` the mean of |weight / uniform weight - 1| over layers and the distances up to half of the length;
  both are means over seeds.
  """
  parser = harness.parser(run_inside, 'inside.json')
  parser.add_argument('--workdir', default='runs/lab', help='folder of the study (%(default)s)')
  parser.add_argument('--data_dir', default='data', help='folder of the prepared sets (%(default)s)')
  parser.add_argument('--examples', type=int, default=32, help='validation examples (%(default)s)')
  options = parser.parse_args(arguments)
  harness.cpu_only()
  try:
    content = inside(options.workdir, options.data_dir, options.examples)
  except UserError as error:
    sys.exit(f'inside: {error}')
  harness.write(options.json, harness.report('inside', 'how far the models of the laboratory read') | content)


def inside(workdir, data_dir, examples: int) -> dict:
  """The numbers of inside.json. Raises DataError where a cell is not whole; also as `lra_spt.look_inside`."""
  table = studies.read_table(workdir)
  paths = {}
  for row in (ALL, SCRATCH, TIED):
    cell = next((cell for (name, _), cell in table.cells.items() if name == row), None)
    if cell is None or cell.open or not cell.runs:
      raise DataError(f'The cell {row} of {workdir} is not whole; go on with its study.')
    paths[row] = {run.seed: run.path for run in cell.runs}
  content = {'seeds': sorted(paths[ALL]), 'examples': examples, 'field': {}, 'attention': {}}
  for seed in content['seeds']:
    first, tied = (
      lra_spt.look_inside(run, scratch, examples=examples, data_dir=data_dir)
      for run, scratch in ((paths[ALL][seed], paths[SCRATCH][seed]), (paths[TIED][seed], None))
    )
    for state in STATES:
      one, name = (tied, 'scratch') if state == 'tied' else (first, state)
      of_seed = {'field': one.field[name], 'attention': one.attention[name].mean(1)}
      for key, values in of_seed.items():
        content[key].setdefault(state, []).append(_rounded(values))
    content['uniform'] = _rounded(first.uniform)
    print(f'seed {seed} is measured', flush=True)
  uniform = np.array(content['uniform'])
  half = len(uniform) // 2
  uneven = {
    state: np.abs(np.array(weights)[..., :half] / uniform[:half] - 1).mean()
    for state, weights in content['attention'].items()
  }
  at_pixel = {state: np.array(fields)[:, 0].mean() for state, fields in content['field'].items()}
  return content | {'at_pixel': at_pixel, 'uneven': uneven}


def _rounded(values) -> list:
  return np.vectorize(lambda value: float(f'{value:.4g}'))(values).tolist()
