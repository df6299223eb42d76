"""A pretraining objective from outside the package is one file: it trains, resumes and is reported.

The file is the example in the docstring of the contract.
"""

import inspect
import re

import jax
import numpy as np
import pytest

from data_prep.sources import stripes
from lra_spt import objectives
from lra_spt.config import loading, regimes
from lra_spt.data import examples as examples_lib
from lra_spt.data.tasks import get_task
from lra_spt.errors import ConfigError
from lra_spt.objectives import contract
from lra_spt.report.runs import run as runs
from lra_spt.runs import experiment
from lra_spt.runs.build import build, resolve, stages_of
from lra_spt.training.checkpoints.store import Checkpoints


@pytest.fixture(scope='module')
def path(tmp_path_factory):
  """The path of the example as a config file."""
  (text,) = re.findall('```python\n(.*?)```', inspect.getdoc(contract), flags=re.DOTALL)
  path = tmp_path_factory.mktemp('own') / 'unshuffle.py'
  path.write_text(text)
  return path


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('stripes')
  stripes.prepare_stripes(folder, examples=64)
  return folder


@pytest.fixture(scope='module')
def load(path, data_dir):
  """load(regime, **overrides) -> the config of a run that takes seconds."""
  stage = {'max_steps': 8, 'evaluate_every': 4, 'batch_size': 16, 'schedule.warmup_steps': 0}
  settings = {f'{name}.{key}': value for name in ('pretrain', 'finetune') for key, value in stage.items()} | {
    'task': 'stripes', 'model.width': 16, 'model.depth': 1, 'model.feed_forward': 16, 'model.mixer.heads': 2,
    'runtime.data_dir': str(data_dir), 'runtime.devices': 1, 'runtime.evaluation_batch_size': 200,
    'runtime.steps_per_dispatch': 2, 'runtime.log_every': 2, 'runtime.tensorboard': False,
  }  # fmt: skip
  return lambda regime, **more: loading.load(f'{path}:regime={regime}', settings | more)


