"""Parts of S5, LRU and LinOSS: one recurrence of N states with D inputs and D outputs, and output layers."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from lra_spt.distributed.sharding import platform, rows_island, sequence_shards
from lra_spt.errors import ConfigError
from lra_spt.models.layers import Dropout, linear
from lra_spt.models.ssm import GatedOutput, check_causal, zero_padding
from lra_spt.ops.scan import scan_components

GATES = ('full_glu', 'half_glu1', 'half_glu2')


class HalfGatedOutput(nnx.Module):
  """g = dropout(GELU(y)), then g * sigmoid(W g + w) ('half_glu1') or y * sigmoid(W g + w) ('half_glu2').

  This is S5's published `layers.py`, but with the exact GELU (published: its tanh approximation).
  """

  def __init__(
    self,
    width: int,
    *,
    gelu_on_gate_only: bool,
    dropout: float = 0.0,
    tied_dropout: bool = False,
    dtype=jnp.float32,
    rngs: nnx.Rngs,
  ):
    self.gelu_on_gate_only = gelu_on_gate_only
    self.dropout = Dropout(dropout, tied_dropout)
    self.linear = linear(width, width, dtype=dtype, rngs=rngs)

  def __call__(self, y_BLD: jax.Array, *, deterministic: bool = True, rngs=None) -> jax.Array:
    g_BLD = self.dropout(jax.nn.gelu(y_BLD, approximate=False), deterministic=deterministic, rngs=rngs)
    gate_BLD = jax.nn.sigmoid(self.linear(g_BLD).astype(y_BLD.dtype))
    return (y_BLD if self.gelu_on_gate_only else g_BLD) * gate_BLD


def gated_output(gate: str, width: int, **options) -> nnx.Module:
  """Builds the output layer `gate`: 'half_glu1', 'half_glu2' or 'full_glu'.

  Raises:
    ConfigError: another name.
  """
  if gate not in GATES:
    raise ConfigError(f'model.mixer.gate is {gate!r}; choose one of {", ".join(GATES)}')
  if gate == 'full_glu':
    return GatedOutput(width, **options)
  return HalfGatedOutput(width, gelu_on_gate_only=gate == 'half_glu2', **options)


class MimoRecurrence(nnx.Module):
  """A mixer with one recurrence over the past, S = 1, and, unless causal, another from the end, S = 2:

      h_t = diag(a) h_{t-1} + B u_t, y = output(sum over directions s of Re(C_s h_s) + D u);

  both directions include lag 0, as published.

  Complex numbers are real pairs: the products with B and C are real matrix products in the layout that the
  scan reads and writes. A subclass defines `discrete() -> (a float32 [2, N], b float32 [D, 2N], c float32
  [S, 2N, D])`. A subclass whose states are real vectors of 2 numbers (LinOSS) returns matrices a [4, N] and
  says by `driven` and `observed` how b's products enter these vectors and what c reads of them.
  """

  state_operations = 8  # per position, state (N of C) and direction

  def __init__(self, output: nnx.Module, width: int, *, causal: bool, scan: str, dtype, rngs: nnx.Rngs):
    self.causal, self.dtype, self.scan = causal, dtype, scan or None
    self.skip = nnx.Param(jax.random.normal(rngs.params(), (width,)))
    self.output = output

  def driven(self, a_CN, bu_BLM) -> jax.Array:
    """Returns what the recurrence adds at each position, [B, L, 2, N], given the products with b."""
    return bu_BLM.reshape(*bu_BLM.shape[:2], *a_CN.shape)

  def observed(self, h_BL2N) -> jax.Array:
    """Returns the numbers that c multiplies, [B, L, M]."""
    return h_BL2N.reshape(*h_BL2N.shape[:2], -1)

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    mix = functools.partial(self._mix, axis='seq' if sequence_shards(x_BLD.shape[1]) > 1 else None)
    parameters = *self.discrete(), self.skip[...]
    y_BLD = rows_island(mix, whole=(2,), split=(0,))(x_BLD, lengths_B, parameters)
    return self.output(y_BLD, deterministic=deterministic, rngs=rngs)

  def _mix(self, x_BLD, lengths_B, parameters, axis):
    """Runs the recurrences on one shard. axis: the mesh axis that splits the positions, or None."""
    a_CN, b_DM, c_SMD, skip_D = parameters
    if axis and lengths_B is not None:
      lengths_B -= lax.axis_index(axis) * x_BLD.shape[1]
    x_BLD = zero_padding(x_BLD, lengths_B)  # the reverse scan starts in the padding
    bu_BL2N = self.driven(a_CN, self._dot(x_BLD, b_DM))
    y_BLD = skip_D[None, None] * x_BLD.astype(jnp.float32)
    for direction, c_MD in enumerate(c_SMD):
      options = {'reverse': direction == 1, 'implementation': self.scan, 'save_states': True, 'axis': axis}
      h_BL2N = scan_components(a_CN, bu_BL2N, **options)
      y_BLD = y_BLD + self._dot(self.observed(h_BL2N), c_MD)
    return y_BLD

  def _dot(self, x, matrix):
    """x @ matrix. On CPUs it is one product over all leading axes (see `layers.Linear`); the TPU compiler of
    2026 fails on this flat form."""
    flat = x.reshape(-1, x.shape[-1]) if platform() == 'cpu' else x
    y = jnp.dot(flat.astype(self.dtype), matrix.astype(self.dtype), preferred_element_type=jnp.float32)
    return y.reshape(*x.shape[:-1], -1)

  def init_state(self, batch_size: int) -> jax.Array:
    """The state before the first position, float32 [B, 2, N].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    return jnp.zeros((batch_size, 2, self.discrete()[0].shape[-1]))

  def step(self, state: jax.Array, x_BD: jax.Array):
    """(state after this position, output float32 [B, D])."""
    a_CN, b_DM, c_SMD = self.discrete()
    bu_B12N = self.driven(a_CN, self._dot(x_BD[:, None], b_DM))
    h_B12N = scan_components(a_CN, bu_B12N, initial=state)
    y_B1D = self._dot(self.observed(h_B12N), c_SMD[0]) + self.skip[...][None, None] * x_BD[:, None]
    return h_B12N[:, 0], self.output(y_B1D)[:, 0]

  def max_kernel(self, length: int) -> jax.Array:
    """The largest absolute entry of C diag(a)^l B per lag over both directions, float32 [L]. It is computed
    one lag at a time."""
    a_CN, b_DM, c_SMD = self.discrete()

    def lag(carry_D12N, _):
      kernel_SDD = jnp.einsum('dm,sme->sde', self.observed(carry_D12N)[:, 0], c_SMD)
      carry_D12N = scan_components(a_CN, jnp.zeros_like(carry_D12N), initial=carry_D12N[:, 0])
      return carry_D12N, jnp.max(jnp.abs(kernel_SDD))

    return lax.scan(lag, self.driven(a_CN, b_DM[:, None]), length=length)[1]

  def flops(self, length: int) -> int:
    """2 per position and real weight of B and C, and `state_operations`."""
    S, D, N = self.c_real.shape[-3:]  # stacked blocks have a depth axis in front
    return length * (4 * D * N + 4 * S * D * N + self.state_operations * S * N + 2 * D)


def real_matrices(b_real_ND, b_imag_ND, c_real_SDN, c_imag_SDN):
  """B and C for real pairs: b [D, 2N] with B u = u b, and c [S, 2N, D] with Re(C h) = h c."""
  b_DM = jnp.concatenate([b_real_ND, b_imag_ND]).T
  return b_DM, jnp.concatenate([c_real_SDN, -c_imag_SDN], axis=-1).swapaxes(-1, -2)


def complex_parameters(name: str, value, **metadata) -> dict[str, nnx.Param]:
  """Makes two float32 parameters, NAME_real and NAME_imag, with the same metadata."""
  return {
    f'{name}_real': nnx.Param(jnp.asarray(value.real, jnp.float32), ssm=True, **metadata),
    f'{name}_imag': nnx.Param(jnp.asarray(value.imag, jnp.float32), ssm=True, **metadata),
  }
