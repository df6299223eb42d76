"""The table of a folder of runs that are no study: their configs say which row and column they belong to."""

import dataclasses

from lra_spt import files
from lra_spt.errors import DamagedFile, FileAccessError, MissingFile
from lra_spt.report.published import TASK_NAMES
from lra_spt.report.runs import run as runs_lib
from lra_spt.report.runs import run_folder, unfinished
from lra_spt.report.runs.arm_key import ArmKey, key_of, model_name
from lra_spt.report.runs.run import FinishedRun, in_what_they_differ, settings
from lra_spt.report.study import table
from lra_spt.report.study.arms import published_of
from lra_spt.report.study.record import is_study

TITLE = 'Self-pretraining against training from scratch'
SHOWN = 3  # values in the name of an arm


@dataclasses.dataclass(frozen=True, eq=False)
class _Placed:
  """A run with what decides its cell. run: None if it is not finished."""

  key: ArmKey
  arm: str
  seed: int
  path: object
  settings: dict
  run: FinishedRun | None = None

  @property
  def place(self):
    """Runs of one place are in one cell, unless their settings differ."""
    question = self.key.question
    return question.task, question.metric, question.model, question.protocol, *self.key.order, self.arm


def read_any(workdir, *, may_be_empty: bool = False) -> table.ResultTable:
  """The ResultTable of any folder with runs in or below it. Recorded runs in the folder of a study, outside
  of its cells, are rows after those of the study.

  Raises:
    MissingFile: there is no such folder, or no run in it. DamagedFile: all runs are damaged.
  """
  workdir = files.place(workdir)
  if is_study(workdir):
    return _with_recorded(table.read_table(workdir))
  damaged, placed = [], []
  begun = runs_lib.outside_searches(workdir, unfinished.folders(workdir)) if workdir.is_dir() else []
  for folders, read in ((runs_lib.finished(workdir), _finished), (begun, _begun)):
    for folder in folders:
      try:
        placed += read(folder)
      except (DamagedFile, FileAccessError) as error:
        damaged.append(table.DamagedRun(folder, str(error)))
  if damaged and not placed:
    raise DamagedFile(damaged[0].sentence)
  if not (placed or may_be_empty):
    raise MissingFile(
      f'there is no finished run in or below {workdir} (a run is finished when its folder holds a '
      f'{run_folder.RESULT}): run `lra-spt train` or `lra-spt demo` first.'
    )
  return _table(placed, workdir, damaged)


def _with_recorded(study):
  """Adds the recorded runs outside of its cells to the table of a study; leaves a figure as it is."""
  if study.record.get('chart'):
    return study
  cells = {study.workdir / cell.record['folder'] for cell in study.cells.values()}
  placed, damaged = [], []
  for folder in runs_lib.finished(study.workdir):
    if folder.parent not in cells:
      try:
        placed += [one for one in _finished(folder) if one.run.recorded]
      except (DamagedFile, FileAccessError) as error:
        damaged.append(table.DamagedRun(folder, str(error)))
  columns = {run.task: cell.column for cell in study.cells.values() for run in cell.runs}
  more = {}
  for (row, column), cell in _table(placed, study.workdir).cells.items():
    column = columns.get(cell.runs[0].task, column)
    row += ', recorded' * ((row, column) in study.cells)
    more[row, column] = dataclasses.replace(cell, record=cell.record | {'row': row, 'column': column})
  record = study.record | {
    'rows': list(dict.fromkeys([*study.rows, *(row for row, _ in more)])),
    'columns': list(dict.fromkeys([*study.columns, *(column for _, column in more)])),
  }
  return table.ResultTable(study.workdir, record, study.cells | more, tuple(damaged))


def _finished(folder):
  run = runs_lib.read_whole(folder)
  yield _Placed(run.key, run.arm, run.seed, folder, settings(run.result), run)


def _begun(folder):
  config = unfinished.read(folder)
  if config is not None:
    key = key_of(config)
    yield _Placed(key, key.name, config['seed'], folder, settings(config))


