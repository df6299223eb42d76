"""How the time of a stage is spent."""

import contextlib
import time
from collections.abc import Iterable, Sequence

import jax

PARTS = ('steps', 'data', 'evaluation', 'checkpoints', 'compiling')
_COMPILING = '/jax/core/compile/'  # what jax calls the time of tracing, lowering and compiling


class Ledger:
  """Seconds that a stage has taken each of its runs, and what those of this process went to.

  Args:
    before: seconds of each run that earlier processes took, which a resumed stage goes on from.
  """

  def __init__(self, before: Sequence[float] = (0.0,)):
    self._start = self._charged = time.monotonic()
    self._seconds, self._active = [*before], [True] * len(before)
    self._spent = dict.fromkeys(PARTS, 0.0)
    self._compiled: list[tuple[float, float]] = []  # disjoint spans of the clock, in order

  @property
  def elapsed(self) -> float:
    """Seconds of this process."""
    return time.monotonic() - self._start

  @property
  def seconds(self) -> list[float]:
    """Of each run, those before a restart included; active runs have equal shares of what passes."""
    now = time.monotonic()
    share = (now - self._charged) / max(1, sum(self._active))
    self._seconds = [s + share * active for s, active in zip(self._seconds, self._active, strict=True)]
    self._charged = now
    return self._seconds

  def share_among(self, active: Iterable[bool]) -> None:
    """From now on only those runs share what passes; the seconds of others are final."""
    self._seconds, self._active = self.seconds, [*active]

  @contextlib.contextmanager
  def on(self, part: str):
    """What is done within counts as `part`, but for what jax compiles in it."""
    start, compiled = time.monotonic(), self._compiling
    try:
      yield
    finally:
      self._spent[part] += time.monotonic() - start - (self._compiling - compiled)

  @contextlib.contextmanager
  def listening(self):
    """Within, the ledger learns from jax what it compiles."""
    jax.monitoring.register_event_duration_secs_listener(self._note)
    try:
      yield
    finally:
      jax.monitoring.unregister_event_duration_listener(self._note)

  @property
  def parts(self) -> dict[str, float]:
    """{part: seconds} of this process, and of 'other', which is what remains."""
    found = self._spent | {'compiling': self._compiling}
    return found | {'other': max(self.elapsed - sum(found.values()), 0.0)}

  @property
  def _compiling(self) -> float:
    return sum(end - start for start, end in self._compiled)

  def _note(self, event: str, duration: float, **_) -> None:
    """An event has just ended; it lasted so many seconds, those of events inside of it included."""
    if not event.startswith(_COMPILING):
      return
    end = time.monotonic()
    start = end - duration
    while self._compiled and self._compiled[-1][1] > start:
      start = min(start, self._compiled.pop()[0])
    self._compiled.append((start, end))


def in_words(parts: dict[str, float]) -> str:
  """'812 s: 93.1 % steps, 3.2 % evaluation, ...' of `Ledger.parts`, the largest first, without what is below
  half a percent."""
  total = sum(parts.values())
  shares = sorted(((100 * seconds / max(total, 1e-9), part) for part, seconds in parts.items()), reverse=True)
  return f'{total:.0f} s: ' + ', '.join(f'{share:.1f} % {part}' for share, part in shares if share >= 0.5)
