"""From a config to a run and its stages: `resolve` is the border behind which nobody reads a ConfigDict."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from lra_spt import objectives
from lra_spt.config import loading
from lra_spt.config.protocol import Protocol, get_protocol
from lra_spt.config.regimes import Regime, get_regime
from lra_spt.config.schema import FinetuneSpec, ModelSpec, PretrainSpec, RuntimeSpec, StageSpec
from lra_spt.config.values import typed
from lra_spt.data import examples as examples_lib
from lra_spt.data import tasks
from lra_spt.data.tasks import Task, Tokens, Values, get_task
from lra_spt.distributed import sharding
from lra_spt.errors import CheckpointError, ConfigError, DamagedFile, DataError, within
from lra_spt.models import InputSpec, MixerSpec, Recipe
from lra_spt.models.check import check_mixer
from lra_spt.models.registry import is_builtin, mixer_class
from lra_spt.objectives.registry import get_objective, options_from
from lra_spt.objectives.rows import row_lengths
from lra_spt.ops import selection
from lra_spt.report.runs import run_folder
from lra_spt.runs import user_code
from lra_spt.training import device_data, population
from lra_spt.training import state as states
from lra_spt.training.checkpoints.store import read_best
from lra_spt.training.evaluate import check_fills_a_batch
from lra_spt.training.monitoring import trackers
from lra_spt.training.programs import shared
from lra_spt.training.step import StepProgram, summed_loss

NUMBERS = {'pretrain': 0, 'finetune': 1}  # of the stages, from which their random streams are drawn


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
    """The hashes of its mixer, pretraining objective and task that are user code."""
    classes = {'mixer': mixer_class(self.model.mixer['name'])}
    if self.regime.objective is not None:
      classes['objective'] = get_objective(self.regime.objective)
    code = {what: user_code.digest(cls) for what, cls in classes.items() if user_code.is_user(cls)}
    task = get_task(self.task.name)
    return code | ({'task': user_code.digest_of_task(task)} if tasks.is_own(task) else {})


def resolve(config) -> RunSpec:
  """Resolves a config: the border behind which nothing reads one.

  Raises:
    ConfigError: an unknown task, regime, protocol, objective or key, or a value that cannot be used.
  """
  loading.check_whole(config)
  regime, protocol = get_regime(config.regime), get_protocol(config.protocol)
  causal = regime.causal or config.causal
  sections = {name: config[name] for name in run_folder.STAGES if name in config}
  stages = {'finetune': typed(FinetuneSpec, sections['finetune'], 'finetune')}
  if regime.objective is not None:
    stages = {'pretrain': _pretrain_spec(regime, causal, sections['pretrain'])} | stages
  model = typed(ModelSpec, {key: value for key, value in config.model.items() if key != 'weights'}, 'model')
  values = loading.plain(config)
  return RunSpec(
    task=_as_trained(get_task(config.task), protocol, model),
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


def _pretrain_spec(regime, causal, section) -> PretrainSpec:
  name = regime.objective
  if getattr(get_objective(name), 'needs_causal_form', False) and not causal:
    raise ConfigError(
      f'regime {regime.name} pretrains on {name!r}, whose answers a bidirectional model reads off its '
      'input; register the regime with causal=True, or set causal=true'
    )
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
  if protocol.unscaled_inputs and task.published.unscaled_inputs:
    task = task.with_inputs(mean=(0.0,) * task.channels, std=(1.0,) * task.channels)
  if model.byte_tokens:
    with within('model'):
      task = task.with_byte_tokens()
  return task


@dataclasses.dataclass(frozen=True, eq=False)
class Built:
  """One stage, typed: everything about it but its data. Nothing is allocated.

  name: 'pretrain' or 'finetune'; seed: of the run; task: as the protocol splits it.
  """

  name: str
  seed: int
  task: Task
  protocol: Protocol
  objective: objectives.Objective
  mixer: MixerSpec
  model: states.Blueprint
  spec: StageSpec
  runtime: RuntimeSpec

  def described(self) -> dict:
    """What tells it from other stages, as plain values in dicts, for a tracker of experiments."""
    return {
      'stage': self.name,
      'task': self.task.name,
      'seed': self.seed,
      'model': dataclasses.asdict(self.mixer.model),
      'causal': self.mixer.causal,
      **dataclasses.asdict(self.spec),
    }

  def __repr__(self):
    return f'Built({self.name} of {self.model_name} on {self.task.name})'

  @property
  def model_name(self) -> str:
    """As in the config's model.name."""
    return self.mixer.model.name

  @property
  def key(self) -> jax.Array:
    """The key that all random numbers of the stage are drawn from."""
    return states.stage_key(self.seed, NUMBERS[self.name])

  @property
  def stream_seed(self) -> int:
    """Of the order in which training examples come."""
    return 2 * self.seed + NUMBERS[self.name]

  @property
  def flops_per_step(self) -> int:
    """Floating-point operations of a training step: the backward pass counts twice the forward one."""
    return 3 * self.model.flops * self.spec.batch_size * self.task.documents

  @property
  def _state(self):
    return self.model, self.spec.optimizer, self.objective.selection[1]

  def abstract_state(self, mesh) -> dict:
    """ShapeDtypeStruct per leaf of the train state with the sharding that it has on a mesh."""
    return states.abstract(*self._state, mesh)

  @property
  def typical_program(self) -> StepProgram:
    """The training step but for two constants, which depend on how long the stage is."""
    spec, runtime = self.spec, self.runtime
    schedule = spec.schedule.resolved(max(1000, 2 * spec.schedule.warmup_steps))
    return StepProgram(self.model, self.objective, spec.optimizer, schedule, 1000, runtime.microbatches)

  def abstract_step(self, mesh, members: int | None = None) -> tuple:
    """What `train_steps` takes, abstractly: state, one batch as `Examples` gathers it, count, key; of all
    members, on a mesh for several (None: as many as runtime.members)."""
    rows, whole = sharding.rows_sharding(mesh, leading=1), sharding.replicated(mesh)
    batches = {
      name: jax.ShapeDtypeStruct(part.shape, part.dtype, sharding=rows)
      for name, part in self.task.batch(1, self.spec.batch_size).items()
    }
    key = jax.eval_shape(lambda: jax.random.key(0))
    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=whole)
    key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=whole)
    arguments = (self.abstract_state(mesh), batches, count, key)
    return population.abstract(arguments, members or self.runtime.members, mesh)

  def fresh_state(self, mesh) -> dict:
    """The train state that the stage starts from when nothing was pretrained, made in place on a mesh."""
    return states.create(*self._state, states.initial_key(self.key), mesh)

  def best_state(self, folder, mesh) -> dict:
    """{step, params, stats} of the best validation, from the stage's folder.

    Raises:
      CheckpointError: it is missing, damaged or of another model.
    """
    best = read_best(folder / 'checkpoints', self.abstract_state(mesh))
    if best is None and run_folder.read_stage(folder) is None:
      raise CheckpointError(
        f'{folder} has no checkpoint yet; the first validation writes one: repeat the command that trains '
        'the run'
      )
    if best is None:
      raise CheckpointError(
        f'{folder} has no checkpoint of its best validation; restore {folder / "checkpoints"} from a copy, '
        f'or delete {folder} to train that stage again'
      )
    return best

  def check_mixer(self) -> tuple[str, ...]:
    """See `lra_spt.models.check`; padding only where the task has any. Kernels prove themselves elsewhere."""
    with selection.plainly():
      return check_mixer(self.mixer, padding=isinstance(self.task.inputs, Tokens))

  def check(self, mesh, data, *, mixer: bool = True) -> None:
    """Raises what would end the stage at its first step, so that it is known before a folder is claimed.

    Args:
      mesh: to train on.
      data: `Examples` of each split.
      mixer: whether to check the mixer too, where it is not of the package, whose tests check its own, and
        unless runtime.check_mixer forbids it.

    Raises:
      ConfigError: a mixer that breaks its contract, sizes that do not divide, no end, a layer that cannot be
        split over the mesh, what does not fit on the devices, or a tracker that is not installed.
    """
    with within('runtime'):
      trackers.check_installed(self.runtime.tracker_names)
    if mixer and self.runtime.check_mixer and not is_builtin(self.mixer.model.mixer['name']):
      self.check_mixer()
    train = data['train'].part(self.spec.data_fraction)
    rows, name = self.spec.batch_size, f'{self.name}.batch_size'
    sharding.check_batch_size(rows, mesh, name, self.runtime.microbatches)
    if self.protocol.drop_last_evaluation_batch:
      for split in ('validation', 'test') if self.name == 'finetune' else ('validation',):
        check_fills_a_batch(data[split], self.spec.batch_size)
    if rows := self.runtime.evaluation_batch_size:
      sharding.check_batch_size(rows, mesh, 'runtime.evaluation_batch_size')
    self.layer_calls(mesh)
    self._check_memory(mesh)
    with within(self.name):
      total = self.spec.total_steps(len(train))
    with within(f'{self.name}.schedule'):
      self.spec.schedule.resolved(total)
    device_data.choose(self.runtime.placement, train, mesh)

  def _check_memory(self, mesh):
    """A bound from below: what goes into the blocks, which no choice of runtime.remat spares."""
    model, rows = self.mixer.model, self.spec.batch_size * self.task.documents // self.runtime.microbatches
    needed = 4 * rows * self.task.length * model.width * model.depth // mesh.size
    if needed > (there := sharding.device_memory(mesh)):
      raise ConfigError(
        f'{self.name}.batch_size is {self.spec.batch_size}, for which the hidden states of a step alone need '
        f'{needed / 2**30:,.0f} GiB of each device, which has {there / 2**30:.0f}; lower it, or raise '
        'runtime.microbatches or runtime.mesh.seq'
      )

  def kept_for_gradient(self, mesh, members: int = 1) -> int:
    """Bytes that a device keeps of the forward pass of one part of a step for its gradient, as jax traces it;
    what XLA spares of them, and needs beside, is not in it."""
    program, rows = self.typical_program, self.spec.batch_size // self.runtime.microbatches
    batch = {
      name: jax.ShapeDtypeStruct(part.shape[1:], part.dtype)
      for name, part in self.task.batch(1, rows).items()
    }
    keys_B = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))

    def kept(params, stats, batch, keys_B):
      return jax.vjp(lambda params: summed_loss(program, stats, batch, keys_B)(params)[0], params)[1]

    with jax.set_mesh(mesh):
      leaves = jax.tree.leaves(jax.eval_shape(kept, self.model.params, self.model.stats, batch, keys_B))
    return members * sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) // mesh.size

  def layer_calls(self, mesh) -> tuple[selection.Call, ...]:
    """The calls of a forward pass that several implementations may run; raises what a layer does that cannot
    be split over the mesh."""
    rows, length = self.spec.batch_size * self.task.documents, self.task.length
    channels = self.objective.channels
    shape = (rows, length, *[channels] * bool(channels))
    inputs = jax.ShapeDtypeStruct(shape, np.float32 if channels else np.int32)
    lengths_R = row_lengths(self.task, jax.ShapeDtypeStruct((rows,), np.int32))
    return _layer_calls(self.model, mesh, inputs, lengths_R)

  def with_task(self, task: Task) -> 'Built':
    """The same stage, reading its examples otherwise."""
    return dataclasses.replace(self, task=task, objective=dataclasses.replace(self.objective, task=task))


