"""A training set that stays on the devices; the train step gathers batches from it by position.

Its rows are split over ('data', 'fsdp') in contiguous blocks. Its batches equal those of `Examples.gather`
bit for bit.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from jax import lax

from lra_spt.config.runtime import PLACEMENTS
from lra_spt.data.examples import Examples
from lra_spt.data.parts import ArraySpec
from lra_spt.distributed import processes, sharding
from lra_spt.errors import ConfigError

STORED = ('inputs', 'lengths', 'label', 'index')
LANES = 128  # TPUs copy the whole array at each gather of rows whose width is no multiple of their lanes
READ_AT_ONCE = 256  # examples
LARGEST_SHARE = 1 / 4  # of a device's memory; the rest is for the model


@functools.partial(jax.tree_util.register_dataclass, data_fields=['rows'], meta_fields=['shape'])
@dataclasses.dataclass(frozen=True)
class DeviceData:
  """A split on the devices, made by `place`.

  rows: {name of STORED: [N, ...]}, where N is the number of examples padded to a multiple of the devices that
    share them; inputs are flat and padded to a multiple of LANES.
  shape: the shape of one example's inputs, `Task.row`.
  """

  rows: dict[str, jax.Array]
  shape: tuple[int, ...]

  def gather(self, positions_B: jax.Array) -> dict[str, jax.Array]:
    """Returns the batch at positions int32 [B] as `Examples.gather` does, rows split over ('data', 'fsdp').

    Call it under jit, on the mesh of `place`; B is a multiple of its row shards.
    """
    batch = sharding.rows_island(_gather_own, whole=(1,))(self.rows, positions_B)
    inputs = batch['inputs'][:, : math.prod(self.shape)].reshape(-1, *self.shape)
    weight = jnp.ones(positions_B.shape, jnp.float32)
    return jax.tree.map(sharding.constrain_rows, batch | {'inputs': inputs, 'weight': weight})


class PlacedChunk(NamedTuple):
  """The batches of a dispatch as positions in a set on the devices: int32 [k, B]."""

  examples: DeviceData
  positions_kB: jax.Array


def _gather_own(rows, positions_B):
  """Gathers this device's rows of a batch from the rows of all devices."""
  if sharding.row_shards() == 1:
    return {name: x[positions_B] for name, x in rows.items()}

  def exchange(x):
    # Every device fills in the rows that it has, and zeros for the others. The sum is exact for integers.
    # Floats travel as integers, because their sum would lose the sign of -0.
    place_B = positions_B - lax.axis_index(sharding.ROWS) * len(x)
    mine = x.at[place_B].get(mode='fill', fill_value=0, wrap_negative_indices=False)
    if jnp.issubdtype(x.dtype, jnp.floating):
      mine = lax.bitcast_convert_type(mine, jnp.int32)
    return lax.psum_scatter(mine, sharding.ROWS, tiled=True).view(x.dtype)

  return {name: exchange(x) for name, x in rows.items()}


def shapes(task, size):
  """Shapes and dtypes of `size` rows of a set on the devices."""
  batch = task.batch(size)
  width = -(-math.prod(task.row) // LANES) * LANES
  return {name: batch[name] for name in STORED} | {'inputs': ArraySpec((size, width), batch['inputs'].dtype)}


def share(examples: Examples, mesh: jax.sharding.Mesh) -> int:
  """The bytes of a set that one device holds."""
  parts = shapes(examples.task, -(-len(examples) // sharding.row_shards(mesh)))
  return sum(part.nbytes for part in parts.values())


def choose(placement: str, examples: Examples, mesh: jax.sharding.Mesh) -> str:
  """Chooses where training examples lie, 'host' or 'device', for all processes.

  Args:
    placement: '' chooses accelerators if each one's share fits into a quarter of its memory, else the host.
    examples: the training examples.
    mesh: to train on.

  Raises:
    ConfigError: the placement differs between processes, or is 'device' and the share does not fit.
  """
  processes.agreed(PLACEMENTS.index(placement), 'runtime.placement', 'start all of them with the same flags')
  if placement == 'host' or not placement and mesh.devices.flat[0].platform == 'cpu':
    return 'host'
  needed, limit = share(examples, mesh), int(sharding.device_memory(mesh) * LARGEST_SHARE)
  if needed <= limit:
    return 'device'
  if placement:
    raise ConfigError(
      f'runtime.placement=device puts {needed / 2**30:.3g} GiB of the {len(examples):,} training examples of '
      f'{examples.task.name} on each device, more than the quarter of its memory ({limit / 2**30:.3g} GiB) '
      'that they may take; use runtime.placement=host, or more devices'
    )
  return 'host'


def place(examples: Examples, mesh: jax.sharding.Mesh, *, progress: bool = True) -> DeviceData:
  """Puts a split on the devices of a mesh; every process reads only the rows of its own devices."""
  shards = sharding.row_shards(mesh)
  size = -(-len(examples) // shards)
  rows = sharding.rows_sharding(mesh)
  devices = {}
  for device, (block,) in rows.addressable_devices_indices_map((size * shards,)).items():
    devices.setdefault(block.start or 0, []).append(device)  # devices that differ only in 'seq' share rows
  parts = {name: [] for name in STORED}
  hidden = None if progress and jax.process_index() == 0 else True
  text = f'{examples.task.name} to the devices'
  with tqdm.tqdm(total=size * len(devices), desc=text, unit=' examples', disable=hidden) as bar:
    for start, holders in devices.items():
      for name, part in _block(examples, start, size, bar).items():
        parts[name] += [jax.device_put(part, device) for device in holders]
  placed = {
    name: jax.make_array_from_single_device_arrays((size * shards, *arrays[0].shape[1:]), rows, arrays)
    for name, arrays in parts.items()
  }
  examples.forget()  # frees their memory on the host
  return DeviceData(placed, examples.task.row)


def _block(examples, start, size, bar):
  """Reads the rows start .. start + size; rows beyond the last example are copies of it."""
  block = {name: np.zeros(part.shape, part.dtype) for name, part in shapes(examples.task, size).items()}
  for begin in range(0, size, READ_AT_ONCE):
    end = min(begin + READ_AT_ONCE, size)
    batch = examples.gather(np.minimum(np.arange(start + begin, start + end), len(examples) - 1))
    flat = batch.pop('inputs').reshape(end - begin, -1)
    block['inputs'][begin:end, : flat.shape[1]] = flat
    for name in STORED[1:]:
      block[name][begin:end] = batch[name]
    bar.update(end - begin)
  return block
