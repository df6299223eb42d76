"""Progress, the training lines of metrics.jsonl, and the profiler."""

import collections
import itertools
import statistics
import sys
import time
from collections.abc import Callable

import jax
import numpy as np
from clu import platform
from tqdm import tqdm

from lra_spt.distributed import chips
from lra_spt.errors import roughly
from lra_spt.training import population

SECONDS_BETWEEN_LINES = 60.0
STEPS_BEFORE_ESTIMATE, SECONDS_BEFORE_ESTIMATE = 3, 2.0
SHOWN = ('loss', 'accuracy', 'mae', 'r2', 'macro_f1', 'auroc')  # metrics beside the bar
LINES_OF_SPEED = 20  # the speed is a median over so many lines, which ignores rare pauses


class ReportProgress:
  """Shows the progress of a stage.

  On a terminal it is a bar with steps, ETA, examples/s and the last metrics; elsewhere (nohup, SLURM,
  notebooks) a line at every evaluation, and one at least every minute.

  It also passes the last metrics to `clu.platform`, where cluster front ends read a task's status.
  """

  def __init__(
    self,
    name: str,
    *,
    total: int | None,
    initial: int,
    batch_size: int,
    enabled: bool,
    compiling: Callable[[], float] = lambda: 0.0,
    estimate: Callable[[int, float], str | None] = lambda step, seconds: None,
  ):
    """total: the steps of the stage; None if only time ends it. compiling: returns the seconds that jax has
    compiled, which are left out of the speed. estimate: makes a line about the whole run from (step, seconds
    a step); it is shown once, after a few steps."""
    enabled = enabled and jax.process_index() == 0
    terminal = (
      hasattr(sys.stderr, 'isatty') and sys.stderr.isatty()
    )  # a logger's stream may have no such method
    self._bar = tqdm(
      total=total,
      initial=initial,
      desc=name,
      unit='step',
      dynamic_ncols=True,
      smoothing=0.1,
      disable=not (enabled and terminal),
    )
    self._lines = enabled and not terminal
    self._compiling, self._compiled = compiling, 0.0
    self._estimate, self._estimate_from = estimate, initial + STEPS_BEFORE_ESTIMATE
    self._name, self._total, self._batch_size = name, total, batch_size
    self._notes: dict[str, str] = {}
    # (step, time) of the last lines, from the end of the first dispatch on, which compiles.
    self._marks: collections.deque[tuple[int, float]] = collections.deque(maxlen=LINES_OF_SPEED)
    self._last_line = time.monotonic()

  def __call__(self, step: int, step_seconds: float | None = None) -> None:
    """Shows the step; step_seconds: a measured one, None while there is none."""
    now, compiled = time.monotonic(), self._compiling()
    if not self._marks:
      self._marks.append((step, now - compiled))
    if not self._bar.disable:
      self._bar.start_t += compiled - self._compiled
      self._bar.last_print_t += compiled - self._compiled
    self._compiled = compiled
    measured = now - compiled - self._marks[0][1] >= SECONDS_BEFORE_ESTIMATE and step >= self._estimate_from
    if step_seconds and self._estimate and measured:
      line, self._estimate = self._estimate(step, step_seconds), None
      if line and not self._bar.disable:
        self._bar.write(line)
      elif line and self._lines:
        print(line, flush=True)
    self._bar.update(step - self._bar.n if not self._bar.disable else 0)
    if rate := self._bar.format_dict.get('rate') if not self._bar.disable else None:
      self._notes['examples/s'] = f'{rate * self._batch_size:.0f}'
      self._bar.set_postfix(self._notes, refresh=False)
    if self._lines and now - self._last_line >= SECONDS_BETWEEN_LINES:
      self._print(step)

  def note(self, step: int, scalars: dict) -> None:
    """Shows numbers beside the bar; without a bar, those of an evaluation make a line."""
    prefix = '' if scalars['split'] == 'train' else 'val '
    shown = {k: scalars[k] for k in SHOWN if scalars.get(k) is not None}
    self._notes |= {prefix + k: f'{v:.4g}' for k, v in shown.items()}
    status = ', '.join(f'{k} {v}' for k, v in self._notes.items())
    platform.work_unit().set_task_status(f'{self._name} step {step}: {status}')
    if self._lines and scalars['split'] != 'train':
      self._print(step)

  def close(self) -> None:
    self._bar.close()

  def _print(self, step):
    self._last_line = time.monotonic()
    notes = sorted(self._notes.items(), key=lambda note: not note[0].startswith('val '))
    parts = [f'{key} {value}' for key, value in notes]
    if self._marks and step > self._marks[-1][0]:
      self._marks.append((step, self._last_line - self._compiling()))
    if rate := self._rate():
      parts.append(f'{rate * self._batch_size:.0f} examples/s')
      if self._total and step < self._total:
        parts.append(f'ETA {roughly((self._total - step) / rate)}')
    of = f'/{self._total:,}' if self._total else ''
    print(f'{self._name} step {step:,}{of}: {", ".join(parts) or "running"}', flush=True)

  def _rate(self) -> float | None:
    """Returns steps a second: the median over the last lines, so that one compilation changes little."""
    spans = itertools.pairwise(self._marks)
    rates = [(step - before) / (now - then) for (before, then), (step, now) in spans if now > then]
    return statistics.median(rates) if rates else None


