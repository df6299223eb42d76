"""Results of LRA-mini and of our other studies, with their runs, from folders of runs into files and back."""

import dataclasses
import functools
import json
import math
import pathlib
import sys
import zlib

import numpy as np

from benchmarks import harness, lab, provenance
from lra_spt.data import examples
from lra_spt.errors import DataError, MissingFile, UserError
from lra_spt.report import export, published
from lra_spt.report.pages import curves as study_curves
from lra_spt.report.pages import leaderboard
from lra_spt.report.runs import run_folder
from lra_spt.report.statistics import bootstrap
from lra_spt.report.study import archive, comparisons, findings, sentences
from lra_spt.report.study import table as studies
from lra_spt.studies import study as study_lib

STUDIES = 'mini_table', 'mini_arms', 'mini_longer', 'mini_longer_tasks', 'mini_longer_random'
STUDIES += 'mini_further', 'mini_labels', 'mini_random', 'mini_length', 'image_epochs', 'questions', 'lab'
STUDY = 'lra-spt study'
ON_ALL, ON_PART = 'masked on all inputs', 'masked on the part'  # ends of rows of mini_labels
KEPT = ('row', 'column', 'task', 'model', 'regime', 'state', 'seeds', 'score', 'low', 'high', 'scores')
KEPT += ('metric', 'parameters', 'flops', 'seconds')


def collected(study: str, workdir, command: str = '') -> dict:
  """The content of STUDY.json. Raises DataError for another study, or without a finished run."""
  table = studies.read_table(workdir)
  if table.record['study'] != study:
    raise DataError(
      f'{workdir} is of the study {table.record["study"]}, not {study}; give another --study or --workdir.'
    )
  if not table.runs:
    raise DataError(f'{workdir} has no finished run of {study} yet; go on with its study.')
  results = [run_folder.read_result(run.path) for run in table.runs]
  machines = provenance.machines(results)
  # A cell says nothing while some of its seeds are missing.
  cells = [dataclasses.replace(cell, arm=None) if cell.open else cell for cell in table.cells.values()]
  result = findings.findings(cells)
  exported = export.table_lines(table)
  lines = [{key: line[key] for key in KEPT} for line in exported]
  return {
    'command': command,
    'cells': [
      line | {'search': record['search']} | _steps(cell) | {'machines': _machines(cell, machines)}
      for line, record, cell in zip(lines, table.record['cells'], table.cells.values(), strict=True)
    ],
    'gains': [_gain(pair) for pair in result.pairs if pair.main],
    # Gains over further ways of training from scratch, such as with fewer steps.
    'further': [_gain(pair) | {'over': pair.scratch.record['row']} for pair in result.pairs if not pair.main],
    'means': [_mean(mean) for mean in result.means],
    'leads': [
      _lead(gap) | {'limits': limits} for gap, limits in zip(result.gaps, leads(result.gaps), strict=True)
    ],
    # Differences of gains at places of a chart, such as with fewer labels, from those at its right end.
    'growths': [_growth(growth) for growth in result.growths],
    # Gains of pretraining on all inputs over pretraining on a part.
    'inputs': _inputs(table),
    'contrasts': lab.contrasts(table),
    'agreement': agreement(exported, _answers(table)),
    'answers': sentences.sentences(result, cells),
    'curves': _curves(table) if table.record['show'] == archive.CURVES else [],
    'date': max(result['date'] for result in results),
    'commits': list(dict.fromkeys(result['commit'] for result in results)),
    'machines': machines,
    'data': provenance.data(results),
    'time': provenance.time(workdir),
  }


def _curves(table) -> list[dict]:
  """Validation of every seed of the whole cells, over the operations of training."""
  curves = []
  for (row, column), cell in table.cells.items():
    for run in () if cell.open else cell.runs:
      if (curve := study_curves.of_operations(run)) is not None:
        flops, scores = (np.asarray(values).tolist() for values in curve)
        curves.append({'row': row, 'column': column, 'seed': run.seed, 'flops': flops, 'score': scores})
  return curves


