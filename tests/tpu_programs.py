"""Programs that test_tpu_aot.py compiles for a TPU slice on a machine without one.

`python tpu_programs.py NAME TOPOLOGY` compiles one and prints a line of JSON about it. All arrays are
abstract, and nothing runs.
"""

import json
import math
import re
import sys

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from lra_spt.config.protocol import get_protocol
from lra_spt.data.tasks import Tokens, get_task
from lra_spt.distributed import sharding
from lra_spt.models import ExecutionSpec, InputSpec, Model, ModelSpec
from lra_spt.objectives import Classification, MaskedDenoising
from lra_spt.ops.attention import BlockTable, Causal, Full, Neighbours, attention
from lra_spt.training import device_data
from lra_spt.training import state as state_lib
from lra_spt.training.optimizer import OptimizerSpec, ScheduleSpec
from lra_spt.training.step import StepProgram, train_steps

BATCH, STEPS = 8, 2


def attention_gradient(mesh, pattern, length=4096, heads=8, width=16):
  """Value and gradient of attention, rows over all chips, padded keys masked."""

  def loss(q_BLHK, k_BLHK, v_BLHK, lengths_B):
    def attend(q_BLHK, k_BLHK, v_BLHK, lengths_B):
      return attention(q_BLHK, k_BLHK, v_BLHK, pattern=pattern, kv_lengths_B=lengths_B)

    return jnp.sum(sharding.rows_island(attend)(q_BLHK, k_BLHK, v_BLHK, lengths_B).astype(jnp.float32))

  rows = sharding.rows_sharding(mesh)
  q_BLHK = jax.ShapeDtypeStruct((BATCH, length, heads, width), jnp.bfloat16, sharding=rows)
  lengths_B = jax.ShapeDtypeStruct((BATCH,), jnp.int32, sharding=rows)
  return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))), (q_BLHK, q_BLHK, q_BLHK, lengths_B)


def big_bird(block, blocks):
  """A table as of BigBird: both ends, the blocks around, and one far away."""
  rows = ({0, i - 1, i, i + 1, 7 * i % blocks, blocks - 1} for i in range(blocks))
  return BlockTable(block, tuple(tuple(sorted(j for j in row if 0 <= j < blocks)) for row in rows))


ROTARY = ModelSpec(
  'transformer_rotary',
  width=256,
  depth=2,
  mixer={'name': 'attention', 'heads': 4, 'rotary': True},
  feed_forward=512,
)
S4 = ModelSpec('s4', width=256, depth=2, mixer={'name': 's4'}, norm='batch')
S5 = ModelSpec('s5', width=256, depth=2, mixer={'name': 's5'}, norm='batch')


def train_step(mesh, objective, causal=False, spec=ROTARY):
  """Two optimizer steps of a model at full length, layers scanned, parameters sharded."""
  task, protocol = objective.task, get_protocol('clean')
  inputs = InputSpec(task.length, vocabulary=task.vocabulary, channels=objective.channels)
  execution = ExecutionSpec(scan_layers='always', precision='bfloat16')

  def make_model(rngs):
    common = {'causal': causal, 'protocol': protocol, 'execution': execution}
    return Model(spec, inputs, objective.head, **common, rngs=rngs)

  model = state_lib.blueprint(make_model, task.length, decay_everything=False)
  optimizer = OptimizerSpec(lr=1e-3, weight_decay=0.01)
  program = StepProgram(model, objective, optimizer, ScheduleSpec(warmup_steps=10), steps_per_epoch=100)

  replicated, rows = sharding.replicated(mesh), sharding.rows_sharding(mesh, leading=1)

  def batches(shape, dtype):
    return jax.ShapeDtypeStruct((STEPS, BATCH, *shape), dtype, sharding=rows)

  scalar = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
  key = jax.eval_shape(lambda: jax.random.key(0))
  batch = {
    'inputs': batches((task.length,), jnp.int32 if isinstance(task.inputs, Tokens) else jnp.uint8),
    'lengths': batches((), jnp.int32),
    'label': batches((), jnp.int32),
    'weight': batches((), jnp.float32),
    'index': batches((), jnp.int32),
  }
  key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=replicated)
  return train_steps(program), (state_lib.abstract(model, optimizer, 'max', mesh), batch, scalar, key)


