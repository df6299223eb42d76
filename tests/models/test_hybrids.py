"""Mixers that take turns: stored by place, run in order, and one mixer is the period of length 1."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config.protocol import CLEAN
from lra_spt.errors import ConfigError
from lra_spt.models import ExecutionSpec, HeadSpec, InputSpec, MixerSpec, ModelSpec, Recipe, register_mixer
from lra_spt.models.check import check_mixer
from lra_spt.models.layers import fold_rows

PERIOD = ({'name': 'lru', 'state_size': 4}, {'name': 'attention', 'heads': 2})
KEYS = jax.random.split(jax.random.key(1), 3)
LENGTHS = jnp.array([7, 4, 5], jnp.int32)


@register_mixer('of_a_user')
class OfAUser(nnx.Module):
  def __init__(self, width, *, length, causal, protocol, rngs):
    self.causal = causal

  def __call__(self, x_BLD, *, lengths_B, deterministic, rngs):
    return jnp.flip(x_BLD, axis=1)  # padding moves to the front, and the causal form looks ahead


def values(*shape):
  return jnp.asarray(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def params_of(model):
  return nnx.to_pure_dict(nnx.state(model, nnx.Param))


@pytest.fixture(scope='module')
def trained(make_model):
  """trained(scan_layers, remat) -> (outputs, gradients, statistics) of a training pass over four blocks."""

  @functools.cache
  def run(scan_layers, remat):
    execution = ExecutionSpec(scan_layers=scan_layers, remat=remat)
    model = make_model(mixers=PERIOD, depth=4, norm='batch', dropout=0.2, execution=execution)
    graphdef, params, stats = nnx.split(model, nnx.Param, ...)

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def passed(params):
      model = nnx.merge(graphdef, params, jax.tree.map(lambda x: x, stats), copy=True)
      outputs = model(values(3, 7, 2), lengths_B=LENGTHS, deterministic=False, rngs=KEYS)
      return jnp.sum(outputs**2), (outputs, nnx.to_pure_dict(nnx.state(model, nnx.Not(nnx.Param))))

    (_, (outputs, stats)), gradients = passed(params)
    return outputs, nnx.to_pure_dict(gradients), stats

  return run


@pytest.mark.parametrize('execution', [('never', ''), ('always', 'blocks'), ('never', 'mixers')])
def test_execution_changes_nothing(trained, execution):
  first, other = trained('always', ''), trained(*execution)
  for (path, a), b in zip(jax.tree.leaves_with_path(first), jax.tree.leaves(other), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=str(path))


def test_the_mixers_take_turns(trained, make_model):
  """The outputs and the BatchNorm statistics are those of the single blocks, one after the other."""
  model = make_model(mixers=PERIOD, depth=4, norm='batch', dropout=0.2)

  @nnx.jit
  def walked(model):
    encoder = model.encoder
    x_BLD = encoder.embedded(values(3, 7, 2))
    x_BLD = encoder.dropout(x_BLD, deterministic=False, rngs=fold_rows(KEYS, 4))
    means = []
    for layer in range(4):
      block = encoder.layer(layer)
      assert type(block.mixer).__name__ == ('LRU', 'Attention')[layer % 2]
      x_BLD = block(x_BLD, lengths_B=LENGTHS, deterministic=False, rngs=fold_rows(KEYS, layer))
      means.append(block.mixer_norm.norm.mean[...])
    x_BLD = encoder.norm(x_BLD, lengths_B=LENGTHS, deterministic=False)
    return model.head(x_BLD, lengths_B=LENGTHS), means

  outputs, means = walked(model)
  whole, _, stats = trained('always', '')
  valid = np.arange(7)[None] < np.asarray(LENGTHS)[:, None]
  np.testing.assert_allclose(np.asarray(outputs)[valid], np.asarray(whole)[valid], rtol=1e-4, atol=1e-4)
  for layer, mean in enumerate(means):
    stored = stats['encoder']['blocks'][layer % 2]['mixer_norm']['norm']['mean'][layer // 2]
    np.testing.assert_allclose(stored, mean, rtol=1e-5, atol=1e-6)


def test_each_place_has_a_stack_that_starts_differently(make_model):
  blocks = params_of(make_model(mixers=PERIOD, depth=4))['encoder']['blocks']
  assert [sorted(blocks[place]['mixer'])[0] for place in (0, 1)] == ['b_imag', 'key']
  up = [blocks[layer % 2]['feed_forward']['up']['kernel'][layer // 2] for layer in range(4)]
  assert not any(np.array_equal(a, b) for i, a in enumerate(up) for b in up[:i])


def test_a_list_of_one_mixer_is_that_mixer(make_model):
  one, listed = (params_of(make_model(**kind)) for kind in ({'mixer': PERIOD[0]}, {'mixers': PERIOD[:1]}))
  assert jax.tree.structure(one) == jax.tree.structure(listed)
  jax.tree.map(np.testing.assert_array_equal, one, listed)


def test_an_error_names_the_place_of_its_mixer(make_model):
  with pytest.raises(ConfigError, match='which model.mixers.1.heads=3 does not divide'):
    make_model(mixers=(PERIOD[0], PERIOD[1] | {'heads': 3}))
  with pytest.raises(ConfigError, match='which model.mixer.heads=3 does not divide'):
    make_model(mixer=PERIOD[1] | {'heads': 3})


def test_operations_are_those_of_all_blocks(make_model):
  both = make_model(mixers=PERIOD, depth=4).flops(16)
  assert 2 * both == sum(make_model(mixer=mixer, depth=4).flops(16) for mixer in PERIOD)


def test_random_init_changes_the_parts_that_have_such_parameters(make_model):
  before, after = (params_of(make_model(mixers=PERIOD, **more)) for more in ({}, {'random_init': 'ssm'}))
  same = jax.tree.map(np.array_equal, before['encoder']['blocks'], after['encoder']['blocks'])
  assert all(jax.tree.leaves(same[1]))
  assert not all(jax.tree.leaves(same[0]['mixer']))
  with pytest.raises(ConfigError, match="the mixer 'attention-attention' has no state-space parameters"):
    make_model(mixers=PERIOD[1:] * 2, random_init='ssm')


def test_every_part_counts_as_user_code_and_is_checked():
  spec = ModelSpec('test', 8, 2, mixers=(PERIOD[1], {'name': 'of_a_user'}))
  recipe = Recipe(spec, InputSpec(8), HeadSpec('tokens', 3), True, CLEAN, ExecutionSpec())
  with pytest.raises(TypeError, match='unhashable'):
    hash(recipe)
  hash(dataclasses.replace(recipe, spec=ModelSpec('test', 8, 2, mixers=PERIOD)))
  first, second = MixerSpec(spec, 8, True, CLEAN, ExecutionSpec()).period
  assert (first.name, second.name) == ('attention', 'of_a_user')
  assert (first.lacks_flops, second.lacks_flops) == (False, True)
  with pytest.raises(ConfigError, match="The causal form of the mixer 'of_a_user' looks ahead"):
    check_mixer(second)
