"""Bounds by time the work that devices get ahead, so that a run that is asked to end does not wait long."""

import collections
import time

import jax

from lra_spt.distributed import processes

SECONDS = 2.0  # of work ahead: enough that no accelerator waits for the host, too short to make users wait
_PAUSE = 0.05  # seconds, the longest between two looks; handlers of signals run only between them


class InFlight:
  """The dispatches that devices have not finished yet.

  seconds: the measured seconds of a step, without compilation; None before the first dispatch is finished.
  warm: a dispatch after the first is in `seconds`. The first is slow, since it also starts threads and takes
  memory, so it is left out as soon as there is another.
  """

  def __init__(self, what: str):
    """what: names the steps to a user who waits for them, such as 'training steps'."""
    self._what = what
    self._waiting: collections.deque[tuple[jax.Array, int, float]] = collections.deque()
    self._last = 0.0
    self._took = self._steps = 0.0  # seconds and steps, the last ones with the most weight
    self.seconds: float | None = None
    self.warm = False

  def at_once(self, most: int) -> int:
    """Returns the number of steps of the next dispatch: 1 to `most`. Together they take at most half of
    SECONDS, unless a single step takes longer."""
    if self.seconds is None:
      return 1
    return max(1, min(most, int(SECONDS / 2 / max(self.seconds, 1e-9))))

  def wait_for_room(self, steps: int) -> None:
    """Waits until the work ahead and these further steps take at most SECONDS, or no work is ahead."""
    while self._waiting and (
      self.seconds is None or (sum(n for _, n, _ in self._waiting) + steps) * self.seconds > SECONDS
    ):
      self._wait()
      self._settle()

  def add(self, result: jax.Array, steps: int) -> None:
    """Notes a dispatch of so many steps that has been started, with one of its results."""
    self._settle()
    self._waiting.append((result, steps, time.monotonic()))

  def wait(self) -> None:
    """Waits for everything."""
    while self._waiting:
      self._wait()
      self._settle()

  def _wait(self) -> None:
    """Waits for the first dispatch. Looks again and again, since C code that waits holds up signals."""
    result, pause = self._waiting[0][0], 1e-4
    while not result.is_ready():
      time.sleep(pause)
      pause = min(1.5 * pause, _PAUSE)

  def _settle(self) -> None:
    """Drops what is finished, and measures it."""
    steps, since = 0, self._last
    while self._waiting and self._waiting[0][0].is_ready():
      _, count, given = self._waiting.popleft()
      since, steps = (since if steps else max(since, given)), steps + count
    if steps:
      self._last = time.monotonic()
      before = 1 / 2 if self.warm else 0  # the weight of what was measured before
      self._took, self._steps = before * self._took + self._last - since, before * self._steps + steps
      self.warm = self.seconds is not None
      self.seconds = self._took / self._steps
      processes.busy_with(f'the {self._what} in progress (about {max(SECONDS, self.seconds):.0f} s)')
