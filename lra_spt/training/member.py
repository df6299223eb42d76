"""One of the runs that a stage trains, usually the only one: its files, and how its training ended."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable

from lra_spt.distributed import processes
from lra_spt.errors import NonFiniteError, UserError
from lra_spt.training import state as states
from lra_spt.training.checkpoints.background import Background
from lra_spt.training.checkpoints.store import Checkpoints


@dataclasses.dataclass(eq=False)
class Member:
  """A run in a stage.

  built: the stage that it trains, a `lra_spt.runs.stage.Built`.
  directory: the folder of its checkpoints and metrics.
  start: makes the first state from a fresh one (such as with a pretrained encoder), and is called only where
    there is no checkpoint to resume from; None: the fresh state itself.
  advice: what else the user should write to start the run again with other values, as part of a sentence.

  The stage sets the rest. While it trains: active, checkpoints and writer. When training ends: steps and
  seconds; then either error, or state ({step, params, stats} of the best validation), its metrics, why some
  of these are undefined, and time, the `StageTiming.parts` of this process.
  """

  built: object
  directory: pathlib.Path
  start: Callable[[dict], dict] | None = None
  advice: str = ''
  active: bool = True
  checkpoints: Checkpoints | None = None
  writer: object = None
  steps: int = 0
  seconds: float = 0.0
  error: UserError | None = None
  state: dict | None = None
  metrics: dict | None = None
  undefined: dict[str, str] = dataclasses.field(default_factory=dict)
  time: dict | None = None

  @property
  def best_step(self) -> int:
    """The step of the best validation, from its checkpoint.

    The checkpoint may be newer than the control of the state says: when the latest state was damaged, and
    another machine, which rounds differently, went on from the one before.
    """
    return int(self.state['step'])

  @contextlib.contextmanager
  def opened(self, background: Background | None):
    """Opens its checkpoints for the time of the context."""
    with contextlib.closing(Checkpoints(self.directory / 'checkpoints', background=background)) as opened:
      self.checkpoints = opened
      yield

  def first_state(self, mesh) -> dict:
    """Returns the state of its latest checkpoint, or the one that it starts with."""
    latest = self.checkpoints.latest_step()
    if processes.agreed(-1 if latest is None else latest, 'the latest checkpoint') >= 0:
      state = self.checkpoints.load_latest(self.built.abstract_state(mesh))
      if (best_step := int(state['control']['best_step'])) >= 0:  # its loss would be noticed only at the end
        self.checkpoints.keep_best(best_step)
      return state
    fresh = self.built.fresh_state(mesh)
    return fresh if self.start is None else self.start(fresh)

  def ends_with(self, error: UserError) -> None:
    """Ends its training, while the others go on."""
    self.active, self.error = False, error

  def guard(self, control: dict, state: Callable[[], dict]) -> None:
    """Ends its training if its state met a non-finite number.

    state: returns the state, which is that before the step with this number.
    """
    failed, name = int(control['failed_step']), self.built.name
    if failed < 0 or not self.active:
      return
    if (held := states.not_finite(state())) is not None:
      origin = 'its initial values' if self.start is None else 'the weights that the stage started from'
      self.ends_with(
        NonFiniteError(
          f'{name} cannot train, because {held} held a number that is not finite before step {failed} '
          f'already: look for it in {origin}, and start with another --workdir{self.advice}'
        )
      )
      return
    names = [*states.leaf_names(self.built.model.params), 'the loss or the BatchNorm statistics']
    leaf = names[int(control['failed_leaf'])]
    self.ends_with(
      NonFiniteError(
        f'{name} met a non-finite number at step {failed} in {leaf}; lower {name}.optimizer.lr or set its '
        f'clip_norm, with another --workdir{self.advice} (nothing was saved since then; what was saved '
        f'before is in {self.directory / "checkpoints"})'
      )
    )
