"""Regression: scaled labels, R2 over all examples, whole recordings, sound normalised as published."""

import dataclasses

import numpy as np
import pytest

from data_prep import builders
from lra_spt.cli import main as cli
from lra_spt.config import loading
from lra_spt.config.protocol import CLEAN, PAPER
from lra_spt.data import examples as examples_lib
from lra_spt.data import splits, tasks
from lra_spt.errors import DataError
from lra_spt.objectives import Regression, normalise
from lra_spt.runs import api, experiment
from lra_spt.runs.build import normalised, resolve, stages_of

LENGTH, GROUPS = 16, [5, 3, 4, 6, 2, 5, 7, 3, 5, 8, 4, 6, 6]
BIDMC = dataclasses.replace(
  tasks.get_task('bidmc_hr').with_inputs(length=LENGTH, mean=(0.0, 0.0), std=(1.0, 1.0)),
  name='tiny_signals', dataset='tiny_signals', labels=tasks.Real(80.0, 10.0, (60.0, 120.0)),
)  # fmt: skip
SOUND = dataclasses.replace(
  tasks.get_task('speech_commands').with_inputs(length=LENGTH),
  name='tiny_sound', dataset='tiny_sound', labels=tasks.Classes(3),
)  # fmt: skip
for task in (BIDMC, SOUND):
  tasks.register_task(task)


@pytest.fixture(scope='module')
def signals():
  """(inputs float32 [N, L, 2], labels). A label is a linear function of the mean of the first channel."""
  rng = np.random.default_rng(0)
  inputs = rng.normal(size=(sum(GROUPS), LENGTH, 2)).astype(np.float32)
  return inputs, (80 + 20 * inputs[:, :, 0].mean(1)).astype(float).tolist()


@pytest.fixture(scope='module')
def sounds():
  rng = np.random.default_rng(1)
  spread = np.linspace(100, 20_000, LENGTH)
  draw = lambda n: np.round(np.clip(rng.normal(size=(n, LENGTH)) * spread, -32768, 32767)).astype(np.int16)  # noqa: E731
  return {
    file: (draw(n), rng.integers(0, 3, n).tolist())
    for file, n in (('train', 40), ('validation', 8), ('test', 8))
  }


def write(folder, task, content, **options):
  source = builders.Source(
    description='random', citation='none', origin='noise.csv', verified=False, classes=task.classes,
    dtype=np.dtype(task.inputs.dtype).type, shape=content['train'][0].shape[1:],
    files={file: (lambda part=part: zip(*part, strict=True)) for file, part in content.items()},
    counts={file: len(labels) for file, (_, labels) in content.items()}, **options,
  )  # fmt: skip
  builders.prepare_set(task.dataset, folder, {}, lambda work: source)


@pytest.fixture(scope='module')
def data_dir(signals, sounds, tmp_path_factory):
  folder = tmp_path_factory.mktemp('signals')
  write(folder, BIDMC, {'train': signals}, groups={'train': GROUPS})
  write(folder, SOUND, sounds, statistics=True)
  return folder


def test_recordings_stay_whole(signals, data_dir):
  parts = {split: examples_lib.open_split(BIDMC, split, data_dir) for split in examples_lib.SPLITS}
  recording = np.repeat(np.arange(len(GROUPS)), GROUPS)
  held = {split: set(recording[part.indices].tolist()) for split, part in parts.items()}
  assert {split: len(groups) for split, groups in held.items()} == {'train': 11, 'validation': 1, 'test': 1}
  assert sum(len(part) for part in parts.values()) == sum(GROUPS)
  assert not held['train'] & (held['validation'] | held['test'])
  assert sorted(held['validation'] | held['test']) == sorted(splits.random_permutation(13, 42)[-2:].tolist())
  batch = parts['test'].gather(np.arange(len(parts['test'])))
  assert batch['label'].dtype == batch['inputs'].dtype == np.float32
  assert np.array_equal(batch['inputs'], signals[0][batch['index']])
  np.testing.assert_allclose(batch['label'], np.asarray(signals[1])[batch['index']], rtol=1e-6)