def resident_batch(mesh, task, examples):
  """A batch gathered from a training set that is stored on the chips."""
  rows = sharding.rows_sharding(mesh)
  stored = {
    name: jax.ShapeDtypeStruct(part.shape, part.dtype, sharding=rows)
    for name, part in device_data.shapes(task, examples).items()
  }
  positions_B = jax.ShapeDtypeStruct((BATCH,), jnp.int32, sharding=sharding.replicated(mesh))
  return jax.jit(device_data.DeviceData.gather), (device_data.DeviceData(stored, task.row), positions_B)


PROGRAMS = {
  'attention_full': lambda mesh: attention_gradient(mesh, Full()),
  'attention_causal': lambda mesh: attention_gradient(mesh, Causal()),
  'attention_blocks': lambda mesh: attention_gradient(mesh, Neighbours(4096), 16384, heads=4, width=32),
  'attention_blocks_causal': lambda mesh: attention_gradient(
    mesh, Neighbours(4096, forward=0, causal=True), 16384, heads=8, width=16
  ),
  'attention_blocks_odd': lambda mesh: attention_gradient(mesh, Neighbours(4000), 16000, heads=4, width=32),
  'attention_table': lambda mesh: attention_gradient(mesh, big_bird(64, 64)),
  'attention_blocks_long': lambda mesh: attention_gradient(mesh, Neighbours(8192), 65536, heads=4, width=32),
  'pretrain_image': lambda mesh: train_step(mesh, MaskedDenoising(get_task('image'), mask_rate=0.5)),
  'finetune_listops': lambda mesh: train_step(mesh, Classification(get_task('listops')), causal=True),
  'finetune_image_s4': lambda mesh: train_step(mesh, Classification(get_task('image')), spec=S4),
  'resident_bytes': lambda mesh: resident_batch(mesh, get_task('image'), 45_000),
  'resident_pairs': lambda mesh: resident_batch(mesh, get_task('retrieval'), 147_088),
  'resident_sound': lambda mesh: resident_batch(mesh, get_task('speech_commands'), 24_484),
  'resident_signals': lambda mesh: resident_batch(mesh, get_task('bidmc_hr'), 80_000),
  'finetune_image_s5': lambda mesh: train_step(mesh, Classification(get_task('image')), spec=S5),
}


def main(name, topology):
  # A chip of TPU v4 has two cores, which this option makes one device.
  chips = {'chip_config_name': 'megacore'} if topology.startswith('v4') else {}
  devices = topologies.get_topology_desc(platform='tpu', topology_name=topology, **chips).devices
  mesh = sharding.make_mesh(data=2, fsdp=2, devices=devices)
  function, arguments = PROGRAMS[name](mesh)
  with jax.set_mesh(mesh):  # from here on nothing may run: there are no such devices
    compiled, platform = function.lower(*arguments).compile(), sharding.platform()
  memory, text = compiled.memory_analysis(), compiled.as_text()
  print(
    json.dumps(
      {
        'device_kind': devices[0].device_kind,
        'platform': platform,
        'devices': len(devices),
        'temporary_bytes': memory.temp_size_in_bytes,
        'argument_bytes': memory.argument_size_in_bytes,
        'flops': compiled.cost_analysis()['flops'],
        'gathers': _gathers(text),
        'parameters': _parameters(arguments),
        'kernels': sorted(set(re.findall(r'splash_mha_\w+', text))),
      }
    )
  )


def _gathers(text):
  """Dimensions of the largest result of every all-gather in a compiled program."""
  lines = (line for line in text.split('\n') if re.search(r' all-gather(-start)?\(', line))
  results = (line.split('=', 1)[1].split('all-gather')[0] for line in lines)
  shapes_of_gathers = (
    [[int(n) for n in dims.split(',')] for dims in re.findall(r'\[([\d,]+)\]', r)] for r in results
  )
  return [max(shapes, key=math.prod) for shapes in shapes_of_gathers]


def _parameters(arguments):
  """Dimensions of the parameters of a train step, with stacked blocks."""
  state = arguments[0]
  return [leaf.shape for leaf in jax.tree.leaves(state['params'])] if isinstance(state, dict) else []


if __name__ == '__main__':
  main(*sys.argv[1:])
