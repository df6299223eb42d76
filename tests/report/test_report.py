import html.parser
import json
import re

import numpy as np
import pytest

from lra_spt import files
from lra_spt.cli import main as cli
from lra_spt.errors import DamagedFile, DataError
from lra_spt.report import page, views
from lra_spt.report.runs.run import Kernels, collect
from lra_spt.report.statistics import intervals as statistics
from lra_spt.report.statistics import scores
from lra_spt.report.study import arms as tables
from lra_spt.report.survey import survey
from lra_spt.report.text import text_table

HOSTILE = '<script>alert(1)</script>"\' $x^{2}$ & {{ 7 * 7 }}'
VOID = {'meta', 'link', 'br', 'hr', 'img', 'input'}


class Page(html.parser.HTMLParser):
  """Checks that tags nest, and keeps text, tags and attributes."""

  def __init__(self, text):
    super().__init__()
    self.stack, self.tags, self.attributes, self.text = [], [], [], []
    self.feed(text)
    assert not self.stack, f'unclosed: {self.stack}'

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += [(tag, *pair) for pair in attrs]
    if tag not in VOID:
      self.stack.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += [(tag, *pair) for pair in attrs]

  def handle_endtag(self, tag):
    assert self.stack.pop() == tag

  def handle_data(self, data):
    if not self.stack or self.stack[-1] != 'style':
      self.text.append(data)

  @property
  def words(self):
    return ' '.join(' '.join(self.text).split())


def page_of(runs, tmp_path, **settings):
  path = page.write_report(runs, tmp_path / 'out.html', settings.pop('title', 'A title'), **settings)
  return Page(path.read_text(encoding='utf-8'))


def test_collect_reads_and_sorts(write_study):
  runs = collect(write_study((1, 0)))
  assert [run.arm for run in runs[::2]] == [
    'scratch',
    'scratch, compute-tied',
    'scratch, causal form',
    'masked self-pretraining',
    'causal self-pretraining',
  ]
  assert [run.seed for run in runs[:4]] == [0, 1, 0, 1]
  masked = runs[6]
  index_N, label_N, prediction_N = masked.predictions
  assert index_N.shape == label_N.shape == prediction_N.shape == (500,)
  assert masked.units.mean() == pytest.approx(masked.value)
  steps, values = masked.curves['pretrain']['validation']['accuracy']
  assert steps[-1] == 800
  assert values[-1] == pytest.approx(0.7 * (1 - np.exp(-4)))
  assert masked.total('examples') == (800 + 400) * 64
  assert masked.total('flops') == pytest.approx(1200 * 3.1e9)


def test_predictions_in_any_order_are_compared_by_index(write_study):
  folder = write_study((0,), ('scratch', 'masked'))
  before = tables.summarise(collect(folder))[0].gains[0].interval
  path = folder / 'masked' / 'seed0' / 'predictions.npz'
  with np.load(path) as stored:
    arrays = {key: stored[key][::-1] for key in stored}
  np.savez(path, **arrays)
  assert tables.summarise(collect(folder))[0].gains[0].interval == before


def test_gains_are_those_of_the_predictions(write_study):
  group = tables.summarise(collect(write_study(range(3))))[0]
  pairs = [(gain.arm.name, gain.against.name) for gain in group.gains]
  assert pairs == [
    ('masked self-pretraining', 'scratch'),
    ('masked self-pretraining', 'scratch, compute-tied'),
    ('causal self-pretraining', 'scratch, causal form'),
    ('causal self-pretraining', 'scratch'),
    ('scratch, compute-tied', 'scratch'),
  ]
  gain = group.gains[0]
  accuracies = [[run.value for run in side.runs] for side in (gain.arm, gain.against)]
  assert gain.interval.estimate == pytest.approx(np.mean(accuracies[0]) - np.mean(accuracies[1]))
  assert gain.seeds == (0, 1, 2)
  assert gain.missing == ()
  assert gain.verdict == 'better'
  assert 'two-way' in gain.interval.method  # all seeds were tested on the same examples
  assert group.constant == pytest.approx(np.bincount(group.arms[0].runs[0].predictions[1]).max() / 500)


