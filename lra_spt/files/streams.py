"""Standard output and error of a program that has none, as a service, under pythonw, or after `>&-`."""

import os
import sys


def open_missing() -> None:
  """Puts the null device in the place of a stream that is missing or closed, so that all may print.

  It stays there, because other threads may print too.
  """
  for name in ('stdout', 'stderr'):
    stream = getattr(sys, name)
    if stream is None or getattr(stream, 'closed', False):
      setattr(sys, name, open(os.devnull, 'w', encoding='utf-8'))
