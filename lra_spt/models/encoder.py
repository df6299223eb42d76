"""The encoder: embed -> position -> blocks -> final norm. Heads and objectives are separate."""

import dataclasses
import functools

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
from lra_spt.models.registry import gates_residual, make_mixer


@dataclasses.dataclass(frozen=True)
class InputSpec:
  """The input of an encoder: token ids below `vocabulary` (int32 [B, L]) or `channels` values per position
  (float32 [B, L, C]), at most `length` positions."""

  length: int
  vocabulary: int = 0
  channels: int = 0


@dataclasses.dataclass(frozen=True)
class MixerSpec:
  """The mixer of a model's blocks: for at most `length` positions, causal or bidirectional."""

  model: ModelSpec
  length: int
  causal: bool
  protocol: Protocol
  execution: ExecutionSpec

  def make(self, rngs: nnx.Rngs, layer: int | jax.Array = 0) -> nnx.Module:
    """Builds the mixer of layer number `layer`, from 0. Raises the errors of `make_mixer`."""
    options = {key: value for key, value in self.model.mixer.items() if key != 'name'}
    if self.execution.precision != 'float32':
      options['dtype'] = jnp.dtype(self.execution.precision)
    return make_mixer(
      self.model.mixer['name'],
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


def stacked(make_block, depth: int, rngs: nnx.Rngs):
  """Builds `depth` blocks make_block(layer=, rngs=) with independent initial values, as one module whose
  arrays all have a leading depth axis."""
  graphdefs = []

  def make(layer, key):
    graphdef, state = nnx.split(make_block(layer=layer, rngs=nnx.Rngs(key)))
    graphdefs.append(graphdef)  # the static part, the same for all layers
    return state

  states = jax.vmap(make)(jnp.arange(depth), jax.random.split(rngs.params(), depth))
  return nnx.merge(graphdefs[0], states)


class Encoder(nnx.Module):
  """Maps a sequence to hidden states float32 [B, L, D]. Blocks are stored stacked, whether they are scanned
  or unrolled."""

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
    self.blocks = stacked(functools.partial(Block, mixer), spec.depth, rngs)
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

  def layer(self, number: int | jax.Array) -> Block:
    """The block of one layer, from 0."""
    graphdef, state = nnx.split(self.blocks)
    take = lambda stacked: lax.dynamic_index_in_dim(stacked, number, keepdims=False)  # noqa: E731
    return nnx.merge(graphdef, jax.tree.map(take, state))

  def _blocks(self, x_BLD, lengths_B, deterministic, rngs):
    loop = executions.loops(self.execution, deterministic)
    graphdef, params, stats = nnx.split(self.blocks, nnx.Param, ...)

    def block(x_BLD, layer):
      params, stats, index = layer
      module = nnx.merge(graphdef, gather_parameters(params), stats)
      x_BLD = module(x_BLD, lengths_B=lengths_B, deterministic=deterministic, rngs=fold_rows(rngs, index))
      return x_BLD, nnx.state(module, nnx.Not(nnx.Param))

    if (policy := executions.policy(self.execution)) is not None:
      # The backward pass of a scan is a separate loop, so XLA cannot merge it with the forward pass.
      block = jax.checkpoint(block, policy=policy, prevent_cse=not loop)
    layers = (params, stats, jnp.arange(self.depth))
    if loop:
      x_BLD, stats = lax.scan(block, x_BLD, layers)
    else:
      # The transpose of lax.split is one concatenation. That of indexing is a sum of `depth` padded gradients
      # of the whole stack.
      leaves, treedef = jax.tree.flatten(layers)
      per_layer = zip(*(lax.split(leaf, (1,) * self.depth) for leaf in leaves), strict=True)
      collected = []
      for layer in per_layer:
        x_BLD, layer_stats = block(x_BLD, treedef.unflatten([leaf[0] for leaf in layer]))
        collected.append(layer_stats)
      stats = jax.tree.map(lambda *xs: jnp.stack(xs), *collected)
    nnx.update(self.blocks, stats)
    return x_BLD
