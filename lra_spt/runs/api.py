"""The functions of `import lra_spt`: configs, training, and the models of finished runs.

Dimension letters: N examples, R rows (N, or the 2N documents of N pairs), L positions, C channels.
"""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from lra_spt import files
from lra_spt.config import loading
from lra_spt.config.values import is_whole, of_python
from lra_spt.data import examples as examples_lib
from lra_spt.data.tasks import Task
from lra_spt.distributed import settings, sharding
from lra_spt.errors import CheckpointError, ConfigError, MissingFile, NonFiniteError
from lra_spt.files.streams import open_missing
from lra_spt.models import Model
from lra_spt.objectives import Classification, Denoising, Regression
from lra_spt.report.runs import metrics as test_metrics
from lra_spt.report.runs import run_folder
from lra_spt.runs import experiment
from lra_spt.runs.arrays import batch_of
from lra_spt.runs.build import RunSpec, for_split, measured, normalised, resolve, stages_of, stored_run
from lra_spt.runs.stage import Built
from lra_spt.training.evaluate import evaluation_key, evaluator_of


def load_config(spec: str, overrides=None) -> ConfigDict:
  """Loads the config of 'path/to/file.py' or 'path/to/file.py:key=value,key=value'.

  Args:
    spec: a file of `configs/` or one of your own. After the colon come the arguments that this file takes,
      such as model, regime, protocol and seed.
    overrides: values to change, such as {'finetune.optimizer.lr': 1e-3, 'runtime.data_dir': 'data'}.

  Raises:
    ConfigError: there is no such file, key or value.
  """
  return loading.load(spec, overrides)


def train(config, workdir, *, pretrained=None, announce=print) -> dict:
  """Pretrains (unless the regime is scratch), finetunes and tests. A second call resumes, and repeats
  nothing.

  Args:
    config: from `load_config`, or a FrozenConfigDict or dict of that form.
    workdir: folder of this run.
    pretrained: folder of another run whose pretrained model is finetuned, instead of pretraining here.
    announce: called with every line of text for the reader, except progress. Progress goes to standard error
      unless the config has runtime.progress=False.

  Returns:
    The content of result.json; the scores are in `result['metrics']['test']`.

  Raises:
    UserError: an unusable config, data set or checkpoint, a mixer that breaks its contract, a workdir of
      another config or one that another process is training in, or a number that is not finite.
  """
  open_missing()
  return experiment.run(config, workdir, pretrained=pretrained, announce=announce)


@settings.fixed()
def build_model(config, stage: str = 'finetune') -> Model:
  """Builds the model of a stage, 'pretrain' or 'finetune', with the initial values of the config's seed, on
  one device.

  Call it as `model(inputs, lengths_B=None)`. Inputs are int32 ids [B, L] or normalised float32 values
  [B, L, C]; where masked pretraining hides values, a further channel flags the hidden positions. The output
  is float32 [B, outputs], or [B, L, outputs] in pretraining. For tasks of document pairs the rows are
  documents, the two of a pair next to each other: [2B, L].

  Raises:
    ConfigError: an unknown task, mixer or key, or an unusable value.
  """
  built, mesh = _stage(stages_of(resolve(config)), stage, 'the config'), one_device()
  with jax.set_mesh(mesh):
    state = built.fresh_state(mesh)
  return built.model.merge(state['params'], state['stats'])


@settings.fixed()
def load_run(workdir, stage: str = 'finetune', *, data_dir=None) -> 'Run':
  """Loads a run with the weights of the best validation of a stage.

  Args:
    workdir: folder given to `train`. The run need not be finished, but the stage must have been evaluated.
    stage: 'finetune', or 'pretrain' for the model that restores its input.
    data_dir: folder of the prepared set; None: the folder during training, which a finished run records.

  Raises:
    MissingFile: there is no run.
    ConfigError: the run has no such stage, its task or mixer is not registered, its user code has changed, or
      data_dir is needed but unknown.
    CheckpointError: nothing was evaluated yet, or the checkpoint is damaged.
  """
  open_missing()
  workdir = folder_of_run(workdir)
  spec = stored_run(workdir, data_dir)
  if (workdir / run_folder.RESULT).exists():
    runtime = run_folder.read_result(workdir).get('runtime') or {}
    data_dir = runtime.get('data_dir') if data_dir is None else data_dir
    # Scores depend on both precisions.
    precisions = {key: runtime[key] for key in ('precision', 'matmul_precision') if key in runtime}
    spec = dataclasses.replace(spec, runtime=dataclasses.replace(spec.runtime, **precisions))
  built = _stage(stages_of(spec), stage, str(workdir))
  folder = run_folder.stage_folders(workdir, run_folder.read_config(workdir))[stage]
  if not folder.exists():
    raise CheckpointError(
      f'{workdir} has no {stage} stage of its own yet; train it, or load the run that has it'
    )
  if measured(built):
    built = normalised({stage: built}, _open(workdir, built.task, 'train', data_dir))[stage]
  mesh = one_device()
  with jax.set_mesh(mesh):
    best = built.best_state(folder, mesh)
  return Run(workdir, spec, built, int(best['step']), best['params'], best['stats'], data_dir)


