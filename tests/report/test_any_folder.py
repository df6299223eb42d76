"""A folder with any runs becomes a table. Fields of configs decide which runs are seeds of one arm."""

import json
import subprocess
import sys

import numpy as np
import pytest

from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.report.pages import leaderboard, report
from lra_spt.report.runs.arm_key import key_of
from lra_spt.report.runs.run import read_run
from lra_spt.report.study import notes
from lra_spt.report.study.any_folder import read_any
from lra_spt.report.study.arms import constant_score, duration, scaled, score_text
from lra_spt.report.study.findings import findings
from lra_spt.report.study.sentences import headline
from lra_spt.report.study.text import text

ALONE = """
import sys
from lra_spt.report.pages import report
from lra_spt.report.study import any_folder, text
loaded = {name for name in sys.modules if name.split('.')[0] == 'jax' or name.startswith('lra_spt.')}
foreign = {name for name in loaded if name.startswith(('jax', 'lra_spt.data', 'lra_spt.config.protocol'))}
numpy_only = ('scorable', 'measures', 'parts', 'splits')
foreign -= {'lra_spt.data', *(f'lra_spt.data.{name}' for name in numpy_only)}
assert not foreign, foreign
assert not {'matplotlib', 'scipy'} & {*sys.modules}
"""
HELP = """
import sys
from lra_spt.cli import main as cli
try:
  cli.main(['report', '--help'])
except SystemExit as end:
  assert end.code == 0
slow = {'jax', 'numpy', 'scipy', 'matplotlib', 'jinja2', 'PIL'} & {*sys.modules}
assert not slow, slow
"""


def gains(table):
  return {(pair.pretrained.row, pair.scratch.row): pair for pair in table.findings.pairs}


