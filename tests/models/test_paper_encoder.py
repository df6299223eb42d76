"""The paper's encoders around their layers: embedding, positions, blocks, norms and padding of its code, in
outputs and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_spt.config.protocol import PAPER
from lra_spt.models import ExecutionSpec, InputSpec, ModelSpec
from lra_spt.models.encoder import Encoder

D, LENGTH, DEPTH = 8, 14, 2


def linear(p, name):
  return {'kernel': p[f'{name}.weight'].T, 'bias': p[f'{name}.bias']}


def norm(p, name):
  return {'norm': {'scale': p[f'{name}.norm.weight'], 'bias': p[f'{name}.norm.bias']}}


def complex_parts(**pairs):
  return {
    f'{name}_{part}': pair[..., i] for name, pair in pairs.items() for i, part in enumerate(('real', 'imag'))
  }


def around(p, name, kernel):
  """A layer with a long convolution."""
  return {
    'kernel': kernel,
    'skip': p[f'{name}.D'][0],
    'output': {'linear': linear(p, f'{name}.output_linear.0')},
  }


def s4(p, name):
  kernel = f'{name}.kernel.kernel'
  real = {key: p[f'{kernel}.{key}'] for key in ('log_dt', 'inv_w_real', 'w_imag')}
  parts = {'p': p[f'{kernel}.P'][0], 'b': p[f'{kernel}.B'][0], 'c': p[f'{kernel}.C']}
  return around(p, name, real | complex_parts(**parts))


def dlr(p, name):
  kernel = f'{name}.kernel'
  real = {'lambda_root': p[f'{kernel}.Lambda_log_neg_re'], 'lambda_imag': p[f'{kernel}.Lambda_im']}
  return around(p, name, real | complex_parts(w=p[f'{kernel}.W']))


def attention(p, name):
  names = ('query', 'key', 'value', 'out')
  return {ours: linear(p, f'{name}.linears.{i}') for i, ours in enumerate(names)}


def encoder_params(p, mixer, feed_forward):
  """Converts the published parameters, or their gradients, to those of our encoder."""

  def block(layer):
    layer *= 1 + feed_forward
    names = [f'model.layers.{layer + i}' for i in range(1 + feed_forward)]
    result = {'mixer': mixer(p, f'{names[0]}.layer'), 'mixer_norm': norm(p, f'{names[0]}.norm')}
    if feed_forward:
      up, down = (linear(p, f'{names[1]}.layer.ff.{part}') for part in ('0.0', '2'))
      result |= {'feed_forward': {'up': up, 'down': down}, 'feed_forward_norm': norm(p, f'{names[1]}.norm')}
    return result

  embed = linear(p, 'encoder') if 'encoder.bias' in p else {'embedding': p['encoder.weight']}
  blocks = jax.tree.map(lambda *leaves: np.stack(leaves), *(block(layer) for layer in range(DEPTH)))
  last = {'norm': norm(p, 'model.norm')} if 'model.norm.norm.weight' in p else {}
  return {'embed': embed, 'blocks': blocks} | last


TRANSFORMER = {'mixer': {'name': 'attention', 'heads': 2}, 'feed_forward': 2 * D, 'position': 'sinusoidal'}
S4 = {'mixer': {'name': 's4', 'state_size': 4, 'copies': 2}, 'norm': 'batch', 'prenorm': False}
DLR = {'mixer': {'name': 'dlr', 'state_size': 4}}


@pytest.mark.parametrize(
  'name, spec, mixer', [('transformer', TRANSFORMER, attention), ('s4', S4, s4), ('dlr', DLR, dlr)]
)
def test_agrees_with_the_published_code(golden, name, spec, mixer):
  values = golden(f'encoder_{name}')
  inputs = InputSpec(LENGTH, vocabulary=11) if values['x'].ndim == 2 else InputSpec(LENGTH, channels=2)
  common = {'causal': False, 'protocol': PAPER, 'execution': ExecutionSpec(), 'rngs': nnx.Rngs(0)}
  encoder = Encoder(ModelSpec(name, D, DEPTH, **spec), inputs, **common)
  given, wanted = (
    encoder_params(
      {key.removeprefix(kind): value for key, value in values.items() if key.startswith(kind)},
      mixer,
      'feed_forward' in spec,
    )
    for kind in ('param:', 'grad:')
  )
  graphdef, params, rest = nnx.split(encoder, nnx.Param, ...)
  shapes = jax.tree.map(np.shape, nnx.to_pure_dict(params))
  assert shapes == jax.tree.map(np.shape, given)

  @jax.jit
  def run(params):
    def loss(params):
      module = nnx.merge(graphdef, params, rest, copy=True)
      y_BLD = module(values['x'], lengths_B=values['lengths'], deterministic=False)
      return jnp.sum(y_BLD * values['dy']), (y_BLD, nnx.state(module, nnx.BatchStat))

    return jax.value_and_grad(loss, has_aux=True)(params)

  (_, (y_BLD, statistics)), gradients = run(given)

  # Outputs at padding do not matter, but are equal, because both codes see it.
  np.testing.assert_allclose(y_BLD, values['y'], rtol=0, atol=2e-6 * np.abs(values['y']).max())
  for (path, ours), theirs in zip(jax.tree.leaves_with_path(gradients), jax.tree.leaves(wanted), strict=True):
    what = jax.tree_util.keystr(path, simple=True, separator='/')
    scale = np.abs(theirs).max()
    if what == 'blocks/mixer/key/bias':  # 0 but for rounding
      scale = np.abs(wanted['blocks']['mixer']['query']['bias']).max()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-6 * scale, err_msg=what)

  if name == 's4':
    ours = nnx.to_pure_dict(statistics)['blocks']['mixer_norm']['norm']
    theirs = {
      kind: np.stack(
        [values[f'buffer:model.layers.{layer}.norm.norm.running_{kind}'] for layer in range(DEPTH)]
      )
      for kind in ('mean', 'var')
    }
    np.testing.assert_allclose(ours['mean'], theirs['mean'], atol=1e-6)
    count = values['x'].shape[0] * LENGTH
    # PyTorch's running variance is the unbiased one of the batch, ours its plain one.
    np.testing.assert_allclose(ours['var'] - 0.9, (theirs['var'] - 0.9) * (count - 1) / count, atol=1e-6)
