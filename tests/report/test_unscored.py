"""If the test score of a run is not defined, every page, table and file says so and shows the other runs."""

import csv
import io
import itertools
import json
import math
import re

import numpy as np
import pytest

from lra_spt.cli import main as cli
from lra_spt.data import measures
from lra_spt.report import export
from lra_spt.report.pages import charts, leaderboard, report, styles
from lra_spt.report.runs import run_folder
from lra_spt.report.runs.run import read_run
from lra_spt.report.study.any_folder import read_any
from lra_spt.report.study.arms import score_text
from lra_spt.report.study.text import text

WHY = 'R2 is not defined over values that do not vary'
BEFORE = {'metric': 'r2', 'metrics': {'test': {'r2': -1.096e38, 'mae': 1.0, 'examples': 500}}}


@pytest.fixture
def folder(write_run, tmp_path):
  """Two arms of three seeds on one task, where one seed has no score, and three runs without a score on
  another task. One of these is from a version that wrote a number for such a score."""
  for seed in range(3):
    options = {'classes': 0, 'seed': seed, 'groups': 20}
    write_run(f'scratch{seed}', accuracy=0.5, constant=seed == 1, **options)
    write_run(f'masked{seed}', accuracy=0.7, regime='masked', **options)
    facts = BEFORE if seed == 2 else {}
    write_run(f'flat{seed}', task='flat', constant=True, predictions=True, **options, facts=facts)
  return tmp_path / 'runs'


def test_no_page_breaks_and_all_name_the_reason(folder):
  table = read_any(folder)
  cells = {(row.split(', ')[1], column): cell for (row, column), cell in table.cells.items()}
  scratch, flat = cells['scratch', 'toy'], cells['scratch', 'flat']
  assert (scratch.arm.seeds, scratch.state) == ((0, 2), '2 of 3 with a score')
  assert (flat.arm, flat.state, len(flat.runs)) == (None, 'no score', 3)
  assert [run.value for run in flat.runs] == [None] * 3
  (pair,) = table.findings.pairs
  assert pair.seeds == (0, 2)
  shown = ' '.join(text(table).split())
  assert f'and 3 more: no test R\u00b2: {WHY}.' in shown
  assert '9 finished, 4 of these without a score' in shown
  assert 'do not trust' not in shown
  assert 'still to run' not in shown
  for page in (report.write(table), leaderboard.write(table, folder / 'l.html')):
    html = page.read_text()
    assert WHY in html
    assert not re.search(r'[">\s]nan[\s<"]', html)


def test_exports_hold_null_and_the_reason(folder):
  table = read_any(folder)
  lines = {(line['column'], line['regime']): line for line in json.loads(export.text(table, 'json'))}
  assert (
    lines['flat', 'scratch'] | {'task': 'flat', 'state': 'no score', 'unscored': WHY}
    == lines['flat', 'scratch']
  )
  assert [lines['flat', 'scratch'][key] for key in ('seeds', 'scores', 'score')] == [
    [0, 1, 2],
    [None] * 3,
    None,
  ]
  assert [value is None for value in lines['toy', 'scratch']['scores']] == [False, True, False]
  assert lines['toy', 'masked']['unscored'] == ''
  in_csv = {
    (line['column'], line['regime']): line for line in csv.DictReader(io.StringIO(export.text(table, 'csv')))
  }
  assert in_csv['flat', 'scratch']['scores'] == 'null null null'
  assert in_csv['flat', 'scratch']['score'] == ''
  for form in ('latex', 'markdown'):
    assert 'no score' in export.text(table, form)


def test_commands_end_well(folder, capsys):
  for command in (['report'], ['report', '--leaderboard'], ['export', '--format=csv']):
    assert cli.main([*command, f'--workdir={folder}']) == 0
  assert WHY in capsys.readouterr().out


