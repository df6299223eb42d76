"""Standard output and error of the program `lra-spt`, which may be closed, full, or of a small encoding, and
its temporary files."""

import errno
import io
import os
import sys
import tempfile

from lra_spt.errors import FileAccessError, touching
from lra_spt.files.streams import open_missing

IN_MEMORY = '/dev/shm'
ANY_BYTE = ('utf-8', 'surrogateescape')  # prints all letters, and file names of any bytes


def prepare() -> None:
  """Makes the streams safe to print to.

  The null device replaces a closed stream (`lra-spt list >&-`), so that no file of ours gets its number.
  On standard output a letter that the encoding lacks becomes '?'; standard error handles that by itself. A
  terminal that is closed later swallows what is printed, so that the command can save or go on without it.
  """
  open_missing()
  for name in ('stdout', 'stderr'):
    if (stream := getattr(sys, name)).isatty() and isinstance(stream, io.TextIOWrapper):
      raw, how = _Terminal(stream.fileno(), 'wb', closefd=False), (stream.encoding, stream.errors)
      setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(raw), *how, line_buffering=True))
  if hasattr(sys.stdout, 'reconfigure') and (sys.stdout.encoding, sys.stdout.errors) != ANY_BYTE:
    sys.stdout.reconfigure(errors='replace')


class _Terminal(io.FileIO):
  """A terminal whose window or connection may be closed while the command runs."""

  def write(self, data) -> int:
    try:
      return super().write(data)
    except OSError as error:
      if error.errno != errno.EIO:  # what Linux and macOS answer for a terminal that is gone
        raise
      return memoryview(data).nbytes


def find_temporary_folder() -> None:
  """Puts temporary files into memory if no usual folder for them can be written, as in a container with a
  read-only root. Matplotlib and others need such files."""
  try:
    tempfile.gettempdir()
  except FileNotFoundError:
    if os.access(IN_MEMORY, os.W_OK):
      os.environ['TMPDIR'] = tempfile.tempdir = IN_MEMORY


def refusal() -> FileAccessError | None:
  """Prints an empty line; returns the error if standard output cannot be written, such as /dev/full."""
  try:
    with touching('standard output', 'written'):
      print(flush=True)
  except FileAccessError as error:
    print_no_more()
    return error
  return None


def print_no_more() -> None:
  """Sends the flush at the end of Python to the null device."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
