"""What `lra-spt inspect` says in words and tables; a terminal and the page show the same."""

import dataclasses
import textwrap

import numpy as np

from lra_spt.data import tokenizers
from lra_spt.data.examples import SPLITS
from lra_spt.data.tasks import Tokens

WIDTH = 100
# Rows of a long table that a terminal shows; the page shows all.
BRIEF = 12
# A normalised mean or deviation beyond these is worth a remark.
_MEAN_LIMIT, _STD_LIMITS = 0.15, (0.8, 1.25)
_COPIES = 'The same inputs more than once'
_SPLITTING = {
  'files': 'the splits are files of the set',
  'holdout': 'a tenth of the training file is held out for validation',
  'random': '80/10/10 of one file, at random',
  'reused': 'the test file is the validation set too, as published',
  'grouped': '70/15/15 of the groups of one file',
  'shuffled': '70/15/15 of the examples of one file at random, as published',
}
_CLASS_NAMES = {
  'cifar10': 'airplane automobile bird cat deer dog frog horse ship truck'.split(),
  'text': ['negative', 'positive'],
  'text_2048': ['negative', 'positive'],
  'retrieval': ['no citation', 'citation'],
  **{f'pathfinder{size}': ['apart', 'joined'] for size in (32, 64, 128, 256)},
}


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
  return f'{value:,.0f}' if abs(value) >= 10_000 else f'{value:.4g}'


def size(count: int) -> str:
  """Bytes in a unit that leaves few digits."""
  power = min(len(str(count)) - 1, 9) // 3
  return f'{count / 1000**power:.3g} {("bytes", "kB", "MB", "GB")[power]}'


def class_name(findings, label: int) -> str:
  """'3 cat', or '3' where the classes have no names."""
  metadata = findings.metadata  # of older sets without class_names
  names = metadata.get('class_names') or metadata.get('words') or _CLASS_NAMES.get(findings.task.dataset, ())
  return f'{label} {names[label]}' if label < len(names) else str(label)


def token(findings, number: int) -> str:
  """How an id is written: the token itself, U+XXXX for what cannot be seen."""
  vocabulary = findings.metadata['vocabulary']
  name = vocabulary[number] if number < len(vocabulary) else f'id {number}'
  return name if name.isprintable() and not name.isspace() else ' '.join(f'U+{ord(c):04X}' for c in name)


def facts(findings) -> list[tuple[str, str]]:
  """What the set says of itself, by name."""
  metadata, task = findings.metadata, findings.task
  how = metadata.get('verification', '')
  if metadata['verified']:
    verified = f'yes{f", {how}" if how else ""}'
  elif 'generator' in metadata:
    verified = 'no, generated here'
  else:
    verified = 'no' + (f', only {how}' if how not in ('', 'none') else ': taken as it was given')
  read = ', '.join(f'{len(c):,} of {c.total:,} {name}' for name, c in findings.contents.items())
  return [
    ('Folder', str(findings.folder)),
    ('Size on disk', size(findings.stored_bytes)),
    ('Source', metadata['source']),
    ('Verified', verified),
    ('Fingerprint', metadata['fingerprint']),
    ('Splits', f'{_SPLITTING[task.splits]} (protocol {findings.protocol})'),
    ('Read', 'everything' if findings.whole else f'a random sample: {read} examples'),
  ]


def baselines(findings) -> dict[str, tuple[int, float]]:
  """{split: (its most frequent class, its share)}."""
  counts = {name: np.bincount(c.label) for name, c in findings.contents.items()}
  return {name: (int(n.argmax()), float(n.max() / n.sum())) for name, n in counts.items()}


def remarks(findings) -> list[str]:
  """Sentences on what a reader should know before training on the set."""
  task, sample = findings.task, '' if findings.whole else ' read'
  said = [f'The {name} split has no examples.' for name in SPLITS if name not in findings.contents]
  if not findings.whole:
    said.append(
      'Only a random sample was read: copies are looked for within it, so there may be more; '
      '--sample 0 reads everything.'
    )
  if not findings.metadata['verified'] and 'generator' not in findings.metadata:
    said.append('This set was not shown to be the official one.')
  for o in findings.overlaps:
    total = f'{len(findings.contents[o.second]):,} {o.second} examples{sample}'
    if o.same:
      said.append(f'{o.same:,} of {total} are {o.first} examples: both splits read the same place.')
    if o.copies:
      where = 'an earlier one' if o.first == o.second else f'a {o.first} example'
      other = o.copies - o.agree
      labels = 'all with its label' if not other else f'{other:,} of them with another label'
      said.append(f'{o.copies:,} of {total} have the same inputs as {where}, {labels}.')
  for d in findings.documents:
    if d.shared:
      share = percent(d.pairs / len(findings.contents[d.second]))
      said.append(
        f'{d.shared:,} of {d.distinct:,} {d.second} documents{sample} are {d.first} documents too; '
        f'{share} of the {d.second} pairs hold such a document.'
      )
  names = list(findings.groups)
  for k, second in enumerate(names):
    for first in names[:k]:
      both = len(findings.groups[first] & findings.groups[second])
      if both:
        said.append(
          f'{both:,} groups, such as all recordings of a patient, have examples in {first} and in {second}.'
        )
  for name, (evaluated, wrong, _) in findings.evaluated.items():
    if wrong:
      said.append(f'{wrong:,} of {evaluated:,} {name} expressions do not have the value of their label.')
  of_inputs = _token_remarks if isinstance(task.inputs, Tokens) else _value_remarks
  return said + _label_remarks(findings) + of_inputs(findings)


