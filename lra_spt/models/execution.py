"""Execution of an encoder: values saved for the gradient, and loops over layers.

`lra_spt.config.runtime.ExecutionSpec` holds the choices.
"""

import jax
import jax.numpy as jnp

from lra_spt.config.runtime import ExecutionSpec
from lra_spt.distributed.sharding import platform

# Operations that are cheap to repeat, because XLA fuses them into those that read their results. Masks of
# dropout are named (checkpoint_name), so they are not among these.
_ELEMENTWISE = frozenset(
  'abs add add_any and broadcast_in_dim clamp convert_element_type copy cos div eq erf erf_inv erfc exp exp2 '
  'expm1 ge gt integer_pow is_finite iota le log log1p logistic lt max min mul ne neg not or pow reshape '
  'rsqrt select_n sign sin sqrt square squeeze sub tanh tan xor'.split()
)


def _not_elementwise(primitive, *operands, **params) -> bool:
  return primitive.name not in _ELEMENTWISE and not _returns_complex(primitive.name, operands, params)


def _returns_complex(name, operands, params) -> bool:
  """True if a primitive returns complex numbers. `jax.checkpoint` cannot save these, because it applies
  reduce_precision, which is for real numbers. State-space kernels make them from smaller real arrays."""
  if name == 'fft':
    return params['fft_type'].name != 'IRFFT'
  called = next((params[key] for key in ('jaxpr', 'call_jaxpr') if key in params), None)
  if called is not None:
    operands = [variable.aval for variable in getattr(called, 'jaxpr', called).outvars]
  elif name in ('real', 'imag'):
    return False
  return name == 'complex' or any(jnp.issubdtype(each.dtype, jnp.complexfloating) for each in operands)


# 'mixers' saves values that ops name 'mixer' (checkpoint_name), and the results of cuDNN, which have no name.
_REMAT = {
  'blocks': jax.checkpoint_policies.nothing_saveable,
  'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  'elementwise': _not_elementwise,
  'mixers': jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.save_only_these_names('mixer'),
    lambda primitive, *_, **__: primitive.name == 'dot_product_attention_fwd_wrapper',
  ),
}


def chosen_remat(execution: ExecutionSpec) -> str:
  """`remat`, or for '' the default of the current platform."""
  return execution.remat or ('elementwise' if platform() == 'tpu' else 'none')


def loops(execution: ExecutionSpec, deterministic: bool) -> bool:
  """True if the layers run as one loop on the current platform, in training or (deterministic) in
  evaluation."""
  if not execution.scan_layers:
    return deterministic or platform() != 'gpu'
  return execution.scan_layers == 'always'


def policy(execution: ExecutionSpec):
  """The policy of jax.checkpoint; None saves all values."""
  return _REMAT.get(chosen_remat(execution))