def test_seeds_with_their_own_test_data_get_the_t_interval(write_run, tmp_path):
  for seed in range(3):
    for regime, accuracy in (('scratch', 0.3), ('masked', 0.4)):
      write_run(f'{regime}{seed}', regime=regime, seed=seed, data=seed, accuracy=accuracy + seed / 100)
  (gain,) = tables.summarise(collect(tmp_path))[0].gains
  assert gain.interval.method.startswith('t interval over the means of 3 seeds')
  assert gain.interval.estimate == pytest.approx(0.1)


def test_seeds_that_one_side_lacks_are_named(write_run, tmp_path):
  for seed in (0, 1):
    write_run(f's{seed}', seed=seed)
  write_run('m', regime='masked', seed=1, accuracy=0.6)
  runs = collect(tmp_path)
  (gain,) = tables.summarise(runs)[0].gains
  assert (gain.seeds, gain.missing) == ((1,), (0,))
  assert 'seeds of which not both kept predictions: 0.' in page_of(runs, tmp_path).words


def test_different_test_data_under_one_seed_leave_out_their_gain_only(write_run, tmp_path, capsys):
  write_run('a/scratch', data=0)
  write_run('a/masked', data=5, regime='masked')
  for name, regime, accuracy in (('scratch', 'scratch', 0.4), ('masked', 'masked', 0.6)):
    write_run(f'b/{name}', model='s4', regime=regime, accuracy=accuracy)
  runs = collect(tmp_path)
  whole, apart = tables.summarise(runs)
  assert (len(whole.gains), whole.apart, apart.gains) == (1, (), ())
  with pytest.raises(DataError, match='tested on different examples') as raised:
    tables.gain(*apart.arms[::-1])
  (sentence,) = apart.apart
  assert sentence == str(raised.value)
  assert all(str(run.path) in sentence for run in runs if run.model == 'transformer')
  assert 'prepare the set once' in sentence
  folder = tmp_path / 'runs'
  assert cli.main(['report', f'--workdir={folder}']) == 1
  page = Page((folder / 'report.html').read_text(encoding='utf-8'))
  printed = capsys.readouterr()
  assert printed.err == ''
  for words in (page.words, ' '.join(printed.out.split())):
    assert sentence in words
    assert 'masked self-pretraining over scratch' in words
  assert 'nothing to compare yet' not in page.words
  for command in (['report', '--leaderboard'], ['export', '--format=markdown']):  # which show no gains
    assert cli.main([*command, f'--workdir={folder}']) == 0
    assert 'different examples' not in capsys.readouterr().out


def test_two_runs_of_one_arm_are_told_apart(write_run, tmp_path):
  for name, steps in (('short', 400), ('long', 1200)):
    write_run(name, finetune_steps=steps, config={'finetune': {'max_steps': steps}})
  assert [run.arm for run in collect(tmp_path)] == [
    'scratch, finetune.max_steps 1200',
    'scratch, finetune.max_steps 400',
  ]
  write_run('again', finetune_steps=400, config={'finetune': {'max_steps': 400}})
  assert [run.arm for run in collect(tmp_path / 'runs')] == [
    'scratch, finetune.max_steps 1200',
    'scratch, finetune.max_steps 400, again',
    'scratch, finetune.max_steps 400, short',
  ]


def test_runs_of_other_settings_are_no_seeds_of_one_arm(write_run, tmp_path):
  for seed, (lr, steps) in enumerate(((1e-3, 400), (4e-3, 800), (4e-3, 1200))):
    finetune = {'optimizer': {'lr': lr}, 'max_steps': 4000}
    write_run(f'{seed}', seed=seed, finetune_steps=steps, config={'finetune': finetune, 'seed': seed})
  # How early they ended, which comes of the runs, sorts no seeds.
  assert [(run.arm, run.seed) for run in collect(tmp_path)] == [
    ('scratch, finetune lr 0.001', 0),
    ('scratch, finetune lr 0.004', 1),
    ('scratch, finetune lr 0.004', 2),
  ]


