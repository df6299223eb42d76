"""Small models for the tests of lra_spt.models."""

import jax
import pytest
from flax import nnx

from lra_spt import protocol as protocols
from lra_spt.models import ExecutionSpec, HeadSpec, InputSpec, Model, ModelSpec


@pytest.fixture(autouse=True, scope='module')
def compile_fast():
  """The models are tiny: compiling them is the work of these tests, running them is nothing."""
  before = jax.config.read('jax_disable_most_optimizations')
  jax.config.update('jax_disable_most_optimizations', True)
  yield
  jax.config.update('jax_disable_most_optimizations', before)


@pytest.fixture(scope='session')
def make_model():
  """make_model(**sizes) -> Model; anything of ModelSpec, and protocol, causal, head, inputs, execution,
  seed."""

  def make(
    *, mixer=None, causal=False, protocol='clean', head=None, inputs=None, execution=None, seed=0, **sizes
  ):
    sizes = {'width': 8, 'depth': 2, 'feed_forward': 12, 'position': 'sinusoidal'} | sizes
    spec = ModelSpec(name='test', mixer=mixer or {'name': 'attention', 'heads': 2}, **sizes)
    return Model(
      spec,
      inputs or InputSpec(length=16, channels=2),
      head or HeadSpec('tokens', 3),
      causal=causal,
      protocol=protocols.get_protocol(protocol),
      execution=execution or ExecutionSpec(scan_layers=True),
      rngs=nnx.Rngs(jax.random.key(seed)),
    )

  return make


@pytest.fixture(scope='session')
def encode():
  """encode(model, inputs, lengths_B=None, key_seed=None) -> hidden states [B, L, D]; with a seed, as in
  training."""

  def run(model, inputs, lengths_B=None, key_seed=None):
    keys_B = None if key_seed is None else jax.random.split(jax.random.key(key_seed), inputs.shape[0])
    return nnx.jit(
      lambda model, x, lengths, keys: model.encoder(
        x, lengths_B=lengths, deterministic=keys is None, rngs=keys
      )
    )(model, inputs, lengths_B, keys_B)

  return run
