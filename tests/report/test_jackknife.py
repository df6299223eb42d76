"""Scores and their jackknife units agree with plain loops and with scikit-learn; their intervals cover."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_spt.data import measures
from lra_spt.report.statistics import intervals, jackknife


def drawn(kind, seed, examples=30, classes=4, units=0, skill=1.0, shared=0.0):
  """Draws (label, prediction, group) of classes, or of several labels whose predictions have ties. The last
  class is rare. A part `shared` of the errors is common to the examples of a group."""
  rng = np.random.default_rng(seed)
  group_N = rng.integers(0, units, examples) if units else None
  share_K = np.append(np.full(classes - 1, 1.0), 0.3)
  noise_NK = rng.normal(size=(examples, classes))
  if units:
    noise_NK += shared * rng.normal(size=(units, classes))[group_N]
  if kind == 'two classes':
    label = (rng.random(examples) < 0.4).astype(np.int64)
    noise_N = noise_NK[:, 0]
    return label, 1 / (1 + np.exp(-np.round(skill * (2 * label - 1) + noise_N, 1))), group_N
  if kind == 'classes':
    label = rng.choice(classes, examples, p=share_K / share_K.sum())
    return label, (skill * np.eye(classes)[label] + noise_NK).argmax(1), group_N
  label = rng.random((examples, classes)) < 0.4 * share_K
  return label, 1 / (1 + np.exp(-np.round(skill * (2 * label - 1) + noise_NK, 1))), group_N


def f1_of(label, prediction):
  """The macro F1, example by example."""
  if label.ndim == 1:
    classes = sorted({*label.tolist(), *prediction.tolist()})
    label, prediction = (np.array([[x == k for k in classes] for x in part]) for part in (label, prediction))
  message, scores = prediction >= 0.5, []
  for y_N, p_N in zip(label.T, message.T, strict=True):
    right = sum(y and p for y, p in zip(y_N, p_N, strict=True))
    wrong = sum(y != p for y, p in zip(y_N, p_N, strict=True))
    if right + wrong:
      scores.append(2 * right / (2 * right + wrong))
  return np.mean(scores) if scores else math.nan


def auroc_of(label, prediction):
  """The mean AUROC, pair by pair."""
  areas = []
  if label.ndim == 1:
    label, prediction = label[:, None] == 1, prediction[:, None]
  for y_N, p_N in zip(label.T, prediction.T, strict=True):
    pairs = [(p > q) + (p == q) / 2 for p in p_N[y_N] for q in p_N[~y_N]]
    areas += [np.mean(pairs)] if pairs else []
  return np.mean(areas) if areas else math.nan


GOLDEN = (0.6411713286713286, 0.693401405357927, 0.9746895770638031, 0.966928723614244, -0.016479576915299998)
OF = {'macro_f1': f1_of, 'auroc': auroc_of}
CASES = [('macro_f1', 'classes'), ('macro_f1', 'several'), ('auroc', 'several'), ('auroc', 'two classes')]


@pytest.mark.parametrize('name, kind', CASES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), units=st.sampled_from([0, 3, 9]))
def test_units_are_the_jackknife(name, kind, seed, units):
  label, prediction, group_N = drawn(kind, seed, units=units)
  score = measures.MEASURES[name](label, prediction)
  assert score == pytest.approx(OF[name](label, prediction), nan_ok=True)
  found_G = jackknife.score_units(name, label, prediction, group_N)
  unit_N = np.arange(len(label)) if group_N is None else group_N
  others = [unit_N != g for g in np.unique(unit_N)]
  without_G = np.array([OF[name](label[rows], prediction[rows]) for rows in others])
  if np.isnan(without_G).any():
    assert found_G is None
    return
  wanted_G = score - (len(without_G) - 1) * (without_G - without_G.mean())
  np.testing.assert_allclose(found_G, wanted_G, rtol=1e-9, atol=1e-9)


def test_units_in_parts_are_those_at_once(monkeypatch):
  label, prediction, group_N = drawn('classes', 3, units=7)
  whole = jackknife.score_units('macro_f1', label, prediction, group_N)
  monkeypatch.setattr(jackknife, '_CELLS', 25)  # two units at a time
  np.testing.assert_allclose(jackknife.score_units('macro_f1', label, prediction, group_N), whole)


def test_golden_numbers_of_scikit_learn():
  """GOLDEN is from scikit-learn 1.9.1: f1_score (for several labels with zero_division=nan), roc_auc_score
  and average_precision_score with average='macro', and r2_score of two dimensions."""
  label, prediction, _ = drawn('classes', 0)
  assert measures.macro_f1(label, prediction) == pytest.approx(GOLDEN[0], abs=1e-12)
  label, prediction, _ = drawn('several', 0)
  for name, wanted in zip(('macro_f1', 'auroc', 'mean_average_precision'), GOLDEN[1:4], strict=True):
    assert measures.MEASURES[name](label, prediction) == pytest.approx(wanted, abs=1e-12)
  y_NK = np.random.default_rng(1).normal(size=(20, 2))
  p_NK = y_NK + np.random.default_rng(2).normal(size=(20, 2))
  assert measures.r2(y_NK, p_NK) == pytest.approx(GOLDEN[4], abs=1e-12)


def test_probabilities_of_the_second_of_two_classes():
  label, prediction = np.array([0, 1, 1, 0, 1]), np.array([0.1, 0.9, 0.4, 0.5, 0.6])
  actual = measures.measured(['accuracy', 'macro_f1', 'auroc'], label, prediction)
  message = np.array([0, 1, 0, 1, 1])
  assert actual == {
    'accuracy': 0.6,
    'macro_f1': pytest.approx(f1_of(label, message)),
    'auroc': pytest.approx(5 / 6),
  }


def test_r2_of_several_dimensions_is_their_mean():
  rng = np.random.default_rng(5)
  y_NK = rng.normal(size=(30, 3)) * [1, 10, 100]
  p_NK = y_NK + rng.normal(size=(30, 3))
  each = [jackknife.score_units('r2', y_NK[:, k], p_NK[:, k]) for k in range(3)]
  np.testing.assert_allclose(jackknife.score_units('r2', y_NK, p_NK), np.mean(each, axis=0))
  y_NK[:, 1] = 4
  assert math.isnan(measures.r2(y_NK, p_NK))
  assert jackknife.score_units('r2', y_NK, p_NK) is None


def test_constant_answers():
  """`constant` equals the best score of all constant answers, which are tried one by one."""
  label, _, _ = drawn('classes', 2)
  for name, score in (('accuracy', measures.accuracy), ('macro_f1', measures.macro_f1)):
    tried = [score(label, np.full(len(label), k)) for k in range(4)]
    assert measures.constant(name, label) == pytest.approx(max(tried))
  label, _, _ = drawn('several', 2, examples=8)
  tried = [f1_of(label, np.broadcast_to([k >> i & 1 for i in range(4)], label.shape)) for k in range(16)]
  assert measures.constant('macro_f1', label) == pytest.approx(max(tried))


def test_labels_without_a_score():
  label, prediction, _ = drawn('several', 1)
  nothing = np.zeros_like(label)
  actual = measures.measured(['macro_f1', 'auroc', 'mean_average_precision'], nothing, 0 * prediction)
  assert all(map(math.isnan, actual.values()))
  assert jackknife.score_units('auroc', nothing, prediction) is None
  assert jackknife.score_units('macro_f1', label, prediction, np.zeros(len(label))) is None


@pytest.mark.parametrize('name, kind', CASES)
@pytest.mark.parametrize('options', [{'examples': 200}, {'examples': 400, 'units': 12, 'shared': 0.5}])
def test_coverage(name, kind, options):
  """95 % intervals of 200 simulated samples hold the truth in 90 to 99 % of them."""
  many = {'examples': 200_000, 'units': 50_000 if 'units' in options else 0}
  truth = measures.MEASURES[name](*drawn(kind, 99, **options | many, skill=0.93)[:2])
  held = 0
  for seed in range(200):
    units = jackknife.score_units(name, *drawn(kind, seed, **options, skill=0.93))
    interval = intervals.bounded_interval(units)
    assert 0 <= interval.low <= interval.estimate <= interval.high <= 1
    held += interval.low <= truth <= interval.high
  assert 0.9 <= held / 200 <= 0.99


def test_an_interval_without_spread_is_not_certain():
  interval = intervals.bounded_interval(np.ones(20))
  assert interval.low == pytest.approx(20 / (20 + 2.0930**2), abs=1e-4)
  assert interval.high == 1