def test_without_recordings_only_the_published_split_opens(signals, tmp_path):
  write(tmp_path, BIDMC, {'train': signals})
  with pytest.raises(ValueError, match=r'noise.csv .*protocol=paper'):
    examples_lib.open_split(BIDMC, 'train', tmp_path)
  published = BIDMC.as_published()
  assert len(examples_lib.open_split(published, 'train', tmp_path)) == 44


def test_groups_must_add_up(signals, tmp_path):
  with pytest.raises(ValueError, match='groups of train have 3 examples, not 64'):
    write(tmp_path, BIDMC, {'train': signals}, groups={'train': [3]})


@pytest.mark.parametrize(('bad', 'reason'), [
    ((np.zeros((2, LENGTH, 2), np.float32), [1.0, np.nan]), 'example 1 of train has label nan'),
    ((np.full((2, LENGTH, 2), np.inf, np.float32), [1.0, 2.0]), 'example 0 of train holds a number'),
])  # fmt: skip
def test_numbers_that_are_not_finite_are_refused(tmp_path, bad, reason):
  with pytest.raises(ValueError, match=reason):
    write(tmp_path, BIDMC, {'train': bad})
  assert not (tmp_path / BIDMC.dataset).exists()


@pytest.mark.parametrize('by_range', [False, True])
def test_scaling_by_hand(by_range):
  objective = Regression(BIDMC, PAPER if by_range else CLEAN)
  label = np.array([60, 90, 120], np.float32)
  batch = {name: np.zeros(part.shape, part.dtype) for name, part in BIDMC.batch(3).items()}
  batch |= {'label': label, 'weight': np.ones(3, np.float32)}
  prepared = objective.prepare(batch, None)
  expected = [-1, 0, 1] if by_range else [-2, 1, 4]
  np.testing.assert_allclose(prepared.targets, expected, atol=1e-6)
  outputs = prepared.targets[:, None] + np.float32([[0.5], [0], [0]])
  np.testing.assert_allclose(
    objective.predictions(outputs), [60 + (15 if by_range else 5), 90, 120], rtol=1e-6
  )
  measured = {name: float(value) for name, value in objective.measure(outputs, prepared).compute().items()}
  unit = 30 if by_range else 10
  variation = np.sum((np.array(expected) - np.mean(expected)) ** 2)
  assert measured == pytest.approx(
    {'loss': 0.25 / 3, 'mae': 0.5 * unit / 3, 'r2': 1 - 0.25 / variation}, rel=1e-5
  )
  assert objective.loss(outputs, prepared)[1] == 3
  assert objective.selection == ('r2', 'max')


def load(task, protocol, data_dir, repository, **overrides):
  overrides = {
    'task': task.name, 'runtime.data_dir': str(data_dir), 'runtime.devices': 2, 'protocol': protocol,
    'finetune.batch_size': 8, 'finetune.optimizer.lr': 1e-2, 'runtime.checkpoint_every': 0, **overrides,
  }  # fmt: skip
  return loading.load(f'{repository}/tests/tiny_config.py:regime=scratch', overrides)


def test_a_run_learns_and_reports_r2(data_dir, repository, tmp_path):
  config = load(BIDMC, 'clean', data_dir, repository, **{'finetune.epochs': 25.0})
  result = experiment.run(config, tmp_path / 'run', announce=lambda line: None)
  assert result['groups'] == {'name': 'patients', 'members': 'windows'}
  assert result['cautions'] == list(BIDMC.cautions)
  assert result['metric'] == 'r2'
  predictions = np.load(tmp_path / 'run' / 'predictions.npz')
  assert predictions['prediction'].dtype == predictions['label'].dtype == np.float32
  y, p = predictions['label'].astype(np.float64), predictions['prediction'].astype(np.float64)
  r2 = 1 - np.sum((y - p) ** 2) / np.sum((y - y.mean()) ** 2)
  assert result['metrics']['test']['r2'] == pytest.approx(r2, abs=1e-12)
  assert result['metrics']['test']['mae'] == pytest.approx(np.abs(y - p).mean(), rel=1e-4)
  assert result['metrics']['validation']['r2'] > 0.5
  assert 'majority' not in result['metrics']['test']
  test = examples_lib.open_split(BIDMC, 'test', data_dir)
  group = np.repeat(np.arange(len(GROUPS)), GROUPS)[test.indices]
  assert np.array_equal(predictions['group'], group)
  assert np.array_equal(predictions['index'], test.indices)


