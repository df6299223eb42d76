"""benchmarks/numerics.py: errors that tests measured, from the tests into a file."""

import json

from benchmarks import numerics, slow_tests


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