def _label_remarks(findings):
  if findings.task.regression:
    low, high = findings.task.labels.range
    label = findings.first.label
    outside = int(((label < low) | (label > high)).sum())
    where = f'outside {low:g} to {high:g}, which the task takes for the range'
    return [f'{outside:,} of {len(label):,} {findings.first.split} labels are {where}.'] if outside else []
  said = []
  for name, contents in findings.contents.items():
    counts = np.bincount(contents.label, minlength=findings.task.classes)
    if not counts.all():
      missing = ', '.join(class_name(findings, k) for k in np.flatnonzero(counts == 0))
      said.append(f'No {name} example has the label {missing}.')
  found = baselines(findings)
  if max(share for _, share in found.values()) > 1.25 / findings.task.classes:
    shares = ', '.join(f'{percent(share)} of {name}' for name, (_, share) in found.items())
    said.append(
      f'Classes are not balanced: always answering the most frequent one is right on {shares}; of '
      f'balanced classes it would be {percent(1 / findings.task.classes)}.'
    )
  return said


def _value_remarks(findings):
  said, task = [], findings.task
  for name, contents in findings.contents.items():
    if contents.values.constant:
      said.append(f'{contents.values.constant:,} of {len(contents):,} {name} examples hold one value only.')
  mean, std = findings.first.values.normalised(task)
  for channel, (m, s) in enumerate(zip(mean, std, strict=True)):
    if abs(m) > _MEAN_LIMIT or not _STD_LIMITS[0] <= s <= _STD_LIMITS[1]:
      which = f' channel {channel} of' if len(mean) > 1 else ''
      said.append(
        f'Normalised with the constants of the task,{which} {findings.first.split} has mean '
        f'{m:.2f} and deviation {s:.2f}, not near 0 and 1.'
      )
  for name, contents in findings.contents.items():
    others = contents.values.normalised(task)[1]
    for channel, (s, other) in enumerate(zip(std, others, strict=True)):
      if not 0.5 <= other / max(s, 1e-9) <= 2:
        said.append(
          f'Channel {channel} varies otherwise in {name} than in {findings.first.split}: '
          f'normalised deviation {other:.2f} against {s:.2f}.'
        )
  if findings.protocol == 'paper' and task.published.position_statistics:
    said.append('The paper normalises every position by itself, so the constants here do not count.')
  return said


def _token_remarks(findings):
  said, task = [], findings.task
  known = len(findings.metadata['vocabulary'])
  if known < task.vocabulary:
    said.append(
      f'The set has {known} token ids, the task {task.vocabulary}: the last '
      f'{task.vocabulary - known} rows of the embedding are never used.'
    )
  for name, contents in findings.contents.items():
    for i in (tokenizers.MASK, tokenizers.PAD):
      if contents.ids[i]:
        said.append(f'{tokenizers.SPECIAL_TOKENS[i]} occurs {contents.ids[i]:,} times within {name} inputs.')
    if contents.unended:
      total = contents.lengths.size
      said.append(f'{contents.unended:,} of {total:,} {name} inputs do not end in <eos>.')
    unknown = contents.ids[tokenizers.UNKNOWN] / contents.ids.sum()
    if unknown > 0.01:
      said.append(f'{percent(unknown)} of the {name} tokens are <unk>.')
  return said


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
    head = ('Split', 'Evaluated', 'Other than label', 'Cut off')
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
  note = f'What always answering the most frequent class reaches: {majority}.'
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
  head = ('Split', 'Examples', 'Mean', 'Deviation', 'Least', '25 %', 'Median', '75 %', 'Most', 'Error', 'R2')
  note = (
    f'Error (mean absolute) and R2 are those of always answering the mean label of {findings.first.split}. '
    f'The task standardises labels by mean {task.labels.mean:g} and deviation {task.labels.std:g}.'
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
  head = ('Split', what, 'Least', '25 %', 'Median', '75 %', 'Most', 'Mean', f'At {task.length:,}')
  note = f'In tokens, with <eos>. What has {task.length:,} was cut, or is exactly as long.'
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
  return Table('Tokens', head, rows, f'{known} ids; <mask> and <pad> are not counted among those never seen.')


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
  head = ('Split', 'Channel', 'Mean', 'Deviation', 'Least', 'Most', 'Mean norm.', 'Dev. norm.', 'Constant')
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
  scope = '' if findings.whole else ' Among what was read.'
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
