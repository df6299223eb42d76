"""One run: pretraining -> its best checkpoint -> finetuning -> its best checkpoint -> test -> result.json."""

import contextlib
import dataclasses
import datetime
import functools
import pathlib

import jax
from clu import parameter_overview

from lra_spt import config as config_lib
from lra_spt import files, parallel, processes, provenance, results, run_folder, selftest, weights
from lra_spt.build import Built, build_stage, causal_form, model_of, normalised, stages_of, stored_config
from lra_spt.data import examples as examples_lib
from lra_spt.data.tasks import Task
from lra_spt.errors import CheckpointError, ConfigError, Interrupted, UserError
from lra_spt.regimes import get_regime
from lra_spt.training import ledger
from lra_spt.training.checkpoints import transfer
from lra_spt.training.loop import Stage


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
  """A run that can be started: everything about it is checked, and nothing is written yet.

  stages: of the run, by name; data: {split: `Examples`}; given: the pretraining of another run, or None;
  weights: what the first stage starts from, or None.
  """

  stages: dict[str, Built]
  mesh: jax.sharding.Mesh
  data: dict[str, examples_lib.Examples]
  given: 'Pretrained | None'
  weights: weights.Weights | None

  @property
  def parameter_table(self) -> str:
    """Every parameter of the finetuned model with its shape and size."""
    return parameter_overview.get_parameter_overview(
      self.stages['finetune'].model.params, include_stats=False
    )


def plan(config, pretrained=None, *, resumed: bool = False) -> Plan:
  """Checks everything that can be checked of a run before it starts; raises as `run` does.

  resumed: it was planned before, so that its mixer has been checked.
  """
  stages = stages_of(config)
  runtime = stages['finetune'].runtime
  mesh = parallel.make_mesh(**runtime.mesh, devices=parallel.first_devices(runtime.devices))
  data = examples_lib.open_splits(stages['finetune'].task, runtime.data_dir)
  for built in stages.values():
    built.check(mesh, data['train'], mixer=not resumed)
  given = None if pretrained is None else Pretrained.of(pretrained, config, data['train'])
  loaded = None
  if given is None and (path := config.model.get('weights')):
    first = next(iter(stages.values()))
    known = getattr(first.task.inputs, 'names', data['train'].metadata.get('vocabulary', ()))
    unused = ['<unk>'] * (first.task.vocabulary - len(known))  # ids that no token of the set has
    loaded = weights.read(path, model_of(config), [*known, *unused])
    loaded.start({'params': first.model.params, 'stats': first.model.stats})
  return Plan(stages, mesh, data, given, loaded)


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
    UserError: bad config, data or checkpoint, a workdir of another config or one that another process trains
      in; nothing is overwritten then. A non-finite number; what was saved before it is kept.
  """
  workdir = run_folder.folder_of(workdir, '--workdir')
  store = None if stages is None else run_folder.folder_of(stages, '--stages')
  run_folder.check_kept(workdir, store, config.runtime)
  planned = plan(config, pretrained, resumed=(workdir / run_folder.CONFIG).exists())
  stages, mesh, data, given = planned.stages, planned.mesh, planned.data, planned.given
  start = planned.weights and planned.weights.start
  identity = _identity(config, data['train'], given)
  say = announce if processes.is_first() else lambda line: None
  with _owned(workdir, 'training in'), jax.set_mesh(mesh):
    _claim(workdir, identity)
    if processes.agreed((workdir / run_folder.RESULT).exists(), run_folder.RESULT):
      result = run_folder.read_result(workdir)
      say(f'{workdir} holds a finished run; remove it to train again')
      return result
    say(planned.parameter_table)
    taken = () if given is None else ('pretrain',)
    try:
      stages = normalised(stages, data['train'])
      folders = run_folder.stage_folders(workdir, identity)
      if store is not None and processes.is_first():
        run_folder.share_stages({name: folders[name] for name in stages if name not in taken}, store)
      processes.wait_for_everybody('stages')
      folders = run_folder.stage_folders(workdir, identity)
      reports, evaluator = _train(stages, folders, given, start, data, mesh, say)
      best = stages['finetune'].best_state(folders['finetune'], mesh)
      test, predictions = evaluator(best, data['test'], predictions=True)
    except Interrupted:
      raise
    except UserError as error:
      if processes.is_first():
        with contextlib.suppress(UserError):  # a full disk holds no note either
          run_folder.write_failure(workdir, error)
      raise
    task = stages['finetune'].task
    test, predictions = results.complete(task, test, predictions, data['test'])
    result = _result(config, identity, stages['finetune'], data['train'], reports, test, given, arm)
    if processes.is_first():
      run_folder.write_result(workdir, result, predictions)
    processes.wait_for_everybody('result')
  metric, constant = result['metric'], _constant_answer(test, task)
  say(
    f'test {metric} {test[metric]:.4f} over {test["examples"]} examples ({constant}); result in '
    f'{workdir / run_folder.RESULT}'
  )
  for sentence in _divergences(config, result['stages']):
    say(sentence)
  return result


def keep_compiled(workdir) -> None:
  """Has jax keep programs on disk, so that a run that is started again compiles little; where, see
  `run_folder.cache_of_programs`, unless jax was told another place."""
  if jax.config.jax_compilation_cache_dir is None:
    jax.config.update('jax_compilation_cache_dir', str(run_folder.cache_of_programs(workdir)))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.05)
    if files.is_bucket(jax.config.jax_compilation_cache_dir):  # jax can write there, XLA itself cannot
      jax.config.update('jax_persistent_cache_enable_xla_caches', 'none')


@contextlib.contextmanager
def _owned(folder: pathlib.Path, doing: str):
  """Makes a folder this run's own: the first of its processes holds it for all."""
  with contextlib.ExitStack() as held:
    refusal = None
    if processes.is_first():
      try:
        held.enter_context(files.owned(folder, doing))
      except UserError as error:
        refusal = error
    processes.raise_together(refusal)
    yield