@shared
def _layer_calls(model, mesh, inputs, lengths_R):
  forward = lambda params, stats, x, n_R: model.merge(params, stats)(x, lengths_B=n_R)  # noqa: E731
  with jax.set_mesh(mesh), selection.recording() as calls:
    jax.eval_shape(forward, model.params, model.stats, inputs, lengths_R)
  return tuple(calls)


def build(run: RunSpec, stage: str) -> Built:
  """The typed objects of one stage, 'pretrain' or 'finetune'.

  Raises:
    ConfigError: the run has no such stage, or its mixer or objective refuses an option.
  """
  if stage not in run.stages:
    raise ConfigError(f'regime {run.regime.name} has no {stage}ing; choose another regime')
  task, protocol, spec = run.task, run.protocol, run.stages[stage]
  if stage == 'pretrain':
    objective = get_objective(run.regime.objective)(task, protocol, **spec.options)
  else:
    answer = objectives.Regression if task.regression else objectives.Classification
    objective = answer(task, protocol, spec.pool, spec.head)
  inputs = InputSpec(task.length, task.vocabulary, objective.channels)
  execution = run.runtime.execution
  mixer = MixerSpec(run.model, task.length, run.causal, protocol, execution)
  recipe = Recipe(run.model, inputs, objective.head, run.causal, protocol, execution)
  model = states.blueprint(recipe, task.length, decay_everything=protocol.decay_everything)
  return Built(stage, run.seed, task, protocol, objective, mixer, model, spec, run.runtime)


