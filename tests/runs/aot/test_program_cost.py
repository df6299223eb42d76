"""The reader of HLO text: exact numbers of a hand-written program and of programs that XLA compiled here."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from lra_spt.runs.aot.program_cost import Collective, read_program

# Two loops within each other, of 3 and 4 rounds. TPU's text has no known_trip_count; its arrays lie in tiles,
# those with S(1) in vector memory; an asynchronous gather stands in two fusions.
TPU = """HloModule jit_run, is_scheduled=true, num_partitions=8

%start (p0: f32[2,64]) -> f32[8,64] {
  %p0 = f32[2,64]{1,0:T(2,128)S(1)} parameter(0)
  ROOT %all-gather.1 = f32[8,64]{1,0:T(8,128)S(1)} all-gather(%p0), channel_id=7, replica_groups=[2,4]<=[8]
}

%done (p1: f32[2,64]) -> f32[8,64] {
  %p1 = f32[2,64]{1,0:T(2,128)S(1)} parameter(0)
  ROOT %all-gather.2 = f32[8,64]{1,0:T(8,128)S(1)} all-gather(%p1), channel_id=7, replica_groups=[2,4]<=[8]
}

%take (p2: f32[4,8,128], p3: s32[]) -> f32[1,8,128] {
  %p2 = f32[4,8,128]{2,1,0:T(8,128)} parameter(0)
  %p3 = s32[]{:T(128)S(6)} parameter(1)
  ROOT %slice = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%p2, %p3, %p3, %p3), dynamic_slice_sizes={1,8,128}
}

%inner_body (a: CARRY) -> CARRY {
  %a = CARRY parameter(0)
  %i = s32[]{:T(128)S(6)} get-tuple-element(%a), index=0
  %x = f32[2,64]{1,0:T(2,128)S(1)} get-tuple-element(%a), index=1
  %stack = f32[4,8,128]{2,1,0:T(8,128)} get-tuple-element(%a), index=2
  %f1 = f32[8,64]{1,0:T(8,128)S(1)} fusion(%x), kind=kCustom, calls=%start
  %f2 = f32[8,64]{1,0:T(8,128)S(1)} fusion(%x), kind=kCustom, calls=%done
  %f3 = f32[1,8,128]{2,1,0:T(8,128)S(1)} fusion(%stack, %i), kind=kLoop, calls=%take
  ROOT %t = CARRY tuple(%i, %x, %stack)
}

%inner_condition (b: CARRY) -> pred[] {
  %b = CARRY parameter(0)
  %limit = s32[]{:T(128)} constant(6)
  %j = s32[]{:T(128)S(6)} get-tuple-element(%b), index=0
  ROOT %lt = pred[]{:T(512)S(6)} compare(%j, %limit), direction=LT
}

%sum (s0: f32[], s1: f32[]) -> f32[] {
  %s0 = f32[]{:T(128)} parameter(0)
  %s1 = f32[]{:T(128)} parameter(1)
  ROOT %add = f32[]{:T(128)} add(%s0, %s1)
}

%outer_body (c: CARRY) -> CARRY {
  %c = CARRY parameter(0)
  %two = s32[]{:T(128)S(6)} constant(2)
  %y = f32[2,64]{1,0:T(2,128)S(1)} get-tuple-element(%c), index=1
  %stack.2 = f32[4,8,128]{2,1,0:T(8,128)} get-tuple-element(%c), index=2
  %t.2 = CARRY tuple(%two, %y, %stack.2)
  %inner = CARRY while(%t.2), condition=%inner_condition, body=%inner_body
  %k = f32[2,64]{1,0:T(2,128)S(1)} custom-call(%y), frontend_attributes={a={
"b":"c"
}}, metadata={op_name="a kernel whose attributes have lines of their own"}
  %r = REDUCED all-reduce(%small, %wide), channel_id=9, replica_groups=mesh['a'=2,'b'=4] {'a','b'}
  %small = bf16[5]{0:T(256)(128)(2,1)} constant({...})
  %wide = f32[3,5]{1,0:T(4,128)} constant({...})
  ROOT %t.3 = CARRY tuple(%two, %y, %stack.2)
}

