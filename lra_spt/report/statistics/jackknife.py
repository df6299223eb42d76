"""Numbers whose mean is a score and whose spread is its error, for every score of `data.measures`.

For an accuracy they are the answers themselves. For other scores they are jackknife pseudo-values (Tukey
1958, Ann. Math. Stat. 29:614), score - (G - 1) (score without unit g - mean of those), in closed form. A unit
is an example. Where examples belong together it is a group of them, because they are right and wrong
together.
"""

import numpy as np

from lra_spt.data import measures
from lra_spt.report.statistics.intervals import group_units

_CELLS = 4_000_000  # numbers held at once


def score_units(name: str, label, prediction, group_N=None) -> np.ndarray | None:
  """The units of a score.

  Args:
    name: of the score, a key of `measures.MEASURES`.
    label, prediction: [N] or [N, K], see `measures`; labels of positions have a row for each position.
    group_N: which examples belong together, such as windows of one patient; None: every example is a unit.

  Returns:
    bool [N] for an accuracy without groups; else float64 [G], G units in the order of their numbers. None
    where there are fewer than two units, or the score is not defined without one of them.
  """
  if name == 'accuracy':
    right_N = label == prediction
    return right_N if group_N is None else group_units(right_N, group_N)
  unit_N = np.arange(len(label)) if group_N is None else np.unique(group_N, return_inverse=True)[1]
  if unit_N.max() == 0:
    return None
  without_G = {'r2': _r2_without, 'macro_f1': _f1_without, 'auroc': _auroc_without}[name](
    label, prediction, unit_N
  )
  if without_G is None or not np.isfinite(without_G).all():
    return None
  score = measures.MEASURES[name](label, prediction)
  return score - (len(without_G) - 1) * (without_G - without_G.mean())


def _r2_without(label, prediction, unit_N):
  """R2 without each unit, of several dimensions their mean; None where labels do not vary without one."""
  if label.ndim == 2:
    each = [_r2_without(*column, unit_N) for column in zip(label.T, prediction.T, strict=True)]
    return None if any(part is None for part in each) else np.mean(each, axis=0)
  y_N, p_N = np.asarray(label, np.float64), np.asarray(prediction, np.float64)
  y_N, error_N = y_N - y_N.mean(), (y_N - p_N) ** 2  # centred, so that the sums below lose no digits
  count_G, sum_G, square_G, error_G = (
    np.bincount(unit_N, weights) for weights in (None, y_N, y_N**2, error_N)
  )
  count_G = count_G.sum() - count_G
  variation_G = square_G.sum() - square_G - (sum_G.sum() - sum_G) ** 2 / count_G
  if variation_G.min() <= 1e-12 * square_G.sum():
    return None
  return 1 - (error_G.sum() - error_G) / variation_G


def _f1_without(label, prediction, unit_N):
  """The mean F1 without each unit, from the sums of all less those of the unit."""
  label, prediction = measures.numbered(label, prediction)
  all_3K = measures.class_sums(label, prediction, np.zeros(len(label), np.int64))[:, 0]
  order, units = np.argsort(unit_N, kind='stable'), int(unit_N.max()) + 1
  begins_G = np.searchsorted(unit_N[order], np.arange(units + 1))
  classes, parts = all_3K.shape[1], []
  step = max(1, _CELLS // (3 * classes))
  for first in range(0, units, step):
    last = min(units, first + step)
    rows = order[begins_G[first] : begins_G[last]]
    sums_3GK = measures.class_sums(label[rows], prediction[rows], unit_N[rows] - first)
    without_3GK = np.broadcast_to(all_3K[:, None], (3, last - first, classes)).copy()
    without_3GK[..., : sums_3GK.shape[2]] -= sums_3GK  # the last classes may not occur here
    parts.append(measures.mean_f1(*without_3GK))
  return np.concatenate(parts)


def _auroc_without(label, prediction, unit_N):
  """The mean AUROC without each unit: the pairs of all less those with a member in the unit."""
  label, prediction = measures.columns_of(label, prediction)
  columns = [_auroc_of_class(*column, unit_N) for column in zip(label.T, prediction.T, strict=True)]
  known = [column for column in columns if column is not None]
  if not known:
    return None
  area_GK, defined_GK = (np.stack(part, axis=1) for part in zip(*known, strict=True))
  return measures.mean_of_counted(area_GK, defined_GK)


def _auroc_of_class(label_N, prediction_N, unit_N):
  """(AUROC of a class without each unit, where it is defined), [G] each; None for a class of one kind."""
  if not label_N.any() or label_N.all():
    return None
  units = int(unit_N.max()) + 1
  exceeded_P, exceeding_Q = measures.placements(label_N, prediction_N)
  with_P, without_Q = unit_N[label_N], unit_N[~label_N]
  positives, negatives = len(with_P), len(without_Q)
  own_G = _within(label_N, prediction_N, unit_N, units)
  pairs_G = (
    exceeded_P.sum() * negatives
    - np.bincount(with_P, exceeded_P, units) * negatives
    - np.bincount(without_Q, exceeding_Q, units) * positives
    + own_G
  )
  left_G = (positives - np.bincount(with_P, minlength=units)) * (
    negatives - np.bincount(without_Q, minlength=units)
  )
  return np.divide(pairs_G, left_G, out=np.zeros(units), where=left_G > 0), left_G > 0


def _within(label_N, prediction_N, unit_N, units):
  """Pairs within each unit whose member with the label has the higher prediction; ties count half."""
  rank_N = np.unique(prediction_N, return_inverse=True)[1]
  key_N = unit_N * (rank_N.max() + 1) + rank_N  # orders by unit, then by prediction
  with_P, sorted_Q = key_N[label_N], np.sort(key_N[~label_N])
  below_P = sum(np.searchsorted(sorted_Q, with_P, side) for side in ('left', 'right')) / 2
  of_P = unit_N[label_N]
  earlier_P = np.searchsorted(sorted_Q, of_P * (rank_N.max() + 1))  # of units before
  return np.bincount(of_P, below_P - earlier_P, units)