@pytest.mark.parametrize('predictions', [True, False])
def test_numbers_without_meaning_break_no_page(write_run, tmp_path, predictions):
  """Runs of an earlier version have scores near the largest float or beyond it, and null in their curves."""
  write_run('good', classes=0, accuracy=0.6, regime='masked')
  for seed, r2 in enumerate((-1.096e38, -3.4e38, -1e99, 1.0)):
    metrics = {'test': {'r2': r2, 'examples': 500}}
    run = write_run(f'bad{seed}', classes=0, seed=seed, predictions=predictions, facts={'metrics': metrics})
    log = next(run.glob('finetune-*')) / 'metrics.jsonl'
    log.write_text(log.read_text() + '{"step": 400, "split": "validation", "r2": null, "loss": 1e38}\n')
  table = read_any(tmp_path / 'runs')
  report.write(table)
  leaderboard.write(table, tmp_path / 'l.html')
  for form in ('csv', 'json', 'latex', 'markdown'):
    export.text(table, form)
  assert text(table)


@pytest.mark.parametrize('scale', [0.0, 3e37])
def test_predictions_without_any_error_or_sense_break_no_page(write_run, tmp_path, scale):
  """R2 is 1 for all runs, or -1e78: its variance overflows float32, and the square of that float64."""
  label_N = (97.3 + 1e-4 * np.arange(30)).astype(np.float32)
  for regime, seed in itertools.product(('scratch', 'masked'), range(2)):
    noise_N = np.random.default_rng(seed + 2 * (regime == 'masked')).normal(size=30)
    prediction_N = (label_N + scale * noise_N).astype(np.float32)
    value = measures.r2(label_N, prediction_N)
    facts = {'metrics': {'test': {'r2': value, 'examples': 30}}}
    run = write_run(f'{regime}{seed}', classes=0, examples=30, regime=regime, seed=seed, facts=facts)
    np.savez(run / 'predictions.npz', index=np.arange(30), label=label_N, prediction=prediction_N)
  table = read_any(tmp_path / 'runs')
  assert 'do not trust' not in text(table)
  assert not re.search(r'\d{12}', text(table))
  report.write(table)
  assert {line['unscored'] for line in json.loads(export.text(table, 'json'))} == {''}


@pytest.mark.parametrize('ends', [(0.0, 0.0), (1e300, 1e300), (0.5, 0.5 + 2**-53), (-1e38, 1.0)])
def test_scales_need_no_distance_between_their_ends(ends):
  axis = charts.Axis(*ends, 10, 90)
  assert all(math.isfinite(axis(value)) for value in (*ends, *axis.ticks()))
  style = styles.of_row(0)
  bars = [charts.Bar('a', style, 0.0), charts.Bar('b', style, None, None, 0.0)]
  for chart in (
    charts.bar_chart([('g', bars)], 'y'),
    charts.line_chart([charts.Line('a', style, (([0], [ends[0]]),))], 'x', 'y'),
    charts.scatter([(1.0, ends[0], style, ''), (1.0, ends[1], style, '')], 'x', 'y'),
  ):
    assert not re.search('nan|inf', chart.replace('infinity', ''))


def test_null_needs_its_reason(write_run):
  run = write_run('run', classes=0, constant=True)
  path = run / run_folder.RESULT
  result = json.loads(path.read_text())
  assert score_text(read_run(run)) == f'no test R\u00b2: {WHY}'
  del result['metrics']['undefined']
  path.write_text(json.dumps(result))
  with pytest.raises(ValueError, match='null for r2, and undefined does not say why'):
    read_run(run)


def test_one_example_has_an_interval_that_says_little(write_run, tmp_path):
  for seed in range(2):
    for regime, accuracy in (('scratch', 0.0), ('masked', 1.0)):
      write_run(f'{regime}{seed}', examples=1, accuracy=accuracy, regime=regime, seed=seed)
  table = read_any(tmp_path / 'runs')
  assert not table.findings.pairs
  report.write(table)
  scores = [cell.arm.score for cell in table.cells.values()]
  assert all(0 <= score.low <= score.high <= 1 for score in scores)
  assert np.isfinite([score.estimate for score in scores]).all()
