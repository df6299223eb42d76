"""Promises of every mixer of the package, in each form that it has.

A new mixer is tested as soon as its file is there, with the options of its row; SMALL makes some smaller.
"""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend.core import jaxpr_as_fun

from lra_spt.config import mixers
from lra_spt.config.protocol import CLEAN
from lra_spt.distributed import settings
from lra_spt.errors import ConfigError
from lra_spt.models import ExecutionSpec, InputSpec, MixerSpec, ModelSpec, Recipe, check, execution, registry
from lra_spt.models.check import QUICK
from lra_spt.models.encoder import increment
from lra_spt.models.heads import HeadSpec
from lra_spt.models.registry import make_mixer, mixer_class
from lra_spt.training import state as states

LENGTH, WIDTH, VALID = 12, 8, 7
SMALL = {
  'heads': 2,
  'state_size': 8,
  'blocks': 2,
  'head_dim': 4,
  'block': 3,
  'window': 4,
  'chunk': 4,
  'rank': 3,
}
SCANNED = {
  'mesanet',
  'b2s6',
  'hgrn2',
  'linoss',
  'lru',
  'mamba',
  'min_lstm',
  'mingru',
  'rglru',
  's5',
  'slstm',
}  # they run a loop even at LENGTH
X, OTHER_X, COTANGENT = np.random.default_rng(0).normal(size=(3, 2, LENGTH, WIDTH)).astype(np.float32)
EARLY = np.arange(LENGTH)[:, None] < VALID
FULL, CUT = np.int32([LENGTH, LENGTH]), np.int32([VALID, LENGTH])

jit = functools.partial(jax.jit, compiler_options=QUICK)


def test_the_table_of_rows_has_every_mixer_with_the_defaults_of_its_class():
  assert {name for name in registry._MIXERS if registry.is_builtin(name)} == mixers.ROWS.keys()
  differing = set()
  for name, row in mixers.ROWS.items():
    options = {key.removeprefix('model.mixer.'): row[key] for key in row if key.startswith('model.mixer.')}
    differing |= {(name, key) for key in options if options[key] != registry.defaults_of(name)[key]}
  assert differing == {('longconv', 'tied_dropout'), ('sgconv', 'tied_dropout'), ('mega', 'truncation')}


def options_of(name):
  """The options of its row, with values of SMALL for those that its __init__ (or its kernel's) takes."""
  cls, row = mixer_class(name), mixers.ROWS[name]
  options = {key.removeprefix('model.mixer.'): row[key] for key in row if key.startswith('model.mixer.')}
  known = [inspect.signature(part.__init__).parameters for part in (cls, getattr(cls, 'kernel_type', cls))]
  return options | {key: value for key, value in SMALL.items() if any(key in taken for taken in known)}


def make(name, causal, rngs=None, **options):
  return make_mixer(
    name,
    WIDTH,
    options=options_of(name) | options,
    length=LENGTH,
    causal=causal,
    protocol=CLEAN,
    rngs=rngs or nnx.Rngs(0),
  )


def forms_of(name):
  """The values of `causal` that the mixer has."""
  return (False, True) if mixers.has_causal_form(name) else (False,)


def abstract(name, causal, **options):
  """The shapes of the mixer's arrays. No initial value is computed."""
  return nnx.eval_shape(lambda: make(name, causal, **options))


def traced(name, causal, shape=X.shape, **options):
  """(function(params, rest, x_BLD, lengths_B) -> increment [B, L, D], shapes of params and of rest).

  The Python code of the mixer runs once, here. What uses the function repeats its operations only.
  """
  graphdef, *state = nnx.split(abstract(name, causal, **options), nnx.Param, ...)
  state = [nnx.to_pure_dict(part) for part in state]

  def increment_of(params, rest, x_BLD, lengths_B):
    return increment(x_BLD, nnx.merge(graphdef, params, rest)(x_BLD, lengths_B=lengths_B))

  inputs = jax.ShapeDtypeStruct(shape, np.float32), jax.ShapeDtypeStruct(shape[:1], np.int32)
  run = jaxpr_as_fun(jax.make_jaxpr(increment_of)(*state, *inputs))
  return lambda *arguments: run(*jax.tree.leaves(arguments))[0], *state


traced_once = functools.cache(traced)


@functools.cache
def values_of(name, causal):
  """(params, rest) as NumPy arrays: initial values and random numbers, so that no parameter stays 0, which
  would hide the layers before it."""
  params, rest = jax.tree.map(np.asarray, arrays(make(name, causal)))
  rng = np.random.default_rng(1)
  return jax.tree.map(lambda v: v + np.float32(0.1 * rng.normal(size=v.shape)), params), rest


def arrays(mixer):
  return [nnx.to_pure_dict(part) for part in nnx.state(mixer, nnx.Param, ...)]


