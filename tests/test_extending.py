"""The examples of docs/extending.md and data.md work as printed: regime, objective, tasks, PyTorch model."""

import importlib.util
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys

import jax
import numpy as np
import pytest

from data_prep.sources import stripes
from lra_spt.cli import main as cli
from lra_spt.config import loading, regimes
from lra_spt.data import tasks
from lra_spt.data.examples import open_split, open_splits
from lra_spt.objectives import registry
from lra_spt.report.runs.run import read_run
from lra_spt.report.study import submission
from lra_spt.report.study.any_folder import read_any
from lra_spt.runs.api import load_run
from lra_spt.runs.build import resolve, stages_of

DEMO = 'configs/demo.py'


@pytest.fixture
def folder(repository, tmp_path, monkeypatch):
  """A working directory with the Python blocks of two pages, in files that their first lines name. Tasks,
  regimes and objectives that they register last for one test."""
  pages = [(repository / 'docs' / name).read_text(encoding='utf-8') for name in ('extending.md', 'data.md')]
  for block in re.findall('```python\n(# my_.*?)```', '\n'.join(pages), flags=re.DOTALL):
    (tmp_path / re.match(r'# (my_\w+\.py)', block)[1]).write_text(block)
  monkeypatch.setattr(regimes, 'REGIMES', dict(regimes.REGIMES))
  monkeypatch.setattr(registry, '_OBJECTIVES', dict(registry._OBJECTIVES))
  monkeypatch.setattr(tasks, 'TASKS', dict(tasks.TASKS))
  monkeypatch.setattr(loading, '_registered', set())
  monkeypatch.chdir(tmp_path)
  return tmp_path


def test_own_regime(folder):
  loading.register('my_regime.py')
  config = loading.load(f'{DEMO}:regime=masked_causal')
  built = stages_of(resolve(config))
  assert list(built) == ['pretrain', 'finetune']
  assert isinstance(built['pretrain'].objective, registry.get_objective('masked'))
  assert resolve(config).causal


def test_own_objective(folder):
  loading.register('my_objective.py')
  stripes.prepare_stripes(folder / 'data', examples=8)
  objective = stages_of(resolve(loading.load(f'{DEMO}:regime=noisy')))['pretrain'].objective
  batch = open_split('stripes', 'train', folder / 'data').gather(np.arange(8))
  prepared = objective.prepare(batch, jax.random.split(jax.random.key(0), 8))
  noise = np.asarray(prepared.inputs - prepared.targets)
  assert 0.9 < noise.std() < 1.1
  assert len(np.unique(noise)) > 500  # of 512: every value of every row has separate noise
  total, count = objective.loss(prepared.inputs, prepared)
  np.testing.assert_allclose([total / count, count], [np.abs(noise).mean(), noise.size], rtol=1e-5)


def test_own_data(folder, capsys):
  (folder / 'raw').mkdir()
  runpy.run_path('my_task.py', run_name='__main__')
  assert cli.main(['prepare', 'npz', '--name=letters', '--raw_dir=raw', '--data_dir=data']) == 0
  assert '(1,000 train; regression on' in capsys.readouterr().out
  words = ['train', '--register=my_task.py', f'--config={DEMO}', '--config.task=letters', '--workdir=runs']
  assert cli.main([*words, '--dry_run']) == 0
  assert 'Nothing was written' in capsys.readouterr().out
  test = open_split('letters', 'test', 'data').gather(np.arange(100))
  inside = np.arange(64)[None] < test['lengths'][:, None]
  shares = ((test['inputs'] < 6) & inside).sum(axis=1) / test['lengths']
  np.testing.assert_allclose(test['label'], shares, rtol=1e-6)


