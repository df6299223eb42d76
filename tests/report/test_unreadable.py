"""Runs of a folder that cannot be counted: without a result, damaged, contradictory or cut short."""

import json

import numpy as np
import pytest

from lra_spt import files
from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.errors import DamagedFile
from lra_spt.report.export import table_lines
from lra_spt.report.pages import report
from lra_spt.report.runs.run import finished, read_run
from lra_spt.report.study.any_folder import read_any
from lra_spt.report.study.text import text


def test_what_a_study_searched_with_is_in_no_report(write_run, tmp_path):
  for place in ('runs/a', 'search/a/round1'):
    write_run(f'study/{place}', config={'place': place})
  (tmp_path / 'runs' / 'study' / 'study.json').write_text('{}')
  assert [folder.name for folder in finished(tmp_path)] == ['a']
  assert [folder.name for folder in finished(tmp_path / 'runs' / 'study' / 'search')] == ['round1']
  about = {'task': 'toy', 'model': {'name': 's4'}, 'regime': 'scratch', 'seed': 1, 'protocol': 'clean'}
  for place in ('runs/b', 'search/b'):  # unfinished runs
    (tmp_path / 'runs' / 'study' / place).mkdir()
    files.write_json(tmp_path / 'runs' / 'study' / place / 'config.json', about | {'causal': False})
  open_runs = [run.path.parent.name for cell in read_any(tmp_path).cells.values() for run in cell.open]
  assert open_runs == ['runs']


def test_runs_without_a_result_are_shown(write_run, tmp_path, capsys):
  config = {'task': 'image', 'model': {'name': 's4'}, 'regime': 'masked', 'seed': 3, 'protocol': 'clean'}
  for seed, (name, stages, failure) in enumerate(
    (
      ('early', {}, None),
      ('late', {'pretrain': 900, 'finetune': 40}, None),
      ('failed', {'pretrain': 1200}, {'error': 'The loss is <b>nan</b>; lower the rate.'}),
    )
  ):
    folder = tmp_path / 'runs' / name
    folder.mkdir(parents=True)
    files.write_json(folder / 'config.json', config | {'seed': seed, 'causal': False})
    if failure:
      files.write_json(folder / 'failure.json', failure)
    for stage, step in stages.items():
      (folder / f'{stage}-0a').mkdir()
      (folder / f'{stage}-0a' / 'metrics.jsonl').write_text(f'{{"step": {step}, "split": "train"}}\n{{"st')
  (tmp_path / 'runs' / 'data').mkdir()
  (tmp_path / 'runs' / 'data' / 'config.json').write_text('{"version": 1}')
  assert cli.main(['report', f'--workdir={tmp_path}']) == 0  # nothing else is there
  assert 'failed' in capsys.readouterr().out
  write_run('done')
  table = read_any(tmp_path)
  assert table.counts == {'finished': 1, 'failed': 1, 'open': 2, 'damaged': 0}
  page = report.write(table).read_text()
  for words in ('finetune, step 40', 'The loss is &lt;b&gt;nan&lt;/b&gt;; lower the rate.', str(folder)):
    assert words in page
  assert 'The loss is <b>nan</b>; lower the rate.' in ' '.join(text(table).split())


@pytest.mark.parametrize(
  'facts',
  [
    {'cautions': 'all of it'},
    {'groups': {'name': 3}},
    {'published': {'task': 'text'}},
    {'regime': 7},
    {'metrics': {'test': {'accuracy': '0.4', 'examples': 500}}},
    {'metrics': {'test': {'accuracy': 0.4}}},
    {'metrics': {'validation': [], 'test': {'accuracy': 0.4, 'examples': 500}}},
    {'metrics': {'test': {'accuracy': float('nan'), 'examples': 500}}},
  ],
)
def test_results_that_cannot_be_read_are_named(write_run, tmp_path, facts):
  folder = write_run('a', facts=facts)
  with pytest.raises(DamagedFile, match=r'result\.json is not the result of a run'):
    read_run(folder)
  with pytest.raises(DamagedFile, match=r'result\.json is not the result of a run'):
    read_any(tmp_path)


def test_predictions_that_contradict_the_result_are_pointed_out_everywhere(write_run, tmp_path, capsys):
  path = write_run('a') / 'result.json'
  assert cli.main(['report', f'--workdir={tmp_path}']) == 0
  result = json.loads(path.read_text())
  result['metrics']['test']['accuracy'] = 0.9
  path.write_text(json.dumps(result))
  capsys.readouterr()
  for command, status in (
    (['report'], 1),
    (['report', '--leaderboard'], 1),
    (['export', '--format=markdown'], 0),
  ):
    assert cli.main([*command, f'--workdir={tmp_path}']) == status
    assert 'do not trust this run' in ' '.join(capsys.readouterr().out.split())
  assert 'result.json says 90.0\u00a0%' in (tmp_path / 'report.html').read_text().replace(' %', '\u00a0%')


def test_pickled_predictions_are_refused(write_run, tmp_path):
  folder = write_run('a')
  np.savez(folder / 'predictions.npz', index=np.array([{}], object), label=[0], prediction=[0])
  with pytest.raises(DamagedFile, match=r'predictions\.npz'):
    _ = read_run(folder).predictions


def test_half_lines_and_repeated_steps_of_a_resumed_run(write_run, tmp_path):
  folder = write_run('a')
  path = folder / 'finetune-0a1b2c3d' / 'metrics.jsonl'
  before = read_run(folder).curves['finetune']['validation']['accuracy']
  with path.open('a') as file:
    file.write('{"step": 400, "split": "validat{"step": 20}\n')
    file.write('{"step": 400, "split": "validation", "accuracy": 0.75, "loss": NaN}\n{"step": 42')
  steps, values = read_run(folder).curves['finetune']['validation']['accuracy']
  np.testing.assert_array_equal(steps, before[0])
  np.testing.assert_array_equal(values, [*before[1][:-1], 0.75])


@pytest.mark.parametrize('seeds', [(0,), (0, 1)])
def test_without_predictions_and_curves_there_is_a_table_still(write_run, tmp_path, seeds):
  for regime in ('scratch', 'masked'):
    for seed in seeds:
      folder = write_run(f'{regime}{seed}', regime=regime, seed=seed, predictions=False)
      for path in folder.rglob('metrics.jsonl'):
        path.unlink()
  table = read_any(tmp_path)
  assert not table.findings.pairs
  assert 'predictions.npz is missing' in str(table.findings.apart)
  assert 'can be compared yet' not in ' '.join(text(table).split())
  report.write(table)


def test_smoke_runs_are_in_no_comparison_headline_or_export(write_run, tmp_path):
  """They are not averaged with seeds of full length either, and columns without a run are not shown."""
  short = {'finetune': loading.SMOKE_STEPS}
  for name, regime, accuracy in (('a', 'scratch', 0.4), ('b', 'masked', 0.9)):
    write_run(name, regime=regime, accuracy=accuracy, config=short)
  table = read_any(tmp_path)
  assert not table.findings.pairs
  assert [(line['score'], line['scores']) for line in table_lines(table)] == [(None, [None])] * 2
  assert all('smoke run' in line['unscored'] for line in table_lines(table))
  assert '90' not in text(table)
  page = report.write(table).read_text()
  assert 'a smoke run of a few steps, whose numbers mean nothing' in page
  assert '90.0' not in page
