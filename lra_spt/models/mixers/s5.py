"""S5: one multi-input, multi-output diagonal state-space model per layer, run as a scan (Smith, Warrington
and Linderman 2023, arXiv 2208.04933, sections 3-4; published code: `lindermanlab/S5`, commit 3c18fdb,
`s5/{ssm,ssm_init,layers,train_helpers}.py`)."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from lra_spt.errors import ConfigError
from lra_spt.models.hippo import legs
from lra_spt.models.mimo import MimoRecurrence, complex_parameters, gated_output, real_matrices
from lra_spt.models.registry import ParameterGroup, register_mixer
from lra_spt.models.ssm import group, log_uniform


@register_mixer('s5')
class S5(MimoRecurrence):
  """One diagonal system of N states for all channels, zero-order hold with a step per state:

      h_t = Abar h_{t-1} + Bbar u_t, y_t = 2 Re(C h_t) + D u_t,
      Abar = exp(Lambda dt), Bbar = (Abar - 1) / Lambda B;

  then a gate.

  Args:
    state_size: P of the published code, both halves of the conjugate pairs (N = P / 2 are stored).
    blocks: J; the eigenvalues are J times those of the normal part of HiPPO-LegS with P / J states.
    dt_min, dt_max: range of the initial steps, log-uniform.
    c_init: the distribution of C before it is multiplied by the eigenvectors: 'lecun_normal' (over D and P
      together, because of the published shape), 'trunc_standard_normal' (over P), or 'complex_normal' (no
      eigenvectors).
    gate: 'half_glu1', 'half_glu2' or 'full_glu' (see `mimo`).
    ssm_lr: learning rate of Lambda, B and dt, which have no weight decay; 0: the stage's.
    b_group: group of B, 'ssm' (published opt_config 'standard'), 'ssm_decay' (ssm_lr with decay:
      'BandCdecay') or 'stage' (the stage's rate and decay: 'BfastandCdecay').
    c_group: group of C and D, 'stage' or 'ssm' (together with B: 'noBCdecay').
    dt_global: dt has the stage's learning rate and decay.
    clip_eigenvalues: clips Re(Lambda) to at most -1e-4. True by default (published: on Image only), because
      random initialisation needs it.
    dropout, tied_dropout: between GELU and gate.
    scan: the implementation, see `lra_spt.ops.scan`; '': by platform.

  Raises:
    ConfigError: an option is out of range.
  """

  def __init__(
    self,
    width: int,
    *,
    length: int,
    causal: bool,
    protocol,
    rngs: nnx.Rngs,
    state_size: int = 256,
    blocks: int = 8,
    dt_min: float = 1e-3,
    dt_max: float = 1e-1,
    c_init: Literal['lecun_normal', 'trunc_standard_normal', 'complex_normal'] = 'lecun_normal',
    gate: str = 'half_glu1',
    ssm_lr: float = 1e-3,
    b_group: Literal['ssm', 'ssm_decay', 'stage'] = 'ssm',
    c_group: Literal['ssm', 'stage'] = 'stage',
    dt_global: bool = False,
    clip_eigenvalues: bool = True,
    dropout: float = 0.0,
    tied_dropout: bool = False,
    scan: str = '',
    dtype=jnp.float32,
  ):
    del length, protocol  # the recurrence knows no length, and nothing departs from good practice
    if blocks < 1 or state_size < 2 or state_size % (2 * blocks):
      raise ConfigError(
        f'model.mixer.state_size is {state_size} in {blocks} blocks; choose a multiple of twice '
        'model.mixer.blocks'
      )
    output = gated_output(gate, width, dropout=dropout, tied_dropout=tied_dropout, dtype=dtype, rngs=rngs)
    super().__init__(output, width, causal=causal, scan=scan, dtype=dtype, rngs=rngs)
    self.clip_eigenvalues = clip_eigenvalues
    ssm = group(ssm_lr)
    stage = ParameterGroup(None, decay=True)
    groups = {'ssm': ssm, 'ssm_decay': ParameterGroup(ssm.learning_rate, decay=True), 'stage': stage}
    v_PN = np.kron(np.eye(blocks), legs(state_size // blocks).v).astype(np.complex64)
    b_ND = _initial_b(rngs.params(), width, v_PN)
    c_SDN = _initial_c(rngs.params(), c_init, 1 if causal else 2, width, v_PN)
    values = {
      **complex_parameters('lambda', np.tile(legs(state_size // blocks).w, blocks), group=ssm),
      **complex_parameters('b', b_ND, group=groups[b_group]),
      **complex_parameters('c', c_SDN, group=groups[c_group]),
    }
    for name, value in values.items():
      setattr(self, name, value)
    if c_group == 'ssm':
      self.skip = nnx.Param(self.skip[...], group=ssm)
    log_dt_N = log_uniform(rngs.params(), (state_size // 2,), dt_min, dt_max)
    self.log_dt = nnx.Param(log_dt_N, ssm=True, group=stage if dt_global else ssm)

  def discrete(self):
    """See `MimoRecurrence`. c includes the factor 2 for conjugate pairs."""
    real_N, imag_N, dt_N = self.lambda_real[...], self.lambda_imag[...], jnp.exp(self.log_dt[...])
    if self.clip_eigenvalues:
      real_N = jnp.minimum(real_N, -1e-4)
    x_N, y_N = real_N * dt_N, imag_N * dt_N
    a_2N = jnp.exp(x_N)[None] * jnp.stack([jnp.cos(y_N), jnp.sin(y_N)])
    # a - 1 without cancellation, then divided by Lambda.
    less_N = jnp.expm1(x_N) * jnp.cos(y_N) - 2 * jnp.sin(y_N / 2) ** 2
    norm_N = real_N**2 + imag_N**2
    gain_real_N = (less_N * real_N + a_2N[1] * imag_N) / norm_N
    gain_imag_N = (a_2N[1] * real_N - less_N * imag_N) / norm_N
    g_real, g_imag = gain_real_N[:, None], gain_imag_N[:, None]
    b_real, b_imag = self.b_real[...], self.b_imag[...]
    return a_2N, *real_matrices(
      g_real * b_real - g_imag * b_imag,
      g_real * b_imag + g_imag * b_real,
      2 * self.c_real[...],
      2 * self.c_imag[...],
    )


def _initial_b(key, width, v_PN):
  """V^* B, complex64 [N, D], with B real [P, D] of variance 1/P (published: lecun_normal of that shape)."""
  b_PD = _truncated_normal(key, (len(v_PN), width), 1 / len(v_PN))
  return jnp.matmul(v_PN.conj().T, b_PD.astype(jnp.complex64), precision=lax.Precision.HIGHEST)


def _initial_c(key, kind, directions, width, v_PN):
  """C V, complex64 [S, D, N]."""
  states, pairs = v_PN.shape
  if kind == 'complex_normal':
    return lax.complex(*jax.random.normal(key, (2, directions, width, pairs))) / np.complex64(np.sqrt(2))
  variance = 1 / (states * width if kind == 'lecun_normal' else states)
  c_SDP = lax.complex(*_truncated_normal(key, (2, directions, width, states), variance))
  return jnp.matmul(c_SDP, v_PN, precision=lax.Precision.HIGHEST)


def _truncated_normal(key, shape, variance):
  """Normal values cut at two standard deviations and scaled to `variance`."""
  return jax.random.truncated_normal(key, -2, 2, shape) * np.float32(np.sqrt(variance) / 0.87962566103423978)
