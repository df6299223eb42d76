"""Values of known type: read from texts of the command line, and from sections and JSON files as dataclasses.

A frozen dataclass declares what a section of a config or a JSON file holds. `typed` makes one from what was
read, so that code behind the border sees neither a ConfigDict nor an unchecked mapping; `problem` only says
what is wrong.
"""

import ast
import dataclasses
import functools
import os
import types
import typing
from collections.abc import Mapping

from ml_collections import ConfigDict
from ml_collections.config_dict import RequiredValueError

from lra_spt.errors import ConfigError, nearest, within

SECTION = (Mapping, ConfigDict)


def as_config(value, what: str = 'The config', where: str = '', kinds=SECTION) -> ConfigDict:
  """A copy of a config that can be changed, with values of Python: numbers for scalars of numpy, texts for
  paths.

  Args:
    value: a ConfigDict, a FrozenConfigDict or a dict; each section may be one of them too.
    what, where: the config and the section, for messages.
    kinds: the types that the config itself may have.

  Raises:
    ConfigError: it is no section, a key is no text or has a dot, or a placeholder was never filled.
  """
  if not isinstance(value, kinds):
    raise ConfigError(
      f'{what} is of type {type(value).__name__}, not a ConfigDict: take it from lra_spt.load_config(...), '
      'or let get_config return lra_spt.config.loading.from_sources(...).'
    )
  copy = {}
  for key in value:
    check_key(key, what, where)
    try:
      item = value[key]
    except RequiredValueError as error:
      raise ConfigError(f'{what} has a placeholder as {where}{key}: give it a value.') from error
    item = numbered(item)
    section = isinstance(item, SECTION)
    copy[key] = as_config(item, what, f'{where}{key}.') if section else of_python(item)
  return ConfigDict(copy)


def check_key(key, what: str, where: str = '') -> None:
  """Raises a ConfigError for a key that is no name."""
  if not isinstance(key, str):
    raise ConfigError(
      f'{what} has the key {key!r} in {where.rstrip(".") or "it"}, but keys are texts: quote it.'
    )
  if '.' in key:
    raise ConfigError(
      f'{what} has the key {where}{key}, but no key has a dot: write {key.split(".")[0]} as a section.'
    )


def numbered(value):
  """A list of sections as a section with the keys '0', '1' and so on; other values as they are."""
  if isinstance(value, list | tuple) and value and all(isinstance(item, SECTION) for item in value):
    return {str(place): item for place, item in enumerate(value)}
  return value


def of_python(value):
  """A value of Python for a scalar of numpy, and text for a path, also in lists; other values as they are."""
  if type(value) in (tuple, list):
    return type(value)(map(of_python, value))
  if hasattr(value, 'dtype') and getattr(value, 'shape', None) == ():
    return value.item()
  return os.fspath(value) if isinstance(value, os.PathLike) else value


def parse(value, existing, where):
  """Converts `value`, a text of the command line or a Python value, to the type of `existing`.

  Raises:
    ConfigError: it cannot be converted; `where` names it.
  """
  value = of_python(value)
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
  if items is None and existing and isinstance(existing[0], str):
    items = tuple(part.strip() for part in text.split(',') if part.strip())
  if items is None:
    raise ConfigError(f'{where} takes a list such as 100,200 (it is {existing!r} now), not {text!r:.100}.')
  kind = type(existing[0]) if existing else typing.Any
  return convert(tuple[kind, ...], items if isinstance(items, tuple | list) else (items,), where)


def _literal(text, otherwise):
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # as of {[1]}, or nested too deep
    return otherwise


