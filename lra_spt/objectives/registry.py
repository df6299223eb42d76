"""Pretraining objectives by name: a new objective is one file that registers one class; see `contract`."""

import dataclasses
import typing

from lra_spt.errors import ConfigError
from lra_spt.objectives.contract import Objective

_OBJECTIVES: dict[str, type[Objective]] = {}
_NO_OPTIONS = ('task', 'protocol')


def register_objective(name: str):
  """A class decorator that registers a pretraining objective as `name`.

  Raises:
    ConfigError: there is no name, or another class has it.
    TypeError: the class is no dataclass whose first fields are task and protocol.
  """
  if not isinstance(name, str):  # it is the class if the decorator has no parentheses
    raise ConfigError(
      f"register_objective was given {name!r} in place of a name: write @register_objective('mine') above "
      'the class.'
    )

  def decorate(cls):
    fields = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    if tuple(fields[:2]) != _NO_OPTIONS:
      raise TypeError(f'{cls.__qualname__} is not a dataclass whose first fields are task and protocol')
    known = _OBJECTIVES.get(name)
    if known is not None and known.__qualname__ != cls.__qualname__:
      raise ConfigError(
        f'an objective named {name!r} exists already ({known.__module__}.{known.__qualname__}); choose '
        'another name'
      )
    _OBJECTIVES[name] = cls
    return cls

  return decorate


def get_objective(name: str) -> type[Objective]:
  """Returns the class of that name, which is called as cls(task, protocol, **options).

  Raises:
    ConfigError: no class has the name; the message lists the known ones.
  """
  if name not in _OBJECTIVES:
    raise ConfigError(
      f'there is no pretraining objective {name!r}, only {", ".join(sorted(_OBJECTIVES))}; register yours '
      'with @lra_spt.objectives.register_objective before training'
    )
  return _OBJECTIVES[name]


def options(name: str) -> dict[str, tuple[typing.Any, dataclasses.Field]]:
  """The options of an objective, {option: (type, field)}: the keys that it reads in the config's section
  `pretrain`."""
  cls = get_objective(name)
  kinds = typing.get_type_hints(cls)
  fields = (field for field in dataclasses.fields(cls) if field.init and field.name not in _NO_OPTIONS)
  return {field.name: (kinds[field.name], field) for field in fields}


def spec_with_options(base: type, name: str) -> type:
  """The frozen dataclass `base` with the options of an objective as further fields."""
  added = [
    (key, kind, dataclasses.field(default=field.default, default_factory=field.default_factory))
    for key, (kind, field) in options(name).items()
  ]
  return dataclasses.make_dataclass(base.__name__, added, bases=(base,), frozen=True, kw_only=True)


def options_of_others(name: str) -> set[str]:
  """Keys of other objectives, which this one ignores: one config file serves several regimes."""
  return {key for other in _OBJECTIVES for key in options(other)} - set(options(name))
