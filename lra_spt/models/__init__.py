"""Models: an encoder of mixer blocks, and a head. They know sizes, never tasks."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.config.protocol import Protocol
from lra_spt.config.runtime import ExecutionSpec
from lra_spt.config.schema import HEADS, ModelSpec
from lra_spt.distributed import settings
from lra_spt.errors import ConfigError
from lra_spt.models import controls, mixers  # importing mixers registers them  # noqa: F401
from lra_spt.models.encoder import Encoder, InputSpec, MixerSpec
from lra_spt.models.heads import Head, HeadSpec
from lra_spt.models.registry import ParameterGroup, make_mixer, mixer_class, register_mixer

__all__ = [
  'Encoder',
  'ExecutionSpec',
  'Head',
  'HeadSpec',
  'InputSpec',
  'MixerSpec',
  'Model',
  'ModelSpec',
  'ParameterGroup',
  'Recipe',
  'make_mixer',
  'register_mixer',
]


def redraw(model: nnx.Module, spec: ModelSpec, rngs: nnx.Rngs) -> None:
  """Replaces parameters by draws from N(0, random_std^2). spec.random_init chooses them: all parameters, the
  state-space parameters (paper, section 3.3), or the matrices of linear maps and embeddings. Modules with a
  method `redrawn` then update the values that they derive from initial ones.

  Raises:
    ConfigError: the model has no such parameters.
  """
  named = [(path, variable) for path, variable in nnx.iter_graph(model) if isinstance(variable, nnx.Param)]
  if spec.random_init == 'matrices':
    maps = {path[:-1] for path, _ in named if path[-1] == 'kernel'}
    for path, variable in named:
      if path[-1] == 'bias' and path[:-1] in maps:
        variable.set_value(jnp.zeros_like(variable.get_value()))
    named = [(path, variable) for path, variable in named if path[-1] in ('kernel', 'embedding')]
  variables = [variable for _, variable in named]
  if spec.random_init == 'ssm':
    variables = [variable for variable in variables if variable.get_metadata('ssm', False)]
  if not variables:
    raise ConfigError(
      f"model.random_init is 'ssm', but the mixer {spec.mixer_name!r} has no state-space parameters; choose "
      "'' or 'all'"
    )
  for variable in variables:
    value = variable.get_value()
    variable.set_value(spec.random_std * jax.random.normal(rngs.params(), value.shape, value.dtype))
  for _, module in nnx.iter_graph(model):
    if hasattr(type(module), 'redrawn'):
      module.redrawn()


class Model(nnx.Module):
  """Encoder and head: outputs = model(inputs, lengths_B=..., deterministic=..., rngs=...).

  With `spec.shuffle` the encoder reads positions in the order of `controls.reading_order`: the j-th one that
  it reads is at position j. Answers per position return to their original places. Pooling follows the reading
  order: 'last' takes the valid position that is read last.
  """

  def __init__(
    self,
    spec: ModelSpec,
    inputs: InputSpec,
    head: HeadSpec,
    *,
    causal: bool,
    protocol,
    execution: ExecutionSpec,
    rngs: nnx.Rngs,
  ):
    self.encoder = Encoder(spec, inputs, causal=causal, protocol=protocol, execution=execution, rngs=rngs)
    self.head = Head(head, spec.width, rngs=rngs)
    if spec.shuffle and causal and head.kind not in HEADS:
      raise ConfigError(
        'model.shuffle lets a causal model read the next element before it predicts it; choose regime=masked '
        'or regime=scratch, or leave model.shuffle out'
      )
    self.shuffle = spec.shuffle
    if spec.random_init:
      redraw(self, spec, rngs)

  @settings.fixed()
  def __call__(
    self, inputs: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None
  ) -> jax.Array:
    inputs, place_BL = self.as_read(inputs, lengths_B)
    hidden_BLD = self.encoder(inputs, lengths_B=lengths_B, deterministic=deterministic, rngs=rngs)
    if self.shuffle and self.head.spec.kind not in HEADS:
      hidden_BLD = controls.rearranged(hidden_BLD, place_BL)
    return self.head(hidden_BLD, lengths_B=lengths_B)

  def as_read(self, inputs: jax.Array, lengths_B=None) -> tuple[jax.Array, jax.Array | None]:
    """The inputs in the order in which the encoder reads them, and the place of each position, int32 [B, L],
    or None where it reads them as they are."""
    if not self.shuffle:
      return inputs, None
    rank_L = controls.shuffle_ranks(self.encoder.inputs.length)
    order_BL, place_BL = controls.reading_order(rank_L, inputs.shape[:2], lengths_B)
    return controls.rearranged(inputs, order_BL), place_BL

  def flops(self, length: int) -> int:
    """Floating-point operations of one forward pass over one sequence: 2 per matrix weight and position, plus
    those that mixers count."""
    matrices = 0
    for path, leaf in nnx.to_flat_state(nnx.state(self, nnx.Param)):
      if leaf.get_value().ndim >= 2 and path[-1] == 'kernel':
        pooled = path[0] == 'head' and self.head.spec.kind in HEADS
        per_row = leaf.get_value().size if self.head.spec.kind == 'match' else 2 * leaf.get_value().size
        matrices += per_row if pooled else 2 * leaf.get_value().size * length
    stacks = self.encoder.stacks
    counted = sum(stack.mixer.flops(length) for stack in stacks if hasattr(stack.mixer, 'flops'))
    return matrices + self.encoder.depth // len(stacks) * counted


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
  """All arguments of a model; recipe(rngs) builds it. Recipes that build the same model are equal. A recipe
  with a mixer from outside the package cannot be hashed, because code that this mixer calls may change."""

  spec: ModelSpec
  inputs: InputSpec
  head: HeadSpec
  causal: bool
  protocol: Protocol
  execution: ExecutionSpec

  def __call__(self, rngs: nnx.Rngs) -> Model:
    return Model(
      self.spec,
      self.inputs,
      self.head,
      causal=self.causal,
      protocol=self.protocol,
      execution=self.execution,
      rngs=rngs,
    )

  def __eq__(self, other):
    return isinstance(other, Recipe) and repr(self) == repr(other)  # options of mixers may be lists

  def __hash__(self):
    names = [mixer['name'] for mixer in self.spec.period]
    if not all(mixer_class(name).__module__.startswith('lra_spt.') for name in names):
      raise TypeError('unhashable: a mixer from outside the package')
    return hash(repr(self))