def stages_of(config) -> dict[str, Built]:
  """The stages of a run by name, in their order; raises as `resolve` and `build`."""
  run = resolve(config)
  return {name: build(run, name) for name in run.stages}


def build_stage(config, stage: str) -> Built:
  """One stage of the run of a config; raises as `resolve` and `build`."""
  return build(resolve(config), stage)


def model_of(config) -> ModelSpec:
  """The encoder of a config; raises as `resolve`."""
  return resolve(config).model


def spec_of(config, stage: str) -> StageSpec:
  """How long and how a stage trains; raises as `resolve`."""
  return resolve(config).stages[stage]


def measured(built: Built) -> bool:
  """Whether a stage normalises its inputs by what only its training examples tell; see `normalised`."""
  return _by_position(built) or (isinstance(built.task.inputs, Values) and built.task.inputs.measured)


def normalised(stages: dict[str, Built], train) -> dict[str, Built]:
  """The stages with the statistics of their training examples, where the task or the protocol asks for them.

  Raises:
    DataError: the prepared set does not hold them.
  """
  built = next(iter(stages.values()))
  if not measured(built):
    return stages
  if _by_position(built):
    mean, std = examples_lib.position_statistics(train)
    scale = built.task.inputs.scale**2  # samples are divided twice
    task = built.task.with_inputs(scale=scale, mean=mean / scale, std=std / scale + 1e-5)
  else:
    found = (train.metadata.get('statistics') or {}).get('train')
    if not found:
      raise DataError(
        f'The prepared set {built.task.dataset!r} does not hold the mean and standard deviation of its '
        'training file, as sets made now do; remove its folder and prepare it again.'
      )
    task = built.task.with_measured(found)
  return {name: stage.with_task(task) for name, stage in stages.items()}


