"""Signals that ask a command to save its state and end; needs no jax."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable

# Schedulers send the last three before a limit; SLURM's --signal and submitit let users choose USR1 or USR2.
NUMBERS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU
_INSISTENT = signal.SIGINT, signal.SIGTERM


@contextlib.contextmanager
def heeded(ask: Callable[[int], None], *, terminate=signal.SIG_DFL, leave=()):
  """Calls `ask` with the number of each signal in NUMBERS that arrives within the context.

  A second SIGINT raises KeyboardInterrupt, and a second SIGTERM has the handler `terminate`. The others are
  repeated by those who send them: the kernel sends SIGXCPU every second, and a closed terminal and its shell
  each send SIGHUP. So they never end a process that saves. SIGHUP that was ignored before, as under nohup,
  stays ignored, and SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU with a handler in Python keep it. Outside of the
  main thread, where signals cannot be caught, nothing changes.

  Args:
    terminate: the handler of a second SIGTERM.
    leave: signals that are not caught.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  again = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: terminate}

  def note(number, frame):
    if number in again:
      signal.signal(number, again[number])
    ask(number)

  before = {number: signal.getsignal(number) for number in NUMBERS}
  taken = [number for number in NUMBERS if number not in leave and _is_free(number, before[number])]
  for number in taken:
    signal.signal(number, note)
  try:
    yield
  finally:
    for number in taken:
      signal.signal(number, before[number])


def _is_free(number, handler) -> bool:
  if handler is None or number in _INSISTENT:  # None: set by a library in C, which Python cannot restore
    return handler is not None
  return handler is signal.SIG_DFL or (handler is signal.SIG_IGN and number != signal.SIGHUP)


def say(sentence: str) -> None:
  """Writes a line to standard error, if there is one, from a handler, where `print` may meet itself."""
  with contextlib.suppress(AttributeError, OSError, ValueError):
    os.write(sys.stderr.fileno(), f'lra-spt: {sentence}\n'.encode())