def _gain(pair) -> dict:
  scratch, pretrained = pair.values()
  return {
    'row': pair.pretrained.record['row'],
    'column': pair.place,
    'model': pair.name,
    'regime': pair.regime,
    'metric': pair.score.key,
    'seeds': list(pair.seeds),
    'scratch': scratch,
    'pretrained': pretrained,
    **_estimate(pair.interval, pair.estimate.p, pair.adjusted),
    'operations': _operations(pair.scratch) / _operations(pair.pretrained),
  }


def _steps(cell) -> dict:
  """Steps of finetuning of every run, and the step of the state that was tested, where it is noted."""
  stages = [run.result['stages'].get('finetune', {}) for run in cell.runs]
  return {
    'steps': [one.get('steps') for one in stages],
    'best_steps': [one.get('best_step') for one in stages],
  }


def _machines(cell, machines) -> list[int]:
  """The indices of the machines that made its runs."""
  kinds = [{key: value for key, value in one.items() if key != 'runs'} for one in machines]
  return sorted({kinds.index(provenance.machine(run.result)) for run in cell.runs})


def _answers(table) -> dict:
  """{(row, column): numbers per seed and test example} of the cells all of whose runs have their answers."""
  return {
    place: [run.units for run in cell.runs]
    for place, cell in table.cells.items()
    if cell.runs and all(run.units is not None for run in cell.runs)
  }


def _mean(mean) -> dict:
  return {
    'column': mean.place,
    'regime': mean.regime,
    'metric': mean.score.key,
    'models': [pair.name for pair in mean.pairs],
    'seeds': list(mean.seeds),
    'scratch': mean.before,
    'pretrained': mean.after,
    **_estimate(mean.interval, mean.estimate.p, mean.adjusted),
  }


def _lead(gap) -> dict:
  """A lead of one model over another; estimate: by how much it is smaller after self-pretraining."""
  return {
    'leader': gap.leader.name,
    'other': gap.other.name,
    'column': gap.place,
    'regime': gap.regime,
    'metric': gap.score.key,
    'seeds': list(gap.seeds),
    'before': gap.before,
    'after': gap.after,
    **_estimate(gap.interval, gap.estimate.p, gap.adjusted),
  }


def _growth(growth) -> dict:
  return {
    'row': growth.here.pretrained.record['row'],
    'column': growth.here.pretrained.record['column'],
    'end': growth.end.pretrained.record['column'],
    'regime': growth.regime,
    'metric': growth.score.key,
    'seeds': list(growth.seeds),
    'gain': growth.gain,
    'end_gain': growth.end_gain,
    **_estimate(growth.interval, growth.estimate.p, growth.adjusted),
  }


def _inputs(table) -> list[dict]:
  pairs = []
  for (row, column), cell in table.cells.items():
    part = table.cells.get((row.replace(ON_ALL, ON_PART), column))
    if part is None or not row.endswith(ON_ALL) or cell.open or part.open:
      continue
    if _units(cell).keys() == _units(part).keys():
      pairs.append((row.removesuffix(f', {ON_ALL}'), cell, part))
  differences = [
    bootstrap.parts([[units for _, units in sorted(_units(side).items())] for side in (cell, part)], (1, -1))
    for _, cell, part in pairs
  ]
  made = bootstrap.estimates(differences, (-1, 1))
  adjusted = bootstrap.holm([one.p for one in made])
  return [
    {
      'model': model,
      'column': cell.record['column'],
      'metric': cell.score.key,
      'seeds': sorted(_units(cell)),
      **_estimate(one.interval, one.p, p),
    }
    for (model, cell, _), one, p in zip(pairs, made, adjusted, strict=True)
  ]


def _units(cell) -> dict:
  """{seed: numbers per test example}."""
  return {run.seed: run.units for run in cell.runs}


