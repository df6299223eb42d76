"""Checks that a task can read a prepared set."""

from lra_spt.data import splits
from lra_spt.data.tasks import Task, Tokens
from lra_spt.errors import DataError


def grayscale(task: Task) -> bool:
  """True if the set holds RGB and the task reads its luminance."""
  return getattr(task.inputs, 'grayscale', False)


def check_fits(task: Task, metadata: dict, folder) -> None:
  """Compares shape, length, vocabulary, labels, documents and dtype of a set with those of a task.

  Raises:
    DataError: the task would read the set wrongly, or not at all.
  """
  channels = 3 if grayscale(task) else task.channels
  shape = None if isinstance(task.inputs, Tokens) else [task.length, *[channels] * (channels > 1)]
  if shape and task.inputs.padded:
    shape = [0, channels]  # of differing lengths
  stored = metadata.get('shape')
  if stored != shape:
    raise DataError(
      f'Task {task.name!r} reads examples of shape {shape}, but those in {folder} have shape {stored}; '
      'use another data_dir or correct the task.'
    )
  if metadata.get('longest', 0) > task.length:
    raise DataError(
      f'The data set in {folder} has examples of {metadata["longest"]} positions, but task '
      f'{task.name!r} reads at most {task.length}; raise the length of the task.'
    )
  if len(metadata.get('vocabulary', ())) > task.vocabulary:
    raise DataError(
      f'The data set in {folder} has {len(metadata["vocabulary"])} token ids, but task {task.name!r} '
      f'has {task.vocabulary}; correct the vocabulary of the task.'
    )
  _check_labels(task, metadata.get('classes', task.classes), folder)
  if (per_position := metadata.get('per_position', False)) != task.per_position:
    have = 'one label per position' if per_position else 'one label per example'
    kind = 'PerPosition' if per_position else 'Classes'
    raise DataError(
      f'The data set in {folder} has {have}; give task {task.name!r} labels={kind}({task.classes}).'
    )
  if (width := metadata.get('label_width', 0)) != task.label_width:
    kind = f'MultiLabel({width})' if task.classes else f'Real(dimensions={width or 1}, measured=True)'
    kind = kind if width or not task.classes else f'Classes({task.classes})'
    have = f'{width} labels' if width else 'one label'
    raise DataError(
      f'The data set in {folder} has {have} per example; give task {task.name!r} labels={kind}.'
    )
  for key, default, expected in (
    ('documents', 1, task.documents),
    ('dtype', 'uint8', task.inputs.dtype),
  ):
    stored = metadata.get(key, default)
    if stored != expected:
      raise DataError(
        f'The data set in {folder} has {key}={stored}, but task {task.name!r} has {expected}; correct the '
        'task.'
      )


def _check_labels(task: Task, classes: int, folder):
  """Compares the number of classes of a set (0 for real labels) with that of the task."""
  if classes == task.classes:
    return
  again = f'remove {folder} and prepare the set again'
  if not classes:
    raise DataError(
      f'The labels of the data set in {folder} are real numbers, but task {task.name!r} has {task.classes} '
      f'classes; for classes save them as whole numbers, from 0 to {task.classes - 1}, {again}.'
    )
  if task.regression:
    raise DataError(
      f'The labels of the data set in {folder} are whole numbers, of {classes} classes, but task '
      f'{task.name!r} is a regression; give it labels=Classes({classes}), or save them as real numbers, '
      f'{again}.'
    )
  raise DataError(
    f'The data set in {folder} has classes={classes}, but task {task.name!r} has {task.classes}; correct the '
    'task.'
  )


def check_all_read(task: Task, read: set[str], counts: dict, folder) -> None:
  """Checks that the splits of a task read all files of a set.

  Args:
    read: files that the splits read.
    counts: {file: number of examples} of the set.

  Raises:
    DataError: a file would silently be ignored. Published splits may ignore one.
  """
  unread = [file for file in splits.SPLITS if counts.get(file) and file not in read]
  if not unread or task.splits not in ('random', 'stratified', 'holdout', 'grouped'):
    return
  fitting = ''
  if counts.get('validation') and counts.get('test'):
    fitting = "set splits='files' in the task, or "
  elif unread == ['test'] and task.splits == 'random':
    fitting = "set splits='holdout' in the task, or "
  raise DataError(
    f'The data set in {folder} has examples for {" and ".join(unread)} in files of their own, which '
    f'splits={task.splits!r} of task {task.name!r} does not read; {fitting}remove {folder} and prepare the '
    'set without them.'
  )
