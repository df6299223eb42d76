"""Heartbeats between the processes of a run, so that none waits forever for one that died.

Processes meet in collectives. If one is lost, the others hang there or fail with an error of the transport.
The service of jax aborts them in C++ after 100 s, or at once if the first process is lost. Here every process
writes a heartbeat to the store of that service. When the heartbeats of another process stop, a process ends
with a sentence and status 75 (run it again). Saved state stays intact, as after a power cut.
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
import traceback

import jax
from jax._src import distributed  # the store has no public name; Orbax imports it from here, too

from lra_spt.errors import Interrupted, UserError

BEAT = 3.0  # seconds between heartbeats
SILENCE = 40.0  # seconds without a heartbeat after which a process counts as lost
GRACE = 10.0  # seconds in which this process may report an error itself after another one failed
_BEATS = 'lra_spt/beats'
_ENDED, _FAILED = 'ended', 'failed'  # values of a last heartbeat
_AGAIN = Interrupted.status
# Words of exceptions that a lost process may cause.
_LOST_TOUCH = re.compile('Gloo|NCCL|UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED|[Cc]onnection|[Ss]ocket')


@contextlib.contextmanager
def watched():
  """Ends this process with status 75 if another process of the run is lost within the context.

  At the end of the context all processes leave the service of jax.
  """
  if not jax.distributed.is_initialized():
    yield
    return
  watch = _Watch()
  try:
    yield
  except UserError as error:
    watch.leave(_ENDED if isinstance(error, Interrupted) else _FAILED, str(error), error.status)
    raise
  except KeyboardInterrupt:  # a second one, which ends the process at once
    watch.say(_FAILED)
    _end('interrupted.', status=130)
  except Exception as error:
    if _LOST_TOUCH.search(str(error)):
      watch.verdict()
    watch.leave(_FAILED, ''.join(traceback.format_exception(error)), status=1)
    raise
  watch.leave(_ENDED, 'the run has ended, but another of its processes has not reported its end.', status=0)


@contextlib.contextmanager
def ended_after(seconds: float, sentence: str, status: int = Interrupted.status):
  """Ends the process if the context takes longer; it may hang in C++, which nothing else interrupts."""
  timer = threading.Timer(seconds, _end, (sentence, status))
  timer.daemon = True
  timer.start()
  try:
    yield
  finally:
    timer.cancel()


class _Watch:
  """Writes heartbeats and watches those of the others, in a thread."""

  def __init__(self):
    state = distributed.global_state  # jax.process_index() would wait for the devices
    self._store, self._mine = state.client, str(state.process_id)
    now = time.monotonic()
    # {process: (its last heartbeat, the time at which it was new)}.
    self._seen = {str(i): ('', now) for i in range(state.num_processes) if str(i) != self._mine}
    self._closed = threading.Event()
    self._leaving = None
    self._restore = self._explain_aborts(state.coordinator_address)
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def verdict(self) -> None:
    """Returns when all others have proved to be alive; otherwise the thread ends the process."""
    self._thread.join(SILENCE + 3 * BEAT)

  def leave(self, last: str, sentence: str, status: int) -> None:
    """Ends the watch and, when all others have arrived, the service of jax.

    If they do not arrive, the process ends with the sentence and the status.

    Args:
      last: value of the last heartbeat, from which the others learn how this process ended.
    """
    self._closed.set()
    self._thread.join()
    self._leaving = sentence, status
    with ended_after(SILENCE, sentence, status):
      try:
        self._beat(last)
        jax.distributed.shutdown()
      except jax.errors.JaxRuntimeError:  # another process is gone, and a thread of jax is about to abort
        _end(sentence, status)
    self._restore()

  def say(self, last: str) -> None:
    """Writes the last heartbeat, if the store can be reached."""
    self._closed.set()
    with contextlib.suppress(jax.errors.JaxRuntimeError):
      self._beat(last)

  def _run(self) -> None:
    number = 0
    while not self._closed.wait(BEAT):
      number += 1
      try:
        self._beat(str(number))
        beats = {key.rpartition('/')[2]: beat for key, beat in self._store.key_value_dir_get(_BEATS)}
      except jax.errors.JaxRuntimeError:  # the first process does not answer, or the store is empty
        beats = {}
      self._look(beats, time.monotonic())

  def _beat(self, beat):
    self._store.key_value_set(f'{_BEATS}/{self._mine}', beat, allow_overwrite=True)

  def _look(self, beats, now) -> None:
    for process, (beat, since) in self._seen.items():
      if beats.get(process, beat) != beat:
        self._seen[process] = beats[process], now
      elif beat == _FAILED and now - since > GRACE:
        self._part_and_end(f'process {process} of this run ended with an error; see its message.', status=2)
      elif beat not in (_ENDED, _FAILED) and now - since > SILENCE:
        _end(
          _lost(f'process {process} of this run', f'has not answered for {now - since:.0f} s'), status=_AGAIN
        )

  def _part_and_end(self, sentence, status):
    """Leaves the service of jax, where the failed process waits, and ends this process."""
    with ended_after(GRACE, sentence, status), contextlib.suppress(jax.errors.JaxRuntimeError):
      jax.distributed.shutdown()
    _end(sentence, status)

  def _explain_aborts(self, address: str):
    """Handles aborts by jax's client after the loss of the first process, which listens at `address`.

    The handler ends the process with a sentence and a status; other aborts are not changed.

    Returns:
      A function that removes the handler.
    """
    host, _, port = address.rpartition(':')

    def explain():
      try:
        socket.create_connection((host.strip('[]'), int(port)), timeout=5).close()
      except OSError:
        _end(*(self._leaving or (_lost('the first process of this run', 'no longer answers'), _AGAIN)))

    return _at_abort(explain)


@contextlib.contextmanager
def ended_at_abort(sentence: str):
  """Ends the process with a sentence if C++ code aborts it within the context."""
  restore = _at_abort(lambda: _end(sentence, _AGAIN))
  try:
    yield
  finally:
    restore()


def _at_abort(explain):
  """Calls `explain` where C++ code aborts the process; a handler of Python would wait for the main thread, so
  it is set in C and runs in the thread that aborts.

  Returns:
    A function that removes the handler.
  """
  kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
  handler = kind(lambda number: explain())
  libc = ctypes.CDLL(None)
  libc.signal.restype = ctypes.c_void_p
  libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
  before = libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
  handlers = [handler]  # keeps it alive while it is set

  def restore():
    libc.signal(signal.SIGABRT, before)
    handlers.clear()

  return restore


def _lost(who, silence) -> str:
  return f'{who} {silence}; what was saved is intact, and the same command resumes from there.'


def _end(sentence, status) -> None:
  """Ends the process from any thread; the main thread may hang in a collective."""
  sys.stdout.flush()
  os.write(sys.stderr.fileno(), f'lra-spt: {sentence}\n'.encode())
  os._exit(status)
