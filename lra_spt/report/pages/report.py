"""report.html of a ResultTable: a picture, the table, at most five sentences; the rest is folded."""

import pathlib
import shlex

from lra_spt.config import loading
from lra_spt.report import published
from lra_spt.report.pages import curves, document, inside, picture
from lra_spt.report.pages.sections import compared_sections, cost, kernels, restored_inputs, run_settings
from lra_spt.report.pages.study_figures import figures
from lra_spt.report.runs import run_folder
from lra_spt.report.runs.run import RECORDED
from lra_spt.report.statistics.scores import ACCURACY
from lra_spt.report.study import notes, text
from lra_spt.report.study import table as tables
from lra_spt.report.study.arms import duration, scaled
from lra_spt.report.study.sentences import headline

TAIL = 12  # lines of a log
# A cell of the table without content.
EMPTY = dict.fromkeys(('value', 'limits', 'gain', 'direction', 'published', 'moved', 'state'), '')


def write(table: tables.ResultTable, path=None, title: str = '', story: str = '') -> pathlib.Path:
  """Writes the page as one HTML file without external resources, at once or not at all.

  Args:
    path: of the file; by default report.html in the folder of the runs.
    title: plain text; by default that of the study.
    story: plain text under the title, paragraphs separated by empty lines; by default that of the study.

  Raises:
    FileAccessError: the file cannot be written.
  """
  path, title = path or table.workdir / 'report.html', title or table.record['title']
  return document.write_page(path, 'report.html', script='tables.js', title=title, **view(table, story))


def view(table: tables.ResultTable, story: str = '') -> dict:
  """Everything but the title that the page shows."""
  record = table.record
  return {
    'heading': f'Study {record["study"]}, {text.counted(table)}' if table.is_study else text.counted(table),
    'headline': document.unbroken(headline(table.main_findings)),
    'story': [part.strip() for part in (story or record['about']).split('\n\n') if part.strip()],
    'cautions': notes.cautions(table),
    'failures': notes.failures(table),
    'charts': figures(table),
    'panels': picture.panels(table),
    'key': picture.key(table),
    'head': [*table.shown_columns, *table.conventions],
    'conventions': table.conventions,
    'rows': [_row(table, row) for row in table.rows],
    'answers': [document.unbroken(sentence) for sentence in text.conclusions(table)],
    'compared': compared_sections(table.findings),
    'curves': curves.of_table(table),
    'kernels': kernels(table),
    'inside': inside.sections(table),
    'restored': restored_inputs(table),
    'cost': cost(table),
    'how': run_settings(table.runs),
    'notes': notes.on_intervals(table),
    'paper': _paper({run.published['task'] for run in table.runs if run.published}),
    'details': [_details(table, cell) for cell in table.cells.values()],
    'table_text': text.text(table),
  }


def _row(table, row):
  """(name, [contents of a cell])."""
  gains = {pair.pretrained: pair for pair in table.findings.pairs if pair.main}
  cells = [table.cells.get((row, column)) for column in table.shown_columns]
  shown = [cell and _cell(cell, gains.get(cell)) for cell in cells]
  for _, ours, theirs in table.averages(row):
    printed = None if theirs is None else f'{100 * theirs:.2f}'
    rank = theirs if ours is None else ours
    shown.append(EMPTY | {'value': ACCURACY.show(ours), 'published': printed, 'rank': rank})
  return row, shown


def _cell(cell, gain):
  theirs, moved = cell.published, ''
  if cell.arm and theirs and theirs['value'] is not None:
    moved = cell.score.signed(cell.arm.score.estimate - theirs['value'])
  return {
    'value': cell.text if cell.arm else '',
    'limits': cell.score.limits(cell.arm.score) if cell.arm and cell.arm.score.known else '',
    'gain': gain and gain.score.with_limits(gain.interval),
    'direction': gain and gain.direction,
    'published': theirs and theirs['printed'],
    'moved': moved,
    'state': cell.remark,
    'rank': cell.arm.score.estimate if cell.arm else tables.published(cell),
  }


def _paper(tasks):
  """The paper's rows for its own models (Tables 1 and 2); the columns of our tasks are marked."""
  shown = ('transformer', 'transformer_rotary', 's4')
  rows = {}
  for row in published.ROWS:
    if row.table <= 2 and row.model in shown:
      rows.setdefault((row.table, row.approach), {})[row.task] = row.printed.removesuffix(' %')
  columns = [*published.LRA, 'pathx256']
  return {
    'source': published.PAPER,
    'columns': [(published.TASK_NAMES[task], task in tasks) for task in columns],
    'rows': [
      (table, approach, [cells.get(task, '\u2013') for task in columns])
      for (table, approach), cells in rows.items()
    ],
  }


def _details(table, cell):
  record, base = cell.record, _neighbour(table, cell)
  command = ''
  if record['config'] and record['seeds']:
    more = [f'--config.{key}={value}' for key, value in record['overrides'].items()]
    more += [f'--register={path}' for path in table.record.get('register', ())]
    more += ['--smoke'] if table.record.get('smoke') else []
    more += [f'--config.seed={record["seeds"][0]}', '--workdir=W']
    command = shlex.join(['lra-spt', 'train', f'--config={record["config"]}', *more])
  return {
    'cell': cell,
    'record': record,
    'command': command,
    'tried': [
      [
        (one['values'], _validation(cell.score, one), 'won' if one['values'] == part['won'] else '')
        for one in part['tried']
      ]
      for part in record['search']
    ],
    'base': base and base.row,
    'differences': loading.difference(_config(base), _config(cell)) if base else '',
    'runs': [
      {
        'seed': run.seed,
        'value': (run.why_left_out or run.score.show(run.value)) + f' {RECORDED}' * bool(run.recorded),
        'parameters': f'{run.result.get("parameters") or 0:,}',
        'flops': '\u2265 ' * run.flops_at_least + scaled(run.total('flops'), 'FLOP'),
        'seconds': duration(run.total('seconds')),
        'date': run.result.get('date') or 'not known',
        'commit': (run.result.get('commit') or 'not known')[:12],
        'path': run.path.relative_to(table.workdir),
      }
      for run in cell.runs
    ],
    'open': [(run, _tail(run.path / run_folder.LOG)) for run in cell.open],
  }


def _validation(score, tried):
  """The validation score of values that a search tried, or the loss where it is not defined."""
  loss = tried.get('loss')
  return score.show(tried['score']) if loss is None else f'no {score.name}, loss {loss:.4g}'


def _tail(log):
  if not log.exists():
    return ''
  with log.open('rb') as file:
    file.seek(max(0, log.stat().st_size - 8000))
    return '\n'.join(file.read().decode('utf-8', 'replace').splitlines()[-TAIL:])


def _neighbour(table, cell):
  """Returns the cell that the settings of a cell are compared with: in its column the first cell of its
  model or, if that is the cell itself, the first cell. None if both are the cell itself, or it has no run
  with a config."""
  same = [other for other in table.cells.values() if other.column == cell.column and _config(other)]
  if cell not in same:
    return None
  alike = [other for other in same if other.runs[0].model == cell.runs[0].model]
  return next((other for other in (alike[0], same[0]) if other is not cell), None)


def _config(cell):
  config = (cell.runs[0].result.get('config') or {}) if cell.runs else {}
  return {key: value for key, value in config.items() if key != 'seed'}
