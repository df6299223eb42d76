"""A mixture of objectives: every row is corrupted by one of them, drawn by weights."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from lra_spt.errors import ConfigError
from lra_spt.objectives import registry
from lra_spt.objectives.completion import SuffixCompletion
from lra_spt.objectives.denoising import Denoising
from lra_spt.objectives.spans import SpanDenoising


@registry.register_objective('mixture')
@dataclasses.dataclass(frozen=True)
class Mixture(Denoising):
  """Draws for every row one of the objectives `mixture`, with probabilities in proportion to
  `mixture_weights`. The key of the row draws, so one batch holds rows of all objectives, and an example is
  always evaluated by the same one.

  The idea is that of Birdie (arXiv 2411.01030), which also changes the weights during training, by a reward;
  these are fixed.

  Parts are objectives that inherit from `Denoising`, whose loss and metrics they share: a part adds what
  `corrupt` makes. The other fields are options of the parts. A mixture needs the causal form if a part does.
  """

  mask_rate: float = dataclasses.field(kw_only=True)
  mixture: tuple[str, ...] = ('masked', 'spans', 'suffix', 'prefix')
  mixture_weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
  span_lengths: tuple[int, ...] = SpanDenoising.span_lengths
  hidden_share: tuple[float, float] = SuffixCompletion.hidden_share

  def __post_init__(self):
    names, weights = self.mixture, self.mixture_weights
    if not names or len(names) != len(weights):
      raise ConfigError(
        f'pretrain.mixture names {len(names)} objectives, but pretrain.mixture_weights has {len(weights)} '
        'numbers; give each objective a weight'
      )
    if wrong := [name for name, weight in zip(names, weights, strict=True) if not 0 < weight < np.inf]:
      raise ConfigError(
        f'pretrain.mixture_weights is {weights}, but that of {wrong[0]!r} must be above 0; raise it, or '
        f'leave {wrong[0]!r} out of pretrain.mixture'
      )
    if twice := [name for name in names if names.count(name) > 1]:
      raise ConfigError(f'pretrain.mixture names {twice[0]!r} twice; add the two weights')
    known = {field.name for field in dataclasses.fields(self)}
    for name in names:
      if not issubclass(registry.get_objective(name), Denoising) or name == 'mixture':
        raise ConfigError(f'pretrain.mixture has {name!r}, which cannot be a part of a mixture; leave it out')
      if others := registry.options(name).keys() - known:
        raise ConfigError(
          f'pretrain.mixture has {name!r}, whose option {min(others)} a mixture does not hand on; leave it '
          'out'
        )
    _ = self.parts  # which check their options

  @functools.cached_property
  def parts(self) -> tuple[Denoising, ...]:
    """The objectives, in the order of their weights."""
    return tuple(
      registry.get_objective(name)(
        self.task, self.protocol, **{key: getattr(self, key) for key in registry.options(name)}
      )
      for name in self.mixture
    )

  @property
  def channels(self) -> int:
    """C of the model's input (0 for tokens), with the flag channel if a part has one."""
    return max(part.channels for part in self.parts)

  @property
  def needs_causal_form(self) -> bool:
    return any(getattr(part, 'needs_causal_form', False) for part in self.parts)

  @property
  def least_length(self) -> int:
    return max(getattr(part, 'least_length', 1) for part in self.parts)

  def corrupt(self, inputs, targets, valid_RL, keys_R):
    keys_R2 = jax.vmap(jax.random.split)(keys_R)
    bounds = np.cumsum(self.mixture_weights) / np.sum(self.mixture_weights)
    drawn_R = jax.vmap(jax.random.uniform)(keys_R2[:, 0])
    chosen_R = jnp.sum(drawn_R[:, None] >= jnp.asarray(bounds[:-1], jnp.float32)[None], axis=1)
    made = [self._made(part, inputs, targets, valid_RL, keys_R2[:, 1]) for part in self.parts]
    result = made[0]
    for number, other in enumerate(made[1:], 1):
      result = _replaced(result, other, chosen_R == number)
    return result

  def _made(self, part, inputs, targets, valid_RL, keys_R):
    """Corrupts the batch as a part does; its flag channel is 0 if the part has none."""
    inputs, targets, counted_RL = part.corrupt(inputs, targets, valid_RL, keys_R)
    if missing := self.channels - part.channels:
      inputs = jnp.pad(inputs, ((0, 0), (0, 0), (0, missing)))
    return inputs, targets, counted_RL


def _replaced(arrays, others, where_R):
  """The arrays with some rows replaced by those of others."""
  pick = lambda x, y: jnp.where(where_R.reshape(-1, *[1] * (x.ndim - 1)), y, x)  # noqa: E731
  return jax.tree.map(pick, arrays, others)
