"""The encoder of the Long Range Arena's code, around its Linear Transformer, is our encoder with other
constants and one more token in front, whose state the head reads."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_spt.config.protocol import CLEAN
from lra_spt.models import ExecutionSpec, HeadSpec, InputSpec, ModelSpec, layers
from lra_spt.models.encoder import Encoder
from lra_spt.models.heads import Head

D, VOCABULARY = 16, 11
BLOCK = {
  'mixer_norm/norm': 'LayerNorm',
  'feed_forward_norm/norm': 'LayerNorm_1',
  'mixer': 'LinearAttention',
  'feed_forward/up': 'MlpBlock/Dense',
  'feed_forward/down': 'MlpBlock/Dense_1',
}


def encoder_params(published):
  """{path: array} of our encoder; its last token is the one that the published code adds in front."""
  token_1D = published['cls'].reshape(1, D)
  params = {'embed/embedding': np.concatenate([published['Embed/embedding'], token_1D])}
  for ours, theirs in BLOCK.items():
    prefix = f'encoderblock_0/{theirs}/'
    for name in (name for name in published if name.startswith(prefix)):
      layers = np.stack([published[name.replace('_0/', f'_{layer}/', 1)] for layer in range(2)])
      if ours == 'mixer':
        shape = (2, -1, D) if 'out' in name else (2, D, -1)
        layers = layers.reshape(shape)
      params[f'blocks/{ours}/{name.removeprefix(prefix)}'] = layers
  return params | {f'norm/norm/{kind}': published[f'encoder_norm/{kind}'] for kind in ('scale', 'bias')}


def fill(module, params):
  flat = dict(nnx.to_flat_state(nnx.state(module, nnx.Param)))
  assert {'/'.join(path) for path in flat} == set(params)
  for path, leaf in flat.items():
    leaf.set_value(jnp.asarray(params['/'.join(path)]))


def test_logits_are_the_published_ones(golden, monkeypatch):
  values = golden('lra_encoder_linear')
  prefix = 'param:enc/'
  published = {key.removeprefix(prefix): values[key] for key in values if key.startswith(prefix)}
  monkeypatch.setitem(layers.ACTIVATIONS, 'gelu', functools.partial(jax.nn.gelu, approximate=True))
  mixer = {'name': 'linear_transformer', 'heads': 2, 'head_dim': 4}
  spec = ModelSpec('linear', D, 2, mixer, feed_forward=24, position='sinusoidal')
  common = {'causal': False, 'protocol': CLEAN, 'execution': ExecutionSpec(), 'rngs': nnx.Rngs(0)}
  encoder = Encoder(spec, InputSpec(length=13, vocabulary=VOCABULARY + 1), **common)
  fill(encoder, encoder_params(published))
  for norm in (encoder.norm, encoder.blocks.mixer_norm, encoder.blocks.feed_forward_norm):
    norm.norm.epsilon = 1e-6
  head = Head(HeadSpec('mlp', 3), D, rngs=nnx.Rngs(0))
  pairs = [('hidden', 'mlp'), ('out', 'logits')]  # the published head has a hidden width of 24
  kinds = ('kernel', 'bias')
  fill(head, {f'{ours}/{kind}': published[f'{theirs}/{kind}'] for ours, theirs in pairs for kind in kinds})

  tokens = np.pad(values['tokens'], ((0, 0), (1, 0)), constant_values=VOCABULARY)
  logits = head(encoder(tokens)[:, :1])
  np.testing.assert_allclose(logits, values['logits'], rtol=0, atol=2e-6 * np.abs(values['logits']).max())