def folder_of_run(workdir) -> pathlib.Path:
  """The absolute path of a folder that holds a run with a model. Raises MissingFile for any other folder."""
  workdir = run_folder.folder_of(workdir, 'workdir')
  if (workdir / run_folder.CONFIG).exists():
    return workdir
  if (workdir / run_folder.RESULT).exists() and run_folder.read_result(workdir).get('recorded'):
    raise MissingFile(
      f'{workdir} holds predictions recorded from elsewhere, without a model; load another run.'
    )
  raise MissingFile(f'{workdir} holds no run (it has no {run_folder.CONFIG}); give the workdir of a run')


def _open(workdir, task: Task, split: str, data_dir) -> examples_lib.Examples:
  """Opens a split of the set that a run was trained on, and checks that it is the same set."""
  if data_dir is None:
    raise ConfigError(f'{workdir} does not say where its data are; write load_run(workdir, data_dir=...)')
  if not files.is_bucket(data_dir) and not files.place(data_dir).is_dir():
    raise MissingFile(
      f'{workdir} was trained on data in {data_dir}, which is not a folder here, in {pathlib.Path.cwd()}; '
      'say where they are: load_run(workdir, data_dir=...), lra-spt evaluate --data_dir=...'
    )
  examples = examples_lib.open_split(task, split, data_dir)
  trained_on = run_folder.read_config(workdir).get('fingerprints')
  if trained_on != {'data': examples.fingerprint, 'splits': examples.split_fingerprint}:
    raise ConfigError(
      f'the set in {data_dir} is not the one that {workdir} was trained on; give load_run the data_dir of '
      'that set'
    )
  return examples


def _stage(stages: dict[str, Built], stage: str, where: str) -> Built:
  if stage not in stages:
    raise ConfigError(f'{where} has no stage {stage!r}; choose one of {", ".join(stages)}')
  return stages[stage]


def one_device():
  """The mesh of the first device of this process."""
  sharding.all_devices()  # raises a sentence if JAX_PLATFORMS is wrong
  return sharding.make_mesh(devices=jax.local_devices()[:1])


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
  """The answers of a finetuned model.

  index: int32 [N], position in the file of the prepared set, or in the array of inputs.
  label: as in batches, see `Examples.gather`; None for an array of inputs.
  prediction: like `label`: the class, or the value in units of the label; for several labels `probabilities`.
  probabilities: float32 [N, classes] or [N, L, classes]; None for a regression.
  """

  index: np.ndarray
  label: np.ndarray | None
  prediction: np.ndarray
  probabilities: np.ndarray | None


