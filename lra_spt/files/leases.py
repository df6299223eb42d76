"""One owner of a folder in a bucket, where there are no locks: an object that its owner keeps renewing.

The owner rewrites its lease every BEAT seconds, on the condition that the object is still its own. A process
that finds a lease watches it by its own clock: if the lease is renewed, the process refuses to start; if it
is not renewed for SILENCE seconds, the process takes it. Clocks of different machines are never compared, so
they need not agree.

An owner that has not renewed its lease for FENCE seconds, because it was suspended or disconnected, renews it
before it writes anything else, and raises if another process has taken it meanwhile. Only arrays of a
checkpoint that TensorStore is sending at that moment may still arrive; they lack the mark that completes a
checkpoint.
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
SHORTEST, LONGEST = 1.0, 600.0  # that SILENCE may be: who finds a lease trusts no other


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
  """Makes a folder this process's own until it leaves, or dies and SILENCE passes.

  Raises:
    ConfigError: another process owns it; within, whatever writes there raises it when another took it.
    FileAccessError: it cannot be written to, or not be listed.
  """
  lease = _Lease(folder)
  lease.acquire(doing)
  gcs.guards.append(lease.guard)
  try:
    # TensorStore gives an empty list where listing is refused, and checkpoints would seem to be missing.
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
  """Whether a living process owns a folder; where there is a lease, it is watched for a while."""
  path = folder / LEASE
  first = path.read()
  beat = _silence(first.value) / 6 if first.state == 'value' else 0.0  # of its owner
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
  """Seconds, also those that the machine slept for."""
  return time.clock_gettime(getattr(time, 'CLOCK_BOOTTIME', time.CLOCK_MONOTONIC))


class _Lease:
  """A lease of this process on a folder."""

  def __init__(self, folder):
    self.folder, self.path = folder, folder / LEASE
    self._owner = {'process': os.getpid(), 'host': socket.gethostname(), 'id': uuid.uuid4().hex}
    self._number = 0  # of renewals
    self._generation, self._renewed, self._lost = None, 0.0, ''
    self._lock, self._ended = threading.Lock(), threading.Event()
    self._thread = threading.Thread(target=self._beat, name='lease', daemon=True)

  def acquire(self, doing):
    """Returns as the owner; waits as long as it is not clear whether another one lives."""
    seen = since = told = None
    while True:
      found, now = self.path.read(), _now()
      generation, free = found.stamp.generation, found.state != 'value'
      if free or (generation == seen and now - since > _silence(found.value)):
        if gcs.insist(lambda generation=generation: self._write(generation)):
          break
        continue
      if seen is None:
        seen, since = generation, now
      elif generation != seen:
        raise InUse(
          f'Another process ({_named(found.value)}) is {doing} {self.folder}; wait for it to end, or choose '
          'another folder.'
        )
      elif not told and now - since > 2 * BEAT:
        told = True
        print(
          f'{self.folder} belongs to {_named(found.value)}, which has not been heard from; it is taken over '
          f'after {_silence(found.value):.0f} s of silence.',
          file=sys.stderr,
        )
      time.sleep(BEAT / 10)
    self._thread.start()

  def release(self):
    """Removes the lease; does nothing to one of another process."""
    self._ended.set()
    self._thread.join()
    with contextlib.suppress(OSError):
      self.path.write_over(self._generation, None)

  def guard(self, path):
    """Raises a ConfigError where `path` is in the folder and the folder is no longer this process's own."""
    if path != self.path and self.folder in path.parents:
      if not self._lost and _now() - self._renewed > FENCE:
        self._renew()
      if self._lost:
        raise ConfigError(self._lost)

  def _beat(self):
    while not self._ended.wait(BEAT) and not self._lost:
      with contextlib.suppress(OSError):  # the bucket is away; the guard asks again when it matters
        self._renew()

  def _renew(self):
    with self._lock:
      if not self._lost and not self._write(self._generation):
        found = self.path.read()
        owner = _named(found.value) if found.state == 'value' else 'nobody'
        self._lost = (
          f'{self.folder} belongs to {owner} now, because this process was not heard from for too long; it '
          'has stopped, and has written nothing since.'
        )

  def _write(self, generation) -> bool:
    """Whether the lease is this process's after it was written over another one."""
    began = _now()
    self._number += 1
    content = json.dumps(self._owner | {'number': self._number, 'seconds': SILENCE}).encode()
    written = self.path.write_over(generation, content)
    if not written:  # somebody else was faster, or this very write was done and not answered, and sent again
      found = self.path.read()
      if found.value != content:
        return False
      written = found.stamp.generation
    self._generation, self._renewed = written, began
    return True


def _silence(content: bytes) -> float:
  """After how many seconds the owner of a lease is to count as dead, as the lease says."""
  with contextlib.suppress(ValueError, TypeError, KeyError):
    return min(LONGEST, max(SHORTEST, float(json.loads(content)['seconds'])))
  return SILENCE


def _named(content: bytes) -> str:
  with contextlib.suppress(ValueError, TypeError, KeyError):
    owner = json.loads(content)
    return f'process {owner["process"]} on {owner["host"]}'[:200]
  return 'a process of unknown number'