@pytest.mark.parametrize('name', mixers.ROWS)
def test_options_and_forms_that_it_does_not_have_are_refused(name):
  with pytest.raises(ConfigError, match=f"the options of mixer '{name}' do not fit its class: .*'state_sze'"):
    make(name, False, state_sze=3)
  if not mixers.has_causal_form(name):
    with pytest.raises(ConfigError, match=f'{name!r} has no causal form'):
      make(name, True)
  for key in options_of(name):
    if key.endswith('_lr'):
      with pytest.raises(ConfigError, match='a learning rate of model.mixer is -0.1; choose at least 0'):
        abstract(name, False, **{key: -0.1})
    if key == 'dropout':
      for rate in (-0.1, 1.0):
        with pytest.raises(ConfigError, match=f'model.mixer.dropout is {rate}; choose'):
          abstract(name, False, dropout=rate)


@pytest.mark.parametrize('name', mixers.ROWS)
def test_a_process_with_other_settings_traces_the_same_program(name, other_settings):
  """x64 refused 11 mixers, and trained other numbers with the rest."""

  @settings.fixed('default')
  def program():
    def results():
      mixer = make(name, False, rngs=nnx.Rngs(settings.random_key(0)))
      return *arrays(mixer), mixer(X, lengths_B=CUT)

    return re.sub('0x[0-9a-f]+', '', str(jax.make_jaxpr(results)()))

  plain = program()
  with other_settings():
    assert program() == plain
  assert 'f64' not in plain


def test_a_process_with_other_settings_traces_the_same_model(other_settings):
  recipe = Recipe(
    ModelSpec('m', WIDTH, 1, {'name': 'attention', 'heads': 2}, feed_forward=8),
    InputSpec(LENGTH, channels=2),
    HeadSpec('linear', 3),
    False,
    CLEAN,
    ExecutionSpec(),
  )

  @settings.fixed('default')
  def program():
    return str(jax.make_jaxpr(lambda: recipe(nnx.Rngs(settings.random_key(0)))(X[..., :2]))())

  plain = program()
  with other_settings():
    assert program() == plain


def differentiated(name, causal, remat):
  """function(params, rest, x_BLD) -> (what `runtime.remat` saves for the gradient, gradients)."""
  run, *_ = traced_once(name, causal)
  if (policy := execution.policy(ExecutionSpec(remat=remat))) is not None:
    run = jax.checkpoint(run, policy=policy)

  def saved_and_gradients(params, rest, x_BLD):
    y_BLD, pull = jax.vjp(lambda params, x_BLD: run(params, rest, x_BLD, FULL), params, x_BLD)
    return pull, pull(y_BLD)

  return saved_and_gradients


def gradients_of(name, remat):
  return jit(lambda *arguments: differentiated(name, False, remat)(*arguments)[1])(*values_of(name, False), X)


@pytest.mark.parametrize('name', mixers.ROWS)
def test_elementwise_operations_can_be_computed_again(name):
  """The default on TPUs; here on one device, where no kernel is an island."""
  for causal in forms_of(name):
    _, *state = traced_once(name, causal)
    jax.eval_shape(differentiated(name, causal, 'elementwise'), *state, X)
  if name in ('s4', 'mega'):
    close(gradients_of(name, 'elementwise'), gradients_of(name, 'none'), 1e-5)


@pytest.mark.parametrize('name', sorted(set(mixers.ROWS) - {'none'}))
def test_the_results_of_a_mixer_can_be_saved(name):
  """The loops of its recurrence, or its sorting, then run once forward and once for the gradient."""
  _, *state = traced_once(name, False)
  bytes_, loops = {}, {}
  for remat in ('none', 'mixers', 'blocks'):
    program, (saved, _) = jax.make_jaxpr(differentiated(name, False, remat), return_shape=True)(*state, X)
    bytes_[remat] = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(saved))
    if name in SCANNED | {'reformer'}:
      loops[remat] = len(re.findall(r'\b(?:scan|while|sort)\[', str(program)))
  assert bytes_['blocks'] < bytes_['mixers'] < bytes_['none']
  if loops:
    assert loops['mixers'] <= loops['none'] < loops['blocks']
  if name in ('mamba', 's5', 'reformer'):
    close(gradients_of(name, 'mixers'), gradients_of(name, 'none'), 1e-5)


def close(actual, expected, tolerance):
  """Checks that no number of a tree differs by more than this part of the largest one."""
  for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=0, atol=tolerance * np.abs(b).max())


