"""Execution of an encoder: values saved for the gradient, loops, precision and kernels."""

import dataclasses

import jax
import jax.numpy as jnp

from lra_spt.distributed.sharding import platform
from lra_spt.errors import ConfigError, nearest
from lra_spt.ops import attention, fourier, scan

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


@dataclasses.dataclass(frozen=True)
class ExecutionSpec:
  """Options that change how an encoder runs, but neither its parameters nor, beyond rounding, its results.

  remat: the values of a block that are saved for its gradient, besides its input; all others are computed
    again. 'none': all are saved; 'elementwise': all except the results of elementwise operations; 'dots': the
    results of matrix products; 'mixers': those of attention, recurrences and long convolutions; 'blocks':
    none. '': 'elementwise' on TPUs, where a step waits for memory (benchmarks/compiled.py), else 'none'.
  scan_layers: 'always' runs the layers as one loop, which is compiled once for all of them; 'never' does not.
    '': a loop except for training on GPUs, where a loop copies the values that it saves for the gradient
    (benchmarks/accelerator.py).
  attention, scan, convolution: the implementations (see `lra_spt.ops.attention`, `lra_spt.ops.scan` and
    `lra_spt.ops.fft_conv`) for mixers with attention, recurrences or convolutions; '': by platform.
  """

  scan_layers: str = ''
  remat: str = ''
  precision: str = 'float32'
  attention: str = ''
  scan: str = ''
  convolution: str = ''

  def __post_init__(self):
    if self.scan_layers not in ('', 'always', 'never'):
      raise ConfigError(
        f"runtime.scan_layers is {self.scan_layers!r}; choose '' (by platform), 'always' or 'never'"
      )
    if self.remat not in ('', 'none', *_REMAT):
      raise ConfigError(
        f"runtime.remat is {self.remat!r}; choose '' (by platform), none (save all) or one of "
        f'{", ".join(_REMAT)}'
      )
    # These are checked here because not every mixer reads all of them.
    for field, names in (
      ('attention', attention.NAMES),
      ('scan', scan.NAMES),
      ('convolution', fourier.NAMES),
    ):
      if (name := getattr(self, field)) not in ('', *names):
        raise ConfigError(
          f"runtime.{field} is {name!r}; choose '' (by platform) or one of {', '.join(names)}"
          f'.{nearest(name, names)}'
        )

  @property
  def chosen_remat(self) -> str:
    """`remat`, or for '' the default of the current platform."""
    return self.remat or ('elementwise' if platform() == 'tpu' else 'none')

  def loops(self, deterministic: bool) -> bool:
    """True if the layers run as one loop on the current platform, in training or (deterministic) in
    evaluation."""
    if not self.scan_layers:
      return deterministic or platform() != 'gpu'
    return self.scan_layers == 'always'

  def policy(self):
    """The policy of jax.checkpoint; None saves all values."""
    return _REMAT.get(self.chosen_remat)

  @property
  def dtype(self):
    if self.precision not in ('float32', 'bfloat16'):
      raise ConfigError(f"runtime.precision is {self.precision!r}; choose 'float32' or 'bfloat16'")
    return jnp.dtype(self.precision)
