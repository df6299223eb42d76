"""Mixers with one mistake each, and the words of the error that names it."""

import jax
import jax.numpy as jnp
from flax import nnx

from lra_spt.models import register_mixer


class Convolution(nnx.Module):
  """A correct short convolution, from which the broken mixers below are made."""

  def __init__(self, width, *, length, causal, protocol, rngs):
    self.causal = causal
    self.kernel_3D = nnx.Param(jax.random.normal(rngs.params(), (3, width)))

  def __call__(self, x_BLD, *, lengths_B, deterministic, rngs):
    if lengths_B is not None:
      x_BLD = jnp.where((jnp.arange(x_BLD.shape[1])[None] < lengths_B[:, None])[..., None], x_BLD, 0.0)
    ahead = 0 if self.causal else 1
    padded = jnp.pad(x_BLD, ((0, 0), (2 - ahead, ahead), (0, 0)))
    return sum(self.kernel_3D[...][None, None, i] * padded[:, i : i + x_BLD.shape[1]] for i in range(3))


@register_mixer('good')
class Good(Convolution):
  pass


@register_mixer('ignores_causal')
class IgnoresCausal(Convolution):
  def __init__(self, width, *, causal, **common):
    super().__init__(width, causal=False, **common)


@register_mixer('ignores_lengths')
class IgnoresLengths(Convolution):
  def __call__(self, x_BLD, *, lengths_B, deterministic, rngs):
    return super().__call__(x_BLD, lengths_B=None, deterministic=deterministic, rngs=rngs)


@register_mixer('silent_at_first')
class SilentAtFirst(IgnoresLengths):
  """Its output starts as zeros, which hides its mistake."""

  def __init__(self, width, **common):
    super().__init__(width, **common)
    self.gain_D = nnx.Param(jnp.zeros(width))

  def __call__(self, *arguments, **common):
    return self.gain_D[...][None, None] * super().__call__(*arguments, **common)


class MaskedMean(Convolution):
  """The mean of all visible positions. If `queries` are masked too, a masked query sees none."""

  queries, fill = True, -jnp.inf

  def __call__(self, x_BLD, *, lengths_B, deterministic, rngs):
    valid_BL = jnp.ones(x_BLD.shape[:2], bool)
    if lengths_B is not None:
      valid_BL = jnp.arange(x_BLD.shape[1])[None] < lengths_B[:, None]
    seen_BLM = valid_BL[:, None] & (valid_BL[:, :, None] | (not self.queries))
    weights_BLM = jax.nn.softmax(jnp.where(seen_BLM, x_BLD.sum(2)[:, None], self.fill))
    return jnp.where(valid_BL[..., None], weights_BLM @ x_BLD, 0.0) * self.kernel_3D[...][None, :1]


@register_mixer('masks_queries')
class MasksQueries(MaskedMean):
  """Its output is finite, but its gradient is not, because jnp.where does not stop it."""


@register_mixer('masks_keys')
class MasksKeys(MaskedMean):
  queries = False


@register_mixer('masks_by_a_number')
class MasksByANumber(MaskedMean):
  fill = -1e9


@register_mixer('divides_by_valid')
class DividesByValid(Convolution):
  """It divides by 0 at padded positions."""

  def __call__(self, x_BLD, **common):
    y_BLD = super().__call__(x_BLD, **common)
    if common['lengths_B'] is None:
      return y_BLD
    valid_BL = jnp.arange(x_BLD.shape[1])[None] < common['lengths_B'][:, None]
    return y_BLD / valid_BL[..., None].astype(jnp.float32)


@register_mixer('sums_rows')
class SumsRows(Convolution):
  """A scan over axis 0, written for arrays [L, B, D]."""

  def __call__(self, x_BLD, **common):
    return super().__call__(jnp.cumsum(x_BLD, axis=0), **common)


@register_mixer('sums_rows_silently')
class SumsRowsSilently(Convolution):
  """It sums over rows, from the last one on; its output starts as the input."""

  def __init__(self, width, **common):
    super().__init__(width, **common)
    self.gain_D = nnx.Param(jnp.zeros(width))

  def __call__(self, x_BLD, **common):
    return x_BLD + self.gain_D[...][None, None] * super().__call__(jnp.cumsum(x_BLD[::-1], 0)[::-1], **common)