def test_own_values_of_differing_lengths(folder, capsys):
  """The example of data.md: padding is not stored, not seen and not restored."""
  (folder / 'raw').mkdir()
  runpy.run_path('my_gestures.py', run_name='__main__')
  assert cli.main(['prepare', 'npz', '--name=gestures', '--raw_dir=raw', '--data_dir=data']) == 0
  assert cli.main(['inspect', 'gestures', '--data_dir=data', '--out=page.html']) == 0
  assert '(700 train; 7 classes; own files train.npz)' in (printed := capsys.readouterr().out)
  assert 'Those with 64 were cut' in printed
  splits = open_splits('gestures', 'data')
  with np.load('raw/train.npz') as raw:
    stored = splits['test'].gather(np.arange(len(splits['test'])))
    inputs, lengths = raw['inputs'][stored['index']], raw['lengths'][stored['index']]
    counts = np.bincount(raw['labels'])
  inside_BL = np.arange(64) < lengths[:, None]
  np.testing.assert_array_equal(stored['lengths'], lengths)
  np.testing.assert_array_equal(stored['inputs'], np.where(inside_BL[..., None], inputs, 0))
  assert np.bincount(stored['label']).tolist() == [round(0.1 * count) for count in counts]

  words = [f'--config={DEMO}:regime=masked', '--config.task=gestures', '--register=my_gestures.py', '--quiet']
  words += [f'--config.{stage}.max_steps=2' for stage in ('pretrain', 'finetune')]
  assert cli.main(['train', *words, '--workdir=runs']) == 0
  run = load_run('runs', 'pretrain')
  batch = splits['test'].gather(np.arange(16))
  objective = run.built.objective
  prepared = objective.prepare(batch, jax.random.split(jax.random.key(0), 16))
  inside_BL = inside_BL[:16]
  values_BLC, flags_BL = np.asarray(prepared.inputs)[..., :3], np.asarray(prepared.inputs)[..., 3]
  hidden_BL = np.asarray(prepared.weights) > 0
  assert not values_BLC[~inside_BL | hidden_BL].any()
  assert not hidden_BL[~inside_BL].any()
  np.testing.assert_array_equal(flags_BL, hidden_BL)
  seen = values_BLC[inside_BL & ~hidden_BL]
  assert abs(seen.mean()) < 0.1
  assert abs(seen.std() - 1) < 0.1
  noisy = batch | {'inputs': np.where(inside_BL[..., None], batch['inputs'], 9).astype(np.float32)}
  other = objective.prepare(noisy, jax.random.split(jax.random.key(0), 16))
  np.testing.assert_array_equal(prepared.inputs, other.inputs)
  answers = load_run('runs').predict(noisy['inputs'], noisy['lengths'])
  wanted = load_run('runs').predict(batch['inputs'], batch['lengths'])
  np.testing.assert_array_equal(answers.probabilities, wanted.probabilities)


def test_own_labels_of_positions(folder, capsys):
  """The example of data.md: training, the score with its interval, recorded predictions and wrong files."""
  (folder / 'raw').mkdir()
  runpy.run_path('my_states.py', run_name='__main__')
  assert cli.main(['prepare', 'npz', '--name=states', '--raw_dir=raw', '--data_dir=data']) == 0
  assert cli.main(['inspect', 'states', '--data_dir=data', '--out=page.html']) == 0
  test = open_split('states', 'test', 'data')
  stored = test.gather(np.arange(len(test)))
  with np.load('raw/train.npz') as raw:
    np.testing.assert_array_equal(stored['label'], raw['labels'][stored['index']])

  words = [f'--config={DEMO}:regime=masked', '--config.task=states', '--register=my_states.py', '--quiet']
  words += [f'--config.{stage}.max_steps=4' for stage in ('pretrain', 'finetune')]
  assert cli.main(['train', *words, '--workdir=runs/a']) == 0
  run = read_run('runs/a')
  with np.load('runs/a/predictions.npz') as arrays:
    label_NL, prediction_NL = arrays['label'], arrays['prediction']
    np.testing.assert_array_equal(arrays['index'], stored['index'])
  counted_NL = label_NL >= 0
  right_NL = (label_NL == prediction_NL) & counted_NL
  assert label_NL.shape == (40, 64)
  assert run.test['examples'] == 40
  assert run.test['positions'] == run.examples == counted_NL.sum()
  assert run.value == pytest.approx(right_NL.sum() / counted_NL.sum(), abs=1e-12)
  assert run.test['majority'] == pytest.approx((label_NL == 0).sum() / counted_NL.sum())
  # The spread of the units is that of a ratio over 40 independent examples (Cochran 1977, section 6.3).
  mean, count_N = run.value, counted_NL.sum(1)
  wanted = mean + (right_NL.sum(1) - mean * count_N) / count_N.mean()
  np.testing.assert_allclose(run.units, wanted[np.argsort(stored['index'])], rtol=1e-12)
  assert cli.main(['evaluate', '--workdir=runs/a', '--split=test', '--register=my_states.py']) == 0
  assert 'Equal' in capsys.readouterr().out
  answers = load_run('runs/a').predict(stored['inputs'])
  np.testing.assert_array_equal(answers.prediction, prediction_NL)

  as_recorded = ['record', '--predictions=runs/a/predictions.npz', '--task=states', '--data_dir=data']
  facts = ['--model=other', '--regime=scratch', '--seed=0']
  assert cli.main([*as_recorded, *facts, '--out=runs/b']) == 0
  assert read_run('runs/b').value == run.value
  assert cli.main(['report', '--workdir=runs']) == 0
  assert 'test examples' in pathlib.Path('runs/report.html').read_text(encoding='utf-8')


