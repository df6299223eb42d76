"""A watch over the other processes of a run, so that none waits forever for one that died.

Processes meet in collectives, where one that lost another hangs, or fails with whatever its transport says.
jax's own service aborts it in C++ after 100 s, and at once if the first process is lost. Here every process
leaves a heartbeat in the store of that service, and when another one's heartbeats stop, it ends with a
sentence and status 75 (run it again). Saved state stays intact, as after a power cut.
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
  """Within, this process ends with status 75 when another one of its run is lost; at the end all part."""
  if not jax.distributed.is_initialized():
    yield
    return
  watch = _Watch()
  try:
    yield
  except UserError as error:
    watch.leave(_ENDED if isinstance(error, Interrupted) else _FAILED, str(error), error.status)
    raise
  except KeyboardInterrupt:  # a second one: at once
    watch.say(_FAILED)
    _end('interrupted.', status=130)
  except Exception as error:
    if _LOST_TOUCH.search(str(error)):
      watch.verdict()
    watch.leave(_FAILED, ''.join(traceback.format_exception(error)), status=1)  # a defect
    raise
  watch.leave(_ENDED, 'the run has ended, but another of its processes has not reported its end.', status=0)


@contextlib.contextmanager
def ended_after(seconds: float, sentence: str, status: int = Interrupted.status):
  """Ends the process where what is done within takes longer: it may wait in C++, which nothing else ends."""
  timer = threading.Timer(seconds, _end, (sentence, status))
  timer.daemon = True
  timer.start()
  try:
    yield
  finally:
    timer.cancel()


class _Watch:
  """Beats, and looks at the beats of the others, in a thread."""

  def __init__(self):
    state = distributed.global_state  # of jax itself one would ask when its devices are there, which waits
    self._store, self._mine = state.client, str(state.process_id)
    now = time.monotonic()
    # By process: its last beat, and when it was new.
    self._seen = {str(i): ('', now) for i in range(state.num_processes) if str(i) != self._mine}
    self._closed = threading.Event()
    self._leaving = None
    self._restore = self._explain_aborts(state.coordinator_address)
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def verdict(self) -> None:
    """Returns when all others turn out to be alive; else the process ends meanwhile."""
    self._thread.join(SILENCE + 3 * BEAT)

  def leave(self, last: str, sentence: str, status: int) -> None:
    """Ends the watch and, when all others are here too, jax's service; `last` tells them how this process
    ended. Where they do not come, it ends here with its sentence and status."""
    self._closed.set()
    self._thread.join()
    self._leaving = sentence, status
    with ended_after(SILENCE, sentence, status):
      try:
        self._beat(last)
        jax.distributed.shutdown()
      except jax.errors.JaxRuntimeError:  # another one is gone, for which a thread of jax aborts in a moment
        _end(sentence, status)
    self._restore()

  def say(self, last: str) -> None:
    """Tells the others how this process ends, where they can be told."""
    self._closed.set()
    with contextlib.suppress(jax.errors.JaxRuntimeError):
      self._beat(last)

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
        self._part_and_end(f'process {process} of this run ended with an error; see its message.', status=2)
      elif beat not in (_ENDED, _FAILED) and now - since > SILENCE:
        _end(
          _lost(f'process {process} of this run', f'has not answered for {now - since:.0f} s'), status=_AGAIN
        )

  def _part_and_end(self, sentence, status):
    """While the main thread waits for a process that has said that it ends, and waits for this one."""
    with ended_after(GRACE, sentence, status), contextlib.suppress(jax.errors.JaxRuntimeError):
      jax.distributed.shutdown()
    _end(sentence, status)

  def _explain_aborts(self, address: str):
    """When jax's client aborts this process because the first one, at `address`, is gone: the sentence and
    the status of it, or of an end that this process has come to. Other aborts stay what they are. Returns
    what undoes this.

    A handler of Python would wait for the main thread, so it is set in C. It runs in the thread that aborts.
    """
    host, _, port = address.rpartition(':')

    def explain(number):
      try:
        socket.create_connection((host.strip('[]'), int(port)), timeout=5).close()
      except OSError:
        _end(*(self._leaving or (_lost('the first process of this run', 'no longer answers'), _AGAIN)))

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


def _lost(who, silence) -> str:
  return f'{who} {silence}; what was saved is intact, and the same command resumes from there.'


def _end(sentence, status) -> None:
  """Ends the process from any thread; the main one may wait in a collective for ever."""
  sys.stdout.flush()
  os.write(sys.stderr.fileno(), f'lra-spt: {sentence}\n'.encode())
  os._exit(status)
