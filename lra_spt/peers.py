"""A watch over the other processes of a run: none waits for ever for one that died.

Processes meet in collectives, where one that lost another hangs, or fails with whatever its transport says;
jax's own service aborts it in C++ after 100 s, and at once where the first process is lost. Here every
process leaves a beat in the store of that service, and ends with a sentence and status 75 (run it again) when
another one's beats stop. What was saved is whole: this is no harder than a power cut.
"""

import contextlib
import ctypes
import os
import re
import signal
import socket
import sys
import threading
import time

import jax
from jax._src import distributed  # the store has no public name; Orbax takes it from here, too

from lra_spt.errors import Interrupted, UserError

BEAT = 3.0  # seconds between beats
SILENCE = 40.0  # seconds without a beat after which a process counts as lost
GRACE = 10.0  # seconds for an own error, when another process fails
_BEATS = 'lra_spt/beats'
_ENDED, _FAILED = 'ended', 'failed'  # in place of a last beat
_AGAIN = Interrupted.status
# Of exceptions that a lost process may be behind.
_LOST_TOUCH = re.compile('Gloo|NCCL|UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED|[Cc]onnection|[Ss]ocket')


@contextlib.contextmanager
def watched():
  """Within, this process ends with status 75 when another one of its run is lost."""
  if not jax.distributed.is_initialized():
    yield
    return
  watch = _Watch()
  last = _FAILED
  try:
    yield
    last = _ENDED
  except Interrupted:
    last = _ENDED
    raise
  except (UserError, KeyboardInterrupt):
    raise
  except Exception as error:
    if _LOST_TOUCH.search(str(error)):
      watch.verdict()
    raise
  finally:
    watch.close(last)


class _Watch:
  """Beats, and looks at the beats of the others, in a thread."""

  def __init__(self):
    self._store = distributed.global_state.client
    self._mine = str(jax.process_index())
    now = time.monotonic()
    # By process: its last beat, and when it was new.
    self._seen = {str(i): ('', now) for i in range(jax.process_count()) if str(i) != self._mine}
    self._closed = threading.Event()
    self._restore = _explained_aborts(distributed.global_state.coordinator_address)
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def verdict(self) -> None:
    """Returns when all others turn out to be alive; else the process ends meanwhile."""
    self._thread.join(SILENCE + 3 * BEAT)

  def close(self, last: str) -> None:
    """Ends the watch; `last` tells the others how this process ended."""
    self._closed.set()
    self._thread.join()
    with contextlib.suppress(jax.errors.JaxRuntimeError):
      self._beat(last)
    self._restore()

  def _run(self) -> None:
    number = 0
    while not self._closed.wait(BEAT):
      number += 1
      try:
        self._beat(str(number))
        found = {key.rpartition('/')[2]: beat for key, beat in self._store.key_value_dir_get(_BEATS)}
      except jax.errors.JaxRuntimeError:  # the first process does not answer, or nobody has beaten yet
        found = {}
      self._look(found, time.monotonic())

  def _beat(self, beat):
    self._store.key_value_set(f'{_BEATS}/{self._mine}', beat, allow_overwrite=True)

  def _look(self, found, now) -> None:
    for process, (beat, since) in self._seen.items():
      if found.get(process, beat) != beat:
        self._seen[process] = found[process], now
      elif beat == _FAILED and now - since > GRACE:
        _end(f'process {process} of this run ended with an error; see what it says.', status=2)
      elif beat not in (_ENDED, _FAILED) and now - since > SILENCE:
        _end(_lost(f'process {process} of this run', f'for {now - since:.0f} s'), status=_AGAIN)


def _lost(who, since) -> str:
  return f'{who} has not answered {since}; what was saved is whole, and the same command goes on there.'


def _end(sentence, status) -> None:
  """Ends the process from any thread; the main one may wait in a collective for ever."""
  sys.stdout.flush()
  os.write(sys.stderr.fileno(), f'lra-spt: {sentence}\n'.encode())
  os._exit(status)


def _explained_aborts(address: str):
  """When jax's client aborts this process because the first one, at `address`, is gone: the sentence and the
  status of it. Other aborts stay what they are. Returns what undoes this.

  A handler of Python would wait for the main thread, so it is set in C. It runs in the thread that aborts.
  """
  host, _, port = address.rpartition(':')

  def explain(number):
    try:
      socket.create_connection((host.strip('[]'), int(port)), timeout=5).close()
    except OSError:
      _end(_lost('the first process of this run', 'any more'), status=_AGAIN)

  kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
  handler = kind(explain)
  libc = ctypes.CDLL(None)
  libc.signal.restype = ctypes.c_void_p
  libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
  before = libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
  handlers = [handler]  # which must live as long as it is set

  def restore():
    libc.signal(signal.SIGABRT, before)
    handlers.clear()

  return restore
