"""GPT-NeoX, the architecture of Pythia, is an encoder of ours: hidden states and gradients are those of a
published model of two layers."""

import jax
import numpy as np
import pytest
from flax import nnx

from lra_spt.config.protocol import CLEAN
from lra_spt.data import tokenizers
from lra_spt.data.parts import ByteTokens
from lra_spt.errors import CheckpointError, ConfigError
from lra_spt.models import ExecutionSpec, InputSpec, ModelSpec
from lra_spt.models.encoder import Encoder
from lra_spt.models.mixers.attention import Attention
from lra_spt.models.neox import OPERATORS, encoder_params, token_ids

SIZES = {'depth': 2, 'width': 32, 'hidden': 128, 'heads': 2, 'turned': 4}


@pytest.fixture
def published(golden):
  values = golden('gpt_neox_tiny')
  return values, {key.removeprefix('param:'): values[key] for key in values if key.startswith('param:')}


def encoder(parallel=True, turned=SIZES['turned']):
  mixer = {'name': 'attention', 'heads': SIZES['heads'], 'rotary': True, 'rotary_dimensions': turned}
  spec = ModelSpec(
    name='pythia', width=32, depth=2, mixer=mixer, feed_forward=128, parallel_residual=parallel
  )
  inputs, execution = InputSpec(length=10, vocabulary=13), ExecutionSpec()
  make = lambda: Encoder(  # noqa: E731
    spec, inputs, causal=True, protocol=CLEAN, execution=execution, rngs=nnx.Rngs(0)
  )
  return nnx.split(nnx.eval_shape(make))


def run(graphdef, abstract, params, values):
  """Hidden states, and gradients of <hidden, dy> by the parameters."""
  assert jax.tree.map(np.shape, params) == jax.tree.map(lambda x: x.shape, nnx.to_pure_dict(abstract))

  def product(params):
    state = jax.tree.map(lambda x: x, abstract)
    nnx.replace_by_pure_dict(state, params)
    hidden_BLD = nnx.merge(graphdef, state)(values['ids'].astype(np.int32))
    return (hidden_BLD * values['dy']).sum(), hidden_BLD

  return jax.jit(jax.grad(product, has_aux=True))(params)


def relative(actual, expected):
  return np.abs(actual - expected).max() / np.abs(expected).max()


def test_hidden_states_and_gradients_are_the_published_ones(published):
  values, tensors = published
  params = encoder_params(tensors, **SIZES)
  gradients, hidden_BLD = run(*encoder(), params, values)
  assert relative(hidden_BLD, values['last_hidden_state']) < 2e-6
  embedding = values['grad:gpt_neox.embed_in.weight']
  assert relative(gradients['embed']['embedding'], embedding) < 5e-6
  # The gradient of the weights of layer 0, read as the weights are.
  name = 'gpt_neox.layers.0.attention.query_key_value.weight'
  expected = encoder_params(tensors | {name: values[f'grad:{name}']}, **SIZES)['blocks']['mixer']
  for part in ('query', 'key', 'value'):
    actual = gradients['blocks']['mixer'][part]['kernel'][0]
    assert relative(actual, expected[part]['kernel'][0]) < 5e-6


@pytest.mark.parametrize('other', [{'parallel': False}, {'turned': 0}])
def test_a_sequential_residual_and_whole_rotations_are_another_model(published, other):
  values, tensors = published
  _, hidden_BLD = run(*encoder(**other), encoder_params(tensors, **SIZES), values)
  assert relative(hidden_BLD, values['last_hidden_state']) > 0.01


def test_arrays_that_are_no_parameters_are_dropped(published):
  _, tensors = published
  extra = {
    'gpt_neox.layers.1.attention.bias': np.ones((1, 1, 4, 4), bool),
    'gpt_neox.layers.1.attention.masked_bias': np.float16(-1e4),
    'gpt_neox.layers.0.attention.rotary_emb.inv_freq': np.ones(2, np.float16),
    'embed_out.weight': np.ones((13, 32), np.float16),
  }
  expected, actual = encoder_params(tensors, **SIZES), encoder_params(tensors | extra, **SIZES)
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


