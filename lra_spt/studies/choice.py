"""`lra-spt study --only`: chooses runs of a study. It needs no jax."""

import re
from collections.abc import Mapping

from lra_spt.errors import ConfigError, nearest

SELECTABLE = ('task', 'model', 'regime', 'protocol', 'row', 'column')


def selection(text: str) -> dict[str, str]:
  """Parses 'task=image,model=s4' or 'row=S4, masked' into {key: value}.

  Raises:
    ConfigError: a key is unknown or given twice.
  """
  values = {}
  # Names of rows and columns may have commas: an item ends before a word with = after it.
  for item in filter(None, (part.strip() for part in re.split(r',(?=\s*\w+\s*=|\s*$)', text))):
    key, equals, value = (part.strip() for part in item.partition('='))
    if key not in SELECTABLE or not equals:
      raise ConfigError(
        f'--only has {item!r}, but it takes key=value with the keys {", ".join(SELECTABLE)}.'
        f'{nearest(key, SELECTABLE)}'
      )
    if key in values:
      raise ConfigError(
        f'--only has {key} twice, {values[key]!r} and {value!r}: run the command once for each.'
      )
    values[key] = value
  return values


def includes(job, only: Mapping[str, str]) -> bool:
  """True if a `study.Job` has all values of a `selection`."""
  config = job.config
  values = {
    'task': config.task,
    'model': config.model.name,
    'regime': config.regime,
    'protocol': config.protocol,
    'row': job.cell.row,
    'column': job.cell.column,
  }
  return all(values[key] == value for key, value in only.items())
