"""Sequence mixers by name: a new architecture is one file that registers one class.

The file is in `lra_spt/models/mixers/`, or anywhere else if a config file imports it or `--register FILE`
names it. The mixer is then model=NAME in every config file: the task's Transformer with this mixer in place
of attention, and the values of the mixer's row. `check` tests that a mixer from outside the package keeps the
contract below, before it trains and by `lra-spt check`.

A mixer is an NNX module that is built as `Mixer(width, *, length, causal, protocol, rngs, **options)` and
called as `mixer(x_BLD, *, lengths_B, deterministic, rngs) -> y_BLD`:

- `width`: D, of input and output.
- `length`: the largest number of positions L that it will see.
- `causal`: if true, y[:, t] may depend on x[:, s] only for s <= t. The module stores it as the attribute
  `causal`.
- `protocol`: `lra_spt.config.protocol.Protocol`; only mixers whose published code departs from good
  practice use it.
- `rngs` (when built): `nnx.Rngs` for initial values.
- `options`: the keys of the config's `model.mixer`, or of a part of `model.mixers`, besides `name`. The
  annotations of `__init__` check their values: a type, `Literal['a', 'b']`, `Positive` or `NotNegative`. The
  following are passed only to mixers that have an option of that name. `attention`, `scan` and `convolution`
  are those of runtime. `depth` is model.depth. `layer` is the number of the block from 0; it may be traced,
  so only arrays of initial values may depend on it. `dtype` comes with runtime.precision=bfloat16; a mixer
  needs it to run in that precision.
- `lengths_B`: int32 [B], or None when every position of every row is valid. Positions from lengths_B[b] on
  are padding and must not influence valid positions, unless the protocol reproduces published code in which
  they do.
- `rngs` (when called): one PRNG key per row, [B], or None when deterministic. Because keys belong to rows,
  draws do not depend on the split of the batch. The output for one row must not depend on another row.

Arrays of a mixer are nnx.Param or nnx.Variable; several submodules form an nnx.List. Parameters are float32;
a complex parameter is two, its real and its imaginary part. A call may change variables, which checkpoints
then hold, but may not add any (as nnx.sow does).

A mixer whose class sets `gates_residual = True` returns a pair (h_BLD, gate_BLD). Its block then adds
gate (h - x), where x is the input of the block before any norm; for other mixers it adds y.

A mixer that draws once for all rows of a batch, by the key rngs[0], names in the class attribute
`shared_draws` what the rows share, such as 'the dropped values of the kernel'. `check` prints it, and exempts
no other influence between rows.

Optional methods:

- `flops(length) -> int`: floating-point operations of one forward pass over one sequence, without those of
  its weight matrices.
- `init_state(batch_size) -> state` and `step(state, x_BD) -> (state, y_BD)`: the recurrent form of a causal
  mixer.
- `max_kernel(length) -> float32 [length]`: the largest absolute kernel value per lag (`lra-spt kernels`).
- `attention_weights(x_BLD, *, lengths_B) -> float32 [B, H, L, L]`: for softmax attention, the weight of every
  key (last axis) for every query and head, 0 where a key is hidden and above 0 elsewhere (`lra-spt inside`).
  None if this form of the mixer has no such weights.
- `redrawn()`, also of submodules: called after `model.random_init` has changed parameters. In a model these
  have a leading axis of layers.

`jax.ad_checkpoint.checkpoint_name(x, 'mixer')` marks values that are expensive to recompute:
runtime.remat='mixers' saves them. In a custom_vjp, mark the residuals of the forward rule. `linear_scan`,
`linear_attention` and the other ops mark theirs.

`nnx.Param(x, group=ParameterGroup(...))` gives a parameter its own learning rate, or exempts it from weight
decay. `nnx.Param(x, ssm=True)` marks a state-space parameter: `model.random_init='ssm'` redraws it, and
weight decay applies to it only under protocol paper. Vectors have no weight decay in the clean protocol
either. An array that stores several vectors (such as one per direction) counts as vectors if its name ends in
bias, scale, shift or skip.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from lra_spt.config import mixers
from lra_spt.config import values as config_values
from lra_spt.errors import IMPORT_FIRST, ConfigError, nearest

Positive = typing.Annotated[int, 1]  # an option of at least 1
NotNegative = typing.Annotated[int, 0]  # an option of at least 0

_MIXERS: dict[str, type[nnx.Module]] = {}


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
  """The treatment of a parameter by the optimizer.

  Raises:
    ConfigError: the learning rate is below 0.
  """

  learning_rate: float | None = None  # None: the stage's
  decay: bool = True  # weight decay applies to it
  frozen: bool = False  # it has neither gradient nor update

  def __post_init__(self):
    if self.learning_rate is not None and not self.learning_rate >= 0:  # refuses NaN too
      raise ConfigError(
        f'a learning rate of model.mixer is {self.learning_rate}; choose at least 0 (in the mixers of the '
        "package 0 means the stage's)"
      )


def register_mixer(name: str, *, row: Mapping[str, Any] = types.MappingProxyType({}), causal: bool = True):
  """A class decorator that registers a mixer as `name`, and as model=NAME in every config file.

  Args:
    name: letters, digits and _.
    row: config values of this mixer, {dotted key: value}: its options, such as
      {'model.mixer.state_size': 64}, and all other values that differ from the task's row of the Transformer,
      such as {'model.position': 'none', 'finetune.optimizer.lr': 1e-3}. Only options that are here can be set
      on the command line. Mixers of the package have their rows in `lra_spt.config.mixers`.
    causal: False for a mixer without a causal form; configs that ask for it are refused.

  Raises:
    ConfigError: there is no name, the decorated object is no class of nnx.Module, another class has the name,
      or the row sets keys that a row may not set.
  """
  if not isinstance(name, str):  # it is the class if the decorator has no parentheses
    raise ConfigError(
      f"register_mixer was given {name!r} in place of a name: write @register_mixer('my_mixer') above the "
      'class.'
    )

  def decorate(cls):
    if not (isinstance(cls, type) and issubclass(cls, nnx.Module)):
      raise ConfigError(
        f'@register_mixer({name!r}) stands above {getattr(cls, "__qualname__", cls)}, which is no class of '
        f'nnx.Module: write a class whose __init__ and __call__ are as {__name__} says.'
      )
    if name in _MIXERS and _MIXERS[name].__qualname__ != cls.__qualname__:
      raise ConfigError(
        f'a mixer named {name!r} exists already ({_MIXERS[name].__module__}.{_MIXERS[name].__qualname__}); '
        'choose another name'
      )
    mixers.add(name, row, causal)
    _MIXERS[name] = cls
    return cls

  return decorate


def mixer_class(name: str) -> type[nnx.Module]:
  """Returns the class registered as `name`. Raises ConfigError if there is none."""
  if name not in _MIXERS:
    raise ConfigError(
      f'model.mixer.name is {name!r}, but the known mixers are {", ".join(sorted(_MIXERS))}; choose one of '
      f'them.{nearest(name, _MIXERS)}{IMPORT_FIRST}'
    )
  return _MIXERS[name]


def is_builtin(name: str) -> bool:
  """True if the class of that name is one of the package, which the package's tests check. False for an
  edited copy that replaces it."""
  return mixer_class(name).__module__.startswith('lra_spt.models.mixers.')


def gates_residual(mixer: nnx.Module) -> bool:
  """True if the mixer returns a pair (h, gate) instead of one array."""
  return getattr(mixer, 'gates_residual', False)


def _parts(cls) -> list[type]:
  """The classes whose __init__ may name an option, also those of the kernel; earlier ones take precedence."""
  kernel = getattr(cls, 'kernel_type', None)
  parts = (*cls.__mro__, *(kernel.__mro__ if kernel is not None else ()))
  return [part for part in parts if inspect.isfunction(vars(part).get('__init__'))]


def defaults_of(name: str) -> dict[str, Any]:
  """The mixer's options that have defaults, with these defaults."""
  defaults = {}
  for part in reversed(_parts(mixer_class(name))):
    defaults |= {key: each.default for key, each in inspect.signature(part.__init__).parameters.items()}
  return {key: value for key, value in defaults.items() if value is not inspect.Parameter.empty}


