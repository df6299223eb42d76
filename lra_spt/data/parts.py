"""The parts of a task: inputs, labels, groups, and what the published code does differently."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from lra_spt.data.splits import Splits
from lra_spt.errors import ConfigError

# Divisors of stored values: bytes come to lie in [0, 1], sound in [-1, 1], and real numbers stay.
SCALES = {'uint8': 255.0, 'int16': 32_768.0, 'float32': 1.0}
# A measured deviation below this share of the mean is rounding; float32 cannot separate such values.
_ROUNDING = 1e-9
UNLABELLED = -1  # the label of a position that does not count


@dataclasses.dataclass(frozen=True)
class Tokens:
  """Token ids, embedded by a table. Denoising restores ids, with cross-entropy over the vocabulary.

  Attributes:
    length: the largest number of ids in a sequence; shorter ones are padded to it.
    vocabulary: number of ids, including the special ones.
    documents: 2 if an example is a pair of sequences.
    mask_id: id of the token that replaces hidden ones.
    pad_id: id of the token that fills up shorter sequences.
  """

  length: int
  vocabulary: int
  documents: Literal[1, 2] = 1
  mask_id: int = 0
  pad_id: int = 1

  channels, padded = 0, True

  @property
  def dtype(self) -> str:
    """The dtype of stored ids."""
    return 'uint8' if self.vocabulary <= 256 else 'int32'

  @property
  def denoising_classes(self) -> int:
    """Number of symbols that a position can hold; denoising predicts one of them."""
    return self.vocabulary


@dataclasses.dataclass(frozen=True)
class Values:
  """Numbers, embedded by a linear layer. Denoising restores them normalised, with the absolute error (L1).

  Attributes:
    length: positions of every example; if they are `padded`, of the longest.
    mean: mean of stored values / scale: floats per channel [C], or an array per position and channel [L, C].
      It can be left out if `measured` is True, and so can `std`.
    std: standard deviation of stored values / scale, with the shape of `mean`.
    dtype: dtype of stored values and of batches: bytes, sound or real numbers.
    scale: divisor of stored values, applied first; None takes the one of the dtype, see `SCALES`.
    grayscale: the set holds RGB and the task reads its luminance, one channel. The host converts an example
      when it reads it, so that one prepared set serves both and a copy in memory is three times smaller.
    measured: preparation measures mean and std on the training file (`statistics` in the metadata of the
      set); others given here are not used. A channel that is constant in the training file becomes 0.
    channels: C, values per position; 0 takes it from `mean`, and without one it is 1.
    padded: examples may be shorter than `length`. They are filled up; models do not see the padding, and
      denoising does not restore it.

  Raises:
    ConfigError: values cannot be stored in this dtype, the normalisation is missing, or `channels` is not
      that of `mean`.
  """

  length: int
  mean: tuple[float, ...] | np.ndarray | None = None
  std: tuple[float, ...] | np.ndarray | None = None
  dtype: Literal['uint8', 'int16', 'float32'] = 'uint8'
  scale: float | None = None
  grayscale: bool = False
  measured: bool = False
  channels: int = dataclasses.field(default=0, compare=False)  # it follows from `mean`
  padded: bool = False

  documents, vocabulary = 1, 0
  denoising_classes = 0

  def __post_init__(self):
    if self.dtype not in SCALES:
      raise ConfigError(f'Values of dtype {self.dtype!r} are not stored; choose one of {", ".join(SCALES)}.')
    if self.scale is None:
      object.__setattr__(self, 'scale', SCALES[self.dtype])
    if (self.mean is None or self.std is None) and not self.measured:
      raise ConfigError('Values have no mean or no std; give both, or measured=True.')
    if self.padded and self.grayscale:
      raise ConfigError('Values that are padded cannot be read in gray; leave out one of the two.')
    if self.mean is None or self.std is None:
      object.__setattr__(self, 'mean', (0.0,) * (self.channels or 1))
      object.__setattr__(self, 'std', (1.0,) * (self.channels or 1))
    channels = np.shape(self.mean)[-1]
    if self.channels not in (0, channels):
      raise ConfigError(
        f'Values have channels={self.channels}, but a mean of {channels}; give one mean for every channel.'
      )
    object.__setattr__(self, 'channels', channels)

  def __eq__(self, other):
    return isinstance(other, Values) and all(
      np.array_equal(getattr(self, field.name), getattr(other, field.name))
      for field in dataclasses.fields(self)
    )

  def normalised_by(self, statistics: Mapping) -> 'Values':
    """The values with the mean and deviation {'mean': [C], 'std': [C]} of stored values. A channel that never
    varies gets the deviation 1, so it becomes 0."""
    mean_C, std_C = (np.asarray(statistics[part]) / self.scale for part in ('mean', 'std'))
    std_C = np.where(never_vary(statistics), 1.0, std_C)
    return dataclasses.replace(self, mean=tuple(mean_C.tolist()), std=tuple(std_C.tolist()))


@dataclasses.dataclass(frozen=True)
class Bytes:
  """One byte per position, embedded by a linear layer. Denoising restores the byte, with cross-entropy.

  Attributes:
    length: positions of every example.
    mean: mean of stored bytes / 255.
    std: standard deviation of stored bytes / 255.
  """

  length: int
  mean: float = 0.5
  std: float = 0.5

  dtype, scale = 'uint8', SCALES['uint8']
  documents, channels, vocabulary = 1, 1, 0
  denoising_classes, padded = 256, False


@dataclasses.dataclass(frozen=True)
class ByteTokens:
  """One byte per position, read as a token and not as a number; see `Task.with_byte_tokens`.

  A table embeds it, with a row for each byte and one for `mask_id`. Denoising restores the byte, with
  cross-entropy.

  Attributes:
    length: see `Values`.
    grayscale: see `Values`.
  """

  length: int
  grayscale: bool = False

  dtype = 'uint8'
  documents, channels, denoising_classes, padded = 1, 0, 256, False
  mask_id, vocabulary = 256, 257

  @property
  def names(self) -> tuple[str, ...]:
    """The token of each id: the byte in decimal, the form in which language models read it, and `<mask>`."""
    return (*map(str, range(self.denoising_classes)), '<mask>')


# Kinds of labels. Each names its `scores`, of which one is the main score of a task (the first, unless the
# task has a `metric`), and its `measures`: all scores that a test reports, see `lra_spt.data.measures`.


@dataclasses.dataclass(frozen=True)
class Classes:
  """Each example has one of `count` classes. With two classes, AUROC may be the main score; models then
  answer with the probability of class 1."""

  count: int

  measures = ('accuracy', 'macro_f1')

  @property
  def scores(self) -> tuple[str, ...]:
    """The names that `Task.metric` may have."""
    return (*self.measures, 'auroc') if self.count == 2 else self.measures


@dataclasses.dataclass(frozen=True)
class PerPosition:
  """Each position of an example has one of `count` classes, or the label -1: such a position does not count.
  Models answer at every position; padding has no label."""

  count: int

  scores = measures = Classes.measures


@dataclasses.dataclass(frozen=True)
class MultiLabel:
  """Each example has any number of `count` labels, true or false each. Models answer with the probability of
  each; from 0.5 on, an example is said to have the label."""

  count: int

  scores, measures = ('macro_f1', 'auroc'), ('macro_f1', 'auroc', 'mean_average_precision')


@dataclasses.dataclass(frozen=True)
class Real:
  """Each example has a number, or one in each of several dimensions.

  Attributes:
    mean: mean of the training labels; `lra-spt inspect` prints it. The model answers (label - mean) / std, so
      other values make training slower and change the meaning of a learning rate. Several dimensions have a
      tuple, here and in `std`.
    std: standard deviation of the training labels.
    range: the least and the largest label of the (published) training split; several dimensions have a tuple
      of such pairs. Only protocol paper scales by it.
    measured: preparation measures all three on the training file; others given here are not used.
    dimensions: numbers of an example; those of `mean`, if it is given.

  Raises:
    ConfigError: one of the three is missing, and they are not measured, or they differ in their dimensions.
  """

  mean: float | tuple[float, ...] | None = None
  std: float | tuple[float, ...] | None = None
  range: tuple[float, float] | tuple[tuple[float, float], ...] | None = None
  measured: bool = False
  dimensions: int = dataclasses.field(default=1, compare=False)  # it follows from `mean`

  count = 0
  scores, measures = ('r2',), ('r2', 'mae', 'rmse')

  def __post_init__(self):
    for name, value in (('mean', 0.0), ('std', 1.0), ('range', (-1.0, 1.0))):
      if getattr(self, name) is None:
        if not self.measured:
          raise ConfigError(f'Real labels have no {name}; give mean, std and range, or measured=True.')
        object.__setattr__(self, name, value if self.dimensions == 1 else (value,) * self.dimensions)
    object.__setattr__(self, 'dimensions', np.size(self.mean))
    if not self.dimensions == np.size(self.std) == np.size(self.range) / 2:
      raise ConfigError(
        f'Real labels have mean={self.mean}, std={self.std} and range={self.range}; give each dimension one.'
      )

  def normalised_by(self, statistics: Mapping) -> 'Real':
    """The labels with measured constants, {'mean', 'std', 'least', 'largest': [K]}. Labels that never vary
    get the deviation 1."""
    std_K = np.where(never_vary(statistics), 1.0, statistics['std']).tolist()
    means_K, lows_K, highs_K = (statistics[part] for part in ('mean', 'least', 'largest'))
    ranges_K = tuple(
      (low, high) if low < high else (mean - std, mean + std)
      for mean, std, low, high in zip(means_K, std_K, lows_K, highs_K, strict=True)
    )
    if len(std_K) == 1:
      return Real(means_K[0], std_K[0], ranges_K[0], measured=True)
    return Real(tuple(means_K), tuple(std_K), ranges_K, measured=True)


@dataclasses.dataclass(frozen=True)
class Groups:
  """Examples that belong together and are not independent, such as windows of one patient.

  Attributes:
    one: name of a group, in the singular; the plural adds an s.
    members: name of its examples, in the plural.
  """

  one: str
  members: str

  @property
  def name(self) -> str:
    """The name of groups, in the plural."""
    return f'{self.one}s'


@dataclasses.dataclass(frozen=True)
class Published:
  """Departures of the published code from good practice on a task; see `lra_spt.config.protocol`.

  Attributes:
    splits: the published splits, if they differ (`Protocol.published_splits`).
    identity_head: denoising has no output projection (`Protocol.identity_token_head`).
    position_statistics: every position is normalised separately (`Protocol.position_statistics`).
    input_range: the least and the largest stored value / scale of each channel in the published training
      split; inputs are mapped to [-1, 1] by it (`Protocol.input_range`). Empty: they are not.
    worst_checkpoint: pretraining keeps the worst checkpoint (`Protocol.worst_checkpoint`).
  """

  splits: Splits | None = None
  identity_head: bool = False
  position_statistics: bool = False
  input_range: tuple[tuple[float, float], ...] = ()
  worst_checkpoint: bool = False


@dataclasses.dataclass(frozen=True)
class ArraySpec:
  """Shape and dtype of an array that does not exist yet."""

  shape: tuple[int, ...]
  dtype: np.dtype

  @property
  def size(self) -> int:
    """Number of elements."""
    return math.prod(self.shape)

  @property
  def nbytes(self) -> int:
    return self.size * self.dtype.itemsize


def never_vary(statistics: Mapping) -> np.ndarray:
  """True for constant channels, bool [C], from their statistics {'mean': [C], 'std': [C]}."""
  mean_C, std_C = (np.asarray(statistics[part], np.float64) for part in ('mean', 'std'))
  return std_C <= _ROUNDING * np.abs(mean_C)
