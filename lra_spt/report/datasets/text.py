"""What `lra-spt inspect` prints: everything but the examples, and how a document is written."""

import textwrap

import numpy as np

from lra_spt.data import tokenizers
from lra_spt.report.datasets.remarks import facts, remarks
from lra_spt.report.datasets.tables import tables

WIDTH = 100
# Rows of a long table that a terminal shows; the page shows all.
BRIEF = 12


def text(findings) -> str:
  """Everything but the examples, for a terminal."""
  lines = [f'{findings.task.dataset}, as task {findings.task.name} reads it', findings.task.description, '']
  width = max(len(name) for name, _ in facts(findings))
  lines += [f'{name:<{width}}  {value}' for name, value in facts(findings)]
  lines += ['', 'Worth knowing']
  for sentence in remarks(findings) or ['Nothing odd was found.']:
    lines += textwrap.wrap(sentence, WIDTH, initial_indent='- ', subsequent_indent='  ')
  for table in tables(findings):
    lines += ['', table.title, *_aligned(table)]
    if table.note:
      lines += textwrap.wrap(table.note, WIDTH)
  return '\n'.join(lines)


def _aligned(table):
  rows = table.rows if table.title != 'Vocabulary' else table.rows[:BRIEF]
  cells = [table.head, *rows]
  widths = [max(len(row[k]) for row in cells) for k in range(len(table.head))]
  lines = []
  for row in cells if table.head else ():
    first, *others = zip(row, widths, strict=True)
    padded = [f'{first[0]:<{first[1]}}', *(f'{cell:>{width}}' for cell, width in others)]
    lines.append('  ' + '  '.join(padded).rstrip())
  if len(rows) < len(table.rows):
    lines.append(f'  ... and {len(table.rows) - len(rows)} more, which the page of --out shows')
  return lines


def of_characters(findings) -> bool:
  """Whether tokens are characters, so that a text is read without blanks between them."""
  return all(len(t) == 1 for t in findings.metadata['vocabulary'] if t not in tokenizers.SPECIAL_TOKENS)


def excerpt(findings, ids: np.ndarray, most: int) -> list[tuple[str, bool]]:
  """The text of a document in pieces (text, whether it is a special token); the middle of a long one is '…'.

  Args:
    ids: of the document, uint8 [n].
    most: tokens to show, two thirds of them from its beginning.
  """
  vocabulary = findings.metadata['vocabulary']
  joint = '' if of_characters(findings) else ' '
  first = most * 2 // 3
  parts = [ids] if len(ids) <= most else [ids[:first], ids[len(ids) - (most - first) :]]
  pieces = []
  for k, part in enumerate(parts):
    if k:
      pieces.append((' … ', True))
    for i in part.tolist():
      name = vocabulary[i] if i < len(vocabulary) else f'<{i}>'
      special = name in tokenizers.SPECIAL_TOKENS
      if not special and pieces and not pieces[-1][1]:
        pieces[-1] = (pieces[-1][0] + joint + name, False)
      else:
        pieces.append((name, special))
  return pieces
