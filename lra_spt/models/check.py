"""Checks that a mixer keeps the contract of `registry`, before it trains.

A mixer that looks ahead pretrains with excellent scores. One that reads padding gains from it. One that mixes
the rows of a batch has scores that depend on the batch size. Nothing else would reveal this. Abstract
evaluation checks shape and dtype at the task's length. All other checks run on two sequences of SHORT
positions, with the model's width and options.
"""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_spt.distributed import settings
from lra_spt.distributed.sharding import platform
from lra_spt.errors import ConfigError
from lra_spt.models.encoder import MixerSpec, increment
from lra_spt.models.registry import gates_residual, mixer_class

ROWS = 2
SHORT = (256, 1024)  # lengths to try; most chunks and blocks are shorter
# Changes below this part of the largest one count as none: a convolution by FFT rounds everywhere.
TOLERANCE = 1e-3
# On CPUs a check mostly compiles programs that then run a few times.
QUICK = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}
_passed: dict[tuple, tuple[str, ...]] = {}


@settings.fixed()
def check_mixer(spec: MixerSpec, *, padding: bool = True) -> tuple[str, ...]:
  """Checks a mixer, once per process. Returns the checks that it passed, in order, a few words each.

  padding: rows may be shorter than the length. Padding is not checked under a protocol that lets layers see
    it.

  Raises:
    ConfigError: the mixer breaks the contract; the sentence names it and what to change.
  """
  key = (mixer_class(spec.name), repr(spec), padding)
  if key not in _passed:
    results = [_check_shape(spec)]
    probe = _Probe(_shortened(spec))
    results += [probe.check_numbers(), probe.check_rows()]
    if spec.causal:
      results.append(probe.check_look_ahead())
    if padding and not spec.protocol.attend_to_padding:
      results.append(probe.check_padding())
    _passed[key] = tuple(results)
  return _passed[key]


def _check_shape(spec):
  """Checks shape and dtype at the task's length, in training and in evaluation."""
  name = spec.name
  x_BLD, lengths_B = _abstract(spec)
  dtypes = dict.fromkeys(['float32', spec.execution.precision])
  for train in (True, False):
    y_BLD = _evaluated(spec, x_BLD, lengths_B if train else None, train)
    gated = gates_residual(mixer_class(name))
    outputs = y_BLD if gated and isinstance(y_BLD, tuple) else (y_BLD,)
    if [getattr(y_BLD, 'shape', None) for y_BLD in outputs] != [x_BLD.shape] * (2 if gated else 1):
      shapes = ' and '.join(str(getattr(y_BLD, 'shape', y_BLD)) for y_BLD in outputs)
      raise ConfigError(
        f'The mixer {name!r} returns {shapes} for an input of {x_BLD.shape}: return '
        f'{"a pair of arrays, output and gate," if gated else "one array"} of the shape of the input.'
      )
    for y_BLD in outputs:
      if str(y_BLD.dtype) not in dtypes:
        raise ConfigError(
          f'The mixer {name!r} returns {y_BLD.dtype} for an input of float32: return {" or ".join(dtypes)}.'
        )
  return f'{y_BLD.dtype} of the shape of the input, [B, {spec.length}, {spec.model.width}]'


def _evaluated(spec, x_BLD, lengths_B, train):
  """The shape and dtype of the output, by abstract evaluation."""
  name = spec.name

  def call(x_BLD, lengths_B):
    mixer = spec.make(nnx.Rngs(0))
    before = _paths(name, mixer)
    common = {'lengths_B': lengths_B, 'deterministic': not train, 'rngs': _keys() if train else None}
    try:
      inspect.signature(mixer).bind(x_BLD, **common)
    except TypeError as error:
      reason = error if callable(mixer) else 'it has no __call__'
      raise ConfigError(
        f'The mixer {name!r} cannot be called as mixer(x_BLD, lengths_B=..., '
        f'deterministic=..., rngs=...) ({reason}): give __call__ these arguments.'
      ) from error
    y_BLD = mixer(x_BLD, **common)
    if added := sorted(_paths(name, mixer) - before):
      raise ConfigError(
        f'The mixer {name!r} has {added[0]} after a call, which was not there before: '
        'make it an nnx.Variable in __init__, or keep nothing between calls (nnx.sow does).'
      )
    return y_BLD

  return jax.eval_shape(call, x_BLD, lengths_B)


def _paths(name, mixer):
  """The paths of the mixer's variables. Raises ConfigError if the mixer has an array that is no variable:
  training would neither update nor save it."""
  for path, node in nnx.iter_graph(mixer):
    if isinstance(node, jax.Array | np.ndarray):
      where = '.'.join(['self', *map(str, path)])
      raise ConfigError(
        f'The mixer {name!r} keeps a plain array, {where}: make it an nnx.Param if it is to be '
        'trained, else an nnx.Variable, or compute it where it is used.'
      )
  return {'.'.join(['self', *map(str, path)]) for path, _ in nnx.to_flat_state(nnx.state(mixer))}


