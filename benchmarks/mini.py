"""Results and runs of LRA-mini and of our other studies are written from folders into files, and restored."""

import dataclasses
import functools
import pathlib
import sys

import numpy as np

from benchmarks import archives, harness, lab, provenance, questions
from configs.studies import mini
from lra_spt.data import examples
from lra_spt.errors import DataError, MissingFile, UserError
from lra_spt.report import export
from lra_spt.report.pages import curves as study_curves
from lra_spt.report.runs import run_folder
from lra_spt.report.study import any_folder, archive, comparisons, findings, sentences
from lra_spt.report.study import table as studies

FILES = {  # name of a study: its file, with its argument
  **{f'mini_{part}': f'configs/studies/mini.py:part={part}' for part in mini.PARTS},
  **{name: f'configs/studies/{name}.py' for name in ('image_epochs', 'questions', 'lab', 'lab_image')},
  **{name: f'configs/studies/{name}.py' for name in ('recall', 'archives')},
  'lab_longer': 'configs/studies/lab.py:steps=2000',
}
PRIMARIES = {'questions': questions.primaries, 'archives': archives.primaries}
NAMES = {'lab_longer': 'lab'}  # the name in study.json, where it differs
FACTS = ('row', 'column', 'task', 'model', 'regime', 'state', 'seeds', 'score', 'low', 'high', 'scores')
FACTS += ('metric', 'parameters', 'flops', 'seconds')


def collected(study: str, workdir, command: str = '') -> dict:
  """The content of STUDY.json. Raises DataError for another study, or without a finished run."""
  table = studies.read_table(workdir)
  if table.record['study'] != NAMES.get(study, study):
    raise DataError(
      f'{workdir} is of the study {table.record["study"]}, not {study}; give another --study or --workdir.'
    )
  if not table.runs:
    raise DataError(f'{workdir} has no finished run of {study} yet; go on with its study.')
  results = [run_folder.read_result(run.path) for run in table.runs]
  machines = provenance.machines(results)
  # A cell with missing seeds has no number yet.
  cells = [dataclasses.replace(cell, arm=None) if cell.open else cell for cell in table.cells.values()]
  result = findings.findings(cells)
  lines = [{key: line[key] for key in FACTS} for line in export.table_lines(table)]
  return {
    'command': command,
    'cells': [
      line | {'search': record['search']} | _steps(cell) | {'machines': _machines(cell, machines)}
      for line, record, cell in zip(lines, table.record['cells'], table.cells.values(), strict=True)
    ],
    'gains': [_gain(pair) for pair in result.pairs if pair.main],
    # Gains over further ways of training from scratch, such as with fewer steps.
    'further': [_gain(pair) | {'over': pair.scratch.record['row']} for pair in result.pairs if not pair.main],
    'means': [
      _compared(
        mean,
        column=mean.place,
        models=[pair.name for pair in mean.pairs],
        scratch=mean.before,
        pretrained=mean.after,
      )
      for mean in result.means
    ],
    # Leads of one model over another; estimate: by how much they are smaller after self-pretraining.
    'leads': [
      _compared(
        gap,
        leader=gap.leader.name,
        other=gap.other.name,
        column=gap.place,
        before=gap.before,
        after=gap.after,
      )
      for gap in result.gaps
    ],
    # Differences of gains at places of a chart, such as with fewer labels, from those at its right end.
    'growths': [
      _compared(
        growth,
        row=growth.here.pretrained.record['row'],
        column=growth.here.pretrained.record['column'],
        end=growth.end.pretrained.record['column'],
        gain=growth.gain,
        end_gain=growth.end_gain,
      )
      for growth in result.growths
    ],
    'contrasts': lab.contrasts(table),
    'answers': sentences.sentences(result, cells),
    'primaries': PRIMARIES[study](table) if study in PRIMARIES else {},
    'curves': _curves(table) if table.record['show'] == archive.CURVES else [],
    'date': max(result['date'] for result in results),
    'commits': list(dict.fromkeys(result['commit'] for result in results)),
    'machines': machines,
    'data': provenance.data(results),
    'time': provenance.time(workdir),
  } | _recorded(workdir, table)


