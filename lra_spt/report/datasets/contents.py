"""What was read of a split and what is unusual about it: numbers, without words."""

import dataclasses
import hashlib
import statistics
from collections.abc import Sequence

import numpy as np

from lra_spt.data import tasks, tokenizers

_CHUNK_BYTES = 16 * 2**20
# Values kept for a histogram of each split, and ListOps expressions evaluated again in each.
_KEPT, EVALUATED = 100_000, 500
# Copies that are named, of every pair of splits.
SHOWN_PAIRS = 5
_LISTOPS = {
  '[MIN': min,
  '[MAX': max,
  '[MED': lambda digits: int(statistics.median(digits)),
  '[SM': lambda digits: sum(digits) % 10,
}


@dataclasses.dataclass
class Values:
  """Stored numbers of a split.

  Attributes:
    mean, std, least, most: per channel [C].
    constant: how many examples hold one value only.
    some: a share of the numbers [n, C], for a histogram.
  """

  mean: np.ndarray
  std: np.ndarray
  least: np.ndarray
  most: np.ndarray
  constant: int
  some: np.ndarray

  def normalised(self, task: tasks.Task) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation [C] as the encoder eats them."""
    of = task.inputs
    return (self.mean / of.scale - of.mean) / of.std, self.std / of.scale / of.std


@dataclasses.dataclass
class Contents:
  """What was read of one split.

  Attributes:
    split, file, total: its name, the stored file it reads, and how many examples it has.
    positions, index: int64 [n], of what was read: the position in the split and in the stored file.
    label: int32 or float32 [n].
    lengths: int64 [n, documents].
    digest: uint64 [n, documents], equal for equal inputs.
    ids: int64 [256], how often every token id occurs; empty for values.
    unended: documents whose last id is not `<eos>`.
    values: of values; None for tokens.
  """

  split: str
  file: str
  total: int
  positions: np.ndarray
  index: np.ndarray
  label: np.ndarray
  lengths: np.ndarray
  digest: np.ndarray
  ids: np.ndarray
  unended: int
  values: Values | None

  def __len__(self):
    return len(self.label)

  @property
  def keys(self) -> list:
    """One for each example, equal for equal inputs, whichever document of a pair comes first."""
    return [tuple(sorted(row)) for row in self.digest.tolist()]


@dataclasses.dataclass(frozen=True)
class Overlap:
  """How many examples of `second` have the inputs of another example, of `first`.

  Attributes:
    first, second: splits; where they are one, only earlier examples of it count.
    same: examples that are in both splits, because both read them from the same place.
    copies, agree: those with equal inputs, and how many of them have an equal label too.
    pairs: a few of them: indices in the stored files of `first` and `second`, and whether labels agree.
  """

  first: str
  second: str
  same: int
  copies: int
  agree: int
  pairs: tuple[tuple[int, int, bool], ...]


@dataclasses.dataclass(frozen=True)
class Documents:
  """Pairs: distinct documents of `second`, how many of them `first` has, and pairs with at least one such."""

  first: str
  second: str
  distinct: int
  shared: int
  pairs: int


def read(split, file: str, positions: np.ndarray, bar) -> Contents:
  """Reads some examples of an `examples.Examples`, whose stored file has this name; moves a progress bar."""
  task = split.task
  row = task.batch()['inputs']
  chunk = max(1, _CHUNK_BYTES // (row.size * row.dtype.itemsize))
  labels, indices, all_lengths, digests = [], [], [], []
  ids, unended = np.zeros(max(256, task.vocabulary), np.int64), 0
  # Odd, so that every position of a square image has its turn.
  moments = _Moments(task.channels, len(positions) * task.length // _KEPT | 1)
  for start in range(0, len(positions), chunk):
    batch = split.gather(positions[start : start + chunk])
    count = len(batch['label'])
    documents = batch['inputs'].reshape(count * task.documents, -1)
    lengths = batch['lengths'].reshape(-1).astype(np.int64)
    if isinstance(task.inputs, tasks.Tokens):
      documents = [ids_L[:length] for ids_L, length in zip(documents, lengths, strict=True)]
      ids += np.bincount(np.concatenate(documents), minlength=len(ids))
      unended += sum(not len(ids_L) or ids_L[-1] != tokenizers.END for ids_L in documents)
    else:
      moments.add(documents.reshape(count, task.length, task.channels))
    labels.append(batch['label'])
    indices.append(batch['index'].astype(np.int64))
    all_lengths.append(lengths.reshape(count, task.documents))
    digests.append(np.array([_digest(d) for d in documents], np.uint64).reshape(count, task.documents))
    bar.update(count)
  return Contents(
    split=split.split,
    file=file,
    total=len(split),
    positions=positions,
    index=np.concatenate(indices),
    label=np.concatenate(labels),
    lengths=np.concatenate(all_lengths),
    digest=np.concatenate(digests),
    ids=ids,
    unended=unended,
    values=None if isinstance(task.inputs, tasks.Tokens) else moments.values(),
  )


def _digest(document):
  return int.from_bytes(hashlib.blake2b(document.tobytes(), digest_size=8).digest(), 'little')


class _Moments:
  """Adds up the values of a split, chunk by chunk."""

  def __init__(self, channels, every):
    self._count, self._constant, self._every = 0, 0, every
    self._sum, self._squares = np.zeros(channels), np.zeros(channels)
    self._least, self._most = np.full(channels, np.inf), np.full(channels, -np.inf)
    self._some = []

  def add(self, x_BLC):
    x_NC = x_BLC.reshape(-1, x_BLC.shape[-1]).astype(np.float64)
    self._count += len(x_NC)
    self._sum += x_NC.sum(0)
    self._squares += (x_NC**2).sum(0)
    self._least = np.minimum(self._least, x_NC.min(0))
    self._most = np.maximum(self._most, x_NC.max(0))
    self._constant += int((x_BLC == x_BLC[:, :1]).all((1, 2)).sum())
    self._some.append(x_NC[:: self._every])

  def values(self):
    mean = self._sum / self._count
    std = np.sqrt(np.maximum(self._squares / self._count - mean**2, 0))
    std[self._least == self._most] = 0  # and not what rounding leaves
    some = np.concatenate(self._some)
    return Values(mean, std, self._least, self._most, self._constant, some)


def overlap(first: Contents, second: Contents) -> Overlap:
  """Looks for inputs that occur twice: in two splits, or earlier in one split where both are the same."""
  earlier, same, copies, agree, pairs = {}, 0, 0, 0, []
  within = first is second
  if not within:
    for key, index, label in zip(first.keys, first.index.tolist(), first.label.tolist(), strict=True):
      earlier.setdefault(key, []).append((index, label))
  for key, index, label in zip(second.keys, second.index.tolist(), second.label.tolist(), strict=True):
    found = earlier.get(key, ())
    itself = first.file == second.file and any(other == index for other, _ in found)
    if itself:
      same += 1
    elif found:
      other, agrees = next(((i, True) for i, known in found if known == label), (found[0][0], False))
      copies, agree = copies + 1, agree + agrees
      pairs.append((other, index, agrees))
    if within:
      earlier.setdefault(key, []).append((index, label))
  pairs = tuple(sorted(pairs, key=lambda pair: pair[2])[:SHOWN_PAIRS])
  return Overlap(first.split, second.split, same, copies, agree, pairs)


def shared_documents(first: Contents, second: Contents) -> Documents:
  """Looks for documents that occur in two splits, with the same partner or another."""
  distinct = np.unique(second.digest)
  known = np.isin(second.digest, first.digest)
  shared = int(np.isin(distinct, first.digest).sum())
  return Documents(first.split, second.split, len(distinct), shared, int(known.any(1).sum()))


def is_image(task: tasks.Task) -> bool:
  """Whether an example is a square of bytes."""
  side = round(task.length**0.5)
  of = task.inputs
  return not isinstance(of, tasks.Tokens) and of.dtype == 'uint8' and side * side == task.length


def evaluate(tokens: Sequence[str]) -> int | None:
  """The value of a ListOps expression in the tokens of the model; None for one that is not whole."""
  open_operators = []
  for position, token in enumerate(tokens):
    if token in _LISTOPS:
      open_operators.append((_LISTOPS[token], []))
      continue
    if token == 'X' and open_operators and open_operators[-1][1]:
      operator, arguments = open_operators.pop()
      value = operator(arguments)
    elif token.isdigit():
      value = int(token)
    else:
      return None
    if not open_operators:
      return value if position == len(tokens) - 1 else None
    open_operators[-1][1].append(value)
  return None


def evaluate_again(split, positions) -> tuple[int, int, int]:
  """ListOps: how many of these expressions were evaluated, of these how many differ from their label, and how
  many are cut off."""
  vocabulary = split.metadata['vocabulary']
  batch = split.gather(positions)
  found = [
    evaluate([vocabulary[i] for i in ids[: length - 1]])
    for ids, length in zip(batch['inputs'].tolist(), batch['lengths'].tolist(), strict=True)
  ]
  wrong = sum(v is not None and v != label for v, label in zip(found, batch['label'].tolist(), strict=True))
  cut = found.count(None)
  return len(found) - cut, wrong, cut
