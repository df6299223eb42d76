"""The contents of one split of a prepared set, in numbers."""

import dataclasses

import numpy as np

from lra_spt.data import tasks, tokenizers
from lra_spt.data.fingerprints import digest, input_key

_CHUNK_BYTES = 16 * 2**20
# Numbers of each split in a histogram.
_IN_HISTOGRAM = 100_000
# Copies that are listed for each pair of splits.
SHOWN_PAIRS = 3


class StoredValues:
  """Statistics of the numbers of a split, added up chunk by chunk.

  Attributes:
    least, most: per channel [C].
    constant: number of examples whose values are all equal.
  """

  def __init__(self, channels: int, every: int):
    """Keeps one position in `every` for a histogram."""
    self._count, self._every = 0, every
    self._sum, self._squares = np.zeros(channels), np.zeros(channels)
    self._chunks = []
    self.least, self.most = np.full(channels, np.inf), np.full(channels, -np.inf)
    self.constant = 0

  def add(self, x_BLC):
    x_NC = x_BLC.reshape(-1, x_BLC.shape[-1]).astype(np.float64)
    self._count += len(x_NC)
    self._sum += x_NC.sum(0)
    self._squares += (x_NC**2).sum(0)
    self.least = np.minimum(self.least, x_NC.min(0))
    self.most = np.maximum(self.most, x_NC.max(0))
    self.constant += int((x_BLC == x_BLC[:, :1]).all((1, 2)).sum())
    self._chunks.append(x_NC[:: self._every])

  @property
  def mean(self) -> np.ndarray:
    """float64 [C]."""
    return self._sum / self._count

  @property
  def std(self) -> np.ndarray:
    """float64 [C]; exactly 0 for a channel that never varies."""
    std = np.sqrt(np.maximum(self._squares / self._count - self.mean**2, 0))
    return np.where(self.least == self.most, 0, std)

  @property
  def some(self) -> np.ndarray:
    """A part of the numbers, float64 [n, C]."""
    return np.concatenate(self._chunks)

  def normalised(self, task: tasks.Task) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation [C] after the normalisation of the task."""
    inputs = task.inputs
    return (self.mean / inputs.scale - inputs.mean) / inputs.std, self.std / inputs.scale / inputs.std


@dataclasses.dataclass
class Contents:
  """The n examples that were read of one split.

  Attributes:
    split, file, total: its name, the stored file that it reads, and the number of its examples.
    index: positions in the stored file, int64 [n].
    label: as in batches, [n] or [n, ...].
    lengths: int64 [n, documents].
    digest: uint64 [n, documents]; equal for equal inputs.
    ids: int64 [256 or more], the number of occurrences of each token id; zeros for values.
    unended: number of documents whose last id is not `<eos>`.
    values: None for tokens.
  """

  split: str
  file: str
  total: int
  index: np.ndarray
  label: np.ndarray
  lengths: np.ndarray
  digest: np.ndarray
  ids: np.ndarray
  unended: int
  values: StoredValues | None

  def __len__(self):
    return len(self.label)

  def class_counts(self, classes: int) -> np.ndarray:
    """Counts how often each class occurs, over examples or, for labels of positions, over labelled ones."""
    if self.label.dtype == bool:
      return self.label.sum(0)
    return np.bincount(self.label[self.label >= 0], minlength=classes)

  @property
  def real_label(self) -> np.ndarray:
    """The real labels of the examples that have one, float64 [m, K]."""
    label_NK = self.label.reshape(len(self.label), -1).astype(np.float64)
    return label_NK[~np.isnan(label_NK).any(1)]

  @property
  def unlabelled(self) -> int:
    """The number of examples without a label."""
    label_NK = self.label.reshape(len(self.label), -1)
    none_NK = np.isnan(label_NK) if label_NK.dtype.kind == 'f' else label_NK < 0
    return 0 if label_NK.dtype == bool else int(none_NK.all(1).sum())

  @property
  def keys(self) -> list:
    """A key for each example: equal for equal inputs, in whichever order a pair has its documents."""
    return [input_key(row) for row in self.digest.tolist()]


@dataclasses.dataclass(frozen=True)
class Overlap:
  """Examples of split `second` whose inputs occur in split `first`.

  Attributes:
    first, second: names of splits; if they are equal, only earlier examples count.
    same: number of examples that both splits read from the same place.
    copies, agree: number of other examples with equal inputs, and of those among them with an equal label.
    pairs: some copies: (index in the file of `first`, in the file of `second`, True for equal labels).
  """

  first: str
  second: str
  same: int
  copies: int
  agree: int
  pairs: tuple[tuple[int, int, bool], ...]


@dataclasses.dataclass(frozen=True)
class Documents:
  """Documents that two splits share.

  Attributes:
    first, second: names of the splits.
    distinct, shared: number of distinct documents of `second`, and of those among them that `first` has.
    pairs: number of pairs of `second` that hold a shared document.
  """

  first: str
  second: str
  distinct: int
  shared: int
  pairs: int


def read(split, file: str, positions: np.ndarray, bar) -> Contents:
  """Reads examples of a split and moves a progress bar.

  Args:
    split: an `examples.Examples`.
    file: name of its stored file.
    positions: of the examples, int64 [n].
    bar: a tqdm bar.
  """
  task = split.task
  row = task.batch()['inputs']
  chunk = max(1, _CHUNK_BYTES // (row.size * row.dtype.itemsize))
  labels, indices, all_lengths, digests = [], [], [], []
  ids, unended = np.zeros(max(256, task.vocabulary), np.int64), 0
  # An odd stride reaches every position of a square image.
  values = StoredValues(task.channels, len(positions) * task.length // _IN_HISTOGRAM | 1)
  for start in range(0, len(positions), chunk):
    batch = split.gather(positions[start : start + chunk])
    count = len(batch['label'])
    documents = batch['inputs'].reshape(count * task.documents, -1)
    lengths = batch['lengths'].reshape(-1).astype(np.int64)
    if isinstance(task.inputs, tasks.Tokens):
      documents = [ids_L[:length] for ids_L, length in zip(documents, lengths, strict=True)]
      ids += np.bincount(np.concatenate(documents), minlength=len(ids))
      unended += sum(not len(ids_L) or ids_L[-1] != tokenizers.END for ids_L in documents)
    elif task.inputs.padded:
      documents = [x_L[: n * task.channels] for x_L, n in zip(documents, lengths.tolist(), strict=True)]
      for x_L in documents:
        values.add(x_L.reshape(1, -1, task.channels))
    else:
      values.add(documents.reshape(count, task.length, task.channels))
    labels.append(batch['label'])
    indices.append(batch['index'].astype(np.int64))
    all_lengths.append(lengths.reshape(count, task.documents))
    digests.append(np.array([digest(d) for d in documents], np.uint64).reshape(count, task.documents))
    bar.update(count)
  return Contents(
    split=split.split,
    file=file,
    total=len(split),
    index=np.concatenate(indices),
    label=np.concatenate(labels),
    lengths=np.concatenate(all_lengths),
    digest=np.concatenate(digests),
    ids=ids,
    unended=unended,
    values=None if isinstance(task.inputs, tasks.Tokens) else values,
  )


def overlap(first: Contents, second: Contents) -> Overlap:
  """Compares the inputs of two splits, or of one split with its earlier examples if both are the same."""
  earlier, same, copies, agree, pairs = {}, 0, 0, 0, []
  within = first is second
  if not within:
    for key, index, label in zip(first.keys, first.index.tolist(), first.label.tolist(), strict=True):
      earlier.setdefault(key, []).append((index, label))
  for key, index, label in zip(second.keys, second.index.tolist(), second.label.tolist(), strict=True):
    equal = earlier.get(key, ())
    if first.file == second.file and any(other == index for other, _ in equal):
      same += 1
    elif equal:
      other, agrees = next(((i, True) for i, known in equal if known == label), (equal[0][0], False))
      copies, agree = copies + 1, agree + agrees
      pairs.append((other, index, agrees))
    if within:
      earlier.setdefault(key, []).append((index, label))
  pairs = tuple(sorted(pairs, key=lambda pair: pair[2])[:SHOWN_PAIRS])
  return Overlap(first.split, second.split, same, copies, agree, pairs)


def shared_documents(first: Contents, second: Contents) -> Documents:
  """Compares the documents of two splits, whatever their partners are."""
  distinct = np.unique(second.digest)
  known = np.isin(second.digest, first.digest)
  shared = int(np.isin(distinct, first.digest).sum())
  return Documents(first.split, second.split, len(distinct), shared, int(known.any(1).sum()))


def is_image(task: tasks.Task) -> bool:
  """True if an example is a square of bytes."""
  side = round(task.length**0.5)
  return not task.inputs.padded and task.inputs.dtype == 'uint8' and side * side == task.length
