"""Checks the labels of files and of examples, and measures real ones.

A training example may have no label. The file then holds -1 for a class, NaN for a real number, or -1 at all
positions.
"""

import numpy as np

from lra_spt.data.parts import UNLABELLED
from lra_spt.errors import DataError


def checked(source, label, positions: int, where: str, may_lack: bool):
  """Returns the label of an example as it is stored, and True if it has one.

  Args:
    source: the `builders.Source` of the example.
    positions: number of positions of the example.
    where: names the example.
    may_lack: the example may have none.

  Returns:
    The label: int, float or an array (bool or float32 [K], or int32 [positions]). True if there is one.

  Raises:
    DataError: it is not a label of the source.
  """
  if source.per_position:
    label_L = _of_positions(np.asarray(label, np.int32), positions, source.classes, where)
    if not (known := bool((label_L != UNLABELLED).any())) and not may_lack:
      raise DataError(f'{where} has no position that counts; give one a label, or leave the example out.')
    return label_L, known
  if source.label_width:
    label_K = np.ascontiguousarray(label, bool if source.classes else np.float32)
    known = bool(is_known(label_K[None])[0])
    if label_K.shape != (source.label_width,) or np.isinf(label_K).any() or not (known or may_lack):
      raise DataError(
        f'{where} has the labels {label_K}, not {source.label_width} finite numbers; correct it.'
      )
    return label_K, known
  least = UNLABELLED if may_lack else 0
  if source.classes and not least <= label < source.classes:
    raise DataError(f'{where} has label {label}; labels run from 0 to {source.classes - 1}.')
  if np.isinf(label) or (np.isnan(label) and not may_lack):
    raise DataError(f'{where} has label {label}, which is not a finite number.')
  known = label != UNLABELLED if source.classes else not np.isnan(label)
  return (int(label) if source.classes else float(np.float32(label))), bool(known)


def is_known(labels: np.ndarray) -> np.ndarray:
  """Returns bool [N], True for examples that have a label. Labels are int64 [N], float32 [N] or [N, K], or
  bool [N, K]."""
  if labels.dtype.kind == 'f':
    return ~np.isnan(labels).reshape(len(labels), -1).any(1)
  return np.ones(len(labels), bool) if labels.dtype == bool else labels != UNLABELLED


def of_file(arrays: dict[str, np.ndarray], path) -> np.ndarray:
  """Returns the labels of a file, whose dtype tells the kind.

  Args:
    arrays: those of the file, see `sources.npz`.
    path: of the file, for errors.

  Returns:
    Classes int64 [N], real numbers float32 [N] or [N, K], several labels bool [N, K], or labels of positions
    int32 [N, L] or [all positions].

  Raises:
    DataError: they are no labels.
  """
  labels = arrays['labels']
  if labels.shape[:1] == (0,):
    raise DataError(f'{path} has no examples; give it some, or leave the file out.')
  in_a_row = 'offsets' in arrays
  positions = arrays['inputs'].shape[: 1 if in_a_row else 2]  # [all positions] or [N, L]
  of_a_row = in_a_row and labels.shape == positions and labels.size != len(arrays['offsets']) - 1
  if labels.ndim == 2 and labels.dtype == bool:
    return labels
  if labels.ndim == 2 and labels.dtype.kind == 'f' and labels.shape[1]:
    return _real(labels[:, 0] if labels.shape[1] == 1 else labels, path)
  if labels.ndim == 2 or of_a_row:
    if labels.dtype.kind not in 'iu' or labels.shape != positions:
      raise DataError(
        f'{path}: labels are {_kind(labels)} and inputs {_kind(arrays["inputs"])}; give each position a '
        'whole number, or each example one label, several true or false ones, or several real numbers.'
      )
    if (least := labels.min()) < UNLABELLED:
      raise DataError(f'{path}: a position has the label {least}; number the classes from 0, or give -1.')
    return labels.astype(np.int32)
  if labels.ndim != 1 or labels.dtype.kind not in 'iuf':
    raise DataError(f'{path}: labels are {_kind(labels)}; make them a row of whole or real numbers.')
  if labels.dtype.kind == 'f':
    return _real(labels, path)
  labels = labels.astype(np.int64)
  if len(wrong := np.flatnonzero(labels < UNLABELLED)):
    raise DataError(
      f'{path}: label {wrong[0]} is {labels[wrong[0]]}; number the classes from 0, or give -1 for no label.'
    )
  return labels


def _real(labels, path):
  with np.errstate(over='ignore'):
    real = labels.astype(np.float32)
  missing = np.isnan(real).reshape(len(real), -1)
  wrong = np.isinf(real).reshape(missing.shape).any(1) | (missing.any(1) & ~missing.all(1))
  if wrong.any():
    raise DataError(
      f'{path}: label {np.argmax(wrong)} is not a finite number of 32 bits; correct or leave it out, or give '
      'NaN (in all dimensions) for no label.'
    )
  return real


def classes(parts: dict, paths: dict) -> int:
  """Number of classes of the files of a set; 0 for a regression.

  Args:
    parts: {file: its `sources.npz_files.Part`}. paths: {file: path}, for errors.

  Raises:
    DataError: a class has no training example, there is only one class, or labels are missing where they
      must not be.
  """
  train = parts['train'].labels
  for file, part in parts.items():
    # With labels of positions, examples without a label are found when they are written.
    known = np.atleast_1d((part.labels != UNLABELLED).any()) if part.per_position else is_known(part.labels)
    if not known.any():
      raise DataError(f'{paths[file]} has no example with a label; give some of them one.')
    if file != 'train' and not known.all():
      raise DataError(
        f'{paths[file]}: example {np.argmin(known)} has no label, which only training examples may lack; '
        'leave it out.'
      )
  if train.dtype.kind == 'f':
    return 0
  if train.dtype == bool:
    return _of_several(parts, paths)
  present = np.unique(train)
  present = present[present != UNLABELLED]
  if len(gaps := np.flatnonzero(present != np.arange(len(present)))):
    raise DataError(
      f'{paths["train"]} has no example of class {gaps[0]}, but one of class {present[-1]}; number the '
      'classes 0, 1, ... without gaps.'
    )
  if len(present) < 2:
    raise DataError(f'{paths["train"]} has labels of one class only; give at least two classes.')
  for file, part in parts.items():
    if part.labels.max() >= len(present):
      raise DataError(
        f'{paths[file]} has the label {part.labels.max()}, but the training labels end at '
        f'{len(present) - 1}; give every class training examples.'
      )
  return len(present)


def _of_several(parts, paths) -> int:
  train = parts['train'].labels
  for k, (some, every) in enumerate(zip(train.any(0), train.all(0), strict=True)):
    if every or not some:
      raise DataError(
        f'{paths["train"]}: {"all" if every else "no"} examples have label {k}, so there is nothing to '
        'learn; leave the label out.'
      )
  return train.shape[1]


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
  return label_L


def statistics(labels: list) -> dict[str, list[float]]:
  """Returns {'mean', 'std', 'least', 'largest': [K]} of real labels, each a number (K = 1) or [K]. It leaves
  out NaN, which is no label."""
  label_NK = np.asarray(labels, np.float64).reshape(len(labels), -1)
  label_NK = label_NK[~np.isnan(label_NK).any(1)]
  measured = {
    'mean': label_NK.mean(0),
    'std': label_NK.std(0),
    'least': label_NK.min(0),
    'largest': label_NK.max(0),
  }
  return {name: values.tolist() for name, values in measured.items()}
