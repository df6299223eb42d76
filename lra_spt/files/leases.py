"""Leases: one process at a time owns a folder in a bucket, where there are no locks.

A lease is an object that its owner rewrites every BEAT seconds, on the condition that nobody else has changed
it. Another process watches the lease by the clock of its machine: if the lease is renewed, the process
refuses to start; if it is not renewed for SILENCE seconds, the process takes it. Clocks of different machines
are never compared, so they need not agree.

An owner that has not renewed its lease for FENCE seconds, because it was suspended or disconnected, renews it
before it writes anything else, and raises if another process has taken it. Only arrays of a checkpoint that
TensorStore is sending at that moment may still arrive; they lack the mark that completes a checkpoint.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import uuid

from lra_spt.errors import ConfigError, FileAccessError, InUse
from lra_spt.files import gcs

LEASE = '.lease'
SHORTEST, LONGEST = 1.0, 600.0  # bounds of SILENCE, also in the lease of another process


def _chosen(text: str) -> float:
  with contextlib.suppress(ValueError):
    if SHORTEST <= float(text) <= LONGEST:
      return float(text)
  raise ConfigError(
    f'LRA_SPT_LEASE_SECONDS is {text!r}; give a number of seconds from {SHORTEST:.0f} to {LONGEST:.0f}.'
  )


SILENCE = _chosen(os.environ.get('LRA_SPT_LEASE_SECONDS') or '60')
BEAT, FENCE = SILENCE / 6, SILENCE / 2


@contextlib.contextmanager
def leased(folder: gcs.BucketPath, doing: str):
  """Owns a folder until the end of the context, or until SILENCE after the death of the process.

  Raises:
    InUse: another process owns it.
    ConfigError: raised by writes within the context after another process has taken the lease.
    FileAccessError: the folder cannot be written to or listed.
  """
  lease = _Lease(folder)
  lease.acquire(doing)
  gcs.guards.append(lease.guard)
  try:
    # If listing is denied, TensorStore returns an empty list, and checkpoints would seem to be missing.
    if lease.path not in folder.files():
      raise FileAccessError(
        f'{folder} could not be listed: permission is denied; give the credentials of this machine the '
        'permission to list the objects of the bucket.'
      )
    yield
  finally:
    gcs.guards.remove(lease.guard)
    lease.release()


def is_leased(folder: gcs.BucketPath) -> bool:
  """True if a living process owns a folder; watches a lease for a while."""
  path = folder / LEASE
  first = path.read()
  beat = _silence(first.value) / 6 if first.state == 'value' else 0.0  # BEAT of its owner
  end = time.monotonic() + 2.5 * beat
  while first.state == 'value' and time.monotonic() < end:
    time.sleep(beat / 10)
    now = path.read()
    if now.state != 'value':
      return False
    if now.stamp.generation != first.stamp.generation:
      return True
  return False


def _now() -> float:
  """Seconds since the start of the machine, including sleep."""
  return time.clock_gettime(getattr(time, 'CLOCK_BOOTTIME', time.CLOCK_MONOTONIC))


class _Lease:
  """A lease of this process on a folder."""

  def __init__(self, folder):
    self.folder, self.path = folder, folder / LEASE
    self._owner = {'process': os.getpid(), 'host': socket.gethostname(), 'id': uuid.uuid4().hex}
    self._generation, self._renewed, self._lost = None, 0.0, ''
    self._lock, self._ended = threading.Lock(), threading.Event()
    self._thread = threading.Thread(target=self._beat, name='lease', daemon=True)

  def acquire(self, doing):
    """Takes the lease; waits until it is clear whether another owner is alive."""
    seen = since = announced = None
    while True:
      stored, now = self.path.read(), _now()
      generation, free = stored.stamp.generation, stored.state != 'value'
      if free or (generation == seen and now - since > _silence(stored.value)):
        if gcs.insist(lambda generation=generation: self._write(generation)):
          break
        continue
      if seen is None:
        seen, since = generation, now
      elif generation != seen:
        raise InUse(
          f'Another process ({_named(stored.value)}) is {doing} {self.folder}; wait for it to end, or choose '
          'another folder.'
        )
      elif not announced and now - since > 2 * BEAT:
        announced = True
        print(
          f'{self.folder} belongs to {_named(stored.value)}, which does not renew its lease; it is taken '
          f'over after {_silence(stored.value):.0f} s of silence.',
          file=sys.stderr,
        )
      time.sleep(BEAT / 10)
    self._thread.start()

  def release(self):
    """Removes the lease, unless it belongs to another process."""
    self._ended.set()
    self._thread.join()
    with contextlib.suppress(OSError):
      self.path.write_over(self._generation, None)

  def guard(self, path):
    """Raises a ConfigError for a path in the folder if another process has taken the lease."""
    if path != self.path and self.folder in path.parents:
      if not self._lost and _now() - self._renewed > FENCE:
        self._renew()
      if self._lost:
        raise ConfigError(self._lost)

  def _beat(self):
    while not self._ended.wait(BEAT) and not self._lost:
      with contextlib.suppress(OSError):  # the bucket does not answer; the guard tries again before a write
        self._renew()

  def _renew(self):
    with self._lock:
      if not self._lost and not self._write(self._generation):
        stored = self.path.read()
        owner = _named(stored.value) if stored.state == 'value' else 'nobody'
        self._lost = (
          f'{self.folder} belongs to {owner} now, because this process did not renew its lease for too long; '
          'it has stopped, and has written nothing since.'
        )

  def _write(self, generation) -> bool:
    """Writes the lease over one of this generation; True if it belongs to this process then."""
    began = _now()
    content = json.dumps(self._owner | {'seconds': SILENCE}).encode()
    written = self.path.write_over(generation, content)
    if not written:  # another process was faster, or this write was repeated because its answer was lost
      stored = self.path.read()
      if stored.value != content:
        return False
      written = stored.stamp.generation
    self._generation, self._renewed = written, began
    return True


def _silence(content: bytes) -> float:
  """The SILENCE of the owner of a lease, which the lease holds."""
  with contextlib.suppress(ValueError, TypeError, KeyError):
    return min(LONGEST, max(SHORTEST, float(json.loads(content)['seconds'])))
  return SILENCE


def _named(content: bytes) -> str:
  with contextlib.suppress(ValueError, TypeError, KeyError):
    owner = json.loads(content)
    return f'process {owner["process"]} on {owner["host"]}'[:200]
  return 'a process of unknown number'
