"""Plans a run before it starts: checks everything that can be checked, and writes nothing."""

import dataclasses
import pathlib
import re

import jax
from clu import parameter_overview

from lra_spt.config import loading
from lra_spt.data import examples as examples_lib
from lra_spt.distributed import settings, sharding
from lra_spt.errors import CheckpointError, ConfigError
from lra_spt.report.runs import run_folder
from lra_spt.runs import user_code
from lra_spt.runs.build import RunSpec, build, stages_of, stored_run
from lra_spt.runs.stage import Built
from lra_spt.training.checkpoints import weights

# The positions of a smoke run: of a training step, and of a split that is evaluated.
SMOKE_STEP, SMOKE_SPLIT = 2**11, 2**12  # 2 and 4 images of 1,024 pixels


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
  """A run that can start: everything about it is checked, and nothing is written yet.

  stages: {'pretrain' (unless the regime is scratch), 'finetune': `Built`}; data: {split: `Examples`}; taken:
  the pretraining of another run, or None; weights: the encoder that the first stage starts from, or None.
  """

  stages: dict[str, Built]
  mesh: jax.sharding.Mesh
  data: dict[str, examples_lib.Examples]
  taken: 'TakenPretraining | None'
  weights: weights.Weights | None

  @property
  def parameter_table(self) -> str:
    """A table of every parameter of the finetuned model with its shape and size."""
    return parameter_overview.get_parameter_overview(
      self.stages['finetune'].model.params, include_stats=False
    )


@settings.fixed()
def plan(spec: RunSpec, pretrained=None, *, resumed: bool = False, members: int = 1) -> Plan:
  """Checks everything that can be checked of a run before it starts; raises as `run` does.

  Args:
    spec: the run.
    pretrained: the folder of another run, whose pretraining is finetuned, or None.
    resumed: the run was planned before, so that its mixer has been checked.
    members: the number of runs that train together.
  """
  mesh = sharding.mesh_of(spec.runtime, members)
  data = examples_lib.open_splits(spec.task, spec.runtime.data_dir)
  if loading.is_short(spec.values):  # some configs would take minutes for a step
    spec = _small_batches(spec, mesh)
    data = {split: part if split == 'train' else _some(part, spec) for split, part in data.items()}
  stages = stages_of(spec)
  for built in stages.values():
    built.check(mesh, data, mixer=not resumed)
  taken = None if pretrained is None else TakenPretraining.of(pretrained, spec, data['train'])
  loaded = None
  if taken is None and spec.weights:
    name, first = next(iter(stages.items()))
    known = getattr(spec.task.inputs, 'names', data['train'].metadata.get('vocabulary', ()))
    unused = ['<unk>'] * (spec.task.vocabulary - len(known))  # for ids that no token of the set has
    loaded = weights.read(spec.weights, spec.model, [*known, *unused])
    if name == 'finetune':
      loaded = dataclasses.replace(loaded, patterns=spec.stages['finetune'].transfer)
    loaded.start({'params': first.model.params, 'stats': first.model.stats})
  return Plan(stages, mesh, data, taken, loaded)


