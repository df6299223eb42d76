"""One run: pretraining -> its best checkpoint -> finetuning -> its best checkpoint -> test -> result.json."""

import contextlib
import dataclasses
import datetime
import functools
import pathlib
from collections.abc import Callable
from concurrent import futures

import jax
from ml_collections import ConfigDict

from lra_spt import files
from lra_spt.config import loading
from lra_spt.data.tasks import Task
from lra_spt.distributed import processes
from lra_spt.errors import ConfigError, Interrupted, NonFiniteError, UserError
from lra_spt.report.runs import metrics, run_folder
from lra_spt.runs import plan as planning
from lra_spt.runs import provenance, stage_report, user_code
from lra_spt.runs.build import Built, causal_form, normalised, stages_of
from lra_spt.training import population
from lra_spt.training.checkpoints.transfer import transfer
from lra_spt.training.evaluate import evaluator_of
from lra_spt.training.loop import Stage
from lra_spt.training.member import Member
from lra_spt.training.monitoring import timing


def run(config, workdir, *, pretrained=None, stages=None, arm: str | None = None, announce=print) -> dict:
  """Runs or resumes one run; the same call on the same folder goes on where it stopped.

  Args:
    config: see configs/; config.runtime may differ between calls, everything else may not.
    workdir: folder of this run.
    pretrained: folder of another run, whose pretraining is finetuned instead of an own one.
    stages: folder in which stages are kept for all runs that need the same ones; None: in `workdir`.
    arm: how reports call this run, where regime and form do not say enough.
    announce: called with a line of text for the reader.

  Returns:
    The content of result.json.

  Raises:
    ConfigError: runtime.members is not 1.
    UserError: bad config, data or checkpoint, a workdir of another config or one that another process trains
      in; nothing is overwritten then. A non-finite number; what was saved before it is kept.
  """
  if (members := config.runtime.get('members', 1)) != 1:
    raise ConfigError(
      f'runtime.members is {members}, but this call trains one run: leave it at 1, or train several with '
      '`lra-spt train --seeds` or lra_spt.runs.experiment.run_together'
    )
  request = planning.Request(config, workdir, pretrained)
  return run_together([request], stages=stages, arm=arm, announce=announce)[0]


def run_together(
  requests: list[planning.Request], *, stages=None, arm: str | None = None, announce=print
) -> list[dict]:
  """Runs or resumes several runs as one program, see `lra_spt.training.population`; each has the folder that
  it would have by itself, and may go on by itself, or in another population.

  Args:
    requests: runs that differ in their seeds, learning rates and weight decays alone.
    stages, arm, announce: of `run`.

  Returns:
    The content of result.json of each.

  Raises:
    UserError: as of `run`. When some meet a non-finite number, the others end before their sentences are
      raised.
  """
  folders = [run_folder.folder_of(request.workdir, '--workdir') for request in requests]
  store = None if stages is None else run_folder.folder_of(stages, '--stages')
  first = requests[0]
  run_folder.check_kept(folders[0], store, first.config.runtime)
  for request in requests[1:]:
    planning.check_together(first.config, request.config)
  resumed = (folders[0] / run_folder.CONFIG).exists()
  planned = planning.plan(first.config, first.pretrained, resumed=resumed, members=len(requests))
  train = planned.data['train']
  say = announce if processes.is_first() else lambda line: None
  runs = [_Run.of(request, workdir, planned, say) for request, workdir in zip(requests, folders, strict=True)]
  with _owned(folders, 'training in'), jax.set_mesh(planned.mesh):
    for each in runs:
      _claim(each.workdir, each.identity)
    _take_finished(runs, say)
    waiting = [each for each in runs if each.result is None]
    if not waiting:
      return [each.result for each in runs]
    if processes.is_first():
      for each in waiting:
        run_folder.forget_failure(each.workdir)
    say(planned.parameter_table)
    try:
      _prepare(waiting, normalised(planned.stages, train), store)
      _train(waiting, planned.data, planned.mesh, say)
      _test([each for each in waiting if each.error is None], planned, arm, say)
    except Interrupted:
      raise
    except UserError as error:
      for each in waiting:
        if each.result is None:
          each.fails_with(each.error or error)
      raise
  _raise_failures(runs)
  return [each.result for each in runs]