def _typed(cls, options):
  """Converts and checks options by their annotations; options with other annotations stay unchanged."""
  kinds = {}
  for part in reversed(_parts(cls)):
    try:
      kinds |= typing.get_type_hints(part.__init__, include_extras=True)
    except (NameError, TypeError):  # an annotation may use names that exist for type checkers only
      continue
  return {key: _checked(kinds.get(key), value, f'model.mixer.{key}') for key, value in options.items()}


def _checked(kind, value, name):
  if typing.get_origin(kind) is typing.Literal:
    if value not in (choices := typing.get_args(kind)):
      raise ConfigError(f'{name} is {value!r}; choose one of {", ".join(choices)}')
    return value
  if typing.get_origin(kind) is typing.Annotated:
    kind, least = typing.get_args(kind)
    value = config_values.convert(kind, value, name)
    if not value >= least:
      raise ConfigError(f'{name} is {value}; it must be at least {least}')
    return value
  return config_values.convert(kind, value, name) if _plain(kind) else value


def _plain(kind) -> bool:
  if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
    inner = set(typing.get_args(kind)) - {types.NoneType}
    return len(inner) == 1 and _plain(*inner)
  return kind in (bool, int, float, str)


def make_mixer(
  name: str, width: int, *, options: dict[str, Any], offered: dict[str, Any] | None = None, **common
) -> nnx.Module:
  """Builds the mixer `name` with `options`, and with those entries of `offered` that its `__init__` takes.

  Raises:
    ConfigError: the name is unknown, the mixer has no such form, its `__init__` does not take the arguments
      of every mixer, an option is unknown or missing, or a value is not of the annotated type.
  """
  cls = mixer_class(name)
  mixers.check_form(name, common.get('causal', False))
  signature = inspect.signature(cls.__init__)
  taken = {key: value for key, value in (offered or {}).items() if key in signature.parameters}
  options = taken | _typed(cls, options)
  try:
    signature.bind_partial(cls, width, **common)
  except TypeError as error:
    raise ConfigError(
      f'the __init__ of mixer {name!r} does not take the arguments of every mixer ({error}): write '
      f'__init__(self, width, *, {", ".join(common)}) with its own options after these.'
    ) from error
  try:
    signature.bind(cls, width, **common, **options)
    if hasattr(cls, 'kernel_type'):  # the kernel takes the options that the mixer does not name
      known = {key for part in _parts(cls) for key in inspect.signature(part.__init__).parameters}
      if unknown := [key for key in options if key not in known]:
        raise TypeError(f'got an unexpected keyword argument {unknown[0]!r}')
  except TypeError as error:
    if "'dtype'" in str(error):
      raise ConfigError(
        f'mixer {name!r} takes no dtype, which runtime.precision=bfloat16 sets: leave the precision float32, '
        'or let __init__ take dtype=None and hand it to its layers.'
      ) from error
    raise ConfigError(
      f'the options of mixer {name!r} do not fit its class: {error}; given were {sorted(options)}'
    ) from error
  mixer = cls(width, **common, **options)
  for _, node in nnx.iter_graph(mixer):
    if isinstance(node, nnx.RngKey):  # a key of nnx.RNN, for example; checkpoints hold only numbers
      node.set_value(jax.random.key_data(node.get_value()))
  return mixer