def mean_of(lines: list[dict]) -> dict:
  """Returns the mean of the lines of runs that train together, with the split of the first; None where the
  number of a run is not defined."""

  def mean(values):
    return None if None in values else sum(values) / len(values)

  return {k: v if k == 'split' else mean([line[k] for line in lines]) for k, v in lines[0].items()}


class TrainLog:
  """Writes training lines: means over the steps since the last line, about every `every` steps.

  members: the `Member`s that train together. met_non_finite: a line held a number that is not finite, so that
  `control` of the state should be read. If the peak of the devices is known, lines have `mfu`, the share of
  the peak that the operations of the models use.
  """

  def __init__(self, members: list, progress, *, batch_size: int, every: int, flops: int, mesh):
    self._members, self._progress, self._batch_size, self._every = members, progress, batch_size, every
    self._mesh = mesh
    peak = chips.peak_flops(mesh.devices.flat[0].device_kind)
    all_flops = flops * len(members)
    self._seconds_at_best = None if peak is None else all_flops / (peak * mesh.size)  # of a step
    self._pending: list[tuple[int, int, dict]] = []
    self._steps = 0
    self._whole = True
    self._since: float | None = None  # start of the time of the pending steps; None until they are compiled
    self.met_non_finite = False

  def add(self, step: int, count: int, records: dict, whole: bool = True) -> None:
    """Notes a dispatch; writes a line after enough steps, but never waits for the dispatch just started.

    whole: it ends a chunk of `runtime.steps_per_dispatch`. Lines cover whole chunks, so that the means in
      them do not depend on the speed.
    """
    if self._steps >= self._every and self._whole:
      self.write()
    self._whole = whole
    self._pending.append((step, count, records))
    self._steps += count
    if self._since is None:
      self.restart_clock()

  def restart_clock(self) -> None:
    """Leaves the time until now, such as that of an evaluation, out of the speed."""
    self._since = time.monotonic()

  def write(self) -> None:
    """Writes one line for everything pending."""
    if not self._pending:
      return
    step = self._pending[-1][0]
    dispatches = [(count, population.to_host(records, self._mesh)) for _, count, records in self._pending]
    loss_RS, norm_RS, rate_RS = (  # R runs, S steps
      np.concatenate([np.atleast_2d(records[name])[:, :count] for count, records in dispatches], axis=1)
      for name in ('loss', 'gradient_norm', 'learning_rate')
    )
    seconds = max((time.monotonic() - self._since) / self._steps, 1e-9)
    lines = []
    for run, member in enumerate(self._members):
      if not member.active:
        continue
      loss, norm = loss_RS[run], norm_RS[run]
      self.met_non_finite |= not (np.isfinite(loss).all() and np.isfinite(norm).all())
      scalars = {
        'split': 'train',
        'loss': float(np.mean(loss, dtype=np.float64)),
        'gradient_norm': float(np.mean(norm, dtype=np.float64)),
        'learning_rate': float(rate_RS[run, -1]),
        'examples_per_second': round(self._batch_size / seconds, 1),
      }
      if self._seconds_at_best is not None:
        scalars['mfu'] = round(self._seconds_at_best / seconds, 4)
      member.writer.write_scalars(step, scalars)
      member.writer.flush()
      lines.append(scalars)
    if lines:
      self._progress.note(step, mean_of(lines))
    self._pending, self._steps = [], 0
    self.restart_clock()


class Profile:
  """Records a JAX profile of the dispatches that start in [first_step, first_step + steps)."""

  def __init__(self, directory, *, first_step: int, steps: int):
    self._directory, self._first, self._last = directory, first_step, first_step + steps
    self._running = False

  def __call__(self, step: int) -> None:
    inside = self._first <= step < self._last
    if inside and not self._running:
      jax.profiler.start_trace(str(self._directory))
      self._running = True
    elif self._running and not inside:
      self.close()

  def close(self) -> None:
    if self._running:
      jax.profiler.stop_trace()
      self._running = False
