"""What `lra-spt inspect` says in words: facts about a set, and what to know before training on it."""

import numpy as np

from lra_spt.data import tokenizers
from lra_spt.data.examples import SPLITS
from lra_spt.data.tasks import Tokens
from lra_spt.report.datasets.tables import baselines, class_name, percent, size

# A normalised mean or deviation beyond these is worth a remark.
_MEAN_LIMIT, _STD_LIMITS = 0.15, (0.8, 1.25)
_SPLITTING = {
  'files': 'as in the files of the set',
  'holdout': 'a tenth of the training file held out for validation',
  'random': '80/10/10 of one file, at random',
  'reused': 'the test file used for validation too, as published',
  'grouped': '70/15/15 of the groups of one file',
  'shuffled': '70/15/15 of the examples of one file at random, as published',
}


def facts(findings) -> list[tuple[str, str]]:
  """What the set says of itself, by name."""
  metadata, task = findings.metadata, findings.task
  how = metadata.get('verification', '')
  if metadata['verified']:
    verified = f'yes{f", {how}" if how else ""}'
  elif 'generator' in metadata:
    verified = 'no, generated here'
  else:
    verified = 'no' + (f', only {how}' if how not in ('', 'none') else ': used as it was given')
  read = ', '.join(f'{len(c):,} of {c.total:,} {name}' for name, c in findings.contents.items())
  return [
    ('Folder', str(findings.folder)),
    ('Size on disk', size(findings.stored_bytes)),
    ('Source', metadata['source']),
    ('Verified', verified),
    ('Fingerprint', f'{metadata["fingerprint"]} ({"recomputed" if findings.recomputed else "as recorded"})'),
    ('Splits', f'{_SPLITTING[task.splits]} (protocol {findings.protocol})'),
    ('Read', 'everything' if findings.whole else f'a random sample: {read} examples'),
  ]


def remarks(findings) -> list[str]:
  """Sentences on what a reader should know before training on the set."""
  task, sample = findings.task, '' if findings.whole else ' read'
  said = [f'The {name} split has no examples.' for name in SPLITS if name not in findings.contents]
  if not findings.whole:
    said.append(
      'Only a random sample was read and searched for copies, so there may be more; '
      '--sample 0 reads everything.'
    )
  if not findings.metadata['verified'] and 'generator' not in findings.metadata:
    said.append('This set was not verified to be the official one.')
  for o in findings.overlaps:
    total = f'{len(findings.contents[o.second]):,} {o.second} examples{sample}'
    if o.same:
      said.append(
        f'{o.same:,} of {total} are {o.first} examples too: both splits read the same stored examples.'
      )
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
      said.append(f'{wrong:,} of {evaluated:,} {name} expressions do not evaluate to their label.')
  of_inputs = _token_remarks if isinstance(task.inputs, Tokens) else _value_remarks
  return said + _label_remarks(findings) + of_inputs(findings)


def _label_remarks(findings):
  if findings.task.regression:
    low, high = findings.task.labels.range
    label = findings.first.label
    outside = int(((label < low) | (label > high)).sum())
    where = f'outside {low:g} to {high:g}, the range that the task assumes'
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
      f'Classes are not balanced: always answering the most frequent one is right on {shares}; with '
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
    if not s:
      said.append(f'Channel {channel} never varies in {findings.first.split}, so it tells a model nothing.')
    elif abs(m) > _MEAN_LIMIT or not _STD_LIMITS[0] <= s <= _STD_LIMITS[1]:
      which = f' channel {channel} of' if len(mean) > 1 else ''
      said.append(
        f'Normalised with the constants of the task,{which} {findings.first.split} has mean '
        f'{m:.2f} and standard deviation {s:.2f}, not near 0 and 1.'
      )
  for name, contents in findings.contents.items():
    others = contents.values.normalised(task)[1]
    for channel, (s, other) in enumerate(zip(std, others, strict=True)):
      if (s or other) and not 0.5 <= other / max(s, 1e-9) <= 2:
        said.append(
          f'Channel {channel} varies differently in {name} than in {findings.first.split}: '
          f'normalised standard deviation {other:.2f} against {s:.2f}.'
        )
  if findings.protocol == 'paper' and task.published.position_statistics:
    said.append('The paper normalises every position separately, so the constants here are not used.')
  if findings.protocol == 'paper' and task.published.unscaled_inputs:
    said.append('The paper does not normalise these values, so the constants here are not used.')
  return said


def _token_remarks(findings):
  said, task = [], findings.task
  known = len(findings.metadata['vocabulary'])
  if known < task.vocabulary:
    said.append(
      f'The set has {known} token ids, but the task has {task.vocabulary}: the last '
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
