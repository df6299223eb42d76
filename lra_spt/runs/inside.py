"""`look_inside`: how far a model reads at the start, after pretraining, after finetuning, and from scratch.

Receptive fields are gradients, so every mixer has one. The output is projected on fixed random signs, because
the sum of its channels is constant behind a LayerNorm.
"""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from tqdm import tqdm

from lra_spt import files
from lra_spt.config.loading import flattened
from lra_spt.distributed import settings
from lra_spt.errors import ConfigError, MissingFile, NonFiniteError
from lra_spt.models import Model
from lra_spt.objectives.rows import documents_as_rows, normalise, row_lengths
from lra_spt.report.runs import run_folder
from lra_spt.report.runs.inside import Inside
from lra_spt.runs import kernels
from lra_spt.runs.api import Run, folder_of_run, load_run, one_device
from lra_spt.runs.build import stages_of, stored_run

PROJECTIONS = 8
MOST_WEIGHTS = 2**27  # attention weights of one layer and example, 512 MiB


@settings.fixed()
def look_inside(workdir, scratch=None, *, examples: int = 32, data_dir=None) -> Inside:
  """Measures how far the model of a run reads, by distance, in each of its states: at the start, after
  self-pretraining, after finetuning (the best checkpoints), and after training from scratch.

  Receptive fields are those of the encoder, whatever its mixer. Only mixers with a method `attention_weights`
  have attention weights, and only those with `max_kernel` have kernels, see `lra_spt.models.registry`. All
  states see the same inputs, and nothing is hidden. Gradients are with respect to values or, for tokens, to
  their embeddings. Under model.shuffle distances are those of the order in which the model reads.

  Args:
    workdir: folder of a run, finished or not. States without a checkpoint are left out.
    scratch: folder of a run from scratch of the same task, model, form, protocol and seed; None for none.
    examples: the number of validation examples, the first ones.
    data_dir: as for `load_run`.

  Raises:
    MissingFile: there is no run, or no model in it.
    CheckpointError: no stage has a checkpoint yet, or one is damaged.
    ConfigError: `scratch` is another model or not from scratch, or a mixer returns weights of another shape;
      also as for `load_run`.
    NonFiniteError: the output does not depend on the input, or its gradient is not finite.
  """
  if examples < 1:
    raise ConfigError(f'examples is {examples}; choose at least 1')
  runs, start = _runs(folder_of_run(workdir), data_dir)
  if scratch is not None:
    runs['scratch'] = _scratch(folder_of_run(scratch), runs, data_dir)
  run, mesh = next(iter(runs.values())), one_device()
  split = run.examples('validation')
  batch = split.gather(np.arange(min(examples, len(split))))
  states = {'initial': (0, start)} if start else {}
  states |= {name: (each.step, lambda each=each: each.model) for name, each in runs.items()}
  parts, left_out = {}, ''
  with settings.fixed(run.spec.runtime.matmul_precision), jax.set_mesh(mesh):
    for name, (_, make) in states.items():
      model = make()
      inputs_RL, lengths_R = _read(model, run.task, batch)
      parts[name] = part = {'field': _field(model, inputs_RL, lengths_R, run.task.channels, name)}
      weights, left_out = _weights_or_none(model, inputs_RL, lengths_R, name)
      part |= weights
      mixers = [stack.mixer for stack in model.encoder.stacks]
      if any(hasattr(mixer, 'max_kernel') for mixer in mixers):
        part['kernels'] = kernels.max_kernels(mixers, model.encoder.depth, run.task.length, name)
  by_state = {
    key: {name: part[key] for name, part in parts.items() if key in part}
    for key in ('field', 'attention', 'spans', 'kernels')
  }
  last = next(reversed(parts.values()))
  return Inside(
    examples=len(batch['index']),
    steps={name: step for name, (step, _) in states.items()},
    uniform=last.get('uniform'),
    uniform_span=last.get('uniform_span'),
    left_out=left_out,
    **by_state,
  )


