"""benchmarks/numerics.py: errors that tests measured, from the tests into a file; and its table."""

import json

from benchmarks import numerics, slow_tests
from docs import counts


def test_errors_come_from_the_tests_with_their_bounds(tmp_path, capfd):
  path = tmp_path / 'numerics.json'
  assert numerics.main([f'--json={path}', '--only=test_fft_conv and 16384']) == 0
  rows = json.loads(path.read_text())['rows']
  held = {(row['kernel'], row['positions'], *row['bounds']) for row in rows}
  assert held == {('fft_conv', 16384, 2e-5, 1e-4)}
  assert all(0 < row['values'] < 2e-5 and 0 < row['gradients'] < 1e-4 for row in rows)
  assert rows[0]['test'].startswith('tests.ops.test_fft_conv.test_accurate_at_full_length[')
  assert f'2 errors of 2 tests; written to {path}' in capfd.readouterr().out


def test_nothing_is_written_where_a_test_failed(tmp_path, monkeypatch):
  monkeypatch.setattr(slow_tests, 'run', lambda *_: (1, []))
  assert numerics.main([f'--json={tmp_path / "numerics.json"}']) == 1
  assert [*tmp_path.iterdir()] == []


def test_the_table_has_the_worst_and_every_bound():
  rows = [
    {'kernel': kernel, 'positions': positions, 'values': values, 'gradients': 3e-6, 'bounds': [2e-5, 1e-4]}
    for kernel in counts.KERNELS
    for positions in (16384, 65536)
    for values in (1.25e-7, 2e-6)
  ]
  for row in rows[:2]:
    row['bounds'] = [2e-6, 4e-5]
  found = {'rows': rows, 'command': 'c', 'date': '2026-11-28', 'versions': {'jax': '1'}}
  lines = counts.numerics(found | {'hardware': {'cpu_count': 2, 'cpu': 'CPU'}})
  assert lines[0] == '| kernel | values, 16,384 / 65,536 | gradients, 16,384 / 65,536 |'
  assert lines[2] == '| S4 (`ops/cauchy.py`) | 2.0e-6 / 2.0e-6 | 3.0e-6 / 3.0e-6 |'
  assert ' '.join(lines).count(' | 2.0e-6 / 2.0e-6 | ') == len(counts.KERNELS)
  assert (
    'The worst of 20 cases. Bounds of values and gradients: at 16,384 2e-5 and 1e-4 (S4: 2e-6 and 4e-5), '
    'at 65,536 2e-5 and 1e-4.'
  ) in ' '.join(lines)
