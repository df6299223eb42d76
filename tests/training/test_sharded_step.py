"""Eight devices agree with one. Activations move only where mixers exchange them because positions are split,
and FSDP gathers parameters."""

import collections
import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_spt.distributed import sharding
from lra_spt.training.evaluate import evaluation_step
from lra_spt.training.optimizer import OptimizerSpec
from lra_spt.training.step import train_steps

ROWS, LENGTH, STEPS = 48, 40, 3
# Width 32, heads 4, feed-forward 80, states 28, depth 2: no size of a parameter equals a size that is made of
# rows or length, so sizes tell activations from parameters.
SIZES = {'model.width': 32, 'model.dropout': 0.1}
TRANSFORMER = SIZES | {'model.mixer.heads': 4, 'model.feed_forward': 80}
NEIGHBOURS = TRANSFORMER | {'model.mixer.block': 5, 'runtime.remat': ''}
STATE_SPACE = SIZES | {'model.mixer.state_size': 28}
HYBRID = SIZES | {'model.feed_forward': 80, 'model.mixers.0.state_size': 28, 'model.mixers.1.heads': 4}
STAGES = {
  'transformer': ('image.py:model=transformer,regime=masked', 'pretrain', 1, TRANSFORMER),
  'rotary': ('listops.py:model=transformer_rotary,regime=masked', 'pretrain', 2, TRANSFORMER),
  'neighbours': ('pathx.py:model=transformer,regime=masked', 'pretrain', 1, NEIGHBOURS),
  'causal': ('listops.py:model=transformer_rotary,regime=causal', 'pretrain', 1, TRANSFORMER),
  'last': ('listops.py:model=transformer_rotary,regime=causal', 'finetune', 1, TRANSFORMER),
  's4': ('listops.py:model=s4,regime=masked', 'pretrain', 1, STATE_SPACE | {'model.mixer.copies': 0}),
  's4d': ('image.py:model=s4d,regime=causal', 'finetune', 1, STATE_SPACE),
  'dlr': ('image.py:model=dlr,regime=masked', 'pretrain', 1, STATE_SPACE),
  's5': ('listops.py:model=s5,regime=masked', 'pretrain', 1, STATE_SPACE | {'model.mixer.blocks': 2}),
  'lru': ('image.py:model=lru,regime=scratch', 'finetune', 1, STATE_SPACE),
  'longconv': ('listops.py:model=longconv,regime=masked', 'pretrain', 1, SIZES),
  'mixture': ('listops.py:model=transformer_rotary,regime=mixture', 'pretrain', 2, TRANSFORMER),
  'hybrid': ('listops.py:model=lru-attention,regime=masked', 'pretrain', 2, HYBRID),
}
# A size that shows that FSDP gathers a parameter: that of the output gate, else of the feed-forward block.
GATHERED = {'s4': 64, 'dlr': 64, 'longconv': 64, 's5': 32}
CASES = [
  ('rotary', (1, 8, 1)),
  ('s4', (2, 4, 1)),
  ('hybrid', (2, 4, 1)),
  *(
    pytest.param(*case, marks=pytest.mark.slow)
    for case in (
      ('mixture', (2, 4, 1)),
      ('transformer', (2, 4, 1)),
      ('transformer', (8, 1, 1)),
      ('transformer', (1, 8, 1)),
      ('last', (2, 4, 1)),
      ('s4d', (8, 1, 1)),
      ('s5', (2, 4, 1)),
      ('rotary', (8, 1, 1)),
      ('rotary', (2, 4, 1)),
      ('dlr', (2, 4, 1)),
      ('lru', (8, 1, 1)),
      ('longconv', (2, 4, 1)),
    )
  ),
]
# {(operation, shape of its first array): count} of what the mixers of a step move if positions are split over
# 'seq'. Layers are one loop, so forward and backward pass appear once.
EXCHANGES = [
  ('neighbours', (2, 1, 4), {('collective-permute', (24, 5, 4, 16)): 4}),
  ('s4', (2, 1, 4), {('all-to-all', (24, 10, 8)): 4}),
  *(
    pytest.param(*case, marks=pytest.mark.slow)
    for case in (
      ('s5', (1, 2, 4), {('all-gather', (24, 4, 2, 14)): 4}),
      ('transformer', (1, 1, 8), {('all-gather', (48, 40, 4, 16)): 1}),  # 8 shards cannot share 4 heads
      ('rotary', (1, 2, 4), {('all-to-all', (12, 10, 1, 24)): 2, ('all-to-all', (12, 10, 1, 8)): 2}),
      ('causal', (2, 1, 4), {('all-to-all', (24, 10, 1, 24)): 2, ('all-to-all', (24, 10, 1, 8)): 2}),
      ('last', (2, 2, 2), {('all-to-all', (12, 20, 2, 24)): 2, ('all-to-all', (12, 20, 2, 8)): 2}),
      ('dlr', (1, 2, 4), {('all-to-all', (24, 10, 8)): 4}),
      ('s4d', (1, 1, 8), {('all-to-all', (48, 5, 4)): 4}),
      ('longconv', (2, 1, 4), {('all-to-all', (24, 10, 16)): 4}),
      ('lru', (1, 1, 8), {('all-gather', (48, 8, 2, 28)): 4}),
    )
  ),
]
MOVES = re.compile(
  r'= (\(.*?\)|\S+) (all-gather|all-to-all|collective-permute|all-gather-start|collective-permute-start)\('
)


