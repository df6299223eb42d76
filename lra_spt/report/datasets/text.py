"""The text of `lra-spt inspect` for a terminal: everything but the examples."""

import textwrap

from lra_spt.report.datasets import tables

WIDTH = 100
BRIEF = 12  # rows of the vocabulary; the page shows all of them


def text(inspection) -> str:
  """Facts, remarks and tables, as lines of at most WIDTH characters where tables are not wider."""
  task, facts = inspection.task, tables.facts(inspection)
  lines = [f'{task.dataset}, as task {task.name} reads it', task.description, '']
  width = max(len(name) for name, _ in facts)
  lines += [f'{name:<{width}}  {value}' for name, value in facts]
  lines += ['', 'Worth knowing']
  for sentence in tables.remarks(inspection) or ['Nothing odd was found.']:
    lines += textwrap.wrap(sentence, WIDTH, initial_indent='- ', subsequent_indent='  ')
  for table in tables.tables(inspection):
    lines += ['', table.title, *_aligned(table), *textwrap.wrap(table.note, WIDTH)]
  return '\n'.join(lines)


def _aligned(table):
  rows = table.rows if table.title != 'Vocabulary' else table.rows[:BRIEF]
  widths = [max(map(len, column)) for column in zip(table.head, *rows, strict=True)]
  for row in (table.head, *rows) if rows else ():
    first, *others = zip(row, widths, strict=True)
    cells = (f'{first[0]:<{first[1]}}', *(f'{cell:>{width}}' for cell, width in others))
    yield '  ' + '  '.join(cells).rstrip()
  if len(rows) < len(table.rows):
    yield f'  ... and {len(table.rows) - len(rows)} more, which the page of --out shows'
