"""The analysis of the three questions, on made-up scores whose answers are known."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import questions
from lra_spt.studies import study


def cell(scores, examples=200):
  """A whole cell: one run per score, whose right answers are the first of `examples`."""
  runs = [
    SimpleNamespace(seed=seed, value=score, units=np.arange(examples) < round(score * examples))
    for seed, score in enumerate(scores)
  ]
  return SimpleNamespace(runs=runs, open=())


def table(**columns):
  """A table of {(row, column): cell}."""
  cells = {(row, column): cell(scores) for column, rows in columns.items() for row, scores in rows.items()}
  return SimpleNamespace(cells=cells)


PATHFINDER = {
  'S4, scratch': [1.0] * 4,
  'S4, masked': [1.0] * 4,
  'Transformer + Rotary, scratch': [0.5, 0.9] * 5,
  'Transformer + Rotary, masked': [0.9] * 10,
}


def test_the_gap_closes_by_the_gain_of_the_transformer():
  actual = questions.primaries(table(Pathfinder=PATHFINDER))
  assert actual.keys() == {'pathfinder', 'high'}
  assert actual['pathfinder']['estimate'] == pytest.approx(0.2)
  # The share of seeds drawn at 50 % is binomial: 2 to 8 of 10 are its percentiles.
  assert [actual['pathfinder'][end] for end in ('low', 'high')] == pytest.approx([0.08, 0.32])
  assert {arm: share['above'] for arm, share in actual['high'].items()} == {'scratch': 5, 'masked': 10}


def test_seeds_of_cells_are_drawn_independently():
  first, second = [0.1, 0.4, 0.2], [0.7, 0.3]
  draws = [
    np.mean([first[i] for i in one]) - np.mean([second[i] for i in two])
    for one in itertools.product(range(3), repeat=3)
    for two in itertools.product(range(2), repeat=2)
  ]
  actual = questions.over_seeds([first, second], (1, -1), resamples=40_000)
  exact = np.quantile(draws, (0.025, 0.975))
  assert [actual['low'], actual['high']] == pytest.approx(exact, abs=0.02)


def test_means_and_the_lead_over_random_values():
  rows = {
    f'{model}, {arm}': [base + (gain if arm == 'masked' else 0)] * 5
    for model, base, gain in (
      ('Transformer + Rotary', 0.3, 0.05),
      ('S4', 0.4, 0.1),
      ('DLR', 0.4, 0.15),
      ('DLR random', 0.2, 0.3),
    )
    for arm in ('scratch', 'masked')
  }
  actual = questions.primaries(table(Image=rows))
  assert actual.keys() == {'image', 'random'}
  assert actual['image']['estimate'] == pytest.approx(0.1)
  assert actual['random']['estimate'] == pytest.approx(0.15)
  assert actual['image']['low'] < 0.1 < actual['image']['high']


def test_a_question_waits_for_its_last_run():
  unfinished = table(Pathfinder=PATHFINDER)
  unfinished.cells['S4, masked', 'Pathfinder'].open = ('seed 24',)
  assert questions.primaries(unfinished) == {}


def test_the_study_has_the_cells_of_the_analysis():
  one = study.load('configs/studies/questions.py')
  cells = {(a.row, a.column): cell([0.5] * len(a.seeds or one.seeds)) for a in one.cells}
  assert questions.primaries(SimpleNamespace(cells=cells)).keys() == {
    'pathfinder',
    'high',
    'text',
    'image',
    'random',
  }
