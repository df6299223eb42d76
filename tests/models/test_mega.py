"""MEGA: golden values of its moving average, layers and feed-forward, a float64 reference, options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import erf

from lra_spt.config.protocol import CLEAN, PAPER
from lra_spt.models import ExecutionSpec, MixerSpec, ModelSpec, ParameterGroup, make_mixer
from lra_spt.models.encoder import Block, increment
from lra_spt.models.layers import FeedForward, Norm
from lra_spt.models.mixers.mega import MovingAverage
from lra_spt.ops import laplace_attention

D = 6
SMALL = {'z': 4, 'v': 8, 'h': 3}
AVERAGE = {'rate': 'delta', 'damping': 'alpha', 'expansion': 'beta', 'projection': 'gamma'}
LAYER = {'scale': 'gamma', 'shift': 'beta', 'bias': 'rel_pos_bias.rel_pos_bias'}
for _ours, _theirs in {'value': 'v_proj', 'base': 'mx_proj', 'hidden': 'h_proj'}.items():
  LAYER |= {f'{_ours}.kernel': f'{_theirs}.weight', f'{_ours}.bias': f'{_theirs}.bias'}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
  """Makes tiles of the laplace function small, so that there are several."""
  monkeypatch.setattr(laplace_attention, '_TILE', 4)


def make(causal=False, length=14, **options):
  common = {'length': length, 'causal': causal, 'protocol': CLEAN, 'rngs': nnx.Rngs(0)}
  return make_mixer('mega', D, options=SMALL | options, **common)


class AsPublished(nnx.Module):
  """The published moving average. It differs from ours at padding, where its omega x uses the unmasked x."""

  def __init__(self, average):
    self.average = average
    average.output = lambda y_BLD, **_: y_BLD

  def __call__(self, x_BLD, *, lengths_B=None, deterministic=True, rngs=None):
    y_BLD = self.average(x_BLD, lengths_B=lengths_B)
    if lengths_B is not None:
      padding_BL = jnp.arange(x_BLD.shape[1])[None] >= lengths_B[:, None]
      y_BLD += jnp.where(padding_BL[..., None], x_BLD, 0) * self.average.skip[...][None, None]
    return jax.nn.silu(y_BLD)


class AsTrained(nnx.Module):
  """A block in training, with the published moving average."""

  def __init__(self, block):
    self.block = block
    block.mixer.moving_average = AsPublished(block.mixer.moving_average)

  def __call__(self, x_BLD, *, lengths_B=None):
    return self.block(x_BLD, lengths_B=lengths_B, deterministic=False, rngs=None)


def batch_first(values):
  """Returns the arrays, published as [L, B, D], with the batch first, and the lengths of their rows."""
  mask = values.get('padding_mask', np.zeros(0))
  lengths_B = np.int32((~mask).sum(1)) if mask.size else None
  return values | {key: values[key].swapaxes(0, 1) for key in ('x', 'y', 'dx', 'dy')}, lengths_B


def read(path, array):
  """Converts published arrays: states are [S D, h, 1], matrices (out, in)."""
  if path.split('.')[-1] in AVERAGE:
    return array.reshape(-1, D, array.shape[1])
  return array.T if path.endswith('kernel') else array


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
  'laplace_chunk4': {'prenorm': True},
  'softmax_causal': {'prenorm': True},
  'laplace_causal': {'prenorm': True},
}


@pytest.mark.parametrize('name', LAYERS)
def test_layer_is_the_published_one(name, golden, assert_golden):
  """The golden values include the sum and the norm of the block."""
  values, lengths_B = batch_first(golden(f'mega_layer_{name}'))
  chunk = 4 if name.endswith('chunk4') else 0
  mixer = SMALL | {'name': 'mega', 'function': name.split('_')[0], 'chunk': chunk}
  model = ModelSpec('mega', D, 1, mixer, **({'norm': 'layer', 'prenorm': False} | LAYERS[name]))
  # The published BatchNorm counts padding.
  spec = MixerSpec(model, 16, name.endswith('causal'), PAPER, ExecutionSpec())
  names = {f'average.kernel.{ours}': f'move.{theirs}' for ours, theirs in AVERAGE.items()}
  names |= {'average.skip': 'move.omega'}
  names = {f'block.mixer.moving_average.{ours}': theirs for ours, theirs in names.items()}
  names |= {f'block.mixer.{ours}': theirs for ours, theirs in LAYER.items()}
  norms = {'scale': {'scale': 'scalar'}}.get(model.norm, {'norm.scale': 'weight', 'norm.bias': 'bias'})
  names |= {f'block.mixer_norm.{ours}': f'norm.norm.{theirs}' for ours, theirs in norms.items()}
  names = {ours: theirs for ours, theirs in names.items() if f'param:{theirs}' in values}
  block = AsTrained(Block(spec, layer=0, rngs=nnx.Rngs(0)))
  assert_golden(block, values, names, read, lengths_B=lengths_B, backward=1e-5)


def test_rotary_bias_is_the_published_one(golden):
  values = golden('mega_bias_rotary')
  mixer = make(length=len(values['bias']), bias='rotary')
  pairs = np.array([0, 2, 1, 3])  # the published code pairs halves
  mixer.bias.set_value(jnp.concatenate([values['alpha'], values['beta']])[:, pairs])
  positions = np.arange(len(values['bias']))
  actual = mixer.bias_by_distance()[positions[None] - positions[:, None] + positions[-1]]
  np.testing.assert_allclose(actual, values['bias'], atol=1e-6 * np.abs(values['bias']).max())


class AfterSum(nnx.Module):
  """The feed-forward part of a block whose norms follow its sums."""

  def __init__(self):
    self.layer = FeedForward(D, 12, dropout=0.0, activation='silu', rngs=nnx.Rngs(0))
    self.norm = Norm('layer', D, rngs=nnx.Rngs(0))

  def __call__(self, x_BLD, *, lengths_B=None):
    return self.norm(x_BLD + self.layer(x_BLD))


def test_feed_forward_with_silu_is_the_published_one(golden, assert_golden):
  values, _ = batch_first(golden('mega_ffn_post'))
  names = {'layer.up.kernel': 'fc1.weight', 'layer.up.bias': 'fc1.bias'}
  names |= {'layer.down.kernel': 'fc2.weight', 'layer.down.bias': 'fc2.bias'}
  names |= {'norm.norm.scale': 'norm.norm.weight', 'norm.norm.bias': 'norm.norm.bias'}
  assert_golden(AfterSum(), values, names, read)


class Incremented(nnx.Module):
  """The change of the input by a block."""

  def __init__(self, mixer):
    self.mixer = mixer

  def __call__(self, x_BLD, *, lengths_B=None):
    return increment(x_BLD, self.mixer(x_BLD, lengths_B=lengths_B))


def reference(module, x_LD):
  """y in float64, by loops over positions, all of which are valid."""
  mixer, x = module.mixer, np.float64(x_LD)
  p = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(mixer, nnx.Param)))
  sigmoid = lambda a: 1 / (1 + np.exp(-a))  # noqa: E731
  silu = lambda a: a * sigmoid(a)  # noqa: E731
  kernel = p['moving_average']['kernel']
  rate = sigmoid(kernel['rate'])
  decay = 1 - rate * sigmoid(kernel['damping'])
  m = p['moving_average']['skip'] * x
  for t, s in np.ndindex(len(x), len(x)):
    for direction in range(len(rate)):
      lag = s - t if direction else t - s
      if 0 <= lag < mixer.moving_average.kernel.lags:
        weights = rate * kernel['expansion'] * kernel['projection'] * decay**lag
        m[t] += weights[direction].sum(-1) / np.sqrt(3) * x[s]
  u, z, r, c = np.split(silu(m) @ p['base']['kernel'] + p['base']['bias'], (D, D + 4, D + 12), -1)
  q, k = (silu(z) * p['scale'][i] + p['shift'][i] for i in range(2))
  v = silu(x @ p['value']['kernel'] + p['value']['bias'])
  attended = np.zeros_like(v)
  for t in range(len(x)):
    seen = [s for s in range(len(x)) if not mixer.chunk or s // mixer.chunk == t // mixer.chunk]
    seen = np.array([s for s in seen if s <= t or not mixer.causal])
    products = k[seen] @ q[t]
    if p['bias'].ndim == 1:
      bias = p['bias'][len(p['bias']) // 2 + seen - t]
    else:  # pairs as complex numbers
      alpha, beta = p['bias'].view(complex)
      bias = (np.exp(1j * np.outer(seen - t, [1, 0.01])) @ (beta * alpha.conj())).real
    if mixer.function == 'softmax':
      weights = np.exp(products / 2 + bias)
      weights /= weights.sum()
    else:
      weights = (1 + erf((products / len(seen) + bias - np.sqrt(0.5)) * np.sqrt(2 * np.pi))) / 2
    attended[t] = weights @ v[seen]
  h = silu(c + (attended * silu(r)) @ p['hidden']['kernel'] + p['hidden']['bias'])
  return sigmoid(u) * (h - x)


@pytest.mark.parametrize(
  'function, causal, chunk, truncation, bias',
  [
    ('softmax', False, 5, 6, 'simple'),
    ('softmax', True, 5, 0, 'rotary'),
    ('laplace', True, 5, 0, 'simple'),
    ('laplace', False, 0, 20, 'rotary'),
  ],
)
def test_layer_follows_its_definition(function, causal, chunk, truncation, bias, assert_follows_positions):
  """Parameters are ten times as large as initially; the last row ends in the first chunk."""
  mixer = make(causal, function=function, chunk=chunk, truncation=truncation, bias=bias)
  nnx.update(mixer, jax.tree.map(lambda value: 10 * value, nnx.state(mixer, nnx.Param)))
  assert_follows_positions(Incremented(mixer), reference, D, (14, 9, 3), 1, 2e-5)


def test_gradients_are_finite_where_no_key_is_valid():
  graphdef, state = nnx.split(Incremented(make(function='laplace', chunk=4)))
  run = lambda x: nnx.merge(graphdef, state)(x, lengths_B=jnp.int32([0, 5]))  # noqa: E731
  dx = jax.jit(jax.grad(lambda x: jnp.sum(run(x)[1, :5] ** 2)))(jnp.ones((2, 14, D)))
  assert np.isfinite(dx).all()
  assert np.any(dx[1, :5])


def test_initial_values_are_the_published_ones(declared):
  mixer = make_mixer('mega', 64, options={}, length=600, causal=False, protocol=CLEAN, rngs=nnx.Rngs(0))
  kernel = mixer.moving_average.kernel
  signs = (-1.0) ** np.arange(16)
  for values, deviation in (
    (kernel.rate, 0.2),
    (kernel.damping, 0.2),
    (kernel.expansion[...] - signs[None, None], 0.02),
    (kernel.projection, 1),
    (mixer.value.kernel, 0.02),
    (mixer.base.kernel, 0.02),
    (mixer.hidden.kernel, 0.02),
    (mixer.scale, 0.02),
    (mixer.bias, 0.02),
  ):
    np.testing.assert_allclose(np.std(values[...]), deviation, rtol=0.15)
    np.testing.assert_allclose(np.mean(values[...]), 0, atol=0.2 * deviation)
  assert not np.any(mixer.shift[...])
  assert not np.any(mixer.base.bias[...])
  actual = declared(mixer)
  assert actual['rate'] == ((2, 64, 16), True, ParameterGroup(decay=False))
  assert {name for name, (_, ssm, _) in actual.items() if ssm} == set(AVERAGE)


def test_operations():
  mixer = make(chunk=5)
  pairs = 5 * 5 * 2 + 4 * 4
  assert mixer.flops(14) == 2 * (4 + 8) * pairs + mixer.moving_average.flops(14)


def test_a_rotary_bias_needs_an_even_number():
  with pytest.raises(ValueError, match='model.mixer.z is 5, but bias=rotary'):
    make(bias='rotary', z=5)
