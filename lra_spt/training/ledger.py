"""What the time of a stage goes to, and the lines that its training writes."""

import contextlib
import time

import jax
import numpy as np

from lra_spt import chips

PARTS = ('steps', 'data', 'evaluation', 'checkpoints', 'compiling')
_COMPILING = '/jax/core/compile/'  # what jax calls the time of tracing, lowering and compiling


class Ledger:
  """Seconds that a stage has taken, and what those of this process went to.

  Args:
    before: seconds that earlier processes took, which a resumed stage goes on from.
  """

  def __init__(self, before: float = 0.0):
    self._before, self._start = before, time.monotonic()
    self._spent = dict.fromkeys(PARTS, 0.0)
    self._compiled: list[tuple[float, float]] = []  # disjoint spans of the clock, in order

  @property
  def seconds(self) -> float:
    """That the stage has taken, those before a restart included."""
    return self._before + time.monotonic() - self._start

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
    return found | {'other': max(time.monotonic() - self._start - sum(found.values()), 0.0)}

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


class TrainLog:
  """Training lines: means over the steps since the last line, written about every `every` steps.

  met_non_finite: whether a line held a number that is not finite, a reason to look at the state's own record.
  Where the peak of the devices is known, lines have `mfu`, which part of it the model's operations are.
  """

  def __init__(self, writer, progress, *, batch_size: int, every: int, flops: int, mesh):
    self._writer, self._progress, self._batch_size, self._every = writer, progress, batch_size, every
    peak = chips.peak_flops(mesh.devices.flat[0].device_kind)
    self._seconds_at_best = None if peak is None else flops / (peak * mesh.size)  # of a step
    self._pending: list[tuple[int, int, dict]] = []
    self._steps = 0
    self._since = time.monotonic()
    self.met_non_finite = False

  def add(self, step: int, count: int, records: dict) -> None:
    """Notes a dispatch; writes a line when enough steps are in, but never waits for the one just started."""
    if self._steps >= self._every:
      self.write()
    self._pending.append((step, count, records))
    self._steps += count

  def write(self) -> None:
    """Writes one line for everything pending."""
    if not self._pending:
      return
    step = self._pending[-1][0]
    loss, norm, rate = (
      np.concatenate([np.asarray(records[name])[:count] for _, count, records in self._pending])
      for name in ('loss', 'gradient_norm', 'learning_rate')
    )
    self.met_non_finite |= not (np.isfinite(loss).all() and np.isfinite(norm).all())
    now = time.monotonic()
    seconds = max((now - self._since) / self._steps, 1e-9)
    scalars = {
      'split': 'train',
      'loss': float(np.mean(loss, dtype=np.float64)),
      'gradient_norm': float(np.mean(norm, dtype=np.float64)),
      'learning_rate': float(rate[-1]),
      'examples_per_second': round(self._batch_size / seconds, 1),
    }
    if self._seconds_at_best is not None:
      scalars['mfu'] = round(self._seconds_at_best / seconds, 4)
    self._writer.write_scalars(step, scalars)
    self._writer.flush()
    self._progress.note(step, scalars)
    self._pending, self._steps, self._since = [], 0, now