@pytest.mark.parametrize(
  'change, sentence',
  [
    (lambda y: y[:, :-1], 'give each position a whole number'),
    (lambda y: np.full_like(y, -1), 'has no example with a label'),
    (lambda y: np.where(y == 1, 2, y), 'no example of class 1, but one of class 2'),
    (lambda y: np.where(y < 0, -2, y), 'a position has the label -2'),
  ],
)
def test_labels_of_positions_that_are_refused(folder, capsys, change, sentence):
  (folder / 'raw').mkdir()
  runpy.run_path('my_states.py', run_name='__main__')
  with np.load('raw/train.npz') as raw:
    arrays = dict(raw)
  np.savez('raw/train.npz', inputs=arrays['inputs'], labels=change(arrays['labels']))
  assert cli.main(['prepare', 'npz', '--name=states', '--raw_dir=raw', '--data_dir=data']) == 2
  assert sentence in capsys.readouterr().err


def test_own_rows(folder, capsys):
  """The example of data.md, a Parquet file."""
  (folder / 'raw').mkdir()
  runpy.run_path('my_rows.py', run_name='__main__')
  assert cli.main(['prepare', 'npz', '--name=rows', '--raw_dir=raw', '--data_dir=data']) == 0
  assert '(2 train; 2 classes; own files train.parquet)' in capsys.readouterr().out


