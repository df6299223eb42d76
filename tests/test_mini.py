"""benchmarks/mini.py: what it makes of the runs of LRA-mini."""

import pytest

from benchmarks import mini
from benchmarks.study_page import write_study
from lra_spt.errors import DataError


def cell(model, score, **facts):
  of = {'state': '', 'causal': False, 'regime': 'scratch', 'task': 'text_mini', 'column': 'Text'}
  return of | {'model': model, 'score': score, 'scores': [score - 0.01, score + 0.01]} | facts


def test_agreement_with_the_printed_order():
  """Printed, from scratch on Text: Transformer 64.27, DLR 79.65, S4 86.82."""
  cells = [cell('transformer', 0.5), cell('dlr', 0.6), cell('s4', 0.55)]
  not_run = dict.fromkeys(cells[0]) | {'state': 'not run'}
  (one,) = mini.agreement([*cells, cell('s4', 0.7), cell('s5', 0.9, state='2 of 3 seeds'), not_run])
  assert (one['column'], one['regime'], one['tau']) == ('Text', 'scratch', pytest.approx(1 / 3, abs=1e-3))
  assert one['of_seeds'] == [one['tau']] * 2
  assert one['models']['dlr'] == {'mini': 0.6, 'printed': 79.65}
  assert [*one['models']] == ['transformer', 'dlr', 's4']  # once each; of S5 seeds are missing
  assert mini.agreement(cells[:2]) == []
  (one,) = mini.agreement([cell('transformer', 0.1), cell('dlr', 0.2), cell('s4', 0.3), cell('lru', 0.4)])
  assert one['tau'] == 1


def test_cells_that_are_not_whole_say_nothing(tmp_path):
  write_study(tmp_path, 2, 300, ('image', 'pathx'))
  name = mini.studies.read_record(tmp_path)['study']
  found = mini.collected(name, tmp_path)
  assert len(found['gains']) == 10
  assert found['command'] == f'lra-spt study configs/studies/{name}.py'
  (tmp_path / 'runs/s4_masked/image/seed1/result.json').unlink()
  less = mini.collected(name, tmp_path)
  assert len(less['gains']) == 9
  assert ('S4', 'Image') not in {(one['model'], one['column']) for one in less['gains']}
  with pytest.raises(DataError, match='is of the study .*, not mini_labels; give another --study'):
    mini.collected('mini_labels', tmp_path)


def test_what_is_kept_is_put_where_its_sets_are(tmp_path, capsys):
  """No set is prepared here, so no run can be put there, and the files stay what they were."""
  results = tmp_path / 'results'
  results.mkdir()
  kept = mini.harness.RESULTS / 'mini_table_runs.jsonl'
  (results / kept.name).write_bytes(kept.read_bytes())
  with pytest.raises(SystemExit, match='mini: .* has no finished run of mini_table yet; go on'):
    mini.main([f'--workdir={tmp_path / "runs"}', f'--data_dir={tmp_path}', f'--results={results}'])
  said = capsys.readouterr().out
  assert said.count('Left out: There is no prepared data set in ') == 3
  assert [path.name for path in results.iterdir()] == [kept.name]
  assert (results / kept.name).read_bytes() == kept.read_bytes()
