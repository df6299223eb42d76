"""A table and its conclusions as plain text for a terminal."""

import functools
import itertools
import textwrap

from lra_spt.report.statistics.scores import ACCURACY
from lra_spt.report.study import notes
from lra_spt.report.study import table as tables
from lra_spt.report.study.sentences import headline, sentences

WIDTH = 110  # of a line


def text(table: tables.ResultTable) -> str:
  """The table: ours, and in parentheses the published number; cells without a run say so. Then the sentences
  of the page."""
  lines = [['', *table.shown_columns, *table.conventions]]
  for row in table.rows:
    cells = [table.cells.get((row, column)) for column in table.shown_columns]
    line = [row, *('' if cell is None else cell_text(cell) for cell in cells)]
    show = ACCURACY.show
    line += [f'{show(ours)} ({show(theirs)})' for _, ours, theirs in table.averages(row)]
    lines.append(line)
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  body = [
    '  '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
  ]
  if any(cell.published for cell in table.cells.values()):
    body.append('In parentheses: published.')
  marked = (*notes.cautions(table), *notes.failures(table), *table.findings.apart)
  marked = [f'! {sentence}' for sentence in marked]
  blocks = [
    [heading(table)],
    _wrapped([headline(table.main_findings)]),
    body,
    _wrapped(marked),
    _wrapped(conclusions(table)),
  ]
  return '\n\n'.join('\n'.join(block) for block in blocks if block)


def heading(table: tables.ResultTable) -> str:
  """'Title (study name), runs: 4 finished, 1 failed'."""
  study = f' (study {table.record["study"]})' if table.is_study else ''
  return f'{table.record["title"]}{study}, {counted(table)}'


def counted(table: tables.ResultTable) -> str:
  """'runs: 4 finished, 1 failed'."""
  parts = [f'{count} {key}' for key, count in table.counts.items() if count or key == 'finished']
  if unscored := sum(len(cell.unscored) for cell in table.cells.values()):
    parts.insert(1, f'{unscored} of these without a score')
  hidden = [name for name in table.columns if name not in table.shown_columns]
  return f'runs: {", ".join(parts)}' + (f'; none yet on {", ".join(hidden)}' if hidden else '')


def conclusions(table: tables.ResultTable) -> list[str]:
  """The sentences of page and terminal; none without a finished run."""
  return sentences(table.main_findings, table.cells.values()) if table.runs else []


def cell_text(cell: tables.TableCell) -> str:
  """'75.3 % (74.2)', or the state of a cell without a number."""
  ours = cell.text if cell.arm else cell.state
  if cell.arm and cell.remark:
    ours += f' [{cell.remark}]'
  return ours + (f' ({cell.published["printed"]})' if cell.published else '')


def _wrapped(paragraphs):
  # Paths stay whole.
  whole = {'break_long_words': False, 'break_on_hyphens': False}
  wrap = functools.partial(textwrap.wrap, width=WIDTH, subsequent_indent='  ', **whole)
  return list(itertools.chain.from_iterable(map(wrap, paragraphs)))
