"""Standard output and error of the program `lra-spt`: they may be closed, full, or of a small encoding."""

import os
import sys

from lra_spt.errors import touching

ANY_BYTE = ('utf-8', 'surrogateescape')  # prints all letters, and file names of any bytes


def prepare() -> None:
  """Makes the streams safe to print to.

  The null device replaces a closed stream (`lra-spt list >&-`), so that no file of ours gets its number.
  On standard output a letter that the encoding lacks becomes '?'; standard error handles that by itself.
  """
  for name in ('stdout', 'stderr'):
    if getattr(sys, name) is None:
      setattr(sys, name, open(os.devnull, 'w', encoding='utf-8'))
  if hasattr(sys.stdout, 'reconfigure') and (sys.stdout.encoding, sys.stdout.errors) != ANY_BYTE:
    sys.stdout.reconfigure(errors='replace')


def check() -> None:
  """Prints an empty line.

  Raises:
    FileAccessError: standard output cannot be written.
  """
  with touching('standard output', 'written'):
    print(flush=True)


def print_no_more() -> None:
  """Sends the flush at the end of Python to the null device."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
