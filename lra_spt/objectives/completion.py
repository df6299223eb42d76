"""Completion: the end or the beginning of every row is hidden, and predicted from the rest."""

import dataclasses

import jax
import jax.numpy as jnp

from lra_spt.errors import ConfigError
from lra_spt.objectives.denoising import HiddenDenoising, rounded_counts
from lra_spt.objectives.registry import register_objective


@register_objective('suffix')
@dataclasses.dataclass(frozen=True)
class SuffixCompletion(HiddenDenoising):
  """Hides the last positions of every row. Their number is drawn per row, uniformly from the smallest to the
  largest share of its valid positions, `hidden_share`, each rounded.

  Prefix language modeling (T5, arXiv 1910.10683, section 3.3.1) splits a text like this, but predicts the
  second part one position after the other; here all hidden positions are predicted at once.
  """

  hidden_share: tuple[float, float] = (0.25, 0.75)

  def __post_init__(self):
    low, high = self.hidden_share
    if not 0 < low <= high < 1:
      raise ConfigError(
        f'pretrain.hidden_share is {self.hidden_share}; give the smallest and the largest share of hidden '
        'positions, both between 0 and 1'
      )

  def hidden(self, valid_RL, keys_R):
    length, valid_R = valid_RL.shape[1], jnp.sum(valid_RL, axis=1)
    low_R, high_R = (jnp.asarray(rounded_counts(share, length))[valid_R] for share in self.hidden_share)
    draw = lambda key, low, high: jax.random.randint(key, (), low, high + 1)  # noqa: E731
    count_R = jax.vmap(draw)(keys_R, low_R, high_R)
    place_RL = jnp.arange(length)[None] - self._start(valid_R, count_R)[:, None]
    return (place_RL >= 0) & (place_RL < count_R[:, None])

  def _start(self, valid_R, count_R):
    """The first hidden position of each row."""
    return valid_R - count_R


@register_objective('prefix')
@dataclasses.dataclass(frozen=True)
class PrefixCompletion(SuffixCompletion):
  """Hides the first positions of every row; their number is drawn as that of `SuffixCompletion`."""

  def _start(self, valid_R, count_R):
    return jnp.zeros_like(valid_R)
