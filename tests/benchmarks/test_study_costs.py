"""benchmarks/study_costs.py: what it counts is what its result file, and the files of the studies, say."""

import json
import math

import pytest

from benchmarks import harness, study_costs


@pytest.fixture(scope='module')
def rows():
  """{study: row} of the result file."""
  found = json.loads((harness.RESULTS / 'study_costs.json').read_text(encoding='utf-8'))
  return {row['study']: row for row in found['rows']}


@pytest.mark.parametrize(
  'name',
  [name if name == 'figure5' else pytest.param(name, marks=pytest.mark.slow) for name in study_costs.STUDIES],
)
def test_a_study_takes_what_the_result_file_says(name, rows, tmp_path, capsys):
  path = tmp_path / 'costs.json'
  study_costs.main([f'--json={path}', f'--studies={name}'])
  assert json.loads(path.read_text())['rows'] == [rows[name]]
  assert json.loads(capsys.readouterr().out.partition('\n')[0]) == rows[name]


def exa(row):
  """Three digits of the operations in EFLOP."""
  value = row['operations'] / 1e18
  return f'{value:.{max(0, 2 - math.floor(math.log10(value)))}f}'


def test_the_files_of_the_studies_say_so_too(rows, repository):
  for name in study_costs.STUDIES:
    text = ' '.join((repository / 'configs' / 'studies' / f'{name}.py').read_text(encoding='utf-8').split())
    row = rows[name]
    days = row['operations'] / 1e14 / (24 * 3600)
    told = f'{row["runs"]} runs with {row["stages"]} stages, at most {row["steps"] / 1e6:.1f} million steps'
    told += f' and {exa(row)} EFLOP: {days:.2g} days on one accelerator at 100 TFLOP/s'
    assert f'{told} (estimate of --dry_run, ' in text