def _estimate(interval, p: float, adjusted: float) -> dict:
  """adjusted: p after Holm over all comparisons of its kind."""
  limits = {key: getattr(interval, key) for key in ('estimate', 'low', 'high')}
  return limits | {'p': p, 'adjusted': adjusted, 'significant': bool(adjusted <= comparisons.LEVEL)}


def _operations(cell) -> float:
  """Mean operations of a run, over both stages."""
  return cell.arm.mean(lambda run: run.total('flops'))


def agreement(cells: list[dict], units: dict | None = None) -> list[dict]:
  """Kendall's tau-b between the order of models here and the printed order at full size.

  A row per task and way of training with three models or more: of the means, and of each seed. It is 0 where
  all tie. low and high bound 95 % of resamples of seeds and test examples, see `bootstrap.rank_agreement`.
  Printed numbers come from one or several runs without intervals, so they are taken as fixed.

  Args:
    cells: lines of `export.table_lines`.
    units: {(row, column): [S, N] numbers per seed and test example}. The limits are None where a model has
      none.
  """
  numbers, same_place = _printed(), {}
  for cell in cells:
    if cell['state'] or cell['causal']:  # seeds are missing; the tables of the paper have few causal models
      continue
    key = cell['model'], cell['regime'], cell['task'].removesuffix('_mini')
    if key in numbers:
      models = same_place.setdefault((cell['column'], cell['regime']), {})
      models.setdefault(cell['model'], (cell, numbers[key]))  # the first of several arms
  return [
    {'column': column, 'regime': regime} | _agreed(of) | _limits(of, units or {}, column)
    for (column, regime), of in same_place.items()
    if len(of) >= findings.FEWEST_MODELS
  ]


def _agreed(of) -> dict:
  """Tau of the means and of each seed; of: {model: (cell, printed number)}."""
  printed = [number for _, number in of.values()]
  of_seed = [dict(zip(cell['seeds'], cell['scores'], strict=True)) for cell, _ in of.values()]
  common = set.intersection(*map(set, of_seed))

  def tau(scores):
    value = float(bootstrap.kendall(scores, printed))
    return 0.0 if math.isnan(value) else round(value, 3)  # models that all tie have no order

  return {
    'models': {model: {'mini': cell['score'], 'printed': number} for model, (cell, number) in of.items()},
    'tau': tau([cell['score'] for cell, _ in of.values()]),
    'of_seeds': [tau([scores[seed] for scores in of_seed]) for seed in sorted(common)],
  }


def _limits(of, units, column) -> dict:
  """The limits of tau; None where a model has no answers, or models answered different examples."""
  cells = [units.get((cell['row'], cell['column'])) for cell, _ in of.values()]
  if any(cell is None for cell in cells) or len({np.shape(cell)[1] for cell in cells}) > 1:
    return {'low': None, 'high': None}
  printed = [number for _, number in of.values()]
  stream = zlib.crc32(column.encode())
  interval = bootstrap.rank_agreement([bootstrap.parts([cell]) for cell in cells], printed, stream=stream)
  return {key: None if math.isnan(end) else round(end, 3) for key, end in _ends(interval).items()}


def _ends(interval) -> dict:
  return {'low': interval.low, 'high': interval.high}


def _printed() -> dict[tuple[str, str, str], float]:
  """{(model, regime, task): number} of the paper; those of S5 and LRU are repeated in the field."""
  field = {
    (row.model.lower(), row.regime, task): value
    for row in leaderboard.rows()
    if row.model in ('S5', 'LRU')
    for task, value in row.values.items()
  }
  paper = [row for row in published.ROWS if row.table in (1, 2, 7) and not row.causal]
  return field | {(row.model, row.regime, row.task): row.value for row in paper if row.value is not None}


