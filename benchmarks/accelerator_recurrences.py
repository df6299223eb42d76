"""Part of `accelerator` that compares recurrences and long convolutions with those of other libraries."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from benchmarks.peers import recurrences_torch, torch_calls
from lra_spt.config.runtime import CONVOLUTIONS, SCANS
from lra_spt.ops.delta_rule import delta_rule
from lra_spt.ops.fft_conv import fft_conv
from lra_spt.ops.linear_attention import linear_attention
from lra_spt.ops.scan import linear_scan
from lra_spt.ops.selective_scan import selective_scan

# Batch, length; the lengths of Image and PathX. All have 512 channels, in heads of 64.
SIZES = {'1,024': (32, 1024), '16,384': (4, 16384)}
HEADS, WIDTH, STATES = 8, 64, 16


@dataclasses.dataclass(frozen=True)
class Operation:
  """A function of arrays, and its contenders.

  shapes: of the arrays, from (batch, length, heads, width), as {name: shape}; the name chooses the values,
    see `_values`. ours: {implementation: function}, the first one a reference for all. theirs: {library:
    function of tensors}. half: q, k, v are bfloat16. positions_last: for theirs, in arrays of three axes.
  """

  shapes: Callable
  ours: dict[str, Callable]
  theirs: dict[str, Callable]
  half: bool = True
  positions_last: bool = False


def _heads(B, L, H, K):
  return dict.fromkeys(('q', 'k', 'v'), (B, L, H, K))


def _by_name(function, names):
  return {name: functools.partial(function, implementation=name) for name in names}


OPERATIONS = {
  'GLA': Operation(
    lambda B, L, H, K: _heads(B, L, H, K) | {'log': (B, L, H, K)},
    {'ours': linear_attention},
    {'flash-linear-attention': recurrences_torch.gla},
  ),
  'decay per head': Operation(
    lambda B, L, H, K: _heads(B, L, H, K) | {'log': (B, L, H)},
    {'ours': linear_attention},
    {'flash-linear-attention': recurrences_torch.simple_gla},
  ),
  'Mamba-2': Operation(  # C, B, x, dt
    lambda B, L, H, K: {'q': (B, L, 1, K), 'k': (B, L, 1, K), 'v': (B, L, H, K), 'dt': (B, L, H)},
    {'ours': lambda c, b, x, dt: linear_attention(c, b, x * dt[..., None].astype(x.dtype), -dt)},
    {'mamba-ssm': recurrences_torch.ssd},
  ),
  'gated delta rule': Operation(
    lambda B, L, H, K: _heads(B, L, H, K) | {'log': (B, L, H), 'beta': (B, L, H)},
    {'ours': delta_rule},
    {'flash-linear-attention': recurrences_torch.gated_delta_rule},
  ),
  'selective scan': Operation(
    lambda B, L, H, K: {
      'x': (B, L, H * K),
      'dt': (B, L, H * K),
      'negative': (H * K, STATES),
      'b': (B, L, STATES),
      'c': (B, L, STATES),
    },
    _by_name(selective_scan, SCANS),
    {'mamba-ssm': recurrences_torch.selective_scan},
    half=False,
    positions_last=True,
  ),
  'linear scan': Operation(
    lambda B, L, H, K: {'log': (B, L, H * K), 'x': (B, L, H * K)},
    _by_name(
      lambda log, x, implementation: linear_scan(jnp.exp(log), x, implementation=implementation), SCANS
    ),
    {'flash-linear-attention': recurrences_torch.hgrn},
    half=False,
  ),
  'long convolution': Operation(
    lambda B, L, H, K: {'x': (B, L, H * K), 'kernel': (1, H * K, L)},
    _by_name(fft_conv, CONVOLUTIONS),
    {'torch.fft': recurrences_torch.fft_conv},
    half=False,
  ),
}


def _values(name: str, shape, rng) -> np.ndarray:
  """float32 values: log decays in -0.1..0, steps in 0..0.1, keys of norm 1, decaying kernels."""
  if name in ('log', 'dt', 'beta', 'negative'):
    low, high = {'log': (-0.1, 0), 'dt': (0, 0.1), 'beta': (0, 1), 'negative': (-2, -0.1)}[name]
    return rng.uniform(low, high, shape).astype(np.float32)
  values = rng.standard_normal(shape, np.float32)
  if name == 'k':
    values /= np.linalg.norm(values, axis=-1, keepdims=True)
  if name == 'kernel':
    values *= np.exp(-np.arange(shape[-1], dtype=np.float32) / shape[-1])
  return values


def recurrences(options):
  """Yields a case per operation, length and contender: forward and backward, memory, and the difference of
  the result to that of our first implementation in float32, over the largest number."""
  sizes = {'toy': (2, 64)} if options.dry else SIZES
  heads, width = (2, 16) if options.dry else (HEADS, WIDTH)
  for name, operation in OPERATIONS.items():
    for length, (B, L) in sizes.items():
      rng = np.random.default_rng(0)
      shapes = operation.shapes(B, L, heads, width)
      arrays = [_values(array, shape, rng) for array, shape in shapes.items()]
      half = [operation.half and array in ('q', 'k', 'v') for array in shapes]
      expected = functools.cache(functools.partial(_reference, operation, arrays))
      for contenders, run in ((operation.ours, _ours), (operation.theirs, _theirs)):
        for contender, function in contenders.items():
          measure = functools.partial(_measure, run, operation, function, arrays, half, expected, options.dry)
          yield f'{name} {length} {contender}', measure


def _reference(operation, arrays) -> np.ndarray:
  function = next(iter(operation.ours.values()))
  with jax.default_matmul_precision('highest'):
    return np.asarray(jax.jit(function)(*map(jnp.asarray, arrays)))


def _measure(run, operation, function, arrays, half, expected, dry) -> dict:
  run, out, temporary = run(operation, function, arrays, half)
  row = {'apart': float(np.abs(out - expected()).max() / np.abs(expected()).max())}
  row['ok'] = row['apart'] < 0.05  # bfloat16 stays below this too, so more means another operation
  row |= harness.milliseconds(harness.sampled(run, 0.05 if dry else 1.0))
  row['shapes'] = [array.shape for array in arrays]
  return row | {'temporary_megabytes': temporary}


def _ours(operation, function, arrays, half):
  """(function that runs value and gradients once, the value, megabytes beside arguments and results)."""
  arrays = [
    jnp.asarray(array, jnp.bfloat16 if low else jnp.float32) for array, low in zip(arrays, half, strict=True)
  ]

  def both(arrays):
    out, pull = jax.vjp(function, *arrays)
    return out, *pull(jnp.ones_like(out))

  compiled = jax.jit(both).lower(arrays).compile()
  out = np.asarray(compiled(arrays)[0], np.float32)
  temporary = compiled.memory_analysis().temp_size_in_bytes / 1e6
  return lambda: jax.block_until_ready(compiled(arrays)), out, temporary


def _theirs(operation, function, arrays, half):
  """The same by PyTorch; the megabytes include results."""
  import torch

  def swapped(array):
    return np.swapaxes(array, 1, 2).copy() if operation.positions_last and array.ndim == 3 else array

  device = 'cuda' if jax.default_backend() == 'gpu' else 'cpu'
  tensors = [
    torch.from_numpy(swapped(array)).to(device, torch.bfloat16 if low else torch.float32).requires_grad_()
    for array, low in zip(arrays, half, strict=True)
  ]
  out = function(*tensors)
  run, temporary = torch_calls.run_of(function, tensors, torch.ones_like(out))
  return run, swapped(out.detach().float().cpu().numpy()), temporary


PARTS = {'recurrences': recurrences}
