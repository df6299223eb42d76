"""Configs become typed stages: which stages a regime has, and how a protocol changes a task."""

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from lra_spt.config import loading, regimes
from lra_spt.config.schema import OptimizerSpec, ScheduleSpec, StageSpec
from lra_spt.data import examples
from lra_spt.data.tasks import get_task
from lra_spt.distributed import sharding
from lra_spt.errors import ConfigError
from lra_spt.models import registry
from lra_spt.runs import plan as planning
from lra_spt.runs import stage_report
from lra_spt.runs.build import build, resolve, stages_of
from lra_spt.runs.stage import Built


@pytest.mark.parametrize('regime, names', [('scratch', ['finetune']), ('causal', ['pretrain', 'finetune'])])
def test_stages_of_regimes(tiny_config, regime, names):
  stages = stages_of(resolve(loading.load(f'{tiny_config}:regime={regime}')))
  assert list(stages) == names
  assert [built.name for built in stages.values()] == names


def test_class_weights(tiny_config):
  """A run without class weights has none in its identity. There is one weight for each class of the task."""

  def run_with(*overrides):
    return resolve(loading.load(f'{tiny_config}:regime=scratch', overrides))

  before = run_with().identity
  assert 'class_weights' not in before['finetune']
  run = run_with('finetune.class_weights=1,4,1,1,1,1,1,1,1,0.5')
  weights = (1.0, 4.0, *[1.0] * 7, 0.5)
  assert tuple(run.identity['finetune'].pop('class_weights')) == weights
  assert run.identity == before
  assert build(run, 'finetune').objective.class_weights == weights
  with pytest.raises(ConfigError, match='finetune.class_weights has 3 numbers, but .* has 10 classes'):
    build(run_with('finetune.class_weights=1,2,3'), 'finetune')
  with pytest.raises(ConfigError, match='finetune.class_weights is .* must be above 0'):
    run_with('finetune.class_weights=0,1')
  with pytest.raises(ConfigError, match='the labels of bidmc_hr are no classes'):
    build(run_with('finetune.class_weights=1,2', 'task=bidmc_hr'), 'finetune')


def test_scratch_has_no_pretraining(tiny_config):
  with pytest.raises(ConfigError, match='regime scratch has no pretraining'):
    build(resolve(loading.load(f'{tiny_config}:regime=scratch')), 'pretrain')


def test_a_config_without_sections_is_named(tiny_config):
  config = ConfigDict(loading.load(tiny_config).to_dict())
  del config.regime
  with pytest.raises(ConfigError, match='The config lacks the key regime: every config has task, model'):
    stages_of(resolve(config))


def test_next_positions_are_predicted_by_a_causal_form_only(tiny_config, monkeypatch):
  monkeypatch.setitem(regimes.REGIMES, 'peek', regimes.Regime('peek', objective='causal'))
  config = ConfigDict(loading.load(f'{tiny_config}:regime=causal').to_dict() | {'regime': 'peek'})
  config.causal = False
  with pytest.raises(ConfigError, match="regime peek pretrains on 'causal', .* register .* causal=True"):
    build(resolve(config), 'pretrain')


@pytest.mark.parametrize(
  ('section', 'value', 'message'),
  [
    ('runtime.mesh', {'data': -1, 'model': 2}, 'runtime.mesh has no key model: it takes data, fsdp, seq'),
    ('runtime.mesh', {'data': -1, 'fsdp': '2'}, "runtime.mesh.fsdp takes int, not '2'"),
    ('model.mixer', {'heads': 2}, 'model.mixer has no name; give model.mixer.name'),
  ],
)
def test_sections_written_by_hand_get_a_sentence(tiny_config, section, value, message):
  config = ConfigDict(loading.load(f'{tiny_config}:regime=scratch').to_dict())
  outer, inner = section.split('.')
  config[outer][inner] = ConfigDict(value)
  with pytest.raises(ConfigError, match=message):
    stages_of(resolve(config))


