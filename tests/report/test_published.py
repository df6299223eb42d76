import pytest

from lra_spt.report import published
from lra_spt.report.published import AVERAGES, ROWS, average


@pytest.mark.parametrize(
  'task, model, regime, expected',
  [
    ('listops', 'transformer', 'scratch', 0.3637),
    ('image', 'transformer', 'masked', 0.7422),
    ('image', 'transformer', 'causal', 0.7600),
    ('pathfinder', 'transformer_rotary', 'masked', 0.9416),
    ('pathx256', 's4', 'scratch', 0.6782),
    ('retrieval', 's4', 'masked', 0.8874),
    ('scifar', 'transformer_rotary', 'masked', 0.9029),
    ('pathx', 'dlr_random', 'scratch', 0.5004),
  ],
)
def test_lookup(task, model, regime, expected):
  assert published.published(task, model, regime) == pytest.approx(expected, abs=1e-12)


def test_lookup_of_causal_forms_and_gaps():
  assert published.published('speech_commands', 's4', 'scratch') == pytest.approx(0.9608)
  assert published.published('speech_commands', 's4', 'scratch', causal=True) == pytest.approx(0.9360)
  assert published.published('speech_commands', 's4', 'causal') == pytest.approx(0.9509)
  assert published.published('bidmc_hr', 's4', 'scratch') == 0.999  # R2, not per cent
  assert published.published('pathx', 'transformer', 'scratch') is None  # chance
  assert published.published('toy', 'transformer', 'scratch') is None


def test_rows_are_unique_and_plausible():
  keys = [(r.table, r.approach, r.model, r.task, r.causal, r.pretraining_share, r.parameters) for r in ROWS]
  assert len(set(keys)) == len(keys)
  assert {row.table for row in ROWS} == {1, 2, 3, 7, 8, 9}
  for row in ROWS:
    low, high = (0.9, 1) if row.metric == 'r2' else (15, 99)
    assert row.value is None or low <= row.value <= high
    assert 'Table' in row.source


def test_tables_that_repeat_a_number_agree():
  """Table 7 repeats rows of Table 2, Table 9 the 3M column, Table 8 the rotary Transformer from scratch."""
  table2 = {(r.model, r.regime, r.task): r.value for r in ROWS if r.table == 2}
  for row in ROWS:
    if (
      (row.table == 7 and row.model == 's4')
      or row.parameters == '3M'
      or (row.pretraining_share == 0 and row.model == 'transformer_rotary')
    ):
      assert row.value == table2[row.model, row.regime, row.task]


def test_printed_averages_follow_from_their_rows_but_for_five():
  off = {key for key, printed in AVERAGES.items() if abs(average(*key) - printed) > 0.01}
  assert off == {
    (2, 'S4 + Masked SPT'),
    (2, 'Pythia 70M (Rand Init)'),
    (7, 'S4 + Rand Init + SPT'),
    (7, 'DLR + Rand Init + SPT'),
    (7, 'DLR + SPT'),
  }
  assert average(2, 'S4 + Masked SPT') == pytest.approx(86.925)
  with pytest.raises(KeyError, match='no row'):
    average(9, 'S4')
