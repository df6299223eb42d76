"""`python -m benchmarks`: what there is, run from one place; rows that are kept."""

import argparse
import json
import subprocess

import pytest

from benchmarks import __main__ as all_benchmarks
from benchmarks import harness


def test_all_are_listed_and_run_from_one_place(capsys, monkeypatch):
  assert all_benchmarks.main([]) == 0
  printed = capsys.readouterr().out
  for name, what in all_benchmarks.commands().items():
    assert f'{name}\n  {what}\n' in printed
  assert 'field_compiled.json, 2026' in printed
  assert 'attention_cpu.json' in printed.partition('attention\n')[2].partition('block_attention\n')[0]
  started = []

  def run(command, cwd):
    started.append(command[2:])
    return subprocess.CompletedProcess(command, command[2].endswith('.field'))

  monkeypatch.setattr(subprocess, 'run', run)
  assert all_benchmarks.main(['data', 'field', '--', '--rounds=1']) == 1
  assert started == [['benchmarks.data', '--rounds=1'], ['benchmarks.field', '--rounds=1']]
  assert 'failed: field' in capsys.readouterr().err
  assert all_benchmarks.main(['all']) == 1
  assert len(started) == 2 + len(all_benchmarks.commands())
  assert all_benchmarks.main(['table', '--', '--check']) == 0
  assert started[-1] == ['docs.figures', '--check']
  with pytest.raises(SystemExit):
    all_benchmarks.main(['nope'])
  assert "there is no benchmark 'nope'; choose from accelerator, attention" in capsys.readouterr().err


def test_cases_measured_before_are_kept(tmp_path, capsys):
  path, measured = tmp_path / 'rows.json', []

  def measure(task, model):
    measured.append((task, model))
    return {'seconds': len(measured), 'parts': [1, 2]}

  cases = [{'task': 'image', 'model': model} for model in ('s4', 's5')]
  given = argparse.Namespace(json=path, resume=True)

  def report(commit):
    return {'commit': commit, 'date': '2026-11-24', 'rows': []}

  harness.fill(given, report('a'), cases[:1], measure)
  harness.fill(given, report('b'), cases, measure)
  assert measured == [('image', 's4'), ('image', 's5')]
  rows = json.loads(path.read_text())['rows']
  assert [(row['model'], row['seconds']) for row in rows] == [('s4', 1), ('s5', 2)]
  assert rows[0]['parts'] == [1, 2]
  assert [row.get('commit') for row in rows] == ['a', None]  # of the report where there is none
  assert '{"task": "image", "model": "s5", "seconds": 2}' in capsys.readouterr().out
  given.resume = False
  harness.fill(given, report('b'), cases[1:], measure)
  assert [row['model'] for row in json.loads(path.read_text())['rows']] == ['s5']
