"""Stages for the tests of training: those of the tiny config, and those that train on generated batches."""

import dataclasses
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache as cache

from lra_spt.config import loading
from lra_spt.data import examples as examples_lib
from lra_spt.data.tasks import Tokens
from lra_spt.distributed import sharding
from lra_spt.runs.build import build, resolve
from lra_spt.runs.stage import Built
from lra_spt.training import state as states
from lra_spt.training.checkpoints.store import Checkpoints
from lra_spt.training.loop import StageLoop
from lra_spt.training.member import Member
from lra_spt.training.step import StepProgram, train_steps
from tests.training.checkpoint_states import make_state

KINDS = {'DIR': str, 'SECS': float, 'BYTES': int}  # types of settings, by the last word of the name


@pytest.fixture(scope='module')
def _compiled_once(compilation_cache):
  """Lets the stages of a module share compiled programs."""
  names = [name.lower() for name in compilation_cache]
  before = {name: getattr(jax.config, name) for name in names}
  for name, value in compilation_cache.items():
    jax.config.update(name.lower(), KINDS[name.rpartition('_')[2]](value))
  cache.reset_cache()
  yield
  for name, value in before.items():
    jax.config.update(name, value)
  cache.reset_cache()


@pytest.fixture
def make_stage(_compiled_once, tiny_data, repository):
  """Makes a StageLoop in a folder from the tiny config with overrides; runs on one device."""
  mesh = sharding.make_mesh(devices=jax.devices()[:1])

  def make(directory, name='finetune', objective=None, regime='masked', **overrides):
    overrides = {key.replace('__', '.'): value for key, value in overrides.items()}
    config = loading.load(f'{repository}/tests/tiny_config.py:regime={regime}', overrides)
    built = build(resolve(config), name)
    # The name of the stage chooses the random streams, so another objective does not change them.
    built = dataclasses.replace(built, objective=objective or built.objective)
    return StageLoop([Member(built, directory)], examples_lib.open_splits(built.task, tiny_data), mesh)

  with jax.set_mesh(mesh):
    yield make


SIZES = {
  'model.width': 16,
  'model.depth': 2,
  'pretrain.optimizer.lr': 3e-3,
  'pretrain.optimizer.weight_decay': 0.1,
  'pretrain.schedule.warmup_steps': 0,
  'finetune.optimizer.lr': 3e-3,
  'finetune.optimizer.weight_decay': 0.1,
  'finetune.schedule.warmup_steps': 0,
}
TRANSFORMER = {'model.mixer.heads': 2, 'model.feed_forward': 24}


def tiny_batches(task, steps, rows, length, seed=0):
  """Batches [steps, rows, ...] of random tokens (with padding) or bytes."""
  rng = np.random.default_rng(seed)
  shape = (steps, rows, length) if task.channels <= 1 else (steps, rows, length, task.channels)
  tokens = isinstance(task.inputs, Tokens)
  lengths = rng.integers(length // 2, length + 1, (steps, rows)) if tokens else np.full((steps, rows), length)
  return {
    'inputs': rng.integers(2, task.vocabulary or 256, shape).astype(np.uint8),
    'lengths': lengths.astype(np.int32),
    'label': rng.integers(0, task.classes, (steps, rows)).astype(np.int32),
    'weight': np.ones((steps, rows), np.float32),
    'index': np.arange(steps * rows, dtype=np.int32).reshape(steps, rows),
  }


@dataclasses.dataclass
class Tiny:
  """A stage with its program; first states and jitted programs are made once."""

  built: Built
  program: StepProgram
  _made: dict = dataclasses.field(default_factory=dict)

  def state(self, mesh, seed=0):
    key = mesh, seed, self.program.optimizer
    if key not in self._made:
      state = states.create(self.built.model, self.program.optimizer, 'max', jax.random.key(seed), mesh)
      self._made[key] = jax.tree.map(np.array, state), jax.tree.map(lambda x: x.sharding, state)
    values, shardings = self._made[key]
    return jax.device_put(jax.tree.map(np.array, values), shardings)  # a copy, which training may donate

  def train(self, batches, *, chunk=None, steps=None, program=None):
    """Trains the first `steps` batches on one device, `chunk` of them a dispatch; returns (state, losses)."""
    program = program or self.program
    length, rows = batches['weight'].shape
    steps, chunk = steps or length, chunk or length
    dispatch = self._made.setdefault(program, train_steps(program))
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
      state, losses = self.state(mesh), []
      for start in range(0, steps, chunk):
        # As in the loop, every chunk has the same length, so that one compiled program serves all.
        part = {name: np.roll(x, -start, axis=0) for name, x in batches.items()}
        placed = sharding.to_devices(part, mesh, rows, np.arange(rows), leading=1)
        count = min(chunk, steps - start)
        state, records = dispatch(state, placed, jnp.int32(count), jax.random.key(7))
        losses.append(np.asarray(records['loss'])[:count])
        assert not np.asarray(records['loss'])[count:].any()
      return jax.tree.map(np.asarray, state), np.concatenate(losses)


@pytest.fixture(scope='session')
def tiny():
  """tiny(spec, stage, microbatches=1, **overrides) -> Tiny; an example of spec: 'image.py:regime=masked'."""

  def make(spec, stage, *, microbatches=1, **overrides):
    transformer = 'model=' not in spec or 'model=transformer' in spec
    config = loading.load(f'configs/{spec}', SIZES | (TRANSFORMER if transformer else {}) | overrides)
    built = build(resolve(config), stage)
    stage = built.spec
    program = StepProgram(built.model, built.objective, stage.optimizer, stage.schedule, 10, microbatches)
    return Tiny(built, program)

  return make


@pytest.fixture(scope='session')
def make_batches():
  """make_batches(task, steps, rows, length, seed=0)."""
  return tiny_batches


@pytest.fixture
def open_checkpoints():
  opened = []

  def make(directory):
    opened.append(Checkpoints(directory))
    return opened[-1]

  yield make
  for checkpoints in opened:
    checkpoints.close()


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """(a folder with a saved state, the state); tests that change the folder copy it first."""
  folder, state = tmp_path_factory.mktemp('saved'), make_state(5, sharding.make_mesh())
  checkpoints = Checkpoints(folder)
  checkpoints.save_latest(state)
  checkpoints.close()
  return folder, state


@pytest.fixture
def collected():
  """Collects the coroutines of a failed restore in the same test, so that no later test reports them."""
  yield
  gc.collect()