def _small_batches(spec: RunSpec, mesh) -> RunSpec:
  """Cuts batches to SMOKE_STEP positions, but not below an example per device and microbatch."""
  rows = max(SMOKE_STEP // (spec.task.length * spec.task.documents), 1)
  shards = sharding.row_shards(mesh) * spec.runtime.microbatches
  rows = shards * -(-rows // shards)
  stages = {
    name: dataclasses.replace(stage, batch_size=rows) if rows < stage.batch_size else stage
    for name, stage in spec.stages.items()
  }
  return dataclasses.replace(spec, stages=stages)


def _some(split: examples_lib.Examples, spec: RunSpec) -> examples_lib.Examples:
  """Returns examples that have at most SMOKE_SPLIT positions together, but at least one batch."""
  count = SMOKE_SPLIT // (spec.task.length * spec.task.documents)
  count = max(count, *(stage.batch_size for stage in spec.stages.values()))
  return split.part(min(1.0, (count + 0.5) / len(split)))  # `part` rounds down


def plan_together(runs, store=None) -> Plan:
  """Plans the one program of several `lra_spt.runs.active_run.ActiveRun`; raises as `run_together` does.

  store: the folder of stages that runs share, or None.
  """
  first = runs[0]
  run_folder.check_places(first.workdir, store, first.spec.values['runtime'])
  for each in runs[1:]:
    check_together(first.spec, each.spec)
  resumed = (first.workdir / run_folder.CONFIG).exists()
  return plan(first.spec, first.pretrained, resumed=resumed, members=len(runs))


def check_together(first: RunSpec, other: RunSpec) -> None:
  """Raises a ConfigError unless two runs may be members of one population."""
  may_differ = re.compile(r'(seed|(pretrain|finetune)\.optimizer\.(lr|weight_decay)): ')
  lines = loading.difference(first.identity, other.identity).splitlines()
  if others := [line for line in lines if not may_differ.match(line)]:
    raise ConfigError(
      'Runs that train together may differ in seed, lr and weight_decay only; train these by themselves:\n'
      + '\n'.join(others)
    )


@dataclasses.dataclass(frozen=True, eq=False)
class TakenPretraining:
  """The pretraining of another run.

  built: the stage; folder: that of the stage; report: the content of its stage.json; run: the folder of the
  run; seed: of the run.
  """

  built: Built
  folder: pathlib.Path
  report: dict
  run: pathlib.Path
  seed: int

  @property
  def hash(self) -> str:
    """The hash of everything that determines it."""
    return self.folder.name.removeprefix('pretrain-')

  @classmethod
  def of(cls, run, spec: RunSpec, train) -> 'TakenPretraining':
    """Reads the pretraining in the folder of a run, for finetuning in the run `spec` on `train`.

    Raises:
      ConfigError: that run has no pretraining, or is of another task, model, protocol, form or data.
      CheckpointError: its pretraining is not finished.
    """
    run = run_folder.folder_of(run, '--pretrained')
    if spec.regime.objective is None:
      raise ConfigError(
        f'--pretrained has no meaning with regime={spec.regime.name}; choose the regime of that run'
      )
    identity, stored = run_folder.read_config(run), stored_run(run, spec.runtime.data_dir)
    wanted = user_code.as_begun(identity, identity_of(spec, train, None))
    keys = ('task', 'model', 'protocol', 'regime', 'causal', 'fingerprints', 'code')
    theirs, ours = ({key: mapping.get(key) for key in keys} for mapping in (identity, wanted))
    if loading.digest(theirs) != loading.digest(ours):
      raise ConfigError(
        f'--pretrained={run} was pretrained for something else; choose another run, or undo the change:\n'
        f'{loading.difference(theirs, ours)}'
      )
    folder = run_folder.stage_folders(run, identity)['pretrain']
    report = run_folder.read_stage(folder)
    if report is None and identity.get('pretrained'):
      done = (run / run_folder.RESULT).exists()
      other = run_folder.read_result(run)['pretrained']['run'] if done else 'that, which its log names'
      raise ConfigError(f'--pretrained={run} itself took the pretraining of another run; give {other}')
    if report is None:
      raise CheckpointError(f'{run} has not finished its pretraining; repeat the command that started it')
    return cls(build(stored, 'pretrain'), folder, report, run, stored.seed)


def identity_of(spec: RunSpec, train, taken: TakenPretraining | None) -> dict:
  """Returns the content of config.json, which identifies a run; `code` is part of it if there is user code.

  `train`: the training examples.
  """
  prints = {'data': train.fingerprint, 'splits': train.split_fingerprint}
  identity = spec.identity | {'fingerprints': prints}
  identity |= {'code': spec.user_code} if spec.user_code else {}
  return identity if taken is None else identity | {'pretrained': taken.hash}