DENSE = 'gpt_neox.layers.1.attention.dense.bias'


@pytest.mark.parametrize(
  'change, message',
  [
    ({DENSE: None}, f'no tensor {DENSE}'),
    ({DENSE: np.ones(31)}, rf'{DENSE} is \(31,\), not \(32,\)'),
    ({'gpt_neox.embed_in.weight': np.ones((13, 31))}, r'embed_in.weight is \(13, 31\), not \(13, 32\)'),
    (
      {'gpt_neox.layers.2.mlp.up': np.ones(3)},
      'have a tensor gpt_neox.layers.2.mlp.up, which the model lacks',
    ),
  ],
)
def test_other_tensors_are_named(published, change, message):
  _, tensors = published
  tensors = {name: array for name, array in (tensors | change).items() if array is not None}
  with pytest.raises(CheckpointError, match=message):
    encoder_params(tensors, **SIZES)


@pytest.mark.parametrize('turned', [3, 18])
def test_rotary_dimensions_are_even_and_of_a_head(turned):
  with pytest.raises(ConfigError, match=f'rotary_dimensions is {turned}; choose an even number up to the 16'):
    encoder(turned=turned)


def test_rotary_dimensions_need_rotary_positions():
  with pytest.raises(ConfigError, match=r'rotary_dimensions is 4 without model\.mixer\.rotary; set it'):
    Attention(16, length=8, causal=False, protocol=CLEAN, rngs=nnx.Rngs(0), heads=2, rotary_dimensions=4)


def test_a_parallel_residual_needs_both_layers_and_norms_before_them():
  with pytest.raises(
    ConfigError,
    match='parallel_residual is true, which needs feed-forward layers and norms before the layers',
  ):
    ModelSpec(name='x', width=4, depth=1, mixer={'name': 'none'}, parallel_residual=True)
  with pytest.raises(ConfigError, match='gated_feed_forward is true, but there is no feed-forward layer'):
    ModelSpec(name='x', width=4, depth=1, mixer={'name': 'none'}, gated_feed_forward=True)


def test_ids_are_those_of_the_tokenizer(golden):
  published = golden('neox_token_ids')
  bytes_256 = token_ids([chr(code) for code in range(256)])
  np.testing.assert_array_equal(bytes_256, np.maximum(published['latin1_0_255'], 0))
  np.testing.assert_array_equal(token_ids(list('0123456789')), published['listops_digits'])
  np.testing.assert_array_equal(token_ids(['X']), published['listops_X'])
  np.testing.assert_array_equal(token_ids(ByteTokens(1).names)[:256], published['decimal_0_255'])


def test_a_byte_is_its_number_in_decimal():
  """Digits are the characters that they are; no two bytes share a token, and `<mask>` has one of its own."""
  ids = token_ids(ByteTokens(1).names)
  assert ids[[0, 9, 10, 99, 100, 255, 256]].tolist() == [17, 26, 740, 1525, 2313, 10637, 50277]
  assert len(set(ids.tolist())) == len(ids) == ByteTokens(1).vocabulary == 257


def test_special_tokens_and_operators():
  """`<mask>` has a row that no token has there; operators are the letters that the published code takes."""
  assert token_ids(tokenizers.SPECIAL_TOKENS).tolist() == [50277, 1, 0, 0]
  ids = token_ids(tokenizers.LISTOPS_TOKENS)
  assert len(set(ids.tolist())) == len(tokenizers.LISTOPS_TOKENS)
  assert token_ids(list(OPERATORS)).tolist() == [34, 35, 36, 37]
  assert token_ids(['a', ' ', '\n', '\u00e9', '\u2019']).tolist() == [66, 209, 187, 860, 457]


def test_a_character_of_several_tokens_is_unknown():
  assert token_ids(['\u00c0', '\u4e00', '<unk>']).tolist() == [0, 0, 0]
