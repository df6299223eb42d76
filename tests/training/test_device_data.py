"""A training set on devices gives bit for bit the batches of the host, however many devices share it."""

import json
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.data import pipeline
from lra_spt.data.tasks import get_task
from lra_spt.distributed import processes, sharding
from lra_spt.training import device_data
from lra_spt.training.step import train_steps

COUNT, BATCH, SEED = 45, 16, 3  # 8 devices hold 6 each: 3 are copies
# Tokens, bytes, colours, pairs, samples of sound, and real numbers with real labels.
TASKS = ('listops', 'image', 'scifar', 'retrieval', 'speech_commands', 'bidmc_hr')
MESHES = ((1, 1, 1), (8, 1, 1), (2, 2, 2), (1, 1, 8))


class InMemory:
  """Stands in for `Examples`, with random bits in the dtypes of the task: NaN and -0 are among them."""

  def __init__(self, task):
    rng, shapes = np.random.default_rng(0), task.batch(COUNT)
    self.task, self.read = task, []
    self._content = {}
    for name in device_data.STORED:
      part = shapes[name]
      content = rng.bytes(part.nbytes)
      self._content[name] = np.frombuffer(content, part.dtype).reshape(part.shape)
    if task.regression:
      self._content['label'] = np.where(np.arange(COUNT) % 2, np.float32(-0.0), self._content['label'])

  def __len__(self):
    return COUNT

  def forget(self):
    self.read.append('forgotten')

  def gather(self, positions):
    self.read += list(positions)
    batch = {name: values[positions] for name, values in self._content.items()}
    return batch | {'weight': np.ones(len(positions), np.float32)}


def mesh_of(shape):
  return sharding.make_mesh(*shape, devices=jax.devices()[: int(np.prod(shape))])


@pytest.fixture(scope='module')
def examples():
  return {name: InMemory(get_task(name)) for name in TASKS}


@pytest.mark.parametrize('name', TASKS)
@pytest.mark.parametrize('shape', MESHES)
def test_batches_are_those_of_the_host(examples, name, shape):
  mesh = mesh_of(shape)
  with jax.set_mesh(mesh):
    placed = device_data.place(examples[name], mesh, progress=False)
    gather = jax.jit(device_data.DeviceData.gather)
    for step in range(3):
      positions = pipeline.train_indices(COUNT, SEED, step, BATCH)
      batch, expected = gather(placed, sharding.everywhere(positions, mesh)), examples[name].gather(positions)
      assert batch.keys() == expected.keys() == examples[name].task.batch(BATCH).keys()
      for part, values in expected.items():
        assert (batch[part].dtype, batch[part].shape) == (values.dtype, values.shape)
        assert np.asarray(batch[part]).tobytes() == values.tobytes(), part
        rows = sharding.rows_sharding(mesh)
        assert batch[part].sharding.is_equivalent_to(rows, values.ndim)


def test_a_device_holds_its_share_and_every_example_is_read_once():
  examples, mesh = InMemory(get_task('bidmc_hr')), mesh_of((2, 2, 2))
  placed = device_data.place(examples, mesh, progress=False)
  assert examples.read.pop() == 'forgotten'
  assert sorted(examples.read) == sorted([*range(COUNT), 44, 44, 44])  # 4 blocks of 12
  for device in mesh.devices.flat:
    shards = [x.addressable_shards for x in placed.rows.values()]
    held = [shard.data for each in shards for shard in each if shard.device == device]
    assert sum(x.nbytes for x in held) == device_data.share(examples, mesh)
    assert {len(x) for x in held} == {12}


@pytest.mark.parametrize('shape', MESHES)
def test_only_rows_of_the_batch_move(examples, shape):
  mesh = mesh_of(shape)
  with jax.set_mesh(mesh):
    placed = device_data.place(examples['image'], mesh, progress=False)
    positions = sharding.everywhere(np.arange(BATCH, dtype=np.int32), mesh)
    text = jax.jit(device_data.DeviceData.gather).lower(placed, positions).compile().as_text()
  moves = re.findall(r'= (\S+) (reduce-scatter|all-\w+|collective-permute)\(', text)
  shards = shape[0] * shape[1]
  expected = ['s32', 's32', 's32', 'u8'] if shards > 1 else []
  assert sorted(result.split('[')[0] for result, _ in moves) == expected
  assert all(f'[{BATCH // shards}' in result and kind == 'reduce-scatter' for result, kind in moves)


