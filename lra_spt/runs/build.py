"""From a config to a run and its stages: `resolve` is the border behind which nobody reads a ConfigDict."""

import dataclasses
import functools

import jax
from ml_collections import ConfigDict

from lra_spt import objectives
from lra_spt.config import loading
from lra_spt.config.protocol import Protocol, get_protocol
from lra_spt.config.regimes import Regime, get_regime
from lra_spt.config.runtime import RuntimeSpec
from lra_spt.config.schema import EVERYTHING, FinetuneSpec, ModelSpec, PretrainSpec, StageSpec
from lra_spt.config.values import as_config, typed
from lra_spt.data import examples as examples_lib
from lra_spt.data import tasks
from lra_spt.data.tasks import Task, get_task
from lra_spt.distributed import settings
from lra_spt.errors import ConfigError, DamagedFile, FieldError, within
from lra_spt.models import InputSpec, MixerSpec, Recipe
from lra_spt.models.registry import mixer_class
from lra_spt.objectives.registry import get_objective, options_from
from lra_spt.report.runs import run_folder
from lra_spt.runs import user_code
from lra_spt.runs.stage import Built
from lra_spt.training import parameters
from lra_spt.training import state as states


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RunSpec:
  """One run, resolved from its config: no name is left to look up, and every value has its type. Nothing is
  built yet. It is no key of a compiled program, because seeds and paths would compile again.

  task: as the protocol splits and scales it; causal: the form of the mixer; weights: file that the encoder
  starts from, or ''; stages: by name, in their order; values: the plain config; origins: of its values.
  """

  task: Task
  regime: Regime
  protocol: Protocol
  causal: bool
  seed: int
  model: ModelSpec
  weights: str
  stages: dict[str, StageSpec]
  runtime: RuntimeSpec
  values: dict
  origins: dict

  @functools.cached_property
  def identity(self) -> dict:
    """The values that make it this run, see `loading.identity`."""
    return loading.identity(self.values)

  @functools.cached_property
  def user_code(self) -> dict[str, str]:
    """The hashes of its mixers, pretraining objective and task that are user code."""
    names = {mixer['name'] for mixer in self.model.period}
    classes = {'mixer' if len(names) == 1 else f'mixer {name}': mixer_class(name) for name in sorted(names)}
    if self.regime.objective is not None:
      classes['objective'] = get_objective(self.regime.objective)
    code = {what: user_code.digest(cls) for what, cls in classes.items() if user_code.is_user(cls)}
    task = get_task(self.task.name, self.runtime.data_dir)
    return code | ({'task': user_code.digest_of_task(task)} if tasks.is_own(task) else {})


def resolve(config) -> RunSpec:
  """Resolves a config: the border behind which nothing reads one.

  Raises:
    ConfigError: an unknown task, regime, protocol, objective or key, or a value that cannot be used.
    FieldError: `finetune.transfer` without pretraining.
  """
  config = as_config(config)
  loading.check_whole(config)
  regime, protocol = get_regime(config.regime), get_protocol(config.protocol)
  causal = regime.causal or config.causal
  sections = {name: config[name] for name in run_folder.STAGES if name in config}
  stages = {'finetune': typed(FinetuneSpec, sections['finetune'], 'finetune')}
  if regime.objective is not None:
    stages = {'pretrain': _pretrain_spec(regime.objective, sections['pretrain'])} | stages
  takes_part = stages['finetune'].transfer != EVERYTHING
  if takes_part and regime.objective is None and not config.model.get('weights'):
    raise FieldError(
      'finetune.transfer',
      f'is set, but regime {regime.name} has no pretraining to take parameters from; leave it out, choose '
      'another regime, or name a file in model.weights',
    )
  model = typed(ModelSpec, {key: value for key, value in config.model.items() if key != 'weights'}, 'model')
  values = loading.plain(config)
  return RunSpec(
    task=_as_trained(get_task(config.task, config.runtime.get('data_dir')), protocol, model),
    regime=regime,
    protocol=protocol,
    causal=causal,
    seed=config.seed,
    model=model,
    weights=config.model.get('weights', ''),
    stages={name: _with_schedule(spec, rises=protocol.cosine_rises) for name, spec in stages.items()},
    runtime=typed(RuntimeSpec, config.runtime, 'runtime'),
    values={key: value for key, value in values.items() if key != 'origins'},
    origins=values.get('origins', {}),
  )


def _pretrain_spec(name, section) -> PretrainSpec:
  of_every_stage = {field.name for field in dataclasses.fields(StageSpec)}
  stage = {key: value for key, value in section.items() if key in of_every_stage}
  others = {key: value for key, value in section.items() if key not in of_every_stage}
  return typed(PretrainSpec, stage | {'options': options_from(name, others)}, 'pretrain')


def _with_schedule(spec, **changes):
  return dataclasses.replace(spec, schedule=dataclasses.replace(spec.schedule, **changes))


def _as_trained(task: Task, protocol: Protocol, model: ModelSpec) -> Task:
  """A task as the protocol splits and scales it, and as the model reads it."""
  if protocol.published_splits:
    task = task.as_published()
  if protocol.input_range and task.published.input_range:
    ends = task.published.input_range
    mean, std = (tuple((high + sign * low) / 2 for low, high in ends) for sign in (1, -1))
    task = task.with_inputs(mean=mean, std=std)
  if model.byte_tokens:
    with within('model'):
      task = task.with_byte_tokens()
  return task


