"""Fingerprints of a prepared set, SHA-256 over all of its examples in stored order, and of its examples."""

import hashlib
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tqdm

from lra_spt.data.examples import SPLITS, open_source
from lra_spt.errors import DataError

FILE_ORDER = SPLITS
_CHUNK_BYTES = 16 * 2**20


def in_order(counts: Mapping[str, int]) -> list[str]:
  """The files that have examples, in the order in which they are written and fingerprinted: those of
  `FILE_ORDER`, then those of longer test splits by name."""
  further = sorted(file for file in counts if file not in FILE_ORDER)
  return [file for file in (*FILE_ORDER, *further) if counts.get(file)]


class Fingerprint:
  """A SHA-256 of examples, which are added file by file (`in_order`), each file from position 0 on."""

  def __init__(self):
    self._digest = hashlib.sha256()

  def add(self, file: str, position: int, label, documents: Sequence[np.ndarray]) -> None:
    """Adds the next example. Its label is a number, int32 [positions], or bool or float32 [K]. It has one
    document, or the two of a pair, C-contiguous."""
    if isinstance(label, np.ndarray):
      kind = 'positions' if label.dtype == np.int32 else label.dtype.name
      documents, label = [*documents, label], kind
    shapes = ':'.join(str(document.shape) for document in documents)
    self._digest.update(f'{file}:{position}:{label}:{shapes}:'.encode())
    for document in documents:
      self._digest.update(document.tobytes())

  def hex(self) -> str:
    return self._digest.hexdigest()


def digest(document: np.ndarray) -> int:
  """64 bits that are equal for equal arrays of one dtype."""
  return int.from_bytes(hashlib.blake2b(document.tobytes(), digest_size=8).digest(), 'little')


def input_key(digests: Iterable[int]) -> tuple[int, ...]:
  """A key of the inputs of an example, equal in whichever order a pair has its documents."""
  return tuple(sorted(digests))


def repeated(keys: Mapping[str, Sequence]) -> dict[str, int]:
  """Counts the examples of each file whose inputs occur in the training file. In the training file itself it
  counts those whose inputs occur earlier in it.

  Args:
    keys: {file: `input_key` of its examples}.
  """
  train = set(keys.get('train', ()))
  counts = {file: sum(key in train for key in of_file) for file, of_file in keys.items()}
  return counts | ({'train': len(keys['train']) - len(train)} if 'train' in keys else {})


def recomputed(folder: pathlib.Path, metadata: dict) -> str:
  """The fingerprint of the stored examples; shows a progress bar.

  Raises:
    DataError: an example cannot be read, or their number or length differs from metadata.json.
  """
  fingerprint, longest = Fingerprint(), 0
  counts = {file: metadata['counts'][file] for file in in_order(metadata['counts'])}
  bar = tqdm.tqdm(
    total=sum(counts.values()), desc=f'reading {folder.parent.name}', unit=' examples', disable=None
  )
  with bar:
    for file, count in counts.items():
      source = open_source(str(folder), file)
      if len(source) != count:
        raise DataError(
          f'The data set in {folder} has {len(source):,} examples in {file} instead of {count:,}; remove '
          f'{folder} and prepare it again.'
        )
      size = max(1, metadata.get('longest', 0)) * 8 * metadata.get('documents', 1)
      chunk = max(1, _CHUNK_BYTES // size)
      for start in range(0, count, chunk):
        records = source.read(np.arange(start, min(start + chunk, count)))
        for position, record in enumerate(records, start):
          inputs = record['inputs']
          pair = 'second_begins' in record
          documents = np.split(inputs, [record['second_begins']]) if pair else [inputs]
          fingerprint.add(file, position, record['label'], documents)
          if file in FILE_ORDER:
            longest = max(longest, *map(len, documents))
        bar.update(len(records))
  if longest != metadata.get('longest', longest):
    raise DataError(
      f'The longest example in {folder} has {longest:,} positions, but {metadata["longest"]:,} are recorded; '
      f'remove {folder} and prepare it again.'
    )
  return fingerprint.hex()


def check(folder: pathlib.Path, metadata: dict) -> None:
  """Raises a DataError unless the stored examples have the recorded fingerprint."""
  if (fingerprint := recomputed(folder, metadata)) != metadata['fingerprint']:
    raise DataError(
      f'The examples in {folder} are not those that were prepared: their fingerprint is '
      f'{fingerprint[:12]}..., but {metadata["fingerprint"][:12]}... is recorded; remove {folder} and '
      'prepare it again.'
    )
