"""Tables of `lra-spt inspect`; a terminal (`text.py`) and the page show the same."""

import dataclasses

import numpy as np

from lra_spt.data import tokenizers
from lra_spt.data.tasks import Tokens

_COPIES = 'The same inputs more than once'


@dataclasses.dataclass(frozen=True)
class Table:
  """Cells are text; the first column names the row."""

  title: str
  head: tuple[str, ...]
  rows: list[tuple[str, ...]]
  note: str = ''


def percent(share: float) -> str:
  """0.1234 -> '12.3 %'; what is above 0 does not look like 0, nor what is below 1 like 100."""
  if share in (0, 1):
    return f'{100 * share:.0f} %'
  if share < 0.001:
    return '< 0.001 %' if share < 0.00001 else f'{100 * share:.3f} %'
  return f'{min(100 * share, 99.9):.1f} %'


def number(value: float) -> str:
  """Four digits, without an exponent where that is readable."""
  return f'{value:,.0f}' if abs(value) >= 9999.5 else f'{value:.4g}'


def size(count: int) -> str:
  """Bytes in a unit that leaves few digits."""
  units = ('bytes', 'kB', 'MB', 'GB', 'TB')
  power = next((power for power in range(4) if count / 1000**power < 999.5), 4)
  return f'{count / 1000**power:.3g} {units[power]}'


def class_name(findings, label: int) -> str:
  """'3 cat', or '3' where the classes have no names."""
  names = findings.metadata.get('class_names') or findings.metadata.get('words') or ()
  return f'{label} {names[label]}' if label < len(names) else str(label)


def token(findings, number: int) -> str:
  """How an id is written: the token itself, U+XXXX for what cannot be seen."""
  vocabulary = findings.metadata['vocabulary']
  name = vocabulary[number] if number < len(vocabulary) else f'id {number}'
  return name if name.isprintable() and not name.isspace() else ' '.join(f'U+{ord(c):04X}' for c in name)


def baselines(findings) -> dict[str, tuple[int, float]]:
  """{split: (its most frequent class, its share)}."""
  counts = {name: np.bincount(c.label) for name, c in findings.contents.items()}
  return {name: (int(n.argmax()), float(n.max() / n.sum())) for name, n in counts.items()}


def tables(findings) -> list[Table]:
  """All tables, in the order in which they are shown."""
  task = findings.task
  shown = [_regression_table(findings) if task.regression else _class_table(findings)]
  if isinstance(task.inputs, Tokens):
    shown += [_length_table(findings), _id_table(findings), token_table(findings)]
  else:
    shown.append(_value_table(findings))
  shown.append(_overlap_table(findings))
  if any(o.pairs for o in findings.overlaps):
    shown.append(_copies_table(findings))
  if findings.documents:
    rows = [
      (
        f'{d.first} and {d.second}',
        f'{d.shared:,} of {d.distinct:,}',
        percent(d.shared / d.distinct),
        f'{d.pairs:,}',
        percent(d.pairs / len(findings.contents[d.second])),
      )
      for d in findings.documents
    ]
    head = ('In both', 'Documents', 'Share', 'Pairs with one', 'Share')
    shown.append(Table('Documents shared between splits', head, rows, 'Counted in the second split.'))
  if findings.groups:
    rows = [
      (name, f'{len(g):,}', *(f'{len(g & other):,}' for other in findings.groups.values()))
      for name, g in findings.groups.items()
    ]
    head = ('Split', 'Groups', *(f'of them in {name}' for name in findings.groups))
    shown.append(Table('Groups that belong together', head, rows, 'Such as all recordings of a patient.'))
  if findings.evaluated:
    rows = [(name, *(f'{n:,}' for n in row)) for name, row in findings.evaluated.items()]
    head = ('Split', 'Evaluated', 'Differ from label', 'Cut off')
    shown.append(Table('Expressions evaluated again', head, rows, 'A random sample of each split.'))
  return shown


def _class_table(findings):
  counts = {n: np.bincount(c.label, minlength=findings.task.classes) for n, c in findings.contents.items()}
  rows = []
  for k in range(findings.task.classes):
    cells = ((f'{n[k]:,}', percent(n[k] / n.sum())) for n in counts.values())
    rows.append((class_name(findings, k), *(cell for pair in cells for cell in pair)))
  rows.append(('all', *(cell for n in counts.values() for cell in (f'{n.sum():,}', ''))))
  majority = '; '.join(
    f'{name} {percent(share)} ({class_name(findings, k)})' for name, (k, share) in baselines(findings).items()
  )
  head = ('Label', *(cell for name in counts for cell in (name.capitalize(), 'Share')))
  note = f'Accuracy of always answering the most frequent class: {majority}.'
  return Table('Labels', head, rows, note)