def test_what_a_study_searched_with_is_in_no_report(write_run, tmp_path):
  for place in ('runs/a', 'search/a/round1'):
    write_run(f'study/{place}', config={'place': place})
  (tmp_path / 'runs' / 'study' / 'study.json').write_text('{}')
  (found,) = collect(tmp_path)
  assert found.path.name == 'a'
  (searched,) = collect(tmp_path / 'runs' / 'study' / 'search')
  assert searched.path.name == 'round1'
  about = {'task': {'name': 'toy'}, 'model': {'name': 's4'}, 'regime': 'scratch', 'seed': 1}
  for place in ('runs/b', 'search/b'):  # begun only
    (tmp_path / 'runs' / 'study' / place).mkdir()
    files.write_json(tmp_path / 'runs' / 'study' / place / 'config.json', about)
  assert [one.path.parent.name for one in survey(tmp_path).started] == ['runs']


def test_text_table(write_study):
  text = text_table(collect(write_study((0,))))
  lines = text.splitlines()
  assert lines[0].startswith('toy, transformer, protocol clean: accuracy on 500 test examples')
  assert re.search(r'masked self-pretraining +1 +41\.\d %', text)
  assert re.search(r'masked self-pretraining over scratch, compute-tied +1 +\+\d+\.\d +\+\d', text)
  assert max(map(len, lines)) <= 110
  assert 'No finished run' in text_table([])


@pytest.mark.parametrize('seeds', [(0,), (0, 1, 2)])
def test_report_holds_every_section_and_number(write_study, tmp_path, seeds):
  runs = collect(write_study(seeds))
  page = page_of(runs, tmp_path, title='Toy study', story='First.\n\nSecond paragraph.')
  for words in (
    'Toy study',
    'Second paragraph.',
    'Test accuracy',
    'What was gained',
    'Learning curves',
    'What it cost',
    'What the paper found',
    'How it was run',
    'Before you believe it',
    '131,466',
    'finetune.optimizer.lr',
    '0.0005',
    'command line',
    '0123456789abcdef',
    'jax 0.10.2',
    'data d0',
    'guessing among 10 classes',
    '59.75',
    'One seed compares two runs, not two ways of training'
    if len(seeds) == 1
    else 'Masked self-pretraining raised the test accuracy',
  ):
    assert words in page.words
  group = tables.summarise(runs)[0]
  for arm in group.arms:
    assert f'{100 * arm.score.low:.1f} to {100 * arm.score.high:.1f} %' in page.words
  for gain in group.gains:
    assert scores.ACCURACY.signed(gain.interval.low) in page.words
  assert page.tags.count('figure') == 3
  assert page.tags.count('h1') == 1
  labels = [value for tag, name, value in page.attributes if (tag, name) == ('figure', 'aria-label')]
  assert all(re.match(r'Line chart\. .*masked self-pretraining ends at', label) for label in labels)
  assert all(('th', 'scope', value) in page.attributes for value in ('col', 'row'))
  assert ('One seed per row' in page.words) == (len(seeds) == 1)


def test_report_needs_nothing_from_outside(write_study, tmp_path):
  page = page_of(collect(write_study((0,), task='image')), tmp_path)
  assert not {'script', 'link', 'img', 'iframe', 'object'} & {*page.tags}
  assert not [a for a in page.attributes if a[1] in ('src', 'href', 'action') and not a[2].startswith('#')]
  assert 'url(http' not in (tmp_path / 'out.html').read_text()
  ids = [value for _, name, value in page.attributes if name == 'id']
  assert len(ids) == len(set(ids))
  used = {value[1:] for _, name, value in page.attributes if name == 'href'}
  assert used <= {*ids}


def test_several_tasks_mark_the_columns_of_the_paper(write_run, tmp_path):
  write_run('a', task='image', examples=200)
  write_run('b', task='listops', model='transformer_rotary', protocol='paper', regime='masked')
  page = page_of(collect(tmp_path), tmp_path)
  assert ('th', 'class', 'ours') in page.attributes
  assert 'The marked columns are the tasks of this report.' in page.words
  assert '42.44' in page.words
  assert 'nothing to compare yet' in page.words
  assert 'no pair of runs with and without self-pretraining can be compared yet' in page.words
  assert 'Protocol paper repeats the published code' in page.words


