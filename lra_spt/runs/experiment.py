"""One run: plan -> claim the folder -> pretrain -> best checkpoint -> finetune -> test -> result.json.

Several runs can train as one program. The code is the same: each step below is made for all of them.
"""

import functools

import jax

from lra_spt import files
from lra_spt.data import scorable
from lra_spt.distributed import processes, settings
from lra_spt.errors import ConfigError, UserError
from lra_spt.report.runs import metrics, run_folder
from lra_spt.runs import plan as planning
from lra_spt.runs import result, stage_report
from lra_spt.runs.active_run import ActiveRun, noting_failures, owned, prepare_stages, raise_failures
from lra_spt.runs.build import for_split, resolve
from lra_spt.training import population
from lra_spt.training.evaluate import evaluator_of
from lra_spt.training.loop import StageLoop


def run(config, workdir, *, pretrained=None, stages=None, arm: str | None = None, announce=print) -> dict:
  """Trains and tests one run, or resumes it; see `run_together`.

  Args:
    config: see configs/; config.runtime may differ between calls, everything else may not.
    workdir: the folder of this run.
    pretrained: the folder of another run, whose pretraining is finetuned instead of an own one.
    stages, arm, announce: as in `run_together`.

  Returns:
    The content of result.json.

  Raises:
    ConfigError: runtime.members is not 1.
    UserError: as in `run_together`.
  """
  spec = resolve(config)
  if (members := spec.runtime.members) != 1:
    raise ConfigError(
      f'runtime.members is {members}, but this call trains one run: leave it at 1, or train several with '
      '`lra-spt train --seeds` or lra_spt.runs.experiment.run_together'
    )
  return run_together([ActiveRun(spec, workdir, pretrained)], stages=stages, arm=arm, announce=announce)[0]


def run_together(runs: list[ActiveRun], *, stages=None, arm: str | None = None, announce=print) -> list[dict]:
  """Trains and tests runs as one program, or resumes them; the same call on the same folders goes on where it
  stopped. Each run has the folder that it would have alone, and may go on alone or in another population.

  Args:
    runs: one run, or several that differ in their seeds, learning rates and weight decays only.
    stages: a folder of stages that runs share if they need the same one; None: each has its own.
    arm: the name of the runs in reports, where regime and form do not say enough.
    announce: called with a line of text for the reader.

  Returns:
    The content of result.json of each run.

  Raises:
    UserError: unusable config, data or checkpoint; a workdir of another config, or one that another process
      trains in (then nothing is overwritten); or a number that is not finite. If some of several runs meet
      one, the others end before the error is raised.
  """
  say = announce if processes.is_first() else lambda line: None
  store = None if stages is None else run_folder.folder_of(stages, '--stages')
  for each in runs:
    each.workdir = run_folder.folder_of(each.workdir, '--workdir')
  precision = runs[0].spec.runtime.matmul_precision
  if ignored := settings.ignored(precision):
    named = ', '.join(f'{name}={value}' for name, value in ignored.items())
    say(f'{named} has no effect on runs; set runtime.matmul_precision or runtime.prng if you need to')
  planned = planning.plan_together(runs, store)
  for each in runs:
    each.identify(planned, say)
  claimed = owned([each.workdir for each in runs], 'training in')
  with settings.fixed(precision), claimed, jax.set_mesh(planned.mesh):
    for each in runs:
      each.claim(say)
    waiting = [each for each in runs if each.result is None]
    with noting_failures(waiting):
      if waiting:
        for sentence in scorable.remarks(planned.data):
          say(sentence)
        say(planned.parameter_table)
        prepare_stages(waiting, planned, store, say)
      if 'pretrain' in planned.stages:
        pretraining = [each for each in waiting if each.taken is None]
        stage_report.warn_of_memory(planned.stages['finetune'], planned.mesh, len(pretraining), say)
        train_stage('pretrain', pretraining, planned, say)
        for each in waiting:
          each.start_from_pretrained(planned.mesh)
      train_stage('finetune', waiting, planned, say)
      test_runs(waiting, planned, arm, say)
  raise_failures(runs)
  return [each.result for each in runs]


