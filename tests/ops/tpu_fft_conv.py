"""Compiles a long convolution with its gradients for a TPU slice, ahead of time; test_fft_conv.py runs it.

`python tpu_fft_conv.py IMPLEMENTATION LENGTH` prints a line of JSON. All arrays are abstract: nothing runs.
"""

import json
import sys
import time

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from lra_spt.distributed import sharding
from lra_spt.ops.fft_conv import fft_conv

BATCH, WIDTH = 8, 128


def main(implementation, length):
  devices = topologies.get_topology_desc(platform='tpu', topology_name='v5e:2x2').devices
  mesh = sharding.make_mesh(data=2, fsdp=2, devices=devices)

  def convolve(u_BLD, kernel_SDL):
    return fft_conv(u_BLD, kernel_SDL, implementation=implementation)

  def value_and_gradients(u_BLD, kernel_SDL, dy_BLD):
    y_BLD, pull = jax.vjp(sharding.rows_island(convolve, whole=(1,)), u_BLD, kernel_SDL)
    return y_BLD, *pull(dy_BLD)

  rows, whole = sharding.rows_sharding(mesh), sharding.replicated(mesh)
  u_BLD = jax.ShapeDtypeStruct((BATCH, length, WIDTH), jnp.bfloat16, sharding=rows)
  kernel_SDL = jax.ShapeDtypeStruct((2, WIDTH, length), jnp.float32, sharding=whole)
  with jax.set_mesh(mesh):
    lowered = jax.jit(value_and_gradients).lower(u_BLD, kernel_SDL, u_BLD)
    start = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - start
  text = compiled.as_text()
  report = {
    'device_kind': devices[0].device_kind,
    'compile_seconds': round(seconds, 1),
    'temporary_bytes': compiled.memory_analysis().temp_size_in_bytes,
    'flops': compiled.cost_analysis()['flops'],
    'gathers': text.count(' all-gather'),
    'transforms': lowered.as_text().count('stablehlo.fft'),
  }
  print(json.dumps(report))


if __name__ == '__main__':
  main(sys.argv[1], int(sys.argv[2]))