@pytest.mark.parametrize(
  ('mixer', 'option'),
  [('longformer', 'window'), ('attention', 'block'), ('local', 'block'), ('spade', 'radius')],
)
def test_spans_that_int32_cannot_count_get_a_sentence(tiny_config, mixer, option):
  model = 'transformer' if mixer == 'attention' else mixer
  config = loading.load(f'{tiny_config}:regime=scratch,model={model}')
  with config.unlocked():
    config.model.mixer[option] = 2_000_000_000
  with pytest.raises(ConfigError, match='536,870,912'):
    build(resolve(config), 'finetune')


def test_published_inputs_of_bidmc_lie_between_minus_one_and_one():
  clean, paper = (
    build(resolve(loading.load(f'configs/bidmc.py:protocol={protocol}')), 'finetune').task.inputs
    for protocol in ('clean', 'paper')
  )
  for channel, ends in enumerate(((0.0, 4.002), (-0.50196, 1.5039))):  # as stored
    read = [(end - paper.mean[channel]) / paper.std[channel] for end in ends]
    assert read == pytest.approx([-1.0, 1.0])
  assert clean.mean == get_task('bidmc_hr').inputs.mean != paper.mean


def test_sets_that_protocol_paper_would_leave_out_are_refused_beforehand(tiny_config, tiny_data):
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  data = examples.open_splits(get_task('tiny_listops'), tiny_data)
  assert len(data['test']) < 1000
  for protocol, large in (('clean', 1000), ('paper', 4)):
    overrides = {'runtime.data_dir': str(tiny_data), 'protocol': protocol, 'finetune.batch_size': large}
    build(resolve(loading.load(tiny_config, overrides)), 'finetune').check(mesh, data)
  overrides |= {'finetune.batch_size': len(data['test']) + 1, 'finetune.evaluate_every': 1}
  with pytest.raises(ConfigError, match=r'examples of the (validation|test) split do not fill one batch of'):
    build(resolve(loading.load(tiny_config, overrides)), 'finetune').check(mesh, data)


@pytest.mark.parametrize('name, at', [('train', None), ('validation', None), ('validation', 4999), ('', 3)])
def test_causal_pretraining_with_nothing_to_predict_is_refused_beforehand(tiny_config, tiny_data, name, at):
  """The split `name` has 5,000 examples of one position, but the example at `at` has two."""

  class Short:
    split = name

    def __len__(self):
      return 5000

    def part(self, fraction):
      return self

    def gather(self, positions):
      return {'lengths': np.where(positions == at, 2, 1)}

  built = build(
    resolve(loading.load(f'{tiny_config}:regime=causal', {'runtime.data_dir': str(tiny_data)})), 'pretrain'
  )
  data = examples.open_splits(get_task('tiny_listops'), tiny_data) | {name: Short()}
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  if at is not None:
    return built.check(mesh, data)
  with pytest.raises(
    ConfigError, match=f'No {name} example of tiny_listops has 2 positions, so pretrain has'
  ):
    built.check(mesh, data)


@pytest.mark.parametrize(
  'examples, limits, printed',
  [
    (320, {'epochs': 1.0}, 'at most 5 steps of 64 (1 epoch)'),
    (300, {'epochs': 1.0}, 'at most 5 steps of 64 (1 epoch and 20 of 300 examples)'),
    (84_843, {'epochs': 200.0}, 'at most 265,135 steps of 64 (200 epochs and 40 of 84,843 examples)'),
    (300, {'epochs': 0.0, 'max_seconds': 60.0}, 'steps of 64 for 60 s'),
    (300, {'epochs': 0.0, 'max_steps': 2}, 'at most 2 steps of 64 (128 of 300 examples)'),
  ],
)
def test_the_number_of_epochs_is_exact(examples, limits, printed):
  spec = StageSpec(batch_size=64, optimizer=OptimizerSpec(1e-3, 0.0), schedule=ScheduleSpec(), **limits)
  assert stage_report.limit(spec, examples) == printed