def typed(cls, section, where: str = '', *, open_ended: bool = False):
  """Makes the frozen dataclass `cls` from a section of a config, or from a mapping that was read as JSON.

  A field's annotation is its type: bool, int, float (takes an int), str, Literal, `X | None`, tuple[X, ...],
  list[X], dict[str, X], another dataclass, or Any. A field with a default may be left out. Nothing else is
  checked here: the dataclass checks bounds and choices in its `__post_init__`.

  Args:
    cls: the dataclass.
    section: a mapping or a ConfigDict.
    where: the section's name in messages, such as 'finetune'.
    open_ended: the section may hold keys that `cls` does not have, as files of later versions do.

  Raises:
    ConfigError: names the path of the first key that is missing, unknown or of another type. A FieldError of
      `cls` is raised again with the whole path.
  """
  fields, kinds = _fields(cls)
  of_section = where or 'it'
  if not isinstance(section, SECTION):
    raise ConfigError(f'{of_section} is a section with the keys {listed(fields)}, not {section!r:.80}.')
  for key in () if open_ended else section:
    if key not in fields:
      raise ConfigError(f'{of_section} has no key {key}: it takes {listed(fields)}.{nearest(key, fields)}')
  values = {}
  for name, field in fields.items():
    if name in section:
      path = f'{where}.{name}' if where else name
      values[name] = convert(kinds[name], section[name], path, open_ended=open_ended)
    elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
      raise ConfigError(f'{of_section} lacks the key {name}: it takes {listed(fields)}.')
  with within(where):
    return cls(**values)


def problem(cls, content) -> str | None:
  """The first thing that is wrong with a JSON value as the dataclass `cls`, with the path of its key; None if
  nothing is. Keys that `cls` does not have are no problem."""
  try:
    typed(cls, content, open_ended=True)
  except ConfigError as error:
    return str(error).rstrip('.')
  return None


@functools.cache
def _fields(cls):
  fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
  return fields, typing.get_type_hints(cls)


def convert(kind, value, where: str, *, open_ended: bool = False):
  """A value as the type `kind`, see `typed`. `where` is its path in the ConfigError for a wrong value."""
  if kind is typing.Any:
    return tuple(value) if isinstance(value, list) else value
  if kind is float and is_number(value):
    return float(value)
  if (kind is int and is_whole(value)) or (kind in (bool, str) and isinstance(value, kind)):
    return value
  origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
  each = functools.partial(convert, open_ended=open_ended)
  if dataclasses.is_dataclass(kind):
    return value if isinstance(value, kind) else typed(kind, value, where, open_ended=open_ended)
  if origin in (typing.Union, types.UnionType):  # X | None
    kind = next(choice for choice in inner if choice is not type(None))
    return None if value is None and type(None) in inner else each(kind, value, where)
  if origin is typing.Literal:
    if value in inner:
      return value
    raise ConfigError(f'{where} is {value!r}: choose one of {listed(inner)}.{nearest(value, inner)}')
  if origin is tuple and isinstance(value, SECTION):  # see `numbered`
    if {*value} != (places := {str(place): place for place in range(len(value))}).keys():
      raise ConfigError(f'{where} has the keys {listed(value)}: number them from 0.')
    value = [value[place] for place in places]
  if origin is tuple and isinstance(value, tuple | list):
    inner = inner or (typing.Any, ...)
    kinds = inner[:1] * len(value) if inner[-1] is ... else inner
    if len(kinds) != len(value):
      raise ConfigError(f'{where} takes {len(kinds)} values, not {len(value)}.')
    return tuple(each(kinds[i], item, f'{where}[{i}]') for i, item in enumerate(value))
  if origin is list and isinstance(value, list):
    return [each(inner[0] if inner else typing.Any, item, f'{where}[{i}]') for i, item in enumerate(value)]
  if origin in (dict, Mapping) and isinstance(value, SECTION):
    if isinstance(value, ConfigDict):
      value = value.to_dict()
    return (
      {key: each(inner[1], item, f'{where}.{key}') for key, item in value.items()} if inner else dict(value)
    )
  raise ConfigError(f'{where} takes {getattr(kind, "__name__", kind)}, not {value!r:.80}.')


def is_whole(value) -> bool:
  """True for an integer of 64 bits, and not for a bool."""
  return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def is_number(value) -> bool:
  """True for a finite number. It is below 1e100, so that sums and products of some stay finite too."""
  return is_whole(value) or (isinstance(value, float) and abs(value) < 1e100)  # NaN is not below


def listed(names) -> str:
  """The names in a row, with commas."""
  return ', '.join(str(name) for name in names)