def _runs(workdir, data_dir):
  """Returns the states of a run with a checkpoint and the function that makes its initial model.

  These are {'pretrained': Run, 'finetuned': Run}, or {'scratch': Run} for a run without pretraining. The
  function is None where the initial values are not known.
  """
  spec, stored = stored_run(workdir, data_dir), run_folder.read_config(workdir)
  origin = _pretrained_in(workdir, stored)
  pretrains = 'pretrain' in spec.stages
  places = {'pretrained': (origin, 'pretrain')} if pretrains else {}
  places['finetuned' if pretrains or spec.weights else 'scratch'] = workdir, 'finetune'
  there = {name: place for name, place in places.items() if _has_best(*place)}
  # Without any checkpoint, load_run says so.
  chosen = there or dict([next(iter(places.items()))])
  runs = {name: load_run(folder, stage, data_dir=data_dir) for name, (folder, stage) in chosen.items()}
  if spec.weights:
    return runs, None
  runtime = next(iter(runs.values())).spec.runtime
  first = next(iter(stages_of(dataclasses.replace(stored_run(origin, data_dir), runtime=runtime)).values()))

  def start():
    state = first.fresh_state(one_device())
    return first.model.merge(state['params'], state['stats'])

  return runs, start


def _pretrained_in(workdir, stored):
  """Returns the folder of the run that pretrained: another one where the run goes on from it."""
  if 'pretrained' not in stored:
    return workdir
  if not (workdir / run_folder.RESULT).exists():
    raise MissingFile(
      f'{workdir} finetunes the pretraining of another run, and names it only once it is finished; choose '
      'that run'
    )
  return folder_of_run(files.place(run_folder.read_result(workdir)['pretrained']['run']))


def _has_best(workdir, stage):
  """Says if the best checkpoint of a stage is there."""
  folder = run_folder.stage_folders(workdir, run_folder.read_config(workdir))[stage]
  return any(path.name.isdigit() for path in folder.glob('checkpoints/best/*'))


def _scratch(workdir, runs, data_dir) -> Run:
  """Loads the run from scratch that others are compared with."""
  if 'scratch' in runs:
    raise ConfigError(
      f'{runs["scratch"].workdir} is itself a run from scratch; give a run with pretraining as workdir, or '
      'leave scratch out'
    )
  spec, other = stored_run(workdir, data_dir), next(iter(runs.values()))
  if 'pretrain' in spec.stages or spec.weights:
    raise ConfigError(f'{workdir} is not a run from scratch; give one as scratch, or leave it out')

  def facts(folder, spec):
    stored = run_folder.read_config(folder)
    same = {key: stored.get(key) for key in ('task', 'model', 'protocol', 'seed', 'fingerprints')}
    return flattened(same) | {'causal': spec.causal}

  ours, theirs = facts(workdir, spec), facts(other.workdir, other.spec)
  different = [key for key in ours | theirs if ours.get(key) != theirs.get(key)]
  if different:
    key = different[0]
    raise ConfigError(
      f'{workdir} has {key} {ours.get(key)}, but {other.workdir} has {theirs.get(key)}; give a run from '
      'scratch of the same task, model, form, protocol and seed'
    )
  return load_run(workdir, data_dir=data_dir)


def _read(model: Model, task, batch):
  """Returns inputs [R, L(, C)] and lengths [R] (or None) of a batch as the encoder reads them."""
  inputs, lengths_R = documents_as_rows(task, batch)
  inputs_RL, lengths_R = normalise(task, inputs), row_lengths(task, lengths_R)
  inputs_RL, _ = model.as_read(inputs_RL, lengths_R)
  if flags := model.encoder.inputs.channels - task.channels:  # 0: nothing is hidden
    inputs_RL = jnp.pad(inputs_RL, ((0, 0), (0, 0), (0, flags)))
  return inputs_RL, lengths_R


def _rows(inputs_RL, lengths_R, name):
  """Yields every row, [1, L(, C)], and its length [1], or None: one at a time bounds the memory."""
  bar = tqdm(range(len(inputs_RL)), desc=name, unit='row', leave=False, disable=not sys.stderr.isatty())
  for row in bar:
    part = slice(row, row + 1)
    yield inputs_RL[part], None if lengths_R is None else jnp.asarray(lengths_R[part])


