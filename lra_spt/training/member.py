"""One of the runs that a stage trains, usually the only one: what it is, its files, and how it ends."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable

from lra_spt.distributed import processes
from lra_spt.errors import NonFiniteError, UserError
from lra_spt.training import state as states
from lra_spt.training.checkpoints.background import Background
from lra_spt.training.checkpoints.store import Checkpoints


@dataclasses.dataclass
class StageResult:
  """state: {step, params, stats} of the best validation; time: `Ledger.parts` of this process. The rest is
  what result.json reports."""

  state: dict
  steps: int
  seconds: float
  best_step: int
  metrics: dict
  time: dict


@dataclasses.dataclass(eq=False)
class Member:
  """A run in a stage.

  built: what to train, see `lra_spt.Built`; directory: where checkpoints and metrics go; start: makes the
  state to start from, from a fresh one (loading a pretrained encoder), and is called only when there is
  nothing to resume, None: the fresh one; again: what else to write when the run is started again otherwise,
  as part of a sentence.

  The stage sets the rest: active, while it trains; steps, seconds and error, when it no longer does; result,
  at last.
  """

  built: object
  directory: pathlib.Path
  start: Callable[[dict], dict] | None = None
  again: str = ''
  active: bool = True
  steps: int = 0
  seconds: float = 0.0
  error: UserError | None = None
  result: StageResult | None = None
  checkpoints: Checkpoints | None = None
  writer: object = None

  @contextlib.contextmanager
  def opened(self, background: Background | None):
    """Within, it has its checkpoints."""
    with contextlib.closing(Checkpoints(self.directory / 'checkpoints', background=background)) as opened:
      self.checkpoints = opened
      yield

  def first_state(self, mesh) -> dict:
    """What it goes on from: its latest checkpoint, or what it starts with."""
    latest = self.checkpoints.latest_step()
    if processes.agreed(-1 if latest is None else latest, 'the latest checkpoint') >= 0:
      state = self.checkpoints.load_latest(self.built.abstract_state(mesh))
      if (best_step := int(state['control']['best_step'])) >= 0:  # its loss would be noticed only at the end
        self.checkpoints.keep_best(best_step)
      return state
    fresh = self.built.fresh_state(mesh)
    return fresh if self.start is None else self.start(fresh)

  def ends_with(self, error: UserError) -> None:
    """Trains no more; the others go on."""
    self.active, self.error = False, error

  def guard(self, control: dict) -> None:
    """Ends it where its state met a non-finite number."""
    failed, name = int(control['failed_step']), self.built.name
    if failed < 0 or not self.active:
      return
    names = [*states.leaf_names(self.built.model.params), 'the loss or the BatchNorm statistics']
    leaf = names[int(control['failed_leaf'])]
    self.ends_with(
      NonFiniteError(
        f'{name} met a non-finite number at step {failed} in {leaf}; lower {name}.optimizer.lr or set its '
        f'clip_norm, with another --workdir{self.again} (nothing was saved since then; what was saved before '
        f'is in {self.directory / "checkpoints"})'
      )
    )