def test_everything_is_escaped(write_run, tmp_path):
  for seed in (0, 1):
    write_run(
      f'a{seed}',
      task=HOSTILE,
      model=HOSTILE,
      arm=HOSTILE,
      seed=seed,
      protocol=HOSTILE,
      config={HOSTILE: HOSTILE},
    )
    write_run(
      f'b{seed}', task=HOSTILE, model=HOSTILE, regime='masked', seed=seed, protocol=HOSTILE, accuracy=0.8
    )
  page = page_of(collect(tmp_path), tmp_path, title=HOSTILE, story=HOSTILE)
  assert 'script' not in page.tags
  assert page.words.count(HOSTILE) >= 10
  assert any(name == 'aria-label' and HOSTILE in value for _, name, value in page.attributes)


def test_kernels_are_shown_for_the_runs_that_have_them(write_run, tmp_path):
  curves = np.exp(-np.arange(64) / np.array([[2.0], [20.0]]))
  for seed in (0, 1):
    kernels = Kernels(
      stage='pretrain',
      step=1200,
      initialisation='structured',
      row=8,
      lags=64,
      shown=(1, 2),
      initial=curves[::-1],
      learned=curves,
    )
    folder = write_run(f'a{seed}', model=HOSTILE, regime='masked', seed=seed)
    write_run(f'b{seed}', model=HOSTILE, seed=seed)
    (folder / 'kernels.json').write_text(kernels.to_json())
  page = page_of(collect(tmp_path), tmp_path)
  assert f'{HOSTILE}, masked self-pretraining, seed 0 structured initialisation' in page.words
  assert 'after self-pretraining, best checkpoint (step 1,200)' in page.words
  assert 'Layer 1 90 % within 5 lags, at the start 90 % within 40 lags' in page.words
  assert 'masked self-pretraining: 1 more' in page.words
  assert 'script' not in page.tags
  labels = [value for tag, name, value in page.attributes if (tag, name) == ('figure', 'aria-label')]
  assert sum(label.startswith('Line chart. Layer 2, largest absolute kernel value') for label in labels) == 2
  ids = [value for _, name, value in page.attributes if name == 'id']
  assert len(ids) == len(set(ids))


def test_report_without_runs_says_so(tmp_path):
  page = page_of([], tmp_path, title='Empty', story='Why.')
  assert 'No finished run was found' in page.words
  assert 'Why.' in page.words


def test_runs_without_predictions_and_curves_still_report(write_run, tmp_path):
  for regime in ('scratch', 'masked'):
    for seed in (0, 1):
      folder = write_run(
        f'{regime}{seed}', regime=regime, seed=seed, predictions=False, accuracy=0.3 + seed / 50
      )
      for path in folder.rglob('metrics.jsonl'):
        path.unlink()
  page = page_of(collect(tmp_path), tmp_path)
  assert 'nothing to compare yet' in page.words
  assert 'no curves to draw' in page.words
  assert 'No predictions.npz' in page.words


def test_predictions_that_contradict_the_result_are_told_everywhere(write_run, tmp_path, capsys):
  path = write_run('a') / 'result.json'
  assert cli.main(['report', f'--workdir={tmp_path}']) == 0
  assert 'do not trust' not in capsys.readouterr().out
  result = json.loads(path.read_text())
  result['metrics']['test']['accuracy'] = 0.9
  path.write_text(json.dumps(result))
  assert cli.main(['report', f'--workdir={tmp_path}']) == 1
  printed = ' '.join(capsys.readouterr().out.split())
  for shown in (printed, page_of(collect(tmp_path), tmp_path).words):
    assert 'result.json says 90.0 % of 500 and predictions.npz 40.0 % of 500; do not trust this run' in shown
  assert cli.main(['report', '--leaderboard', f'--workdir={tmp_path}']) == 1
  for shown in (capsys.readouterr().out, (tmp_path / 'leaderboard.html').read_text()):
    assert 'do not trust this run' in shown
  assert cli.main(['export', '--format=markdown', f'--workdir={tmp_path}']) == 0
  assert 'do not trust this run' in capsys.readouterr().out