def _field(model, inputs_RL, lengths_R, channels, name) -> np.ndarray:
  """Returns the receptive field, float64 [L], see `Inside`."""
  graphdef, arrays = nnx.split(model.encoder)
  length, fields = inputs_RL.shape[1], []
  for inputs_1L, length_1 in _rows(inputs_RL, lengths_R, f'{name}, gradients'):
    middle = (length if length_1 is None else int(length_1[0])) // 2
    gradient_L = _gradient(
      arrays, inputs_1L, length_1, jnp.int32(middle), graphdef=graphdef, channels=channels or None
    )
    distance_L = np.abs(np.arange(length) - middle)
    of_each_L = np.bincount(distance_L, np.asarray(gradient_L, np.float64), length)
    if not 0 < (total := of_each_L.sum()) < np.inf:
      raise NonFiniteError(
        f'the gradient of the {name} model is {total} in all, so it has no receptive field; look into a run '
        'whose output depends on its input'
      )
    fields.append(of_each_L / total)
  return np.mean(fields, axis=0)


@functools.partial(jax.jit, static_argnames=('graphdef', 'channels'))
def _gradient(arrays, inputs_1L, length_1, middle, *, graphdef, channels):
  """Returns the mean absolute gradient [L] of the output at `middle` with respect to every input, summed over
  the first `channels` (None: all) of its numbers."""
  encoder = nnx.merge(graphdef, arrays)
  tokens = bool(encoder.inputs.vocabulary)

  def hidden(x):
    encoder = nnx.merge(graphdef, arrays, copy=True)  # it writes BatchNorm's averages, even unchanged ones
    x_BLD = (encoder.transformed if tokens else encoder)(x, lengths_B=length_1)
    return lax.dynamic_index_in_dim(x_BLD[0], middle, keepdims=False)

  hidden_D, pull_back = jax.vjp(hidden, encoder.embedded(inputs_1L) if tokens else inputs_1L)
  signs_KD = np.random.RandomState(0).choice([-1.0, 1.0], (PROJECTIONS, len(hidden_D)))

  def absolute(sign_D):
    (gradient_1LC,) = pull_back(sign_D)
    return jnp.abs(gradient_1LC[0, :, :channels]).astype(jnp.float32).sum(-1)

  return lax.map(absolute, jnp.asarray(signs_KD, hidden_D.dtype)).mean(0)


def _weights_or_none(model, inputs_RL, lengths_R, name) -> tuple[dict, str]:
  """Returns what `Inside` says about attention weights, {} for mixers without them, and a sentence if they
  were left out."""
  encoder, lengths_1 = model.encoder, None if lengths_R is None else lengths_R[:1]
  graphdef, arrays = nnx.split(encoder)
  heads, length = 0, inputs_RL.shape[1]
  for place, stack in enumerate(encoder.stacks):
    weights = functools.partial(_weights, graphdef=graphdef, place=place)
    shape = jax.eval_shape(weights, arrays, inputs_RL[:1], lengths_1)
    if shape is None:
      continue
    if shape.ndim != 4 or shape.shape != (1, shape.shape[1], length, length):
      raise ConfigError(
        f'attention_weights of {type(stack.mixer).__name__} returns the shape {shape.shape} for one row of '
        f'{length} positions; return [B, H, L, L], or None'
      )
    if (count := shape.size) > MOST_WEIGHTS:
      return {}, (
        f'Attention weights are left out: one layer has {count:,} of them per example, more than the '
        f'{MOST_WEIGHTS:,} that fit into memory.'
      )
    heads = max(heads, shape.shape[1])
  if not heads:
    return {}, ''
  return _weights_by_distance(graphdef, arrays, encoder.depth, heads, inputs_RL, lengths_R, name), ''


def _weights(arrays, inputs_1L, lengths_1, *, graphdef, place):
  encoder = nnx.merge(graphdef, arrays)
  mixer = encoder.block(0, place).mixer
  if not hasattr(mixer, 'attention_weights'):
    return None
  return mixer.attention_weights(encoder.embedded(inputs_1L), lengths_B=lengths_1)


