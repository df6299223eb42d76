"""Meshes are made, parameters and rows of a batch are laid out, and clusters are recognised."""

import dataclasses
import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from lra_spt.distributed import processes, sharding
from lra_spt.errors import ConfigError
from lra_spt.runs import provenance


def test_make_mesh_fills_the_data_axis():
  assert dict(sharding.make_mesh().shape) == {'data': 8, 'fsdp': 1, 'seq': 1}
  assert dict(sharding.make_mesh(fsdp=4).shape) == {'data': 2, 'fsdp': 4, 'seq': 1}
  assert dict(sharding.make_mesh(1, 8).shape) == {'data': 1, 'fsdp': 8, 'seq': 1}
  assert dict(sharding.make_mesh(fsdp=2, seq=2).shape) == {'data': 2, 'fsdp': 2, 'seq': 2}
  assert dict(sharding.make_mesh(devices=jax.devices()[:1]).shape) == {'data': 1, 'fsdp': 1, 'seq': 1}


@pytest.mark.parametrize(
  'sizes, sentence',
  [
    ({'data': 3}, 'data=3 x fsdp=1 x seq=1 = 3 does not use the 8 devices'),
    ({'fsdp': 3}, 'data=2 x fsdp=3 x seq=1 = 6 does not use the 8 devices'),
    ({'data': 0}, 'does not use the 8 devices'),
    ({'fsdp': 0}, 'fsdp=0, seq=1; both must be at least 1'),
    ({'fsdp': 16}, 'does not use the 8 devices'),
    ({'seq': 3}, 'data=2 x fsdp=1 x seq=3 = 6 does not use the 8 devices'),
  ],
)
def test_make_mesh_says_what_does_not_fit(sizes, sentence):
  with pytest.raises(ValueError, match=sentence):
    sharding.make_mesh(**sizes)


@dataclasses.dataclass(frozen=True)
class DeviceOfASlice:
  """The attributes of a device that a mesh needs."""

  id: int
  slice_index: int
  platform: str = 'cpu'
  device_kind: str = 'cpu'
  process_index: int = 0


SLICES = [DeviceOfASlice(id=4 * s + i, slice_index=s) for i in range(4) for s in range(2)]


