"""Compiles scans for a TPU slice, on a machine without one; a program of test_scan_pallas.py.

`python tpu_scan.py TOPOLOGY IMPLEMENTATION ...` prints a line of JSON: for each case and implementation the
bytes that a chip reads and writes and those of its temporaries, both as multiples of x, and the names of
collectives other than the sum of gradients.
"""

import json
import math
import re
import sys

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from lra_spt.distributed import sharding
from lra_spt.ops.scan import scan_components

CASES = {  # B, L, C, N, whether a varies: S5 or LRU on Image, on PathX; RG-LRU; a few states; odd sizes
  'constant': (32, 1024, 2, 128, False),
  'long': (4, 16384, 2, 128, False),
  'varying': (32, 1024, 1, 256, True),
  'odd': (32, 1001, 2, 40, False),
}


def gradient(mesh, implementation, batch, length, components, states, varying):
  """Compiles value and gradient of a function of all states, in the layout of matrix products."""

  def loss(a, x_BLJ):
    def scan(x_BLJ, a):
      x_BLCN, a = (v.reshape(*v.shape[:-1], components, states) for v in (x_BLJ, a))
      return scan_components(a, x_BLCN, implementation=implementation).reshape(x_BLJ.shape)

    return jnp.sum(jnp.sin(sharding.rows_island(scan, whole=() if varying else (1,))(x_BLJ, a)))

  rows, whole = sharding.rows_sharding(mesh), sharding.replicated(mesh)
  x_BLJ = jax.ShapeDtypeStruct((batch, length, components * states), jnp.float32, sharding=rows)
  a = x_BLJ if varying else jax.ShapeDtypeStruct((components * states,), jnp.float32, sharding=whole)
  return jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(a, x_BLJ).compile()


def main(topology, *implementations):
  chips = {'chip_config_name': 'megacore'} if topology.startswith('v4') else {}
  devices = topologies.get_topology_desc(platform='tpu', topology_name=topology, **chips).devices
  mesh = sharding.make_mesh(data=4, devices=devices)
  costs = {}
  with jax.set_mesh(mesh):
    for case, sizes in CASES.items():
      costs[case] = {}
      for implementation in implementations:
        compiled = gradient(mesh, implementation, *sizes)
        size = 4 * math.prod(sizes[:4]) / len(devices)
        names = re.findall(r' (all-gather|all-to-all|collective-permute)(?:-start)?\(', compiled.as_text())
        costs[case][implementation] = {
          'bytes': round(compiled.cost_analysis()['bytes accessed'] / size, 1),
          'temporary': round(compiled.memory_analysis().temp_size_in_bytes / size, 1),
          'collectives': sorted(set(names)),
        }
  print(json.dumps(costs))


if __name__ == '__main__':
  main(*sys.argv[1:])
