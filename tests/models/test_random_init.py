"""Random initial values (paper, section 3.3): parameters, distribution, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.models import ModelSpec, ParameterGroup, register_mixer
from lra_spt.training import state as states


@register_mixer('leaky_sum')
class LeakySum(nnx.Module):
  """y_t = sum_s decay^(t-s) x_s: one state-space parameter, one matrix, in the smallest form."""

  def __init__(self, width, *, length, causal, protocol, rngs):
    self.causal = causal
    self.decay = nnx.Param(jnp.full((40, width), 2.0), ssm=True)
    self.rate = nnx.Param(jnp.full((40, width), 3.0), ssm=True, group=ParameterGroup(1e-3, decay=False))
    self.out = nnx.Linear(width, width, rngs=rngs)

  def __call__(self, x_BLD, *, lengths_B=None, deterministic=True, rngs=None):
    return self.out(x_BLD * jnp.sum(self.decay[...]))


def leaves(model):
  return {
    '/'.join(map(str, path)): np.asarray(variable.get_value())
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))
  }


@pytest.fixture(scope='module')
def made(make_model):

  def make(scope):
    return leaves(make_model(mixer={'name': 'leaky_sum'}, width=16, random_init=scope, seed=3))

  return {scope: make(scope) for scope in ('', 'all', 'ssm', 'matrices')}


def test_all_redraws_every_parameter_of_encoder_and_head(made):
  assert made['all'].keys() == made[''].keys()
  for name, value in made['all'].items():
    assert not np.array_equal(value, made[''][name]), name
  everything = np.concatenate([value.ravel() for value in made['all'].values()])
  np.testing.assert_allclose([everything.mean(), everything.std()], [0, 0.1], atol=3e-3)
  norm = made['all']['encoder/blocks/mixer_norm/norm/scale']
  assert np.abs(norm).max() < 0.6  # gains of about 0.1, not 1
  decay = made['all']['encoder/blocks/mixer/decay']
  assert np.unique(decay).size == decay.size  # layers are drawn independently


def test_matrices_redraws_linear_maps_without_biases(made):
  changed = {name for name in made[''] if not np.array_equal(made[''][name], made['matrices'][name])}
  kernels = {name for name in made[''] if name.endswith('/kernel')}
  assert {name for name in changed if not name.endswith('/bias')} == kernels
  drawn = np.concatenate([made['matrices'][name].ravel() for name in kernels])
  np.testing.assert_allclose([drawn.mean(), drawn.std()], [0, 0.1], atol=5e-3)
  assert all((value == 0).all() for name, value in made['matrices'].items() if name.endswith('/bias'))


def test_matrices_changes_no_bias_outside_of_linear_maps(make_model):
  before, after = (
    leaves(make_model(mixer={'name': 'mega'}, random_init=scope, seed=3)) for scope in ('', 'matrices')
  )
  biases = [name for name in before if name.endswith('/bias') and f'{name[:-4]}kernel' not in before]
  biases = [name for name in biases if np.any(before[name])]
  assert biases
  for name in biases:
    np.testing.assert_array_equal(after[name], before[name])


def test_ssm_redraws_state_space_parameters_only(made):
  changed = {name for name in made[''] if not np.array_equal(made[''][name], made['ssm'][name])}
  assert changed == {'encoder/blocks/mixer/decay', 'encoder/blocks/mixer/rate'}
  np.testing.assert_allclose(made['ssm']['encoder/blocks/mixer/decay'].std(), 0.1, atol=6e-3)


def test_models_without_state_space_parameters_refuse(make_model):
  with pytest.raises(ValueError, match="'ssm', but the mixer 'attention' has no state-space parameters"):
    make_model(random_init='ssm')
  with pytest.raises(ValueError, match="random_init is 'ssn'.* Did you mean ssm"):
    ModelSpec('test', 8, 1, {'name': 'attention'}, random_init='ssn')


def test_the_attention_model_takes_random_values_too(make_model):
  embed = leaves(make_model(random_init='all', random_std=0.5))['encoder/blocks/mixer/query/kernel']
  np.testing.assert_allclose(embed.std(), 0.5, atol=0.1)


def test_declared_groups_and_decay_survive(make_model):
  def groups(decay_everything):
    blueprint = states.blueprint(
      lambda rngs: make_model(mixer={'name': 'leaky_sum'}, random_init='all'),
      16,
      decay_everything=decay_everything,
    )
    return blueprint.groups['encoder']['blocks']['mixer']

  clean, published = groups(False), groups(True)
  assert clean['rate'] == published['rate'] == ParameterGroup(1e-3, decay=False)
  assert clean['decay'] == ParameterGroup(decay=False)  # a state-space parameter, though it has two axes
  assert published['decay'] == ParameterGroup(decay=True)
  assert clean['out']['kernel'] == ParameterGroup(decay=True)
  assert jax.tree.structure(clean) == jax.tree.structure(published)