@register_mixer('normalises')
class Normalises(Convolution):
  """It normalises over the batch in training, but not in evaluation."""

  def __init__(self, width, *, rngs, **common):
    super().__init__(width, rngs=rngs, **common)
    self.norm = nnx.BatchNorm(width, rngs=rngs)

  def __call__(self, x_BLD, *, deterministic, **common):
    y_BLD = super().__call__(x_BLD, deterministic=deterministic, **common)
    return self.norm(y_BLD, use_running_average=deterministic)


@register_mixer('no_call')
class NoCall(nnx.Module):
  def __init__(self, width, *, length, causal, protocol, rngs):
    self.causal = causal


@register_mixer('sums_positions')
class SumsPositions(Convolution):
  def __call__(self, *arguments, **common):
    return super().__call__(*arguments, **common).sum(1, keepdims=True)


@register_mixer('sums_blocks')
class SumsBlocks(Convolution):
  """The sum of each block of 64 positions except the first: it looks ahead within its block."""

  def __call__(self, x_BLD, **common):
    y_BLD = super().__call__(x_BLD, **common)
    B, L, D = x_BLD.shape
    blocks_BNKD = jnp.pad(x_BLD, ((0, 0), (0, -L % 64), (0, 0))).reshape(B, -1, 64, D)
    sums_BND = blocks_BNKD.sum(2).at[:, 0].set(0.0)
    return y_BLD + jnp.repeat(sums_BND, 64, axis=1)[:, :L]


@register_mixer('returns_two')
class ReturnsTwo(Convolution):
  def __call__(self, *arguments, **common):
    return super().__call__(*arguments, **common), None


@register_mixer('gates_by_one')
class GatesByOne(Convolution):
  gates_residual = True


@register_mixer('gates')
class Gates(Convolution):
  gates_residual = True

  def __call__(self, *arguments, **common):
    y_BLD = super().__call__(*arguments, **common)
    return y_BLD, nnx.sigmoid(y_BLD)


@register_mixer('half_precision')
class HalfPrecision(Convolution):
  def __call__(self, *arguments, **common):
    return super().__call__(*arguments, **common).astype(jnp.float16)


@register_mixer('root_at_zero')
class RootAtZero(Convolution):
  """Its output is finite, but the derivative of a root at 0 is not."""

  def __init__(self, width, **common):
    super().__init__(width, **common)
    self.gain_D = nnx.Param(jnp.zeros(width))

  def __call__(self, *arguments, **common):
    return (1 + jnp.sqrt(self.gain_D[...]))[None, None] * super().__call__(*arguments, **common)


@register_mixer('divides_by_zero')
class DividesByZero(Convolution):
  def __call__(self, *arguments, **common):
    return super().__call__(*arguments, **common) / jnp.zeros(())


@register_mixer('own_dropout')
class OwnDropout(Convolution):
  """Draws from its own stream of random numbers and not from the keys of the call."""

  def __init__(self, width, *, rngs, **common):
    super().__init__(width, rngs=rngs, **common)
    self.dropout = nnx.Dropout(0.5, rngs=rngs)

  def __call__(self, x_BLD, *, lengths_B, deterministic, rngs):
    y_BLD = super().__call__(x_BLD, lengths_B=lengths_B, deterministic=deterministic, rngs=rngs)
    return self.dropout(y_BLD, deterministic=deterministic)


@register_mixer('row_dropout')
class RowDropout(Convolution):
  """Draws by the key of each row, which the contract demands."""

  def keep(self, rngs, shape):
    return jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, shape[1:]))(rngs)

  def __call__(self, x_BLD, *, lengths_B, deterministic, rngs):
    y_BLD = super().__call__(x_BLD, lengths_B=lengths_B, deterministic=deterministic, rngs=rngs)
    return y_BLD if deterministic else jnp.where(self.keep(rngs, y_BLD.shape), 2 * y_BLD, 0)


@register_mixer('drops_by_the_first_key')
class DropsByTheFirstKey(RowDropout):
  def keep(self, rngs, shape):
    return jax.random.bernoulli(rngs[0], 0.5, shape)


@register_mixer('drops_all_rows_alike')
class DropsAllRowsAlike(RowDropout):
  def keep(self, rngs, shape):
    return jnp.broadcast_to(jax.random.bernoulli(rngs[0], 0.5, shape[1:])[None], shape)


class Declared(DropsAllRowsAlike):
  shared_draws = 'the positions that it drops'


