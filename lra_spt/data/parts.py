"""The parts of a task: inputs, labels, groups, and what the published code does differently."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from lra_spt.data.splits import Splits
from lra_spt.errors import ConfigError

# What stored values are divided by, so that bytes lie in [0, 1], sound in [-1, 1], and real numbers stay.
SCALES = {'uint8': 255.0, 'int16': 32_768.0, 'float32': 1.0}
# A measured deviation of less than this share of the mean is rounding: float32 tells no such values apart.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Tokens:
  """Token ids, embedded by a table. Denoising restores ids, with cross-entropy over the vocabulary.

  Attributes:
    length: the largest number of ids in a sequence; shorter ones are padded to it.
    vocabulary: number of ids, including the special ones.
    documents: 2 where an example is a pair of sequences.
    mask_id: of the token that replaces what is hidden.
    pad_id: of the token that fills up shorter sequences.
  """

  length: int
  vocabulary: int
  documents: Literal[1, 2] = 1
  mask_id: int = 0
  pad_id: int = 1

  channels = 0

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
    length: positions of every example.
    mean: of stored values / scale: floats per channel [C], or an array per position and channel [L, C].
    std: the standard deviation, likewise.
    dtype: of stored values, and of batches: bytes, sound or real numbers.
    scale: stored values are divided by it before anything else; None: the one of the dtype, see `SCALES`.
    grayscale: the set holds RGB and the task reads its luminance, one channel. It is converted on the host
      when an example is read, so that one prepared set serves both and a copy in memory is three times
      smaller.
    measured: mean and std come from the training file; preparation measures them (`statistics` in the set's
      metadata). The ones given here are placeholders until the set is opened. A channel that is constant in
      the training file becomes 0.

  Raises:
    ConfigError: the dtype is not one that values can be stored in.
  """

  length: int
  mean: tuple[float, ...] | np.ndarray
  std: tuple[float, ...] | np.ndarray
  dtype: Literal['uint8', 'int16', 'float32'] = 'uint8'
  scale: float | None = None
  grayscale: bool = False
  measured: bool = False

  documents, vocabulary = 1, 0
  denoising_classes = 0

  def __post_init__(self):
    if self.dtype not in SCALES:
      raise ConfigError(f'Values of dtype {self.dtype!r} are not stored; choose one of {", ".join(SCALES)}.')
    if self.scale is None:
      object.__setattr__(self, 'scale', SCALES[self.dtype])

  def __eq__(self, other):
    return isinstance(other, Values) and all(
      np.array_equal(getattr(self, field.name), getattr(other, field.name))
      for field in dataclasses.fields(self)
    )

  @property
  def channels(self) -> int:
    """Values per position."""
    return np.shape(self.mean)[-1]


@dataclasses.dataclass(frozen=True)
class Bytes:
  """One byte per position, embedded by a linear layer. Denoising restores the byte, with cross-entropy.

  Attributes:
    length: positions of every example.
    mean: of stored bytes / 255.
    std: the standard deviation, likewise.
  """

  length: int
  mean: float = 0.5
  std: float = 0.5

  dtype, scale = 'uint8', SCALES['uint8']
  documents, channels, vocabulary = 1, 1, 0
  denoising_classes = 256


@dataclasses.dataclass(frozen=True)
class ByteTokens:
  """One byte per position, read as a token instead of a number: embedded by a table with a row for each byte
  and one for `mask_id`. Denoising restores the byte, with cross-entropy. See `Task.with_byte_tokens`.

  Attributes:
    length: see `Values`.
    grayscale: see `Values`.
  """

  length: int
  grayscale: bool = False

  dtype = 'uint8'
  documents, channels, denoising_classes = 1, 0, 256
  mask_id, vocabulary = 256, 257

  @property
  def names(self) -> tuple[str, ...]:
    """The token of each id: the byte in decimal, as language models read numbers, and `<mask>`."""
    return (*map(str, range(self.denoising_classes)), '<mask>')


@dataclasses.dataclass(frozen=True)
class Classes:
  """Each example has one of `count` classes."""

  count: int


@dataclasses.dataclass(frozen=True)
class Real:
  """Each example has a number.

  Attributes:
    mean: of the training labels, as `lra-spt inspect` prints it. The model answers (label - mean) / std, so
      other values make training slower and change what a learning rate means.
    std: the standard deviation, likewise.
    range: the least and the largest label of the training split (of a published task, its published one);
      only protocol paper scales by it.
  """

  mean: float
  std: float
  range: tuple[float, float]

  count = 0


@dataclasses.dataclass(frozen=True)
class Groups:
  """Examples that belong together and are not independent, such as windows of one patient.

  one: what a group is called, in the singular; the plural adds an s. members: its examples, in the plural.
  """

  one: str
  members: str

  @property
  def name(self) -> str:
    """What groups are called, in the plural."""
    return f'{self.one}s'


@dataclasses.dataclass(frozen=True)
class Published:
  """What the published code does with a task that departs from good practice; see `lra_spt.config.protocol`.

  Attributes:
    splits: its splits, where they differ (`Protocol.published_splits`).
    identity_head: it denoises without an output projection (`Protocol.identity_token_head`).
    position_statistics: it normalises every position separately (`Protocol.position_statistics`).
    unscaled_inputs: it does not normalise (`Protocol.unscaled_inputs`).
    worst_checkpoint: its pretraining keeps the worst checkpoint (`Protocol.worst_checkpoint`).
  """

  splits: Splits | None = None
  identity_head: bool = False
  position_statistics: bool = False
  unscaled_inputs: bool = False
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
  """Which channels are constant, bool [C], from their {'mean': [C], 'std': [C]}."""
  mean_C, std_C = (np.asarray(statistics[part], np.float64) for part in ('mean', 'std'))
  return std_C <= _ROUNDING * np.abs(mean_C)
