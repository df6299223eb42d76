"""Every mixer learns the task of the demo, trains in every regime that it has, and resumes after a kill."""

import json

import numpy as np
import pytest

import lra_spt
from data_prep.sources import stripes
from lra_spt.config import mixers
from lra_spt.config.regimes import get_regime
from lra_spt.report.runs.arm_key import REGIMES
from lra_spt.report.statistics import intervals

SMALL = {  # half as wide as the demo, but as deep: with one layer some untrained recurrences do as well
  'model.width': 32,
  'finetune.batch_size': 20,
  'finetune.optimizer.lr': 3e-3,
  'finetune.max_steps': 400,
  'finetune.evaluate_every': 400,
  'runtime.check_mixer': False,
  'runtime.progress': False,
}
ONE_SYSTEM_A_CHANNEL = dict.fromkeys(('s4', 's4d'), {'model.mixer.copies': 0})
# At 3e-3 these are no better than with their mixer as drawn.
LOWER_RATE = dict.fromkeys(
  ('gated_deltanet2', 'hgrn2', 'linear_transformer', 'performer'), {'finetune.optimizer.lr': 1e-3}
)
STEPS, MOMENT = 200, 'logged:finetune:144'  # between the checkpoints of 120 and 160
SHORT = {'reformer': {'model.mixer.chunk': 8}}  # its default is longer than the 24 positions of small ListOps
MIXERS = sorted({*mixers.ROWS} - {'none'})  # a block without a mixer is no model


def regimes(mixer):
  return [name for name in REGIMES if mixers.has_causal_form(mixer) or not get_regime(name).causal]


def settings(**runtime):
  """Values of both stages: `STEPS` steps, and a line for every tenth."""
  stage = {'max_steps': STEPS, 'epochs': 1e6, 'evaluate_every': STEPS}
  both = {f'{name}.{key}': value for name in ('pretrain', 'finetune') for key, value in stage.items()}
  runtime = {'log_every': 10, 'check_mixer': False, 'tensorboard': False} | runtime
  return both | {f'runtime.{key}': value for key, value in runtime.items()}


def losses(workdir):
  """{stage: training losses, in their order}."""
  actual = {}
  for path in workdir.glob('*/metrics.jsonl'):
    lines = map(json.loads, path.read_text().splitlines())
    actual[path.parent.name.split('-')[0]] = [line['loss'] for line in lines if line['split'] == 'train']
  return actual


def assert_loss_falls(mixer, workdir, regime):
  actual = losses(workdir)
  assert set(actual) == ({'pretrain', 'finetune'} if get_regime(regime).objective else {'finetune'})
  for stage, values in actual.items():
    assert len(values) >= STEPS // 20  # a dispatch of several steps writes one line
    assert np.isfinite(values).all()
    print(f'{mixer}, {regime}, {stage}: {np.mean(values[:3]):.3f} -> {np.mean(values[-3:]):.3f}')
    assert np.mean(values[-3:]) < np.mean(values[:3])


@pytest.fixture(scope='module')
def stripe_data(tmp_path_factory):
  folder = tmp_path_factory.mktemp('stripes')
  stripes.prepare_stripes(folder, seed=0)
  return folder


def answers(model, data_dir, workdir, **values):
  """Trains a small model from scratch; returns (right answers on the demo's test images, bool [N]; share of
  the commonest label).

  It has the causal form, if there is one, because most recurrences then cost half.
  """
  form = ',causal=true' if mixers.has_causal_form(model) else ''
  values = SMALL | {'runtime.data_dir': str(data_dir)} | values
  config = lra_spt.load_config(f'configs/demo.py:model={model},regime=scratch{form}', values)
  lra_spt.train(config, workdir, announce=lambda line: None)
  with np.load(workdir / 'predictions.npz') as stored:
    label_N, prediction_N = stored['label'], stored['prediction']
  return prediction_N == label_N, np.bincount(label_N).max() / len(label_N)


@pytest.mark.slow
@pytest.mark.parametrize('mixer', MIXERS)
def test_the_task_of_the_demo(mixer, stripe_data, tmp_path):
  """A model answers better than a constant and, on the same images, better than with its mixer untrained."""
  name = 'transformer' if mixer == 'attention' else mixer
  values = (ONE_SYSTEM_A_CHANNEL | LOWER_RATE).get(mixer, {})
  right_N, constant = answers(name, stripe_data, tmp_path / 'trained', **values)
  values = values | {'finetune.freeze': ('*/mixer/*',)}
  untrained_N, _ = answers(name, stripe_data, tmp_path / 'untrained', **values)
  accuracy = intervals.wilson(int(right_N.sum()), len(right_N))
  only_untrained, only_trained = int((untrained_N & ~right_N).sum()), int((right_N & ~untrained_N).sum())
  gain = intervals.tango(only_untrained, only_trained, len(right_N))
  print(
    f'{mixer}: {accuracy.estimate:.3f} ({accuracy.low:.3f} to {accuracy.high:.3f}), constant {constant:.3f}, '
    f'mixer as drawn {untrained_N.mean():.3f}, gain {gain.estimate:.3f} ({gain.low:.3f} to {gain.high:.3f})'
  )
  assert accuracy.low > constant
  assert gain.low > 0


@pytest.mark.slow
def test_a_bag_of_tokens_cannot_learn_the_task_of_the_demo(stripe_data, tmp_path):
  """All images have the same grey levels, so without a mixer and positions the answer is a constant."""
  right_N, constant = answers('none-none', stripe_data, tmp_path, **{'model.position': 'none'})
  assert right_N.mean() <= constant


@pytest.mark.slow
@pytest.mark.parametrize('mixer', MIXERS)
def test_small_listops_and_a_kill(mixer, train, trajectory, tmp_path):
  name = 'transformer' if mixer == 'attention' else mixer
  values = settings(checkpoint_every=40) | SHORT.get(mixer, {})
  flags = [f'--config.{key}={value}' for key, value in values.items()]
  for regime in regimes(mixer):
    options = {'argument': f'model={name},regime={regime}', 'devices': 1}
    train(tmp_path / regime, *flags, **options)
    assert_loss_falls(mixer, tmp_path / regime, regime)
    if regime == 'masked':
      train(tmp_path / 'killed', *flags, killed_at=MOMENT, **options)
      assert not (tmp_path / 'killed' / 'result.json').exists()
      train(tmp_path / 'killed', *flags, **options)
      assert trajectory(tmp_path / 'killed') == trajectory(tmp_path / 'masked')