def _identity(config, train, given) -> dict:
  """What makes the run this run: config.json."""
  prints = {'data': train.fingerprint, 'splits': train.split_fingerprint}
  identity = config_lib.identity(config) | {'fingerprints': prints}
  return identity if given is None else identity | {'pretrained': given.hash}


def _claim(workdir, identity) -> None:
  """Every process compares, because their flags may differ; the first one writes."""
  if processes.is_first():
    run_folder.claim(workdir, identity)
  processes.wait_for_everybody('config')
  processes.agreed((workdir / run_folder.CONFIG).exists(), run_folder.CONFIG)
  same = config_lib.digest(run_folder.read_config(workdir)) == config_lib.digest(identity)
  processes.agreed(same, 'whether config.json is of their own config')
  if not same:
    run_folder.claim(workdir, identity)


def _train(stages, folders, given, start, data, mesh, say):
  """Trains what is not trained yet; ({stage: its report}, the evaluator of finetuning)."""
  reports, again = {}, ''
  if given is not None:
    reports['pretrain'] = given.report
    start = functools.partial(_from_pretrained, given.built, given.folder, stages['finetune'], mesh)
    say(f'pretrain: taken from {given.folder}')
  elif 'pretrain' in stages:
    stage = Stage(stages['pretrain'], data, mesh, folders['pretrain'], start)
    reports['pretrain'] = _run_stage(stage, say)
    start = functools.partial(
      _from_pretrained, stages['pretrain'], folders['pretrain'], stages['finetune'], mesh
    )
  if reports:  # its pretraining is whole: here, or where it was taken from
    again = ' and --pretrained=RUN, so that pretraining is not repeated'
  stage = Stage(stages['finetune'], data, mesh, folders['finetune'], start, again)
  reports['finetune'] = _run_stage(stage, say)
  return reports, stage.evaluator


def _from_pretrained(pretrain: Built, folder, finetune: Built, mesh, fresh: dict) -> dict:
  """The state that finetuning starts from: a pretrained encoder and a fresh head."""
  flag = pretrain.objective.channels != finetune.objective.channels
  return transfer(pretrain.best_state(folder, mesh), fresh, drop_flag_input=flag)


def _run_stage(stage: Stage, say) -> dict:
  """Trains a stage unless its folder says that it is done; what stage.json notes of it."""
  if (report := _done_before(stage, say)) is not None:
    return report
  shared = run_folder.is_shared(stage.directory)
  with _owned(stage.directory, 'training the stage in') if shared else contextlib.nullcontext():
    return _done_before(stage, say) or _run_now(stage, say)


def _done_before(stage: Stage, say) -> dict | None:
  if not processes.agreed((stage.directory / run_folder.STAGE).exists(), f'{stage.name}/{run_folder.STAGE}'):
    return None
  say(f'{stage.name}: done before, in {stage.directory}')
  return run_folder.read_stage(stage.directory)


def _run_now(stage: Stage, say) -> dict:
  built, folder, name = stage.built, stage.directory, stage.built.name
  say(
    f'{name}: {built.model_name} on {built.task.name}, {built.model.parameter_count:,} parameters, '
    f'{stage.total:,} steps of {built.spec.batch_size} on {stage.mesh.size} device(s), '
    f'training examples on the {stage.placement}'
  )
  say(f'{name}: {_where(built, stage.mesh)}')
  kernels = _kernels(stage, say)
  outcome = stage.run()
  examples = outcome.steps * built.spec.batch_size
  report = {
    'steps': outcome.steps,
    'examples': examples,
    'epochs': examples / len(stage.train),
    'seconds': round(outcome.seconds, 2),
    'flops_per_step': built.flops_per_step,
    'best_step': outcome.best_step,
    'metrics': outcome.metrics,
    'folder': folder.name,
    'diverged': _diverged(built, folder),
    'time': {part: round(seconds, 2) for part, seconds in outcome.time.items()},
  } | ({'kernels': kernels} if kernels else {})
  if processes.is_first():
    run_folder.write_stage(folder, report)
  processes.wait_for_everybody(name)
  numbers = ', '.join(f'{key} {value:.4f}' for key, value in outcome.metrics.items())
  say(f'{name}: best validation at step {outcome.best_step}: {numbers} ({outcome.seconds:.0f} s)')
  say(f'{name}: {ledger.in_words(outcome.time)}')
  return report