def train_stage(name: str, runs: list[ActiveRun], planned: planning.Plan, say) -> None:
  """Trains a stage of the runs that have no report of it yet; runs that share its folder train it once."""
  waiting = [each for each in runs if each.error is None and not each.is_done(name, say)]
  first = {each.folders[name].resolve(): each for each in reversed(waiting)}
  training = [each for each in waiting if each in first.values()]
  shared = [each.folders[name] for each in training if run_folder.is_shared(each.folders[name])]
  with owned(shared, 'training the stage in'):
    if shared:  # another command may have trained it before this one had the lock
      training = [each for each in training if not each.is_done(name, say)]
    if training:
      stages = training[0].stages
      later = [stages[other] for other in [*stages][[*stages].index(name) + 1 :]]
      stage = StageLoop([each.member(name) for each in training], planned.data, planned.mesh, later)
      kernels = stage_report.announce(stage, say)
      noted = functools.partial(stage_report.note_attempt, say)
      for each, outcome in zip(training, stage.run(noted), strict=True):
        if isinstance(outcome, UserError):
          say(f'{each.workdir}: {outcome}')
          each.fails_with(outcome)
        else:
          each.reports[name] = stage_report.note(outcome, stage, kernels)
          stage_report.say_score(outcome, stage, each.workdir.name, say)
      stage_report.say_time(stage, say)
  for each in waiting:
    trained = first[each.folders[name].resolve()]
    if trained.error is not None and each.error is None:
      each.fails_with(trained.error)
    elif each.error is None and name not in each.reports:
      each.is_done(name, say)


def test_runs(runs: list[ActiveRun], planned: planning.Plan, arm: str | None, say) -> None:
  """Tests the best checkpoints of runs without an error, and writes their results."""
  runs, mesh, examples = [each for each in runs if each.error is None], planned.mesh, planned.data['test']
  if not runs:
    return
  stages = [each.stages['finetune'] for each in runs]
  best = [each.stages['finetune'].best_state(each.folders['finetune'], mesh) for each in runs]
  answers = evaluator_of(stages[0], mesh).of_each(
    population.stack(best, mesh), examples, [stage.seed for stage in stages], predictions=True
  )
  longer = _longer_tests(runs, best, answers, planned)
  for each, answer, by_length in zip(runs, answers, longer, strict=True):
    if isinstance(answer, UserError):
      each.fails_with(answer)
      continue
    task = each.stages['finetune'].task
    scores, undefined, predictions = metrics.complete(
      task, answer.metrics, answer.undefined, answer.predictions, examples
    )
    each.result = result.content(each, planned.data['train'], scores, undefined, arm, by_length)
    if processes.is_first():
      run_folder.write_result(each.workdir, each.result, predictions)
    processes.wait_for_everybody('result')
    for line in (result.score(each), *result.divergences(each)):
      say(line)


def _longer_tests(runs: list[ActiveRun], best: list, tested: list, planned: planning.Plan) -> list[dict]:
  """The metrics of each run on the test split and on longer ones, see `schema.Metrics.by_length`; {} where
  the task has none."""
  stages, mesh = [each.stages['finetune'] for each in runs], planned.mesh
  task = stages[0].task
  metrics = [{'test': {'length': task.length} | getattr(answer, 'metrics', {})} for answer in tested]
  for split, length in task.longer:
    try:
      stage = for_split(runs[0].spec, stages[0], split)
      answers = evaluator_of(stage, mesh).of_each(
        population.stack(best, mesh), planned.data[split], [each.seed for each in stages]
      )
    except ConfigError as error:
      answers = [error] * len(runs)
    for by_length, answer in zip(metrics, answers, strict=True):
      refused = isinstance(answer, UserError)
      by_length[split] = {'length': length} | ({'why': str(answer)} if refused else answer.metrics)
  return metrics if task.longer else [{}] * len(runs)


def keep_compiled(workdir) -> None:
  """Lets jax keep compiled programs on the disk, in `run_folder.cache_of_programs` unless jax has another
  folder, so that a run that is started again compiles little."""
  if jax.config.jax_compilation_cache_dir is None:
    jax.config.update('jax_compilation_cache_dir', str(run_folder.cache_of_programs(workdir)))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.05)
    if files.is_bucket(jax.config.jax_compilation_cache_dir):  # jax can write there, XLA itself cannot
      jax.config.update('jax_persistent_cache_enable_xla_caches', 'none')