@dataclasses.dataclass(frozen=True, eq=False)
class Restored:
  """The restored input of a pretrained model. Values are normalised; tokens and bytes are ids.

  index: as in `Predictions`, per example.
  target: int32 [R, L] or float32 [R, L, C], the target of each position.
  asked: bool [R, L], the positions that count: the hidden ones or, in regime causal, those with a successor.
  prediction: like target.
  probabilities: float32 [R, L, classes]; None for values.
  """

  index: np.ndarray
  target: np.ndarray
  asked: np.ndarray
  prediction: np.ndarray
  probabilities: np.ndarray | None


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """A stage of a run with its best weights, from `load_run`.

  workdir: the folder of the run.
  spec: the run, resolved from its config.
  built: the typed stage.
  step: the step of the best validation.
  params, stats: arrays of the model.
  data_dir: the folder of the prepared set.
  """

  workdir: pathlib.Path
  spec: RunSpec
  built: Built
  step: int
  params: dict
  stats: dict
  data_dir: str | None

  def __repr__(self):
    return f'Run({str(self.workdir)!r}, {self.built.name} of {self.built.model_name} on {self.task.name})'

  @property
  def config(self) -> ConfigDict:
    """The config of the run; its runtime is that of one device, in the precision of the run."""
    return ConfigDict(self.spec.identity | {'runtime': dataclasses.asdict(self.spec.runtime)})

  @property
  def task(self) -> Task:
    """The task that the model was trained on."""
    return self.built.task

  @property
  def stage(self) -> str:
    """The name of the stage, 'pretrain' or 'finetune'."""
    return self.built.name

  @property
  def model(self) -> Model:
    """The model with its weights, of the same kind as from `build_model`."""
    return self.built.model.merge(self.params, self.stats)

  @property
  def result(self) -> dict:
    """The content of result.json. Raises MissingFile if the run is not finished."""
    return run_folder.read_result(self.workdir)

  def examples(self, split: str) -> examples_lib.Examples:
    """The examples of a split, 'train', 'validation' or 'test'; `.gather(range(8))` returns a batch of
    arrays.

    Raises:
      ConfigError: no data_dir is known, or the set there is not the one that the run was trained on.
      MissingFile: the set is not there.
    """
    open_missing()
    examples = _open(self.workdir, self.task, split, self.data_dir)
    return examples.labelled if self.stage == 'finetune' else examples

  def predict(self, data, lengths=None, *, batch_size: int = 0) -> Predictions | Restored:
    """The answers of a finetuned model, or the restored inputs of a pretrained model.

    For a pretrained model the hidden positions are those of validation, which are fixed for every example.

    Args:
      data: 'train', 'validation' or 'test', or an array of inputs as stored, [N, *task.row]: pixels,
        samples or token ids. Rows of tokens may be shorter than the task's length.
      lengths: for an array of tokens, int [N], or [N, 2] for pairs; None: up to the last id that is not
        padding.
      batch_size: examples per batch; 0: as in training.

    Raises:
      ConfigError: inputs have another shape; also as for `examples`.
    """
    if isinstance(data, str):
      examples = self.examples(data)
      count, gather = len(examples), examples.gather
    else:
      arrays = batch_of(self.task, data, lengths)
      count, gather = len(arrays['index']), lambda rows: {name: part[rows] for name, part in arrays.items()}
    if not is_whole(batch_size := of_python(batch_size)) or batch_size < 0:
      raise ConfigError(f'batch_size is {batch_size!r}; choose at least 1, or 0 for that of training')
    size = min(batch_size or self.built.spec.batch_size, count)
    parts = []
    with settings.fixed(self.spec.runtime.matmul_precision), jax.set_mesh(one_device()):
      for start in range(0, count, size):
        batch = gather(np.minimum(np.arange(start, start + size), count - 1))  # padded with the last example
        answers = jax.tree.map(np.asarray, self._answers(self.params, self.stats, batch))
        parts.append({'index': batch['index'], 'label': batch['label']} | answers)
    # In pretraining each pair of a batch has two rows.
    joined = jax.tree.map(lambda *each: np.concatenate(each)[: count * (len(each[0]) // size)], *parts)
    if isinstance(self.built.objective, Denoising):
      return Restored(**{name: part for name, part in joined.items() if name != 'label'})
    return Predictions(**joined | ({} if isinstance(data, str) else {'label': None}))

  def evaluate(self, split: str) -> tuple[dict, dict]:
    """The metrics of a finetuned model, computed as in the test of the run.

    Args:
      split: 'train', 'validation', 'test' or a longer test split of the task.

    Returns:
      {name of the metric: value, 'examples': their number}, None for a metric that is not defined, and the
      arrays of predictions.npz.

    Raises:
      ConfigError: the model is a pretrained one, or cannot read longer examples; also as for `examples`.
      NonFiniteError: the loss is not finite.
    """
    if self.stage != 'finetune':
      raise ConfigError(f'{self!r} has no answers to be scored; load the stage finetune')
    examples, mesh = self.examples(split), one_device()
    built = for_split(self.spec, self.built, split)
    with settings.fixed(self.spec.runtime.matmul_precision), jax.set_mesh(mesh):
      state = {'params': self.params, 'stats': self.stats}
      (answer,) = evaluator_of(built, mesh).of_each(state, examples, [built.seed], predictions=True)
    if isinstance(answer, NonFiniteError):
      raise answer
    metrics, _, arrays = test_metrics.complete(
      self.task, answer.metrics, answer.undefined, answer.predictions, examples
    )
    return metrics, arrays

  @functools.cached_property
  def _answers(self):
    """The jitted function `(params, stats, batch) -> {field of Predictions or Restored: array}`."""
    built, objective = self.built, self.built.objective
    if not isinstance(objective, Denoising | Classification | Regression):
      raise ConfigError(
        f'{self!r} was trained on {type(objective).__name__}, whose answers only that objective can read'
      )
    key = evaluation_key(built.seed)
    by_class = bool(self.task.inputs.denoising_classes)

    def run(params, stats, batch):
      keys_B = jax.vmap(lambda index: jax.random.fold_in(key, index))(batch['index'])
      prepared = objective.prepare(batch, keys_B)
      model = built.model.merge(params, stats)
      outputs = model(prepared.inputs, lengths_B=prepared.lengths_B, deterministic=True).astype(jnp.float32)
      if isinstance(objective, Denoising):
        return {
          'target': prepared.targets,
          'asked': prepared.weights > 0,
          'prediction': jnp.argmax(outputs, -1).astype(jnp.int32) if by_class else outputs,
          'probabilities': jax.nn.softmax(outputs) if by_class else None,
        }
      predictions = objective.predictions(outputs)
      if self.task.multi_label:
        return {'prediction': predictions, 'probabilities': predictions}
      return {
        'prediction': predictions,
        'probabilities': None if self.task.regression else jax.nn.softmax(outputs),
      }

    return jax.jit(run)
