"""Reports of regressions, of controls, and of what must stand beside the numbers."""

import dataclasses
import html
import json
import re
import shutil

import numpy as np
import pytest

from lra_spt.cli import main as cli
from lra_spt.config import loading as config
from lra_spt.errors import DamagedFile
from lra_spt.report import compare, published
from lra_spt.report import page as report_page
from lra_spt.report.pages import leaderboard
from lra_spt.report.runs.run import collect
from lra_spt.report.statistics import intervals as statistics
from lra_spt.report.statistics import scores
from lra_spt.report.study import arms as tables
from lra_spt.report.study import notes
from lra_spt.report.text import text_table
from lra_spt.studies import demo

UNVERIFIED = 'The data could not be verified to be the official files'


@pytest.fixture
def page(tmp_path):
  """page(runs) -> the text of their report, without tags, all white space as single spaces."""

  def render(runs):
    text = report_page.write_report(runs, tmp_path / 'out.html', 'Title').read_text()
    text = re.sub(r'<style.*?</style>|<[^>]*>', ' ', text, flags=re.DOTALL)
    return ' '.join(html.unescape(text).split())

  return render


@pytest.fixture
def regression(write_run, tmp_path):
  """regression(seeds, **settings) -> the Runs of bidmc_hr from scratch and after masked pretraining."""

  def write(seeds=(0,), **settings):
    settings = {
      'task': 'bidmc_hr',
      'model': 'transformer_rotary',
      'classes': 0,
      'groups': 12,
      'examples': 600,
      **settings,
    }
    for seed in seeds:
      write_run(f's{seed}', seed=seed, accuracy=0.80, **settings)
      write_run(f'm{seed}', seed=seed, accuracy=0.95, regime='masked', **settings)
    return collect(tmp_path)

  return write


def edit_result(run, **changes):
  path = run.path / 'result.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize('seeds', [(0,), (0, 1, 2)])
def test_regression_is_told_in_r2(regression, page, seeds):
  runs = regression(seeds)
  (group,) = tables.summarise(runs)
  assert [arm.score.estimate for arm in group.arms] == [pytest.approx(0.80), pytest.approx(0.95)]
  assert (group.score, group.constant) == (scores.R2, 0)
  (gain,) = group.gains
  assert gain.interval.estimate == pytest.approx(0.15)
  assert gain.interval.low > 0
  words, text = page(runs), text_table(runs)
  low, high = (f'{value:.4f}' for value in (group.arms[1].score.low, group.arms[1].score.high))
  for shown in (words, text):
    assert f'{low} to {high}' in shown
    assert '+0.1500' in shown
    assert re.search('[Aa]lways the mean label: 0[^.]', shown)
    assert '0.992' in shown  # Table 3
  mae = np.mean([run.test['mae'] for run in runs[-len(seeds) :]])
  assert f'{mae:.3g}' in text
  assert 'Test R²' in words
  several = 'raised the test R² of transformer_rotary on bidmc_hr from 0.8000 (scratch) to 0.9500'
  single = '(seed 0) has a test R² of 0.9500, the one with scratch of 0.8000: +0.1500 ('
  assert (several in words, single in words) == (len(seeds) > 1, len(seeds) == 1)
  assert 'validation R²' in words
  assert 'BIDMC HR' in words
  for wrong in ('most frequent', 'McNemar', 'Only one right', 'points', 'guessing among'):
    assert wrong not in words
  assert 'accuracy' not in text
  for shown in (text, words):
    assert set(re.findall(r'[\d.]+ %', shown)) == {'95 %'}
  assert tables.score_text(runs[0]) == 'test R² 0.8000 (always the mean label: 0)'


def test_gain_counts_who_came_closer(regression):
  runs = regression()
  base, run = (run.predictions for run in runs)
  closer = np.abs(run[2] - run[1]) < np.abs(base[2] - base[1])
  (gain,) = tables.summarise(runs)[0].gains
  assert gain.better_on == (closer.sum(), (~closer).sum())
  assert gain.p_values == (None,)