ENTRY %main (p: f32[2,64], q: f32[4,8,128], n: s32[]) -> f32[2,64] {
  %p = f32[2,64]{1,0:T(2,128)S(1)} parameter(0)
  %q = f32[4,8,128]{2,1,0:T(8,128)} parameter(1)
  %n = s32[]{:T(128)S(6)} parameter(2)
  %start.3 = s32[]{:T(128)S(6)} constant(0)
  %t.4 = CARRY tuple(%start.3, %p, %q)
  %outer = CARRY while(%t.4), condition=%none, body=%outer_body, KNOWN
  ROOT %out = f32[2,64]{1,0:T(2,128)S(1)} get-tuple-element(%outer), index=1
}
"""
TPU = TPU.replace('CARRY', '(s32[]{:T(128)S(6)}, f32[2,64]{1,0:T(2,128)S(1)}, f32[4,8,128]{2,1,0:T(8,128)})')
TPU = TPU.replace('REDUCED', '(bf16[5]{0:T(256)(128)(2,1)}, f32[3,5]{1,0:T(4,128)})')
TPU = TPU.replace('KNOWN', 'backend_config={"known_trip_count":{"n":"3"}}')


def test_loops_collectives_and_memory_of_a_tpu_program():
  cost = read_program(TPU)
  gathers, reduced = 3 * (6 - 2), 2 * 5 + 4 * 15
  # The gather moves 3 of 4 shares of 8 x 64 floats, the reduction twice 7 of 8 shares.
  assert cost.collectives == {
    'all-gather': Collective(gathers, gathers * 8 * 64 * 4, gathers * 6 * 64 * 4),
    'all-reduce': Collective(3, 3 * reduced, round(3 * 2 * reduced * 7 / 8)),
  }
  # Per inner round one slice of the stack, not the stack; per outer round the reduced arrays in and out, in
  # tiles of 256 and of 4 x 128.
  assert cost.memory_bytes == gathers * 8 * 128 * 4 + 3 * 2 * (256 * 2 + 4 * 128 * 4)
  assert cost.unknown_loops == 0
  assert [(part.operation, part.result, part.bytes) for part in cost.largest] == [
    ('fusion', 'f32[1,8,128]', gathers * 8 * 128 * 4),
    ('all-reduce', '(bf16[5], f32[3,5])', 3 * 2 * (256 * 2 + 4 * 128 * 4)),
  ]


def test_a_loop_of_unknown_length_counts_once():
  cost = read_program(TPU.replace('constant(6)', 'parameter(1)'))
  assert cost.unknown_loops == 1
  assert cost.collectives['all-gather'].count == 3


@pytest.mark.parametrize(
  'groups, devices',
  [
    ('{{0,1},{2,3},{4,5},{6,7}}', 2),
    ('[2,4]<=[4,2]T(1,0)', 4),
    ('{}', 8),
    ("mesh['a'=2,'b'=2,'c'=2], device_ids=([2,2,2]T(1,0,2)) {'b','c'}", 4),
    ("mesh['a'=8] {'a':(2)4}", 4),
  ],
)
def test_groups_of_devices(groups, devices):
  cost = read_program(TPU.replace('[2,4]<=[8]', groups))
  assert cost.collectives['all-gather'].bytes == 12 * devices * 2 * 64 * 4


def test_one_device_has_nothing_to_exchange():
  text = TPU.replace('[2,4]<=[8]', '{{0},{1}}').replace("mesh['a'=2,'b'=4]", "mesh['a'=1,'b'=1]")
  assert read_program(text).collectives == {}


BETWEEN = """HloModule jit_run, num_partitions=4

ENTRY %main (p: f32[256,8,128]) -> f32[256,8,128] {
  %p = f32[256,8,128]{2,1,0:T(8,128)} parameter(0)
  %after-all = token[] after-all()
  %send = (f32[256,8,128]{2,1,0:T(8,128)}, u32[], token[]) send(%p, %after-all), channel_id=2, MEGASCALE
  %recv = (f32[256,8,128]{2,1,0:T(8,128)}, u32[], token[]) recv(%after-all), channel_id=1, MEGASCALE
  %send-done = token[] send-done(%send), channel_id=2, MEGASCALE
  %recv-done = (f32[256,8,128]{2,1,0:T(8,128)}, token[]) recv-done(%recv), channel_id=1, MEGASCALE
  ROOT %get-tuple-element.2 = f32[256,8,128]{2,1,0:T(8,128)} get-tuple-element(%recv-done), index=0
}
"""


def test_what_goes_between_slices_is_apart():
  marks = (
    'frontend_attributes={_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}'
  )
  cost = read_program(BETWEEN.replace('MEGASCALE', marks))
  assert cost.between_slices == {'all-reduce': Collective(1, 2**20, 2**20)}
  assert cost.collectives == {}
  assert read_program(BETWEEN.replace('MEGASCALE', '')).between_slices == {}


def test_no_program():
  with pytest.raises(ValueError, match='no entry computation'):
    read_program('nothing')


def test_what_xla_compiles_here():
  """A scan of 5 rounds, each with a gather and a sum over 8 devices, within a loop of unknown length."""
  mesh = jax.make_mesh((8,), ('d',), axis_types=(jax.sharding.AxisType.Auto,))

  @jax.jit
  def program(x, count):
    def island(x):
      def step(carry, _):
        whole = jax.lax.all_gather(carry * 2, 'd', tiled=True)
        return carry + jax.lax.psum(jnp.cos(whole.sum()), 'd'), None

      return jax.lax.fori_loop(0, count, lambda i, x: jax.lax.scan(step, x, None, length=5)[0], x)

    return jax.shard_map(lambda x: island(x), in_specs=P('d'), out_specs=P('d'), mesh=mesh, check_vma=False)(
      x
    )

  arguments = jax.ShapeDtypeStruct((16, 32), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
  cost = read_program(program.lower(*arguments).compile().as_text())
  whole = 16 * 32 * 4
  assert cost.collectives['all-gather'] == Collective(5, 5 * whole, 5 * whole * 7 // 8)
  assert cost.collectives['all-reduce'] == Collective(5, 5 * 4, 5 * 7)
  assert cost.unknown_loops == 1


def test_matrix_products_read_and_write_what_they_must():
  n = 64
  text = jax.jit(jnp.dot).lower(*[jax.ShapeDtypeStruct((n, n), jnp.float32)] * 2).compile().as_text()
  assert read_program(text).memory_bytes == 3 * n * n * 4


def test_exchanges_of_one_shard_map_count_each_though_they_share_a_channel():
  def there_and_back(x):
    y = jax.lax.all_to_all(x, 'd', split_axis=1, concat_axis=0, tiled=True)
    return jax.lax.all_to_all(jnp.sin(y), 'd', split_axis=0, concat_axis=1, tiled=True)

  def layers(x):
    return jax.lax.scan(lambda x, _: (there_and_back(x), None), x, length=3)[0]

  mesh = jax.make_mesh((4,), ('d',), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
  split = jax.shard_map(layers, mesh=mesh, in_specs=P('d'), out_specs=P('d'))
  cost = read_program(jax.jit(split).lower(jnp.ones((16, 8))).compile().as_text())
  size = 4 * 8 * 4  # of a device's part, float32
  assert cost.collectives == {'all-to-all': Collective(6, 6 * size, round(6 * size * 3 / 4))}
