"""Sequence mixers by name: a new architecture is one file that registers one class.

The file lies in `lra_spt/models/mixers/`, or anywhere: a config file may import it, and `--register FILE`
does. Its mixer is then model=NAME in every config file, as the task's Transformer with this mixer in
attention's place and the values of the mixer's own row. Before one from outside the package trains, and by
`lra-spt check`, `check` makes sure that it keeps this contract.

A mixer is an NNX module built as `Mixer(width, *, length, causal, protocol, rngs, **options)` and called as
`mixer(x_BLD, *, lengths_B, deterministic, rngs) -> y_BLD`:

- `width`: D, of input and output.
- `length`: the most positions L it will see.
- `causal`: whether y[:, t] may depend on x[:, s] only for s <= t. The module keeps it as the attribute
  `causal`.
- `protocol`: `lra_spt.protocol.Protocol`; only mixers whose published code departs from good practice look
  at it.
- `rngs` (built): `nnx.Rngs` for initial values.
- `options`: what the config's `model.mixer` holds beside `name`. runtime.precision=bfloat16 adds `dtype`,
  which a mixer that is to run in it has to take; mixers that have an option `attention`, `scan` or
  `convolution` are handed that of runtime; likewise `depth`, model.depth, and `layer`, the number of the
  block from 0, which may be traced: only arrays of initial values may depend on it.
- `lengths_B`: int32 [B], or None when every position of every row is valid. Positions from lengths_B[b] on
  are padding: they must not reach valid positions (unless the protocol says that the published code lets
  them).
- `rngs` (called): one PRNG key per row, [B], or None when deterministic; row-wise keys keep draws equal for
  any split of the batch.

Arrays that it keeps are nnx.Param or nnx.Variable, several parts nnx.List. A call may change variables, which
then are part of a run, and add none (as nnx.sow does).

A mixer whose class says `gates_residual = True` puts out a pair (h_BLD, gate_BLD): its block then adds
gate (h - x) to its input x, which is taken before any norm, where it adds y of other mixers.

Optional methods:

- `flops(length) -> int`: floating-point operations of one forward pass over one sequence beyond those of its
  weight matrices.
- `init_state(batch_size) -> state` and `step(state, x_BD) -> (state, y_BD)`: the recurrent form of a causal
  mixer.
- `max_kernel(length) -> float32 [length]`: the largest absolute kernel value per lag (`lra-spt kernels`).
- `redrawn()`, also of modules in it: called after `model.random_init` has changed parameters; in a model they
  have a leading axis of layers.

`jax.ad_checkpoint.checkpoint_name(x, 'mixer')` marks what is dear to compute again: runtime.remat='mixers'
keeps it. In a custom_vjp it has to mark the residuals of the forward rule. `linear_scan`, `linear_attention`
and the other ops mark their own.

Parameters with a learning rate of their own or without weight decay say so:
`nnx.Param(x, group=ParameterGroup(...))`. `nnx.Param(x, ssm=True)` marks a state-space parameter: it belongs
to what `model.random_init='ssm'` redraws, and only protocol paper decays it. Nor do vectors decay otherwise,
also where several are one array (as of two directions): their names end in bias, scale, shift or skip.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from lra_spt import config_values, mixer_rows
from lra_spt.errors import ConfigError, nearest

_MIXERS: dict[str, type[nnx.Module]] = {}


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
  """How the optimizer treats a parameter: its own learning rate (None: the stage's) and whether weight decay
  touches it. Raises a ConfigError for a rate below 0."""

  learning_rate: float | None = None
  decay: bool = True

  def __post_init__(self):
    if self.learning_rate is not None and not self.learning_rate >= 0:  # nor where it is no number
      raise ConfigError(
        f'a learning rate of model.mixer is {self.learning_rate}; choose one of at least 0 (in our mixers 0 '
        "stands for the stage's)"
      )


def register_mixer(name: str, *, row: Mapping[str, Any] = types.MappingProxyType({}), causal: bool = True):
  """Class decorator that makes a mixer known as `name`, and so every config file's model=NAME.

  Args:
    name: letters, digits and _.
    row: what configs of this mixer shall say, {dotted key: value}: its options, such as
      {'model.mixer.state_size': 64}, and whatever else should not be as in the task's row of the Transformer,
      such as {'model.position': 'none', 'finetune.optimizer.lr': 1e-3}. Every option that is to be set from
      the command line belongs here. In a file of `lra_spt/models/mixers/` name and row are literals.
    causal: False (a literal) of a mixer without a causal form: configs that ask for it are refused.

  Raises:
    ConfigError: another class has the name, or a row that sets other things.
  """

  def decorate(cls):
    if name in _MIXERS and _MIXERS[name].__qualname__ != cls.__qualname__:
      raise ConfigError(
        f'a mixer named {name!r} exists already ({_MIXERS[name].__module__}.{_MIXERS[name].__qualname__}); '
        'choose another name'
      )
    mixer_rows.add(name, row, causal)
    _MIXERS[name] = cls
    return cls

  return decorate


def mixer_class(name: str) -> type[nnx.Module]:
  """The class that is registered as `name`; ConfigError when there is none."""
  if name not in _MIXERS:
    raise ConfigError(
      f'model.mixer.name is {name!r}, but the known mixers are {", ".join(sorted(_MIXERS))}; register yours '
      'with @lra_spt.register_mixer before training, in a file that --register names or your config '
      f'imports.{nearest(name, _MIXERS)}'
    )
  return _MIXERS[name]


def of_the_package(name: str) -> bool:
  """Whether the class of that name is the package's own, whose contract its tests check; an edited copy that
  took its place is not."""
  return mixer_class(name).__module__.startswith('lra_spt.models.mixers.')


def gates_residual(mixer: nnx.Module) -> bool:
  """Whether it puts out a pair (h, gate) instead of one array."""
  return getattr(mixer, 'gates_residual', False)


def _parts(cls) -> list[type]:
  """The classes whose __init__ may name an option, those of a kernel too; the first ones have precedence."""
  kernel = getattr(cls, 'kernel_type', None)
  parts = (*cls.__mro__, *(kernel.__mro__ if kernel is not None else ()))
  return [part for part in parts if inspect.isfunction(vars(part).get('__init__'))]


def defaults_of(name: str) -> dict[str, Any]:
  """The options of a mixer that have defaults, with these."""
  found = {}
  for part in reversed(_parts(mixer_class(name))):
    found |= {key: of.default for key, of in inspect.signature(part.__init__).parameters.items()}
  return {key: value for key, value in found.items() if value is not inspect.Parameter.empty}


def _typed(cls, options):
  """The options as plain values of the types that they are annotated with; others are left as they are."""
  kinds = {}
  for part in reversed(_parts(cls)):
    try:
      kinds |= typing.get_type_hints(part.__init__)
    except (NameError, TypeError):  # of names that are there for type checkers only
      continue
  return {
    key: config_values.convert(kinds[key], value, f'model.mixer.{key}') if _plain(kinds.get(key)) else value
    for key, value in options.items()
  }


def _plain(kind) -> bool:
  if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
    inner = set(typing.get_args(kind)) - {types.NoneType}
    return len(inner) == 1 and _plain(*inner)
  return kind in (bool, int, float, str)


def make_mixer(
  name: str, width: int, *, options: dict[str, Any], offered: dict[str, Any] | None = None, **common
) -> nnx.Module:
  """Builds the mixer `name` with `options`, and with those of `offered` that its `__init__` names.

  Raises:
    ConfigError: an unknown name, a form that the mixer does not have, options that its `__init__` does not
      take, or lacks, or one of another type than it is annotated with.
  """
  cls = mixer_class(name)
  mixer_rows.check_form(name, common.get('causal', False))
  signature = inspect.signature(cls.__init__)
  taken = {key: value for key, value in (offered or {}).items() if key in signature.parameters}
  options = taken | _typed(cls, options)
  try:
    signature.bind(cls, width, **common, **options)
    if hasattr(cls, 'kernel_type'):  # which takes what the mixer does not name
      known = {key for part in _parts(cls) for key in inspect.signature(part.__init__).parameters}
      if unknown := [key for key in options if key not in known]:
        raise TypeError(f'got an unexpected keyword argument {unknown[0]!r}')
  except TypeError as error:
    raise ConfigError(
      f'model.mixer of {name!r} does not fit its class: {error}; given were {sorted(options)}'
    ) from error
  mixer = cls(width, **common, **options)
  for _, node in nnx.iter_graph(mixer):
    if isinstance(node, nnx.RngKey):  # such as nnx.RNN keeps: numbers, which checkpoints hold
      node.set_value(jax.random.key_data(node.get_value()))
  return mixer