@dataclasses.dataclass(eq=False)
class _Run:
  """One of the runs of a command, from what it is to its result.

  own: {stage: (seed, spec)}; start: what its next stage starts from, see `Member`.
  """

  config: ConfigDict
  workdir: pathlib.Path
  identity: dict
  given: planning.Pretrained | None
  own: dict
  start: Callable[[dict], dict] | None
  stages: dict[str, Built] = dataclasses.field(default_factory=dict)
  folders: dict[str, pathlib.Path] = dataclasses.field(default_factory=dict)
  reports: dict[str, dict] = dataclasses.field(default_factory=dict)
  result: dict | None = None
  error: UserError | None = None

  @classmethod
  def of(cls, request, workdir, planned: planning.Plan, say) -> '_Run':
    """A run of the program that is planned."""
    config, train, given = request.config, planned.data['train'], None
    if request.pretrained is not None:
      given = planning.Pretrained.of(request.pretrained, config, train)
    own = {name: (built.seed, built.spec) for name, built in stages_of(config).items()}
    start = planned.weights and planned.weights.start
    identity = planning.identity_of(config, train, given)
    if (workdir / run_folder.CONFIG).exists():
      begun = run_folder.read_config(workdir)
      if sentence := user_code.remark(begun, identity):
        say(f'{workdir}: {sentence}')
      identity = user_code.as_begun(begun, identity)
    return cls(config, workdir, identity, given, own, start)

  def member(self, name: str) -> Member:
    """What trains a stage of it."""
    again = ''
    if self.reports:  # its pretraining is whole: here, or where it was taken from
      again = ' and --pretrained=RUN, so that pretraining is not repeated'
    return Member(self.stages[name], self.folders[name], self.start, again)

  def fails_with(self, error: UserError) -> None:
    """Notes why it has no result."""
    self.error = error
    if processes.is_first():
      with contextlib.suppress(UserError):  # a full disk holds no note either
        run_folder.write_failure(self.workdir, error)


def _take_finished(runs, say) -> None:
  """Reads the results that there are already."""
  for each in runs:
    if processes.agreed((each.workdir / run_folder.RESULT).exists(), run_folder.RESULT):
      each.result = run_folder.read_result(each.workdir)
      say(f'{each.workdir} holds a finished run; remove it to train again')


def _prepare(runs, stages: dict[str, Built], store) -> None:
  """Gives runs their stages, which are those of one program, and the folders of these."""
  for each in runs:
    each.folders = run_folder.stage_folders(each.workdir, each.identity)
    for name, (seed, spec) in each.own.items():
      each.stages[name] = dataclasses.replace(stages[name], seed=seed, spec=spec)
    taken = () if each.given is None else ('pretrain',)
    if store is not None and processes.is_first():
      run_folder.share_stages({name: each.folders[name] for name in stages if name not in taken}, store)
  processes.wait_for_everybody('stages')
  for each in runs if store is not None else ():
    each.folders = run_folder.stage_folders(each.workdir, each.identity)  # in a bucket they are elsewhere now


def _raise_failures(runs: list[_Run]) -> None:
  """Raises what ended runs while others went on, of several runs a NonFiniteError that names them."""
  failed = [each for each in runs if each.error is not None]
  if failed and len(runs) == 1:
    raise failed[0].error
  if failed:
    sentences = '; '.join(f'{each.workdir}: {str(each.error).rstrip(".")}' for each in failed)
    raise NonFiniteError(f'{len(failed)} of {len(runs)} runs that trained together failed: {sentences}.')


def keep_compiled(workdir) -> None:
  """Has jax keep programs on disk, so that a run that is started again compiles little; where, see
  `run_folder.cache_of_programs`, unless jax was told another place."""
  if jax.config.jax_compilation_cache_dir is None:
    jax.config.update('jax_compilation_cache_dir', str(run_folder.cache_of_programs(workdir)))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.05)
    if files.is_bucket(jax.config.jax_compilation_cache_dir):  # jax can write there, XLA itself cannot
      jax.config.update('jax_persistent_cache_enable_xla_caches', 'none')