register_mixer('shares_on_purpose')(Declared)


@register_mixer('shares_and_sums_rows')
class SharesAndSumsRows(Declared):
  def __call__(self, x_BLD, **common):
    y_BLD = super().__call__(x_BLD, **common)
    return y_BLD if common['deterministic'] else jnp.cumsum(y_BLD, axis=0)


@register_mixer('shares_less_than_it_says')
class SharesLessThanItSays(DropsByTheFirstKey):
  shared_draws = 'the positions that it drops'


@register_mixer('shares_without_saying_what')
class SharesWithoutSayingWhat(DropsAllRowsAlike):
  shared_draws = True


@register_mixer('old_call')
class OldCall(Convolution):
  def __call__(self, x_BLD, mask=None):
    return x_BLD


@register_mixer('keeps_an_array')
class KeepsAnArray(Convolution):
  def __init__(self, width, **common):
    super().__init__(width, **common)
    self.inner = nnx.Linear(width, width, rngs=common['rngs'])
    self.inner.scale_D = jnp.ones(width)


@register_mixer('keeps_what_it_saw')
class KeepsWhatItSaw(Convolution):
  def __call__(self, x_BLD, **common):
    self.seen = nnx.Intermediate(x_BLD)
    return super().__call__(x_BLD, **common)


@register_mixer('recurrent')
class Recurrent(nnx.Module):
  """Its parts hold random keys, which they never use."""

  def __init__(self, width, *, length, causal, protocol, rngs):
    self.causal = causal
    self.cells = nnx.RNN(nnx.SimpleCell(width, width, rngs=rngs), rngs=rngs)
    self.dropout = nnx.Dropout(0.0, rngs=rngs)

  def __call__(self, x_BLD, *, lengths_B, deterministic, rngs):
    return self.dropout(self.cells(x_BLD), deterministic=deterministic)


@register_mixer('needs_blocks')
class NeedsBlocks(Convolution):
  """Accepts only whole blocks of 48 positions."""

  def __call__(self, x_BLD, **common):
    B, L, D = x_BLD.shape
    return super().__call__(x_BLD.reshape(B, L // 48, 48, D).reshape(B, L, D), **common)


BROKEN = {
  ('ignores_causal', True): "causal form of the mixer 'ignores_causal' looks ahead",
  ('ignores_lengths', False): "'ignores_lengths' lets padding through",
  ('silent_at_first', False): "'silent_at_first' lets padding through",
  ('sums_positions', False): r"'sums_positions' returns \(2, 1, 8\) for an input of \(2, 40, 8\)",
  ('returns_two', False): "'returns_two' returns .*: return one array",
  ('gates_by_one', False): "'gates_by_one' returns .*: return a pair of arrays, output and gate",
  ('half_precision', False): "'half_precision' returns float16 for an input of float32",
  ('root_at_zero', False): "'root_at_zero' has a gradient that is not finite for gain_D",
  ('divides_by_zero', False): "'divides_by_zero' returns numbers that are not finite",
  ('keeps_an_array', False): "'keeps_an_array' keeps a plain array, self.inner.scale_D",
  ('keeps_what_it_saw', False): "'keeps_what_it_saw' has self.seen after a call",
  ('own_dropout', False): "'own_dropout' returns other numbers .* from `rngs`",
  ('old_call', False): "'old_call' cannot be called as mixer.* give __call__",
  ('no_call', False): r"'no_call' cannot be called as mixer.* \(it has no __call__\)",
  ('masks_queries', False): "'masks_queries' has numbers that are not finite in the gradient of its input",
  ('divides_by_valid', False): "'divides_by_valid' has numbers that are not finite in its output where a row",
  ('sums_rows', False): "'sums_rows' mixes the rows of a batch",
  ('sums_rows_silently', True): "'sums_rows_silently' mixes the rows of a batch",
  ('drops_by_the_first_key', False): "'drops_by_the_first_key' draws for one row with the key of another",
  ('drops_all_rows_alike', True): "'drops_all_rows_alike' draws for one .* attribute shared_draws",
  ('shares_and_sums_rows', False): "'shares_and_sums_rows' draws for one row with the key of another",
  ('shares_less_than_it_says', False): "'shares_less_than_it_says' draws for one row with the key of another",
  ('shares_without_saying_what', False): "'shares_without_saying_what' sets shared_draws to True: name what",
}
