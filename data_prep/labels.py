"""Checks the labels of files and of examples, and measures real ones."""

import numpy as np

from lra_spt.data.parts import UNLABELLED
from lra_spt.errors import DataError


def checked(source, label, positions: int, where: str):
  """The label of an example as it is stored: int, float or int32 [positions].

  Args:
    source: the `builders.Source` of the example.
    positions: of the example.
    where: names the example.

  Raises:
    DataError: it is not a label of the source.
  """
  if source.per_position:
    return _of_positions(np.asarray(label, np.int32), positions, source.classes, where)
  if source.classes and not 0 <= label < source.classes:
    raise DataError(f'{where} has label {label}; labels run from 0 to {source.classes - 1}.')
  if not source.classes and not np.isfinite(label):
    raise DataError(f'{where} has label {label}, which is not a finite number.')
  return int(label) if source.classes else float(np.float32(label))


def of_file(arrays: dict[str, np.ndarray], path) -> np.ndarray:
  """The labels of an .npz file: int64 or float32 [N], or int32 of positions, with the shape of the inputs.

  Args:
    arrays: of the file, see `sources.npz`.
    path: of the file, for errors.

  Raises:
    DataError: they are no labels.
  """
  labels = arrays['labels']
  if labels.shape[:1] == (0,):
    raise DataError(f'{path} has no examples; give it some, or leave the file out.')
  positions = arrays['inputs'].shape[:2]  # [N, L] or [all tokens]
  tokens_in_a_row = (
    'offsets' in arrays and labels.shape == positions and labels.size != len(arrays['offsets']) - 1
  )
  if labels.ndim == 2 or tokens_in_a_row:
    if labels.dtype.kind not in 'iu' or labels.shape != positions:
      raise DataError(
        f'{path}: labels are {_kind(labels)} and inputs {_kind(arrays["inputs"])}; give each position a '
        'whole number, or each example one label.'
      )
    if (least := labels.min()) < UNLABELLED:
      raise DataError(f'{path}: a position has the label {least}; number the classes from 0, or give -1.')
    return labels.astype(np.int32)
  if labels.ndim != 1 or labels.dtype.kind not in 'iuf':
    raise DataError(f'{path}: labels are {_kind(labels)}; make them a row of whole or real numbers.')
  if labels.dtype.kind == 'f':
    with np.errstate(over='ignore'):
      real = labels.astype(np.float32)
    if len(wrong := np.flatnonzero(~np.isfinite(real))):
      raise DataError(f'{path}: label {wrong[0]} is not a finite number of 32 bits; correct or leave it out.')
    return real
  if len(wrong := np.flatnonzero(labels < 0)):
    raise DataError(f'{path}: label {wrong[0]} is {labels[wrong[0]]}; number the classes from 0.')
  return labels.astype(np.int64)


def classes(parts: dict, paths: dict) -> int:
  """Number of classes of the files of a set; 0 for a regression.

  Args:
    parts: {file: its `sources.npz.Part`}. paths: {file: path}, for errors.

  Raises:
    DataError: a class has no training example, or there is only one.
  """
  if parts['train'].labels.dtype.kind == 'f':
    return 0
  found = np.unique(parts['train'].labels)
  found = found[found != UNLABELLED] if parts['train'].per_position else found
  if len(gaps := np.flatnonzero(found != np.arange(len(found)))):
    raise DataError(
      f'{paths["train"]} has no example of class {gaps[0]}, but one of class {found[-1]}; number the classes '
      '0, 1, ... without gaps.'
    )
  if len(found) < 2:
    raise DataError(f'{paths["train"]} has labels of one class only; give at least two classes.')
  for file, part in parts.items():
    if part.labels.max() >= len(found):
      raise DataError(
        f'{paths[file]} has the label {part.labels.max()}, but the training labels end at {len(found) - 1}; '
        'give every class training examples.'
      )
  return len(found)


def _kind(array):
  return f'{array.dtype} {list(array.shape)}'


def _of_positions(label_L, positions, classes, where):
  """The labels of an example's positions, int32 [positions]."""
  if label_L.shape != (positions,):
    raise DataError(f'{where} has {label_L.size:,} labels for {positions:,} positions; give each one label.')
  if len(wrong := np.flatnonzero((label_L < UNLABELLED) | (label_L >= classes))):
    raise DataError(
      f'{where} has label {label_L[wrong[0]]} at position {wrong[0]}; labels run from 0 to {classes - 1}, '
      f'and {UNLABELLED} marks a position that does not count.'
    )
  if (label_L == UNLABELLED).all():
    raise DataError(f'{where} has no position that counts; give one a label, or leave the example out.')
  return label_L


def statistics(labels: list[float]) -> dict[str, list[float]]:
  """{'mean', 'std', 'least', 'largest': [1]} of real labels."""
  label_N = np.asarray(labels, np.float64)
  measured = {
    'mean': label_N.mean(),
    'std': label_N.std(),
    'least': label_N.min(),
    'largest': label_N.max(),
  }
  return {name: [float(value)] for name, value in measured.items()}
