"""Devices, the mesh, and the sharding of arrays.

There is always one mesh with three axes: rows of a batch are split over ('data', 'fsdp'), parameters over
'fsdp', and positions over 'seq'. A single device runs the same code on the mesh (1, 1, 1). With several TPU
slices, 'data' is the axis that crosses the slow network between them. Runs that train together add an axis
'member' before these, over which nothing is exchanged. Axis types are Auto: XLA decides the placement of
arrays that no constraint and no `shard_map` island pins.
"""

import dataclasses
import functools
import math
import os
import re

import jax
import numpy as np
from jax import lax
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from lra_spt.config.runtime import RuntimeSpec
from lra_spt.distributed import processes
from lra_spt.errors import ConfigError, one_line

ROWS = ('data', 'fsdp')  # the axes that split the rows of a batch
MEMBER = 'member'  # the axis that splits runs which train together; only their mesh has it

_PLATFORMS = {'cuda': 'gpu', 'rocm': 'gpu'}  # devices name the toolkit, backends the kind

# Leaves smaller than this stay whole on every device: gathering them would cost more than they take.
SMALLEST_SHARDED_LEAF = 2**10


def all_devices() -> list[jax.Device]:
  """All devices of this run. Call it before anything else touches devices, for the sake of its error.

  Raises:
    ConfigError: jax finds no device of a platform in JAX_PLATFORMS.
  """
  try:
    return jax.devices()
  except (RuntimeError, AssertionError) as error:  # AssertionError: 'cuda' without a GPU
    asked, message = os.environ.get('JAX_PLATFORMS'), str(error)
    if not asked or (message and 'Unable to initialize backend' not in message):
      raise
    reason = ' '.join(message.partition(' (set JAX_PLATFORMS')[0].split()).rstrip('.')
    raise ConfigError(
      f'JAX_PLATFORMS is {asked}, but jax finds no such device here{f" ({reason})" if reason else ""}: unset '
      'it, or install jax for that device.'
    ) from error


def first_devices(count: int):
  """The first `count` devices; None, which stands for all of them, if `count` is 0.

  Raises:
    ConfigError: there are fewer, several processes would not use all, or `all_devices` raises it.
  """
  devices = all_devices()
  if count == 0:
    return None
  if count < 0 or count > jax.device_count() or jax.process_count() > 1:
    raise ConfigError(
      f'runtime.devices is {count}, but this run has {jax.device_count()} devices in {jax.process_count()} '
      'process(es); 0 uses all of them, and several processes must use all'
    )
  return devices[:count]


def mesh_of(runtime: RuntimeSpec, members: int = 1) -> jax.sharding.Mesh:
  """The mesh that a run's runtime asks for; raises as `first_devices` and `make_mesh`."""
  devices = first_devices(runtime.devices)
  return make_mesh(**dataclasses.asdict(runtime.mesh), devices=devices, members=members)