@contextlib.contextmanager
def _owned(folders: list[pathlib.Path], doing: str):
  """Makes folders this run's own: the first of its processes holds them for all."""
  with contextlib.ExitStack() as held:
    refusal = None
    if processes.is_first():
      buckets = [folder for folder in folders if files.is_bucket(folder)]
      try:
        for folder in sorted({*folders} - {*buckets}):  # in one order, or two commands may refuse each other
          held.enter_context(files.owned(folder, doing))
        with futures.ThreadPoolExecutor(max(1, len(buckets))) as pool:  # each may wait for an owner that died
          list(pool.map(lambda folder: held.enter_context(files.owned(folder, doing)), buckets))
      except UserError as error:
        refusal = error
    processes.raise_together(refusal)
    yield


def _claim(workdir, identity) -> None:
  """Every process compares, because their flags may differ; the first one writes."""
  if processes.is_first():
    run_folder.claim(workdir, identity)
  processes.wait_for_everybody('config')
  processes.agreed((workdir / run_folder.CONFIG).exists(), run_folder.CONFIG)
  same = loading.digest(run_folder.read_config(workdir)) == loading.digest(identity)
  processes.agreed(same, 'whether config.json holds their own config')
  if not same:
    run_folder.claim(workdir, identity)


def _train(runs: list[_Run], data, mesh, say) -> None:
  """Trains what is not trained yet."""
  for each in runs:
    if each.given is not None:
      each.reports['pretrain'] = each.given.report
      say(f'pretrain: taken from {each.given.folder}')
  own = [each for each in runs if 'pretrain' in each.stages and each.given is None]
  if own and (remark := stage_report.remark_on_memory(own[0].stages['finetune'], mesh, len(own))):
    say(remark)
  _run_stage('pretrain', own, data, mesh, say)
  going_on = [each for each in runs if each.error is None]
  for each in going_on:
    if 'pretrain' in each.stages:
      source = (each.stages['pretrain'], each.folders['pretrain'])
      if each.given is not None:
        source = (each.given.built, each.given.folder)
      each.start = functools.partial(_from_pretrained, *source, each.stages['finetune'], mesh)
  _run_stage('finetune', going_on, data, mesh, say)


def _from_pretrained(pretrain: Built, folder, finetune: Built, mesh, fresh: dict) -> dict:
  """The state that finetuning starts from: a pretrained encoder and a fresh head."""
  flag = pretrain.objective.channels != finetune.objective.channels
  return transfer(pretrain.best_state(folder, mesh), fresh, drop_flag_input=flag)


def _run_stage(name: str, runs: list[_Run], data, mesh, say) -> None:
  """Trains a stage of the runs whose folders do not say that it is done, those with one folder together once;
  their reports get what stage.json notes of it."""
  waiting = [each for each in runs if not _done_before(each, name, say)]
  first = {each.folders[name].resolve(): each for each in reversed(waiting)}
  training = [each for each in waiting if each in first.values()]
  shared = [each.folders[name] for each in training if run_folder.is_shared(each.folders[name])]
  with _owned(shared, 'training the stage in'):
    if shared:  # another command may have trained it before this one had the lock
      training = [each for each in training if not _done_before(each, name, say)]
    if training:
      _run_now(name, training, data, mesh, say)
  for each in waiting:
    if (error := first[each.folders[name].resolve()].error) is not None and each.error is None:
      each.fails_with(error)
    elif each.error is None and name not in each.reports:
      _done_before(each, name, say)


def _done_before(each: _Run, name: str, say) -> bool:
  folder = each.folders[name]
  if not processes.agreed((folder / run_folder.STAGE).exists(), f'{name}/{run_folder.STAGE}'):
    return False
  say(f'{name}: already done, in {folder}')
  each.reports[name] = run_folder.read_stage(folder)
  return True