def test_own_several_labels(folder, capsys):
  """The example of data.md: checkpoints by AUROC, the score with its interval, recorded predictions."""
  (folder / 'raw').mkdir()
  runpy.run_path('my_chords.py', run_name='__main__')
  assert cli.main(['prepare', 'npz', '--name=chords', '--raw_dir=raw', '--data_dir=data']) == 0
  assert cli.main(['inspect', 'chords', '--data_dir=data', '--out=page.html']) == 0
  assert 'An example may have several labels, or none.' in capsys.readouterr().out
  test = open_split('chords', 'test', 'data')
  stored = test.gather(np.arange(len(test)))
  with np.load('raw/train.npz') as raw:
    np.testing.assert_array_equal(stored['label'], raw['labels'][stored['index']])

  words = [f'--config={DEMO}:regime=scratch', '--config.task=chords', '--register=my_chords.py', '--quiet']
  words += ['--config.finetune.max_steps=4', '--config.finetune.evaluate_every=2']
  assert cli.main(['train', *words, '--workdir=runs/a']) == 0
  run = read_run('runs/a')
  _, label_NK, prediction_NK = run.predictions
  areas = [
    np.mean([(p > q) + (p == q) / 2 for p in p_N[y_N] for q in p_N[~y_N]])
    for y_N, p_N in zip(label_NK.T, prediction_NK.T, strict=True)
  ]
  assert run.score.key == 'auroc'
  assert run.value == pytest.approx(np.mean(areas), abs=1e-12)
  assert run.test.keys() >= {'loss', 'macro_f1', 'mean_average_precision'}
  assert 'auroc' in run.curves['finetune']['validation']
  assert cli.main(['evaluate', '--workdir=runs/a', '--split=test', '--register=my_chords.py']) == 0
  assert 'Equal' in capsys.readouterr().out

  as_recorded = ['record', '--predictions=runs/a/predictions.npz', '--task=chords', '--data_dir=data']
  assert cli.main([*as_recorded, '--model=other', '--regime=masked', '--seed=0', '--out=runs/b']) == 0
  assert read_run('runs/b').value == run.value
  with np.load('runs/a/predictions.npz') as arrays:
    np.savez('logits.npz', **dict(arrays) | {'prediction': 9 * arrays['prediction']})
    np.savez('chance.npz', **dict(arrays) | {'prediction': 0 * arrays['prediction'] + 0.5})
  facts = ['--model=other', '--regime=scratch', '--seed=0', '--out=runs/c']
  as_recorded[1] = '--predictions=logits.npz'
  assert cli.main([*as_recorded, *facts]) == 2
  assert 'asks for probabilities from 0 to 1' in capsys.readouterr().err
  as_recorded[1] = '--predictions=chance.npz'
  assert cli.main([*as_recorded, *facts]) == 0

  assert cli.main(['report', '--workdir=runs']) == 0
  assert 'AUROC' in pathlib.Path('runs/report.html').read_text(encoding='utf-8')
  (pair,) = read_any('runs').findings.pairs
  assert pair.interval.estimate == pytest.approx(run.value - 0.5)
  assert pair.interval.known
  submission.pack('runs', 'all.zip')
  with submission.unpacked('all.zip') as unpacked:
    checked, message = submission.verify(unpacked, 'data')
  assert [one.faults for one in checked] == [()] * 3
  assert message == ['Labels of chords: those of the prepared set in data.']


def test_two_classes_by_auroc(folder, capsys):
  """Checkpoints, the score and recorded predictions are by the probability of class 1."""
  (folder / 'raw').mkdir()
  rng, label_N = np.random.default_rng(0), np.arange(200) % 2
  inputs = (rng.normal(size=(200, 64)) + label_N[:, None]).astype(np.float32)
  np.savez('raw/train.npz', inputs=inputs, labels=label_N)
  values = tasks.Values(64, dtype='float32', measured=True)
  tasks.register_task(tasks.Task('two', 'two', values, tasks.Classes(2), 'random', metric='auroc'))
  assert cli.main(['prepare', 'npz', '--name=two', '--raw_dir=raw', '--data_dir=data']) == 0
  words = [f'--config={DEMO}:regime=scratch', '--config.task=two', '--quiet', '--workdir=runs/a']
  assert cli.main(['train', *words, '--config.finetune.max_steps=2']) == 0
  run = read_run('runs/a')
  _, label_N, prediction_N = run.predictions
  assert run.score.key == 'auroc'
  pairs = [(p > q) + (p == q) / 2 for p in prediction_N[label_N == 1] for q in prediction_N[label_N == 0]]
  assert run.value == pytest.approx(np.mean(pairs))
  assert run.test['accuracy'] == np.mean((prediction_N >= 0.5) == label_N)
  assert cli.main(['evaluate', '--workdir=runs/a', '--split=test']) == 0
  assert 'Equal' in capsys.readouterr().out
  as_recorded = ['record', '--predictions=runs/a/predictions.npz', '--task=two', '--data_dir=data']
  assert cli.main([*as_recorded, '--model=other', '--regime=scratch', '--seed=0', '--out=runs/b']) == 0
  assert read_run('runs/b').value == run.value
  submission.pack('runs', 'all.zip')
  with submission.unpacked('all.zip') as unpacked:
    assert [one.faults for one in submission.verify(unpacked, 'data')[0]] == [()] * 2