def test_mixers_of_the_package_are_not_checked_again(tiny_config, tiny_data, monkeypatch):
  config = loading.load(tiny_config, {'runtime.check_mixer': True, 'runtime.data_dir': str(tiny_data)})
  built, checked = build(resolve(config), 'finetune'), []
  monkeypatch.setattr(Built, 'check_mixer', lambda built, mixer: checked.append(built.name))
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  data = {'train': examples.open_split('tiny_listops', 'train', tiny_data)}
  built.check(mesh, data)
  assert checked == []
  # An edited copy that replaces a mixer of the package is user code, so it is checked.
  monkeypatch.setattr(registry, 'mixer_class', lambda name: type('Attention', (), {'__module__': 'mine'}))
  built.check(mesh, data)
  assert checked == ['finetune']


def test_what_a_step_keeps_for_its_gradient(tiny_config):
  """A step saves at least the input of every layer. With microbatches it saves only those of one microbatch,
  and each device saves its share."""
  overrides = {'runtime.microbatches': 4}
  built, parts = (
    build(resolve(loading.load(f'{tiny_config}:regime=masked', more)), 'finetune') for more in ({}, overrides)
  )
  one, two = (sharding.make_mesh(devices=jax.devices()[:count]) for count in (1, 2))
  hidden = 4 * 16 * 24 * 16 * 2  # float32, rows, positions, width, layers
  residuals = built.residual_bytes(one)
  assert 3 * hidden < residuals < 40 * hidden
  assert parts.residual_bytes(one) == pytest.approx(residuals / 4, rel=0.1)
  assert (built.residual_bytes(two), built.residual_bytes(one, 3)) == (residuals // 2, 3 * residuals)


def test_finetuning_that_may_not_fit_is_told_before_pretraining(tiny_config, monkeypatch):
  built = build(resolve(loading.load(f'{tiny_config}:regime=masked')), 'finetune')
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  residuals = built.residual_bytes(mesh)

  def remark():
    lines = []
    stage_report.warn_of_memory(built, mesh, 1, lines.append)
    return ''.join(lines)

  assert remark() == ''  # a CPU gets no warning
  monkeypatch.setattr(sharding, 'platform', lambda: 'gpu')
  monkeypatch.setattr(sharding, 'device_memory', lambda mesh: residuals)
  assert remark() == ''
  monkeypatch.setattr(sharding, 'device_memory', lambda mesh: residuals - 1)
  message = remark()
  assert message.startswith('finetune: a step keeps about 0 GiB on each device for its gradient')
  assert message.endswith('continue with --config.runtime.microbatches=4')
  config = loading.load(f'{tiny_config}:regime=masked', {'finetune.batch_size': 50})
  built = build(resolve(config), 'finetune')
  monkeypatch.setattr(sharding, 'device_memory', lambda mesh: built.residual_bytes(mesh) // 2)
  assert remark().endswith('microbatches=5')  # 50 rows do not divide into 4 equal parts
  monkeypatch.setattr(sharding, 'device_memory', lambda mesh: 1)
  assert remark().endswith('continue with more devices')


def test_a_smoke_run_has_small_batches(tiny_config, tiny_data, monkeypatch):
  overrides = {'runtime.data_dir': str(tiny_data), 'finetune.batch_size': 48}
  config = loading.load(f'{tiny_config}:regime=masked', overrides)
  loading.shorten(config)
  monkeypatch.setattr(planning, 'SMOKE_STEP', 9 * 24)
  for devices, rows in ((1, 9), (2, 10), (8, 16)):
    with config.unlocked():
      config.runtime.devices = devices
    spec = resolve(config)
    stages = planning.plan(spec).stages
    assert {name: built.spec.batch_size for name, built in stages.items()} == {
      name: min(rows, stage.batch_size) for name, stage in spec.stages.items()
    }


def test_a_smoke_run_evaluates_a_part(tiny_config, tiny_data, monkeypatch):
  config = loading.load(f'{tiny_config}:regime=scratch', {'runtime.data_dir': str(tiny_data)})
  whole = planning.plan(resolve(config)).data
  loading.shorten(config)
  monkeypatch.setattr(planning, 'SMOKE_SPLIT', 18 * 24)
  short = planning.plan(resolve(config)).data
  assert {split: len(part) for split, part in short.items()} == {
    'train': len(whole['train']),
    'validation': 18,
    'test': 18,
  }