@pytest.fixture(scope='module')
def stage(tiny):
  made = {}

  def get(name):
    if name not in made:
      spec, part, microbatches, sizes = STAGES[name]
      chosen = tiny(spec, part, microbatches=microbatches, **sizes)
      # These options make Adam gradient descent. Where gradients are 0 (key biases), Adam would divide one
      # rounding error by another.
      descent = OptimizerSpec(lr=1e7, weight_decay=0.0, b1=0.0, b2=0.0, eps=1e8)
      made[name] = dataclasses.replace(chosen, program=dataclasses.replace(chosen.program, optimizer=descent))
    return made[name]

  return get


def run(stage, batches, shape):
  """(params, losses, compiled text) of three steps on a mesh of `shape`."""
  mesh = sharding.make_mesh(*shape, devices=jax.devices()[: int(np.prod(shape))])
  with jax.set_mesh(mesh):
    state, key = stage.state(mesh), jax.random.key(7)
    placed = sharding.to_devices(batches, mesh, ROWS, np.arange(ROWS), leading=1)
    compiled = train_steps(stage.program).lower(state, placed, jnp.int32(STEPS), key).compile()
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


def assert_equal(sharded_params, sharded_losses, params, losses):
  np.testing.assert_allclose(sharded_losses, losses, rtol=2e-5)
  for (path, a), b in zip(
    jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(sharded_params), strict=True
  ):
    np.testing.assert_allclose(b, a, rtol=1e-4, atol=2e-6, err_msg=str(path))


def moved_shapes(text):
  """Returns [(operation, shapes of its arrays)] of the operations that move arrays without a reduction."""

  def shapes(result):
    return [tuple(int(d) for d in dims.split(',') if d) for dims in re.findall(r'\w+\[([\d,]*)\]', result)]

  return [(operation, shapes(result)) for result, operation in MOVES.findall(text)]


def test_moved_shapes_reads_hlo():
  text = """%all-gather.1 = f32[2,32,96]{2,1,0} all-gather(%p), channel_id=1
  ROOT %g = (f32[6,40]{1,0}, f32[48,40]{1,0}) all-gather-start(%x), dimensions={0}
  %a = (f32[8]{0}, /*index=1*/f32[8]{0}) all-to-all(%x, %y)
  %add = f32[48] add(%all-gather.1, %y)"""
  assert moved_shapes(text) == [
    ('all-gather', [(2, 32, 96)]),
    ('all-gather-start', [(6, 40), (48, 40)]),
    ('all-to-all', [(8,), (8,)]),
  ]