def test_own_numbers_that_most_examples_lack(folder, capsys):
  """The example of data.md: two numbers per example, and pretraining on those without any."""
  (folder / 'raw').mkdir()
  runpy.run_path('my_pendulum.py', run_name='__main__')
  assert cli.main(['prepare', 'npz', '--name=pendulum', '--raw_dir=raw', '--data_dir=data']) == 0
  with np.load('raw/train.npz') as raw:
    labels_NK, known_N = raw['labels'], ~np.isnan(raw['labels']).any(1)
  message = f'{known_N.sum():,} of 1,000 training examples of pendulum have a label'
  assert message in capsys.readouterr().out
  assert cli.main(['inspect', 'pendulum', '--data_dir=data', '--out=page.html']) == 0
  data = open_splits('pendulum', 'data')
  assert sum(map(len, data.values())) == 1000
  held = np.concatenate([data['validation'].indices, data['test'].indices])
  assert known_N[held].all()
  assert known_N[data['train'].labelled.indices].all()
  assert len(data['train'].labelled) == known_N.sum() - len(held)

  words = [f'--config={DEMO}:regime=masked', '--config.task=pendulum', '--register=my_pendulum.py', '--quiet']
  words += [f'--config.{stage}.max_steps=2' for stage in ('pretrain', 'finetune')]
  assert cli.main(['train', *words, '--workdir=runs/a']) == 0
  run = read_run('runs/a')
  stages = run.result['stages']
  assert stages['pretrain']['epochs'] == pytest.approx(2 * 50 / len(data['train']))
  assert stages['finetune']['epochs'] == pytest.approx(2 * 50 / len(data['train'].labelled))
  index_N, label_NK, prediction_NK = run.predictions
  np.testing.assert_array_equal(label_NK, labels_NK[index_N].astype(np.float32))
  error_NK = label_NK - prediction_NK
  assert run.value == pytest.approx(np.mean(1 - (error_NK**2).mean(0) / label_NK.var(0)), abs=1e-9)
  assert run.test['mae'] == pytest.approx(np.abs(error_NK).mean(), rel=1e-4)
  assert run.test['rmse'] == pytest.approx(np.sqrt((error_NK**2).mean()))
  as_recorded = ['record', '--predictions=runs/a/predictions.npz', '--task=pendulum', '--data_dir=data']
  assert cli.main([*as_recorded, '--model=other', '--regime=scratch', '--seed=0', '--out=runs/b']) == 0
  assert read_run('runs/b').value == run.value


@pytest.mark.skipif(importlib.util.find_spec('torch') is None, reason='PyTorch is not installed')
def test_predictions_of_a_pytorch_model_join(folder, repository):
  stripes.prepare_stripes(folder / 'data', examples=64)
  environment = os.environ | {'PYTHONPATH': os.pathsep.join([str(repository), *sys.path])}
  subprocess.run([sys.executable, 'my_torch.py'], env=environment, check=True, timeout=300)
  words = ['record', '--predictions=predictions.npz', '--out=runs/torch', '--task=stripes', '--data_dir=data']
  assert cli.main([*words, '--model=conv', '--regime=scratch', '--seed=0', '--source=my_torch.py']) == 0
  assert json.loads(pathlib.Path('runs/torch/result.json').read_text())['metrics']['test']['examples'] == 2000


@pytest.mark.slow
@pytest.mark.parametrize('name', ['regime', 'objective', 'task'])
def test_they_train(folder, name):
  """They train with the command of the page, for two steps per stage."""
  stripes.prepare_stripes(folder / 'data', examples=64)
  if name == 'task':
    (folder / 'raw').mkdir()
    runpy.run_path('my_task.py', run_name='__main__')
    assert cli.main(['prepare', 'npz', '--name=letters', '--raw_dir=raw', '--data_dir=data']) == 0
  of_page = {'regime': [f'{DEMO}:regime=masked_causal'], 'objective': [f'{DEMO}:regime=noisy']}
  config, *rest = of_page.get(name, [DEMO, '--config.task=letters'])
  rest += [f'--config.{stage}.max_steps=2' for stage in ('pretrain', 'finetune')]
  words = ['train', f'--register=my_{name}.py', f'--config={config}', '--workdir=runs']
  assert cli.main([*words, *rest]) == 0
