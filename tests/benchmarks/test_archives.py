"""The analysis of the study of eight sets, on made-up scores; and what is stored of answers at positions."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from benchmarks import archives
from benchmarks.studies import write_study
from configs.studies import archives as study
from lra_spt.report.runs import run_folder
from lra_spt.report.study import archive

SEEDS = study.SEEDS


def cell(scores):
  runs = [SimpleNamespace(seed=seed, value=score) for seed, score in zip(SEEDS, scores, strict=True)]
  return SimpleNamespace(runs=runs[::-1], open=())


def cells():
  """Every set gains 0.1 for S4 and nothing for others, and 0.01 more with each seed."""
  actual = {}
  for column in study.CLASSES.values():
    for model in study.MODELS.values():
      gain_S = 0.1 * (model == 'S4') + 0.01 * np.arange(5)
      actual[f'{model}, scratch', column] = cell([0.5] * 5)
      actual[f'{model}, scratch, steps of finetuning', column] = cell([0.4] * 5)
      actual[f'{model}, masked', column] = cell(0.5 + gain_S)
  return actual


def test_gains_are_means_over_sets_and_models_per_seed():
  actual = archives.primaries(SimpleNamespace(cells=cells()))
  gain_S = 0.1 / 3 + 0.01 * np.arange(5)
  low, high = stats.t.interval(0.95, 4, gain_S.mean(), stats.sem(gain_S))
  assert [actual['tied'][key] for key in ('estimate', 'low', 'high')] == pytest.approx(
    [gain_S.mean(), low, high]
  )
  assert actual['equal']['estimate'] == pytest.approx(gain_S.mean() + 0.1)
  assert actual['tied S4']['estimate'] == pytest.approx(0.12)


def test_a_missing_cell_leaves_out_what_needs_it():
  made = cells()
  del made['S4, masked', 'OSULeaf']
  actual = archives.primaries(SimpleNamespace(cells=made))
  assert actual.keys() == {
    f'{over} {model}' for over in archives.OVER for model in ('Transformer + Rotary', 'LRU')
  }


def test_answers_at_positions_that_do_not_count_are_not_stored(tmp_path):
  write_study(tmp_path / 'runs', 1, 4, ('image',))
  for path in (tmp_path / 'runs').rglob('result.json'):
    label_NL = np.array([[-1, 2], [1, -1], [3, 3], [-1, 0]], np.int32)
    arrays = {'index': np.arange(4), 'label': label_NL, 'prediction': np.full((4, 2), 3, np.int32)}
    result = json.loads(path.read_text())
    result['metrics']['test'] |= {'accuracy': 0.4}
    run_folder.write_result(path.parent, result, arrays)
  archive.store(tmp_path / 'runs', tmp_path / 'runs.jsonl')
  test = {'index': np.arange(4), 'label': label_NL}
  assert archive.restore(tmp_path / 'runs.jsonl', tmp_path / 'again', lambda task: test)[0] == 10
  with np.load(next((tmp_path / 'again').rglob('predictions.npz'))) as stored:
    np.testing.assert_array_equal(stored['prediction'], np.where(label_NL < 0, 0, 3))
