"""Heads: they map hidden states to an answer (published code `decoders.py`)."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.errors import ConfigError
from lra_spt.models.layers import linear, valid_positions


@dataclasses.dataclass(frozen=True)
class HeadSpec:
  """The structure of a head.

  kind: 'tokens': one answer per position; 'linear' and 'mlp': pool, then a linear map or Linear-ReLU-Linear;
    'match': rows 2b and 2b + 1 are a pair, whose pooled documents u and v become [u, v, u - v, u v], then
    Linear-GELU-Linear (published code `decoders.py:306-377`); 'identity': the unchanged hidden states.
  outputs: numbers per answer.
  pool: 'mean', 'max' or 'last'; see `pool`.
  """

  kind: str
  outputs: int
  pool: str = 'mean'


def pool(h_BLD: jax.Array, kind: str, lengths_B=None) -> jax.Array:
  """[B, L, D] -> [B, D]: the mean or maximum of the valid positions, or the last one. Rows of length 0 give
  0."""
  B, L, _ = h_BLD.shape
  if lengths_B is None:
    lengths_B = jnp.full((B,), L, jnp.int32)
  valid_BL1 = valid_positions(lengths_B, L)[..., None]
  if kind == 'mean':
    total_BD = jnp.sum(jnp.where(valid_BL1, h_BLD, 0.0), axis=1)
    return total_BD / jnp.maximum(lengths_B, 1)[:, None].astype(h_BLD.dtype)
  if kind == 'max':
    best_BD = jnp.max(jnp.where(valid_BL1, h_BLD, -jnp.inf), axis=1)
    return jnp.where(lengths_B[:, None] > 0, best_BD, 0.0)
  # A sum with one term, not an index: devices that split the length add their parts.
  last_BL1 = valid_BL1 & ~valid_positions(lengths_B - 1, L)[..., None]
  return jnp.sum(jnp.where(last_BL1, h_BLD, 0.0), axis=1)


class Head(nnx.Module):
  """Position-wise or pooled answers; see HeadSpec."""

  def __init__(self, spec: HeadSpec, width: int, *, rngs: nnx.Rngs):
    if spec.kind == 'identity' and width < spec.outputs:
      raise ConfigError(
        f'an identity head needs model.width >= {spec.outputs}, its number of outputs, but the width is '
        f'{width}; use protocol clean'
      )
    self.spec = spec
    if spec.kind in ('mlp', 'match'):
      self.hidden = linear(4 * width if spec.kind == 'match' else width, width, rngs=rngs)
    if spec.kind != 'identity':
      self.out = linear(width, spec.outputs, rngs=rngs)

  def __call__(self, h_BLD: jax.Array, *, lengths_B=None) -> jax.Array:
    """Returns float32 [B, L, outputs] for kinds 'tokens' and 'identity' (whose outputs are the D hidden
    values), else [B, outputs]. For B pairs, h has 2B rows."""
    if self.spec.kind == 'identity':
      return h_BLD
    if self.spec.kind == 'tokens':
      return self.out(h_BLD)
    x_BD = pool(h_BLD, self.spec.pool, lengths_B)
    if self.spec.kind == 'match':
      u_BD, v_BD = x_BD[0::2], x_BD[1::2]
      pair_BF = jnp.concatenate([u_BD, v_BD, u_BD - v_BD, u_BD * v_BD], axis=-1)
      return self.out(jax.nn.gelu(self.hidden(pair_BF), approximate=False))
    return self.out(jax.nn.relu(self.hidden(x_BD)) if self.spec.kind == 'mlp' else x_BD)
