"""MEGA: golden values of its moving average, layers and feed-forward, a float64 reference, options."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import erf

from lra_spt.models import ExecutionSpec, MixerSpec, ModelSpec, make_mixer
from lra_spt.models.encoder import Block, increment
from lra_spt.models.layers import FeedForward
from lra_spt.models.mixers.mega import MovingAverage
from lra_spt.protocol import CLEAN, PAPER

D = 6
SMALL = {'z': 4, 'v': 8, 'h': 3}
AVERAGE = {'rate': 'delta', 'damping': 'alpha', 'expansion': 'beta', 'projection': 'gamma'}
LAYER = {'value': 'v_proj', 'base': 'mx_proj', 'hidden': 'h_proj'}


def make(causal=False, length=14, **options):
  common = {'length': length, 'causal': causal, 'protocol': CLEAN, 'rngs': nnx.Rngs(0)}
  return make_mixer('mega', D, options=SMALL | options, **common)


class AsPublished(nnx.Module):
  """The moving average, of which ours differs at padding, where omega x is that of the unmasked x there."""

  def __init__(self, average):
    self.average = average
    average.output = lambda y_BLD, **_: y_BLD

  def __call__(self, x_BLD, *, lengths_B=None, deterministic=True, rngs=None):
    y_BLD = self.average(x_BLD, lengths_B=lengths_B)
    if lengths_B is not None:
      padding_BL = jnp.arange(x_BLD.shape[1])[None] >= lengths_B[:, None]
      y_BLD += jnp.where(padding_BL[..., None], x_BLD, 0) * self.average.skip[...][None, None]
    return jax.nn.silu(y_BLD)


class Whole(nnx.Module):
  """A block as in training."""

  def __init__(self, block):
    self.block = block
    block.mixer.moving_average = AsPublished(block.mixer.moving_average)

  def __call__(self, x_BLD, *, lengths_B=None):
    return self.block(x_BLD, lengths_B=lengths_B, deterministic=False, rngs=None)


def batch_first(values):
  """Theirs are [L, B, D]; and the lengths of their rows."""
  mask = values.get('padding_mask', np.zeros(0))
  lengths_B = np.int32((~mask).sum(1)) if mask.size else None
  return values | {key: values[key].swapaxes(0, 1) for key in ('x', 'y', 'dx', 'dy')}, lengths_B


def read(path, array):
  """Their states are [S D, h, 1], their matrices (out, in)."""
  if path.split('.')[-1] in AVERAGE:
    return array.reshape(-1, D, array.shape[1])
  return array.T if path.endswith('kernel') else array[None] if path == 'block.bias' else array


@pytest.mark.parametrize('form', ['causal', 'bi', 'bi_truncated'])
def test_moving_average_is_the_published_one(form, golden, assert_golden):
  values, lengths_B = batch_first(golden(f'mega_ema_{form}'))
  common = {'length': 11, 'causal': form == 'causal', 'protocol': CLEAN, 'rngs': nnx.Rngs(0)}
  average = MovingAverage(D, h=4, truncation=int(values.get('truncation', 0)), **common)
  names = {f'average.kernel.{ours}': theirs for ours, theirs in AVERAGE.items()}
  names['average.skip'] = 'omega'
  assert_golden(AsPublished(average), values, names, read, lengths_B=lengths_B)


LAYERS = {
  'softmax_layernorm_post': {},
  'softmax_scalenorm_post': {'norm': 'scale'},
  'laplace_batchnorm_pre': {'norm': 'batch', 'prenorm': True},
  'laplace_chunk4': {'chunk': 4, 'norm': 'none'},
  'softmax_causal': {'prenorm': True},
  'laplace_causal': {'prenorm': True},
}


@pytest.mark.parametrize('name', LAYERS)
def test_layer_is_the_published_one(name, golden, assert_golden):
  """With the sum and the norm that its block makes."""
  values, lengths_B = batch_first(golden(f'mega_layer_{name}'))
  sizes = {'norm': 'layer', 'prenorm': False} | LAYERS[name]
  mixer = SMALL | {'name': 'mega', 'function': name.split('_')[0], 'chunk': sizes.pop('chunk', 0)}
  normless = sizes['norm'] == 'none'
  if normless:
    sizes['norm'] = 'layer'
  spec = MixerSpec(
    ModelSpec(name='mega', width=D, depth=1, mixer=mixer, **sizes),
    16 if not mixer['chunk'] else 12,
    name.endswith('causal'),
    PAPER,  # BatchNorm over padding
    ExecutionSpec(),
  )
  block = Block(spec, layer=0, rngs=nnx.Rngs(0))
  if normless:
    block.mixer_norm = lambda x, **_: x
  inside = 'block.mixer.moving_average.average'
  names = {f'{inside}.kernel.{ours}': f'move.{theirs}' for ours, theirs in AVERAGE.items()}
  names |= {f'{inside}.skip': 'move.omega', 'block.mixer.bias': 'rel_pos_bias.rel_pos_bias'}
  names |= {'block.mixer.scale': 'gamma', 'block.mixer.shift': 'beta'}
  for ours, theirs in LAYER.items():
    for part, published in {'kernel': 'weight', 'bias': 'bias'}.items():
      names[f'block.mixer.{ours}.{part}'] = f'{theirs}.{published}'
  if sizes['norm'] == 'scale':
    names['block.mixer_norm.scale'] = 'norm.norm.scalar'
  elif not normless:
    names |= {
      f'block.mixer_norm.norm.{a}': f'norm.norm.{b}' for a, b in (('scale', 'weight'), ('bias', 'bias'))
    }
  assert_golden(Whole(block), values, names, read, lengths_B=lengths_B, backward=1e-5)