def make_mesh(
  data: int = -1, fsdp: int = 1, seq: int = 1, devices=None, members: int = 1
) -> jax.sharding.Mesh:
  """Makes the mesh ('data', 'fsdp', 'seq'), or ('member', 'data', 'fsdp', 'seq') for several members.

  Args:
    data, fsdp, seq: sizes of the axes; data=-1 takes the devices that remain.
    devices: None for all.
    members: number of runs that train together. As many of the devices that could share rows as divide
      `members` share the runs.

  Raises:
    ConfigError: the product of the sizes is not the number of devices, or parameters or sequences would be
      split over several TPU slices.
  """
  count = len(devices) if devices is not None else jax.device_count()
  if fsdp < 1 or seq < 1:
    raise ConfigError(f'runtime.mesh has fsdp={fsdp}, seq={seq}; both must be at least 1')
  member = math.gcd(members, count // (fsdp * seq * max(data, 1)) or 1)
  if data == -1:
    data = count // (member * fsdp * seq)
  if member * data * fsdp * seq != count:
    runs = f'member={member} x ' if members > 1 else ''
    raise ConfigError(
      f'runtime.mesh {runs}data={data} x fsdp={fsdp} x seq={seq} = {member * data * fsdp * seq} does not use '
      f'the {count} devices of this run; choose sizes whose product is {count} (data=-1 takes the rest)'
    )
  axes = {'data': data, 'fsdp': fsdp, 'seq': seq}
  if members > 1:
    axes = {MEMBER: member} | axes
  types = (AxisType.Auto,) * len(axes)
  slices = len({getattr(device, 'slice_index', 0) for device in devices or jax.devices()})
  if slices == 1:
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=types, devices=devices)
  between = next((axis for axis in (MEMBER, 'data') if not axes.get(axis, 1) % slices), None)
  if between is None:
    raise ConfigError(
      f'runtime.mesh data={data} x fsdp={fsdp} x seq={seq} would split parameters or sequences over {slices} '
      f'slices; choose fsdp and seq that fit into one, so that data is a multiple of {slices}'
    )
  outer = [slices if axis == between else 1 for axis in axes]
  inner = [size // outside for size, outside in zip(axes.values(), outer, strict=True)]
  grid = mesh_utils.create_hybrid_device_mesh(inner, outer, devices=devices)
  return jax.sharding.Mesh(grid, tuple(axes), axis_types=types)


def check_batch_size(batch_size: int, mesh: jax.sharding.Mesh, name: str, microbatches: int = 1) -> None:
  """Raises a ConfigError unless devices and microbatches divide a positive `batch_size` evenly."""
  devices = mesh.shape['data'] * mesh.shape['fsdp']
  shards = max(devices * microbatches, 1)
  if batch_size < 1 or microbatches < 1 or batch_size % shards:
    parts = f'{devices} devices' + (f' x {microbatches} microbatches' if microbatches != 1 else '')
    raise ConfigError(
      f'{name} is {batch_size}, which {parts} cannot share evenly; use a multiple of {shards}, or split '
      f'positions instead of rows (runtime.mesh.seq is {mesh.shape["seq"]})'
    )


def constrain(x: jax.Array, *spec) -> jax.Array:
  """Applies `with_sharding_constraint` by axis names; returns x if there is no mesh (tests, notebooks)."""
  if jax.sharding.get_abstract_mesh().empty:
    return x
  return lax.with_sharding_constraint(x, PartitionSpec(*spec))


def constrain_rows(x: jax.Array) -> jax.Array:
  """Keeps axis 0 of a batch split over ('data', 'fsdp') and all other axes whole."""
  return constrain(x, ROWS, *(None,) * (x.ndim - 1))


def constrain_positions(x_BLD: jax.Array) -> jax.Array:
  """Keeps rows split over ('data', 'fsdp') and positions over 'seq'.

  Without it XLA could gather activations where it should gather weights.

  Raises:
    ConfigError: 'seq' does not divide L.
  """
  sequence_shards(x_BLD.shape[1])
  return constrain(x_BLD, ROWS, 'seq', None)


def sequence_shards(length: int | None = None) -> int:
  """The number of shards into which the current mesh splits sequences; 1 without a mesh.

  Args:
    length: L, to check that the shards are equal.

  Raises:
    ConfigError: the shards would not be equal.
  """
  shards = jax.sharding.get_abstract_mesh().shape.get('seq', 1)
  if length is not None and length % shards:
    raise ConfigError(
      f'runtime.mesh.seq is {shards}, which does not divide sequences of {length} positions; choose a divisor'
    )
  return shards


def gather_parameters(tree):
  """Gathers whole parameters on every device.

  Under FSDP there is one gather per layer when it is used, and its transpose reduces gradients.
  """
  return jax.tree.map(lambda x: constrain(x), tree)


def rows_island(function, whole: tuple[int, ...] = (), split: tuple[int, ...] = ()):
  """Makes `function` run on the rows of each device.

  Arguments and results are split along axis 0 over ('data', 'fsdp'). Left to itself, XLA gathers the whole
  batch around an FFT, a Pallas call or a loop over rows; inside this island there is nothing to shard.
  Arguments are arrays, trees of arrays or None. Without a mesh the result is `function`.

  Args:
    whole: positions of arguments (parameters) that are whole on every device; their gradients are summed over
      devices.
    split: positions of arguments that are also split along axis 1 over 'seq'. Then so are the results, and
      `function` exchanges data with other shards by collectives over 'seq'. Without any, devices that differ
      only in 'seq' do the same work.
  """

  @functools.wraps(function)
  def island(*arguments):
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
      return function(*arguments)
    rows, shards = PartitionSpec(ROWS), PartitionSpec(ROWS, 'seq')
    specs = tuple(
      PartitionSpec() if i in whole else shards if i in split else rows for i in range(len(arguments))
    )
    out_specs = shards if split else rows
    return jax.shard_map(function, in_specs=specs, out_specs=out_specs, check_vma=False)(*arguments)

  return island


def platform() -> str:
  """The target of a computation that is traced now: 'cpu', 'gpu' or 'tpu'.

  It is the platform of the current mesh, which may be a slice that is only compiled for, or without a mesh
  that of the default backend.

  Raises:
    ConfigError: see `all_devices`.
  """
  device = jax.sharding.get_abstract_mesh().abstract_device
  if device is None:
    all_devices()
    return jax.default_backend()
  return _PLATFORMS.get(device.platform, device.platform)


def parameter_spec(shape: tuple[int, ...], fsdp: int, stacked: bool) -> PartitionSpec:
  """Splits the largest axis that `fsdp` divides.

  Small leaves stay whole, and `stacked` leaves keep axis 0 (depth) whole.
  """
  first = 1 if stacked else 0
  spec = [None] * len(shape)
  if fsdp > 1 and int(np.prod(shape[first:], dtype=np.int64)) >= SMALLEST_SHARDED_LEAF:
    for axis in sorted(range(first, len(shape)), key=lambda axis: -shape[axis]):
      if shape[axis] % fsdp == 0:
        spec[axis] = 'fsdp'
        break
  return PartitionSpec(*spec)


def state_shardings(abstract_state, mesh: jax.sharding.Mesh):
  """A NamedSharding for each leaf of a train state; leaves below a key 'blocks' are stacked along depth."""

  def sharding(path, leaf):
    stacked = any(getattr(part, 'key', None) == 'blocks' for part in path)
    return NamedSharding(mesh, parameter_spec(leaf.shape, mesh.shape['fsdp'], stacked))

  return jax.tree_util.tree_map_with_path(sharding, abstract_state)


def rows_sharding(mesh: jax.sharding.Mesh, leading: int = 0, *, stacked: bool = False) -> NamedSharding:
  """The sharding of a batch.

  Args:
    leading: number of whole axes before the row axis.
    stacked: True if an axis of runs comes first.
  """
  return NamedSharding(mesh, PartitionSpec(*(MEMBER,) * stacked, *(None,) * leading, ROWS))


def row_shards(mesh: jax.sharding.Mesh | None = None) -> int:
  """The number of shards into which `mesh` (None: the current one) splits rows; 1 without a mesh."""
  shape = (jax.sharding.get_abstract_mesh() if mesh is None else mesh).shape
  return shape.get('data', 1) * shape.get('fsdp', 1)


def local_rows(mesh: jax.sharding.Mesh, batch_size: int) -> np.ndarray:
  """The rows of a global batch that the devices of this process hold, sorted, int64 [b]."""
  indices = rows_sharding(mesh).addressable_devices_indices_map((batch_size,))
  return np.unique(np.concatenate([np.arange(batch_size)[index] for index in indices.values()]))


def to_devices(
  batch,
  mesh: jax.sharding.Mesh,
  batch_size: int,
  rows: np.ndarray,
  leading: int = 0,
  *,
  stacked: bool = False,
):
  """Makes global arrays from the rows of this process.

  Leaves `[*leading, len(rows), ...]` become `[*leading, batch_size, ...]`, after an axis of runs if
  `stacked`.
  """
  sharding, axis = rows_sharding(mesh, leading, stacked=stacked), leading + stacked
  if jax.process_count() == 1:
    return jax.device_put(batch, sharding)
  place = np.full(batch_size, -1)
  place[rows] = np.arange(len(rows))

  def put(x):
    shape = (*x.shape[:axis], batch_size, *x.shape[axis + 1 :])

    def shard(index):
      return np.take(x[index[:axis]], place[index[axis]], axis=axis)

    return jax.make_array_from_callback(shape, sharding, shard)

  return jax.tree.map(put, batch)


def everywhere(x: np.ndarray, mesh: jax.sharding.Mesh) -> jax.Array:
  """An array that every device holds whole; x must be equal in every process, which is not checked."""
  return jax.make_array_from_callback(x.shape, replicated(mesh), lambda index: x[index])


def device_memory(mesh: jax.sharding.Mesh) -> int:
  """Bytes of memory for arrays on the smallest device of a mesh; CPU devices share that of their host."""

  def bytes_of(device):
    stats = device.memory_stats() or {}
    return stats.get('bytes_limit') or processes.host_memory() // jax.local_device_count()

  least = min(map(bytes_of, mesh.local_devices))
  if jax.process_count() > 1:  # in MiB, because int64 is disabled
    least = int(multihost_utils.process_allgather(np.int32(least >> 20)).min()) << 20
  return least


def lacks_memory(error: BaseException) -> bool:
  """True if an allocation failed, on the host or a device."""
  if isinstance(error, MemoryError):
    return True
  words = r'RESOURCE_EXHAUSTED|Out of memory|OUT_OF_MEMORY'
  return isinstance(error, jax.errors.JaxRuntimeError) and bool(re.search(words, one_line(error)))


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
  """The sharding of an array that every device holds whole."""
  return NamedSharding(mesh, PartitionSpec())