def _weights_by_distance(graphdef, arrays, depth, heads, inputs_RL, lengths_R, name) -> dict:
  """Returns attention, spans, uniform and uniform_span of `Inside`; heads: the largest number in a layer."""
  sums, period = 0, len(nnx.merge(graphdef, arrays).stacks)
  for inputs_1L, length_1 in _rows(inputs_RL, lengths_R, f'{name}, attention'):
    x_BLD, layers = nnx.merge(graphdef, arrays).embedded(inputs_1L), []
    for layer in range(depth):
      number, place = divmod(layer, period)
      x_BLD, parts = attended(arrays, x_BLD, number, length_1, graphdef=graphdef, place=place)
      missing = heads - parts.shape[1]
      layers.append(np.pad(np.asarray(parts, np.float64), ((0, 0), (0, missing), (0, 0))))
    sums = sums + np.stack(layers, axis=1)
  weights, even, pairs = sums  # [layers, H, L] each
  distance_L, known = np.arange(weights.shape[-1]), pairs > 0
  total, among = even.sum((0, 1)), pairs.sum((0, 1))
  sum_LH = weights.sum(-1)
  return {
    'attention': np.divide(weights, pairs, out=np.full_like(weights, np.nan), where=known),
    'spans': np.divide(weights @ distance_L, sum_LH, out=np.full_like(sum_LH, np.nan), where=sum_LH > 0),
    'uniform': np.divide(total, among, out=np.full_like(total, np.nan), where=among > 0),
    'uniform_span': float(total @ distance_L / total.sum()),
  }


@functools.partial(jax.jit, static_argnames=('graphdef', 'place'))
def attended(arrays, x_BLD, number, lengths_B, *, graphdef, place=0):
  """Runs one block of an encoder and sums the attention weights of its mixer by distance.

  Args:
    arrays, graphdef: of the encoder.
    x_BLD: the input of the block, one row.
    number, place: of the block, see `Encoder.block`.
    lengths_B: of the row, or None.

  Returns:
    The output of the block, and float32 [3, H, L]: by distance the sums over pairs of valid query and visible
    key of the weights, of uniform weights, and of 1; [3, 0, L] if the mixer has no weights.
  """
  block, positions = nnx.merge(graphdef, arrays).block(number, place), x_BLD.shape[1]
  read_BLD, weights_1HLM = block.mixer_input(x_BLD, lengths_B=lengths_B), None
  y_BLD = block(x_BLD, lengths_B=lengths_B, deterministic=True, rngs=None)
  if hasattr(block.mixer, 'attention_weights'):
    weights_1HLM = block.mixer.attention_weights(read_BLD, lengths_B=lengths_B)
  if weights_1HLM is None:
    return y_BLD, jnp.zeros((3, 0, positions))
  valid_L1 = jnp.arange(positions)[:, None] < (positions if lengths_B is None else lengths_B[0])

  def by_distance(weights_LM):
    weights_LM = jnp.where(valid_L1, weights_LM, 0)
    visible_LM = (weights_LM > 0).astype(jnp.float32)
    uniform_LM = visible_LM / jnp.maximum(visible_LM.sum(-1, keepdims=True), 1)
    return jnp.stack([_diagonals(x_LM) for x_LM in (weights_LM, uniform_LM, visible_LM)])

  sums_3HL = jnp.swapaxes(lax.map(by_distance, weights_1HLM[0].astype(jnp.float32)), 0, 1)
  return y_BLD, sums_3HL


def _diagonals(x_LL: jax.Array) -> jax.Array:
  """Returns the sums [L] of a matrix over the entries (t, s) of each distance |t - s|."""
  L = len(x_LL)
  # Rows of 2 L numbers are laid end to end and cut into rows of 2 L - 1: each starts one place earlier.
  flat = jnp.pad(x_LL[:, ::-1], ((0, 0), (0, L))).reshape(-1)[: L * (2 * L - 1)]
  sums = flat.reshape(L, 2 * L - 1).sum(0)  # of t - s from 1 - L on
  return (sums[L - 1 :] + sums[L - 1 :: -1]).at[0].set(sums[L - 1])
