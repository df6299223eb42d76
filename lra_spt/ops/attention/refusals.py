"""Reasons to refuse a call of attention that several implementations share."""

import jax

from lra_spt.distributed.sharding import platform

SIXTEEN_AND_32_BITS = ('float32', 'bfloat16', 'float16')


def of_call(q_BLHK, v_BMHK, return_logsumexp: bool, bias_HR, dtypes) -> str | None:
  """Returns why kernels that return the output alone cannot run a call, as one clause, or None.

  Args:
    dtypes: the names of those that they take.
  """
  if return_logsumexp:
    return 'returns no logsumexp'
  if bias_HR is not None:
    return 'adds no bias to scores'
  if v_BMHK.shape[-1] != q_BLHK.shape[-1]:
    return f'takes values as wide as keys, {q_BLHK.shape[-1]}, not {v_BMHK.shape[-1]}'
  if q_BLHK.dtype.name not in dtypes:
    return f'takes {", ".join(dtypes)}, not {q_BLHK.dtype}'
  return None


def capability() -> float | None:
  """Returns the compute capability of the GPUs that a call runs on, such as 9.0; 0 if they are not NVIDIA's,
  None on other platforms and where a process without GPUs only compiles for them."""
  if platform() != 'gpu' or jax.default_backend() != 'gpu':
    return None
  text = str(getattr(jax.local_devices()[0], 'compute_capability', ''))
  return float(text) if text.replace('.', '', 1).isdigit() else 0.0  # AMD's are names such as gfx90a
