"""Large arrays in huge pages, on Linux.

On CPUs, XLA allocates a step's intermediate arrays anew in every step, and the kernel provides them in pages
of 4 KiB, each with a page fault and 4 KiB of zeros to write. This takes a large share of a step, above all on
virtual machines. From version 2.35 on, glibc uses pages of 2 MiB if a process starts with
glibc.malloc.hugetlb=1 (see the chapter on tunables in its manual). Results are equal to the last bit.
"""

import os
import sys
from collections.abc import Mapping

VARIABLE = 'GLIBC_TUNABLES'
_NAME = 'glibc.malloc.hugetlb'
_FIRST = (2, 35)  # version of glibc


def environment(given: Mapping[str, str]) -> dict[str, str]:
  """Adds the setting to an environment, if the C library has it and the environment does not set it.

  A user switches it off with GLIBC_TUNABLES=glibc.malloc.hugetlb=0.
  """
  before = given.get(VARIABLE, '')
  if _NAME in before or not _known():
    return dict(given)
  return dict(given) | {VARIABLE: f'{before}:{_NAME}=1'.removeprefix(':')}


def restart() -> None:
  """Starts this process again with the setting, unless it has it: same command, same process id.

  Call it first: the process loses its memory.
  """
  wanted = environment(os.environ)
  if wanted != os.environ:
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], wanted)


def _known() -> bool:
  """True if the C library is a glibc with this setting."""
  try:
    name, version = os.confstr('CS_GNU_LIBC_VERSION').split()
    return name == 'glibc' and tuple(map(int, version.split('.')[:2])) >= _FIRST
  except (AttributeError, OSError, ValueError):  # no confstr, no such name, another C library
    return False
