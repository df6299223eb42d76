"""How long a stage trains, and how it is run."""

import dataclasses

from lra_spt.data import pipeline
from lra_spt.errors import FieldError, check_least
from lra_spt.training import device_data
from lra_spt.training.monitoring import trackers
from lra_spt.training.optimizer import OptimizerSpec, ScheduleSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageSpec:
  """How long and how a stage trains. Limits of 0 do not limit; the first one reached ends the stage.

  evaluate_every: in steps; 0 = once per epoch. patience: evaluations without improvement. data_fraction: of
  the training examples that are used, see `Examples.part`.
  """

  batch_size: int
  epochs: float
  optimizer: OptimizerSpec
  schedule: ScheduleSpec
  max_steps: int = 0
  max_seconds: float = 0
  patience: int = 0
  evaluate_every: int = 0
  data_fraction: float = 1.0

  def __post_init__(self):
    check_least(self, 1, 'batch_size')
    check_least(self, 0, 'epochs', 'max_steps', 'max_seconds', 'patience', 'evaluate_every')
    if not 0 < self.data_fraction <= 1:
      raise FieldError(
        'data_fraction', f'is {self.data_fraction}, but it must be above 0 and at most 1; correct it'
      )

  def total_steps(self, examples: int) -> int:
    """Steps that epochs, max_steps and a schedule that ends at 0 allow on `examples` of training; FieldError
    when none of them limits."""
    limits = [steps for steps in (self.max_steps, self.schedule.last_step) if steps]
    steps = pipeline.total_steps(examples, self.batch_size, self.epochs, min(limits, default=0))
    if steps is None:
      raise FieldError('epochs', 'is 0 and max_steps is 0, so nothing bounds the stage; set one of them')
    return steps


@dataclasses.dataclass(frozen=True)
class LoopSpec:
  """How a stage is run; changes nothing about its result beyond rounding.

  microbatches: parts of a batch whose gradients are accumulated (BatchNorm's statistics are then those of the
  parts, and what a mixer draws once for all rows, as performer and longconv do, each part draws anew).
  placement: where training examples lie, see `resident.choose`. log_every: steps between log lines.
  checkpoint_every, checkpoint_minutes: steps and time between checkpoints beside those at evaluations; 0 =
  none. evaluation_batch_size: 0 = as in training. training_examples: so many are evaluated whenever the
  validation set is, for curves only. trackers: see `trackers.names`. members: runs that train as one program,
  see `population`.
  """

  steps_per_dispatch: int = 8
  microbatches: int = 1
  members: int = 1
  placement: str = ''
  log_every: int = 50
  checkpoint_every: int = 0
  checkpoint_minutes: float = 10.0
  threads: int = 4
  evaluation_batch_size: int = 0
  training_examples: int = 0
  tensorboard: bool = True
  trackers: str = ''
  progress: bool = True
  profile_steps: int = 0

  def __post_init__(self):
    check_least(self, 1, 'steps_per_dispatch', 'microbatches', 'members', 'log_every')
    check_least(self, 0, 'checkpoint_every', 'checkpoint_minutes', 'threads')
    check_least(self, 0, 'evaluation_batch_size', 'training_examples', 'profile_steps')
    device_data.check_placement(self.placement)
    trackers.names(self.trackers)
