"""The encoder: embed -> position -> blocks -> final norm. Heads and objectives are separate."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from lra_spt.config.protocol import Protocol
from lra_spt.config.runtime import ExecutionSpec
from lra_spt.config.schema import ModelSpec
from lra_spt.distributed.sharding import constrain_positions, gather_parameters
from lra_spt.errors import ConfigError
from lra_spt.models import execution as executions
from lra_spt.models.layers import (
  Dropout,
  FeedForward,
  Norm,
  fold_rows,
  linear,
  sinusoidal_positions,
)
from lra_spt.models.registry import gates_residual, is_builtin, make_mixer, mixer_class


@dataclasses.dataclass(frozen=True)
class InputSpec:
  """The input of an encoder: token ids below `vocabulary` (int32 [B, L]) or `channels` values per position
  (float32 [B, L, C]), at most `length` positions."""

  length: int
  vocabulary: int = 0
  channels: int = 0


@dataclasses.dataclass(frozen=True)
class MixerSpec:
  """A mixer of a model's blocks: for at most `length` positions, causal or bidirectional. `place` is that in
  the period of mixers (`ModelSpec.period`), from 0."""

  model: ModelSpec
  length: int
  causal: bool
  protocol: Protocol
  execution: ExecutionSpec
  place: int = 0

  @property
  def name(self) -> str:
    """The name under which the mixer is registered."""
    return self.model.period[self.place]['name']

  @property
  def lacks_flops(self) -> bool:
    """True for a mixer from outside the package that does not count its operations."""
    return not hasattr(mixer_class(self.name), 'flops') and not is_builtin(self.name)

  @property
  def period(self) -> tuple['MixerSpec', ...]:
    """The mixers at all places of the period."""
    return tuple(dataclasses.replace(self, place=place) for place in range(len(self.model.period)))

  def make(self, rngs: nnx.Rngs, layer: int | jax.Array = 0) -> nnx.Module:
    """Builds the mixer of layer number `layer`, from 0.

    Raises:
      ConfigError: as `make_mixer`; where mixers take turns, it names the place of this one.
    """
    try:
      return self._make(rngs, layer)
    except ConfigError as error:
      if not self.model.mixers:
        raise
      raise ConfigError(re.sub(r'model\.mixer\b', f'model.mixers.{self.place}', str(error))) from error

  def _make(self, rngs, layer):
    options = {key: value for key, value in self.model.period[self.place].items() if key != 'name'}
    if self.execution.precision != 'float32':
      options['dtype'] = jnp.dtype(self.execution.precision)
    return make_mixer(
      self.name,
      self.model.width,
      options=options,
      offered={
        'attention': self.execution.attention,
        'scan': self.execution.scan,
        'convolution': self.execution.convolution,
        'depth': self.model.depth,
        'layer': layer,
      },
      length=self.length,
      causal=self.causal,
      protocol=self.protocol,
      rngs=rngs,
    )


class Block(nnx.Module):
  """A residual mixer and, for Transformers, a residual feed-forward layer, each with its own norm before the
  layer (pre-norm) or after the sum. They follow each other, or both read x (`parallel_residual`). The sum is
  x + y or, for a mixer that gates its residual, x + gate (y - x)."""

  def __init__(self, mixer: MixerSpec, *, layer: int | jax.Array, rngs: nnx.Rngs):
    spec = mixer.model
    norm = functools.partial(
      Norm, spec.norm, spec.width, over_padding=mixer.protocol.batchnorm_over_padding, rngs=rngs
    )
    self.prenorm, self.parallel = spec.prenorm, spec.parallel_residual
    self.mixer_norm = norm()
    self.mixer = mixer.make(rngs, layer)
    self.gates_residual = gates_residual(self.mixer)
    self.has_feed_forward = spec.feed_forward > 0
    if self.has_feed_forward:
      self.feed_forward_norm = norm()
      self.feed_forward = FeedForward(
        spec.width,
        spec.feed_forward,
        activation=spec.activation,
        gated=spec.gated_feed_forward,
        dropout=spec.dropout if spec.feed_forward_dropout is None else spec.feed_forward_dropout,
        tied=spec.tied_dropout,
        dtype=jnp.dtype(mixer.execution.precision),
        rngs=rngs,
      )
    self.dropout = Dropout(spec.dropout, spec.tied_dropout)

  def __call__(self, x_BLD: jax.Array, *, lengths_B, deterministic: bool, rngs) -> jax.Array:
    mixer, input_BLD = functools.partial(self.mixer, lengths_B=lengths_B), x_BLD
    x_BLD = self._residual(
      x_BLD, self.mixer_norm, mixer, lengths_B, deterministic, fold_rows(rngs, 0), gated=self.gates_residual
    )
    if self.has_feed_forward:
      x_BLD = self._residual(
        x_BLD,
        self.feed_forward_norm,
        self.feed_forward,
        lengths_B,
        deterministic,
        fold_rows(rngs, 1),
        read_BLD=input_BLD if self.parallel else None,
      )
    return x_BLD

  def mixer_input(self, x_BLD: jax.Array, *, lengths_B=None) -> jax.Array:
    """The array [B, L, D] that the mixer reads in evaluation, for the input x of the block."""
    return self.mixer_norm(x_BLD, lengths_B=lengths_B, deterministic=True) if self.prenorm else x_BLD

  def _residual(self, x_BLD, norm, layer, lengths_B, deterministic, rngs, gated=False, read_BLD=None):
    """Adds to x the output of a layer that reads `read_BLD` or, for None, x."""
    normalised = functools.partial(norm, lengths_B=lengths_B, deterministic=deterministic)
    y_BLD = x_BLD if read_BLD is None else read_BLD
    y_BLD = normalised(y_BLD) if self.prenorm else y_BLD
    y_BLD = layer(y_BLD, deterministic=deterministic, rngs=fold_rows(rngs, 0))
    dropout = functools.partial(self.dropout, deterministic=deterministic, rngs=fold_rows(rngs, 1))
    y_BLD = (dropout(y_BLD[0]), y_BLD[1]) if gated else dropout(y_BLD)
    x_BLD = x_BLD + increment(x_BLD, y_BLD)
    return constrain_positions(x_BLD if self.prenorm else normalised(x_BLD))


def increment(x_BLD: jax.Array, y_BLD: jax.Array | tuple[jax.Array, jax.Array]) -> jax.Array:
  """Returns the change of x by a layer, in the dtype of x: y or, for a pair (y, gate), gate (y - x)."""
  if not isinstance(y_BLD, tuple):
    return y_BLD.astype(x_BLD.dtype)
  y_BLD, gate_BLD = (part.astype(x_BLD.dtype) for part in y_BLD)
  return gate_BLD * (y_BLD - x_BLD)


def stacked(make_blocks, depth: int, rngs: nnx.Rngs) -> list[nnx.Module]:
  """Builds `depth` blocks with independent initial values, by P functions make_block(layer=, rngs=) in turn.

  Returns:
    For each function its blocks as one module, whose arrays all have a leading axis of depth / P layers.
  """
  period, keys = len(make_blocks), jax.random.split(rngs.params(), depth)
  return [
    _stack(make_block, jnp.arange(place, depth, period), keys[place::period])
    for place, make_block in enumerate(make_blocks)
  ]


def _stack(make_block, layers, keys):
  graphdefs = []

  def make(layer, key):
    graphdef, state = nnx.split(make_block(layer=layer, rngs=nnx.Rngs(key)))
    graphdefs.append(graphdef)  # the static part, the same for all layers
    return state

  states = jax.vmap(make)(layers, keys)
  return nnx.merge(graphdefs[0], states)


class Encoder(nnx.Module):
  """Maps a sequence to hidden states float32 [B, L, D]. Blocks are stored stacked, whether they are scanned
  or unrolled: those of each mixer in the period are one stack. `blocks` is that stack, or several in a list.
  """

  def __init__(
    self,
    spec: ModelSpec,
    inputs: InputSpec,
    *,
    causal: bool,
    protocol,
    execution: ExecutionSpec,
    rngs: nnx.Rngs,
  ):
    self.inputs, self.depth, self.execution = inputs, spec.depth, execution
    if inputs.vocabulary:
      self.embed = nnx.Embed(
        inputs.vocabulary, spec.width, embedding_init=nnx.initializers.normal(1.0), rngs=rngs
      )
    else:
      self.embed = linear(inputs.channels, spec.width, rngs=rngs)
    self.position_kind = spec.position
    if spec.position == 'learned':
      self.position = nnx.Param(0.02 * jax.random.normal(rngs.params(), (inputs.length, spec.width)))
    dropout = spec.input_dropout
    if dropout is None:
      dropout = spec.dropout if spec.position != 'none' else 0.0
    self.dropout = Dropout(dropout, spec.tied_dropout)
    mixer = MixerSpec(spec, inputs.length, causal, protocol, execution)
    stacks = stacked([functools.partial(Block, one) for one in mixer.period], spec.depth, rngs)
    self.blocks = nnx.List(stacks) if len(stacks) > 1 else stacks[0]
    self.has_norm = spec.prenorm
    if spec.prenorm:
      self.norm = Norm(spec.norm, spec.width, over_padding=protocol.batchnorm_over_padding, rngs=rngs)

  def __call__(
    self, inputs: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None
  ) -> jax.Array:
    """Returns hidden states float32 [B, L, D].

    inputs: int32 [B, L] ids or float32 [B, L, C].

    Raises:
      ConfigError: L exceeds the length of `InputSpec`, or C is not its number of channels.
    """
    x_BLD = self.embedded(inputs)
    return self.transformed(x_BLD, lengths_B=lengths_B, deterministic=deterministic, rngs=rngs)

  def embedded(self, inputs: jax.Array) -> jax.Array:
    """Embeds the inputs and adds their positions: float32 [B, L, D].

    Raises:
      ConfigError: as for a call.
    """
    length = inputs.shape[1]
    if length > self.inputs.length:
      raise ConfigError(
        f'the input has {length} positions, but this model was built for at most {self.inputs.length}; build '
        'it with a longer length or cut the input'
      )
    channels = self.inputs.channels
    if inputs.shape[2:] != (channels,) * bool(channels):
      takes = f'[B, L, {channels}], a flag of hidden positions included' if channels else '[B, L]'
      raise ConfigError(f'the input has the shape {inputs.shape}, but this model takes {takes}; change it')
    x_BLD = constrain_positions(self.embed(inputs))
    if self.position_kind != 'none':
      positions_LD = (
        sinusoidal_positions(length, x_BLD.shape[-1])
        if self.position_kind == 'sinusoidal'
        else self.position[...][:length]
      )
      x_BLD = x_BLD + positions_LD[None]
    return x_BLD

  def transformed(
    self, x_BLD: jax.Array, *, lengths_B=None, deterministic: bool = True, rngs=None
  ) -> jax.Array:
    """Returns the hidden states float32 [B, L, D] of embedded inputs."""
    x_BLD = self.dropout(x_BLD, deterministic=deterministic, rngs=fold_rows(rngs, self.depth))
    x_BLD = self._blocks(x_BLD, lengths_B, deterministic, rngs)
    return self.norm(x_BLD, lengths_B=lengths_B, deterministic=deterministic) if self.has_norm else x_BLD

  @property
  def stacks(self) -> list[Block]:
    """The blocks of each mixer in the period, as one module whose arrays have a leading axis of layers. Layer
    i is number i // P of stack i % P, if there are P of them."""
    return [self.blocks] if isinstance(self.blocks, Block) else list(self.blocks)

  def layer(self, number: int) -> Block:
    """The block of one layer, from 0."""
    return self.block(*divmod(number, len(self.stacks)))

  def block(self, number: int | jax.Array, place: int) -> Block:
    """Block `number` of the stack at `place` in the period, both from 0."""
    graphdef, state = nnx.split(self.stacks[place])
    take = lambda stacked: lax.dynamic_index_in_dim(stacked, number, keepdims=False)  # noqa: E731
    return nnx.merge(graphdef, jax.tree.map(take, state))

  def _blocks(self, x_BLD, lengths_B, deterministic, rngs):
    loop = executions.loops(self.execution, deterministic)
    policy = executions.policy(self.execution)
    parts = [nnx.split(stack, nnx.Param, ...) for stack in self.stacks]
    graphdefs, params, stats = (list(part) for part in zip(*parts, strict=True))
    period = len(graphdefs)

    def block(graphdef, x_BLD, params, stats, index):
      module = nnx.merge(graphdef, gather_parameters(params), stats)
      x_BLD = module(x_BLD, lengths_B=lengths_B, deterministic=deterministic, rngs=fold_rows(rngs, index))
      return x_BLD, nnx.state(module, nnx.Not(nnx.Param))

    def blocks(x_BLD, layers):
      (params, stats, first), new_stats = layers, []
      for place, graphdef in enumerate(graphdefs):
        run = functools.partial(block, graphdef)
        if policy is not None:
          # The backward pass of a scan is a separate loop, so XLA cannot merge it with the forward pass.
          run = jax.checkpoint(run, policy=policy, prevent_cse=not loop)
        x_BLD, one = run(x_BLD, params[place], stats[place], first + place)
        new_stats.append(one)
      return x_BLD, new_stats

    layers = (params, stats, jnp.arange(0, self.depth, period))
    if loop:
      x_BLD, new_stats = lax.scan(blocks, x_BLD, layers)
    else:
      # The transpose of lax.split is one concatenation. That of indexing is a sum of as many padded gradients
      # of the whole stack as it has layers.
      leaves, treedef = jax.tree.flatten(layers)
      periods = self.depth // period
      per_period = zip(*(lax.split(leaf, (1,) * periods) for leaf in leaves), strict=True)
      collected = []
      for one in per_period:
        x_BLD, of_period = blocks(x_BLD, treedef.unflatten([leaf[0] for leaf in one]))
        collected.append(of_period)
      new_stats = jax.tree.map(lambda *xs: jnp.stack(xs), *collected)
    for stack, one in zip(self.stacks, new_stats, strict=True):
      nnx.update(stack, one)
    return x_BLD
