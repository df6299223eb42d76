"""`lra-spt kernels`: the convolution kernels of a run before and after training.

K_max(l) is the largest absolute kernel value at lag l over the channels, and over both directions of a
bidirectional model, per layer (Never Train from Scratch, section 3.6, Figure 4). The paper compares S4 after
self-pretraining, before finetuning, with its HiPPO initialisation. Here the initial values are those drawn by
the run itself, or by the run whose pretraining it continues.
"""

import dataclasses
import functools
import math
import pathlib
import sys

import jax
import numpy as np
from flax import nnx
from jax import lax
from tqdm import tqdm

from lra_spt import files
from lra_spt.data.tasks import Task
from lra_spt.distributed import settings, sharding
from lra_spt.errors import ConfigError, MissingFile, UserError
from lra_spt.report.pages import plots, styles
from lra_spt.report.runs import run_folder
from lra_spt.report.runs.kernels import Kernels
from lra_spt.report.runs.run import STAGE_NAMES
from lra_spt.runs.build import RunSpec, stages_of, stored_run
from lra_spt.runs.stage import Built
from lra_spt.training import state as states
from lra_spt.training.checkpoints.store import read_best
from lra_spt.training.state import initial_key

MOST_LAYERS = 4  # deeper models show every other layer, as the paper does


class NoKernels(UserError):
  """A run has no kernels to show: its model has none, or no checkpoint exists yet."""


@settings.fixed()
def compute(folder, stage: str | None = None, layers: tuple[int, ...] = (), lags: int = 0) -> Kernels:
  """K_max of every layer at the start of a run and in the best checkpoint of a stage.

  Args:
    folder: of a run, finished or not; nothing in it changes.
    stage: 'pretrain' or 'finetune'; None takes pretraining where there is a checkpoint of it.
    layers: which ones a figure shows, from 1; () = all of up to MOST_LAYERS, else every other one.
    lags: how many a figure shows; 0 = all.

  Raises:
    NoKernels: no mixer has a `max_kernel`, the run has no such stage, the stage has no checkpoint yet, or the
      initial values of the run are not known here.
    ConfigError: lags that the model does not have, or layers that do not exist or have no kernel.
    DamagedFile, CheckpointError: damaged files.
  """
  folder = pathlib.Path(folder).absolute()
  spec = stored_run(folder)
  stages = stages_of(spec)
  if stage is not None and stage not in stages:
    raise NoKernels(f'{folder} is a run from scratch, so it has no stage {stage}; leave out --stage')
  first = next(iter(stages.values()))
  length, mixers = first.task.length, _mixers(first.model, first.model.params, first.model.stats)
  depth, has_kernel = spec.model.depth, [hasattr(mixer, 'max_kernel') for mixer in mixers]
  there = [layer for layer in range(1, depth + 1) if has_kernel[(layer - 1) % len(mixers)]]
  if not there:
    raise NoKernels(
      f'model.mixer {spec.model.mixer_name!r} has no convolution kernel, so there is nothing '
      f'to compare in {folder}; choose the run of a state-space model'
    )
  shown = layers or tuple(there[:: 1 if len(there) <= MOST_LAYERS else 2])
  if max(shown) > depth:
    raise ConfigError(
      f'--layers names layer {max(shown)}, but the model in {folder} has {depth}; leave it out'
    )
  if without := sorted({*shown} - {*there}):
    raise ConfigError(
      f'--layers names layer {without[0]}, whose mixer in {folder} has no convolution kernel; leave it out'
    )
  if lags > length:
    raise ConfigError(f'--lags is {lags}, but the kernels in {folder} have {length}; lower it')
  seed = _first_seed(folder, spec)
  trained, best = _best(folder, [stages[stage]] if stage else list(stages.values()))
  arrays = {'start': _initial_arrays(first, seed), trained: best['arrays']}
  graphdefs = [nnx.graphdef(mixer) for mixer in mixers]
  initial, learned = (
    max_kernels([*map(nnx.merge, graphdefs, stacked)], depth, length, f'{folder.name}, {name}')
    for name, stacked in arrays.items()
  )
  row = 0 if spec.model.shuffle else _image_row(first.task)
  return Kernels(
    stage=trained,
    step=best['step'],
    row=row,
    lags=lags or length,
    shown=shown,
    initialisation='random' if spec.model.random_init else 'structured',
    initial=initial,
    learned=learned,
  )


def _image_row(task: Task) -> int:
  """Positions per row of a square image, which is read row by row; 0 for other inputs."""
  side = math.isqrt(task.length)
  return 0 if task.inputs.padded or side * side != task.length else side


def _mixers(model: states.Blueprint, params, stats) -> list[nnx.Module]:
  """The mixers of a model, one per place of the period; their arrays have a leading axis of layers."""
  return [stack.mixer for stack in model.merge(params, stats).encoder.stacks]


def _first_seed(folder, spec: RunSpec) -> int:
  """The seed of the initial values of the first stage of a run."""
  if spec.weights:
    raise NoKernels(
      f'{folder} started from model.weights, which it does not keep; choose the run that they come from'
    )
  if 'pretrained' not in run_folder.read_config(folder):
    return spec.seed
  if not (folder / run_folder.RESULT).exists():
    raise NoKernels(
      f'{folder} finetunes the pretraining of another run, and names it only once it is finished; '
      'choose that run'
    )
  return run_folder.read_result(folder)['pretrained']['seed']


