"""Arrays of a user as a batch for the model of a run."""

import jax.numpy as jnp
import numpy as np

from lra_spt.data.tasks import Task, Tokens
from lra_spt.errors import ConfigError


def batch_of(task: Task, data, lengths) -> dict[str, np.ndarray]:
  """The arrays of `Examples.gather` from arrays of a user.

  Args:
    task: the task of the model.
    data: numbers [N, *task.row] as stored; rows of padded inputs may be shorter.
    lengths: for padded inputs, int [N], or [N, 2] for pairs; None: of tokens up to the last id that is not
      padding, of values all positions of the array.

  Raises:
    ConfigError: they are no numbers, of another shape, or not what the task reads.
  """
  inputs = task.inputs
  tokens = isinstance(inputs, Tokens)
  data = _numbers(data, 'inputs', f'{task.name} reads {"token ids" if tokens else inputs.dtype}')
  axis = task.documents  # of positions
  positions = data.shape[axis] if inputs.padded and data.ndim > axis else task.length
  shape = tuple(positions if at == axis else size for at, size in enumerate(task.row, 1))
  if data.shape[1:] != shape or positions > task.length or not data.size:
    ends = f', or fewer than {task.length} positions' if inputs.padded else ''
    raise ConfigError(f'inputs are of shape {data.shape}, but {task.name} reads {("N", *task.row)}{ends}')
  with np.errstate(invalid='ignore', over='ignore'):
    stored = data.astype(inputs.dtype)
  if tokens and (wrong := data[(data < 0) | (data >= inputs.vocabulary)]).size:
    raise ConfigError(f'inputs hold the id {wrong[0]}, but {task.name} has {inputs.vocabulary} ids')
  if not np.isfinite(stored).all():
    raise ConfigError('inputs hold numbers that are not finite; correct them')
  if inputs.dtype != 'float32' and not np.array_equal(stored, data):
    raise ConfigError(
      f'inputs are not of the stored dtype, {inputs.dtype}; give them before any normalisation'
    )
  batch = {name: np.zeros(part.shape, part.dtype) for name, part in task.batch(len(data)).items()}
  batch['inputs'][:] = inputs.pad_id if tokens else 0
  batch['inputs'][(slice(None),) * axis + (slice(positions),)] = stored
  batch['lengths'][:] = _lengths(stored, inputs.pad_id) if tokens else positions
  if lengths is not None:
    if not inputs.padded:
      raise ConfigError(f'lengths are for padded inputs, but those of {task.name} are full; leave them out')
    lengths = _numbers(lengths, 'lengths', 'they are numbers of positions')
    if lengths.shape != batch['lengths'].shape:
      raise ConfigError(
        f'lengths are of shape {lengths.shape}, but these inputs have lengths of {batch["lengths"].shape}'
      )
    if lengths.dtype.kind not in 'iu' or lengths.min() < 1 or lengths.max() > positions:
      raise ConfigError(
        f'lengths have to be whole numbers from 1 to the {positions} positions of the inputs, but are '
        f'{lengths.dtype} from {lengths.min()} to {lengths.max()}'
      )
    batch['lengths'][:] = lengths
  batch['weight'][:] = 1
  batch['index'][:] = np.arange(len(data))
  return batch


def _numbers(data, what: str, wanted: str) -> np.ndarray:
  """An array of real numbers; raises a ConfigError for rows of different lengths, texts and other objects."""
  try:
    array = np.asarray(data)
  except ValueError as error:  # rows of different lengths
    raise ConfigError(
      f'{what} make no array ({str(error).partition(".")[0]}); fill shorter rows up'
    ) from error
  if not any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.integer, jnp.floating)):
    raise ConfigError(f'{what} are of dtype {array.dtype}, but {wanted}: give numbers')
  return array


def _lengths(stored, pad_id: int) -> np.ndarray:
  """The lengths int [...] of ids [..., L]: up to the last position that is no padding, at least 1."""
  held = stored != pad_id
  return np.maximum(np.where(held.any(-1), stored.shape[-1] - np.argmax(held[..., ::-1], -1), 1), 1)
