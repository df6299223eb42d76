"""Typed values of configs: from texts of the command line, and sections as frozen dataclasses.

`typed` is applied at the boundary, so that no ConfigDict is passed deeper.
"""

import ast
import dataclasses
import math
import types
import typing
from collections.abc import Mapping

from ml_collections import ConfigDict

from lra_spt.errors import ConfigError, nearest, within

SECTION = (Mapping, ConfigDict)


def parse(value, existing, where):
  """`value` (a text from the command line, or a Python value) as the type of `existing`; ConfigError where it
  is none."""
  if not isinstance(value, str):
    return convert(typing.Any if existing is None else type(existing), value, where)
  text = value.strip()
  if isinstance(existing, str):
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in '\'"' else text
  if isinstance(existing, bool):
    if text.lower() in ('true', 'false'):
      return text.lower() == 'true'
    raise ConfigError(f'{where} takes true or false, not {text!r}.')
  if isinstance(existing, int | float):
    try:
      return convert(type(existing), type(existing)(text), where)
    except ValueError:
      kind = 'an integer' if isinstance(existing, int) else 'a finite number'
      raise ConfigError(f'{where} takes {kind} (such as {existing!r}), not {text!r}.') from None
  if existing is None:
    return None if text.lower() == 'none' else _literal(text, text)
  items = _literal(text, None) if text else ()
  if items is None:
    raise ConfigError(f'{where} takes a list such as 100,200 (it is {existing!r} now), not {text!r:.100}.')
  kind = type(existing[0]) if existing else typing.Any
  return convert(tuple[kind, ...], items if isinstance(items, tuple | list) else (items,), where)


def _literal(text, otherwise):
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # as of {[1]}, or nested too deep
    return otherwise


def typed(cls, config, where: str):
  """A frozen dataclass `cls` from a section of a config.

  Fields may be bool, int, float (takes an int), str, Literal, Optional, tuples, nested dataclasses, dict (a
  free-form section) and Any. A field with a default may be left out; any other must be there. `config` is a
  ConfigDict or a mapping (the section read back from JSON), `where` its name in messages, such as 'finetune'.

  Raises ConfigError for a missing or unknown key and for a value of the wrong type; where `cls` refuses a
  value by a FieldError, it says whose field that is.
  """
  fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
  if not isinstance(config, SECTION):
    raise ConfigError(f'{where} is a section with the keys {listed(fields)}, not {config!r}.')
  for key in config:
    if key not in fields:
      raise ConfigError(f'{where} has no key {key}: it takes {listed(fields)}.{nearest(key, fields)}')
  kinds = typing.get_type_hints(cls)
  values = {}
  for name, field in fields.items():
    if name in config:
      values[name] = convert(kinds[name], config[name], f'{where}.{name}')
    elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
      raise ConfigError(f'{where} lacks the key {name}: it takes {listed(fields)}.')
  with within(where):
    return cls(**values)


def convert(kind, value, where: str):
  """A value as what the type `kind` is, see `typed`; where: its name in messages. ConfigError as there."""
  origin, inner = typing.get_origin(kind), typing.get_args(kind)
  number = isinstance(value, int | float) and not isinstance(value, bool)
  if kind is typing.Any:
    return tuple(value) if isinstance(value, list) else value
  if dataclasses.is_dataclass(kind):
    return typed(kind, value, where)
  if origin in (typing.Union, types.UnionType):  # Optional
    kind = next(choice for choice in inner if choice is not type(None))
    return None if value is None and type(None) in inner else convert(kind, value, where)
  if origin is typing.Literal:
    if value in inner:
      return value
    raise ConfigError(f'{where} is {value!r}: choose one of {listed(inner)}.{nearest(value, inner)}')
  if (origin or kind) is tuple and isinstance(value, tuple | list):
    inner = inner or (typing.Any, ...)
    kinds = inner[:1] * len(value) if inner[-1] is ... else inner
    if len(kinds) != len(value):
      raise ConfigError(f'{where} takes {len(kinds)} values, not {len(value)}.')
    return tuple(convert(kinds[i], item, f'{where}[{i}]') for i, item in enumerate(value))
  if (origin or kind) is dict and isinstance(value, SECTION):
    return value.to_dict() if isinstance(value, ConfigDict) else dict(value)
  if kind is float and number and math.isfinite(value):
    return float(value)
  if kind in (bool, int, str) and isinstance(value, kind) and (kind is not int or number):
    return value
  raise ConfigError(f'{where} takes {getattr(kind, "__name__", kind)}, not {value!r}.')


def listed(names) -> str:
  """With commas between."""
  return ', '.join(str(name) for name in names)
