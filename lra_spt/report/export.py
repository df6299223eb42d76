"""Tables for other programs: CSV and JSON with every number, LaTeX and Markdown for reading.

A line is a cell of the table: all seeds of one way of training one model on one task.
"""

import csv
import io
import json
import math
import re

from lra_spt.report.statistics.scores import ACCURACY
from lra_spt.report.study import notes
from lra_spt.report.study import table as studies
from lra_spt.report.study import text as study_text
from lra_spt.report.study.arms import mean, scaled

# The keys of a line. Scores are as in result.json, a share or R2, with a 95 % interval. Numbers that are not
# known are empty. scores: of every seed, null for a seed without one. unscored: the reason. FLOPs and seconds
# are of both stages, as means over seeds.
COLUMNS = (
  'row',
  'column',
  'task',
  'model',
  'regime',
  'causal',
  'protocol',
  'state',
  'seeds',
  'metric',
  'score',
  'low',
  'high',
  'scores',
  'unscored',
  'published',
  'published_source',
  'parameters',
  'flops',
  'seconds',
  'recorded',
  'folder',
  'gain_over',
  'gain',
  'gain_low',
  'gain_high',
  'gain_p',
  'gain_p_holm',
)
FORMULA = ('=', '+', '-', '@', '\t', '\r')  # A spreadsheet takes a text that begins so for a formula.


def text(table: studies.ResultTable, form: str) -> str:
  """The export as one text; form: 'csv', 'json', 'latex' or 'markdown'."""
  if form == 'csv':
    return to_csv(table_lines(table))
  if form == 'json':
    return json.dumps(table_lines(table), indent=2, allow_nan=False) + '\n'
  writer = {'latex': to_latex, 'markdown': to_markdown}[form]
  return writer(*table_grid(table), notes.cautions(table))


def table_lines(table: studies.ResultTable) -> list[dict]:
  """A line per cell, finished or not, with the keys COLUMNS."""
  gains = {pair.pretrained: pair for pair in table.findings.pairs if pair.main}
  return [_line(table, cell, gains.get(cell)) for cell in table.cells.values()]


def _line(table, cell, gain) -> dict:
  theirs = cell.published or {'value': None, 'source': ''}
  line = dict.fromkeys(COLUMNS) | {
    'row': cell.row,
    'column': cell.column,
    'state': cell.state,
    'seeds': [],
    'scores': [],
    'published': theirs['value'],
    'published_source': theirs['source'],
    'folder': _folder(table, cell),
  }
  if not (runs := cell.runs):
    return line
  first, score = runs[0], cell.arm and cell.arm.score
  line |= {
    'task': first.task,
    'model': first.model,
    'regime': first.regime,
    'causal': first.causal,
    'protocol': first.protocol,
    'seeds': [run.seed for run in runs],
    'metric': first.score.key,
    'score': score and _finite(score.estimate),
    'low': score and _finite(score.low),
    'high': score and _finite(score.high),
    'scores': [None if run.why_left_out else run.value for run in runs],
    'unscored': '; '.join(dict.fromkeys(run.why_left_out for run in cell.unscored)),
    'parameters': _finite(mean(runs, lambda run: run.result.get('parameters'))),
    'flops': _finite(mean(runs, lambda run: run.total('flops'))),
    'seconds': _finite(mean(runs, lambda run: run.total('seconds'))),
    'recorded': any(run.recorded for run in runs),
  }
  if gain:
    line |= {
      'gain_over': gain.scratch.row,
      'gain': _finite(gain.interval.estimate),
      'gain_low': _finite(gain.interval.low),
      'gain_high': _finite(gain.interval.high),
      'gain_p': _finite(gain.estimate.p),
      'gain_p_holm': _finite(gain.adjusted),
    }
  return line


def _folder(table, cell):
  if cell.record['folder']:
    return cell.record['folder'] if cell.record['seeds'] else ''
  return '; '.join(sorted(run.path.relative_to(table.workdir).as_posix() for run in cell.runs))


def _finite(number):
  return number if number is not None and math.isfinite(number) else None


def table_grid(table: studies.ResultTable):
  """(title, head, rows of texts) as on the page: ours with its interval, published, state."""
  head = ['', *table.columns, *table.conventions]
  rows = []
  for row in table.rows:
    cells = [table.cells.get((row, column)) for column in table.columns]
    line = [row, *('' if cell is None else _cell(cell) for cell in cells)]
    for _, ours, theirs in table.averages(row):
      line.append(_beside([ACCURACY.show(ours)], None if theirs is None else f'{100 * theirs:.2f}'))
    rows.append(line)
  return table.record['title'], head, rows