def _run_now(name: str, runs: list[_Run], data, mesh, say) -> None:
  stage = Stage([each.member(name) for each in runs], data, mesh)
  kernels = stage_report.announce(stage, say)
  for each, outcome in zip(runs, stage.run(), strict=True):
    if isinstance(outcome, UserError):
      say(f'{each.workdir}: {outcome}')
      each.fails_with(outcome)
      continue
    each.reports[name] = stage_report.note(each.stages[name], each.folders[name], outcome, stage, kernels)
    numbers = ', '.join(f'{key} {value:.4f}' for key, value in outcome.metrics.items())
    place = f' of {each.workdir.name}' if len(runs) > 1 else ''
    say(f'{name}{place}: best validation at step {outcome.best_step}: {numbers} ({outcome.seconds:.0f} s)')
    time = outcome.time
  if any(each.error is None for each in runs):
    say(f'{name}: {timing.in_words(time)}')


def _test(runs: list[_Run], planned: planning.Plan, arm, say) -> None:
  """Answers the test set and writes the results of runs whose stages are trained."""
  if not runs:
    return
  mesh, examples = planned.mesh, planned.data['test']
  best = [each.stages['finetune'].best_state(each.folders['finetune'], mesh) for each in runs]
  evaluator = evaluator_of(runs[0].stages['finetune'], mesh)
  seeds = [each.stages['finetune'].seed for each in runs]
  found = evaluator.of_each(population.stack(best, mesh), examples, seeds, predictions=True)
  for each, answer in zip(runs, found, strict=True):
    if isinstance(answer, UserError):
      each.fails_with(answer)
      continue
    _write(each, *metrics.complete(each.stages['finetune'].task, *answer, examples), planned, arm, say)


def _write(each: _Run, test: dict, predictions: dict, planned: planning.Plan, arm, say) -> None:
  config, finetune = each.config, each.stages['finetune']
  each.result = result = _result(
    config, each.identity, finetune, planned.data['train'], each.reports, test, each.given, arm
  )
  if processes.is_first():
    run_folder.write_result(each.workdir, result, predictions)
  processes.wait_for_everybody('result')
  metric, constant = result['metric'], _constant_answer(test, finetune.task)
  say(
    f'test {metric} {test[metric]:.4f} over {test["examples"]} examples ({constant}); result in '
    f'{each.workdir / run_folder.RESULT}'
  )
  for sentence in stage_report.divergences(config, result['stages']):
    say(sentence)


def _result(config, identity, finetune: Built, train, reports, test, given, arm) -> dict:
  """The content of result.json; identity: as it was when the run began, whatever became of files since."""
  facts = metrics.of_data(finetune.task, config.model.name, train)
  values = {key: value for key, value in identity.items() if key not in run_folder.BESIDE}
  origins = config.origins.to_dict() if 'origins' in config else {}
  if given is not None:  # what was pretrained with, and not what this command would have
    values['pretrain'] = run_folder.read_config(given.run)['pretrain']
    origins.pop('pretrain', None)
  optional = {
    'arm': arm,
    'cautions': [
      *facts.get('cautions', ()),
      *stage_report.divergences(config, reports),
      *stage_report.precisions(config, reports),
    ],
    'code': identity.get('code'),
    'pretrained': given and {'run': str(given.run), 'seed': given.seed, 'hash': given.hash},
  }
  result = {
    'model': config.model.name,
    'regime': config.regime,
    'causal': causal_form(config),
    'protocol': config.protocol,
    'seed': config.seed,
    'metric': finetune.objective.selection[0],
    'metrics': {'validation': reports['finetune']['metrics'], 'test': test},
    'parameters': finetune.model.parameter_count,
    'stages': reports,
    'hardware': provenance.hardware(),
    'versions': provenance.versions(),
    'commit': provenance.commit(),
    'date': datetime.date.today().isoformat(),
    'config': values,
    'runtime': config.runtime.to_dict(),
    'origins': origins,
  }
  return result | facts | {key: value for key, value in optional.items() if value}


def _constant_answer(test: dict, task: Task) -> str:
  """What a model that ignores its input reaches, as a phrase."""
  if task.regression:
    return 'always the mean label of these: 0'
  return f'always the most frequent class: {test["majority"]:.4f}'
