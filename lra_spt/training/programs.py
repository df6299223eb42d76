"""Programs that the runs of a process share: further seeds and calls from a notebook compile nothing."""

import functools
from collections.abc import Callable

KEPT = 8  # of each kind, the ones used last
_FORGET: list[Callable[[], None]] = []


def shared(make):
  """Decorates a function that makes a program, so that equal arguments get the same one. Arguments that
  cannot be hashed, such as a task with its statistics by position, get one of their own, and so do mixers and
  objectives of others: what these call may change from cell to cell of a notebook."""
  kept = functools.lru_cache(KEPT)(make)
  _FORGET.append(kept.cache_clear)

  @functools.wraps(make)
  def program(*arguments, **keywords):
    try:
      hash((arguments, *keywords.values()))
    except TypeError:
      return make(*arguments, **keywords)
    if not all(_is_ours(getattr(argument, 'objective', argument)) for argument in arguments):
      return make(*arguments, **keywords)
    return kept(*arguments, **keywords)

  return program


def _is_ours(part) -> bool:
  return type(part).__module__.partition('.')[0] in ('lra_spt', 'jax', 'jaxlib', 'builtins')


def forget_programs() -> None:
  """For those who change the code that programs were traced from, as tests do."""
  for forget in _FORGET:
    forget()
