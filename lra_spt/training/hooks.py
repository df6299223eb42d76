"""What happens beside training: the progress bar and the profiler."""

import sys

import jax
from clu import platform
from tqdm import tqdm


class ReportProgress:
  """A bar with steps, ETA, examples/s and the last metrics; silent without a terminal or when told so.

  It also passes the last metrics to `clu.platform`, where cluster front ends read a task's status.
  """

  def __init__(self, name: str, *, total: int, initial: int, batch_size: int, enabled: bool):
    show = enabled and sys.stderr.isatty() and jax.process_index() == 0
    self._bar = tqdm(
      total=total,
      initial=initial,
      desc=name,
      unit='step',
      dynamic_ncols=True,
      smoothing=0.1,
      disable=not show,
    )
    self._name, self._batch_size = name, batch_size
    self._notes: dict[str, str] = {}

  def __call__(self, step: int) -> None:
    self._bar.update(step - self._bar.n if not self._bar.disable else 0)
    rate = self._bar.format_dict.get('rate') if not self._bar.disable else None
    if rate:
      self._notes['examples/s'] = f'{rate * self._batch_size:.0f}'
      self._bar.set_postfix(self._notes, refresh=False)

  def note(self, step: int, scalars: dict) -> None:
    """Shows numbers beside the bar."""
    prefix = '' if scalars['split'] == 'train' else 'val '
    shown = {k: v for k, v in scalars.items() if k in ('loss', 'accuracy', 'mae', 'r2')}
    self._notes |= {prefix + k: f'{v:.4g}' for k, v in shown.items()}
    status = ', '.join(f'{k} {v}' for k, v in self._notes.items())
    platform.work_unit().set_task_status(f'{self._name} step {step}: {status}')

  def close(self) -> None:
    self._bar.close()


class Profile:
  """Records a JAX profile of the dispatches that start in [first_step, first_step + steps); 0: never."""

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