def _recorded(workdir, table) -> dict:
  """{'recorded': cells of predictions that were made elsewhere}; {} without any."""
  every = any_folder.read_any(workdir)
  lines = [{key: line[key] for key in FACTS} for line in export.table_lines(every)]
  lines = [line for line in lines if (line['row'], line['column']) not in table.cells]
  return {'recorded': lines} if lines else {}


def _compared(one, **facts) -> dict:
  """The facts of a comparison with its estimate. adjusted: p after Holm over all comparisons of its kind."""
  limits = {key: getattr(one.interval, key) for key in ('estimate', 'low', 'high')}
  shared = {'regime': one.regime, 'metric': one.score.key, 'seeds': list(one.seeds)}
  significant = bool(one.adjusted <= comparisons.LEVEL)
  return facts | shared | limits | {'p': one.estimate.p, 'adjusted': one.adjusted, 'significant': significant}


def _gain(pair) -> dict:
  scratch, pretrained = pair.values()
  return _compared(
    pair,
    row=pair.pretrained.record['row'],
    column=pair.place,
    model=pair.name,
    scratch=scratch,
    pretrained=pretrained,
    operations=_operations(pair.scratch) / _operations(pair.pretrained),
  )


def _operations(cell) -> float:
  """Mean operations of a run, over both stages."""
  return cell.arm.mean(lambda run: run.total('flops'))


def _curves(table) -> list[dict]:
  """Validation of every seed of whole cells, over operations of training and over steps of finetuning."""
  curves = []
  for (row, column), cell in table.cells.items():
    for run in () if cell.open else cell.runs:
      if (curve := study_curves.of_operations(run)) is not None:
        flops, scores = (np.asarray(values).tolist() for values in curve)
        steps = np.asarray(run.curves['finetune']['validation'][run.score.key][0]).tolist()
        place = {'row': row, 'column': column, 'seed': run.seed}
        curves.append(place | {'flops': flops, 'steps': steps, 'score': scores})
  return curves


def _steps(cell) -> dict:
  """Steps of finetuning of every run, and the step of the state that was tested, where it is noted; of tasks
  with longer test splits also {split: {'length', metrics}} of every run."""
  stages = [run.result['stages'].get('finetune', {}) for run in cell.runs]
  longer = [run.result['metrics'].get('by_length') for run in cell.runs]
  return {
    'steps': [one.get('steps') for one in stages],
    'best_steps': [one.get('best_step') for one in stages],
    **({'by_length': longer} if any(longer) else {}),
  }


def _machines(cell, machines) -> list[int]:
  """The indices of the machines that made its runs."""
  kinds = [{key: value for key, value in one.items() if key != 'runs'} for one in machines]
  return sorted({kinds.index(provenance.machine(run.result)) for run in cell.runs})


def run_mini(arguments):
  """Writes the results of LRA-mini, or of another study of ours, and its runs.

    python -m benchmarks mini [--study=mini_table] --workdir=runs/mini --data_dir=data

  Reads the folder of `lra-spt study` and writes STUDY.json in benchmarks/results: every cell with its state,
  the learning rates that were tried, gains of self-pretraining (significant after Holm over all gains), and
  what the finished cells say together. STUDY_runs.jsonl beside it holds the runs, without weights. Runs that
  the folder lacks are restored first, so that the study continues with them.
  """
  parser = harness.parser(run_mini)
  parser.add_argument('--study', default='mini_table', choices=FILES, help='(%(default)s)')
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
    content = collected(options.study, options.workdir, f'lra-spt study {FILES[options.study]}')
    count = 0 if absent else archive.store(options.workdir, runs)
  except UserError as error:
    sys.exit(f'mini: {error}')
  print('\n'.join([*content['answers'], *archive.on_other_sets(runs, prints)]))
  print(f'{put} runs of {runs} were restored into {options.workdir}.')
  if absent:  # otherwise the files would lose these runs
    print(f'Nothing is written to {options.results}, for lack of {", ".join(absent)}.')
  else:
    harness.write(options.results / f'{options.study}.json', content)
    print(f'{count} runs are in {options.results}.')
