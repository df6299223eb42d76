"""Finetuning loads every leaf that it should: hidden states agree before and after."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.distributed import sharding
from lra_spt.errors import CheckpointError
from lra_spt.training.checkpoints.transfer import transfer


@pytest.fixture(scope='module')
def mesh():
  return sharding.make_mesh(devices=jax.devices()[:1])


def hidden(built, state, inputs, lengths_B=None):
  return jax.jit(lambda params, stats, x: built.model.merge(params, stats).encoder(x, lengths_B=lengths_B))(
    state['params'], state['stats'], inputs
  )


@pytest.mark.parametrize(
  'task, regime, norm',
  [
    ('scifar', 'masked', 'batch'),
    pytest.param('image', 'causal', 'layer', marks=pytest.mark.slow),
    pytest.param('listops', 'masked', 'layer', marks=pytest.mark.slow),
  ],
)
def test_hidden_states_agree_before_and_after(tiny, make_batches, mesh, task, regime, norm):
  spec, options = f'{task}.py:regime={regime}', {'model.norm': norm}
  pretrain, finetune = tiny(spec, 'pretrain', **options), tiny(spec, 'finetune', **options)
  batches = make_batches(pretrain.built.task, 2, 4, 10)
  trained, _ = pretrain.train(batches)
  flag = pretrain.built.objective.channels != finetune.built.objective.channels
  assert flag == (regime == 'masked' and task != 'listops')
  with jax.set_mesh(mesh):
    fresh = finetune.state(mesh, seed=5)
    moved = transfer(trained, fresh, drop_flag_input=flag)
    prepared = finetune.built.objective.prepare({name: x[0] for name, x in batches.items()}, None)
    inputs, lengths_B = prepared.inputs, prepared.lengths_B
    with_flag = jnp.concatenate([inputs, jnp.zeros_like(inputs[..., :1])], -1) if flag else inputs
    before = hidden(pretrain.built, trained, with_flag, lengths_B)
    after = hidden(finetune.built, moved, inputs, lengths_B)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
    assert not np.allclose(after, hidden(finetune.built, fresh, inputs, lengths_B), atol=1e-2)
  if flag:
    kernel = trained['params']['encoder']['embed']['kernel']
    np.testing.assert_array_equal(moved['params']['encoder']['embed']['kernel'], kernel[:-1])
    assert np.abs(kernel[-1]).max() > 0
  if norm == 'batch':
    assert jax.tree.leaves(trained['stats'])
    jax.tree.map(np.testing.assert_array_equal, moved['stats'], trained['stats'])
  # The head, the optimizer and the counters are fresh.
  for part in ('opt', 'control', 'step'):
    jax.tree.map(np.testing.assert_array_equal, moved[part], fresh[part])
  jax.tree.map(np.testing.assert_array_equal, moved['params']['head'], fresh['params']['head'])
  assert jax.tree.structure(moved) == jax.tree.structure(fresh)
  assert jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), moved) == jax.tree.map(
    lambda x: (x.shape, x.dtype, x.sharding), fresh
  )


def test_every_leaf_is_accounted_for(tiny, mesh):
  stage = tiny('scifar.py:regime=causal', 'finetune', **{'model.norm': 'batch'})
  with jax.set_mesh(mesh):
    fresh = stage.state(mesh)

  def broken(where, change):
    source = copy.copy(jax.tree.map(lambda x: x, {key: fresh[key] for key in ('params', 'stats')}))
    node = source
    for part in where[:-1]:
      node = node[part]
    change(node, where[-1])
    return source

  query = ('params', 'encoder', 'blocks', 'mixer', 'query', 'kernel')
  mean = ('stats', 'encoder', 'blocks', 'mixer_norm', 'norm', 'mean')
  cases = [
    (query, lambda node, key: node.pop(key), 'has no params/encoder/blocks/mixer/query/kernel'),
    (query, lambda node, key: node.update(extra=jnp.ones(2)), 'has params/encoder/blocks/mixer/query/extra'),
    (
      query,
      lambda node, key: node.update({key: node[key][:, :, :-1]}),
      r'mixer/query/kernel is float32 \[2, 16, 15\] there and float32 \[2, 16, 16\]',
    ),
    (mean, lambda node, key: node.pop(key), 'has no stats/encoder/blocks/mixer_norm/norm/mean'),
    (('stats', 'encoder'), lambda node, key: node.pop(key), 'has no stats/encoder/blocks'),
  ]
  for where, change, sentence in cases:
    with pytest.raises(CheckpointError, match=sentence):
      transfer(broken(where, change), fresh, drop_flag_input=False)
  # There is no flag here, so leaving out a row of the kernel would lose a channel.
  with pytest.raises(CheckpointError, match=r'embed/kernel is float32 \[2, 16\] there and float32 \[3, 16\]'):
    transfer(broken(query, lambda node, key: None), fresh, drop_flag_input=True)
