"""Estimates how long a run takes, from its first steps."""

from collections.abc import Sequence

from lra_spt.config.schema import NO_LIMIT
from lra_spt.errors import roughly

A_YEAR = 365 * 86400.0
DAYS = 36 * 3600.0  # seconds from which a run on a CPU is advised against


def operations(built, train: int, validation: int) -> float:
  """Returns the floating-point operations of a stage, a `lra_spt.runs.stage.Built`: of its training steps and
  of its validations.

  Args:
    train, validation: the numbers of examples.
  """
  spec = built.spec
  total = spec.total_steps(train)
  every = spec.evaluate_every or max(1, train // spec.batch_size)
  forward = built.flops_per_step / 3 / spec.batch_size  # of an example
  return total * built.flops_per_step + -(-total // every) * validation * forward


def seconds(
  stages: Sequence, train: int, validation: int, step_seconds: float, done: int = 0
) -> tuple[float, float]:
  """Returns the seconds that stages still take, with their limits of time and without; inf if nobody knows.

  Args:
    stages: the stage that runs, and those after it.
    train, validation: the numbers of examples.
    step_seconds: of a step of the first stage.
    done: the steps of the first stage that are done.
  """
  speed = max(stages[0].flops_per_step, 1) / step_seconds  # operations a second
  left = unlimited = 0.0
  for i, built in enumerate(stages):
    examples = train * built.spec.data_fraction
    limit = built.spec.max_seconds or float('inf')
    most = float('inf')
    if (total := built.spec.total_steps(int(examples))) < NO_LIMIT:
      share = 1 - done / total if i == 0 else 1.0
      most = share * operations(built, int(examples), validation) / speed
    left, unlimited = left + min(most, limit), unlimited + most
  return left, unlimited


def sentence(name: str, left: float, unlimited: float, step_seconds: float, on_cpu: bool) -> str | None:
  """Returns the line that a run prints after a few steps; None if it ends within a minute or nobody knows.

  Args:
    left, unlimited: from `seconds`.
  """
  if left < 60 or left == float('inf'):
    return None
  if left > A_YEAR:
    why = f'at {step_seconds:.2g} s a step it would take more than a year'
    return f'{name}: the run is not feasible here: {why}'
  line = f'{name}: the run takes about {roughly(left)} from here, at {step_seconds:.2g} s a step'
  if 1.05 * left < unlimited < float('inf'):
    line += f'; max_seconds ends it early, all steps would take {roughly(unlimited)}'
  if on_cpu and left >= DAYS:
    line += '. This takes days on a CPU: use an accelerator, or a small task such as those of configs/mini'
  return line
