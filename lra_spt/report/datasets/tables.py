"""Tables, facts and remarks of `lra-spt inspect`. The terminal and the page show the same ones."""

import dataclasses
import itertools

import numpy as np

from lra_spt.data import scorable, tokenizers
from lra_spt.data.examples import SPLITS
from lra_spt.data.tasks import Tokens
from lra_spt.errors import counted
from lra_spt.report.study import notes

# A normalised mean or deviation beyond these limits is worth a remark.
_MEAN_LIMIT, _STD_LIMITS = 0.15, (0.8, 1.25)
_SPLITTING = {
  'files': 'as in the files of the set',
  'holdout': 'a tenth of the training file held out for validation',
  'random': '80/10/10 of one file, at random',
  'stratified': 'the same share of every class in each, at random',
  'reused': 'the test file used for validation too, as published',
  'grouped': '70/15/15 of the groups of one file',
  'shuffled': '70/15/15 of the examples of one file at random, as published',
}
_QUARTILES = ('Min', '25 %', 'Median', '75 %', 'Max')


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of texts.

  Attributes:
    title: its heading.
    head: names of the columns.
    rows: cells; the first one names the row.
    note: a text below the table.
    remarks: sentences on what a reader should know before training.
  """

  title: str
  head: tuple[str, ...]
  rows: list[tuple[str, ...]]
  note: str = ''
  remarks: list[str] = dataclasses.field(default_factory=list)


def percent(share: float) -> str:
  """0.1234 -> '12.3 %'. A share above 0 never reads as 0, and one below 1 never reads as 100."""
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


def class_name(inspection, label: int) -> str:
  """'3 cat', or '3' where the classes have no names."""
  names = inspection.metadata.get('class_names') or ()
  return f'{label} {names[label]}' if label < len(names) else str(label)


def facts(inspection) -> list[tuple[str, str]]:
  """(name, value) of what is recorded about the set."""
  metadata, task = inspection.metadata, inspection.task
  how = metadata.get('verification', '')
  if metadata['verified']:
    verified = f'yes{f", {how}" if how else ""}'
  elif not notes.unverified(metadata):
    verified = 'no, generated here' if 'generator' in metadata else 'no, files of its user'
  else:
    verified = 'no' + (f', only {how}' if how not in ('', 'none') else ': used as it was given')
  read = ', '.join(f'{len(c):,} of {c.total:,} {name}' for name, c in inspection.contents.items())
  checked = 'recomputed' if inspection.recomputed else 'as recorded'
  return [
    ('Folder', str(inspection.folder)),
    ('Size on disk', size(inspection.stored_bytes)),
    ('Source', metadata['source']),
    ('Verified', verified),
    ('Fingerprint', f'{metadata["fingerprint"]} ({checked})'),
    ('Splits', f'{_SPLITTING[task.splits]} (protocol {inspection.protocol})'),
    ('Read', 'everything' if inspection.whole else f'a random sample: {read} examples'),
  ]


def remarks(inspection) -> list[str]:
  """Sentences on what a reader should know before training on the set."""
  general = [f'The {name} split has no examples.' for name in SPLITS if name not in inspection.contents]
  general += _on_scores(inspection)
  general += [
    f'{c.unlabelled:,} of {len(c):,} {name} examples have no label: only pretraining reads them.'
    for name, c in inspection.contents.items()
    if c.unlabelled
  ]
  if not inspection.whole:
    general.append('Only a random sample was read, so there may be more copies; --sample 0 reads everything.')
  if notes.unverified(inspection.metadata):
    general.append('This set was not verified to be the official one.')
  return general + [remark for table in tables(inspection) for remark in table.remarks]


def _on_scores(inspection):
  """Yields sentences on splits whose score is not defined or says little, if all examples were read."""
  for split, contents in inspection.contents.items() if inspection.whole else ():
    if split in scorable.MEANING:
      why = scorable.why_no_r2_of(contents.real_label) if inspection.task.regression else ''
      yield from scorable.remark(split, f'the {split} split', len(contents), why)


def tables(inspection) -> list[Table]:
  """All tables, in the order in which they are shown."""
  task = inspection.task
  builders = [_real_labels if task.regression else _classes]
  builders += [_lengths] * task.inputs.padded
  builders += [_tokens, _vocabulary] if isinstance(task.inputs, Tokens) else [_values]
  builders.append(_copies)
  builders += [_documents] * bool(inspection.documents) + [_groups] * bool(inspection.groups)
  return [build(inspection) for build in builders]


def _classes(inspection):
  task, classes = inspection.task, inspection.task.classes
  counts = {n: c.class_counts(classes) for n, c in inspection.contents.items()}
  totals = {n: len(inspection.contents[n]) if task.multi_label else of.sum() for n, of in counts.items()}
  rows = []
  for k in range(classes):
    cells = ((f'{n[k]:,}', percent(n[k] / totals[name])) for name, n in counts.items())
    rows.append((class_name(inspection, k), *itertools.chain(*cells)))
  rows.append(('all', *(cell for total in totals.values() for cell in (f'{total:,}', ''))))
  head = ('Label', *(cell for name in counts for cell in (name.capitalize(), 'Share')))
  remarks = []
  for name, n in counts.items():
    if not n.all():
      missing = ', '.join(class_name(inspection, k) for k in np.flatnonzero(n == 0))
      what = 'position' if task.per_position else 'example'
      remarks.append(f'No {name} {what} has the label {missing}.')
  if task.multi_label:
    return Table('Labels', head, rows, 'An example may have several labels, or none.', remarks)
  majority = '; '.join(
    f'{name} {percent(n.max() / n.sum())} ({class_name(inspection, int(n.argmax()))})'
    for name, n in counts.items()
  )
  if max(n.max() / n.sum() for n in counts.values()) > 1.25 / classes:
    shares = ', '.join(f'{percent(n.max() / n.sum())} of {name}' for name, n in counts.items())
    remarks.append(
      f'Classes are not balanced: the most frequent answer is right on {shares}, not {percent(1 / classes)}.'
    )
  note = f'Accuracy of always answering the most frequent class: {majority}.'
  return Table('Labels', head, rows, note, remarks)


def _real_labels(inspection):
  labels, first = inspection.task.labels, inspection.first
  mean_K, std_K = np.atleast_1d(labels.mean), np.atleast_1d(labels.std)
  rows, remarks = [], []
  for k, (low, high) in enumerate(np.reshape(labels.range, (-1, 2))):
    dimension = f', dimension {k}' if labels.dimensions > 1 else ''
    centre = first.real_label[:, k].mean()
    for name, contents in inspection.contents.items():
      label = contents.real_label[:, k]
      error, spread = label - centre, label.var()
      varies = not scorable.why_no_r2_of(label)
      r2 = f'{round(1 - np.mean(error**2) / spread, 3) + 0.0:.3f}' if varies else '–'
      values = (label.mean(), label.std(), *np.quantile(label, (0, 0.25, 0.5, 0.75, 1)), np.abs(error).mean())
      rows.append((name + dimension, f'{len(label):,}', *map(number, values), r2))
    outside = int(((first.real_label[:, k] < low) | (first.real_label[:, k] > high)).sum())
    where = f'outside {low:g} to {high:g}, the range that the task assumes'
    if outside:
      remarks.append(f'{outside:,} of {len(first):,} {first.split} labels{dimension} are {where}.')
  head = ('Split', 'Examples', 'Mean', 'Std', *_QUARTILES, 'Error', 'R2')
  means, stds = (', '.join(f'{value:g}' for value in values) for values in (mean_K, std_K))
  note = (
    f'Error (mean absolute) and R2 are those of always answering the mean label of {first.split}. '
    f'The task standardises labels by mean {means} and standard deviation {stds}.'
  )
  return Table('Labels', head, rows, note, remarks)


def _lengths(inspection):
  task, rows = inspection.task, []
  for name, contents in inspection.contents.items():
    lengths = contents.lengths.ravel()
    quartiles = (f'{q:,.0f}' for q in np.quantile(lengths, (0, 0.25, 0.5, 0.75, 1)))
    longest = percent((lengths == task.length).mean())
    rows.append((name, f'{len(lengths):,}', *quartiles, f'{lengths.mean():,.1f}', longest))
  counted = 'Documents' if task.documents == 2 else 'Examples'
  head = ('Split', counted, *_QUARTILES, 'Mean', f'At {task.length:,}')
  unit = 'tokens, <eos> included' if isinstance(task.inputs, Tokens) else 'positions'
  note = f'In {unit}. Those with {task.length:,} were cut, or are exactly as long.'
  return Table('Lengths', head, rows, note)


def _tokens(inspection):
  rows, remarks = [], []
  known, expected = len(inspection.metadata['vocabulary']), inspection.task.vocabulary
  if known < expected:
    remarks.append(
      f'The set has {known} token ids, but the task has {expected}: the last {expected - known} rows of the '
      'embedding are never used.'
    )
  for name, contents in inspection.contents.items():
    ids = contents.ids[:known]
    used = np.delete(ids, [tokenizers.MASK, tokenizers.PAD])
    unseen, unknown = int((used == 0).sum()), ids[tokenizers.UNKNOWN] / ids.sum()
    cells = (f'{ids.sum():,}', percent(unknown), f'{unseen:,}', percent(unseen / len(used)))
    rows.append((name, *cells, f'{contents.unended:,}'))
    for i in (tokenizers.MASK, tokenizers.PAD):
      if ids[i]:
        remarks.append(f'{tokenizers.SPECIAL_TOKENS[i]} occurs {ids[i]:,} times within {name} inputs.')
    if contents.unended:
      total = contents.lengths.size
      remarks.append(f'{contents.unended:,} of {total:,} {name} inputs do not end in <eos>.')
    if unknown > 0.01:
      remarks.append(f'{percent(unknown)} of the {name} tokens are <unk>.')
  head = ('Split', 'Tokens', '<unk>', 'Ids never seen', 'Share', 'Without <eos>')
  return Table('Tokens', head, rows, f'{known} ids; <mask> and <pad> do not count as never seen.', remarks)


def _vocabulary(inspection):
  names = inspection.metadata['vocabulary']
  counts = [contents.ids for contents in inspection.contents.values()]
  rows = [
    (_visible(names[i]), f'{counts[0][i]:,}', *(percent(ids[i] / ids.sum()) for ids in counts))
    for i in sorted(range(len(names)), key=lambda i: -counts[0][i])
  ]
  head = ('Token', f'In {inspection.first.split}', *(name.capitalize() for name in inspection.contents))
  return Table('Vocabulary', head, rows, 'Most frequent first, with the share of all tokens of each split.')


def _visible(token):
  """The token itself, or U+XXXX for characters that cannot be seen."""
  if token.isprintable() and not token.isspace():
    return token
  return ' '.join(f'U+{ord(character):04X}' for character in token)


def _values(inspection):
  task, first, rows, remarks = inspection.task, inspection.first, [], []
  train_mean, train_std = first.values.normalised(task)
  for channel, (m, s) in enumerate(zip(train_mean, train_std, strict=True)):
    if not s:
      remarks.append(f'Channel {channel} never varies in {first.split}, so it tells a model nothing.')
    elif abs(m) > _MEAN_LIMIT or not _STD_LIMITS[0] <= s <= _STD_LIMITS[1]:
      which = f' channel {channel} of' if len(train_mean) > 1 else ''
      remarks.append(
        f'Normalised with the constants of the task,{which} {first.split} has mean {m:.2f} and standard '
        f'deviation {s:.2f}, not near 0 and 1.'
      )
  for name, contents in inspection.contents.items():
    values = contents.values
    mean, std = values.normalised(task)
    if values.constant:
      remarks.append(
        f'Inputs that hold one value only: {values.constant:,} of {len(contents):,} {name} examples.'
      )
    for channel, cells in enumerate(zip(values.mean, values.std, values.least, values.most, strict=True)):
      normalised = (f'{mean[channel]:.3f}', f'{std[channel]:.3f}')
      rows.append((name, str(channel), *map(number, cells), *normalised, f'{values.constant:,}'))
      here, there = std[channel], train_std[channel]
      if (here or there) and not 0.5 <= here / max(there, 1e-9) <= 2:
        remarks.append(
          f'Channel {channel} varies differently in {name} than in {first.split}: normalised standard '
          f'deviation {here:.2f} against {there:.2f}.'
        )
  if inspection.protocol == 'paper':
    unused = ', so the constants here are not used.'
    if task.published.position_statistics:
      remarks.append(f'The paper normalises every position separately{unused}')
    if task.published.input_range:
      remarks.append(f'The paper maps these values to [\u22121, 1]{unused}')
  head = ('Split', 'Channel', 'Mean', 'Std', 'Min', 'Max', 'Mean norm.', 'Std norm.', 'Constant')
  note = (
    f'{task.inputs.dtype}, {task.length:,} positions each; as stored and normalised with the constants of '
    'the task. Constant: examples that hold one value only.'
  )
  return Table('Values', head, rows, note, remarks)


def _copies(inspection):
  title, sample = 'The same inputs more than once', '' if inspection.whole else ' read'
  rows, remarks = [], []
  for o in inspection.overlaps:
    count, other = len(inspection.contents[o.second]), o.copies - o.agree
    where = f'within {o.first}' if o.first == o.second else f'{o.second}, in {o.first}'
    places = ', '.join(f'{b} = {a}{"" if agrees else " (other label)"}' for a, b, agrees in o.pairs)
    cells = (f'{o.same:,}', f'{o.copies:,}', percent(o.copies / count), f'{o.agree:,}', f'{other:,}')
    rows.append((where, *cells, places))
    total = f'{count:,} {o.second} examples{sample}'
    if o.same:
      remarks.append(f'{o.same:,} of {total} are {o.first} examples too: both splits read the same places.')
    if o.copies:
      original = 'an earlier one' if o.first == o.second else f'a {o.first} example'
      labels = f'{other:,} of them with another label' if other else 'all with its label'
      remarks.append(f'{o.copies:,} of {total} have the same inputs as {original}, {labels}.')
  scope = '' if inspection.whole else ' Among the examples read.'
  if not remarks:
    return Table(title, (), [], f'No inputs occur twice, within a split or between splits.{scope}')
  head = ('Where', 'Same place', 'Copies', 'Share', 'Same label', 'Other label', 'Such as')
  note = (
    'Copies: examples with exactly the inputs of another one, counted in the split named first. Such as: '
    'positions in the stored files.'
  )
  if inspection.task.documents == 2:
    note += ' Pairs are compared in either order.'
  return Table(title, head, rows, note + scope, remarks)


def _documents(inspection):
  rows, remarks = [], []
  for d in inspection.documents:
    share, pairs = percent(d.shared / d.distinct), percent(d.pairs / len(inspection.contents[d.second]))
    rows.append(
      (f'{d.first} and {d.second}', f'{d.shared:,} of {d.distinct:,}', share, f'{d.pairs:,}', pairs)
    )
    if d.shared:
      remarks.append(
        f'{d.shared:,} of {d.distinct:,} {d.second} documents are {d.first} documents too; {pairs} of the '
        f'{d.second} pairs hold such a document.'
      )
  head = ('In both', 'Documents', 'Share', 'Pairs with one', 'Share')
  return Table('Documents shared between splits', head, rows, 'Counted in the second split.', remarks)


def _groups(inspection):
  groups = inspection.groups
  rows = [
    (name, f'{len(these):,}', *(f'{len(these & others):,}' for others in groups.values()))
    for name, these in groups.items()
  ]
  remarks = [
    f'{first.capitalize()} and {second} have examples of {counted(both, "common group")}, such as all '
    'recordings of a patient.'
    for first, second in itertools.combinations(groups, 2)
    if (both := len(groups[first] & groups[second]))
  ]
  head = ('Split', 'Groups', *(f'of them in {name}' for name in groups))
  return Table('Groups that belong together', head, rows, 'Such as all recordings of a patient.', remarks)