def _regression_table(findings):
  centre = findings.first.label.mean(dtype=np.float64)
  rows = []
  for name, contents in findings.contents.items():
    label = contents.label.astype(np.float64)
    quartiles = (number(q) for q in np.quantile(label, (0, 0.25, 0.5, 0.75, 1)))
    spread = label.var()
    r2 = f'{round(1 - np.mean((label - centre) ** 2) / spread, 3) + 0.0:.3f}' if spread else '–'
    cells = (number(label.mean()), number(label.std()), *quartiles, number(np.abs(label - centre).mean()), r2)
    rows.append((name, f'{len(label):,}', *cells))
  task = findings.task
  head = ('Split', 'Examples', 'Mean', 'Std', 'Min', '25 %', 'Median', '75 %', 'Max', 'Error', 'R2')
  note = (
    f'Error (mean absolute) and R2 are those of always answering the mean label of {findings.first.split}. '
    f'The task standardises labels by mean {task.labels.mean:g} and standard deviation {task.labels.std:g}.'
  )
  return Table('Labels', head, rows, note)


def _length_table(findings):
  rows, task = [], findings.task
  for name, contents in findings.contents.items():
    lengths = contents.lengths.ravel()
    quartiles = (f'{q:,.0f}' for q in np.quantile(lengths, (0, 0.25, 0.5, 0.75, 1)))
    rows.append(
      (
        name,
        f'{len(lengths):,}',
        *quartiles,
        f'{lengths.mean():,.1f}',
        percent((lengths == task.length).mean()),
      )
    )
  what = 'Documents' if task.documents == 2 else 'Examples'
  head = ('Split', what, 'Min', '25 %', 'Median', '75 %', 'Max', 'Mean', f'At {task.length:,}')
  note = f'In tokens, <eos> included. Those with {task.length:,} were cut, or are exactly as long.'
  return Table('Lengths', head, rows, note)


def _id_table(findings):
  rows, known = [], len(findings.metadata['vocabulary'])
  for name, contents in findings.contents.items():
    ids = contents.ids[:known]
    used = np.delete(ids, [tokenizers.MASK, tokenizers.PAD])
    unseen = int((used == 0).sum())
    rows.append(
      (
        name,
        f'{ids.sum():,}',
        percent(ids[tokenizers.UNKNOWN] / ids.sum()),
        f'{unseen:,}',
        percent(unseen / len(used)),
        f'{contents.unended:,}',
      )
    )
  head = ('Split', 'Tokens', '<unk>', 'Ids never seen', 'Share', 'Without <eos>')
  return Table('Tokens', head, rows, f'{known} ids; <mask> and <pad> do not count as never seen.')


def token_table(findings) -> Table:
  """Every id of the vocabulary, with the share of the tokens that it has in every split."""
  all_ids = [contents.ids for contents in findings.contents.values()]
  known = range(len(findings.metadata['vocabulary']))
  rows = [
    (token(findings, i), f'{all_ids[0][i]:,}', *(percent(ids[i] / ids.sum()) for ids in all_ids))
    for i in sorted(known, key=lambda i: -all_ids[0][i])
  ]
  head = ('Token', f'In {findings.first.split}', *(name.capitalize() for name in findings.contents))
  return Table('Vocabulary', head, rows, 'Most frequent first, with the share of all tokens of each split.')


def _value_table(findings):
  rows, task = [], findings.task
  for name, contents in findings.contents.items():
    v = contents.values
    mean, std = v.normalised(task)
    for k in range(len(v.mean)):
      cells = (number(c[k]) for c in (v.mean, v.std, v.least, v.most))
      rows.append((name, str(k), *cells, f'{mean[k]:.3f}', f'{std[k]:.3f}', f'{v.constant:,}'))
  head = ('Split', 'Channel', 'Mean', 'Std', 'Min', 'Max', 'Mean norm.', 'Std norm.', 'Constant')
  note = (
    f'{task.inputs.dtype}, {task.length:,} positions each; as stored and normalised with the constants of '
    'the task. '
    'Constant: examples that hold one value only.'
  )
  return Table('Values', head, rows, note)


def _overlap_table(findings):
  rows = []
  for o in findings.overlaps:
    count, other = len(findings.contents[o.second]), o.copies - o.agree
    cells = (f'{o.same:,}', f'{o.copies:,}', percent(o.copies / count), f'{o.agree:,}', f'{other:,}')
    rows.append((_where(o), *cells))
  scope = '' if findings.whole else ' Among the examples read.'
  if not any(o.copies or o.same for o in findings.overlaps):
    return Table(_COPIES, (), [], f'No inputs occur twice, within a split or between splits.{scope}')
  head = ('Where', 'Same place', 'Copies', 'Share', 'Same label', 'Other label')
  note = 'Copies: examples with exactly the inputs of another one, counted in the split named first.'
  if findings.task.documents == 2:
    note += ' Pairs are compared in either order.'
  return Table(_COPIES, head, rows, note + scope)


def _copies_table(findings):
  """Where to look: positions of some copies and of what they are copies of."""
  rows = []
  for o in (o for o in findings.overlaps if o.pairs):
    named = (f'{b} = {a}{"" if agrees else " (other label)"}' for a, b, agrees in o.pairs)
    rows.append((_where(o), ', '.join(named)))
  return Table('Some of the copies', ('Where', 'Positions in the stored files'), rows)


def _where(overlap):
  if overlap.first == overlap.second:
    return f'within {overlap.first}'
  return f'{overlap.second}, in {overlap.first}'