def test_a_run_whose_labels_do_not_vary_has_no_score(signals, data_dir, repository, tmp_path, capsys):
  """Validation and test hold one label; the run says so before it trains, and every reader takes null."""
  held = [examples_lib.open_split(BIDMC, split, data_dir).indices for split in ('validation', 'test')]
  labels = np.array(signals[1])
  labels[np.concatenate(held)] = 97.3
  write(tmp_path, BIDMC, {'train': (signals[0], labels.tolist())}, groups={'train': GROUPS})
  message, workdir = [], tmp_path / 'run'
  config = load(BIDMC, 'clean', tmp_path, repository, **{'finetune.epochs': 1.0})
  result = experiment.run(config, workdir, announce=message.append)
  why = 'R2 is not defined over values that do not vary'
  assert [f'{split} split of task tiny_signals do not vary: {why}' in line for split, line in
          zip(('validation', 'test'), message, strict=False)] == [True, True]  # fmt: skip
  assert any('best validation by the loss at step' in line and why in line for line in message)
  assert f'no test r2 over {len(held[1])} examples: {why}' in message[-1]
  assert (result['metrics']['validation']['r2'], result['metrics']['test']['r2']) == (None, None)
  assert result['metrics']['undefined'] == {split: {'r2': why} for split in ('validation', 'test')}
  assert result['stages']['finetune']['undefined'] == {'r2': why}
  run = api.load_run(workdir)
  assert run.evaluate('test')[0]['r2'] is None
  assert np.isfinite(run.predict('test').prediction).all()
  assert cli.main(['evaluate', f'--workdir={workdir}', '--split=test']) == 0
  assert f'no test R\u00b2: {why}' in (out := capsys.readouterr().out)
  assert 'Equal: result.json says no R\u00b2, 0 of' in out
  assert experiment.run(config, workdir, announce=message.append) == result  # it is read again
  assert cli.main(['report', f'--workdir={tmp_path}']) == 0
  assert why in capsys.readouterr().out


@pytest.mark.parametrize('protocol', ['clean', 'paper'])
def test_sound_is_normalised_by_position_only_as_published(sounds, data_dir, repository, protocol):
  stages = stages_of(resolve(load(SOUND, protocol, data_dir, repository)))
  train = examples_lib.open_split(SOUND, 'train', data_dir)
  built = normalised(stages, train)['finetune']
  raw = sounds['train'][0].astype(np.float64)
  if protocol == 'clean':
    expected = (raw - raw.mean()) / raw.std()  # of the training clips, measured when the set was prepared
  else:
    twice = raw / 32768 / 32768
    expected = (twice - twice.mean(0)) / (twice.std(0, ddof=1) + 1e-5)
  for task in (built.task, built.objective.task):
    np.testing.assert_allclose(normalise(task, sounds['train'][0])[..., 0], expected, rtol=1e-4, atol=1e-5)


def test_sound_without_statistics_is_refused(sounds, tmp_path, repository):
  write(tmp_path, SOUND, sounds)
  stages = stages_of(resolve(load(SOUND, 'clean', tmp_path, repository)))
  with pytest.raises(
    DataError, match="'tiny_sound' does not hold the mean and standard deviation.*prepare it again"
  ):
    normalised(stages, examples_lib.open_split(SOUND, 'train', tmp_path))
