"""Programs that all runs of a process share, so that further seeds compile nothing."""

import functools
from collections.abc import Callable

CACHED = 8  # programs of each kind, those used last
_FORGET: list[Callable[[], None]] = []


def shared(make):
  """Decorates a function that makes a program, so that equal arguments return the same program.

  Arguments that cannot be hashed, such as a task with statistics by position, get a new program at every
  call. So do mixers and objectives from outside the package, because the functions that they call may change
  from cell to cell of a notebook.
  """
  cached = functools.lru_cache(CACHED)(make)
  _FORGET.append(cached.cache_clear)

  @functools.wraps(make)
  def program(*arguments, **keywords):
    try:
      hash((arguments, *keywords.values()))
    except TypeError:
      return make(*arguments, **keywords)
    if not all(_is_ours(getattr(argument, 'objective', argument)) for argument in arguments):
      return make(*arguments, **keywords)
    return cached(*arguments, **keywords)

  return program


def _is_ours(part) -> bool:
  return type(part).__module__.partition('.')[0] in ('lra_spt', 'jax', 'jaxlib', 'builtins')


def forget_programs() -> None:
  """Drops all programs, such as after a test changed the code that they were traced from."""
  for forget in _FORGET:
    forget()