@pytest.mark.parametrize('name', mixers.ROWS)
def test_mixer(name):
  for causal in forms_of(name):
    apply, *_ = traced_once(name, causal)
    params, rest = values_of(name, causal)

    @jit
    def gradients_and_y(params, x_BLD, lengths_B, cotangent_BLD):
      """(gradients of <y, cotangent> by parameters and input, y)."""
      y_BLD, pull = jax.vjp(lambda params, x_BLD: apply(params, rest, x_BLD, lengths_B), params, x_BLD)  # noqa: B023
      return pull(cotangent_BLD), y_BLD

    def run(*arguments):
      return jax.tree.map(np.asarray, gradients_and_y(params, *arguments))  # noqa: B023

    gradients, y = run(X, FULL, COTANGENT)
    assert (y.shape, y.dtype) == (X.shape, np.float32)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((gradients, y)))

    # The first row ends at VALID, with padding after it that is far from 0.
    early = np.where(EARLY, COTANGENT, 0) * np.float32([1, 0])[:, None, None]
    (padded, dx), padded_y = run(np.where(EARLY, X, 30 + OTHER_X), CUT, early)
    assert not np.any(dx[0, VALID:])
    assert not np.any(dx[1])
    if causal:
      _, changed = run(np.where(EARLY, X, OTHER_X), FULL, COTANGENT)
      close(changed[:, :VALID], y[:, :VALID], 1e-5)
      # Other valid positions in the place of the padding change nothing.
      (expected, expected_dx), expected_y = run(X, FULL, early)
    else:
      # Other padding changes no gradient, and the row alone has the same output.
      (expected, expected_dx), _ = run(np.where(EARLY, X, OTHER_X), CUT, early)
      alone, *_ = traced(name, causal, (1, VALID, WIDTH))
      expected_y = np.asarray(jit(alone)(params, rest, X[:1, :VALID], CUT[:1]))
      half, *_ = traced(name, causal, dtype=jnp.bfloat16)  # runtime.precision=bfloat16
      close(jit(half)(params, rest, X, FULL), y, 0.05)
    close(padded_y[0, :VALID], expected_y[0, :VALID], 1e-5)
    close(dx[0, :VALID], expected_dx[0, :VALID], 1e-4)
    close(padded, expected, 1e-4)


@pytest.mark.parametrize(
  'name, causal, others',
  [
    *((name, mixers.has_causal_form(name), {}) for name in mixers.ROWS),
    ('longconv', False, {'threshold': 0.0}),  # at this length its row leaves few values to drop
    ('performer', False, {'features': 'favor', 'random_features': 4}),
    *(
      pytest.param(name, False, {}, marks=pytest.mark.slow)
      for name in mixers.ROWS
      if mixers.has_causal_form(name)
    ),
  ],
)
def test_every_mixer_passes_the_check(name, causal, others):
  """`lra-spt check` asks the same of a mixer of the package as of one from outside it."""
  spec = ModelSpec('m', WIDTH, 1, {'name': name} | options_of(name) | others)
  assert len(check.check_mixer(MixerSpec(spec, LENGTH, causal, CLEAN, ExecutionSpec()))) == 4 + causal


@pytest.mark.slow
@pytest.mark.parametrize('name', [name for name in mixers.ROWS if mixers.has_causal_form(name)])
def test_no_causal_form_looks_ahead_over_the_borders_of_its_chunks(name):
  """The sizes are those of its row, which are larger than those of SMALL."""
  options, row = options_of(name), mixers.ROWS[name]
  sizes = ('heads', 'state_size', 'head_dim', 'blocks')  # of channels and states, not of positions
  options |= {key: row[f'model.mixer.{key}'] for key in options.keys() - sizes if f'model.mixer.{key}' in row}
  common = {'length': 256, 'causal': True, 'protocol': CLEAN, 'rngs': nnx.Rngs(0)}
  mixer = make_mixer(name, 2 * WIDTH, options=options, **common)
  graphdef, state = nnx.split(mixer)
  rng = np.random.default_rng(1)
  x, other = rng.normal(size=(2, 1, 256, 2 * WIDTH)).astype(np.float32)
  run = jax.jit(lambda x: increment(x, nnx.merge(graphdef, state)(x, lengths_B=np.int32([256]))))
  y = run(x)
  for start in (1, 15, 16, 17, 64, 100, 128, 255):
    changed = run(np.where(np.arange(256)[:, None] < start, x, other))
    close(changed[:, :start], y[:, :start], 1e-5)


# What decays beside the kernels of linear maps, all of them matrices or filters: a name that is new here was
# looked at, and no vector per direction, as of biases, is among them (`lra_spt.training.state.VECTORS`).
DECAYING = {
  'c_imag', 'c_real', 'conv', 'decay_gate', 'dt', 'forget_gate', 'input_gate', 'key', 'memory', 'mixtures',
  'output_gate', 'pieces', 'query', 'read', 'recurrent', 'select', 'value',
}  # fmt: skip


@pytest.mark.parametrize('name', sorted(set(mixers.ROWS) - {'none'}))
def test_vectors_do_not_decay(name):
  made = states.blueprint(
    lambda rngs: make_mixer(
      name, WIDTH, options=options_of(name), length=LENGTH, causal=False, protocol=CLEAN, rngs=rngs
    ),
    LENGTH,
    decay_everything=False,
  )
  decaying = {
    path.split('/')[-1]
    for path, group in zip(states.leaf_names(made.params), jax.tree.leaves(made.groups), strict=True)
    if group.decay
  }
  assert decaying <= DECAYING | {'kernel'}