def _kernels(stage: Stage, say) -> dict[str, str]:
  """What proved itself for the calls of a stage's step, and runs: {call: implementation}; nothing on CPUs."""
  if not stage.built.runtime.prove_kernels or not selftest.wanted():
    return {}
  folder = jax.config.jax_compilation_cache_dir
  folder = None if not folder or files.is_bucket(folder) else pathlib.Path(folder)
  calls = selftest.calls_of(stage.program, stage.built.abstract_step(stage.mesh))
  chosen = {call: found['chosen'] for call, found in selftest.choose(calls, stage.mesh, folder, say).items()}
  for call, name in chosen.items():
    say(f'{stage.name}: {name} runs {call}')
  return chosen


def _where(built: Built, mesh) -> str:
  """On what a stage computes, and how much, as a phrase."""
  runtime, devices = built.runtime, mesh.devices.flat[0].device_kind
  axes = ', '.join(f'{axis}={size}' for axis, size in mesh.shape.items())
  rows = built.spec.batch_size / parallel.row_shards(mesh)
  named = {what: getattr(runtime, what) for what in selftest.OPTIONS.values()}
  chosen = [f', {what} by {name}' for what, name in named.items() if name]
  return (
    f'on {devices} as mesh {axes}: {rows:g} sequences a device and step'
    f'{" in " + str(runtime.microbatches) + " parts" if runtime.microbatches > 1 else ""}, '
    f'{built.flops_per_step:.3g} operations a step, {runtime.precision}{"".join(chosen)}'
  )


def _diverged(built: Built, folder) -> bool:
  """Whether training ended above twice the loss of an answer that ignores the input."""
  constant, last = getattr(built.objective, 'constant_loss', None), run_folder.last_loss(folder)
  return constant is not None and last is not None and last > 2 * constant


@dataclasses.dataclass(frozen=True, eq=False)
class Pretrained:
  """The pretraining of another run: built as it was, its folder, and what its stage.json notes."""

  built: Built
  folder: pathlib.Path
  report: dict
  run: pathlib.Path
  seed: int

  @property
  def hash(self) -> str:
    """Of everything that determines it."""
    return self.folder.name.removeprefix('pretrain-')

  @classmethod
  def of(cls, run, config, train) -> 'Pretrained':
    """The pretraining in the folder of a run, for finetuning with `config` on `train`.

    Raises:
      ConfigError: that run has none, or is of another task, model, protocol, form or data.
      CheckpointError: its pretraining is not finished.
    """
    run = run_folder.folder_of(run, '--pretrained')
    if get_regime(config.regime).objective is None:
      raise ConfigError(
        f'--pretrained has no meaning with regime={config.regime}; choose the regime of that run'
      )
    identity, stored = run_folder.read_config(run), stored_config(run)
    wanted = _identity(config, train, None)
    keys = ('task', 'model', 'protocol', 'regime', 'causal', 'fingerprints')
    theirs, ours = ({key: mapping.get(key) for key in keys} for mapping in (identity, wanted))
    if config_lib.digest(theirs) != config_lib.digest(ours):
      raise ConfigError(
        f'--pretrained={run} was pretrained for something else; choose another run, or undo the change:\n'
        f'{config_lib.difference(theirs, ours)}'
      )
    folder = run_folder.stage_folders(run, identity)['pretrain']
    report = run_folder.read_stage(folder)
    if report is None:
      raise CheckpointError(f'{run} has not finished its pretraining; run the command that made it again')
    return cls(build_stage(stored, 'pretrain'), folder, report, run, stored.seed)


def _result(config, identity, finetune: Built, train, reports, test, given, arm) -> dict:
  """The content of result.json; identity: as it was when the run began, whatever became of files since."""
  facts = results.of_data(finetune.task, config.model.name, train)
  optional = {
    'arm': arm,
    'cautions': [*facts.get('cautions', ()), *_divergences(config, reports)],
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
    'config': {key: value for key, value in identity.items() if key not in ('fingerprints', 'pretrained')},
    'runtime': config.runtime.to_dict(),
    'origins': config.origins.to_dict(),
  }
  return result | facts | {key: value for key, value in optional.items() if value}


def _divergences(config, reports) -> list[str]:
  """A sentence for every stage that diverged."""
  return [
    f'The {name} stage of regime {config.regime}, seed {config.seed}, diverged: its training loss ended '
    f'above twice that of an answer that ignores the input; lower {name}.optimizer.lr.'
    for name, report in reports.items()
    if report.get('diverged')
  ]


def _constant_answer(test: dict, task: Task) -> str:
  """What a model that ignores its input reaches, as a phrase."""
  if task.regression:
    return 'always the mean label of these: 0'
  return f'always the most frequent class: {test["majority"]:.4f}'
