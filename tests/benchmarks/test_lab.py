"""Contrasts of the laboratory, and the numbers of `python -m benchmarks inside`, on made-up runs."""

import types

import numpy as np
import pytest

from benchmarks import lab
from lra_spt.errors import DataError
from lra_spt.report.runs.inside import Inside

L = 8
SEEDS = 101, 102, 103


def cell(row, share, *, open=()):
  rng = np.random.default_rng(len(row))
  runs = [types.SimpleNamespace(seed=s, path=f'{row}/{s}', units=rng.random(200) < share) for s in SEEDS]
  return types.SimpleNamespace(runs=runs[::-1], open=open)


@pytest.fixture
def table(monkeypatch):
  shares = {lab.SCRATCH: 0.3, lab.TIED: 0.7, lab.ALL: 0.9, lab.QUERIES: 0.4, lab.REST: 0.5}
  shares |= {
    f'all, {lab.FROZEN}': 0.8,
    f'scratch, {lab.FROZEN}': 0.25,
    f'{lab.REST}, which stay as drawn': 0.3,
  }
  made = types.SimpleNamespace(cells={(row, 'Stripes'): cell(row, share) for row, share in shares.items()})
  monkeypatch.setattr(lab.studies, 'read_table', lambda workdir: made)
  return made


def test_contrasts(table):
  actual = {one['name']: one for one in lab.contrasts(table)}
  assert list(actual) == list(lab.CONTRASTS)
  means = {row: np.mean([run.units for run in cell.runs]) for (row, _), cell in table.cells.items()}
  beyond = actual['together beyond the sum of both parts']
  parts = means[lab.ALL] + means[lab.SCRATCH] - means[lab.QUERIES] - means[lab.REST]
  assert beyond['estimate'] == pytest.approx(parts)
  assert beyond['low'] < parts < beyond['high']
  assert all(one['p'] <= one['adjusted'] for one in actual.values())
  table.cells[lab.REST, 'Stripes'].open = ('seed 104',)
  assert [one['name'] for one in lab.contrasts(table)] == [
    name for name, rows in lab.CONTRASTS.items() if lab.REST not in sum(rows, ())
  ]


def test_numbers_of_all_states(table, monkeypatch):
  """Every state attends to its own position twice as much as uniformly; half of its gradient is there."""

  def look_inside(run, scratch, *, examples, data_dir):
    states = ['initial', 'scratch'] if scratch is None else ['initial', 'pretrained', 'finetuned', 'scratch']
    field, attention = np.full(L, 0.5 / (L - 1)), np.full((2, 3, L), 0.125)
    field[0], attention[..., 0] = 0.5, 0.25
    return Inside(
      examples,
      dict.fromkeys(states, 1),
      dict.fromkeys(states, field),
      dict.fromkeys(states, attention),
      np.full(L, 0.125),
      {},
      None,
      {},
    )

  monkeypatch.setattr(lab.lra_spt, 'look_inside', look_inside)
  actual = lab.inside('runs', 'data', 4)
  assert actual['seeds'] == [*SEEDS]
  for key, shape in (('field', (3, L)), ('attention', (3, 2, L))):
    assert {state: np.shape(values) for state, values in actual[key].items()} == dict.fromkeys(
      lab.STATES, shape
    )
  assert actual['at_pixel'] == dict.fromkeys(lab.STATES, 0.5)
  assert actual['uneven'] == pytest.approx(dict.fromkeys(lab.STATES, 2 / L))
  table.cells[lab.TIED, 'Stripes'].open = ('seed 104',)
  with pytest.raises(DataError, match='The cell scratch, compute-tied of runs is not whole'):
    lab.inside('runs', 'data', 4)
