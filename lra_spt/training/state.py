"""The train state: one tree of arrays {step, params, stats, opt, control}, and its static companions.

NNX modules are split once here; from then on training is functional (`nnx.merge` inside the jitted step).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.config.schema import OptimizerSpec
from lra_spt.distributed import settings, sharding
from lra_spt.errors import ConfigError
from lra_spt.models import Model, ParameterGroup
from lra_spt.training import parameters
from lra_spt.training.optimizer import initial_control, transform
from lra_spt.training.programs import shared


@dataclasses.dataclass(frozen=True, eq=False)
class Blueprint:
  """A model without its arrays.

  make_model: builds the model from nnx.Rngs; graphdef: its static part; params, stats: pure dicts of
  ShapeDtypeStruct (`stats` holds BatchNorm's running averages); groups: a ParameterGroup per parameter;
  frozen_stats: True per leaf of `stats` whose module is frozen; flops: the operations of one forward pass
  over one sequence.
  """

  make_model: Callable[[nnx.Rngs], Model]
  graphdef: nnx.GraphDef
  params: dict
  stats: dict
  groups: dict
  frozen_stats: dict
  flops: int

  def merge(self, params, stats) -> Model:
    """The model with these arrays."""
    return nnx.merge(self.graphdef, params, stats)

  @property
  def parameter_count(self) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(self.params))

  @property
  def frozen_count(self) -> int:
    groups = jax.tree.leaves(self.groups, is_leaf=lambda x: isinstance(x, ParameterGroup))
    pairs = zip(groups, jax.tree.leaves(self.params), strict=True)
    return sum(leaf.size for group, leaf in pairs if group.frozen)


# Parameters with these names, or with names that end like VECTORS, do not decay, whatever their shapes.
TABLES = ('embedding', 'position')
VECTORS = ('bias', 'scale', 'shift', 'skip')


@shared
def blueprint(
  make_model: Callable[[nnx.Rngs], Model],
  length: int,
  *,
  decay_everything: bool,
  freeze: tuple[str, ...] = (),
) -> Blueprint:
  """Traces the model without allocating it.

  decay_everything: weight decay applies to all parameters, as in the published code. Otherwise it applies to
    parameters of two and more dimensions, but not to state-space parameters, tables of embeddings and
    positions, and vectors for each of several directions (`VECTORS`). A group that a module declares always
    wins.
  freeze: patterns of parameters that do not train, see `parameters.chosen`. Averages of BatchNorm stay as
    they are where all parameters of their module are frozen.

  Raises:
    ConfigError: a parameter is not float32.
    FieldError: a pattern matches no parameter.
  """
  model = nnx.eval_shape(lambda: make_model(nnx.Rngs(0)))
  graphdef, params, stats = nnx.split(model, nnx.Param, ...)

  def group(path, variable):
    declared = variable.get_metadata('group', None)
    dimensions = variable.get_value().ndim - (1 if 'blocks' in path else 0)
    name = str(path[-1])  # a number in a list
    plain = name in TABLES or name.endswith(VECTORS) or variable.get_metadata('ssm', False)
    matrix = dimensions >= 2 and not plain
    return declared or ParameterGroup(decay=decay_everything or matrix)

  groups, params, stats = _map_variables(group, params), nnx.to_pure_dict(params), nnx.to_pure_dict(stats)
  _check_dtypes(params)
  groups, frozen_stats = _freeze(freeze, params, groups, stats)
  return Blueprint(make_model, graphdef, params, stats, groups, frozen_stats, model.flops(length))


def _freeze(patterns, params, groups, stats):
  """Returns the groups with the frozen ones marked, and True per leaf of `stats` whose module is frozen."""
  names = leaf_names(params)
  parameters.check('finetune.freeze', patterns, names)
  frozen = parameters.chosen(patterns, names)
  is_group = lambda x: isinstance(x, ParameterGroup)  # noqa: E731
  leaves, structure = jax.tree.flatten(groups, is_leaf=is_group)
  marked = [
    dataclasses.replace(group, frozen=True) if name in frozen else group
    for name, group in zip(names, leaves, strict=True)
  ]
  still = parameters.of_modules(frozen, names, leaf_names(stats))
  flags = [name in still for name in leaf_names(stats)]
  return jax.tree.unflatten(structure, marked), jax.tree.unflatten(jax.tree.structure(stats), flags)


def _check_dtypes(params):
  """Raises a ConfigError unless parameters are float32: gradients of complex ones would point uphill in their
  imaginary part, and the state of the optimizer is float32."""
  for name, leaf in zip(leaf_names(params), jax.tree.leaves(params), strict=True):
    if leaf.dtype != jnp.float32:
      advice = 'parameters are float32, and runtime.precision rounds what enters products'
      if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        advice = 'keep its real and its imaginary part as two parameters, each float32'
      raise ConfigError(f"The model's parameter {name} is {leaf.dtype}: {advice}.")


def _map_variables(function, state: nnx.State) -> dict:
  """Returns a nested dict with `function(path, variable)` in place of every variable."""
  result: dict[Any, Any] = {}
  for path, variable in nnx.to_flat_state(state):
    node = result
    for part in path[:-1]:
      node = node.setdefault(part, {})
    node[path[-1]] = function(path, variable)
  return result


def stage_key(seed: int, stage_number: int, prng: str = settings.PRNG) -> jax.Array:
  """The key of the random numbers of a stage."""
  return jax.random.fold_in(settings.random_key(seed, prng), stage_number)


def initial_key(stage_key: jax.Array) -> jax.Array:
  """The key of a stage's initial values."""
  return jax.random.fold_in(stage_key, 0)


def create(model: Blueprint, optimizer: OptimizerSpec, mode: str, key: jax.Array, mesh) -> dict:
  """Makes a fresh state in place on the mesh."""
  return _creation(model, optimizer, mode, mesh)(key)


@shared
def _creation(model, optimizer, mode, mesh):
  def init(key):
    _, params, stats = nnx.split(model.make_model(nnx.Rngs(key)), nnx.Param, ...)
    return _around(nnx.to_pure_dict(params), nnx.to_pure_dict(stats), optimizer, mode)

  shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract(model, optimizer, mode, mesh))
  return jax.jit(init, out_shardings=shardings)


def abstract(model: Blueprint, optimizer: OptimizerSpec, mode: str, mesh) -> dict:
  """Returns a ShapeDtypeStruct per leaf with its sharding, for restoring on any mesh."""
  around = functools.partial(_around, optimizer=optimizer, mode=mode)
  shapes = jax.eval_shape(around, model.params, model.stats)  # without building the model again
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    sharding.state_shardings(shapes, mesh),
  )


def _around(params: dict, stats: dict, optimizer: OptimizerSpec, mode: str) -> dict:
  """The state of a model that has not been trained; traceable."""
  return {
    'step': jnp.int32(0),
    'params': params,
    'stats': stats,
    'opt': transform(optimizer).init(params),
    'control': initial_control(optimizer, mode),
  }


def not_finite(state) -> str | None:
  """The name of the first parameter of a state, or of its BatchNorm statistics, with a number that is not
  finite; None: all are finite."""
  for tree in ('params', 'stats'):
    for name, leaf in zip(leaf_names(state[tree]), jax.tree.leaves(state[tree]), strict=True):
      if jnp.issubdtype(leaf.dtype, jnp.floating) and not jnp.isfinite(leaf).all():
        return name
  return None


def leaf_names(params) -> list[str]:
  """'encoder/blocks/mixer/query/kernel', ... in the order of jax.tree.leaves."""
  return ['/'.join(str(part.key) for part in path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