def test_pickled_predictions_are_refused(write_run, tmp_path):
  folder = write_run('a')
  np.savez(folder / 'predictions.npz', index=np.array([{}], object), label=[0], prediction=[0])
  with pytest.raises(DamagedFile, match=r'predictions\.npz'):
    _ = collect(tmp_path)[0].predictions


def test_half_lines_and_repeated_steps_of_a_resumed_run(write_run, tmp_path):
  path = write_run('a') / 'finetune-0a1b2c3d' / 'metrics.jsonl'
  before = collect(tmp_path)[0].curves['finetune']['validation']['accuracy']
  with path.open('a') as file:
    file.write('{"step": 400, "split": "validat{"step": 20}\n')
    file.write('{"step": 400, "split": "validation", "accuracy": 0.75, "loss": NaN}\n{"step": 42')
  steps, values = collect(tmp_path)[0].curves['finetune']['validation']['accuracy']
  np.testing.assert_array_equal(steps, before[0])
  np.testing.assert_array_equal(values, [*before[1][:-1], 0.75])


def test_command_writes_report_and_prints_the_table(write_study, tmp_path, capsys):
  folder = write_study((0,))
  assert cli.main(['report', f'--workdir={folder}', '--output', str(tmp_path / 'here.html')]) == 0
  printed = capsys.readouterr().out
  assert text_table(collect(folder)) in printed
  assert 'here.html' in printed
  assert (tmp_path / 'here.html').read_text().startswith('<!DOCTYPE html>')


@pytest.mark.parametrize(
  'arguments, words',
  [
    (['--workdir={}/none'], 'there is no folder'),
    (['--workdir={}'], 'there is no finished run'),
    (['--workdir={}', '--output={}/no/r.html'], 'there is no finished run'),
    (['--workdir='], '--workdir is empty'),
    (['--workdir={}', '--output= '], '--output is empty'),
  ],
)
def test_command_with_nothing_to_report(tmp_path, capsys, arguments, words):
  assert cli.main(['report', *(a.format(tmp_path) for a in arguments)]) == 2
  assert words in capsys.readouterr().err
  assert list(tmp_path.iterdir()) == []


def test_command_with_no_place_to_write(write_study, capsys):
  folder = write_study((0,), ('scratch',))
  assert cli.main(['report', f'--workdir={folder}', f'--output={folder}/no/r.html']) == 2
  assert 'create it first' in capsys.readouterr().err
  assert cli.main(['report', f'--workdir={folder}', f'--output={folder}']) == 2
  assert 'is a folder: name a file' in capsys.readouterr().err


def test_numbers_in_words():
  assert [tables.duration(s) for s in (None, 0.5, 59, 61, 3700)] == [
    '\u2013',
    '0.5 s',
    '59 s',
    '1 min 01 s',
    '1 h 01 min',
  ]
  assert [tables.scaled(n) for n in (None, 0, 950, 1.5e6, 2e18)] == ['\u2013', '0', '950', '1.5 M', '2 E']
  assert scores.ACCURACY.signed(-0.0123) == '\u22121.2'
  assert scores.ACCURACY.signed(-0.0004) == '+0.0'
  assert views.flatten({'a': {'b': 1, 'c': {}}, 'd': 2}) == {'a.b': 1, 'a.c': {}, 'd': 2}


def test_the_accuracy_scale_ends_at_what_an_accuracy_can_be():
  wide = statistics.ConfidenceInterval(0.85, 0.37, 1.0, 'two seeds')
  (strip,), (low, high) = views._strips([wide], [0.25], (0.0, 1.0))
  assert (strip.right, high) == (100.0, 1.0)
  assert 0.0 <= low < 0.25


def test_an_accuracy_reads_the_same_from_float32_and_float64():
  assert scores.percent(float(np.float32(0.8855))) == scores.percent(0.8855) == '88.5 %'
