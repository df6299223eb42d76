"""jax's process-wide settings. They are set by environment variables and by other libraries, and some of them
change numbers. What this package traces or computes runs within `fixed`.

A context of jax holds for one thread, so threads of this package enter it themselves. A setting without a
context is recorded with each stage (`RECORDED`). Settings that can only make jax fail, such as strict
promotion or jax_debug_nans, are left to the user.
"""

import contextlib
import enum
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

PRNG = 'threefry2x32'

# Context and value of each setting that can change numbers. The last one has no context, but `random_key`
# does not read it.
FIXED: dict[str, tuple[Callable[[Any], contextlib.AbstractContextManager], Any]] = {
  'jax_enable_x64': (jax.enable_x64, False),
  'jax_threefry_partitionable': (jax.threefry_partitionable, True),
  'jax_default_prng_impl': (jax.default_prng_impl, PRNG),
  'jax_softmax_custom_jvp': (jax.softmax_custom_jvp, False),
  'jax_disable_jit': (jax.disable_jit, False),
  'jax_default_device': (jax.default_device, None),
  'jax_random_seed_offset': (contextlib.nullcontext, 0),
}

# Settings of tracing and compiling without a context. Not every version of jax has all of them.
RECORDED = (
  'jax_accurate_erf_inv',
  'jax_compiler_enable_remat_pass',
  'jax_custom_jvp3',
  'jax_custom_vjp3',
  'jax_disable_most_optimizations',
  'eager_constant_folding',
  'jax_embedded_constants_max_bytes',
  'jax_enable_pgle',
  'jax_exec_time_optimization_effort',
  'jax_explicit_x64_dtypes',
  'jax_high_dynamic_range_gumbel',
  'jax_memory_fitting_effort',
  'jax_memory_fitting_level',
  'jax_optimization_level',
  'jax_remat3',
  'jax_scan3',
  'jax_threefry_gpu_kernel_lowering',
  'jax_use_direct_linearize',
  'jax_use_hlo_logistic_lowering',
  'jax_use_shardy_partitioner',
  'jax_use_simplified_jaxpr_constants',
)
VARIABLES = ('XLA_FLAGS', 'LIBTPU_INIT_ARGS', 'NVIDIA_TF32_OVERRIDE')  # of XLA and of CUDA's libraries


@contextlib.contextmanager
def fixed(matmul_precision: str | None = None):
  """Within, jax computes the same numbers in every process; also a decorator.

  Args:
    matmul_precision: of float32 matrix products, runtime.matmul_precision; None: as it is outside.
  """
  with contextlib.ExitStack() as contexts:
    for context, value in FIXED.values():
      contexts.enter_context(context(value))
    if matmul_precision is not None:
      contexts.enter_context(jax.default_matmul_precision(_plain(matmul_precision)))
    yield


def random_key(seed: int, prng: str = PRNG) -> jax.Array:
  """The key that `jax.random.key(seed, impl=prng)` makes in a process without other settings; 0 <= seed <
  2^32."""
  size = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=prng))).size
  return jax.random.wrap_key_data(np.tile(np.array([0, seed], np.uint32), size // 2), impl=prng)


def ignored(matmul_precision: str) -> dict[str, Any]:
  """{name: value} of the settings of this process that `fixed(matmul_precision)` replaces."""
  wanted = {name: value for name, (_, value) in FIXED.items()}
  wanted['jax_default_matmul_precision'] = _plain(matmul_precision)
  actual = {name: jax.config.values[name] for name in wanted}
  return {name: value for name, value in actual.items() if value != wanted[name]}


def in_force() -> dict[str, Any]:
  """{name: value} of the settings of jax that can change numbers, and of `VARIABLES` that are set."""
  values = jax.config.values
  facts = {name: values[name] for name in (*FIXED, *RECORDED) if name in values}
  facts |= {name: os.environ[name] for name in VARIABLES if name in os.environ}
  return {name: value.name if isinstance(value, enum.Enum) else value for name, value in facts.items()}


def _plain(matmul_precision: str) -> str | None:
  return None if matmul_precision == 'default' else matmul_precision