@pytest.mark.parametrize('sizes', [{}, {'fsdp': 2}, {'seq': 4}, {'fsdp': 2, 'seq': 2}])
def test_parameters_and_sequences_stay_within_a_slice(sizes):
  mesh = sharding.make_mesh(**sizes, devices=SLICES)
  assert mesh.axis_names == ('data', 'fsdp', 'seq')
  assert dict(mesh.shape) == {'data': 8 // math.prod(sizes.values()), 'fsdp': 1, 'seq': 1} | sizes
  slices = np.vectorize(lambda device: device.slice_index)(mesh.devices)
  assert (slices == slices[:, :1, :1]).all()
  assert sorted(device.id for device in mesh.devices.flat) == list(range(8))


@pytest.mark.parametrize('sizes', [{'fsdp': 8}, {'fsdp': 4, 'seq': 2}])
def test_what_does_not_stay_within_a_slice_is_refused(sizes):
  with pytest.raises(ValueError, match='split parameters or sequences over 2 slices; choose fsdp and seq'):
    sharding.make_mesh(**sizes, devices=SLICES)


def test_check_batch_size():
  mesh = sharding.make_mesh(2, 4)
  sharding.check_batch_size(16, mesh, 'pretrain.batch_size')
  sharding.check_batch_size(16, mesh, 'pretrain.batch_size', microbatches=2)
  with pytest.raises(
    ValueError, match='pretrain.batch_size is 12, which 8 devices cannot share evenly; use a multiple of 8'
  ):
    sharding.check_batch_size(12, mesh, 'pretrain.batch_size')
  with pytest.raises(
    ValueError, match='is 8, which 8 devices x 2 microbatches cannot share evenly; use a multiple of 16'
  ):
    sharding.check_batch_size(8, mesh, 'finetune.batch_size', microbatches=2)
  with pytest.raises(ValueError, match='finetune.batch_size is 0'):
    sharding.check_batch_size(0, mesh, 'finetune.batch_size')
  with pytest.raises(ValueError, match='0 microbatches'):
    sharding.check_batch_size(8, mesh, 'finetune.batch_size', microbatches=0)


@pytest.mark.parametrize(
  'shape, fsdp, stacked, spec',
  [
    ((64, 128), 4, False, P(None, 'fsdp')),
    ((128, 64), 4, False, P('fsdp', None)),
    ((64, 64), 4, False, P('fsdp', None)),
    ((66, 64), 4, False, P(None, 'fsdp')),  # 4 does not divide the larger axis
    ((65, 66), 4, False, P(None, None)),
    ((64, 128), 1, False, P(None, None)),
    ((16, 32), 4, False, P(None, None)),  # small leaves stay whole
    ((4096, 8, 8), 4, True, P(None, None, None)),  # the leading 4096 layers do not make a leaf large
    ((64, 32, 128), 4, True, P(None, None, 'fsdp')),
    ((1024,), 4, False, P('fsdp')),
    ((), 4, False, P()),
  ],
)
def test_parameter_spec(shape, fsdp, stacked, spec):
  assert sharding.parameter_spec(shape, fsdp, stacked) == spec


def test_state_shardings_know_blocks_by_their_key():
  mesh = sharding.make_mesh(2, 4)
  leaf = jax.ShapeDtypeStruct((64, 32, 32), jnp.float32)
  shardings = sharding.state_shardings(
    {'params': {'blocks': {'k': leaf}, 'embed': {'k': leaf}}, 'step': jax.ShapeDtypeStruct((), jnp.int32)},
    mesh,
  )
  assert shardings['params']['blocks']['k'].spec == P(None, 'fsdp', None)
  assert shardings['params']['embed']['k'].spec == P('fsdp', None, None)
  assert shardings['step'].spec == P()


@pytest.mark.parametrize('shape', [(8, 1, 1), (2, 4, 1), (2, 2, 2)])
def test_rows_of_a_batch_reach_the_devices_in_order(shape):
  mesh = sharding.make_mesh(*shape)
  rows = sharding.local_rows(mesh, 16)
  np.testing.assert_array_equal(rows, np.arange(16))
  batch = {'x': np.arange(3 * 16 * 2).reshape(3, 16, 2).astype(np.int32)}
  placed = sharding.to_devices(batch, mesh, 16, rows, leading=1)['x']
  np.testing.assert_array_equal(placed, batch['x'])
  assert placed.sharding.spec == P(None, ('data', 'fsdp'))
  for shard in placed.addressable_shards:
    np.testing.assert_array_equal(shard.data, batch['x'][:, shard.index[1]])
    assert shard.data.shape == (3, 16 // (shape[0] * shape[1]), 2)


def test_island_runs_on_own_rows_and_passes_none_through():
  seen = []

  def double(x, missing, y):
    seen.append((x.shape, missing, y.shape))
    return 2 * x + y

  x, y = jnp.arange(16.0).reshape(16, 1), jnp.ones((16, 1))
  expected = 2 * np.arange(16.0).reshape(16, 1) + 1
  np.testing.assert_array_equal(sharding.rows_island(double)(x, None, y), expected)
  with jax.set_mesh(sharding.make_mesh(2, 4)):
    np.testing.assert_array_equal(jax.jit(sharding.rows_island(double))(x, None, y), expected)
  assert seen == [((16, 1), None, (16, 1)), ((2, 1), None, (2, 1))]


def test_platform_is_that_of_the_mesh():
  assert sharding.platform() == 'cpu'
  with jax.set_mesh(sharding.make_mesh()):
    assert sharding.platform() == 'cpu'
    assert jax.eval_shape(lambda: jnp.zeros(len(sharding.platform()))).shape == (3,)


@pytest.mark.parametrize(
  'error, ending',
  [
    (AssertionError(), 'device here: unset it'),
    (
      RuntimeError("Unable to initialize backend 'tpu': none\nfound. (set JAX_PLATFORMS='' to choose)"),
      "device here (Unable to initialize backend 'tpu': none found): unset it",
    ),
  ],
)
def test_platforms_that_are_not_there_are_a_sentence(monkeypatch, error, ending):
  def refuse():
    raise error

  monkeypatch.setattr(jax, 'devices', refuse)
  monkeypatch.setenv('JAX_PLATFORMS', 'tpu')
  for first in (lambda: sharding.first_devices(0), lambda: sharding.first_devices(2), sharding.platform):
    with pytest.raises(ConfigError) as raised:
      first()
    assert f'JAX_PLATFORMS is tpu, but jax finds no such {ending}' in str(raised.value)
  monkeypatch.delenv('JAX_PLATFORMS')  # no platform was requested that is missing
  with pytest.raises(type(error)):
    sharding.all_devices()


def test_another_error_of_jax_keeps_its_traceback(monkeypatch):
  def refuse():
    raise RuntimeError('a defect')

  monkeypatch.setattr(jax, 'devices', refuse)
  with pytest.raises(RuntimeError, match='a defect'):
    sharding.all_devices()


@pytest.mark.parametrize('command', ['check', 'train --dry_run --workdir=W --config.runtime.data_dir={data}'])
def test_a_command_on_a_platform_that_is_not_there(command, repository, tmp_path, tiny_data):
  words = [*command.format(data=tiny_data).split(), f'--config={repository}/tests/tiny_config.py']
  done = subprocess.run(
    [sys.executable, '-m', 'lra_spt', *words],
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': str(repository), 'JAX_PLATFORMS': 'foo'},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 2
  assert done.stderr.startswith('lra-spt: JAX_PLATFORMS is foo, but jax finds no such device here')
  assert done.stderr.count('\n') == 1


@pytest.mark.parametrize(
  'shape, split, positions',
  [((2, 4, 1), (), 4), ((2, 1, 4), (), 4), ((2, 1, 4), (0,), 1), ((8, 1, 1), (0,), 4)],
)
def test_rows_island_passes_parameters_whole_and_sums_their_gradients(shape, split, positions):
  """Devices that differ only in 'seq' may do the same work, or each the work of its positions."""
  x = np.arange(16 * 4 * 3, dtype=np.float32).reshape(16, 4, 3)
  parameters = {'scale': jnp.arange(3.0), 'shift': jnp.float32(2)}
  seen = []

  def affine(x, flag, parameters):
    assert flag is None
    assert parameters['scale'].shape == (3,)
    seen.append(x.shape)
    return x * parameters['scale'][None, None] + parameters['shift']

  def loss(x, parameters):
    return jnp.sum(sharding.rows_island(affine, whole=(2,), split=split)(x, None, parameters) ** 2)

  expected = jax.value_and_grad(loss, argnums=(0, 1))(x, parameters)
  with jax.set_mesh(sharding.make_mesh(*shape)):
    actual = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(x, parameters)
  assert set(seen) == {x.shape, (16 // (shape[0] * shape[1]), positions, 3)}
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), actual, expected)


def test_sequence_shards():
  assert sharding.sequence_shards(7) == 1
  with jax.set_mesh(sharding.make_mesh(seq=4)):
    assert sharding.sequence_shards(12) == 4
    with pytest.raises(ValueError, match='seq is 4, which does not divide sequences of 7 positions'):
      sharding.sequence_shards(7)


def test_constraints_do_nothing_without_a_mesh():
  x = jnp.ones((3, 2))
  assert sharding.constrain(x, 'data') is x
  assert sharding.constrain_rows(x) is x
  assert sharding.constrain_positions(x) is x


TPU = {'TPU_WORKER_HOSTNAMES': '10.0.0.1,10.0.0.2'}
SLURM = {'SLURM_NTASKS': '4', 'SLURM_STEP_NODELIST': 'node[1-4]'}
KUBERNETES = {'JOB_COMPLETION_INDEX': '0', 'JAX_COORDINATOR_ADDRESS': 'job-0:1234'}


@pytest.mark.parametrize(
  'environment, recognised',
  [
    ({}, False),
    (TPU, True),
    ({'TPU_WORKER_HOSTNAMES': 'localhost'}, False),
    (SLURM, True),
    (SLURM | {'SLURM_NTASKS': '1'}, False),
    ({'SLURM_NTASKS': '4'}, False),  # an allocation without a step: the batch script
    (KUBERNETES, True),
    ({'JOB_COMPLETION_INDEX': '0'}, False),
    ({'JAX_COORDINATOR_ADDRESS': 'job-0:1234'}, False),
  ],
)
def test_processes_start_by_themselves_only_in_a_cluster(monkeypatch, environment, recognised):
  calls = []
  monkeypatch.setattr(jax.distributed, 'is_initialized', lambda: False)
  monkeypatch.setattr(jax.distributed, 'initialize', lambda *args, **kwargs: calls.append((args, kwargs)))
  for name in (*TPU, *SLURM, *KUBERNETES):
    monkeypatch.delenv(name, raising=False)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  assert processes.start_processes() is recognised
  assert len(calls) == recognised
  calls.clear()
  assert processes.start_processes(distributed=False) is False
  assert not calls
  assert processes.start_processes(True) is True
  assert calls == [((None, None, None), {'initialization_timeout': processes.JOIN + 60})]


def test_tpu_chips_start_processes_on_a_cloud_vm_but_not_in_a_notebook(monkeypatch, tmp_path):
  """A Cloud TPU VM is recognised by its chips. The network card of a Google VM must not count as a chip."""
  for name, vendor, device in (('card', '0x1ae0', '0x0042'), ('other', '0x10de', '0x0063')):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'vendor').write_text(vendor + '\n')
    (tmp_path / name / 'device').write_text(device + '\n')
  assert not processes._has_tpu_chips(tmp_path)
  (tmp_path / 'other' / 'vendor').write_text('0x1ae0\n')
  assert processes._has_tpu_chips(tmp_path)
  monkeypatch.setattr(processes, '_has_tpu_chips', lambda: True)
  assert processes._cluster_recognised({})
  assert not processes._cluster_recognised({'COLAB_RELEASE_TAG': 'release'})
  assert not processes._cluster_recognised({'TPU_WORKER_HOSTNAMES': 'localhost'})
  assert not processes._cluster_recognised({'TPU_WORKER_HOSTNAMES': 'WARNING: no metadata, no hosts'})
  assert not processes._cluster_recognised({'TPU_WORKER_HOSTNAMES': '', 'SLURM_NTASKS': ''})


def test_processes_by_address_and_what_is_said_without_one(monkeypatch):
  calls = []
  monkeypatch.setattr(jax.distributed, 'is_initialized', lambda: False)
  monkeypatch.setattr(jax.distributed, 'initialize', lambda *args, **kwargs: calls.append((args, kwargs)))
  assert processes.start_processes(coordinator='localhost:1', processes=2, process=1)
  assert calls == [(('localhost:1', 2, 1), {'initialization_timeout': processes.JOIN + 60})]

  def refuse(*args, **kwargs):
    raise ValueError('coordinator_address should be defined.')

  monkeypatch.setattr(jax.distributed, 'initialize', refuse)
  with pytest.raises(
    ValueError, match='--distributed found no cluster environment .* give --coordinator=HOST:PORT'
  ):
    processes.start_processes(True)
  with pytest.raises(ConfigError, match='add --coordinator=HOST:PORT'):
    processes.start_processes(False, None, 2, 1)
  monkeypatch.setattr(jax.distributed, 'is_initialized', lambda: True)
  assert processes.start_processes() is True


def test_hardware_describes_this_machine():
  described = provenance.hardware()
  assert (described['platform'], described['devices'], described['processes']) == ('cpu', 8, 1)
  assert described['cpu_count'] >= 1
  assert described['host_memory_gib'] > 0
  assert described['matmul_precision'] == 'default'
  with jax.default_matmul_precision('highest'):
    assert provenance.hardware()['matmul_precision'] == 'highest'


def test_first_devices():
  assert sharding.first_devices(0) is None
  assert sharding.make_mesh(devices=sharding.first_devices(2)).shape['data'] == 2
  for count in (9, -1):
    with pytest.raises(ValueError, match=f'runtime.devices is {count}, but this run has 8 devices'):
      sharding.first_devices(count)
