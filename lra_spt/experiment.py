"""One run: pretrain stage -> best checkpoint -> finetune stage -> test -> result.json.

Configs become typed objects here.
"""

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import pathlib

import jax
import numpy as np
from clu import parameter_overview
from flax import nnx
from jax.experimental import multihost_utils

from lra_spt import config as config_lib
from lra_spt import parallel, processes, provenance
from lra_spt.data import examples as examples_lib
from lra_spt.data.tasks import Task, get_task
from lra_spt.errors import ConfigError
from lra_spt.models import ExecutionSpec, InputSpec, Model, ModelSpec
from lra_spt.objectives import Classification, Denoising, Regression
from lra_spt.protocol import Protocol, get_protocol
from lra_spt.training import resident
from lra_spt.training import state as states
from lra_spt.training.checkpoints import Checkpoints, transfer
from lra_spt.training.loop import LoopSpec, Stage, StageResult, StageSpec

STAGE_NUMBERS = {'pretrain': 0, 'finetune': 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainSpec(StageSpec):
  """mask_rate: fraction of positions hidden by the masked objective."""

  mask_rate: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneSpec(StageSpec):
  """pool: how hidden states become one vector; head: 'linear', 'mlp' or 'match'."""

  pool: str
  head: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuntimeSpec(LoopSpec, ExecutionSpec):
  """Where and how a run computes; never part of what it is. devices: use the first so many; 0 = all."""

  mesh: dict[str, int]
  data_dir: str
  devices: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Built:
  """Everything about one stage but its data: what `eval_shape` can check without allocating."""

  task: Task
  protocol: Protocol
  objective: Denoising | Classification | Regression
  model: states.Blueprint
  spec: StageSpec
  runtime: RuntimeSpec

  @property
  def abstract_params(self) -> dict:
    return self.model.params

  @property
  def flops_per_step(self) -> int:
    """Floating-point operations of a training step: the backward pass counts twice the forward one."""
    return 3 * self.model.flops * self.spec.batch_size * self.task.documents


def build(config, stage: str) -> Built:
  """The typed objects of a stage, 'pretrain' or 'finetune'.

  Raises:
    ValueError: an unknown task, model part, regime or key, in one sentence.
  """
  task, protocol = get_task(config.task), get_protocol(config.protocol)
  if protocol.published_splits and task.published_splits:
    task = dataclasses.replace(task, splits=task.published_splits)
  runtime = config_lib.typed(RuntimeSpec, config.runtime, 'runtime')
  model_spec = config_lib.typed(ModelSpec, config.model, 'model')
  if config.regime not in ('scratch', 'masked', 'causal'):
    raise ConfigError(f'regime is {config.regime!r}; choose scratch, masked or causal')
  if stage == 'pretrain':
    spec = config_lib.typed(PretrainSpec, config.pretrain, 'pretrain')
    identity_head = protocol.identity_token_head and task.published_identity_head
    objective = Denoising(task, config.regime, spec.mask_rate, identity_head, protocol.l1_selection)
  else:
    spec = config_lib.typed(FinetuneSpec, config.finetune, 'finetune')
    objective = (
      Regression(task, spec.pool, spec.head, protocol.label_range)
      if task.regression
      else Classification(task, spec.pool, spec.head)
    )
  causal = config.regime == 'causal' or config.causal
  inputs = InputSpec(task.length, task.vocabulary, objective.channels)
  execution = ExecutionSpec(runtime.scan_layers, runtime.remat, runtime.precision, runtime.attention)

  def make_model(rngs: nnx.Rngs) -> Model:
    return Model(
      model_spec, inputs, objective.head, causal=causal, protocol=protocol, execution=execution, rngs=rngs
    )

  model = states.blueprint(make_model, task.length, decay_everything=protocol.decay_everything)
  return Built(task, protocol, objective, model, spec, runtime)


def run(config, workdir, *, arm: str | None = None, announce=print) -> dict:
  """Runs or resumes one run; the same call on the same folder goes on where it stopped.

  Args:
    config: see configs/; config.runtime may differ between calls, everything else may not.
    workdir: folder of this run.
    arm: how reports call this run, where regime and form do not say enough.
    announce: called with a line of text for the reader.

  Returns:
    The content of result.json.

  Raises:
    ValueError: bad config, data or checkpoint, or a workdir of another config; nothing is overwritten then.
  """
  if '://' in str(workdir):
    raise ConfigError(
      f'--workdir is {workdir}, but runs are kept in folders only; mount the bucket, or give a folder that '
      'all processes share'
    )
  workdir = pathlib.Path(workdir).absolute()  # Orbax takes no relative path
  names = ('finetune',) if config.regime == 'scratch' else ('pretrain', 'finetune')
  stages = {name: build(config, name) for name in names}
  finetune = stages['finetune']
  devices = parallel.first_devices(finetune.runtime.devices)
  mesh = parallel.make_mesh(**finetune.runtime.mesh, devices=devices)
  for name, built in stages.items():
    parallel.check_batch_size(built.spec.batch_size, mesh, f'{name}.batch_size', built.runtime.microbatches)
    _check_layers(built, mesh)
  if finetune.runtime.evaluation_batch_size:
    parallel.check_batch_size(finetune.runtime.evaluation_batch_size, mesh, 'runtime.evaluation_batch_size')
  data_dir = finetune.runtime.data_dir
  data = {split: examples_lib.open_split(finetune.task, split, data_dir) for split in examples_lib.SPLITS}
  for built in stages.values():  # a config that cannot be run must not claim the folder
    built.spec.schedule.resolved(built.spec.total_steps(len(data['train'])))
  resident.choose(finetune.runtime.placement, data['train'], mesh)
  _claim(workdir, config, data['train'])
  if processes.agreed((workdir / 'result.json').exists(), 'result.json'):
    announce(f'{workdir} holds a finished run; remove it to train again')
    return json.loads((workdir / 'result.json').read_text(encoding='utf-8'))
  say = announce if jax.process_index() == 0 else (lambda line: None)
  stages = _normalised(stages, data['train'])
  with jax.set_mesh(mesh):
    return _run_stages(config, workdir, stages, data, mesh, arm, say)


def _normalised(stages: dict[str, Built], train) -> dict[str, Built]:
  """The stages with the statistics of every position, where the protocol asks for them."""
  task = stages['finetune'].task
  if not (stages['finetune'].protocol.position_statistics and task.published_position_statistics):
    return stages
  mean_LC, std_LC = examples_lib.position_statistics(train)
  scale = task.scale**2  # samples are divided twice
  task = dataclasses.replace(task, scale=scale, mean=mean_LC / scale, std=std_LC / scale + 1e-5)
  return {
    name: dataclasses.replace(built, task=task, objective=dataclasses.replace(built.objective, task=task))
    for name, built in stages.items()
  }


def _check_layers(built: Built, mesh) -> None:
  """Raises the ValueError of a layer that cannot be split over the mesh, before the run claims its folder."""
  rows, channels = built.spec.batch_size * built.task.documents, built.objective.channels
  inputs = jax.ShapeDtypeStruct(
    (rows, built.task.length, *[channels] * bool(channels)), np.float32 if channels else np.int32
  )
  lengths_B = jax.ShapeDtypeStruct((rows,), np.int32)
  with jax.set_mesh(mesh):
    jax.eval_shape(
      lambda params, stats, inputs, lengths_B: built.model.merge(params, stats)(inputs, lengths_B=lengths_B),
      built.model.params,
      built.model.stats,
      inputs,
      lengths_B,
    )


def _run_stages(config, workdir, stages, data, mesh, arm, say) -> dict:
  folders = _stage_folders(config, workdir, data['train'])
  reports: dict[str, dict] = {}
  start = lambda fresh: fresh  # noqa: E731
  if 'pretrain' in stages:
    pretrain = stages['pretrain']
    _run_stage('pretrain', config, pretrain, folders['pretrain'], data, mesh, start, reports, say)
    flag = pretrain.objective.channels != stages['finetune'].objective.channels
    start = lambda fresh: transfer(  # noqa: E731
      _best(pretrain, folders['pretrain'], mesh), fresh, drop_flag_input=flag
    )
  finetune = stages['finetune']
  stage = _run_stage('finetune', config, finetune, folders['finetune'], data, mesh, start, reports, say)
  best = _best(finetune, folders['finetune'], mesh)
  test, predictions = stage.evaluator(best, data['test'], predictions=True)
  test['examples'] = len(predictions['index'])
  metric, _ = finetune.objective.selection
  constant = _constant_answer(test, predictions['label'], finetune.task)
  predictions |= _groups(data['test'], predictions['index'])
  result = {
    'task': config.task,
    'model': config.model.name,
    'regime': config.regime,
    'causal': config.regime == 'causal' or config.causal,
    'protocol': config.protocol,
    'seed': config.seed,
    'metric': metric,
    'metrics': {'validation': reports['finetune']['metrics'], 'test': test},
    'parameters': finetune.model.parameter_count,
    'stages': reports,
    'hardware': provenance.hardware(),
    'versions': provenance.versions(),
    'commit': provenance.commit(),
    'date': datetime.date.today().isoformat(),
    'config': config_lib.identity(config),
    'runtime': config.runtime.to_dict(),
    'origins': config.origins.to_dict(),
    'fingerprints': {'data': data['train'].fingerprint, 'splits': data['train'].split_fingerprint},
    'data': {key: data['train'].metadata.get(key) for key in ('source', 'verified')},
  } | ({'arm': arm} if arm else {})
  if jax.process_index() == 0:
    with _replacing(workdir / 'predictions.npz', 'wb') as file:
      np.savez(file, **predictions)
    _write_json(workdir / 'result.json', result)
  _wait_for_everybody('result')
  say(
    f'test {metric} {test[metric]:.4f} over {test["examples"]} examples '
    f'({constant}); result in {workdir / "result.json"}'
  )
  return result


def _constant_answer(test: dict, label_N: np.ndarray, task: Task) -> str:
  """What a model that ignores its input reaches, as a phrase; for classes also noted in `test`."""
  if task.regression:
    return 'always the mean label of these: 0'
  counts = np.unique(label_N, return_counts=True)[1]
  test['majority'] = float(counts.max() / counts.sum())
  return f'always the most frequent class: {test["majority"]:.4f}'


def _groups(test: examples_lib.Examples, index_N: np.ndarray) -> dict[str, np.ndarray]:
  """{'group': int32 [N]} where examples belong together and are not independent, such as windows of a
  patient."""
  sizes = (test.metadata.get('groups') or {}).get('train')
  if not sizes or test.task.splits not in ('grouped', 'shuffled'):
    return {}
  return {'group': np.searchsorted(np.cumsum(sizes), index_N, side='right').astype(np.int32)}


def _run_stage(name, config, built: Built, folder, data, mesh, start, reports, say) -> Stage:
  """Trains a stage unless its folder says that it is done; adds its report."""
  protocol, runtime = built.protocol, built.runtime
  stage = Stage(
    name,
    built.model,
    built.objective,
    built.spec,
    runtime,
    train=data['train'],
    validation=data['validation'],
    mesh=mesh,
    seed=config.seed,
    stage_number=STAGE_NUMBERS[name],
    directory=folder,
    start=start,
    drop_last=protocol.drop_last_evaluation_batch,
    redraw_validation=protocol.redraw_validation_masks and name == 'pretrain',
  )
  if processes.agreed((folder / 'stage.json').exists(), f'{name}/stage.json'):
    say(f'{name}: done before, in {folder}')
    reports[name] = json.loads((folder / 'stage.json').read_text(encoding='utf-8'))
    return stage
  say(
    f'{name}: {config.model.name} on {config.task}, {built.model.parameter_count:,} parameters, '
    f'{stage.total:,} steps of {built.spec.batch_size} on {mesh.size} device(s), '
    f'training examples on the {stage.placement}'
  )
  say(parameter_overview.get_parameter_overview(built.model.params, include_stats=False))
  outcome: StageResult = stage.run()
  examples = outcome.steps * built.spec.batch_size
  reports[name] = {
    'steps': outcome.steps,
    'examples': examples,
    'epochs': examples / len(data['train']),
    'seconds': round(outcome.seconds, 2),
    'flops_per_step': built.flops_per_step,
    'best_step': outcome.best_step,
    'metrics': outcome.metrics,
    'folder': folder.name,
  }
  if jax.process_index() == 0:
    _write_json(folder / 'stage.json', reports[name])
  _wait_for_everybody(name)
  numbers = ', '.join(f'{key} {value:.4f}' for key, value in outcome.metrics.items())
  say(f'{name}: best validation at step {outcome.best_step}: {numbers} ({outcome.seconds:.0f} s)')
  return stage


def _best(built: Built, folder, mesh) -> dict:
  checkpoints = Checkpoints(folder / 'checkpoints')
  try:
    mode = built.objective.selection[1]
    return checkpoints.load_best(states.abstract(built.model, built.spec.optimizer, mode, mesh))
  finally:
    checkpoints.close()


def _stage_folders(config, workdir, train) -> dict[str, pathlib.Path]:
  """A folder per stage, named by the hash of what determines it."""
  whole = config_lib.identity(config)
  shared = {key: whole[key] for key in ('task', 'model', 'protocol', 'seed', 'regime', 'causal')}
  shared['data'] = [train.fingerprint, train.split_fingerprint]
  pretrain = config_lib.digest(shared | {'pretrain': whole['pretrain']})
  before = pretrain if config.regime != 'scratch' else None
  finetune = config_lib.digest(shared | {'finetune': whole['finetune'], 'after': before})
  return {'pretrain': workdir / f'pretrain-{pretrain}', 'finetune': workdir / f'finetune-{finetune}'}


def _claim(workdir: pathlib.Path, config, train) -> None:
  """Notes config and data in a new workdir; refuses one that belongs to others."""
  path = workdir / 'config.json'
  fingerprints = {'data': train.fingerprint, 'splits': train.split_fingerprint}
  identity = json.loads(json.dumps(config_lib.identity(config) | {'fingerprints': fingerprints}))
  if not path.exists() and jax.process_index() == 0:
    _write_json(path, identity)
  _wait_for_everybody('config')
  processes.agreed(path.exists(), 'config.json')
  before = json.loads(path.read_text(encoding='utf-8'))  # compared by every process: their flags may differ
  same = config_lib.digest(before) == config_lib.digest(identity)
  processes.agreed(same, 'whether config.json is of their own config')
  if not same:
    raise ConfigError(
      f'{workdir} belongs to another config; choose another --workdir, or undo the change:\n'
      f'{config_lib.difference(before, identity)}'
    )


@contextlib.contextmanager
def _replacing(path: pathlib.Path, mode: str):
  """A file that takes its name only when it is whole."""
  part = path.with_name(path.name + '.part')
  with part.open(mode, encoding=None if 'b' in mode else 'utf-8') as file:
    yield file
  os.replace(part, path)


def _write_json(path: pathlib.Path, content: dict) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  with _replacing(path, 'w') as file:
    json.dump(content, file, indent=2)


def _wait_for_everybody(name: str) -> None:
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


def main(argv: list[str]) -> int:
  """`lra-spt train --config=FILE[:key=value,...] --workdir=W [--config.KEY=VALUE ...]`."""
  parser = argparse.ArgumentParser(
    prog='lra-spt train',
    description='One run: pretraining (unless regime=scratch), finetuning, test. The same command on the '
    'same workdir resumes it. --config.KEY=VALUE changes a value of the config.',
  )
  parser.add_argument(
    '--config',
    required=True,
    help='config file, e.g. configs/image.py:model=transformer_rotary,regime=masked',
  )
  parser.add_argument('--workdir', required=True, help='folder of this run')
  parser.add_argument(
    '--distributed',
    action='store_true',
    default=None,
    help='join the processes of a cluster (on by itself on Cloud TPU, SLURM, Kubernetes)',
  )
  parser.add_argument('--coordinator', help='host:port of process 0, outside of a recognised cluster')
  parser.add_argument('--processes', type=int, help='number of processes, likewise')
  parser.add_argument('--process', type=int, help='rank of this process, likewise')
  overrides = [text.removeprefix('--config.') for text in argv if text.startswith('--config.')]
  arguments = parser.parse_args([argument for argument in argv if not argument.startswith('--config.')])
  # A filtered traceback hides where an error was raised, and so whether its message is meant for the user.
  jax.config.update('jax_traceback_filtering', 'off')
  config = config_lib.load(arguments.config, overrides)
  processes.start_processes(
    arguments.distributed, arguments.coordinator, arguments.processes, arguments.process
  )
  run(config, arguments.workdir)
  return 0
