"""Eight devices agree with one, gather no activation, and under FSDP gather parameters."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt import parallel
from lra_spt.training.evaluate import evaluation_step
from lra_spt.training.optimizer import OptimizerSpec
from lra_spt.training.step import train_steps

ROWS, LENGTH, STEPS = 48, 40, 3
# Width 32, heads 4, feed-forward 80, states 20, depth 2: no size of a parameter equals one that stems from
# rows or length.
SIZES = {'model.width': 32, 'model.dropout': 0.1}
TRANSFORMER = SIZES | {'model.mixer.heads': 4, 'model.feed_forward': 80}
STATE_SPACE = SIZES | {'model.mixer.state_size': 20}
STAGES = {
  'transformer': ('image.py:model=transformer,regime=masked', 'pretrain', 1, TRANSFORMER),
  'rotary': ('listops.py:model=transformer_rotary,regime=masked', 'pretrain', 2, TRANSFORMER),
  'last': ('listops.py:model=transformer_rotary,regime=causal', 'finetune', 1, TRANSFORMER),
  's4': ('listops.py:model=s4,regime=masked', 'pretrain', 1, STATE_SPACE | {'model.mixer.copies': 0}),
  's4d': ('image.py:model=s4d,regime=causal', 'finetune', 1, STATE_SPACE),
  'dlr': ('image.py:model=dlr,regime=masked', 'pretrain', 1, STATE_SPACE),
  's5': ('listops.py:model=s5,regime=masked', 'pretrain', 1, STATE_SPACE | {'model.mixer.blocks': 2}),
  'lru': ('image.py:model=lru,regime=scratch', 'finetune', 1, STATE_SPACE),
}
# A size of a parameter that FSDP gathers: of the gated output, or of S5's narrower gate; else feed-forward's.
GATHERED = {'s4': 64, 'dlr': 64, 's5': 32}
CASES = [
  ('transformer', (8, 1, 1)),
  ('transformer', (1, 8, 1)),
  ('transformer', (2, 4, 1)),
  ('rotary', (8, 1, 1)),
  ('rotary', (1, 8, 1)),
  ('rotary', (2, 4, 1)),
  ('last', (2, 4, 1)),
  ('s4', (2, 4, 1)),
  ('s4d', (8, 1, 1)),
  ('dlr', (2, 4, 1)),
  ('s5', (2, 4, 1)),
  ('lru', (8, 1, 1)),
]
MOVES = re.compile(
  r'= (\(?[^=]*?) (all-gather|all-to-all|collective-permute|all-gather-start|collective-permute-start)\('
)


@pytest.fixture(scope='module')
def stage(tiny):
  made = {}

  def get(name):
    if name not in made:
      spec, part, microbatches, sizes = STAGES[name]
      chosen = tiny(spec, part, microbatches=microbatches, **sizes)
      # Adam would divide rounding by rounding where gradients are 0 (key biases): this is gradient descent.
      descent = OptimizerSpec(lr=1e7, weight_decay=0.0, b1=0.0, b2=0.0, eps=1e8)
      made[name] = dataclasses.replace(chosen, program=dataclasses.replace(chosen.program, optimizer=descent))
    return made[name]

  return get


def run(stage, batches, shape):
  """(params, losses, compiled text) of three steps on a mesh of `shape`."""
  mesh = parallel.make_mesh(*shape, devices=jax.devices()[: int(np.prod(shape))])
  with jax.set_mesh(mesh):
    state, key = stage.state(mesh), jax.random.key(7)
    placed = parallel.to_devices(batches, mesh, ROWS, np.arange(ROWS), leading=1)
    lowered = train_steps(stage.program).lower(state, placed, jnp.int32(STEPS), key)
    # The programs run for milliseconds: LLVM's work is saved, XLA's own passes are as always.
    compiled = lowered.compile(compiler_options={'xla_backend_optimization_level': 0})
    sharded = [not x.sharding.is_fully_replicated for x in jax.tree.leaves(state['params'])]
    assert any(sharded) == (shape[1] > 1)
    state, records = compiled(state, placed, jnp.int32(STEPS), key)
    return jax.tree.map(np.asarray, state['params']), np.asarray(records['loss']), compiled.as_text()


@pytest.fixture(scope='module')
def one_device(stage, make_batches):
  """name -> (batches, params and losses of one device)."""
  made = {}

  def get(name):
    if name not in made:
      batches = make_batches(stage(name).built.task, STEPS, ROWS, LENGTH)
      made[name] = batches, *run(stage(name), batches, (1, 1, 1))[:2]
    return made[name]

  return get


def moved_shapes(text):
  """[(operation, dims)] of every array that an operation moves between devices without reducing it."""
  return [
    (operation, tuple(int(d) for d in dims.split(',') if d))
    for result, operation in MOVES.findall(text)
    for dims in re.findall(r'\w+\[([\d,]*)\]', result)
  ]


def test_moved_shapes_reads_hlo():
  text = """%all-gather.1 = f32[2,32,96]{2,1,0} all-gather(%p), channel_id=1
  ROOT %g = (f32[6,40]{1,0}, f32[48,40]{1,0}) all-gather-start(%x), dimensions={0}
  %add = f32[48] add(%all-gather.1, %y)"""
  assert moved_shapes(text) == [
    ('all-gather', (2, 32, 96)),
    ('all-gather-start', (6, 40)),
    ('all-gather-start', (48, 40)),
  ]


def no_activation_moves(text, params, microbatches):
  """Asserts that what a program moves between devices has no row or length dimension; returns it."""
  moved = moved_shapes(text)
  microbatch = ROWS // microbatches
  rows = {ROWS, microbatch, ROWS // 8, microbatch // 8, ROWS // 4, microbatch // 4, ROWS // 2} - {1, 2, 3, 4}
  heads = {4 * n for n in rows}
  activations = {LENGTH, 48} | rows | heads | {n * LENGTH for n in rows} | {n * 48 for n in rows}
  sizes = {d for leaf in jax.tree.leaves(params) for d in leaf.shape}
  assert not activations & sizes, 'choose sizes that tell activations from parameters'
  gathered = [item for item in moved if activations & set(item[1])]
  assert not gathered, f'activations move between devices: {gathered}'
  return moved


@pytest.mark.parametrize('name, shape', CASES)
def test_eight_devices_agree_with_one_and_gather_no_activation(stage, one_device, name, shape):
  batches, params, losses = one_device(name)
  sharded_params, sharded_losses, text = run(stage(name), batches, shape)
  np.testing.assert_allclose(sharded_losses, losses, rtol=2e-5)
  for (path, a), b in zip(
    jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(sharded_params), strict=True
  ):
    np.testing.assert_allclose(b, a, rtol=1e-4, atol=2e-6, err_msg=str(path))

  moved = no_activation_moves(text, params, STAGES[name][2])
  if shape[1] > 1:
    gathered = GATHERED.get(name, 80)
    assert any(operation.startswith('all-gather') and gathered in dims for operation, dims in moved), (
      'no parameter was gathered'
    )



def test_evaluation_gathers_no_activation(stage, make_batches):
  chosen = stage('transformer')
  mesh = parallel.make_mesh(2, 4, 1)
  batch = {name: x[0] for name, x in make_batches(chosen.built.task, 1, ROWS, LENGTH).items()}
  with jax.set_mesh(mesh):
    state = chosen.state(mesh)
    placed = parallel.to_devices(batch, mesh, ROWS, np.arange(ROWS))
    step = evaluation_step(chosen.built.model, chosen.built.objective)
    empty = chosen.built.objective.metrics.empty()
    lowered = step.lower(state['params'], state['stats'], placed, jax.random.key(0), empty)
    text = lowered.compile(compiler_options={'xla_backend_optimization_level': 0}).as_text()
  assert no_activation_moves(text, state['params'], 1)
