"""The checks of `lra-spt doctor --cluster` that need devices, in every process of the run.

  python -m lra_spt.runs.cluster.checks JSON

`lra_spt.runs.cluster.acceptance` starts it, so that the devices are free again for the training that follows.
"""

import dataclasses
import functools
import json
import pathlib
import socket
import subprocess
import sys
import time
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec

from lra_spt import files
from lra_spt.config import loading
from lra_spt.data.tasks import Tokens
from lra_spt.distributed import chips, heartbeat, processes, settings, sharding
from lra_spt.errors import ConfigError, counted, one_line
from lra_spt.runs import provenance
from lra_spt.runs.build import build, measured, resolve
from lra_spt.runs.cluster.acceptance import MEASURED
from lra_spt.training.step import train_steps

BOUND = 1e-4  # of the largest relative difference of losses and gradient norms in float32
STEPS = 8  # of a dispatch
DISPATCHES = 3  # timed ones
VISIBLE = 60.0  # seconds until a new file has to be seen by all processes
BYTES, CPU_BYTES = 2**26, 2**20  # of each device's array in a collective


def random_batches(task, steps: int, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
  """Random examples of full length, [steps, rows, ...]; labels are 1."""
  rng = np.random.default_rng(seed)
  batch = {name: np.ones((steps, *part.shape), part.dtype) for name, part in task.batch(rows).items()}
  limit = task.inputs.vocabulary if isinstance(task.inputs, Tokens) else 256
  batch['inputs'] = rng.integers(2, limit, batch['inputs'].shape).astype(batch['inputs'].dtype)
  batch['lengths'][:] = task.length
  batch['index'][:] = np.arange(rows)
  return batch


# Collectives. Device d holds x[i] = d + i % 251, so that every sum over devices is a whole number below 2**24
# and float32 holds it exactly. `expected` gives the result on device d of n.


def _pattern(size: int, start=0):
  return ((jnp.arange(size) + start) % 251).astype(jnp.float32)


def _everyones(size: int, n: int, start=0):
  """[n, size]: the parts of all devices."""
  return jnp.arange(n, dtype=jnp.float32)[:, None] + _pattern(size, start)[None]


AXIS = 'device'
# name: (function of a device's array, its expected result from (size, d, n), share of the array's bytes that
# a device sends at least, from n).
COLLECTIVES = {
  'all-reduce': (
    lambda x: lax.psum(x, AXIS),
    lambda size, d, n: n * _pattern(size) + n * (n - 1) // 2,
    lambda n: 2 * (n - 1) / n,
  ),
  'all-gather': (
    lambda x: lax.all_gather(x[: len(x) // lax.axis_size(AXIS)], AXIS, tiled=True),
    lambda size, d, n: _everyones(size // n, n).ravel(),
    lambda n: (n - 1) / n,
  ),
  'reduce-scatter': (
    lambda x: lax.psum_scatter(x, AXIS, tiled=True),
    lambda size, d, n: n * _pattern(size // n, d * (size // n)) + n * (n - 1) // 2,
    lambda n: (n - 1) / n,
  ),
  'permute': (
    lambda x: lax.ppermute(x, AXIS, [(i, (i + 1) % lax.axis_size(AXIS)) for i in range(lax.axis_size(AXIS))]),
    lambda size, d, n: ((d - 1) % n).astype(jnp.float32) + _pattern(size),
    lambda n: float(n > 1),
  ),
  'all-to-all': (
    lambda x: lax.all_to_all(x, AXIS, 0, 0, tiled=True),
    lambda size, d, n: _everyones(size // n, n, d * (size // n)).ravel(),
    lambda n: (n - 1) / n,
  ),
}


def collective(name: str) -> dict:
  """Runs a collective over all devices: compares it with its known result, and times it."""
  run, expected, share = COLLECTIVES[name]
  n = jax.device_count()
  size = (CPU_BYTES if jax.default_backend() == 'cpu' else BYTES) // 4 // n * n
  mesh = jax.sharding.Mesh(np.array(jax.devices()), (AXIS,))
  over = {'mesh': mesh, 'in_specs': PartitionSpec(AXIS), 'out_specs': PartitionSpec(AXIS), 'check_vma': False}

  def array(d_1):
    return d_1[0].astype(jnp.float32) + _pattern(size)

  def error(x, d_1):
    return jnp.abs(run(x) - expected(size, d_1[0], n)).max()[None]

  ranks = jax.make_array_from_callback(
    (n,), jax.NamedSharding(mesh, over['in_specs']), lambda index: np.arange(n, dtype=np.int32)[index]
  )
  x = jax.jit(jax.shard_map(array, **over))(ranks)
  both = over | {'in_specs': (over['in_specs'],) * 2}
  errors = jax.jit(jax.shard_map(error, **both))(x, ranks)
  wrong = processes.any_says(any(np.asarray(part.data).any() for part in errors.addressable_shards))
  if wrong:
    return {'passed': False, 'says': 'the result is wrong'}
  timed = jax.jit(jax.shard_map(run, **over))
  seconds = _fastest(lambda: timed(x))
  rate = share(n) * 4 * size / seconds / 1e9
  return {
    'passed': True,
    'says': f'{4 * size / 2**20:.0f} MiB a device in {1e3 * seconds:.2f} ms: each sends {rate:.2f} GB/s',
    'bytes': 4 * size,
    'seconds': seconds,
    'gigabytes_per_second': rate,
  }


def _fastest(run) -> float:
  """The seconds of the fastest of some calls, without the first one."""
  times = []
  jax.block_until_ready(run())
  for _ in range(DISPATCHES):
    start = time.perf_counter()
    jax.block_until_ready(run())
    times.append(time.perf_counter() - start)
  return min(times)


# Storage.


def shared_files(folder: pathlib.Path) -> dict:
  """Checks that all processes see a file that the first one writes, and later the one that replaces it."""
  path, slowest = folder / 'note.json', 0.0
  for version in (1, 2):
    if processes.is_first():
      folder.mkdir(parents=True, exist_ok=True)
      files.write_json(path, {'version': version})
    processes.meet('written')
    start = time.monotonic()
    while not (seen := _version(path) == version) and time.monotonic() - start < VISIBLE:
      time.sleep(0.01)
    slowest = max(slowest, time.monotonic() - start)
    if processes.any_says(not seen):
      return {
        'passed': False,
        'says': f'a process has not seen a file of the first one after {VISIBLE:.0f} s; is --workdir shared?',
      }
    processes.meet('seen')
  (slowest,) = _largest(slowest)
  return {'passed': True, 'says': f'a replaced file is seen by all after {slowest:.2f} s', 'seconds': slowest}


def _version(path):
  try:
    return json.loads(path.read_text(encoding='utf-8'))['version']
  except FileNotFoundError:  # not there yet; a file that is cut off raises another error
    return None


def _largest(*values: float) -> list[float]:
  """The maximum of each value over all processes."""
  if jax.process_count() == 1:
    return list(values)
  return multihost_utils.process_allgather(np.float32(values)).max(axis=0).tolist()


def locks(folder: pathlib.Path) -> dict:
  """Checks that a folder owned by the first process is owned for all others, and free when it lets go."""
  owned = files.owned(folder, 'checking') if processes.is_first() else None
  if owned:
    owned.__enter__()
  processes.meet('owned')
  refused = _is_owned(folder)
  processes.meet('asked')
  if owned:
    owned.__exit__(None, None, None)
  processes.meet('freed')
  free = not _is_owned(folder)
  processes.meet('asked again')
  if processes.any_says(not (refused and free)):
    return {'passed': False, 'says': 'a lock of one process does not hold for another one (see launch/)'}
  return {'passed': True, 'says': 'a folder that one process owns is owned for all others'}


def _is_owned(folder) -> bool:
  if not processes.is_first():
    return files.is_owned(folder)
  program = 'import sys; from lra_spt import files; sys.exit(files.is_owned(sys.argv[1]))'
  return bool(subprocess.run([sys.executable, '-c', program, str(folder)], check=False).returncode)


# Training.


@dataclasses.dataclass(frozen=True)
class Steps:
  """Some training steps: float32 [STEPS] losses and norms of the gradient, seconds and operations of one."""

  losses: np.ndarray
  norms: np.ndarray
  seconds: float
  flops: float


def steps(built, mesh, rows: int, *, timed: bool = False) -> Steps:
  """Trains from the initial values on random batches of `rows`, in one dispatch; `timed` repeats it."""
  # Without a warmup, so that the updates move the losses.
  schedule = dataclasses.replace(built.spec.schedule, warmup_steps=0)
  built = dataclasses.replace(built, spec=dataclasses.replace(built.spec, batch_size=rows, schedule=schedule))
  here = sharding.local_rows(mesh, rows)
  chunk = {name: array[:, here] for name, array in random_batches(built.task, STEPS, rows).items()}
  with jax.set_mesh(mesh):
    state = built.fresh_state(mesh)
    chunk = sharding.to_devices(chunk, mesh, rows, here, leading=1)
    dispatch, key = train_steps(built.typical_program), built.training_key

    def run():
      nonlocal state
      state, records = dispatch(state, chunk, jnp.int32(STEPS), key)
      return records

    records = run()
    losses, norms = np.asarray(records['loss']), np.asarray(records['gradient_norm'])
    seconds = _fastest(run) / STEPS if timed else 0.0
  return Steps(losses, norms, seconds, built.flops_per_step)


def _meshes() -> dict[str, dict[str, int]]:
  """{name: sizes of the axes} of the meshes whose losses are compared with those of one device."""
  n = jax.device_count()
  split = {'fsdp=2': {'fsdp': 2}, 'seq=2': {'seq': 2}} if n % 2 == 0 else {}
  return {f'data={n}': {}} | split


def losses(built) -> dict:
  """Compares losses and gradient norms of the same batches on one device and on all, in float32."""
  n = jax.device_count()
  rows = -(-built.spec.batch_size // n) * n
  with settings.fixed('highest'):
    on_all = {name: steps(built, sharding.make_mesh(**axes), rows) for name, axes in _meshes().items()}
    apart = {}
    if processes.is_first():
      one = steps(built, sharding.make_mesh(devices=jax.local_devices()[:1]), rows)
      apart = {name: _apart(other, one) for name, other in on_all.items()}
  processes.meet('one device')
  shown = ', '.join(f'{name} {difference:.1e}' for name, difference in apart.items())
  return {
    'passed': processes.first_says(all(difference <= BOUND for difference in apart.values())),
    'says': f'apart from one device: {shown} (bound {BOUND:.0e})',
    'bound': BOUND,
    'batch_size': rows,
    'apart': apart,
  }


def _apart(one: Steps, other: Steps) -> float:
  """The largest difference of losses and of norms, each over the largest of `other`; 1 where one is NaN."""
  pairs = ((one.losses, other.losses), (one.norms, other.norms))
  apart = np.max([np.abs(a - b).max() / np.abs(b).max() for a, b in pairs])
  return float(np.nan_to_num(apart, nan=1.0))


def scaling(built) -> dict:
  """Times steps on 1, 2, 4, ... devices of the first process and on all, each with equally many rows."""
  rows, here, n = built.spec.batch_size, len(jax.local_devices()), jax.device_count()
  counts = [2**k for k in range(here.bit_length()) if 2**k < n]
  rates, peak = [], chips.peak_flops(jax.devices()[0].device_kind)
  for count in (*counts, n):
    alone = count < n  # the first process alone has this part of the devices
    if processes.is_first() or not alone:
      mesh = sharding.make_mesh(devices=jax.local_devices()[:count] if alone else None)
      taken = steps(built, mesh, rows * count, timed=True)
      rate = {'devices': count, 'steps_per_second': 1 / taken.seconds}
      rate['examples_per_second'] = rows * count / taken.seconds
      rate['teraflops_per_second_per_device'] = taken.flops / count / taken.seconds / 1e12
      rate['mfu'] = peak and taken.flops / count / taken.seconds / peak
      rates.append(rate)
    processes.meet(f'{count} devices')
  first = rates[0]['steps_per_second']
  shown = ', '.join(
    f'{rate["devices"]}: {rate["steps_per_second"]:.3g} ({100 * rate["steps_per_second"] / first:.0f} %)'
    for rate in rates
  )
  use = f'MFU {100 * rates[-1]["mfu"]:.1f} %' if peak else 'the peak of this device is not known'
  return {
    'passed': True,
    'says': f'steps/s on devices with {rows} rows each: {shown}; {use}',
    'rows_per_device': rows,
    'precision': built.runtime.precision,
    'by_devices': rates,
  }


def _built(config: str, **runtime):
  built = build(resolve(loading.load(config, {f'runtime.{k}': v for k, v in runtime.items()})), 'finetune')
  if measured(built):
    raise ConfigError(f'--config={config} needs statistics of its training set; choose another one')
  return built


def machine() -> dict:
  """The hardware, versions and settings of the run, and the hosts of its processes."""
  mine = np.zeros(64, np.uint8)
  name = socket.gethostname().encode()[:64]
  mine[: len(name)] = np.frombuffer(name, np.uint8)
  hosts = np.atleast_2d(multihost_utils.process_allgather(mine))
  return {
    'hardware': provenance.hardware(),
    'hosts': sorted({bytes(host).rstrip(b'\0').decode(errors='replace') for host in hosts}),
    'versions': provenance.versions(),
    'commit': provenance.commit(),
    'settings': settings.in_force(),
  }


def devices() -> dict:
  """Counts devices and processes, and checks that all processes run the same code."""
  known = json.dumps([provenance.versions(), provenance.commit(), jax.local_devices()[0].device_kind])
  numbers = np.ravel(multihost_utils.process_allgather(np.uint32(zlib.crc32(known.encode()))))
  kind, count = jax.devices()[0].device_kind, jax.process_count()
  says = f'{counted(jax.device_count(), "device")} of kind {kind}, '
  says += '1 process' if count == 1 else f'{count} processes'
  alike = bool((numbers == numbers[0]).all())
  return {
    'passed': alike,
    'says': says + ('' if alike else '; versions, commits or kinds of device differ between processes'),
  }


def run(workdir: pathlib.Path, config: str) -> None:
  """Runs all checks; after each one the first process writes MEASURED into `workdir`.

  A check that raises has failed, and the next one goes on.
  """
  sharding.all_devices()
  precision = 'float32' if jax.default_backend() == 'cpu' else 'bfloat16'
  exact, fast = _built(config, precision='float32'), _built(config, precision=precision)
  checks = {'devices': devices}
  checks |= {name: functools.partial(collective, name) for name in COLLECTIVES}
  checks |= {'shared files': lambda: shared_files(workdir / 'shared')}
  checks |= {'locks': lambda: locks(workdir / 'shared' / 'locked')}
  checks |= {'losses': lambda: losses(exact), 'scaling': lambda: scaling(fast)}
  measured = {'machine': machine(), 'items': {}}
  for name, check in checks.items():
    start = time.monotonic()
    if processes.is_first():
      files.write_json(workdir / MEASURED, measured | {'running': name})
    try:
      item = check()
    except Exception as error:
      item = {'passed': False, 'says': f'{type(error).__name__}: {one_line(error)}'}
    measured['items'][name] = item | {'took': round(time.monotonic() - start, 1)}
  if processes.is_first():
    files.write_json(workdir / MEASURED, measured)


def main(given: dict) -> None:
  """Joins the other processes and runs all checks.

  given: 'workdir', 'config', 'place' (a file for the rank of this process), 'joining' (arguments of
  `processes.start_processes`).
  """
  processes.start_processes(**given['joining'])
  with heartbeat.watched(), settings.fixed():
    place = {'process': jax.process_index(), 'devices': jax.device_count()}
    files.write_json(pathlib.Path(given['place']), place)
    run(pathlib.Path(given['workdir']), given['config'])


if __name__ == '__main__':
  main(json.loads(sys.argv[1]))