def _shortened(spec):
  """The same mixer, in float32, for the first length of SHORT that it accepts, else for the task's length."""
  spec = dataclasses.replace(spec, execution=dataclasses.replace(spec.execution, precision='float32'))
  for length in SHORT:
    if length < spec.length:
      short = dataclasses.replace(spec, length=length)
      try:
        _evaluated(short, *_abstract(short), train=True)
        return short
      except Exception:  # a mixer that needs more positions, such as whole blocks, may raise any exception
        continue
  return spec


def _abstract(spec):
  x_BLD = jax.ShapeDtypeStruct((ROWS, spec.length, spec.model.width), jnp.float32)
  return x_BLD, jax.ShapeDtypeStruct((ROWS,), jnp.int32)


def _keys():
  return jax.random.split(settings.random_key(0), ROWS)


class _Probe:
  """A mixer with initial parameters, and two inputs, x and other_x, that differ everywhere."""

  def __init__(self, spec: MixerSpec):
    self.length, self.name = spec.length, spec.name
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: spec.make(nnx.Rngs(0))))
    jit = functools.partial(jax.jit, compiler_options=QUICK if platform() == 'cpu' else None)
    params, self.rest = jit(lambda: _arrays(spec.make(nnx.Rngs(0))))()
    self.params = jax.tree.map(np.asarray, params)
    # Parameters without zeros: a layer whose weights start as 0 would hide the layers before it.
    self.raised = jax.tree.map(lambda p: np.where(p == 0, np.asarray(0.1, p.dtype), p), self.params)
    shape = (2, ROWS, spec.length, spec.model.width)
    self.x_BLD, self.other_x_BLD = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    self.position_L1 = np.arange(spec.length)[:, None]
    self.full_B = np.full(ROWS, spec.length, np.int32)

    def loss(params_and_x, rest, lengths_B, keys_B):
      mixer = nnx.merge(graphdef, params_and_x[0], rest)
      y_BLD = mixer(params_and_x[1], lengths_B=lengths_B, deterministic=False, rngs=keys_B)
      y_BLD = increment(params_and_x[1], y_BLD)
      return jnp.sum(y_BLD**2), (y_BLD, _arrays(mixer)[1])

    def evaluated(params, rest, x_BLD, lengths_B):
      mixer = nnx.merge(graphdef, params, rest)
      return increment(x_BLD, mixer(x_BLD, lengths_B=lengths_B, deterministic=True, rngs=None))

    self.jitted, self.evaluated = jit(jax.grad(loss, has_aux=True)), jit(evaluated)

  def run(self, params, rest, x_BLD, lengths_B, *, keys_B=None):
    """(output, all variables but the parameters after the call, gradients of parameters, gradient of x)."""
    keys_B = _keys() if keys_B is None else keys_B
    gradients, (y_BLD, rest) = self.jitted((params, x_BLD), rest, lengths_B, keys_B)
    return np.asarray(y_BLD), rest, *jax.tree.map(np.asarray, gradients)

  def check_numbers(self):
    y_BLD, rest, gradients, x_gradient = self.run(self.params, self.rest, self.x_BLD, self.full_B)
    again_BLD, *_ = self.run(self.params, rest, self.x_BLD, self.full_B)
    if not np.isfinite(y_BLD).all():
      raise ConfigError(
        f'The mixer {self.name!r} returns numbers that are not finite for standard normal input and its '
        'initial parameters: look for divisions, logarithms and growing recurrences.'
      )
    if _largest(y_BLD - again_BLD) > TOLERANCE * _largest(y_BLD):
      raise ConfigError(
        f'The mixer {self.name!r} returns other numbers when it is called again with the same keys: draw all '
        'random numbers from `rngs`, one key per row, and keep no state between calls.'
      )
    if wrong := _not_finite({**gradients, 'its input': x_gradient}):
      raise ConfigError(
        f'The mixer {self.name!r} has a gradient that is not finite for {", ".join(wrong)}: look for roots, '
        'divisions and logarithms at 0, also inside jnp.where.'
      )
    return 'output and gradient finite, and the same for the same keys'

  def check_rows(self):
    """Checks that rows do not influence each other. In evaluation, where no layer normalises over the batch,
    it changes one row at a time. In training it reverses rows and keys, which must reverse the outputs. If
    the mixer declares `shared_draws`, all keys are equal, so it does not matter whose key it takes."""
    shared = getattr(mixer_class(self.name), 'shared_draws', '')
    if not isinstance(shared, str):
      raise ConfigError(
        f"The mixer {self.name!r} sets shared_draws to {shared!r}: name what all rows share, as 'the dropped "
        "values of the kernel'."
      )
    keys_B = _keys()[np.zeros(ROWS, int)] if shared else _keys()
    y_BLD = self.evaluated(self.raised, self.rest, self.x_BLD, self.full_B)
    for row in range(ROWS):
      moved_BLD = np.where(np.arange(ROWS)[:, None, None] == row, self.other_x_BLD, self.x_BLD)
      change_BLD = np.asarray(self.evaluated(self.raised, self.rest, moved_BLD, self.full_B) - y_BLD)
      if _largest(np.delete(change_BLD, row, axis=0)) > TOLERANCE * _largest(change_BLD):
        raise ConfigError(
          f'The mixer {self.name!r} mixes the rows of a batch: its output for one row changes with another '
          'row, so scores would depend on the batch size; the axes of x_BLD are batch, length and width: let '
          'sums, scans and softmax run along axis 1.'
        )
    drawn_BLD, *_ = self.run(self.raised, self.rest, self.x_BLD, self.full_B, keys_B=keys_B)
    turned_BLD, *_ = self.run(self.raised, self.rest, self.x_BLD[::-1], self.full_B, keys_B=keys_B[::-1])
    if _largest(turned_BLD[::-1] - drawn_BLD) > TOLERANCE * _largest(drawn_BLD):
      raise ConfigError(
        f'The mixer {self.name!r} draws for one row with the key of another: its output for a row changes '
        'with the place of the row in the batch, so training would depend on how a batch is split; draw for '
        'row b from rngs[b], as jax.vmap over rngs does, or name in the class attribute shared_draws what '
        'all rows share on purpose.'
      )
    return 'rows of a batch independent' + (f', except that they share {shared}' if shared else '')

  def check_look_ahead(self):
    for start in {1, self.length // 2, self.length - 1} - {0}:
      change_BLD, _ = self.change_from(start, self.full_B)
      if _largest(change_BLD[:, :start]) > TOLERANCE * _largest(change_BLD):
        raise ConfigError(
          f'The causal form of the mixer {self.name!r} looks ahead: its output before position {start} '
          'changes with the input from there on; with causal=True let y[:, t] depend on x[:, :t + 1] only.'
        )
    return f'no look-ahead over {self.length} positions'

  def check_padding(self):
    valid = self.length // 2 + 1
    lengths_B = np.where(np.arange(ROWS) == 0, valid, self.full_B).astype(np.int32)
    y_BLD, _, gradients, x_gradient = self.run(self.params, self.rest, self.x_BLD, lengths_B)
    wrong = 'its output'
    if np.isfinite(y_BLD).all():
      wrong = ', '.join(_not_finite({**gradients, 'its input': x_gradient}))
      wrong = wrong and f'the gradient of {wrong}'
    if wrong:
      raise ConfigError(
        f'The mixer {self.name!r} has numbers that are not finite in {wrong} where a row ends in padding: '
        'mask keys but not queries, because a softmax over no key is not a number, and look for divisions by '
        '0 at padded positions.'
      )
    change_BLD, largest = self.change_from(valid, lengths_B)
    if _largest(change_BLD[0, :valid]) > TOLERANCE * largest:
      raise ConfigError(
        f'The mixer {self.name!r} lets padding through: its output at valid positions changes with the input '
        'from lengths_B[b] on; zero or mask that input.'
      )
    return f'padding ignored ({valid} of {self.length} positions are valid)'

  def change_from(self, start, lengths_B):
    """(change [B, L, D] of the output if other_x replaces x from position `start` on, largest output)."""
    moved_BLD = np.where(self.position_L1 < start, self.x_BLD, self.other_x_BLD)
    y_BLD, *_ = self.run(self.raised, self.rest, self.x_BLD, lengths_B)
    moved_y_BLD, *_ = self.run(self.raised, self.rest, moved_BLD, lengths_B)
    return np.abs(moved_y_BLD - y_BLD), _largest(y_BLD)


def _arrays(mixer):
  """(parameters, all other variables) as pure dicts."""
  return tuple(nnx.to_pure_dict(state) for state in nnx.state(mixer, nnx.Param, ...))


def _not_finite(tree):
  """Paths of the leaves of a tree of dicts that are not finite."""
  leaves = jax.tree.leaves_with_path(tree)
  return ['/'.join(str(part.key) for part in path) for path, leaf in leaves if not np.isfinite(leaf).all()]


def _largest(x):
  return float(np.max(np.abs(x)))
