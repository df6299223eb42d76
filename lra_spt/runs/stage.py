"""One stage of a run, typed: everything about it but its data."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from lra_spt import objectives
from lra_spt.config.protocol import Protocol
from lra_spt.config.runtime import RuntimeSpec
from lra_spt.config.schema import StageSpec
from lra_spt.data.tasks import Task
from lra_spt.distributed import settings, sharding
from lra_spt.errors import CheckpointError, ConfigError, within
from lra_spt.models import MixerSpec
from lra_spt.models.check import check_mixer
from lra_spt.models.registry import is_builtin
from lra_spt.objectives.rows import row_lengths
from lra_spt.ops import selection
from lra_spt.report.runs import run_folder
from lra_spt.training import device_data, population
from lra_spt.training import state as states
from lra_spt.training.checkpoints.store import read_best
from lra_spt.training.evaluate import check_fills_a_batch
from lra_spt.training.monitoring import trackers
from lra_spt.training.programs import shared
from lra_spt.training.step import StepProgram, summed_loss

NUMBERS = {'pretrain': 0, 'finetune': 1}  # the random streams of a stage depend on its number


@dataclasses.dataclass(frozen=True, eq=False)
class Built:
  """One stage of a run. Nothing is allocated.

  name: 'pretrain' or 'finetune'; seed: that of the run; task: as the protocol splits and scales it; mixer:
  that of the first block, and by `mixer.period` those of the others; model: the whole model without its
  arrays; spec: how long and how it trains; runtime: where and how it computes.
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
    """Describes the stage for a tracker of experiments, as plain values in dicts."""
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
    """The name of the model in reports, model.name."""
    return self.mixer.model.name

  @property
  def key(self) -> jax.Array:
    """The key from which initial values are drawn."""
    return states.stage_key(self.seed, NUMBERS[self.name])

  @property
  def training_key(self) -> jax.Array:
    """The key of masks and dropout in training, of the generator runtime.prng."""
    return jax.random.fold_in(states.stage_key(self.seed, NUMBERS[self.name], self.runtime.prng), 1)

  @property
  def stream_seed(self) -> int:
    """The seed of the order of training examples."""
    return 2 * self.seed + NUMBERS[self.name]

  @property
  def flops_per_step(self) -> int:
    """The floating-point operations of a training step: the backward pass counts twice the forward pass."""
    return 3 * self.model.flops * self.spec.batch_size * self.task.documents

  @property
  def flops_at_least(self) -> bool:
    """True if `flops_per_step` counts only the matrices of a mixer, because the mixer has no `flops`."""
    return any(mixer.lacks_flops for mixer in self.mixer.period)

  @property
  def operations(self) -> str:
    """The number of `flops_per_step` for readers."""
    if not self.flops_at_least:
      return f'{self.flops_per_step:.3g}'
    return f'at least {self.flops_per_step:.3g} (the mixer has no `flops`)'

  @property
  def _state(self):
    return self.model, self.spec.optimizer, self.objective.selection[1]

  def abstract_state(self, mesh) -> dict:
    """Returns a ShapeDtypeStruct per leaf of the train state, with its sharding on a mesh."""
    return states.abstract(*self._state, mesh)

  @property
  def typical_program(self) -> StepProgram:
    """The training step with typical values of the two constants that depend on the length of the stage."""
    spec, runtime = self.spec, self.runtime
    schedule = spec.schedule.resolved(max(1000, 2 * spec.schedule.warmup_steps))
    return StepProgram(self.model, self.objective, spec.optimizer, schedule, 1000, runtime.microbatches)

  def abstract_step(self, mesh, members: int | None = None) -> tuple:
    """Returns the abstract arguments of `train_steps`: state, one batch as `Examples` gathers it, count and
    key.

    On a mesh for several runs they are stacked for all members; None: runtime.members.
    """
    rows, whole = sharding.rows_sharding(mesh, leading=1), sharding.replicated(mesh)
    batches = {
      name: jax.ShapeDtypeStruct(part.shape, part.dtype, sharding=rows)
      for name, part in self.task.batch(1, self.spec.batch_size).items()
    }
    key = jax.eval_shape(lambda: settings.random_key(0, self.runtime.prng))
    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=whole)
    key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=whole)
    arguments = (self.abstract_state(mesh), batches, count, key)
    return population.abstract(arguments, members or self.runtime.members, mesh)

  def fresh_state(self, mesh) -> dict:
    """Makes the train state that the stage starts from without pretraining, in place on a mesh."""
    return states.create(*self._state, states.initial_key(self.key), mesh)

  def best_state(self, folder, mesh) -> dict:
    """Reads {step, params, stats} of the best validation from the folder of the stage.

    Raises:
      CheckpointError: the checkpoint is missing, damaged or of another model.
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

  def train_examples(self, data):
    """The training examples that the stage reads, out of {split: `Examples`}: in finetuning those with a
    label, and of these a fraction."""
    train = data['train'] if self.name == 'pretrain' else data['train'].labelled
    return train.part(self.spec.data_fraction)

  def check_mixer(self, mixer: MixerSpec) -> tuple[str, ...]:
    """Checks a mixer of the period, see `lra_spt.models.check`; with padding only if the task has any."""
    with selection.plainly():
      return check_mixer(mixer, padding=self.task.inputs.padded)

  def check(self, mesh, data, *, mixer: bool = True) -> None:
    """Raises the errors that would end the stage at its first step, before a folder is claimed.

    Args:
      mesh: the devices to train on.
      data: {split: `Examples`}.
      mixer: also checks mixers that are user code, if runtime.check_mixer allows it.

    Raises:
      ConfigError: a mixer that breaks its contract, sizes that do not divide, no end, a layer that cannot be
        split over the mesh, what does not fit on the devices, or a tracker that is not installed.
    """
    with within('runtime'):
      trackers.check_installed(self.runtime.tracker_names)
    if mixer and self.runtime.check_mixer:
      for each in self.mixer.period:
        if not is_builtin(each.name):
          self.check_mixer(each)
    train = self.train_examples(data)
    if (least := getattr(self.objective, 'least_length', 1)) > 1:
      self._check_length(train, least)
      self._check_length(data['validation'], least)
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

  def _check_length(self, examples, least):
    """Raises a ConfigError if no example of a split has so many positions."""
    longest = 0 if self.task.inputs.padded else self.task.length
    starts = [0, *range(64, len(examples), 4096), len(examples)]  # the first 64 nearly always suffice
    for part in itertools.pairwise(starts):
      if longest >= least:
        break
      longest = examples.gather(np.arange(*part))['lengths'].max(initial=0)
    if longest < least:
      raise ConfigError(
        f'No {examples.split} example of {self.task.name} has {least} positions, so {self.name} has nothing '
        'to predict there; choose regime=scratch or masked, or a set of longer examples.'
      )

  def _check_memory(self, mesh):
    """Raises a ConfigError if the inputs of the blocks alone, which every runtime.remat stores, do not
    fit."""
    model, rows = self.mixer.model, self.spec.batch_size * self.task.documents // self.runtime.microbatches
    needed = 4 * rows * self.task.length * model.width * model.depth // mesh.size
    if needed > (there := sharding.device_memory(mesh)):
      raise ConfigError(
        f'{self.name}.batch_size is {self.spec.batch_size}, for which the hidden states of a step alone need '
        f'{needed / 2**30:,.0f} GiB of each device, which has {there / 2**30:.0f}; lower it, or raise '
        'runtime.microbatches or runtime.mesh.seq'
      )

  def residual_bytes(self, mesh, members: int = 1) -> int:
    """Returns the bytes that a device stores for the gradient of one microbatch of a step, without parameters
    and batch, as jax traces it. XLA may need less of them, and needs more for other things."""
    runtime, program = self.runtime, self.typical_program
    rows = self.spec.batch_size // runtime.microbatches
    batch = {
      name: jax.ShapeDtypeStruct(part.shape[1:], part.dtype)
      for name, part in self.task.batch(1, rows).items()
    }
    keys_B = jax.eval_shape(lambda: jax.random.split(settings.random_key(0, runtime.prng), rows))

    def pullback(params, stats, batch, keys_B):
      return jax.vjp(summed_loss(program, stats, batch, keys_B), params, has_aux=True)[1]

    with jax.set_mesh(mesh):
      jaxpr = jax.make_jaxpr(pullback)(self.model.params, self.model.stats, batch, keys_B).jaxpr
    arrays = {v for v in jaxpr.outvars if not hasattr(v, 'val')} - {*jaxpr.invars}  # literals take no memory
    return members * sum(v.aval.size * v.aval.dtype.itemsize for v in arrays) // mesh.size

  def layer_calls(self, mesh) -> tuple[selection.Call, ...]:
    """Returns the calls of a forward pass that several implementations may run; raises the ConfigError of a
    layer that cannot be split over the mesh."""
    rows, length = self.spec.batch_size * self.task.documents, self.task.length
    channels = self.objective.channels
    shape = (rows, length, *[channels] * bool(channels))
    inputs = jax.ShapeDtypeStruct(shape, np.float32 if channels else np.int32)
    lengths_R = row_lengths(self.task, jax.ShapeDtypeStruct((rows,), np.int32))
    return _layer_calls(self.model, mesh, inputs, lengths_R)

  def with_task(self, task: Task) -> 'Built':
    """Returns the same stage with another task."""
    return dataclasses.replace(self, task=task, objective=dataclasses.replace(self.objective, task=task))


@shared
def _layer_calls(model, mesh, inputs, lengths_R):
  forward = lambda params, stats, x, n_R: model.merge(params, stats)(x, lengths_B=n_R)  # noqa: E731
  with jax.set_mesh(mesh), selection.recording() as calls:
    jax.eval_shape(forward, model.params, model.stats, inputs, lengths_R)
  return tuple(calls)