def moved_activations(text, params, microbatches, shards=1):
  """Returns the arrays that move between devices: (those with a dimension of rows or length, others)."""
  microbatch = ROWS // microbatches
  rows = {ROWS, microbatch, ROWS // 8, microbatch // 8, ROWS // 4, microbatch // 4, ROWS // 2} - {1, 2, 3, 4}
  heads = {4 * n for n in rows}
  lengths = {LENGTH, 48, LENGTH // shards}  # 48: length in whole tiles
  activations = lengths | rows | heads | {n * length for n in rows for length in lengths}
  sizes = {d for leaf in jax.tree.leaves(params) for d in leaf.shape}
  assert not activations & sizes, 'choose sizes that tell activations from parameters'
  actual = [], []
  for operation, shapes in moved_shapes(text):
    actual[0 if activations & {d for dims in shapes for d in dims} else 1].append((operation, shapes))
  return actual


@pytest.mark.parametrize('name, shape', CASES)
def test_eight_devices_agree_with_one_and_gather_no_activation(stage, one_device, name, shape):
  batches, params, losses = one_device(name)
  sharded_params, sharded_losses, text = run(stage(name), batches, shape)
  assert_equal(sharded_params, sharded_losses, params, losses)
  assert_gathers(text, params, name, shape, {})


def assert_gathers(text, params, name, shape, exchanges):
  """Asserts that activations move only in `exchanges`, and that FSDP gathers parameters."""
  moved, others = moved_activations(text, params, STAGES[name][2], shape[2])
  assert collections.Counter((operation, shapes[0]) for operation, shapes in moved) == exchanges
  if shape[1] > 1:
    size = GATHERED.get(name, 80)
    assert any(operation.startswith('all-gather') and size in shapes[0] for operation, shapes in others), (
      'no parameter was gathered'
    )


@pytest.mark.parametrize('name, shape, exchanges', EXCHANGES)
def test_split_positions_agree_with_one_device_and_move_for_mixers_only(
  stage, one_device, name, shape, exchanges
):
  batches, params, losses = one_device(name)
  sharded_params, sharded_losses, text = run(stage(name), batches, shape)
  assert_equal(sharded_params, sharded_losses, params, losses)
  assert_gathers(text, params, name, shape, exchanges)
  rows = ROWS // STAGES[name][2] // (shape[0] * shape[1])
  assert f'[{rows},{LENGTH // shape[2]},32]' in text
  assert f'[{rows},{LENGTH},32]' not in text, 'a device holds all channels of whole sequences'


def evaluate(chosen, make_batches, shape):
  """(parameters, metrics, compiled text) of the evaluation of one batch on a mesh of `shape`."""
  mesh = sharding.make_mesh(*shape, devices=jax.devices()[: int(np.prod(shape))])
  batch = {name: x[0] for name, x in make_batches(chosen.built.task, 1, ROWS, LENGTH).items()}
  with jax.set_mesh(mesh):
    state = chosen.state(mesh)
    placed = sharding.to_devices(batch, mesh, ROWS, np.arange(ROWS))
    step = evaluation_step(chosen.built.model, chosen.built.objective)
    empty = chosen.built.objective.metrics.empty()
    arguments = state['params'], state['stats'], placed, jax.random.key(0), empty
    compiled = step.lower(*arguments).compile()
    metrics = jax.tree.map(np.asarray, compiled(*arguments)[0].compute())
    return state['params'], metrics, compiled.as_text()


@pytest.mark.parametrize('name, shape', [('transformer', (2, 4, 1)), ('neighbours', (2, 1, 4))])
def test_evaluation_agrees_with_one_device_and_moves_for_mixers_only(stage, make_batches, name, shape):
  params, metrics, text = evaluate(stage(name), make_batches, shape)
  exchanges = {('collective-permute', (24, 5, 4, 16)): 2} if shape[2] > 1 else {}
  assert_gathers(text, params, name, shape, exchanges)
  expected = evaluate(stage(name), make_batches, (1, 1, 1))[1]
  assert metrics.keys() == expected.keys()
  for key, value in expected.items():
    np.testing.assert_allclose(metrics[key], value, rtol=2e-5, err_msg=key)
