"""Measures how the time of a stage is spent."""

import contextlib
import time
from collections.abc import Iterable, Sequence

import jax

PARTS = ('steps', 'data', 'evaluation', 'checkpoints', 'compiling')
_COMPILING = '/jax/core/compile/'  # what jax calls the time of tracing, lowering and compiling


class StageTiming:
  """Counts the seconds that each run of a stage has taken, and those that this process spent on each part.

  Args:
    before: the seconds of each run in earlier processes, from which a resumed stage goes on.
  """

  def __init__(self, before: Sequence[float] = (0.0,)):
    self._start = self._charged = time.monotonic()
    self._seconds, self._active = [*before], [True] * len(before)
    self._spent = dict.fromkeys(PARTS, 0.0)
    self._compiled: list[tuple[float, float]] = []  # disjoint spans of the clock, in order

  @property
  def elapsed(self) -> float:
    """The seconds of this process."""
    return time.monotonic() - self._start

  @property
  def seconds(self) -> list[float]:
    """The seconds of each run, those before a restart included; active runs share the time equally."""
    now = time.monotonic()
    share = (now - self._charged) / max(1, sum(self._active))
    self._seconds = [s + share * active for s, active in zip(self._seconds, self._active, strict=True)]
    self._charged = now
    return self._seconds

  def share_among(self, active: Iterable[bool]) -> None:
    """Lets only the active runs share the time from now on; the seconds of the others are final."""
    self._seconds, self._active = self.seconds, [*active]

  @contextlib.contextmanager
  def on(self, part: str):
    """Counts the time of the context as `part`, without that in which jax compiles."""
    start, compiled = time.monotonic(), self._compiling
    try:
      yield
    finally:
      self._spent[part] += time.monotonic() - start - (self._compiling - compiled)

  @contextlib.contextmanager
  def listening(self):
    """Counts what jax compiles in the context."""
    jax.monitoring.register_event_duration_secs_listener(self._note)
    try:
      yield
    finally:
      jax.monitoring.unregister_event_duration_listener(self._note)

  @property
  def parts(self) -> dict[str, float]:
    """{part: seconds} of this process, with the rest as 'other'."""
    parts = self._spent | {'compiling': self._compiling}
    return parts | {'other': max(self.elapsed - sum(parts.values()), 0.0)}

  @property
  def _compiling(self) -> float:
    return sum(end - start for start, end in self._compiled)

  def _note(self, event: str, duration: float, **_) -> None:
    """Notes an event that has just ended; `duration` includes the seconds of events inside of it."""
    if not event.startswith(_COMPILING):
      return
    end = time.monotonic()
    start = end - duration
    while self._compiled and self._compiled[-1][1] > start:
      start = min(start, self._compiled.pop()[0])
    self._compiled.append((start, end))


def in_words(parts: dict[str, float]) -> str:
  """Returns `StageTiming.parts` as '812 s: 93.1 % steps, 3.2 % evaluation, ...', the largest part first,
  without parts below half a percent."""
  total = sum(parts.values())
  shares = sorted(((100 * seconds / max(total, 1e-9), part) for part, seconds in parts.items()), reverse=True)
  return f'{total:.0f} s: ' + ', '.join(f'{share:.1f} % {part}' for share, part in shares if share >= 0.5)
