"""Span denoising: whole spans are hidden, of lengths that the config lists."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from lra_spt.errors import ConfigError
from lra_spt.objectives.denoising import MaskedDenoising, rounded_counts
from lra_spt.objectives.registry import register_objective


@register_objective('spans')
@dataclasses.dataclass(frozen=True)
class SpanDenoising(MaskedDenoising):
  """Hides spans of neighbouring positions, as span corruption (T5, arXiv 1910.10683, section 3.3.4) does.

  Of n valid positions exactly `mask_rate` * n are hidden, rounded. The lengths of spans are drawn from
  `span_lengths`, each equally likely, until they make up that number; the last one is cut. Spans and visible
  positions are then shuffled, so that all orders are equally likely, and two spans may touch. T5 instead
  draws lengths around a mean.
  """

  span_lengths: tuple[int, ...] = (3, 8, 32)

  def __post_init__(self):
    super().__post_init__()
    if not self.span_lengths or min(self.span_lengths) < 1:
      raise ConfigError(
        f'pretrain.span_lengths is {self.span_lengths}, but spans have at least 1 position; list such lengths'
      )

  def hidden(self, valid_RL, keys_R):
    valid_R = jnp.sum(valid_RL, axis=1)
    counts_R = jnp.asarray(rounded_counts(self.mask_rate, valid_RL.shape[1]))[valid_R]
    return jax.vmap(self._row, (0, 0, 0, None))(keys_R, valid_R, counts_R, valid_RL.shape[1])

  def _row(self, key, valid, count, L):
    """The hidden positions of a row, bool [L]: `count` of the first `valid` ones."""
    length_key, place_key = jax.random.split(key)
    lengths = jnp.minimum(jnp.asarray(self.span_lengths, jnp.int32), L)
    drawn_L = lengths[jax.random.randint(length_key, (L,), 0, len(lengths))]
    end_L = lax.associative_scan(lambda a, b: jnp.minimum(a + b, L), drawn_L)  # no sum overflows
    span_L = jnp.cumsum(jnp.zeros(L, jnp.int32).at[end_L].add(1, mode='drop'))  # of each hidden position
    # The items to shuffle are the hidden positions, then the visible ones. Those of a span have one place,
    # and stay together because the sort is stable.
    place_L, item_L = jax.random.uniform(place_key, (L,)), jnp.arange(L)
    place_L = jnp.where(item_L < count, place_L[span_L], place_L)
    _, hidden_L = lax.sort((jnp.where(item_L < valid, place_L, 2.0), item_L < count), num_keys=1)
    return hidden_L
