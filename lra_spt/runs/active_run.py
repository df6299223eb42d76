"""A run that a command trains, from its spec to its result."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable
from concurrent import futures

from lra_spt import files
from lra_spt.config import loading
from lra_spt.distributed import processes
from lra_spt.errors import Interrupted, NonFiniteError, UserError
from lra_spt.report.runs import run_folder
from lra_spt.runs import plan as planning
from lra_spt.runs import provenance, user_code
from lra_spt.runs.build import RunSpec, normalised
from lra_spt.runs.stage import Built
from lra_spt.training.checkpoints.transfer import transfer
from lra_spt.training.member import Member


@dataclasses.dataclass(eq=False)
class ActiveRun:
  """A run that a command trains.

  spec: the run; workdir: its folder; pretrained: the folder of another run whose pretraining is finetuned.
  The experiment sets the rest, in this order:

  identity: the content of config.json.
  taken: the pretraining of another run, None if this run has its own.
  stages, folders: by the names of the stages.
  start: makes the first state of the next stage, see `Member`.
  reports: the content of stage.json of each finished stage.
  result, error: the content of result.json, or the error that ended the run.
  """

  spec: RunSpec
  workdir: pathlib.Path | str
  pretrained: pathlib.Path | str | None = None
  identity: dict = dataclasses.field(default_factory=dict)
  taken: planning.TakenPretraining | None = None
  stages: dict[str, Built] = dataclasses.field(default_factory=dict)
  folders: dict[str, pathlib.Path] = dataclasses.field(default_factory=dict)
  start: Callable[[dict], dict] | None = None
  reports: dict[str, dict] = dataclasses.field(default_factory=dict)
  result: dict | None = None
  error: UserError | None = None

  def identify(self, planned: planning.Plan, say) -> None:
    """Sets `identity` and `taken`."""
    train, config_file = planned.data['train'], self.workdir / run_folder.CONFIG
    if self.pretrained is not None:
      self.taken = planning.TakenPretraining.of(self.pretrained, self.spec, train)
    self.identity = planning.identity_of(self.spec, train, self.taken)
    if config_file.exists():
      begun = run_folder.read_config(self.workdir)
      if sentence := user_code.remark(begun, self.identity):
        say(f'{self.workdir}: {sentence}')
      self.identity = user_code.as_begun(begun, self.identity)

  def claim(self, say) -> None:
    """Writes config.json and reads the result if there is one.

    Every process compares its config with the file, because flags may differ; the first process writes.
    """
    if processes.is_first():
      run_folder.claim(self.workdir, self.identity)
    processes.wait_for_everybody('config')
    processes.agreed((self.workdir / run_folder.CONFIG).exists(), run_folder.CONFIG)
    same = loading.digest(run_folder.read_config(self.workdir)) == loading.digest(self.identity)
    processes.agreed(same, 'whether config.json holds their own config')
    if not same:
      run_folder.claim(self.workdir, self.identity)
    if processes.agreed((self.workdir / run_folder.RESULT).exists(), run_folder.RESULT):
      self.result = run_folder.read_result(self.workdir)
      say(f'{self.workdir} holds a finished run; remove it to train again')

  def is_done(self, name: str, say) -> bool:
    """Returns whether a stage is finished, and if so reads its report."""
    folder = self.folders[name]
    if not processes.agreed((folder / run_folder.STAGE).exists(), f'{name}/{run_folder.STAGE}'):
      return False
    self.reports[name] = run_folder.read_stage(folder)
    now = provenance.computed(self.spec.runtime)
    changed = provenance.changes(self.reports[name].get('computed', {}), now)
    what_follows = f'; what follows is computed with {", ".join(changed)}' if changed else ''
    say(f'{name}: already done, in {folder}{what_follows}')
    return True

  def member(self, name: str) -> Member:
    """The member that trains a stage of this run."""
    advice = ' and --pretrained=RUN, so that pretraining is not repeated' if self.reports else ''
    return Member(self.stages[name], self.folders[name], self.start, advice)

  def start_from_pretrained(self, mesh) -> None:
    """Makes the next stage start from the pretrained encoder and a fresh head."""
    built, folder = self.stages['pretrain'], self.folders['pretrain']
    if self.taken is not None:
      built, folder = self.taken.built, self.taken.folder
    flag = built.objective.channels != self.stages['finetune'].objective.channels
    patterns = self.stages['finetune'].spec.transfer

    def start(fresh):
      return transfer(built.best_state(folder, mesh), fresh, drop_flag_input=flag, patterns=patterns)

    self.start = start

  def fails_with(self, error: UserError) -> None:
    """Records the error that ended the run, also in failure.json."""
    self.error = error
    if processes.is_first():
      with contextlib.suppress(UserError):  # a full disk has no room for a note
        run_folder.write_failure(self.workdir, error)


def prepare_stages(runs: list[ActiveRun], planned: planning.Plan, store, say) -> None:
  """Sets the stages of every run, their folders, and what the first stage starts from. With a `store`, the
  folders are links into it."""
  common = normalised(planned.stages, planned.data['train'])
  for each in runs:
    for name, built in common.items():
      # The plan has cut the batches of a smoke run.
      spec = dataclasses.replace(each.spec.stages[name], batch_size=built.spec.batch_size)
      each.stages[name] = dataclasses.replace(built, seed=each.spec.seed, spec=spec)
    each.start = planned.weights and planned.weights.start
    each.folders = run_folder.stage_folders(each.workdir, each.identity)
    if each.taken is not None:
      each.reports['pretrain'] = each.taken.report
      say(f'pretrain: taken from {each.taken.folder}')
    if processes.is_first():
      run_folder.forget_failure(each.workdir)
      if store is not None:
        to_train = [name for name in each.stages if name not in each.reports]
        run_folder.share_stages({name: each.workdir / each.folders[name].name for name in to_train}, store)
  processes.wait_for_everybody('stages')
  for each in runs if store is not None else ():
    # Where notes take the place of links, the folders have moved.
    each.folders = run_folder.stage_folders(each.workdir, each.identity)


@contextlib.contextmanager
def owned(folders: list[pathlib.Path], doing: str):
  """Locks folders for the time of the context; the first process holds the locks for all.

  Raises:
    InUse: another command holds one of them.
  """
  with contextlib.ExitStack() as locks:
    refusal = None
    if processes.is_first():
      buckets = [folder for folder in folders if files.is_bucket(folder)]
      try:
        for folder in sorted({*folders} - {*buckets}):  # in one order, or two commands may refuse each other
          locks.enter_context(files.owned(folder, doing))
        with futures.ThreadPoolExecutor(max(1, len(buckets))) as pool:  # each may wait for an owner that died
          list(pool.map(lambda folder: locks.enter_context(files.owned(folder, doing)), buckets))
      except UserError as error:
        refusal = error
    processes.raise_together(refusal)
    yield


@contextlib.contextmanager
def noting_failures(runs: list[ActiveRun]):
  """If an error ends all runs, records it for each run that has no result yet."""
  try:
    yield
  except Interrupted:
    raise
  except UserError as error:
    for each in runs:
      if each.result is None:
        each.fails_with(each.error or error)
    raise


def raise_failures(runs: list[ActiveRun]) -> None:
  """Raises the errors of runs that ended while others went on, as one NonFiniteError if there are several
  runs."""
  failed = [each for each in runs if each.error is not None]
  if failed and len(runs) == 1:
    raise failed[0].error
  if failed:
    sentences = '; '.join(f'{each.workdir}: {str(each.error).rstrip(".")}' for each in failed)
    raise NonFiniteError(f'{len(failed)} of {len(runs)} runs that trained together failed: {sentences}.')