def test_recordings_are_what_is_counted(regression, page, tmp_path):
  runs = regression()
  assert [len(run.units) for run in runs] == [12, 12]
  interval = tables.summarise(runs)[0].arms[0].score
  assert '12 patients' in interval.method
  assert '12 patients are few' in page(runs)
  label_N, prediction_N = runs[0].predictions[1:]
  expected = statistics.r2_interval(statistics.r2_units(label_N, prediction_N, np.arange(600) // 50))
  assert (interval.low, interval.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
  for run in runs:  # as a run that does not know its recordings leaves them
    with np.load(run.path / 'predictions.npz') as stored:
      arrays = {key: stored[key] for key in stored if key != 'group'}
    np.savez(run.path / 'predictions.npz', **arrays)
  runs = collect(tmp_path)
  narrower = tables.summarise(runs)[0].arms[0].score
  assert narrower.high - narrower.low < interval.high - interval.low
  assert 'predictions.npz does not say which belong together' in page(runs)


def test_seeds_of_a_regression_are_pooled(regression):
  runs = regression((0, 1, 2))
  arm = tables.summarise(runs)[0].arms[0]
  units = [run.units for run in runs[:3]]
  expected = statistics.pooled(units, True, scores.R2.bounds, 'patients')
  assert arm.score == expected.interval
  assert 'two-way' in arm.score.method


@pytest.mark.parametrize('seeds', [(0,), (0, 1)])
def test_regression_without_predictions(regression, page, seeds):
  runs = regression(seeds, predictions=False)
  arm = tables.summarise(runs)[0].arms[0]
  assert arm.score.known == (len(seeds) > 1)
  assert '0.8000' in page(runs)
  assert 'nan' not in page(runs).lower().split()
  assert '0.8000' in text_table(runs)


def test_an_r2_below_zero_is_reported(regression, page):
  runs = regression()
  for run in runs:
    with np.load(run.path / 'predictions.npz') as stored:
      arrays = dict(stored) | {'prediction': stored['prediction'] + np.float32(30)}
    np.savez(run.path / 'predictions.npz', **arrays)
    r2 = statistics.r2(arrays['label'], arrays['prediction'])
    edit_result(run, metrics={'test': run.test | {'r2': r2}})
  runs = collect(runs[0].path.parent)
  assert scores.R2.show(runs[0].value).startswith('\u2212')
  assert scores.R2.show(runs[0].value) in page(runs)
  assert 'do not trust this run' not in page(runs)


def test_what_a_regression_refuses(regression, tmp_path):
  run, other = regression()
  edit_result(run, metrics={'test': run.test | {'r2': 1.2}})
  with pytest.raises(DamagedFile, match='test r2 1.2 of 600 examples'):
    collect(tmp_path)
  edit_result(run, metric='f1', metrics={'test': run.test | {'f1': 0.5}})
  with pytest.raises(DamagedFile, match="'f1', and reports know accuracy and r2 only"):
    collect(tmp_path)
  edit_result(run, metric='r2', metrics={'test': run.test})
  with np.load(other.path / 'predictions.npz') as stored:
    np.savez(other.path / 'predictions.npz', **dict(stored) | {'label': np.full(600, np.nan, np.float32)})
  with pytest.raises(DamagedFile, match='of one length, of finite numbers'):
    _ = collect(tmp_path)[1].predictions


@pytest.mark.parametrize('task', ['bidmc_hr', 'mine'])
def test_runs_of_one_task_with_two_metrics_stand_apart(write_run, regression, page, tmp_path, capsys, task):
  regression((0, 1), task=task)
  shares = {'task': task, 'model': 'transformer_rotary', 'groups': 12}
  write_run('c0', accuracy=0.40, **shares)
  write_run('c1', accuracy=0.60, regime='masked', **shares)
  write_run('c2', accuracy=0.30, **shares | {'model': 'bag_of_tokens'})
  runs = collect(tmp_path)
  _, of_shares, of_values = tables.summarise(runs)
  assert (of_shares.score, of_values.score) == (scores.ACCURACY, scores.R2)
  assert [len(group.gains) for group in (of_shares, of_values)] == [1, 1]
  assert ([control.model for control in of_shares.controls], of_values.controls) == (['bag_of_tokens'], ())
  (comparison,) = compare.comparisons(tables.summarise(runs))
  assert (comparison.score, comparison.models) == (scores.ACCURACY, ('bag_of_tokens', 'transformer_rotary'))
  by_r2 = f'{of_values.arms[0].runs[0].path}, of the same task and model, by R²: they are in tables of their'
  assert cli.main(['report', f'--workdir={tmp_path}']) == 0
  for words in (page(runs), ' '.join(capsys.readouterr().out.split())):
    assert f'These runs are scored by accuracy, but {by_r2} own' in words
    for shown in ('40.0 %', '60.0 %', '+20.0', '0.8000', '0.9500', '+0.1500'):
      assert shown in words
  assert f'scratch ({task}, transformer_rotary, clean, r2)' in page(runs)
  own = [part for part in leaderboard.view(runs)['tasks'] if any(line['own'] for line in part['lines'])]
  name = published.TASK_NAMES.get(task, task)
  assert sorted(part['name'] for part in own) == [f'{name}, R²', f'{name}, accuracy']
  for part in own:
    assert all(line['score'].endswith('%') == (part['score'] == 'Accuracy') for line in part['lines'])
  assert cli.main(['export', f'--workdir={tmp_path}', '--format=json']) == 0
  exported = json.loads(capsys.readouterr().out)
  assert [line['metric'] for line in exported] == ['accuracy', 'accuracy', 'accuracy', 'r2', 'r2']


@pytest.mark.parametrize('seeds', [(0,), (0, 1)])
def test_accuracies_count_groups_where_examples_belong_together(write_run, tmp_path, page, seeds):
  for seed in seeds:
    write_run(f's{seed}', seed=seed, accuracy=0.40, groups=12)
    write_run(f'm{seed}', seed=seed, accuracy=0.45, groups=12, regime='masked')
  runs = collect(tmp_path)
  (group,) = tables.summarise(runs)
  assert [arm.score.estimate for arm in group.arms] == [pytest.approx(0.40), pytest.approx(0.45)]
  assert all(arm.score.high - arm.score.low > 0.3 for arm in group.arms)  # of 500 examples it is 0.09
  (gain,) = group.gains
  assert gain.interval.estimate == pytest.approx(0.05)
  assert gain.p_values == (None,) * len(seeds)
  assert gain.better_on[0] - gain.better_on[1] == 25 * len(seeds)
  words = page(runs)
  assert (
    'of one group are right or wrong together, so the intervals count groups, not examples: 12 pat' in words
  )
  assert 'patients' in group.arms[0].score.method
  assert 'patients' in gain.interval.method


def test_a_single_group_gives_no_interval(write_run, tmp_path):
  write_run('s', accuracy=0.4, groups=1)
  (group,) = tables.summarise(collect(tmp_path))
  assert group.arms[0].score.estimate == 0.4
  assert not group.arms[0].score.known


def test_a_result_that_contradicts_its_predictions_is_noted(regression, page):
  run, _ = regression()
  assert 'do not trust' not in page(collect(run.path.parent))
  edit_result(run, metrics={'test': run.test | {'r2': run.value + 0.01}})
  assert 'do not trust this run' in page(collect(run.path.parent))


def test_cautions_of_a_run_stand_beside_its_numbers(write_run, tmp_path, page):
  for seed in (0, 1):
    write_run(f'a{seed}', seed=seed, facts={'splits': 'reused', 'cautions': ['Chosen by <test> examples.']})
  write_run('b', task='other')  # as an older run, which has none
  runs = collect(tmp_path)
  assert [group.cautions for group in tables.summarise(runs)] == [(), ('Chosen by <test> examples.',)]
  words, text = page(runs), text_table(runs)
  assert words.count('Chosen by <test> examples.') == 2  # below its table, and in the one of plain text
  assert text.count('! Chosen by <test> examples.') == 1
  assert 'Splits not known; reused' in words


SAME = 'scratch: seeds 0, 2 have the same predictions, wrong ones too, so they are one run, and no interval'


@pytest.mark.parametrize(
  'classes, answer, noted',
  [
    (10, lambda label_N, prediction_N: prediction_N, True),
    (0, lambda label_N, prediction_N: prediction_N, True),
    (10, lambda label_N, prediction_N: np.full_like(label_N, 3), False),  # at chance, as trainings may be
    (10, lambda label_N, prediction_N: label_N, False),  # all right
  ],
)
def test_predictions_recorded_under_several_seeds_are_one_run(
  write_run, tmp_path, page, classes, answer, noted
):
  recorded = {'recorded': {'source': 'elsewhere'}}
  folders = [write_run(f'r{seed}', seed=seed, classes=classes, facts=recorded) for seed in range(3)]
  with np.load(folders[0] / 'predictions.npz') as stored:
    arrays = dict(stored)
  arrays['prediction'] = answer(arrays['label'], arrays['prediction'])
  for folder in folders[::2]:
    np.savez(folder / 'predictions.npz', **arrays)
  runs = collect(tmp_path)
  assert (SAME in page(runs)) == noted
  assert any(SAME in caution for caution in notes.cautions(runs)) == noted
  assert not notes.shared([dataclasses.replace(run, result=run.result | {'recorded': None}) for run in runs])


def test_runs_on_several_sets_are_pointed_out(write_run, tmp_path):
  """Of one task and model."""
  for number, data in enumerate('abbb'):
    prints = {'fingerprints': {'data': data, 'splits': 's'}}
    write_run(f'run{number}', task='own' if number < 2 else 'other', seed=number, facts=prints)
  found = {group.task: group.cautions for group in tables.summarise(collect(tmp_path))}
  assert found['other'] == ()
  assert found['own'] == (
    'These runs are on several versions of the set or of its splits, so they differ in more than training.',
  )


@pytest.mark.parametrize(
  'source, caution, fact',
  [
    (('files <b>x</b>.tgz', False), True, 'files <b>x</b>.tgz, NOT VERIFIED'),
    (('files x.tgz', True), False, 'files x.tgz, verified'),
    (('generated, seed 3', False), False, 'generated, seed 3'),
    (('own files train.npz', False), False, 'own files train.npz'),
    (None, False, 'not known'),
  ],
)
def test_unverified_data_are_pointed_out(write_run, tmp_path, page, source, caution, fact):
  write_run('a', source=source)
  runs = collect(tmp_path)
  words = page(runs)
  assert (UNVERIFIED in words) == (UNVERIFIED in text_table(runs)) == caution
  assert f'Data {fact} Fingerprints' in words


def test_smoke_runs_are_pointed_out(write_run, tmp_path, page):
  """Which are those with the steps that --smoke sets."""
  for number, steps in enumerate(({'max_steps': 8}, config.SMOKE_STEPS)):
    write_run(f'run{number}', config={'finetune': dict(steps)})
    words = page(runs := collect(tmp_path))
    for text in (words, text_table(runs)):
      assert ('smoke runs of a few steps: their numbers mean nothing.' in text) == bool(number)


def test_controls_stand_beside_the_model(write_run, tmp_path, page):
  write_run('a', task='image', accuracy=0.5)
  write_run('b', task='image', accuracy=0.3, config={'model': {'shuffle': True}})
  write_run('c', task='image', accuracy=0.2, model='bag_of_tokens')
  write_run('d', task='image', accuracy=0.25, model='bag_of_tokens', regime='masked')
  write_run('e', task='image', accuracy=0.9, model='bag_of_tokens', protocol='paper')
  write_run('f', task='listops', accuracy=0.9, model='bag_of_tokens')
  runs = collect(tmp_path)
  groups = {group.model: group for group in tables.summarise(runs) if group.task == 'image'}
  text = (
    'bag_of_tokens 20.0 % (scratch), 25.0 % (masked self-pretraining); '
    'transformer (positions shuffled) 30.0 % (scratch)'
  )
  assert groups['transformer'].controls_text == text
  assert text in ' '.join(text_table(runs).split())
  assert f'Controls: {text}.' in page(runs)
  assert groups['bag_of_tokens'].controls_text == ''
  # The paper's number is of the model that reads positions in their order.
  assert groups['transformer'].arms[0].published.value == 42.44
  assert groups['transformer (positions shuffled)'].arms[0].published is None


def test_majority_stands_beside_every_accuracy(write_run, tmp_path, page):
  write_run('a', classes=3)
  runs = collect(tmp_path)
  share = scores.percent(np.bincount(runs[0].predictions[1]).max() / 500)
  for shown in (page(runs), text_table(runs), tables.score_text(runs[0])):
    assert re.search(f'[Aa]lways the most frequent class: {share}', shown)
  assert tables.score_text(runs[0]).startswith('test accuracy 40.0 % (')


def test_majority_without_predictions_is_the_one_of_the_result(write_run, tmp_path):
  write_run('a', predictions=False)
  (run,) = collect(tmp_path)
  assert tables.score_text(run) == 'test accuracy 40.0 %'
  edit_result(run, metrics={'test': run.test | {'majority': 0.125}})
  (run,) = collect(tmp_path)
  assert tables.score_text(run) == 'test accuracy 40.0 % (always the most frequent class: 12.5 %)'
  assert 'always the most frequent class: 12.5 %' in text_table([run])


def test_published_rows_print_as_in_the_paper():
  row = published.published_row('bidmc_spo2', 's4', 'masked', False)
  assert row.printed == '0.997'
  assert published.published_row('image', 's4', 'masked', False).printed == '89.36 %'


def test_demo_prints_majority_with_every_accuracy(tmp_path, monkeypatch, write_run):
  """Runs are made up: what is tested is what is said about them."""
  folders = iter([write_run(f'arm{i}', classes=4) for i in range(len(demo.ARMS))])
  copy = lambda config, folder, **_: shutil.copytree(next(folders), folder)  # noqa: E731
  monkeypatch.setattr(demo.experiment, 'run', copy)
  lines = []
  demo.run_seed(101, tmp_path / 'demo', smoke=True, announce=lines.append)
  scored = [line for line in lines if 'test accuracy' in line]
  assert len(scored) == len(demo.ARMS)
  assert all('(always the most frequent class: ' in line for line in scored)
