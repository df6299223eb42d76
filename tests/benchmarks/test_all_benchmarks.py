"""`python -m benchmarks`: what there is, run from one place; rows that are kept."""

import argparse
import json
import re

import pytest

from benchmarks import __main__ as all_benchmarks
from benchmarks import harness


def test_all_are_listed_with_their_results(capsys):
  assert all_benchmarks.main([]) == 0
  printed = capsys.readouterr().out
  for name, question in all_benchmarks.BENCHMARKS.items():
    assert re.search(rf'^{name} +{re.escape(question)}: ', printed, re.MULTILINE)
  assert 'field_compiled.json 2026' in printed
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
