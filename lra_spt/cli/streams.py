"""Standard output and error of the program `lra-spt`: closed, full, or of a terminal with few letters."""

import os
import sys

from lra_spt.errors import touching

ANY_BYTE = ('utf-8', 'surrogateescape')  # prints all letters, and names of files of any bytes as they are


def prepare() -> None:
  """Before anything is printed: what was closed (`lra-spt list >&-`) is printed nowhere, and no file of ours
  gets its number; a letter that a terminal or log has no code for is printed as '?', so that no command ends
  for it. Standard error does that already, in its own way."""
  for name in ('stdout', 'stderr'):
    if getattr(sys, name) is None:
      setattr(sys, name, open(os.devnull, 'w', encoding='utf-8'))
  if hasattr(sys.stdout, 'reconfigure') and (sys.stdout.encoding, sys.stdout.errors) != ANY_BYTE:
    sys.stdout.reconfigure(errors='replace')


def check() -> None:
  """Prints a line more, to learn whether it was standard output that the system refused.

  Raises:
    FileAccessError: it cannot be written.
  """
  with touching('standard output', 'written'):
    print(flush=True)


def print_no_more() -> None:
  """Python's own flush at the end goes nowhere."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
