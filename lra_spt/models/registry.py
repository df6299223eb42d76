"""Sequence mixers by name: a new architecture is one file that registers one class.

The file lies in `lra_spt/models/mixers/`, or anywhere else, if a config file imports it or `--register FILE`
names it. The mixer is then model=NAME in every config file: the task's Transformer with this mixer in
attention's place, and the values of the mixer's own row. `check` tests whether a mixer from outside the
package keeps the contract below, before it trains and by `lra-spt check`.

A mixer is an NNX module that is built as `Mixer(width, *, length, causal, protocol, rngs, **options)` and
called as `mixer(x_BLD, *, lengths_B, deterministic, rngs) -> y_BLD`:

- `width`: D, of input and output.
- `length`: the largest number of positions L that it will see.
- `causal`: if true, y[:, t] may depend on x[:, s] only for s <= t. The module keeps it as the attribute
  `causal`.
- `protocol`: `lra_spt.config.protocol.Protocol`; only mixers whose published code departs from good
  practice use it.
- `rngs` (when built): `nnx.Rngs` for initial values.
- `options`: what the config's `model.mixer` holds besides `name`. Some are passed only to mixers that have
  an option of that name. `attention`, `scan` and `convolution` are those of runtime. `depth` is model.depth.
  `layer` is the number of the block from 0; it may be traced, so only arrays of initial values may depend on
  it. `dtype` comes with runtime.precision=bfloat16; a mixer has to take it to run in that precision.
- `lengths_B`: int32 [B], or None when every position of every row is valid. Positions from lengths_B[b] on
  are padding and must not influence valid positions (unless the protocol says that they do in the published
  code).
- `rngs` (when called): one PRNG key per row, [B], or None when deterministic. Because keys belong to rows,
  draws do not depend on how the batch is split. Nor may the output for one row depend on another.

Arrays that a mixer keeps are nnx.Param or nnx.Variable; several submodules form an nnx.List. Parameters are
float32; a complex one is two, its real and its imaginary part. A call may change variables, which are then
part of a run, but may not add any (as nnx.sow does).

A mixer whose class sets `gates_residual = True` returns a pair (h_BLD, gate_BLD). Its block then adds
gate (h - x), where x is the input of the block before any norm; for other mixers it adds y.

Optional methods:

- `flops(length) -> int`: floating-point operations of one forward pass over one sequence, without those of
  its weight matrices.
- `init_state(batch_size) -> state` and `step(state, x_BD) -> (state, y_BD)`: the recurrent form of a causal
  mixer.
- `max_kernel(length) -> float32 [length]`: the largest absolute kernel value per lag (`lra-spt kernels`).
- `redrawn()`, also of submodules: called after `model.random_init` has changed parameters. In a model these
  have a leading axis of layers.

`jax.ad_checkpoint.checkpoint_name(x, 'mixer')` marks values that are expensive to recompute:
runtime.remat='mixers' keeps them. In a custom_vjp, mark the residuals of the forward rule. `linear_scan`,
`linear_attention` and the other ops mark their own.

`nnx.Param(x, group=ParameterGroup(...))` gives a parameter its own learning rate, or exempts it from weight
decay. `nnx.Param(x, ssm=True)` marks a state-space parameter: `model.random_init='ssm'` redraws it, and
weight decay applies to it only under protocol paper. Vectors have no weight decay in the clean protocol
either. Where several vectors are stored as one array (such as one per direction), its name must end in bias,
scale, shift or skip.
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
from lra_spt.errors import ConfigError, nearest

_MIXERS: dict[str, type[nnx.Module]] = {}


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
  """How the optimizer treats a parameter: its own learning rate (None: the stage's), and whether weight decay
  applies to it. Raises a ConfigError for a rate below 0."""

  learning_rate: float | None = None
  decay: bool = True

  def __post_init__(self):
    if self.learning_rate is not None and not self.learning_rate >= 0:  # nor where it is no number
      raise ConfigError(
        f'a learning rate of model.mixer is {self.learning_rate}; choose at least 0 (in our mixers 0 stands '
        "for the stage's)"
      )


def register_mixer(name: str, *, row: Mapping[str, Any] = types.MappingProxyType({}), causal: bool = True):
  """Class decorator that registers a mixer as `name`, and as model=NAME in every config file.

  Args:
    name: letters, digits and _.
    row: config values of this mixer, {dotted key: value}: its options, such as
      {'model.mixer.state_size': 64}, and everything else that should differ from the task's row of the
      Transformer, such as {'model.position': 'none', 'finetune.optimizer.lr': 1e-3}. An option that is to be
      settable from the command line must be here. In a file of `lra_spt/models/mixers/`, name and row are
      literals.
    causal: False (a literal) for a mixer without a causal form; configs that ask for it are refused.

  Raises:
    ConfigError: it has no name, stands above something else than a class of nnx.Module, another class has the
      name, or the row sets keys that a row may not set.
  """
  if not isinstance(name, str):  # a class, where the decorator stands without parentheses
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
  """The class registered as `name`; ConfigError when there is none."""
  if name not in _MIXERS:
    raise ConfigError(
      f'model.mixer.name is {name!r}, but the known mixers are {", ".join(sorted(_MIXERS))}; register yours '
      'with @lra_spt.register_mixer before training, in a file that --register names or your config '
      f'imports.{nearest(name, _MIXERS)}'
    )
  return _MIXERS[name]


def of_the_package(name: str) -> bool:
  """Whether the class of that name is the package's own, whose contract the package's tests check. False for
  an edited copy that took its place."""
  return mixer_class(name).__module__.startswith('lra_spt.models.mixers.')


def gates_residual(mixer: nnx.Module) -> bool:
  """Whether the mixer returns a pair (h, gate) instead of one array."""
  return getattr(mixer, 'gates_residual', False)


def _parts(cls) -> list[type]:
  """The classes whose __init__ may name an option, those of a kernel too; the first ones have precedence."""
  kernel = getattr(cls, 'kernel_type', None)
  parts = (*cls.__mro__, *(kernel.__mro__ if kernel is not None else ()))
  return [part for part in parts if inspect.isfunction(vars(part).get('__init__'))]


def defaults_of(name: str) -> dict[str, Any]:
  """The mixer's options that have defaults, with these defaults."""
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
  """Builds the mixer `name` with `options`, and with those entries of `offered` that its `__init__` takes.

  Raises:
    ConfigError: an unknown name, a form that the mixer does not have, an `__init__` that does not take what
      every mixer is given, options that it does not take, required options that are missing, or a value whose
      type is not the annotated one.
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
      f'the __init__ of mixer {name!r} does not take what every mixer is given ({error}): write '
      f'__init__(self, width, *, {", ".join(common)}) with its own options after these.'
    ) from error
  try:
    signature.bind(cls, width, **common, **options)
    if hasattr(cls, 'kernel_type'):  # which takes what the mixer does not name
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
    if isinstance(node, nnx.RngKey):  # such as nnx.RNN keeps: numbers, which checkpoints hold
      node.set_value(jax.random.key_data(node.get_value()))
  return mixer
