"""Pretraining objectives by name: a new objective is one file that registers one class; see `contract`."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from lra_spt.config.values import convert, listed
from lra_spt.errors import IMPORT_FIRST, ConfigError, nearest
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
      f'there is no pretraining objective {name!r}; choose one of {", ".join(sorted(_OBJECTIVES))}.'
      f'{nearest(name, _OBJECTIVES)}{IMPORT_FIRST}'
    )
  return _OBJECTIVES[name]


def options(name: str) -> dict[str, dataclasses.Field]:
  """{option: field} of an objective: the keys that it reads in the config's section `pretrain`."""
  fields = dataclasses.fields(get_objective(name))
  return {field.name: field for field in fields if field.init and field.name not in _NO_OPTIONS}


def options_from(name: str, values: Mapping) -> dict[str, Any]:
  """The options of the objective `name` out of `values`, the keys of a config's section `pretrain` that are
  not keys of every stage. Options of other objectives are left out, because one config file serves several
  regimes.

  Raises:
    ConfigError: a key that no objective has, a missing option, or a value that is not of the declared type.
  """
  fields, kinds = options(name), typing.get_type_hints(get_objective(name))
  known = {key for objective in _OBJECTIVES for key in options(objective)}
  for key in values:
    if key not in known:
      raise ConfigError(
        f'pretrain has no key {key}: besides the keys of every stage it takes {listed(fields) or "none"} '
        f'for the objective {name}.{nearest(key, fields)}'
      )
  given = {key: convert(kinds[key], values[key], f'pretrain.{key}') for key in fields if key in values}
  for key, field in fields.items():
    if key not in given and field.default is field.default_factory is dataclasses.MISSING:
      raise ConfigError(f'pretrain lacks the key {key}, an option of the objective {name}: add it.')
  return given
