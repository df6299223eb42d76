"""What the runs of LRA-mini, and of other studies of ours, say so far, for the pages.

  python -m benchmarks mini [--study=mini_table] [--argument=models=all] --workdir=runs/mini --data_dir=data

Reads the folder of `lra-spt study configs/studies/STUDY.py` and writes STUDY.json in benchmarks/results:
every cell with its state, the learning rates that were tried, what self-pretraining gains (significant after
Holm over all gains), and what the finished cells say together. STUDY_runs.jsonl beside it holds the
runs themselves, without weights. Runs that the folder lacks are put there first, so that the study continues
with them (`benchmarks.kept_runs`).
"""

import dataclasses
import functools
import json
import pathlib
import sys

import numpy as np

from benchmarks import harness, kept_runs, mini_orders, mini_origins
from lra_spt.data import examples
from lra_spt.errors import DataError, MissingFile, UserError
from lra_spt.report import export
from lra_spt.report.pages import curves as study_curves
from lra_spt.report.runs import run_folder
from lra_spt.report.statistics import bootstrap
from lra_spt.report.study import comparisons, findings, sentences
from lra_spt.report.study import table as studies
from lra_spt.studies import study as study_lib

STUDIES = 'mini_table', 'mini_arms', 'mini_longer', 'mini_longer_tasks', 'mini_longer_random'
STUDIES += 'mini_further', 'mini_labels', 'mini_random', 'mini_length', 'image_epochs'
STUDY = 'lra-spt study'
ON_ALL, ON_PART = 'masked on all inputs', 'masked on the part'  # ends of rows of mini_labels
KEPT = ('row', 'column', 'task', 'model', 'regime', 'state', 'seeds', 'score', 'low', 'high', 'scores')
KEPT += ('metric', 'parameters', 'flops', 'seconds')


def collected(study: str, workdir, command: str = '') -> dict:
  """The content of the file; DataError where the folder is of another study, or no run is finished."""
  table = studies.read_table(workdir)
  if table.record['study'] != study:
    raise DataError(
      f'{workdir} is of the study {table.record["study"]}, not {study}; give another --study or --workdir.'
    )
  if not table.runs:
    raise DataError(f'{workdir} has no finished run of {study} yet; go on with its study.')
  results = [run_folder.read_result(run.path) for run in table.runs]
  machines = mini_origins.machines(results)
  # Cells of which some seeds are missing say nothing yet, and are still to come.
  cells = [dataclasses.replace(cell, arm=None) if cell.open else cell for cell in table.cells.values()]
  said = findings.findings(cells)
  exported = export.study_lines(table)
  lines = [{key: line[key] for key in KEPT} for line in exported]
  return {
    'command': command,
    'cells': [
      line | {'search': record['search']} | _steps(cell) | {'machines': _machines(cell, machines)}
      for line, record, cell in zip(lines, table.record['cells'], table.cells.values(), strict=True)
    ],
    'gains': [_gain(pair) for pair in said.pairs if pair.main],
    # Of the same runs over further ways of training from scratch, such as with fewer steps.
    'further': [_gain(pair) | {'over': pair.scratch.record['row']} for pair in said.pairs if not pair.main],
    'means': [_mean(mean) for mean in said.means],
    'leads': [
      _lead(gap) | {'limits': limits}
      for gap, limits in zip(said.gaps, mini_orders.leads(said.gaps), strict=True)
    ],
    # Of gains at places of a chart, such as with fewer labels, over those at its right end.
    'growths': [_growth(growth) for growth in said.growths],
    # What inputs without labels are worth: pretraining on all of them over pretraining on a part.
    'inputs': _inputs(table),
    'agreement': mini_orders.agreement(exported, _answers(table)),
    'answers': sentences.sentences(said),
    'curves': _curves(table) if table.record['show'] == kept_runs.CURVES else [],
    'date': max(result['date'] for result in results),
    'commits': list(dict.fromkeys(result['commit'] for result in results)),
    'machines': machines,
    'data': mini_origins.data(results),
    'time': mini_origins.time(workdir),
  }


def _curves(table) -> list[dict]:
  """Validation of every seed of the whole cells over the operations of training."""
  found = []
  for (row, column), cell in table.cells.items():
    for run in () if cell.open else cell.runs:
      if (curve := study_curves.of_operations(run)) is not None:
        flops, scores = (np.asarray(values).tolist() for values in curve)
        found.append({'row': row, 'column': column, 'seed': run.seed, 'flops': flops, 'score': scores})
  return found


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
  """Of every run with labels: steps that were trained, and those after which it was tested, if noted."""
  stages = [run.result['stages'].get('finetune', {}) for run in cell.runs]
  return {
    'steps': [one.get('steps') for one in stages],
    'best_steps': [one.get('best_step') for one in stages],
  }


def _machines(cell, machines) -> list[int]:
  """Which of the machines its runs were made on."""
  kinds = [{key: value for key, value in one.items() if key != 'runs'} for one in machines]
  return sorted({kinds.index(mini_origins.machine(run.result)) for run in cell.runs})


def _answers(table) -> dict:
  """{(row, column): numbers per seed and test example} of the cells whose runs all kept their answers."""
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
  """estimate: by how much the lead is smaller after self-pretraining."""
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
  """Of both stages of a run, on average."""
  return cell.arm.mean(lambda run: run.total('flops'))


def _command(options) -> str:
  """The study file with its argument; without one, as in the file that is there."""
  written = options.results / f'{options.study}.json'
  if options.argument is None and written.exists():
    return json.loads(written.read_text())['command'].removeprefix(f'{STUDY} ')
  return ':'.join(filter(None, (f'configs/studies/{options.study}.py', options.argument)))


def main(arguments=None):
  parser = harness.parser('mini', __doc__)
  parser.add_argument(
    '--study',
    default='mini_table',
    choices=STUDIES,
    help='(%(default)s)',
  )
  parser.add_argument(
    '--argument', help='with which the study ran, such as models=all (default: that of the file there)'
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
    if split is None:
      return None
    test = split.gather(np.arange(len(split)))
    group_N = split.groups(test['index'])
    found = {'index': test['index'], 'label': test['label']}
    return found if group_N is None else found | {'group': group_N}

  try:
    put, absent = kept_runs.restore(runs, options.workdir, tests)
    command = _command(options)
    found = collected(options.study, options.workdir, f'{STUDY} {command}')
    of_command = study_lib.load(command).rows
    if other := [cell['row'] for cell in found['cells'] if cell['seeds'] and cell['row'] not in of_command]:
      raise DataError(f'{command} has no row {other[0]!r}; give the --argument with which the study ran.')
    kept = 0 if absent else kept_runs.keep(options.workdir, runs)
  except UserError as error:
    sys.exit(f'mini: {error}')
  print('\n'.join([*found['answers'], *kept_runs.on_other_sets(runs, prints)]))
  print(f'{put} runs of {runs} were put into {options.workdir}.')
  if absent:  # the files would lose them
    print(f'Nothing is written to {options.results}, for lack of {", ".join(absent)}.')
  else:
    harness.write(options.results / f'{options.study}.json', found)
    print(f'{kept} runs are in {options.results}.')


if __name__ == '__main__':
  main()
