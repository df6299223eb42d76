"""Scores of predictions in float64, for validations, tests and reports.

Labels and predictions have one of these forms; `lra_spt.data.parts` says which a task has:

- classes: integers [N] each;
- two classes, for an AUROC: integers [N], and the probability of class 1, float [N];
- classes of positions: integers [N, L] each; positions with the label -1 do not count;
- several labels: bool [N, K], and the probability of each, float [N, K];
- real numbers: float [N], or [N, K] of several dimensions.

F1, AUROC and average precision are the means over classes ("macro") of scikit-learn's. Classes without a
defined value do not count: in F1, classes that occur in neither labels nor predictions; in AUROC, classes
that all examples or none have; in average precision, classes that no example has.
"""

import math

import numpy as np

from lra_spt.data import scorable
from lra_spt.data.parts import UNLABELLED

THRESHOLD = 0.5  # probability from which an example is said to have a label
CONSTANTS = {'r2': 0.0, 'auroc': 0.5}  # the score of an answer that ignores the input, whatever the labels


def accuracy(label, prediction) -> float:
  """The share of right answers."""
  return float(np.mean(label == _classes(label, prediction)))


def _classes(label, prediction):
  """Predictions as classes, where they are probabilities of class 1."""
  two = label.dtype.kind in 'iu' and prediction.dtype.kind == 'f'
  return (prediction >= THRESHOLD).astype(np.int64) if two else prediction


def macro_f1(label, prediction) -> float:
  """The mean over classes of 2 TP / (2 TP + FP + FN)."""
  label, prediction = numbered(label, prediction)
  return float(mean_f1(*class_sums(label, prediction, np.zeros(len(label), np.int64)))[0])


def numbered(label, prediction) -> tuple[np.ndarray, np.ndarray]:
  """Numbers the classes of labels and predictions from 0 without gaps; several labels stay as they are."""
  if label.ndim == 2:
    return label, prediction
  both = np.unique(np.concatenate([label, _classes(label, prediction)]), return_inverse=True)[1]
  return both[: len(label)], both[len(label) :]


def class_sums(label, prediction, unit_N) -> np.ndarray:
  """True positives, labels and predictions of each class within units of examples.

  Args:
    label, prediction: integers from 0 [N], or bool and probabilities [N, K].
    unit_N: integers from 0, the unit of each example.

  Returns:
    float64 [3, units, K].
  """
  units = int(unit_N.max()) + 1
  if label.ndim == 2:
    predicted = prediction >= THRESHOLD
    parts = (label & predicted, label, predicted)
    columns = [[np.bincount(unit_N, column, units) for column in part.T] for part in parts]
    return np.moveaxis(np.array(columns, np.float64), 1, 2)
  classes = int(max(label.max(), prediction.max())) + 1
  cells = ((label, label == prediction), (label, None), (prediction, None))
  sums = [np.bincount(unit_N * classes + of, weights, units * classes) for of, weights in cells]
  return np.array(sums, np.float64).reshape(3, units, classes)


def mean_f1(right, labels, predictions) -> np.ndarray:
  """The mean F1 [...] over classes of sums [..., K]; NaN where no class occurs."""
  both = labels + predictions
  f1 = np.divide(2 * right, both, out=np.zeros_like(both), where=both > 0)
  return mean_of_counted(f1, both > 0)


def mean_of_counted(values, counted) -> np.ndarray:
  """The mean [...] of the counted values [..., K]; NaN where none is counted."""
  number = counted.sum(-1)
  total = np.where(counted, values, 0).sum(-1)
  return np.divide(total, number, out=np.full(total.shape, np.nan), where=number > 0)


def auroc(label, prediction) -> float:
  """The mean over classes of the probability that an example with the label has a higher prediction than one
  without; ties count half. With two classes, class 1 is the label."""
  label, prediction = columns_of(label, prediction)
  columns = [(y, p) for y, p in zip(label.T, prediction.T, strict=True) if y.any() and not y.all()]
  return float(np.mean([placements(*column)[0].mean() for column in columns])) if columns else math.nan


def columns_of(label, prediction) -> tuple[np.ndarray, np.ndarray]:
  """Labels, bool [N, K], and their probabilities [N, K]; with two classes K is 1."""
  return (label, prediction) if label.ndim == 2 else (label[:, None] == 1, prediction[:, None])