def _by_position(built: Built) -> bool:
  return built.protocol.position_statistics and built.task.published.position_statistics


def causal_form(config) -> bool:
  """True if the model is the causal form of its mixer."""
  return get_regime(config.regime).causal or config.causal


def stored_config(folder) -> ConfigDict:
  """The config of the run in a folder, from which its stages can be built; runtime is one device's.

  Raises:
    DamagedFile: the folder has none, or it is not the config of a run.
    ConfigError: it was trained with a mixer, an objective or a task from outside the package that is another
      now.
  """
  stored = run_folder.read_config(folder)
  identity = {key: value for key, value in stored.items() if key not in run_folder.BESIDE}
  # Where the run was computed does not matter to what its checkpoints hold.
  config = ConfigDict(identity | {'runtime': {'mesh': {}, 'data_dir': '.'}})
  try:
    loading.check_whole(config, 'it')
  except ConfigError as error:
    raise DamagedFile(
      f'{folder / run_folder.CONFIG} is not the config of a run ({str(error).rstrip(".")}); '
      f'{run_folder.CONFIG_ADVICE}.'
    ) from error
  before = stored.get('code', {})
  now = user_code.as_begun(stored, {'code': code_of(config)}).get('code', {})
  if changed := [part for part in before if now.get(part) != before[part]]:
    raise ConfigError(
      f'{folder} was trained with your own code ({", ".join(changed)}), which has changed since; undo the '
      'change, give --accept_changed_code if it does not matter, or train again.'
    )
  return config


def code_of(config) -> dict[str, str]:
  """See `RunSpec.user_code`."""
  return resolve(config).user_code
