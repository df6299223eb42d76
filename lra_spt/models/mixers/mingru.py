"""minGRU: a GRU whose gates see only the input (Feng et al. 2024, arXiv 2410.01201; checked against the code
of a third party, not of the authors: `lucidrains/minGRU-pytorch`, commit 38b26e1, `minGRU.py`).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.errors import ConfigError
from lra_spt.models.gated import gated_scan
from lra_spt.models.layers import linear
from lra_spt.models.registry import register_mixer
from lra_spt.models.ssm import check_causal, zero_padding


@register_mixer('mingru')
class MinGRU(nnx.Module):
  """A gated recurrence of E channels, with [c, z'] = W x and no biases:

      h_t = (1 - z_t) h_{t-1} + z_t g(c_t), z_t = sigmoid(z'_t);

  then a linear map W_o without bias, if E differs from D.

  g(c) = c + 0.5 for c >= 0, else sigmoid(c), as in the paper's version in log space (which needs h > 0; here
  the same recurrence is computed directly). Matrix products run in `dtype`, the rest in float32.

  The causal form is the published one. The bidirectional form is ours: a second W runs from the last valid
  position backwards, and both h are summed.

  Args:
    expansion: E / D (E is rounded down), where E is the number of channels of the recurrence.
    positive: False sets g(c) = c, the paper's plain version.
    scan: the implementation, see `lra_spt.ops.scan`; '': by platform.

  Raises:
    ConfigError: no channel would be left.
  """

  maps = 2  # of the input, per direction
  operations = 8  # per position, direction and channel

  def __init__(
    self,
    width: int,
    *,
    length: int,
    causal: bool,
    protocol,
    rngs: nnx.Rngs,
    expansion: float = 1.0,
    positive: bool = True,
    scan: str = '',
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    self.inner = int(width * expansion)
    if self.inner < 1:
      raise ConfigError(
        f'model.mixer.expansion is {expansion}, which leaves no channel of model.width {width}; choose a '
        'larger one'
      )
    self.causal, self.positive, self.scan = causal, positive, scan or None
    directions = 1 if causal else 2
    self.gates = linear(width, directions * self.maps * self.inner, bias=False, dtype=dtype, rngs=rngs)
    self.has_out = self.inner != width
    if self.has_out:
      self.out = linear(self.inner, width, bias=False, dtype=dtype, rngs=rngs)

  def __call__(self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None) -> jax.Array:
    del deterministic, rngs  # the published layer has no dropout
    recurrences = self._recurrences(x_BLD)
    # The scan from the end starts in the padding, where g(0) is not 0.
    h_BLE = sum(
      gated_scan(a_BLE, zero_padding(u_BLE, lengths_B), reverse=direction == 1, implementation=self.scan)
      for direction, (a_BLE, u_BLE) in enumerate(recurrences)
    )
    return self._output(h_BLE)

  def _recurrences(self, x_BLD):
    """1 - z and z g(c) of each direction, both float32 [B, L, E]."""
    gates_BLSCE = self.gates(x_BLD).astype(jnp.float32).reshape(*x_BLD.shape[:2], -1, self.maps, self.inner)
    recurrences = []
    for direction in range(gates_BLSCE.shape[2]):
      c_BLE, *gates = (gates_BLSCE[:, :, direction, i] for i in range(self.maps))
      z_BLE = self._input_gate(*gates)
      if self.positive:
        c_BLE = jnp.where(c_BLE >= 0, c_BLE + 0.5, jax.nn.sigmoid(c_BLE))
      recurrences.append((jax.nn.sigmoid(-z_BLE), jax.nn.sigmoid(z_BLE) * c_BLE))
    return recurrences

  def _input_gate(self, z_BLE):
    """z before its sigmoid."""
    return z_BLE

  def _output(self, h_BLE):
    return self.out(h_BLE) if self.has_out else h_BLE

  def init_state(self, batch_size: int) -> jax.Array:
    """The state before the first position, float32 [B, E].

    Raises:
      ConfigError: the mixer is bidirectional, so it has no recurrent form.
    """
    check_causal(self.causal)
    return jnp.zeros((batch_size, self.inner))

  def step(self, state: jax.Array, x_BD: jax.Array):
    """(state after this position, output [B, D])."""
    ((a_B1E, u_B1E),) = self._recurrences(x_BD[:, None])
    state = a_B1E[:, 0] * state + u_B1E[:, 0]
    return state, self._output(state[:, None])[:, 0]

  def flops(self, length: int) -> int:
    """`operations` per position, direction and channel: gates and recurrence."""
    return self.operations * length * self.gates.kernel.shape[-1] // self.maps
