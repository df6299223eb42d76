"""Fields of the schema: how a key of a config is declared, checked and listed. Does not need jax."""

import dataclasses
import operator
import typing
from typing import Any

from lra_spt.config.values import listed
from lra_spt.errors import FieldError, nearest

_BOUNDS = {
  'least': (operator.ge, 'at least'),
  'above': (operator.gt, 'above'),
  'most': (operator.le, 'at most'),
  'below': (operator.lt, 'below'),
}


def key(meaning: str, default: Any = dataclasses.MISSING, **rules):
  """Declares a key of a config, as a field of a dataclass.

  Args:
    meaning: one phrase for the reader of `lra-spt config --about`.
    default: its value where a config does not set it; a key without a default must be set.
    rules: least, above, most or below, which bound numbers, and choices, which lists all values.
  """
  return dataclasses.field(default=default, metadata={'meaning': meaning, **rules})


def check_field(field: dataclasses.Field, value) -> None:
  """Raises a FieldError for a value that breaks the rules of its key. Bounds hold for each item of a tuple,
  and not for None."""
  rules = field.metadata
  if value not in (choices := rules.get('choices', (value,))):
    raise FieldError(
      field.name, f'is {value!r}; choose one of {listed(map(repr, choices))}.{nearest(value, choices)}'
    )
  bounds = [(*_BOUNDS[rule], rules[rule]) for rule in _BOUNDS if rule in rules]
  numbers = value if isinstance(value, tuple) else () if value is None else (value,)
  if not all(holds(number, bound) for number in numbers for holds, _, bound in bounds):
    wanted = ' and '.join(f'{words} {bound}' for _, words, bound in bounds)
    raise FieldError(field.name, f'is {value}, but it must be {wanted}; correct it')


class Section:
  """Base of the dataclasses that are sections of a config: checks every field by the rules of its key."""

  def __post_init__(self):
    for field in dataclasses.fields(self):
      check_field(field, getattr(self, field.name))


def keys_of(cls: type) -> dict[str, dataclasses.Field]:
  """{dotted key: field} of a section and the sections within it."""
  kinds, keys = typing.get_type_hints(cls), {}
  for field in dataclasses.fields(cls):
    if dataclasses.is_dataclass(kinds[field.name]):
      inner = keys_of(kinds[field.name])
      keys |= {f'{field.name}.{name}': one for name, one in inner.items()}
    elif field.metadata:
      keys[field.name] = field
  return keys


def defaults(cls: type) -> dict[str, Any]:
  """{dotted key: default} of the keys of a section that have one."""
  return {
    name: field.default for name, field in keys_of(cls).items() if field.default is not dataclasses.MISSING
  }
