"""A training set that stays on the devices: batches are gathered inside the train step, by position.

Its rows are split over ('data', 'fsdp') in contiguous blocks. Batches are those of `Examples.gather`, bit for
bit.
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

from lra_spt.config.schema import PLACEMENTS
from lra_spt.data.examples import Examples
from lra_spt.data.tasks import ArraySpec
from lra_spt.distributed import processes, sharding
from lra_spt.errors import ConfigError

STORED = ('inputs', 'lengths', 'label', 'index')
LANES = 128  # of TPUs, which copy a whole array at each gather of rows of another width
READ_AT_ONCE = 256  # examples
LARGEST_SHARE = 1 / 4  # of a device's memory; the rest is for the model


@functools.partial(jax.tree_util.register_dataclass, data_fields=['rows'], meta_fields=['shape'])
@dataclasses.dataclass(frozen=True)
class Resident:
  """A split on the devices. Make it with `place`.

  rows: {name of STORED: [N, ...]}, where N is the number of examples filled up to a multiple of the devices
  that share them; inputs are flat and filled up to a multiple of LANES.
  shape: of one example's inputs, `Task.row`.
  """

  rows: dict[str, jax.Array]
  shape: tuple[int, ...]

  def gather(self, positions_B: jax.Array) -> dict[str, jax.Array]:
    """The batch at these positions (int32 [B]) as `Examples.gather` makes it, rows over ('data', 'fsdp').

    To be called under jit, on the mesh of `place`, whose shards divide B.
    """
    batch = sharding.rows_island(_gather_own, whole=(1,))(self.rows, positions_B)
    inputs = batch['inputs'][:, : math.prod(self.shape)].reshape(-1, *self.shape)
    weight = jnp.ones(positions_B.shape, jnp.float32)
    return jax.tree.map(sharding.constrain_rows, batch | {'inputs': inputs, 'weight': weight})


class Chunk(NamedTuple):
  """Batches of a dispatch as positions in a set on the devices: int32 [k, B]."""

  examples: Resident
  positions_kB: jax.Array


def _gather_own(rows, positions_B):
  """This device's rows of a batch, from what the devices hold together."""
  if sharding.row_shards() == 1:
    return {name: x[positions_B] for name, x in rows.items()}

  def exchange(x):
    # Every device fills in the rows it has and zeros for the others. Their sum is exact for integers, and
    # floats travel as such: a sum of theirs would lose the sign of -0.
    place_B = positions_B - lax.axis_index(sharding.ROWS) * len(x)
    found = x.at[place_B].get(mode='fill', fill_value=0, wrap_negative_indices=False)
    if jnp.issubdtype(x.dtype, jnp.floating):
      found = lax.bitcast_convert_type(found, jnp.int32)
    return lax.psum_scatter(found, sharding.ROWS, tiled=True).view(x.dtype)

  return {name: exchange(x) for name, x in rows.items()}


def shapes(task, size):
  """Shapes and dtypes of `size` rows of a resident set."""
  batch = task.batch(size)
  width = -(-math.prod(task.row) // LANES) * LANES
  return {name: batch[name] for name in STORED} | {'inputs': ArraySpec((size, width), batch['inputs'].dtype)}


def share(examples: Examples, mesh: jax.sharding.Mesh) -> int:
  """Bytes that a device holds of a resident set."""
  parts = shapes(examples.task, -(-len(examples) // sharding.row_shards(mesh)))
  return sum(part.nbytes for part in parts.values())


def choose(placement: str, examples: Examples, mesh: jax.sharding.Mesh) -> str:
  """Where training examples lie, 'host' or 'device': alike on all processes.

  Args:
    placement: '' takes the device where it is an accelerator and a device's share fits in a quarter of its
      memory, else the host.

  Raises:
    ConfigError: not a placement, or another one on another process, or 'device' where the share does not fit.
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


def place(examples: Examples, mesh: jax.sharding.Mesh, *, progress: bool = True) -> Resident:
  """Puts a split on the devices of a mesh; every process reads only what its own devices hold."""
  shards = sharding.row_shards(mesh)
  size = -(-len(examples) // shards)
  rows = sharding.rows_sharding(mesh)
  devices = {}
  for device, (block,) in rows.addressable_devices_indices_map((size * shards,)).items():
    devices.setdefault(block.start or 0, []).append(device)  # those that differ in 'seq' alone hold the same
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
  examples.forget()  # or they would lie on the host too, where nothing reads them again
  return Resident(placed, examples.task.row)


def _block(examples, start, size, bar):
  """Rows start .. start + size of a resident set; beyond the last example they are copies of it."""
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