def _cell(cell) -> str:
  shown = [cell.text] if cell.arm else []
  if cell.arm and cell.arm.score.known:
    shown.append(f'[{cell.score.limits(cell.arm.score)}]')
  shown += [cell.remark] if cell.remark else []
  return _beside(shown, cell.published and cell.published['printed'])


def _beside(shown, published) -> str:
  return ' '.join([*shown, *([f'(published {published})'] if published else [])])


def to_csv(lines) -> str:
  """RFC 4180, but lines end with a line feed; lists are separated by spaces. A text that a spreadsheet would
  take for a formula gets an apostrophe before it."""
  file = io.StringIO()
  writer = csv.writer(file, lineterminator='\n')
  writer.writerow(COLUMNS)
  writer.writerows([_field(line[name]) for name in COLUMNS] for line in lines)
  return file.getvalue()


def _field(value):
  if isinstance(value, list):
    return ' '.join('null' if item is None else str(item) for item in value)
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, str) and value.startswith(FORMULA):
    return f"'{value}"
  return value


_LATEX = {
  '\\': r'\textbackslash{}',
  '{': r'\{',
  '}': r'\}',
  '$': r'\$',
  '&': r'\&',
  '#': r'\#',
  '%': r'\%',
  '_': r'\_',
  '^': r'\textasciicircum{}',
  '~': r'\textasciitilde{}',
  '<': r'\textless{}',
  '>': r'\textgreater{}',
  '|': r'\textbar{}',
  '"': r'{\char34}',
  '\u00a0': '~',
  '\u2013': '--',
  '\u2212': '$-$',
  '\u00d7': r'$\times$',
  '\u00b2': '$^2$',
  '\u2020': r'$\dagger$',
}


def latex_escaped(content: str) -> str:
  """Text as LaTeX prints it, on one line."""
  return ''.join(_LATEX.get(letter, letter) for letter in _one_line(content))


def to_latex(title, head, rows, notes) -> str:
  """A table with the rules of the package booktabs."""
  lines = [
    '% \\usepackage{booktabs}',
    '\\begin{table}',
    '\\centering',
    f'\\caption{{{latex_escaped(title)}}}',
    f'\\begin{{tabular}}{{{"l" * len(head)}}}',
    '\\toprule',
  ]
  for number, row in enumerate([head, *rows]):
    # Behind a line end, a bracket would be its optional argument; {} keeps them apart.
    lines.append(' & '.join('{}' * text.startswith('[') + latex_escaped(text) for text in row) + ' \\\\')
    lines += ['\\midrule'] if number == 0 else []
  lines += ['\\bottomrule', '\\end{tabular}']
  lines += [f'\\par\\footnotesize {latex_escaped(note)}' for note in notes]
  return '\n'.join([*lines, '\\end{table}', ''])


def markdown_escaped(content: str) -> str:
  """Text as Markdown shows it, within a cell of a table."""
  return re.sub(r'([\\`*_\[\]<>|~])', r'\\\1', _one_line(content))


def to_markdown(title, head, rows, notes) -> str:
  """A pipe table."""
  lines = [f'**{markdown_escaped(title)}**', '']
  for number, row in enumerate([head, *rows]):
    lines.append('| ' + ' | '.join(map(markdown_escaped, row)) + ' |')
    lines += ['|' + '---|' * len(head)] if number == 0 else []
  for note in notes:
    lines += ['', markdown_escaped(note)]
  return '\n'.join([*lines, ''])


def _one_line(content):
  return ' '.join(''.join(letter if letter.isprintable() else ' ' for letter in content).split(' ')).strip()


def gains_and_cost(table: studies.ResultTable) -> str:
  """Markdown of the table, then of gain and cost of every cell, then the conclusions."""
  gains = {pair.pretrained: pair.score.with_limits(pair.interval) for pair in table.findings.pairs}
  rows = []
  for cell in (cell for cell in table.cells.values() if cell.arm):
    parameters = cell.arm.mean(lambda run: run.result.get('parameters'))
    shown = '\u2013' if parameters is None else f'{parameters:,.0f}'
    operations = scaled(cell.arm.mean(lambda run: run.total('flops')), 'FLOP')
    bound = '\u2265 ' * any(run.flops_at_least for run in cell.runs)
    rows.append((cell.row, cell.column, gains.get(cell, ''), shown, bound + operations))
  head = ('', '', 'gain (95 %)', 'parameters', 'operations of training')
  more = to_markdown('Gains and cost', head, rows, study_text.conclusions(table))
  return f'{text(table, "markdown")}\n{more}'