@pytest.mark.slow
def test_the_optimiser_leaves_the_bits_alone(tiny):
  """With all optimisations of XLA, which other tests switch off, chunks from the host and from the devices
  give the same losses and parameters."""
  stage, mesh = tiny('listops.py:model=transformer,regime=masked', 'finetune'), mesh_of((1, 1, 1))
  examples = InMemory(stage.built.task.with_inputs(length=24))
  content = examples._content
  content |= {'inputs': content['inputs'] % 15 + 4, 'label': content['label'] % 10}
  content['lengths'] = content['lengths'] % 24 + 1
  positions = np.stack([pipeline.train_indices(COUNT, SEED, step, BATCH) for step in range(4)])
  batches = jax.tree.map(lambda *parts: np.stack(parts), *map(examples.gather, positions))
  actual = []
  with jax.set_mesh(mesh):
    placed = device_data.place(examples, mesh, progress=False)
    for chunk in (
      sharding.to_devices(batches, mesh, BATCH, np.arange(BATCH), leading=1),
      device_data.PlacedChunk(placed, sharding.everywhere(positions, mesh)),
    ):
      state, records = train_steps(stage.program)(stage.state(mesh), chunk, jnp.int32(4), jax.random.key(1))
      actual.append(jax.tree.map(np.asarray, (records, state['params'])))
  jax.tree.map(np.testing.assert_array_equal, *actual)
  assert np.isfinite(actual[0][0]['loss']).all()


def fake_mesh(platform, memory, **shape):
  stats = None if memory is None else {'bytes_limit': memory}
  device = types.SimpleNamespace(platform=platform, memory_stats=lambda: stats)
  return types.SimpleNamespace(shape=shape, devices=np.array([device]), local_devices=[device])


ROW = 8064 * 4 + 4 + 4 + 4  # 4,000 x 2 numbers filled up to 63 x 128; length, label, index


@pytest.mark.parametrize(
  'placement, platform, memory, shape, expected',
  [
    ('', 'cpu', None, {}, 'host'),
    ('host', 'gpu', 2**40, {}, 'host'),
    ('device', 'cpu', 2**40, {}, 'device'),
    ('', 'gpu', 4 * 45 * ROW, {}, 'device'),
    ('', 'gpu', 4 * 45 * ROW - 4, {}, 'host'),
    ('', 'tpu', 4 * 12 * ROW, {'data': 2, 'fsdp': 2, 'seq': 2}, 'device'),
    ('', 'tpu', 4 * 12 * ROW - 4, {'data': 2, 'fsdp': 2, 'seq': 2}, 'host'),
  ],
)
def test_where_examples_lie(examples, placement, platform, memory, shape, expected):
  mesh = fake_mesh(platform, memory, **shape)
  assert device_data.choose(placement, examples['bidmc_hr'], mesh) == expected


def test_more_than_a_quarter_of_the_memory_is_refused(examples):
  sentence = (
    r'runtime.placement=device puts 0.00135 GiB of the 45 training examples of bidmc_hr on each device, more '
    r'than the quarter of its memory \(0.000244 GiB\) .*use runtime.placement=host, or more devices'
  )
  with pytest.raises(ValueError, match=sentence):
    device_data.choose('device', examples['bidmc_hr'], fake_mesh('gpu', 2**20))


def test_cpu_devices_share_the_memory_of_their_host():
  pages = processes.host_memory()
  assert sharding.device_memory(mesh_of((8, 1, 1))) == pytest.approx(pages / 8, rel=0.01)


def test_placement_changes_nothing_about_a_stage(make_stage, tmp_path):
  """Evaluations and checkpoints cut chunks short. Losses, metrics and parameters are the same bit for bit."""
  results, lines = {}, {}
  for placement in ('host', 'device'):
    stage = make_stage(tmp_path / placement, 'pretrain', runtime__placement=placement, pretrain__epochs=2.0)
    assert stage.placement == placement
    (results[placement],) = stage.run()
    text = (tmp_path / placement / 'metrics.jsonl').read_text()
    lines[placement] = [json.loads(line) for line in text.splitlines()]
    for line in lines[placement]:
      line.pop('seconds', None), line.pop('examples_per_second', None)
  assert lines['device'] == lines['host']
  assert len(lines['host']) > 4
  jax.tree.map(np.testing.assert_array_equal, results['device'].state, results['host'].state)


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_other_placement(undisturbed, train, trajectory, tmp_path):
  """Two devices share the set until the kill. The run continues from the host with the same losses."""
  workdir = tmp_path / 'run'
  train(workdir, '--config.runtime.placement=device', killed_at='logged:pretrain:11')
  train(workdir, '--config.runtime.placement=host')
  assert trajectory(workdir) == trajectory(undisturbed)