def _table(placed, workdir, damaged=()):
  groups = {}
  for one in sorted(_named(placed), key=lambda one: (*one.place, one.seed)):
    groups.setdefault(one.place, []).append(one)
  questions = [one.key.question for one in placed]
  protocols = len({question.protocol for question in questions}) > 1
  metrics = len({(question.task, question.metric) for question in questions})
  scores = metrics > len({question.task for question in questions})
  cells = {}
  for same in groups.values():
    question = same[0].key.question
    column = TASK_NAMES.get(question.task, question.task) + (f', {question.metric}' if scores else '')
    for name, alike in _variants(same, workdir):
      row = f'{model_name(question.model)}, {name}' + (f', protocol {question.protocol}' if protocols else '')
      cells[row, column] = _cell(row, column, name, alike)
  order = list(TASK_NAMES.values())
  record = {
    'study': '',
    'title': TITLE,
    'about': '',
    'rows': _rows(cells),
    'columns': sorted(
      dict.fromkeys(column for _, column in cells),
      key=lambda name: order.index(name) if name in order else len(order),
    ),
    'averages': False,
    'show': '',
    'cells': [cell.record for cell in cells.values()],
  }
  return table.ResultTable(workdir, record, cells, tuple(damaged))


def _rows(cells):
  """Rows by model and arm, whatever tasks they have."""

  def order(row):
    key, name = next((cell.record['key'], cell.training) for (r, _), cell in cells.items() if r == row)
    return key.question.model, key.question.protocol, key.order, name

  return sorted(dict.fromkeys(row for row, _ in cells), key=order)


def _named(placed):
  """Yields runs with the names of their arms, which mark recorded runs beside trained ones, and compute-tied
  arms. A run without a result gets the metric of finished runs of its task."""
  trained = {one.place for one in placed if not (one.run and one.run.recorded)}
  metrics = {one.key.question.task: one.key.question.metric for one in placed if one.run}
  keys = {}
  for one in placed:
    keys.setdefault(one.key.question, set()).add(one.key)
  for one in placed:
    key, arm = one.key, one.arm
    if not one.run and (metric := metrics.get(key.question.task)):
      key = dataclasses.replace(key, question=dataclasses.replace(key.question, metric=metric))
    if one.run and one.run.recorded and one.place in trained:  # they are not seeds of one training
      arm += ', recorded'
    if arm == key.name and any(map(key.is_tied_to, keys.get(key.question, ()))):
      arm += ', compute-tied'
    yield dataclasses.replace(one, key=key, arm=arm)


def _variants(same, workdir):
  """Yields (name, runs) of the arms of one place. If settings differ, the names have the values. If two runs
  with equal settings have one seed, each run is an arm, with its folder in the name."""
  keys, variants = in_what_they_differ([one.settings for one in same]), {}
  for one in same:
    parts = [f'{key.replace(".optimizer.", " ")} {one.settings[key]}' for key in keys if one.settings]
    more = [f'{len(parts) - SHOWN} more'] if len(parts) > SHOWN else []
    values = tuple(str(one.settings.get(key)) for key in keys)
    variants.setdefault((', '.join([one.arm, *parts[:SHOWN], *more]), values), []).append(one)
  for number, ((name, _), alike) in enumerate(variants.items()):
    name += f' ({number + 1})' if sum(name == other for other, _ in variants) > 1 else ''
    if len({one.seed for one in alike}) == len(alike):
      yield name, alike
    else:
      yield from ((f'{name}, {one.path.relative_to(workdir)}', [one]) for one in alike)


def _cell(row, column, name, alike):
  runs = [one.run for one in alike if one.run]
  row_of_paper = published_of(runs[0]) if runs else None
  record = {
    'row': row,
    'column': column,
    'training': name,
    'key': alike[0].key,
    'folder': '',
    'seeds': [one.seed for one in alike],
    'config': '',
    'overrides': {},
    'note': '',
    'search': [],
    'x': None,
    'published': row_of_paper
    and {
      'value': row_of_paper.value / 100 if runs[0].score.in_percent else row_of_paper.value,
      'printed': row_of_paper.printed,
      'source': row_of_paper.source,
    },
  }
  open_runs = [table.open_run(one.seed, one.path) for one in alike if not one.run]
  return table.cell_of(record, runs, open_runs)
