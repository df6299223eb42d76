"""Numba's compiler, with its cache on disk where that can be written and read."""

import contextlib
import os

import numba
from numba.core.caching import FunctionCache


class _Cache(FunctionCache):
  """A cache that may be full or damaged. A function that it cannot load is compiled."""

  def load_overload(self, sig, target_context):
    with contextlib.suppress(Exception):  # a file that was cut off raises what pickle raises
      return super().load_overload(sig, target_context)
    return None

  def save_overload(self, sig, data):
    with contextlib.suppress(Exception):
      super().save_overload(sig, data)


def jit(function):
  """Returns the function, which is compiled at its first call and runs without the interpreter's lock."""
  compiled = numba.njit(nogil=True)(function)
  if os.path.expanduser('~') == '~' and 'NUMBA_CACHE_DIR' not in os.environ:
    return compiled  # without a home, Numba would make a folder that is called ~
  with contextlib.suppress(RuntimeError, OSError):  # no folder for a cache: a read-only package and no home
    compiled._cache = _Cache(function)  # what cache=True does, with Numba's own class
  return compiled
