"""`lra-spt study --only`: which runs of a study are chosen. Does not need jax."""

import re
from collections.abc import Mapping

from lra_spt.errors import ConfigError, nearest

SELECTABLE = ('task', 'model', 'regime', 'protocol', 'row', 'column')


def selection(text: str) -> dict[str, str]:
  """Parses 'task=image,model=s4' or 'row=S4, masked' into `only`; ConfigError for an unknown key or one given
  twice."""
  found = {}
  # Names of rows and columns may have commas: an item ends where another word before a = begins.
  for item in filter(None, (part.strip() for part in re.split(r',(?=\s*\w+\s*=|\s*$)', text))):
    key, equals, value = (part.strip() for part in item.partition('='))
    if key not in SELECTABLE or not equals:
      raise ConfigError(
        f'--only has {item!r}, but it takes key=value with the keys {", ".join(SELECTABLE)}.'
        f'{nearest(key, SELECTABLE)}'
      )
    if key in found:
      raise ConfigError(
        f'--only has {key} twice, {found[key]!r} and {value!r}: run the command once for each.'
      )
    found[key] = value
  return found


def includes(job, only: Mapping[str, str]) -> bool:
  """Whether a `study.Job` has all values of a `selection`."""
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
