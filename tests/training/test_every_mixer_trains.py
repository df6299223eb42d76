"""Every mixer of the tree learns a small task in every regime that it has, and resumes after a kill."""

import json

import numpy as np
import pytest

import lra_spt
from data_prep.sources import stripes
from lra_spt.config import mixers
from lra_spt.config.regimes import get_regime
from lra_spt.report.runs.arm_key import REGIMES

STEPS, MOMENT = 200, 'logged:finetune:144'  # between the checkpoints of 120 and 160
SHORT = {'reformer': {'model.mixer.chunk': 8}}  # whose values are above the 24 positions of the small ListOps
MIXERS = sorted({*mixers.ROWS} - {'none'})  # that one is no model


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
  found = {}
  for path in workdir.glob('*/metrics.jsonl'):
    lines = map(json.loads, path.read_text().splitlines())
    found[path.parent.name.split('-')[0]] = [line['loss'] for line in lines if line['split'] == 'train']
  return found


def assert_learned(mixer, workdir, regime):
  found = losses(workdir)
  assert set(found) == ({'pretrain', 'finetune'} if get_regime(regime).objective else {'finetune'})
  for stage, values in found.items():
    assert len(values) >= STEPS // 20  # a dispatch of several steps has one line
    assert np.isfinite(values).all()
    print(f'{mixer}, {regime}, {stage}: {np.mean(values[:3]):.3f} -> {np.mean(values[-3:]):.3f}')
    assert np.mean(values[-3:]) < np.mean(values[:3])


@pytest.fixture(scope='module')
def stripe_data(tmp_path_factory):
  folder = tmp_path_factory.mktemp('stripes')
  stripes.prepare_stripes(folder, seed=0)
  return folder


@pytest.mark.slow
@pytest.mark.parametrize('mixer', MIXERS)
def test_the_task_of_the_demo(mixer, stripe_data, tmp_path):
  for regime in regimes(mixer):
    name = 'transformer' if mixer == 'attention' else mixer
    file = f'configs/demo.py:model={name},regime={regime}'
    config = lra_spt.load_config(file, settings(data_dir=str(stripe_data)))
    lra_spt.train(config, tmp_path / regime, announce=lambda line: None)
    assert_learned(mixer, tmp_path / regime, regime)


@pytest.mark.slow
@pytest.mark.parametrize('mixer', MIXERS)
def test_small_listops_and_a_kill(mixer, train, trajectory, tmp_path):
  name = 'transformer' if mixer == 'attention' else mixer
  values = settings(checkpoint_every=40) | SHORT.get(mixer, {})
  flags = [f'--config.{key}={value}' for key, value in values.items()]
  for regime in regimes(mixer):
    options = {'argument': f'model={name},regime={regime}', 'devices': 1}
    train(tmp_path / regime, *flags, **options)
    assert_learned(mixer, tmp_path / regime, regime)
    if regime == 'masked':
      train(tmp_path / 'killed', *flags, killed_at=MOMENT, **options)
      assert not (tmp_path / 'killed' / 'result.json').exists()
      train(tmp_path / 'killed', *flags, **options)
      assert trajectory(tmp_path / 'killed') == trajectory(tmp_path / 'masked')