@settings.fixed()
def build(run: RunSpec, stage: str) -> Built:
  """Builds one stage, 'pretrain' or 'finetune'.

  Raises:
    ConfigError: the run has no such stage, or its mixer or objective refuses an option.
  """
  if stage not in run.stages:
    raise ConfigError(f'regime {run.regime.name} has no {stage}ing; choose another regime')
  task, protocol, spec = run.task, run.protocol, run.stages[stage]
  if stage == 'pretrain':
    objective = get_objective(run.regime.objective)(task, protocol, **spec.options)
    if getattr(objective, 'needs_causal_form', False) and not run.causal:
      raise ConfigError(
        f'regime {run.regime.name} pretrains on {run.regime.objective!r}, whose answers a bidirectional '
        'model reads off its input; register the regime with causal=True, or set causal=true'
      )
  else:
    with within('finetune'):
      objective = _answers(task, protocol, spec)
  inputs = InputSpec(task.length, task.vocabulary, objective.channels)
  execution = run.runtime.execution
  mixer = MixerSpec(run.model, task.length, run.causal, protocol, execution)
  recipe = Recipe(run.model, inputs, objective.head, run.causal, protocol, execution)
  freeze = spec.freeze if stage == 'finetune' else ()
  model = states.blueprint(recipe, task.length, decay_everything=protocol.decay_everything, freeze=freeze)
  if stage == 'finetune':
    parameters.check('finetune.transfer', spec.transfer, states.leaf_names(model.params))
  return Built(stage, run.seed, task, protocol, objective, mixer, model, spec, run.runtime)


def _answers(task: Task, protocol: Protocol, spec: FinetuneSpec) -> objectives.Objective:
  """The objective of finetuning."""
  if task.regression:
    if spec.class_weights:
      raise FieldError('class_weights', f'is set, but the labels of {task.name} are no classes; leave it out')
    return objectives.Regression(task, protocol, spec.pool, spec.head)
  answer = objectives.PositionClassification if task.per_position else objectives.Classification
  answer = objectives.MultiLabelClassification if task.multi_label else answer
  return answer(task, protocol, spec.pool, spec.head, spec.class_weights)


def for_split(run: RunSpec, built: Built, split: str) -> Built:
  """The stage of a run with the length that examples have in a split, see `Task.longer`.

  Raises:
    ConfigError: the parameters of the model depend on the length.
  """
  task = built.task.for_split(split)
  if task == built.task:
    return built
  longer = build(dataclasses.replace(run, task=task), built.name)
  shapes = [
    jax.tree.map(lambda x: x.shape, (each.model.params, each.model.stats)) for each in (built, longer)
  ]
  if shapes[0] != shapes[1]:
    raise ConfigError(
      f'{built.model_name} has parameters for {built.task.length} positions, so it cannot read the '
      f'{task.length} of {split}; choose a model whose parameters do not depend on the length'
    )
  return longer


def stages_of(run: RunSpec) -> dict[str, Built]:
  """Builds the stages of a run, in their order; raises as `build` does."""
  return {name: build(run, name) for name in run.stages}


def measured(built: Built) -> bool:
  """Says if a stage normalises inputs or labels with statistics of training examples, see `normalised`."""
  return _by_position(built) or built.task.measured


def normalised(stages: dict[str, Built], train) -> dict[str, Built]:
  """Gives stages the statistics of their training examples, if the task or the protocol needs them.

  Raises:
    DataError: the prepared set does not hold the statistics.
  """
  built = next(iter(stages.values()))
  if not measured(built):
    return stages
  if _by_position(built):
    mean, std = examples_lib.position_statistics(train)
    scale = built.task.inputs.scale**2  # samples are divided twice
    task = built.task.with_inputs(scale=scale, mean=mean / scale, std=std / scale + 1e-5)
  else:
    task = built.task.with_measured(train.metadata.get('statistics') or {})
  return {name: stage.with_task(task) for name, stage in stages.items()}


def _by_position(built: Built) -> bool:
  return built.protocol.position_statistics and built.task.published.position_statistics


def stored_run(folder, data_dir=None) -> RunSpec:
  """Reads the run in a folder; its runtime is that of one device.

  Args:
    folder: of the run.
    data_dir: folder of the prepared set; None: the folder during training, which a finished run records.

  Raises:
    DamagedFile: the folder has no config.json, or it is not the config of a run.
    ConfigError: the user code of the run has changed since it began.
  """
  stored = run_folder.read_config(folder)
  identity = {key: value for key, value in stored.items() if key not in run_folder.BESIDE}
  known = stored.get('task') in tasks.TASKS
  if not known and data_dir is None and (folder / run_folder.RESULT).exists():
    data_dir = (run_folder.read_result(folder).get('runtime') or {}).get('data_dir')
  # Checkpoints do not depend on where the run was computed.
  config = ConfigDict(identity | {'runtime': {'mesh': {}, 'data_dir': str(data_dir or '.')}})
  try:
    loading.check_whole(config, 'it')
  except ConfigError as error:
    raise DamagedFile(
      f'{folder / run_folder.CONFIG} is not the config of a run ({str(error).rstrip(".")}); '
      f'{run_folder.CONFIG_ADVICE}.'
    ) from error
  run, before = resolve(config), stored.get('code', {})
  now = user_code.as_begun(stored, {'code': run.user_code}).get('code', {}) if before else {}
  if changed := [part for part in before if now.get(part) != before[part]]:
    raise ConfigError(
      f'{folder} was trained with your own code ({", ".join(changed)}), which has changed since; undo the '
      'change, give --accept_changed_code if it does not matter, or train again.'
    )
  return run