def leads(gaps) -> list[dict]:
  """Limits of the lead in each `comparisons.Gap`, from scratch and after self-pretraining.

  Returns:
    {'before': {'low', 'high'}, 'after': ...} of each, in their order.
  """
  by_set, limits = {}, {}
  for gap in gaps:
    for when, cell in (('before', 'scratch'), ('after', 'pretrained')):
      sides = (getattr(pair, cell) for pair in gap.pairs)
      of = [[run.units for run in _with(side, gap.seeds)] for side in sides]
      by_set.setdefault(gap.test_set, []).append((gap, when, bootstrap.parts(of, (1, -1))))
  for test_set, same in by_set.items():
    bounds = [gap.score.gain_bounds for gap, _, _ in same]
    made = bootstrap.estimates([parts for *_, parts in same], bounds, stream=zlib.crc32(test_set.encode()))
    for (gap, when, _), one in zip(same, made, strict=True):
      limits.setdefault(id(gap), {})[when] = _ends(one.interval)
  return [limits[id(gap)] for gap in gaps]


def _with(cell, seeds):
  """The runs of these seeds, in the order of seeds."""
  return sorted((run for run in cell.runs if run.seed in seeds), key=lambda run: run.seed)


def _command(options) -> str:
  """The study file with its argument; without --argument, that of the existing result file."""
  written = options.results / f'{options.study}.json'
  if options.argument is None and written.exists():
    return json.loads(written.read_text())['command'].removeprefix(f'{STUDY} ')
  return ':'.join(filter(None, (f'configs/studies/{options.study}.py', options.argument)))


def run_mini(arguments):
  """Writes the results of LRA-mini, or of another study of ours, and its runs.

    python -m benchmarks mini [--study=mini_table] [--argument=models=all] --workdir=runs/mini --data_dir=data

  Reads the folder of `lra-spt study configs/studies/STUDY.py` and writes STUDY.json in benchmarks/results:
  every cell with its state, the learning rates that were tried, gains of self-pretraining (significant after
  Holm over all gains), and what the finished cells say together. STUDY_runs.jsonl beside it holds the runs,
  without weights. Runs that the folder lacks are restored first, so that the study continues with them.
  """
  parser = harness.parser(run_mini)
  parser.add_argument('--study', default='mini_table', choices=STUDIES, help='(%(default)s)')
  parser.add_argument(
    '--argument', help='argument of the study, such as models=all (default: that of the existing file)'
  )
  parser.add_argument('--workdir', default='runs/mini', help='folder of the study (%(default)s)')
  parser.add_argument('--data_dir', default='data', help='folder of the prepared sets (%(default)s)')
  parser.add_argument('--results', type=pathlib.Path, default=harness.RESULTS, help='folder of the files')
  options = parser.parse_args(arguments)
  runs = options.results / f'{options.study}_runs.jsonl'

  @functools.cache
  def opened(task):
    try:
      return examples.open_split(task, 'test', options.data_dir)
    except MissingFile as error:
      print(f'Left out: {error}')
      return None

  def prints(task):
    split = opened(task)
    return None if split is None else {'data': split.fingerprint, 'splits': split.split_fingerprint}

  @functools.cache
  def tests(task):
    split = opened(task)
    return None if split is None else archive.test_examples(split)

  try:
    put, absent = archive.restore(runs, options.workdir, tests)
    command = _command(options)
    content = collected(options.study, options.workdir, f'{STUDY} {command}')
    of_command = study_lib.load(command).rows
    if other := [cell['row'] for cell in content['cells'] if cell['seeds'] and cell['row'] not in of_command]:
      raise DataError(f'{command} has no row {other[0]!r}; give the --argument with which the study ran.')
    count = 0 if absent else archive.store(options.workdir, runs)
  except UserError as error:
    sys.exit(f'mini: {error}')
  print('\n'.join([*content['answers'], *archive.on_other_sets(runs, prints)]))
  print(f'{put} runs of {runs} were restored into {options.workdir}.')
  if absent:  # the files would lose them
    print(f'Nothing is written to {options.results}, for lack of {", ".join(absent)}.')
  else:
    harness.write(options.results / f'{options.study}.json', content)
    print(f'{count} runs are in {options.results}.')