@pytest.mark.parametrize('script', [ALONE, HELP])
def test_imports_are_few(script, repository):
  done = subprocess.run([sys.executable, '-c', script], cwd=repository, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr


def test_rows_are_models_and_arms_and_columns_are_tasks(write_study, write_run):
  folder = write_study((1, 0))
  write_run('other', task='image', model='s4', regime='masked')
  table = read_any(folder)
  assert table.columns == ['Image', 'toy']
  assert table.rows == [
    'S4, masked self-pretraining',
    'Transformer, scratch',
    'Transformer, scratch, compute-tied',
    'Transformer, scratch, causal form',
    'Transformer, masked self-pretraining',
    'Transformer, causal self-pretraining',
  ]
  masked = table.cells['Transformer, masked self-pretraining', 'toy']
  assert masked.arm.seeds == (0, 1)
  run = masked.runs[0]
  assert run.units.mean() == pytest.approx(run.value)
  assert run.curves['pretrain']['validation']['accuracy'][1][-1] == pytest.approx(0.7 * (1 - np.exp(-4)))
  assert run.total('examples') == (800 + 400) * 64
  assert run.total('flops') == pytest.approx(1200 * 3.1e9)


def test_gains_are_those_of_the_predictions(write_study):
  table = read_any(write_study(range(3)))
  names = [(pair.pretrained.training, pair.scratch.training, pair.main) for pair in table.findings.pairs]
  assert names == [
    ('masked self-pretraining', 'scratch', True),
    ('masked self-pretraining', 'scratch, compute-tied', False),
    ('causal self-pretraining', 'scratch, causal form', True),
  ]
  pair = table.findings.pairs[0]
  scratch, masked = (np.mean([run.value for run in side.runs]) for side in (pair.scratch, pair.pretrained))
  assert pair.interval.estimate == pytest.approx(masked - scratch)
  assert (pair.seeds, pair.verdict, pair.single) == ((0, 1, 2), 'better', None)
  assert constant_score(pair.scratch.runs[0]) == pytest.approx(
    np.bincount(pair.scratch.runs[0].predictions[1]).max() / 500
  )


def test_one_seed_is_tested_as_two_runs(write_study):
  table = read_any(write_study((0,), ('scratch', 'masked')))
  (pair,) = table.findings.pairs
  right = [
    run.predictions[1] == run.predictions[2] for cell in (pair.scratch, pair.pretrained) for run in cell.runs
  ]
  assert pair.single.only_b == np.sum(~right[0] & right[1])
  assert pair.single.interval.estimate == pytest.approx(pair.interval.estimate)
  assert pair.verdict in ('this run better', 'not significant')
  words = ' '.join(text(table).split())
  assert 'One seed compares two runs' in words
  assert 'McNemar p' in words
  assert 'McNemar' in report.write(table).read_text()


def test_predictions_in_any_order_are_compared_by_index(write_study):
  folder = write_study((0,), ('scratch', 'masked'))
  before = read_any(folder).findings.pairs[0].interval
  path = folder / 'masked' / 'seed0' / 'predictions.npz'
  with np.load(path) as stored:
    arrays = {key: stored[key][::-1] for key in stored}
  np.savez(path, **arrays)
  assert read_any(folder).findings.pairs[0].interval == before


def test_scratch_for_the_steps_of_both_stages_is_compute_tied(write_run, tmp_path):
  def stages(pretrain, finetune):
    return {'pretrain': {'max_steps': pretrain}, 'finetune': {'max_steps': finetune}}

  write_run('masked', regime='masked', config=stages(500, 400))
  write_run('scratch', config=stages(500, 400))
  write_run('tied', config=stages(500, 900))
  write_run('longer', config=stages(500, 1200), accuracy=0.5)
  rows = read_any(tmp_path).rows
  assert 'Transformer, scratch, compute-tied' in rows
  assert [row for row in rows if 'max_steps' in row] == [
    'Transformer, scratch, finetune.max_steps 1200',
    'Transformer, scratch, finetune.max_steps 400',
  ]


def test_runs_of_other_settings_are_no_seeds_of_one_arm(write_run, tmp_path):
  for seed, (lr, steps) in enumerate(((1e-3, 400), (4e-3, 800), (4e-3, 1200))):
    finetune = {'optimizer': {'lr': lr}, 'max_steps': 4000}
    write_run(f'{seed}', seed=seed, finetune_steps=steps, config={'finetune': finetune, 'seed': seed})
  cells = read_any(tmp_path).cells
  assert {row: cell.arm.seeds for (row, _), cell in cells.items()} == {
    'Transformer, scratch, finetune lr 0.001': (0,),
    'Transformer, scratch, finetune lr 0.004': (1, 2),
  }
  write_run('again', seed=1, config={'finetune': {'optimizer': {'lr': 4e-3}, 'max_steps': 4000}})
  assert 'Transformer, scratch, finetune lr 0.004, runs/again' in read_any(tmp_path).rows


def test_models_of_other_sizes_are_not_compared(write_run, tmp_path):
  for regime, width in (('scratch', 64), ('masked', 64), ('masked', 512)):
    write_run(f'{regime}{width}', regime=regime, config={'model': {'name': 'transformer', 'width': width}})
  (pair,) = read_any(tmp_path).findings.pairs
  assert pair.pretrained.row.endswith('model.width 64')


def test_models_that_were_trained_alike_are_compared(write_run, tmp_path):
  for seed in (0, 1):
    for model, plus in (('s4', 0.1), ('transformer', 0)):
      write_run(f'{model}{seed}', model=model, seed=seed, accuracy=0.4 + plus)
  write_run('far', model='s5', data=4)
  write_run('p', model='dlr', protocol='paper')
  write_run('r', model='lru', classes=0)
  table = read_any(tmp_path)
  (one,) = table.findings.differences
  assert (one.names, one.seeds, one.training) == (('S4', 'Transformer'), (0, 1), 'scratch')
  assert one.interval.estimate == pytest.approx(0.1)
  assert one.verdict == 'better'
  assert 'DLR, scratch, protocol paper' in table.rows
  assert {'toy, accuracy', 'toy, r2'} == {*table.columns}
  assert 'S4 against Transformer' in text(table)


def test_other_test_examples_leave_out_their_gain_only(write_run, tmp_path, capsys):
  write_run('a/scratch', data=0)
  write_run('a/masked', data=5, regime='masked')
  for name, regime, accuracy in (('scratch', 'scratch', 0.4), ('masked', 'masked', 0.6)):
    write_run(f'b/{name}', model='s4', regime=regime, accuracy=accuracy)
  assert cli.main(['report', f'--workdir={tmp_path}']) == 1
  assert [*gains(read_any(tmp_path))] == [('S4, masked self-pretraining', 'S4, scratch')]
  sentence = 'not compared: they were tested on different examples.'
  assert sentence in str(read_any(tmp_path).findings.apart)
  assert sentence in (tmp_path / 'report.html').read_text()
  capsys.readouterr()
  for command in (['report', '--leaderboard'], ['export', '--format=markdown']):  # these show no gains
    assert cli.main([*command, f'--workdir={tmp_path}']) == 0


def test_a_regime_from_outside_is_reported(write_run, tmp_path):
  write_run('s', accuracy=0.3)
  write_run('u', accuracy=0.5, regime='unshuffle')
  table = read_any(tmp_path)
  assert [*gains(table)] == [('Transformer, unshuffle self-pretraining', 'Transformer, scratch')]
  assert 'Unshuffle self-pretraining' in text(table)


def test_controls_are_models_of_their_own(write_run, tmp_path):
  write_run('a', model='s4')
  write_run('b', model='bag_of_tokens')
  write_run('c', model='s4', config={'model': {'name': 's4', 'shuffle': True}})
  rows = read_any(tmp_path).rows
  assert rows == ['bag_of_tokens, scratch', 'S4, scratch', 'S4 (positions shuffled), scratch']


def test_a_model_with_given_weights_is_another_model_than_from_random_values(write_run, tmp_path):
  for name, accuracy in (('', 0.4), ('m.safetensors', 0.6)):
    config = {'model': {'name': 'pythia_70m', 'weights': name}}
    for task in ('listops', 'text', 'retrieval', 'image', 'pathfinder'):
      known = {'task': task, 'model': 'pythia_70m', 'causal': True, 'config': config}
      write_run(f'{task}{name}', accuracy=accuracy, examples=100, **known)
  table = read_any(tmp_path)
  assert table.rows == [
    'Pythia 70M, scratch, causal form',
    'Pythia 70M (given weights), scratch, causal form',
  ]
  ours = [line for line in leaderboard.view(table)['averages'] if line['own']]
  assert [(line['model'], line['means'][0]) for line in ours] == [
    ('pythia_70m (given weights)', '60.00'),
    ('pythia_70m', '40.00'),
  ]


def test_published_numbers_are_those_that_a_run_names(write_run, tmp_path):
  write_run('a', task='text_2048', model='my_s4', facts={'published': {'task': 'text', 'model': 's4'}})
  write_run('b', task='image', model='s4', facts={'published': None})
  write_run('c', task='image', model='transformer')
  cells = {(cell.row, cell.column): cell.published for cell in read_any(tmp_path).cells.values()}
  assert cells['my_s4, scratch', 'text_2048']['printed'] == '86.82 %'
  assert cells['S4, scratch', 'Image'] is None
  assert cells['Transformer, scratch', 'Image']['value'] == pytest.approx(0.4244)


@pytest.mark.parametrize('seeds', [(0,), (0, 1, 2)])
def test_a_regression_is_shown_in_r2_and_counts_groups(write_run, tmp_path, seeds):
  for seed in seeds:
    for regime, r2 in (('scratch', 0.5), ('masked', 0.7)):
      write_run(f'{regime}{seed}', classes=0, regime=regime, accuracy=r2, seed=seed, groups=40)
  table = read_any(tmp_path)
  (pair,) = table.findings.pairs
  assert (pair.score.name, pair.unit_name, pair.single) == ('R\u00b2', 'patients', None)
  assert pair.interval.estimate == pytest.approx(0.2, abs=0.05)
  page = report.write(table).read_text()
  assert 'of one group are right or wrong together, so the intervals count groups' in page
  assert '0.5' in text(table)


def test_a_single_group_gives_no_interval(write_run, tmp_path):
  write_run('a', groups=1)
  (cell,) = read_any(tmp_path).cells.values()
  assert not cell.arm.score.known


@pytest.mark.parametrize('facts, shown', [({}, True), ({'splits': 'files'}, False)])
def test_a_regression_of_which_nobody_knows_groups(write_run, tmp_path, facts, shown):
  write_run('a', classes=0, facts=facts)
  sentences = ' '.join(notes.on_intervals(read_any(tmp_path)))
  assert ('predictions.npz does not say which belong together' in sentences) == shown


def test_cautions_stand_beside_the_numbers(write_run, tmp_path):
  write_run('a', facts={'cautions': ['Chosen by <test> examples.']}, source=('files x.tgz', False))
  short = {'finetune': loading.SMOKE_STEPS}
  write_run('b', model='s4', config=short, source=('generated', False))
  write_run('c', model='s5', source=('own files', False))
  table = read_any(tmp_path)
  page = report.write(table).read_text()
  for words in ('Chosen by <test> examples.', 'could not be verified', 'a smoke run of a few steps'):
    assert words in text(table)
    assert words.replace('<', '&lt;').replace('>', '&gt;') in page
  assert 'own files' not in ' '.join(notes.cautions(table))


@pytest.mark.parametrize('accuracy, warned', [(0.4, True), (1.0, False)])
def test_predictions_recorded_under_several_seeds_are_one_run(write_run, tmp_path, accuracy, warned):
  for seed in (0, 1):
    folder = write_run(f'{seed}', seed=0, accuracy=accuracy)
    path = folder / 'result.json'
    result = json.loads(path.read_text()) | {'seed': seed, 'recorded': {'source': 'elsewhere'}}
    result.pop('config')
    path.write_text(json.dumps(result))
  sentences = ' '.join(notes.cautions(read_any(tmp_path)))
  assert ('Seeds 0, 1 have the same predictions' in sentences) == warned
  assert 'Recorded from predictions made elsewhere (elsewhere)' in sentences


def test_runs_on_several_sets_are_pointed_out(write_run, tmp_path):
  write_run('a', data=0)
  write_run('b', model='s4', data=1)
  assert 'used several versions of its set' in ' '.join(notes.cautions(read_any(tmp_path)))


def test_the_key_of_a_run_comes_from_its_config():
  config = {
    'model': {'name': 's4', 'width': 8, 'shuffle': True},
    'pretrain': {'max_steps': 3},
    'finetune': {'max_steps': 2, 'data_fraction': 0.1},
  }
  run = {'task': 'toy', 'protocol': 'clean', 'regime': 'masked', 'causal': False, 'seed': 1}
  key = key_of(run | config)
  assert key == key_of(run | {'config': config, 'model': 's4', 'metric': 'accuracy', 'seed': 2})
  assert (key.question.model, key.question.data_fraction) == ('s4 (positions shuffled)', 0.1)
  assert key.budget == ('steps', 5)
  scratch = config | {'finetune': config['finetune'] | {'max_steps': 5}}
  assert key_of(run | scratch | {'regime': 'scratch'}).is_tied_to(key)
  assert not key_of(run | config | {'regime': 'scratch'}).is_tied_to(key)


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


def test_command_writes_the_page_and_prints_the_table(write_study, tmp_path, capsys):
  folder = write_study((0,))
  assert cli.main(['report', f'--workdir={folder}', '--output', str(tmp_path / 'here.html')]) == 0
  printed = capsys.readouterr().out
  assert text(read_any(folder)) in printed
  assert 'here.html' in printed
  assert max(map(len, printed.splitlines()[:-1])) <= 110


def test_numbers_in_words(write_run, tmp_path):
  times = [duration(s) for s in (None, 0.5, 59, 61, 3700)]
  assert times == ['\u2013', '0.5 s', '59 s', '1 min 01 s', '1 h 01 min']
  assert [scaled(n) for n in (None, 0, 950, 1.5e6, 2e18)] == ['\u2013', '0', '950', '1.5 M', '2 E']
  folder = write_run(
    'a', predictions=False, facts={'metrics': {'test': {'accuracy': 0.5, 'examples': 8, 'majority': 0.25}}}
  )
  assert score_text(read_run(folder)) == 'test accuracy 50.0 % (always the most frequent class: 25.0 %)'


@pytest.mark.parametrize(
  'options', [{'classes': 0, 'groups': 1}, {'groups': 1}, {'examples': 1, 'accuracy': 1}]
)
def test_one_unit_is_named_as_the_reason(write_run, tmp_path, options):
  for regime in ('scratch', 'masked'):
    write_run(regime, regime=regime, **options)
  table = read_any(tmp_path / 'runs')
  units = 'patients' if 'groups' in options else 'test examples'
  why = f'are not compared: a comparison needs two or more {units}, and the test set has one.'
  shown = ' '.join(text(table).split())
  assert why in shown
  assert 'can be compared yet' not in shown
  assert 'predictions.npz' not in shown
  if 'groups' in options:
    (method,) = {cell.arm.score.method for cell in table.cells.values()}
    assert method.startswith('no interval without predictions of at least two patients')


def test_a_run_whose_best_validation_is_its_last_is_marked(write_run, tmp_path):
  write_run('a')
  for seed, steps in ((0, 380), (1, 400)):
    folder = write_run(f'b{seed}', seed=seed, model='s4')
    result = json.loads((folder / 'result.json').read_text())
    result['stages']['finetune']['best_step'] = steps
    (folder / 'result.json').write_text(json.dumps(result))
  table = read_any(tmp_path)
  assert [cell.remark for cell in table.cells.values()].count('still improving (1 of 2 seeds)') == 1
  assert 'still improving (1 of 2 seeds)' in text(table)
  assert 'the best validation was the last one' in report.write(table).read_text()


@pytest.mark.parametrize('seeds, how', [((0,), 'one seed'), ((0, 1), '2 seeds')])
def test_the_headline_is_short_and_compares_equal_compute(write_run, tmp_path, seeds, how):
  for seed in seeds:
    more = {'config': {'pretrain': {'max_steps': 800}, 'finetune': {'max_steps': 400}}}
    write_run(f'm{seed}', seed=seed, regime='masked', accuracy=0.8, **more)
    more['config'] = {'finetune': {'max_steps': 400}}
    write_run(f's{seed}', seed=seed, accuracy=0.4, **more)
    more = {'config': {'finetune': {'max_steps': 1200}}, 'finetune_steps': 1200}
    write_run(f't{seed}', seed=seed, accuracy=0.6, **more)
  line = f'Masked self-pretraining 80.0 %, same compute from scratch 60.0 %: +20.0 points, {how}.'
  table = read_any(tmp_path)
  assert text(table).split('\n\n')[1] == line
  assert line.replace(' %', '\u00a0%') in report.write(table).read_text().replace('&#160;', '\u00a0')
  shorter = [cell for cell in table.cells.values() if 'compute-tied' not in cell.training]
  assert 'Masked self-pretraining 80.0 %, from scratch 40.0 %' in headline(findings(shorter))