@pytest.fixture(scope='module')
def undisturbed(load, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('undisturbed') / 'run'
  experiment.run(load('unshuffle'), workdir, announce=lambda line: None)
  return workdir


def test_it_trains_and_the_report_reads_it(undisturbed):
  run = runs.read_run(undisturbed)
  assert (run.regime, run.causal) == ('unshuffle', False)
  assert run.arm == 'unshuffle self-pretraining'
  assert run.result['stages']['pretrain']['steps'] == run.result['stages']['finetune']['steps'] == 8
  assert run.result['stages']['pretrain']['metrics'].keys() == {'loss', 'mae', 'r2'}
  assert run.result['config']['pretrain']['reach'] == 8


@pytest.mark.slow
def test_it_resumes(load, undisturbed, trajectory, tmp_path, monkeypatch):
  save = Checkpoints.save_latest

  def saved_and_stopped(checkpoints, state):
    save(checkpoints, state)
    raise KeyboardInterrupt

  monkeypatch.setattr(Checkpoints, 'save_latest', saved_and_stopped)
  with pytest.raises(KeyboardInterrupt):
    experiment.run(load('unshuffle'), tmp_path / 'run', announce=lambda line: None)
  monkeypatch.undo()
  assert [line['step'] for lines in trajectory(tmp_path / 'run').values() for line in lines] == [3, 4, 4]
  experiment.run(load('unshuffle'), tmp_path / 'run', announce=lambda line: None)
  assert trajectory(tmp_path / 'run') == trajectory(undisturbed)
  for name, expected in np.load(undisturbed / 'predictions.npz').items():
    np.testing.assert_array_equal(np.load(tmp_path / 'run' / 'predictions.npz')[name], expected)


def test_options_reach_the_objective_and_are_checked(load):
  for reach in (3, 8):
    assert (
      stages_of(resolve(load('unshuffle', **{'pretrain.reach': reach})))['pretrain'].objective.reach == reach
    )
  config = load('unshuffle')
  with config.unlocked(), config.ignore_type():
    config.pretrain.reach = 'far'
  with pytest.raises(ValueError, match="pretrain.reach takes int, not 'far'"):
    build(resolve(config), 'pretrain')
  with config.unlocked():
    del config.pretrain.reach
    config.pretrain.reech = 3
  with pytest.raises(ValueError, match='pretrain has no key reech: .* Did you mean reach'):
    build(resolve(config), 'pretrain')


def test_one_file_serves_the_other_regimes_too(load):
  """unshuffle ignores pretrain.mask_rate, and the other regimes ignore pretrain.reach."""
  assert 'mask_rate' in load('unshuffle').pretrain
  for regime, kind in (('masked', objectives.MaskedDenoising), ('causal', objectives.CausalDenoising)):
    config = load(regime)
    built = stages_of(resolve(config))
    assert isinstance(built['pretrain'].objective, kind)
    assert config.pretrain.reach == 8
    assert built['finetune'].model.make_model is not None
  assert list(stages_of(resolve(load('scratch')))) == ['finetune']


def test_padding_stays_where_it_is_and_nothing_is_lost(load, data_dir):
  unshuffle = objectives.get_objective('unshuffle')(get_task('listops').with_inputs(length=24), reach=4)
  rng = np.random.default_rng(0)
  lengths = rng.integers(1, 25, 40).astype(np.int32)
  ids = rng.integers(4, 19, (40, 24)).astype(np.uint8)
  ids[np.arange(24)[None] >= lengths[:, None]] = 1
  batch = {'inputs': ids, 'lengths': lengths, 'weight': np.ones(40, np.float32)}
  prepared = unshuffle.prepare(batch, jax.random.split(jax.random.key(0), 40))
  moved = np.asarray(prepared.inputs)
  np.testing.assert_array_equal(np.sort(moved, axis=1), np.sort(ids, axis=1))
  np.testing.assert_array_equal(moved[prepared.weights == 0], 1)
  np.testing.assert_array_equal(prepared.targets, ids)
  assert (moved != ids).any()
  stripes_of = objectives.get_objective('unshuffle')(get_task('stripes'), reach=4)
  batch = examples_lib.open_split('stripes', 'train', data_dir).gather(np.arange(40))
  prepared = stripes_of.prepare(batch, jax.random.split(jax.random.key(1), 40))
  assert prepared.inputs.shape == (40, 64, 1)
  assert not np.array_equal(prepared.inputs, prepared.targets)
  np.testing.assert_array_equal(np.sort(prepared.inputs, axis=1), np.sort(prepared.targets, axis=1))


def test_names_are_taken_once(load):
  load('unshuffle')
  with pytest.raises(ValueError, match=r"objective named 'masked' exists already"):
    objectives.register_objective('masked')(objectives.CausalDenoising)
  with pytest.raises(TypeError, match='str is not a dataclass whose first fields are task and protocol'):
    objectives.register_objective('text')(str)
  with pytest.raises(
    ConfigError, match=r"register_objective was given <class 'str'> in place of a name: write"
  ):
    objectives.register_objective(str)
  with pytest.raises(ValueError, match="A different regime is already called 'masked'"):
    regimes.register_regime(regimes.Regime('masked', 'causal'))
  with pytest.raises(ConfigError, match="register_regime was given 'unshuffle': give it a Regime"):
    regimes.register_regime('unshuffle')
  assert regimes.register_regime(regimes.Regime('masked', 'masked')) == regimes.get_regime('masked')


def test_what_is_not_registered_is_named(load, monkeypatch):
  monkeypatch.setattr(regimes, 'REGIMES', dict(regimes.REGIMES))
  monkeypatch.setitem(regimes.REGIMES, 'guess', regimes.Regime('guess', 'guessing'))
  config = load('masked')
  with config.unlocked():
    config.regime = 'guess'
  with pytest.raises(
    ValueError, match="no pretraining objective 'guessing'; choose one of causal, masked, mixture, "
  ):
    stages_of(resolve(config))
  with config.unlocked():
    config.regime = 'nap'
  with pytest.raises(ValueError, match="regime is 'nap'; choose one of causal, guess, masked, "):
    stages_of(resolve(config))
  with pytest.raises(ValueError, match='regime scratch has no pretraining'):
    build(resolve(load('scratch')), 'pretrain')
