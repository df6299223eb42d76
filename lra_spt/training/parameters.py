"""Parameters of an encoder that patterns choose, for partial transfer and freezing."""

import fnmatch
from collections.abc import Iterable, Sequence

from lra_spt.errors import FieldError, nearest

ENCODER = 'encoder/'


def chosen(patterns: Sequence[str], names: Iterable[str]) -> frozenset[str]:
  """The names of an encoder's leaves that patterns choose.

  Args:
    patterns: globs of names without 'encoder/', where * also matches '/'. A leaf is chosen if a pattern
      matches it and no '!PATTERN' does; where all patterns begin with '!', they subtract from everything.
    names: of all leaves, such as 'encoder/blocks/mixer/query/kernel'. Leaves of the head are never chosen.
  """
  inside = [name for name in names if name.startswith(ENCODER)]
  wanted = [pattern for pattern in patterns if not pattern.startswith('!')]
  refused = [pattern[1:] for pattern in patterns if pattern.startswith('!')]
  if refused and not wanted:
    wanted = ['*']
  return frozenset(name for name in inside if _matches(name, wanted) and not _matches(name, refused))


def of_modules(selected: frozenset[str], names: Iterable[str], others: Iterable[str]) -> frozenset[str]:
  """The leaves `others`, such as averages of BatchNorm, that go with parameters of the same module.

  Args:
    selected: some of the parameters.
    names: all parameters; a module counts if all of its parameters are selected.
    others: names of leaves.
  """
  whole = {_module(name) for name in selected} - {_module(name) for name in names if name not in selected}
  return frozenset(name for name in others if _module(name) in whole)


def _module(name: str) -> str:
  return name.rpartition('/')[0]


def _matches(name: str, patterns) -> bool:
  return any(fnmatch.fnmatchcase(name.removeprefix(ENCODER), pattern) for pattern in patterns)


def check(key: str, patterns: Sequence[str], names: Iterable[str]) -> None:
  """Raises a FieldError for the first pattern that matches no parameter; it has the nearest names.

  Args:
    key: of the config, such as 'transfer'.
    patterns, names: as for `chosen`.
  """
  inside = [name.removeprefix(ENCODER) for name in names if name.startswith(ENCODER)]
  parts = sorted({part for name in inside for part in name.split('/')})
  for pattern in patterns:
    if not any(fnmatch.fnmatchcase(name, pattern.removeprefix('!')) for name in inside):
      unknown = [part for part in pattern.removeprefix('!').split('/') if part not in (*parts, '*')]
      raise FieldError(
        key,
        f'has the pattern {pattern!r}, which matches no parameter of the encoder; '
        f'`lra-spt list --parameters=CONFIG` lists them.{nearest(unknown[0], parts) if unknown else ""}',
      )
