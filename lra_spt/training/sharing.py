"""Programs that the runs of a process share: further seeds, or calls from a notebook, compile nothing
again."""

import functools
from collections.abc import Callable

KEPT = 8  # of each kind, the ones used last
_FORGET: list[Callable[[], None]] = []


def shared(make):
  """Decorates a function that makes a program, so that equal arguments get the same one; arguments that
  cannot be hashed, such as a task with its statistics by position, get one of their own."""
  kept = functools.lru_cache(KEPT)(make)
  _FORGET.append(kept.cache_clear)

  @functools.wraps(make)
  def program(*arguments, **keywords):
    try:
      hash((arguments, *keywords.values()))
    except TypeError:
      return make(*arguments, **keywords)
    return kept(*arguments, **keywords)

  return program


def forget_programs() -> None:
  """For those who change the code that programs were traced from, as tests do."""
  for forget in _FORGET:
    forget()
