"""A mixer registered from outside the package gets every regime and sharding without more code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict

from lra_spt.config import loading, mixers
from lra_spt.config.protocol import CLEAN
from lra_spt.distributed import sharding
from lra_spt.errors import ConfigError
from lra_spt.models import ParameterGroup, make_mixer, register_mixer, registry
from lra_spt.runs.build import build, resolve
from lra_spt.training import state as states
from lra_spt.training.step import StepProgram, train_steps


@register_mixer('gated_average')
class GatedAverage(nnx.Module):
  """y_t = gate_t * exponential moving average of x up to t; the bidirectional form adds the average from the
  right."""

  def __init__(self, width, *, length, causal, protocol, rngs, start=1.0):
    self.causal = causal
    self.gate = nnx.Linear(width, width, rngs=rngs)
    self.decay = nnx.Param(jnp.full(width, start), group=ParameterGroup(learning_rate=1e-2, decay=False))

  def __call__(self, x_BLD, *, lengths_B=None, deterministic=True, rngs=None):
    if lengths_B is not None:
      x_BLD = jnp.where((jnp.arange(x_BLD.shape[1])[None] < lengths_B[:, None])[..., None], x_BLD, 0.0)
    a_11D = nnx.sigmoid(self.decay[...])[None, None]

    def average(x_BLD, reverse=False):
      pairs = (jnp.broadcast_to(a_11D, x_BLD.shape), (1 - a_11D) * x_BLD)
      combine = lambda left, right: (left[0] * right[0], right[0] * left[1] + right[1])  # noqa: E731
      return jax.lax.associative_scan(combine, pairs, reverse=reverse, axis=1)[1]

    y_BLD = average(x_BLD) if self.causal else average(x_BLD) + average(x_BLD, reverse=True)
    return nnx.sigmoid(self.gate(x_BLD)) * y_BLD


def config(task, regime, **mixer):
  loaded = loading.load(
    f'configs/{task}.py:regime={regime}',
    {
      'model.width': 16,
      'model.depth': 2,
      'model.feed_forward': 0,
      **{
        f'{stage}.{key}': value
        for stage in ('pretrain', 'finetune')
        for key, value in (('batch_size', 8), ('optimizer.lr', 3e-3), ('schedule.warmup_steps', 0))
      },
    },
  )
  with loaded.unlocked():
    loaded.model.mixer = ConfigDict({'name': 'gated_average', **mixer})
  return loaded


def batches(task, steps, rows=8, length=12):
  rng = np.random.default_rng(0)
  batch = {
    'inputs': rng.integers(3, 19, (rows, length)).astype(np.uint8),
    'lengths': rng.integers(6, length + 1, rows).astype(np.int32)
    if task == 'listops'
    else np.full(rows, length, np.int32),
    'label': rng.integers(0, 10, rows).astype(np.int32),
    'weight': np.ones(rows, np.float32),
    'index': np.arange(rows, dtype=np.int32),
  }
  return {name: np.stack([x] * steps) for name, x in batch.items()}


def train(built, task, mesh, steps=6):
  """(initial params, state, losses) of `steps` steps on one repeated batch. The last loss has the masks of
  the first step and the trained parameters, so that only training makes it differ from the first loss."""
  program = StepProgram(built.model, built.objective, built.spec.optimizer, built.spec.schedule, 10)
  with jax.set_mesh(mesh):
    state = states.create(built.model, built.spec.optimizer, 'max', jax.random.key(0), mesh)
    before = jax.tree.map(np.asarray, state['params'])
    chunk = sharding.to_devices(batches(task, steps), mesh, 8, np.arange(8), leading=1)
    step = train_steps(program)
    state, records = step(state, chunk, jnp.int32(steps), jax.random.key(1))
    after = jax.tree.map(np.asarray, state)
    again = state | {'step': sharding.everywhere(np.int32(0), mesh)}
    _, repeated = step(again, chunk, jnp.int32(1), jax.random.key(1))
    return before, after, np.append(records['loss'], repeated['loss'][0])


@pytest.mark.parametrize(
  'task, regime, stage, shape',
  [
    ('listops', 'scratch', 'finetune', (1, 1, 1)),
    pytest.param('image', 'masked', 'pretrain', (2, 4, 1), marks=pytest.mark.slow),
    pytest.param('listops', 'causal', 'pretrain', (8, 1, 1), marks=pytest.mark.slow),
    ('image', 'causal', 'finetune', (2, 1, 4)),
  ],
)
def test_a_mixer_from_outside_trains(task, regime, stage, shape):
  built = build(resolve(config(task, regime)), stage)
  mesh = sharding.make_mesh(*shape, devices=jax.devices()[: int(np.prod(shape))])
  before, state, losses = train(built, task, mesh)
  assert np.isfinite(losses).all()
  assert losses[-1] < losses[0]
  assert state['step'] == 6
  assert state['control']['failed_step'] == -1
  moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), before, state['params'])
  assert all(jax.tree.leaves(moved)), 'some parameter did not train'
  # The group has the learning rate 1e-2 and no decay; each of Adam's first steps is about that large.
  group = built.model.groups['encoder']['blocks']['mixer']['decay']
  assert group == ParameterGroup(learning_rate=1e-2, decay=False)
  decay = [params['encoder']['blocks']['mixer']['decay'] for params in (before, state['params'])]
  np.testing.assert_allclose(np.abs(decay[1] - decay[0]).max(), 0.06, rtol=0.3)


@pytest.mark.parametrize('causal', [True, False])
def test_the_mixer_keeps_causality_and_padding_in_the_encoder(causal):
  built = build(resolve(config('image', 'causal' if causal else 'masked')), 'finetune')
  model = built.model.make_model(nnx.Rngs(0))
  x, lengths = (
    jnp.asarray(np.random.default_rng(0).normal(size=(1, 6, 1)).astype(np.float32)),
    jnp.array([4], jnp.int32),
  )
  graphdef, state = nnx.split(model.encoder)

  def encode(x, lengths_B=None):
    return nnx.merge(graphdef, state)(x, lengths_B=lengths_B)

  jacobian = np.abs(np.asarray(jax.jit(jax.jacrev(encode))(x)))[0, :, :, 0, :, 0].max(1)  # [t, s]
  later = np.triu(np.ones((6, 6), bool), 1)
  assert (jacobian[~later] > 0).all()
  assert (jacobian[later] == 0).all() == causal
  np.testing.assert_allclose(encode(x, lengths)[:, :4], encode(x[:, :4]), atol=1e-5)


def test_wrong_options_of_mixers_are_refused():
  built = config('image', 'scratch', speed=3)
  with pytest.raises(
    ValueError,
    match=r"the options of mixer 'gated_average' do not fit its class: "
    ".*'speed'",
  ):
    build(resolve(built), 'finetune')
  common = {'length': 4, 'causal': False, 'protocol': CLEAN, 'rngs': nnx.Rngs(0)}
  with pytest.raises(
    ValueError,
    match=r"model.mixer.name is 'atention', .* gated_average.* mean attention\? .*file is imported",
  ):
    make_mixer('atention', 8, options={}, **common)
  with pytest.raises(ValueError, match=r"the options of mixer 'attention' do not fit its class: .*'heads'"):
    make_mixer('attention', 8, options={}, **common)
  for name, options, message in (
    (
      'gated_average',
      {'dtype': 'bfloat16'},
      "'gated_average' takes no dtype, which runtime.precision=bfloat16 ",
    ),
    ('attention', {'heads': '2'}, "model.mixer.heads takes int, not '2'"),
    ('attention', {'heads': 2, 'rotary': 'false'}, "model.mixer.rotary takes bool, not 'false'"),
    ('mamba', {'taps': 2.0}, 'model.mixer.taps takes int, not 2.0'),
    ('s4', {'state_size': '8'}, "model.mixer.state_size takes int, not '8'"),  # an option of its kernel
  ):
    with pytest.raises(ConfigError, match=message):
      make_mixer(name, 8, options=options, **common)
  with pytest.raises(ValueError, match="a mixer named 'attention' exists already"):
    register_mixer('attention')(GatedAverage)


@pytest.mark.parametrize(
  'name, option, wrong, message',
  [
    ('lru', 'state_size', 0, 'state_size is 0; it must be at least 1'),
    ('rglru', 'lru_width', -1, 'lru_width is -1; it must be at least 0'),
    ('dss', 'state_size', 0, 'state_size is 0'),  # an option of its kernel
    ('dss', 'version', 'none', "version is 'none'; choose one of softmax, exp"),
    ('dss', 'gate', 'tanh', "gate is 'tanh'; choose one of glu, none"),
    ('s5', 'c_init', 'zeros', "c_init is 'zeros'"),
    ('attention', 'block', -1, 'block is -1'),
  ],
)
def test_options_are_checked_by_their_annotations(name, option, wrong, message):
  common = {'length': 8, 'causal': False, 'protocol': CLEAN, 'rngs': nnx.Rngs(0)}
  with pytest.raises(ConfigError, match=f'model.mixer.{message}'):
    make_mixer(name, 8, options={option: wrong}, **common)


def test_only_classes_with_a_name_are_registered():
  with pytest.raises(
    ConfigError, match=r"given <class '.*GatedAverage'> in place of a name: write @register_"
  ):
    register_mixer(GatedAverage)

  def average(x_BLD):
    return x_BLD

  for other in (average, dict, average(3)):
    with pytest.raises(
      ConfigError, match=r"@register_mixer\('average'\) stands above .*, which is no class of"
    ):
      register_mixer('average')(other)
  assert 'average' not in mixers.rows()


def test_a_mixer_must_take_the_arguments_of_every_mixer(monkeypatch):
  class Plain(nnx.Module):
    def __init__(self, width, *, length, causal, rngs, reach=3):
      pass

  monkeypatch.setitem(registry._MIXERS, 'plain', Plain)
  common = {'length': 4, 'causal': False, 'protocol': CLEAN, 'rngs': nnx.Rngs(0)}
  message = (
    r"__init__ of mixer 'plain' .*'protocol'.*: write .*\(self, width, \*, length, causal, protocol, rngs\)"
  )
  with pytest.raises(ConfigError, match=message):
    make_mixer('plain', 8, options={'reach': 2}, **common)


def test_a_bug_of_a_mixer_keeps_its_traceback():
  @register_mixer('defective')
  class Defective(nnx.Module):
    def __init__(self, width, *, causal, rngs):
      self.inner = nnx.Linear(width, width, activation='relu', rngs=rngs)  # there is no such argument

  with pytest.raises(TypeError, match='activation'):
    make_mixer('defective', 8, options={}, causal=False, rngs=nnx.Rngs(0))