def placements(label_N, prediction_N) -> tuple[np.ndarray, np.ndarray]:
  """For each example with the label the share of the others that it exceeds, and for each of the others the
  share of those that exceed it; ties count half. The mean of either is the AUROC."""
  with_P, without_Q = prediction_N[label_N], prediction_N[~label_N]

  def below(values, sorted_values):
    sides = (np.searchsorted(sorted_values, values, side) for side in ('left', 'right'))
    return sum(sides) / (2 * len(sorted_values))

  return below(with_P, np.sort(without_Q)), 1 - below(without_Q, np.sort(with_P))


def mean_average_precision(label, prediction) -> float:
  """The mean over classes of sum (R_n - R_n-1) P_n: recall and precision at every distinct prediction."""
  precisions = [_average_precision(y, p) for y, p in zip(label.T, prediction.T, strict=True) if y.any()]
  return float(np.mean(precisions)) if precisions else math.nan


def _average_precision(label_N, prediction_N):
  order = np.argsort(-prediction_N, kind='stable')
  last_T = np.append(np.flatnonzero(np.diff(prediction_N[order])), len(order) - 1)  # of equal predictions
  right_T = np.cumsum(label_N[order])[last_T]
  return np.sum(np.diff(right_T, prepend=0) * right_T / (last_T + 1)) / right_T[-1]


def r2(label, prediction) -> float:
  """1 - sum (y - p)^2 / sum (y - mean y)^2, the mean over several dimensions; NaN where it is not defined,
  see `scorable.why_no_r2`."""
  if scorable.why_no_r2_of(label):
    return math.nan
  y, p = np.asarray(label, np.float64), np.asarray(prediction, np.float64)
  return float(np.mean(1 - ((y - p) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)))


def mae(label, prediction) -> float:
  """The mean absolute error, in units of the label."""
  return float(np.abs(np.asarray(prediction, np.float64) - label).mean())


def rmse(label, prediction) -> float:
  """The root of the mean squared error, in units of the label."""
  return float(np.sqrt(((np.asarray(prediction, np.float64) - label) ** 2).mean()))


MEASURES = {
  'accuracy': accuracy,
  'macro_f1': macro_f1,
  'auroc': auroc,
  'mean_average_precision': mean_average_precision,
  'r2': r2,
  'mae': mae,
  'rmse': rmse,
}


def by_position(predictions: dict) -> dict:
  """Predictions with a row for each position that has a label, if labels are those of positions.

  Args:
    predictions: index [N], label and prediction [N] or [N, L], and optionally group [N].

  Returns:
    The same arrays, [N]. For labels [N, L], arrays [P] of the P labelled positions: index is n * L + place
    for example n, and group is that of the example or, without groups, n, because positions of one example
    are right and wrong together.
  """
  label_NL = predictions['label']
  if label_NL.ndim == 1 or label_NL.dtype.kind not in 'iu':
    return predictions
  n_P, place_P = np.nonzero(label_NL != UNLABELLED)
  index_N = predictions['index'].astype(np.int64)
  return {
    'index': index_N[n_P] * label_NL.shape[1] + place_P,
    'label': label_NL[n_P, place_P],
    'prediction': predictions['prediction'][n_P, place_P],
    'group': predictions.get('group', index_N)[n_P],
  }


def measured(names, label, prediction) -> dict[str, float]:
  """{name: score} of some of MEASURES; NaN for one that is not defined, see `why_undefined`.

  Args:
    label, prediction: of one of the forms above.
  """
  label, prediction = np.asarray(label), np.asarray(prediction)
  if label.ndim == 2 and label.dtype.kind in 'iu':
    counted = label != UNLABELLED
    label, prediction = label[counted], prediction[counted]
  return {name: MEASURES[name](label, prediction) for name in names}


def why_undefined(name: str, label) -> str:
  """The reason why the score of that name is NaN over these labels."""
  if name == 'r2':
    return scorable.why_no_r2_of(label)
  if name == 'auroc':
    return 'AUROC is not defined where all or no examples have a label'
  return f'{name} is not defined over examples without labels'


def constant(name: str, label) -> float:
  """The best accuracy or F1 of an answer that ignores the input: all examples get the most frequent class or,
  if they have several labels, every label that occurs."""
  if label.ndim == 2:
    share_K = label.mean(0)[label.any(0)]
    return float(np.mean(2 * share_K / (1 + share_K))) if len(share_K) else math.nan
  counts = np.unique(label, return_counts=True)[1]
  share = float(counts.max() / len(label))
  return share if name == 'accuracy' else 2 * share / (1 + share) / len(counts)