def _initial_arrays(built: Built, seed: int) -> list[nnx.State]:
  """The arrays of the mixers that a stage starts from without pretraining."""

  def make(key):
    return [nnx.state(stack.mixer) for stack in built.model.make_model(nnx.Rngs(key)).encoder.stacks]

  return jax.jit(make)(initial_key(dataclasses.replace(built, seed=seed).key))


def _best(folder, stages: list[Built]) -> tuple[str, dict]:
  """Returns (stage, {step, arrays}) of the first stage that has a checkpoint."""
  mesh = sharding.make_mesh(devices=sharding.all_devices()[:1])
  folders = run_folder.stage_folders(folder, run_folder.read_config(folder))
  for built in stages:
    best = read_best(folders[built.name] / 'checkpoints', built.abstract_state(mesh))
    if best is not None:
      mixers = _mixers(built.model, best['params'], best['stats'])
      return built.name, {'step': int(best['step']), 'arrays': [*map(nnx.state, mixers)]}
  names = ' or '.join(built.name for built in stages)
  raise NoKernels(f'{folder} has no checkpoint of {names} yet; the first validation writes one')


@functools.partial(jax.jit, static_argnames=('graphdef', 'length'))
def _max_kernel(arrays, layer, *, graphdef, length):
  arrays = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, layer, keepdims=False), arrays)
  return nnx.merge(graphdef, arrays).max_kernel(length)


def max_kernels(mixers: list[nnx.Module], depth: int, length: int, name: str) -> np.ndarray:
  """Computes the kernels of a model one layer at a time, to save memory.

  Args:
    mixers: those of all layers, one module per place of the period; the arrays of each have a leading axis of
      layers.
    depth: the number of layers.
    length: L.
    name: of the model, for a bar of progress.

  Returns:
    float64 [layers, L], NaN where a kernel is not finite, or a mixer has none.
  """
  parts = [nnx.split(mixer) if hasattr(mixer, 'max_kernel') else (None, None) for mixer in mixers]
  curves = np.full((depth, length), np.nan)
  for layer in tqdm(range(depth), desc=name, unit='layer', leave=False, disable=not sys.stderr.isatty()):
    number, place = divmod(layer, len(mixers))
    graphdef, arrays = parts[place]
    if graphdef is not None:
      curves[layer] = _max_kernel(arrays, number, graphdef=graphdef, length=length)
  return np.where(np.isfinite(curves), curves, np.nan)


def write(folder, kernels: Kernels) -> None:
  """Writes kernels.json and kernels.png into the folder of a run, each whole or not at all."""
  folder = pathlib.Path(folder)
  spec = stored_run(folder)
  both = '' if spec.causal else ' and both directions'
  title = (
    f'{spec.task.name}, {spec.model.name}, {spec.regime.name}, seed {spec.seed}: '
    f'largest |K| over channels{both}'
  )
  files.write_text(folder / run_folder.KERNELS, kernels.to_json())
  with files.replacing(folder / 'kernels.png', 'wb') as file:
    plots.kernel_png(kernels, title, styles.of_regime(spec.regime.name), file)


def _run_folders(workdir) -> list[pathlib.Path]:
  """Returns the folder itself if it holds a run, else the folders of the runs below it."""
  workdir = pathlib.Path(workdir)
  if not workdir.is_dir():
    raise MissingFile(f'there is no folder {workdir}: give the folder that your runs were written to.')
  if (workdir / 'config.json').is_file():
    return [workdir]
  folders = [path.parent for path in sorted(workdir.rglob('config.json'))]
  if not folders:
    raise ConfigError(
      f'there is no run in or below {workdir} (the folder of a run holds a config.json): run '
      '`lra-spt train` first.'
    )
  return folders


def _summary(kernels: Kernels) -> str:
  """A line on how far the kernels of every shown layer reach, before and after training."""
  reach = ', '.join(
    f'layer {layer} {_words(before)} -> {_words(after)}'
    for layer, before, after in zip(
      kernels.shown, kernels.reach('initial'), kernels.reach('learned'), strict=True
    )
  )
  return (
    f'after {STAGE_NAMES[kernels.stage]} (best checkpoint, step {kernels.step:,}); lags that hold 90 % '
    f'of the sum of largest |K|, start -> learned: {reach}'
  )


def _words(reach):
  return 'not finite' if reach is None else f'{reach:,}'


def show(workdir, stage: str | None = None, layers: tuple[int, ...] = (), lags: int = 0) -> None:
  """Writes kernels.json and kernels.png of the run in `workdir`, or of all runs below it, and prints a line
  for each; see `compute`.

  Raises:
    NoKernels: no run has kernels.
  """
  folders, refusals = _run_folders(workdir), []
  for folder in folders:
    try:
      kernels = compute(folder, stage, layers, lags)
    except NoKernels as error:
      refusals.append(error)
      if len(folders) > 1:
        print(f'left out: {error}', file=sys.stderr)
      continue
    write(folder, kernels)
    print(f'{folder / "kernels.png"}: {_summary(kernels)}')
  if len(refusals) == len(folders):
    raise refusals[0]
