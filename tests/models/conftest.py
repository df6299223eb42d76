"""Small models for the tests of lra_spt.models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import erf

from lra_spt.config import protocol as protocols
from lra_spt.models import ExecutionSpec, HeadSpec, InputSpec, Model, ModelSpec, redraw


@pytest.fixture(autouse=True, scope='module')
def compile_fast():
  """These tests compile tiny models, which takes much longer than running them."""
  before = jax.config.read('jax_disable_most_optimizations')
  jax.config.update('jax_disable_most_optimizations', True)
  yield
  jax.config.update('jax_disable_most_optimizations', before)


@pytest.fixture(scope='session')
def make_model():
  """make_model(**options) -> Model; options are fields of ModelSpec, and protocol, causal, head, inputs,
  execution and seed."""

  def make(
    *, mixer=None, causal=False, protocol='clean', head=None, inputs=None, execution=None, seed=0, **sizes
  ):
    sizes = {'width': 8, 'depth': 2, 'feed_forward': 12, 'position': 'sinusoidal'} | sizes
    mixer = {} if 'mixers' in sizes else mixer or {'name': 'attention', 'heads': 2}
    spec = ModelSpec(name='test', mixer=mixer, **sizes)
    return Model(
      spec,
      inputs or InputSpec(length=16, channels=2),
      head or HeadSpec('tokens', 3),
      causal=causal,
      protocol=protocols.get_protocol(protocol),
      execution=execution or ExecutionSpec(scan_layers='always'),
      rngs=nnx.Rngs(jax.random.key(seed)),
    )

  return make


@pytest.fixture(scope='session')
def encode():
  """encode(model, inputs, lengths_B=None, key_seed=None) -> hidden states [B, L, D], with a seed those of
  training."""

  def run(model, inputs, lengths_B=None, key_seed=None):
    keys_B = None if key_seed is None else jax.random.split(jax.random.key(key_seed), inputs.shape[0])
    return nnx.jit(
      lambda model, x, lengths, keys: model.encoder(
        x, lengths_B=lengths, deterministic=keys is None, rngs=keys
      )
    )(model, inputs, lengths_B, keys_B)

  return run


@pytest.fixture(scope='session')
def convolution_layer():
  """layer(mixer, k_SDL, x_BLD, lengths=None) -> the output of a LongConvolution with this kernel, in float64.

  It loops over positions: lag 0 belongs to the past, the future starts at lag 1.
  """

  def layer(mixer, k_SDL, x_BLD, lengths=None):
    B, L, _ = x_BLD.shape
    lengths = [L] * B if lengths is None else lengths
    linear = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(mixer.output)))['linear']
    result = np.zeros(x_BLD.shape)
    gated = linear['bias'].size > x_BLD.shape[2]
    for row in range(B):
      u = np.tile(np.float64(x_BLD[row]), mixer.kernels)
      u[lengths[row] :] = 0
      for t in range(L):
        y = np.float64(mixer.skip[...]) * u[t]
        for s in range(L):
          if s <= t:
            y += k_SDL[0, :, t - s] * u[s]
          elif not mixer.causal:
            y += k_SDL[1, :, s - t - 1] * u[s]
        z = gelu(y) @ linear['kernel'] + linear['bias']
        value, gate = np.split(z, 2) if gated else (z, np.inf)
        result[row, t] = value / (1 + np.exp(-gate))
    return result

  return layer


@pytest.fixture(scope='session')
def golden_errors():
  """errors(mixer, values, named, lengths_B=None, whole=True) -> {array: largest error over the largest entry}
  of a mixer with the golden parameters. Arrays are 'y', 'dx' and the gradient of every parameter.

  named: (published parameters {name: array}) -> {'/' separated path of ours: array in our layout}.
  whole: these must be all parameters of the mixer; otherwise the others keep their values.
  """

  def errors(mixer, values, named, lengths_B=None, whole=True):
    def ours(kind):
      return named({key.removeprefix(kind): value for key, value in values.items() if key.startswith(kind)})

    given, wanted = ours('param:'), ours('grad:')
    flat = nnx.to_flat_state(nnx.state(mixer, nnx.Param))
    shapes = {'/'.join(path): leaf.get_value().shape for path, leaf in flat}
    assert {path: shapes.get(path) for path in (shapes if whole else given)} == {
      path: value.shape for path, value in given.items()
    }
    pure = nnx.to_pure_dict(nnx.state(mixer, nnx.Param))
    for path, value in given.items():
      *parts, last = path.split('/')
      functools.reduce(lambda node, part: node[part], parts, pure)[last] = jnp.asarray(value)
    nnx.update(mixer, pure)
    if hasattr(getattr(mixer, 'kernel', None), 'redrawn'):
      mixer.kernel.redrawn()
    graphdef, params, rest = nnx.split(mixer, nnx.Param, ...)

    @jax.jit
    def run(params, x, dy):
      y, pull = jax.vjp(
        lambda params, x: nnx.merge(graphdef, params, rest, copy=True)(x, lengths_B=lengths_B), params, x
      )
      return y, *pull(dy)

    y, gradients, dx = run(params, values['x'], values['dy'])
    if lengths_B is not None:  # outputs at padding do not matter
      valid_BL1 = (np.arange(y.shape[1])[None] < np.asarray(lengths_B)[:, None])[..., None]
      y, values = np.where(valid_BL1, y, 0), values | {'y': np.where(valid_BL1, values['y'], 0)}
    gradients = {'/'.join(path): leaf.get_value() for path, leaf in nnx.to_flat_state(gradients)}
    pairs = {'y': (y, values['y']), 'dx': (dx, values['dx'])}
    pairs |= {path: (gradients[path], value) for path, value in wanted.items()}
    return {
      what: np.abs(ours - theirs).max() / np.abs(theirs).max() for what, (ours, theirs) in pairs.items()
    }

  return errors


@pytest.fixture
def published_gelu(monkeypatch):
  """The tanh approximation of GELU, which the published S5 and LRU use; ours is exact.

  It computes (1 + tanh z) / 2 as sigmoid(2z), whose gradient is accurate in float32.
  """

  def approximate(y, **_):
    return y * jax.nn.sigmoid(np.sqrt(8 / np.pi) * (y + 0.044715 * y**3))

  monkeypatch.setattr(jax.nn, 'gelu', approximate)


@pytest.fixture(scope='session')
def mimo_sums():
  """sums(k_SLDD, skip_D, u_BLD) -> K * u + skip u in float64, lag by lag; both directions include lag 0."""

  def sums(k_SLDD, skip_D, u_BLD):
    y = skip_D * u_BLD
    for t in range(u_BLD.shape[1]):
      for s in range(u_BLD.shape[1]):
        if s <= t:
          y[:, t] += u_BLD[:, s] @ k_SLDD[0, t - s].T
        if s >= t and len(k_SLDD) == 2:
          y[:, t] += u_BLD[:, s] @ k_SLDD[1, s - t].T
    return y

  return sums


@pytest.fixture(scope='session')
def exact_gelu():
  """GELU in float64."""
  return gelu


def gelu(y):
  return y * (1 + erf(y / np.sqrt(2))) / 2


@pytest.fixture(scope='session')
def stepped():
  """stepped(mixer, x_BLD) -> outputs [B, L, D] of the recurrent form, one position at a time."""

  def run(mixer, x_BLD):
    step = nnx.jit(lambda mixer, state, x_BD: mixer.step(state, x_BD))
    state, outputs = mixer.init_state(len(x_BLD)), []
    for t in range(x_BLD.shape[1]):
      state, y_BD = step(mixer, state, x_BLD[:, t])
      outputs.append(y_BD)
    return np.stack(outputs, 1)

  return run


@pytest.fixture(scope='session')
def perturbed():
  """perturbed(mixer, size=0.5) -> the mixer with all parameters changed, so that none is 0 and directions
  differ."""

  def change(mixer, size=0.5):
    keys = iter(jax.random.split(jax.random.key(1), 32))
    values = nnx.state(mixer, nnx.Param)
    nnx.update(mixer, jax.tree.map(lambda v: v + size * jax.random.normal(next(keys), v.shape), values))
    return mixer

  return change


@pytest.fixture(scope='session')
def redrawn():
  """redrawn(mixer, name) -> the mixer with all parameters from N(0, 0.1^2), as in the published code."""

  def draw(mixer, name):
    redraw(mixer, ModelSpec(name, 1, 1, {'name': name}, random_init='all'), nnx.Rngs(3))
    return mixer

  return draw


@pytest.fixture(scope='session')
def gradients():
  """gradients(mixer, x_BLD) -> {path: gradient of the sum of squared outputs}."""

  def grad(mixer, x_BLD):
    gradients = nnx.jit(nnx.grad(lambda mixer, x: jnp.sum(mixer(x) ** 2)))(mixer, x_BLD)
    return {path: np.asarray(leaf.get_value()) for path, leaf in nnx.to_flat_state(gradients)}

  return grad


@pytest.fixture(scope='session')
def declared():
  """declared(module) -> {parameter: (shape, True for a state-space parameter, group)}."""

  def read(module):
    return {
      path[-1]: (leaf.get_value().shape, leaf.get_metadata('ssm', False), leaf.get_metadata('group', None))
      for path, leaf in nnx.to_flat_state(nnx.state(module, nnx.Param))
    }

  return read


@pytest.fixture(scope='session')
def assert_golden(golden_errors):
  """check(mixer, values, taken, read=...): compares output and gradients of <y, dy> with a golden file.

  values: the arrays of the file. taken: {path of a parameter, joined by dots: its name in the file}; all
  others keep their values. read(path, array): converts an array of the file to our layout.
  """

  def check(
    mixer, values, taken, read=lambda path, array: array, forward=2e-6, backward=5e-6, lengths_B=None
  ):
    def named(published):
      return {path.replace('.', '/'): read(path, published[name]) for path, name in taken.items()}

    for what, error in golden_errors(mixer, values, named, lengths_B, whole=False).items():
      assert error <= (forward if what == 'y' else backward), what

  return check


@pytest.fixture(scope='session')
def assert_follows_positions():
  """check(mixer, reference, width, lengths, scale, tolerance): compares the mixer with the float64
  reference(mixer, x_LD) on each row without its padding; the first row has none."""

  def check(mixer, reference, width, lengths, scale, tolerance):
    x = scale * jax.random.normal(jax.random.key(0), (len(lengths), lengths[0], width))
    ours = nnx.jit(lambda mixer, x, lengths: mixer(x, lengths_B=lengths))(mixer, x, jnp.int32(lengths))
    for row, length in enumerate(lengths):
      theirs = reference(mixer, x[row, :length])
      np.testing.assert_allclose(ours[row, :length], theirs, rtol=0, atol=tolerance * np.abs(theirs).max())

  return check


@pytest.fixture(scope='session')
def assert_recurrent(stepped):
  """check(causal, bidirectional, length, width): the causal mixer gives the same outputs one position at a
  time and all at once; the bidirectional one refuses."""

  def check(causal, bidirectional, length, width):
    x = jax.random.normal(jax.random.key(0), (2, length, width))
    np.testing.assert_allclose(stepped(causal, x), nnx.jit(lambda mixer: mixer(x))(causal), atol=1e-5)
    with pytest.raises(ValueError, match='a bidirectional mixer has no recurrent form'):
      bidirectional.init_state(2)

  return check
