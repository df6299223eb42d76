"""The encoder: execution changes no result, visible positions, initial values, refused options."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config.protocol import CLEAN
from lra_spt.models import ExecutionSpec, InputSpec, MixerSpec, ModelSpec, layers, register_mixer
from lra_spt.models import execution as execution_module
from lra_spt.models.encoder import Block, Encoder
from lra_spt.models.layers import sinusoidal_positions
from lra_spt.models.mixers import attention as attention_module
from lra_spt.ops.rotary import rotary

# (scan_layers, remat); the others are compared with the first.
FIRST = ('always', '')
OTHERS = [('never', ''), ('always', 'blocks'), ('never', 'mixers'), ('always', 'elementwise')]
OTHERS += [
  pytest.param(*more, marks=pytest.mark.slow) for more in (('always', 'dots'), ('never', 'elementwise'))
]
CLOSE = {'rtol': 2e-5, 'atol': 2e-5}


def normal(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def params_of(model):
  return nnx.to_pure_dict(nnx.state(model, nnx.Param))


@pytest.fixture(scope='module')
def trained_by_each_execution(make_model):
  """trained(scan_layers, remat) -> (outputs, gradients, statistics, params) of one training pass with dropout
  and BatchNorm."""
  x, lengths = normal(0, 3, 7, 2), jnp.array([7, 4, 5], jnp.int32)
  keys = jax.random.split(jax.random.key(1), 3)

  @functools.cache
  def trained(scan_layers, remat):
    model = make_model(
      norm='batch', dropout=0.2, execution=ExecutionSpec(scan_layers=scan_layers, remat=remat), depth=3
    )
    graphdef, params, stats = nnx.split(model, nnx.Param, ...)
    params, stats = nnx.to_pure_dict(params), nnx.to_pure_dict(stats)

    def loss(params, graphdef=graphdef, stats=stats):
      model = nnx.merge(graphdef, params, stats)
      outputs = model(x, lengths_B=lengths, deterministic=False, rngs=keys)
      return jnp.sum(outputs**2), (outputs, nnx.to_pure_dict(nnx.state(model, nnx.Not(nnx.Param))))

    (_, (outputs, new_stats)), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return outputs, grads, new_stats, params

  return trained


@pytest.mark.parametrize(
  'platform, training, evaluation', [('cpu', True, True), ('tpu', True, True), ('gpu', False, True)]
)
def test_layers_are_a_loop_but_for_training_on_gpus(monkeypatch, make_model, platform, training, evaluation):
  monkeypatch.setattr(execution_module, 'platform', lambda: platform)
  for execution, loops in (
    (ExecutionSpec(), {False: training, True: evaluation}),
    (ExecutionSpec(scan_layers='always'), {False: True, True: True}),
    (ExecutionSpec(scan_layers='never'), {False: False, True: False}),
  ):
    model = make_model(execution=execution, norm='scale', depth=5)
    keys = jax.random.split(jax.random.key(1), 3)
    for deterministic, loop in loops.items():
      run = functools.partial(model, deterministic=deterministic, rngs=keys)
      equations = jax.make_jaxpr(run)(normal(0, 3, 7, 2)).eqns
      lengths = [one.params['length'] for one in equations if one.primitive.name == 'scan']
      assert (5 in lengths) is loop


@pytest.mark.parametrize('scan_layers, remat', OTHERS)
def test_scan_and_remat_change_nothing(trained_by_each_execution, scan_layers, remat):
  first, other = (trained_by_each_execution(*key) for key in (FIRST, (scan_layers, remat)))
  assert jax.tree.structure(first) == jax.tree.structure(other)
  for (path, a), (_, b) in zip(*map(jax.tree_util.tree_leaves_with_path, (first, other)), strict=True):
    assert a.shape == b.shape, path
    np.testing.assert_allclose(a, b, err_msg=str(path), rtol=1e-4, atol=1e-4)
  same = jax.tree.map(np.array_equal, first[3], other[3])
  assert all(jax.tree.leaves(same)), 'the initial values differ'


def test_every_statistic_moved(trained_by_each_execution):
  stats = trained_by_each_execution(*FIRST)[2]['encoder']
  assert stats['blocks']['mixer_norm']['norm']['mean'].shape == (3, 8)
  assert all(np.abs(leaf - 1).min() > 1e-6 for leaf in jax.tree.leaves(stats))
  assert all(np.abs(leaf).min() > 0 for leaf in jax.tree.leaves(stats))


def test_blocks_are_stacked_and_start_differently(make_model):
  params = params_of(make_model(depth=3))['encoder']['blocks']
  assert all(leaf.shape[0] == 3 for leaf in jax.tree.leaves(params))
  kernels = np.asarray(params['mixer']['query']['kernel'])
  assert not np.array_equal(kernels[0], kernels[1])
  for name, fan_in in (('up', 8), ('down', 12)):
    bound = 1 / math.sqrt(fan_in)
    for leaf in jax.tree.leaves(params['feed_forward'][name]):
      assert 0.8 * bound < np.abs(leaf).max() <= bound


@pytest.mark.parametrize('protocol', ['clean', 'paper'])
def test_tied_projections_start_alike_only_as_published(make_model, protocol):
  mixer = params_of(make_model(protocol=protocol))['encoder']['blocks']['mixer']
  for name in ('key', 'value', 'out'):
    for leaf in ('kernel', 'bias'):
      equal = np.array_equal(mixer['query'][leaf], mixer[name][leaf])
      assert equal == (protocol == 'paper'), (name, leaf)
  layers = np.asarray(mixer['query']['kernel'])
  assert not np.array_equal(layers[0], layers[1])


def test_token_embedding_starts_standard_normal(make_model):
  table = np.asarray(
    params_of(make_model(inputs=InputSpec(8, vocabulary=300)))['encoder']['embed']['embedding']
  )
  assert table.shape == (300, 8)
  np.testing.assert_allclose([table.mean(), table.std()], [0, 1], atol=0.06)


def test_final_norm_belongs_to_prenorm_only(make_model, encode):
  x = normal(2, 2, 5, 2)
  pre, post = make_model(prenorm=True), make_model(prenorm=False)
  assert 'norm' in params_of(pre)['encoder']
  assert 'norm' not in params_of(post)['encoder']
  # Both end in a LayerNorm with gain 1 and bias 0: the final one, or for postnorm that of the last block.
  for model in (pre, post):
    h = np.asarray(encode(model, x))
    np.testing.assert_allclose(h.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(h.std(-1), 1, atol=1e-3)
  assert not np.allclose(encode(pre, x), encode(post, x), atol=1e-2)


@pytest.mark.parametrize('prenorm', [True, False])
def test_one_block_is_the_residual_formula(make_model, encode, prenorm):
  model, x = make_model(depth=1, prenorm=prenorm, position='none'), normal(3, 2, 5, 2)
  encoder = model.encoder
  graphdef, state = nnx.split(encoder.blocks)
  block = nnx.merge(graphdef, jax.tree.map(lambda leaf: leaf[0], state))
  h = encoder.embed(x)
  if prenorm:
    h = h + block.mixer(block.mixer_norm(h))
    h = encoder.norm(h + block.feed_forward(block.feed_forward_norm(h)))
  else:
    h = block.mixer_norm(h + block.mixer(h))
    h = block.feed_forward_norm(h + block.feed_forward(h))
  np.testing.assert_allclose(encode(model, x), h, **CLOSE)


def test_batch_norm_in_the_encoder_leaves_padding_out_only_when_clean(make_model, encode):
  x, lengths = normal(4, 3, 6, 2), jnp.array([6, 2, 4], jnp.int32)
  valid = np.arange(6)[None] < np.asarray(lengths)[:, None]
  other = jnp.where(valid[..., None], x, 100 + normal(5, 3, 6, 2))
  for protocol in ('clean', 'paper'):
    answers = []
    for inputs in (x, other):
      model = make_model(norm='batch', protocol=protocol)
      h = encode(model, inputs, lengths, key_seed=0)  # updates the statistics of `model`
      stats = nnx.to_pure_dict(nnx.state(model, nnx.Not(nnx.Param)))
      answers.append((np.asarray(h)[valid], *jax.tree.leaves(stats)))
    same = [np.allclose(a, b, **CLOSE) for a, b in zip(*answers, strict=True)]
    assert all(same) if protocol == 'clean' else not any(same)


@pytest.mark.parametrize('mixer', [{'heads': 2}, {'heads': 2, 'rotary': True}])
@pytest.mark.parametrize('causal', [False, True])
def test_padding_reaches_valid_positions_only_as_published(make_model, encode, mixer, causal):
  x, lengths = normal(6, 2, 6, 2), jnp.array([3, 5], jnp.int32)
  valid = np.arange(6)[None] < np.asarray(lengths)[:, None]
  other = jnp.where(valid[..., None], x, -x + 3)
  for protocol in ('clean', 'paper'):
    model = make_model(mixer={'name': 'attention', **mixer}, causal=causal, protocol=protocol)
    a, b = (np.asarray(encode(model, inputs, lengths))[valid] for inputs in (x, other))
    reaches = not np.allclose(a, b, atol=1e-5)
    assert reaches == (protocol == 'paper' and not causal)
    if protocol == 'clean':
      cut = np.asarray(encode(model, x[:1, :3]))[0]
      np.testing.assert_allclose(a[:3], cut, **CLOSE)


def test_rotary_model_depends_on_distances_alone(make_model, encode, monkeypatch):
  x = normal(8, 2, 7, 2)
  model = make_model(mixer={'name': 'attention', 'heads': 2, 'rotary': True}, position='none')
  here = encode(model, x)
  with monkeypatch.context() as patched:
    patched.setattr(attention_module, 'rotary', functools.partial(rotary, offset=1234))
    there = encode(model, x)
    patched.setattr(attention_module, 'rotary', lambda x_BLHK, **_: x_BLHK)
    without = encode(model, x)
  np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-4)
  assert not np.allclose(here, without, atol=1e-3)
  # Order matters with rotary positions, and does not matter without positions.
  plain = make_model(position='none')
  np.testing.assert_allclose(encode(plain, x[:, ::-1])[:, ::-1], encode(plain, x), **CLOSE)
  assert not np.allclose(encode(model, x[:, ::-1])[:, ::-1], here, atol=1e-3)


def test_positions_are_added_to_the_embedding(make_model, encode):
  x = normal(9, 2, 5, 2)
  sinusoidal, none = (make_model(position=kind) for kind in ('sinusoidal', 'none'))
  learned = make_model(position='learned')
  table = params_of(learned)['encoder']['position']
  assert table.shape == (16, 8)
  np.testing.assert_allclose(np.std(table), 0.02, rtol=0.3)
  assert not np.allclose(encode(sinusoidal, x), encode(none, x), atol=1e-3)
  # With the sinusoid as its table, the learned position is the sinusoidal one.
  for part in ('embed', 'blocks', 'norm'):
    nnx.update(getattr(learned.encoder, part), nnx.state(getattr(sinusoidal.encoder, part)))
  learned.encoder.position[...] = jnp.asarray(sinusoidal_positions(16, 8))
  np.testing.assert_allclose(encode(learned, x), encode(sinusoidal, x), **CLOSE)


def test_bfloat16_is_close_and_keeps_float32_outside(make_model, encode):
  x = normal(10, 2, 5, 2)
  exact, rough = (make_model(execution=ExecutionSpec(precision=p)) for p in ('float32', 'bfloat16'))
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params_of(rough)))
  a, b = encode(exact, x), encode(rough, x)
  assert a.dtype == b.dtype == jnp.float32
  np.testing.assert_allclose(a, b, atol=0.1)
  assert not np.array_equal(a, b)


def test_dropout_acts_in_training_only_and_by_row(make_model, encode):
  model, x = make_model(dropout=0.3), normal(11, 2, 5, 2)
  assert np.array_equal(encode(model, x), encode(model, x))
  a, b = encode(model, x, key_seed=0), encode(model, x, key_seed=1)
  assert np.array_equal(a, encode(model, x, key_seed=0))
  assert not np.allclose(a, b, atol=1e-3)
  assert not np.allclose(a, encode(model, x), atol=1e-3)


def test_places_of_dropout(make_model, encode, monkeypatch):
  """Dropout acts after embedding and positions, after the mixer, and within and after the feed-forward
  layer."""

  def rates(**spec):
    called, plain = [], layers.Dropout.__call__

    def noted(self, x_BLD, **options):
      called.append(self.rate)
      return plain(self, x_BLD, **options)

    with monkeypatch.context() as patch:
      patch.setattr(layers.Dropout, '__call__', noted)
      spec = {'depth': 1, 'mixer': {'name': 'none'}, 'position': 'none'} | spec
      encode(make_model(**spec), normal(11, 2, 5, 2), key_seed=0)
    return called

  assert rates(dropout=0.3) == [0.0, 0.3, 0.3, 0.3]
  assert rates(dropout=0.3, position='sinusoidal') == [0.3] * 4
  assert rates(dropout=0.3, input_dropout=0.1, feed_forward_dropout=0.0) == [0.1, 0.3, 0.0, 0.3]
  assert rates(dropout=0.3, position='sinusoidal', input_dropout=0.0) == [0.0, 0.3, 0.3, 0.3]


def test_wrong_options_of_a_model_are_refused(make_model):
  with pytest.raises(ValueError, match='input has 17 positions, but this model was built for at most 16'):
    make_model()(jnp.zeros((1, 17, 2)))
  with pytest.raises(ValueError, match='model.width is 8, which model.mixer.heads=3 does not divide'):
    make_model(mixer={'name': 'attention', 'heads': 3})
  with pytest.raises(ValueError, match='model.mixer.heads=0'):
    make_model(mixer={'name': 'attention', 'heads': 0})
  with pytest.raises(ValueError, match='even head dimension, but model.width / heads is 1'):
    make_model(mixer={'name': 'attention', 'heads': 8, 'rotary': True})


def test_flops_count_matrices_once_per_position(make_model):
  model = make_model(depth=2)
  length, width, hidden = 16, 8, 12
  per_block = 4 * width * width + 2 * width * hidden
  expected = 2 * length * (2 * width + 2 * per_block + width * 3) + 2 * 4 * length**2 * width
  assert model.flops(length) == expected


@pytest.mark.parametrize('name, norm, count', [('s4', 'batch', 595_968), ('dlr', 'layer', 4_477_952)])
def test_published_listops_encoders_have_as_many_parameters(name, norm, count):
  sizes = {'width': 128, 'depth': 8, 'feed_forward': 0, 'norm': norm, 'position': 'none'}
  spec, inputs = ModelSpec(name, mixer={'name': name}, **sizes), InputSpec(length=2048, vocabulary=20)
  common = {'causal': False, 'protocol': CLEAN, 'execution': ExecutionSpec(scan_layers='always')}
  encoder = nnx.eval_shape(lambda: Encoder(spec, inputs, **common, rngs=nnx.Rngs(0)))
  assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(encoder.blocks, nnx.Param))) == count


@register_mixer('gates_by_a_quarter')
class GatesByAQuarter(nnx.Module):
  """Returns 3 and a gate of 1/4."""

  gates_residual = True

  def __init__(self, width, *, length, causal, protocol, rngs):
    self.causal = causal

  def __call__(self, x_BLD, *, lengths_B=None, deterministic=True, rngs=None):
    return jnp.full_like(x_BLD, 3), jnp.full_like(x_BLD, 0.25)


@pytest.mark.parametrize('prenorm', [True, False])
def test_a_gated_residual_starts_from_the_input_before_any_norm(prenorm):
  """Dropout acts on the output of the mixer, not on its gate."""
  model = ModelSpec('gated', 8, 1, {'name': 'gates_by_a_quarter'}, prenorm=prenorm, dropout=0.5)
  block = Block(MixerSpec(model, 6, False, CLEAN, ExecutionSpec()), layer=0, rngs=nnx.Rngs(0))
  if not prenorm:
    block.mixer_norm = lambda x_BLD, **_: x_BLD
  x, keys = normal(9, 2, 6, 8), jax.random.split(jax.random.key(0), 2)
  y = block(x, lengths_B=None, deterministic=False, rngs=keys)
  assert set(np.unique(np.round(np.float64(y - 0.75 * x), 4))) == {0, 1.5}
