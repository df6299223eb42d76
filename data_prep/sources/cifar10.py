"""CIFAR-10 from the official archives or unpacked folders, binary or Python version.

Examples keep the official order: data_batch_1 to 5 are the training file, test_batch is the test file. An
image is 1,024 RGB pixels, row by row. Grayscale tasks convert when they read
(`lra_spt.data.examples.luminance`).
"""

import functools
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from data_prep import archives, builders, catalogue, finding, raw_files, verification
from data_prep.sources import python_batches
from lra_spt.errors import DataError, MissingFile

TRAIN = tuple(f'data_batch_{i}' for i in range(1, 6))
TEST = 'test_batch'
# Checksums of the members of the Python form; those of the binary members are not published.
MEMBERS_MD5 = {
  'data_batch_1': 'c99cafc152244af753f735de768cd75f',
  'data_batch_2': 'd4bba439e000b95fd0a9bffe97cbabec',
  'data_batch_3': '54ebc095f3ab1f0389bbae665268c751',
  'data_batch_4': '634d18415352ddfa80567beed471001a',
  'data_batch_5': '482c414d41f54cd18b22e5b47cb7c3cb',
  'test_batch': '40351d587109b95175f43aff81a1287e',
}
BATCH = 10_000
_PIXELS = 1024
_RECORD = 1 + 3 * _PIXELS
# Largest number of bytes of a batch: 30,730,000 in the binary form, 31 million in the Python form.
MOST = 32 * 2**20


Files = Mapping[str, tuple[np.ndarray, np.ndarray]]


class Images(NamedTuple):
  """The official images.

  Attributes:
    path: of the archive or folder.
    files: {'train', 'test': (images uint8 [n, 1024, 3], labels int32 [n])}.
    verified: True if they are known to be the official ones.
  """

  path: pathlib.Path
  files: Files
  verified: bool


def _rows_to_images(rows: np.ndarray) -> np.ndarray:
  """Official rows, uint8 [n, 3072] in channel, row, column order -> uint8 [n, 1024, 3]."""
  return np.ascontiguousarray(rows.reshape(-1, 3, _PIXELS).transpose(0, 2, 1))


def _check_labels(labels, name):
  if len(labels) and not (0 <= min(labels) and max(labels) <= 9):
    position = next(i for i, label in enumerate(labels) if not 0 <= label <= 9)
    raise DataError(
      f'{name}: image {position} has label {labels[position]}; labels of CIFAR-10 run from 0 to 9, so '
      'the file is damaged; get it again.'
    )


def parse_binary(content: bytes, name: str):
  """One batch of the binary form: records of a label byte and 3,072 pixel bytes.

  Returns:
    images uint8 [n, 1024, 3], labels int32 [n].

  Raises:
    DataError: the file is truncated or empty, or has a label above 9.
  """
  if not content or len(content) % _RECORD:
    raise DataError(
      f'{name} has {len(content):,} bytes, which is not a whole number of records of {_RECORD:,} bytes; '
      'the file is truncated or damaged; get it again.'
    )
  records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
  labels = records[:, 0].astype(np.int32)
  _check_labels(labels.tolist(), name)
  return _rows_to_images(records[:, 1:]), labels


def parse_python(content: bytes, name: str):
  """One batch of the Python form: a pickled dict with b'data' uint8 [n, 3072] and b'labels'.

  Returns:
    images uint8 [n, 1024, 3], labels int32 [n].

  Raises:
    DataError: the file has another content.
  """
  try:
    data, labels = python_batches.read(content)
  except ValueError as error:
    raise DataError(f'{name} is not a CIFAR-10 batch ({error}); get it again.') from None
  if data.shape != (len(labels), 3 * _PIXELS) or not labels:
    raise DataError(f'{name} does not hold images of 3,072 bytes with as many labels; get it again.')
  _check_labels(labels, name)
  return _rows_to_images(data), np.asarray(labels, np.int32)


def _contents(path, archive, accept_unverified):
  """{file name: bytes} of the six batches in their order, and True if they are the official ones."""
  suffix = '' if archive.members_known else '.bin'
  names = [f'{name}{suffix}' for name in (*TRAIN, TEST)]
  if path.is_file():
    verified = verification.check(path, archive.sha256, accept_unverified)
    return archives.members(path, archive.unpacked, names, MOST), verified
  missing = [name for name in names if not (path / name).is_file()]
  if missing:
    raise MissingFile(f'{path} lacks {", ".join(missing)}: {finding.advice("cifar10")}.')
  checks = [verification.check(path / name, MEMBERS_MD5.get(name), accept_unverified) for name in names]
  return {name: raw_files.read(path / name, MOST) for name in names}, all(checks)


def read(raw_dir, accept_unverified: bool, accept_incomplete: bool) -> Images:
  """The official images; for arguments and errors see `prepare_cifar10`."""
  path, archive = finding.require('cifar10', raw_dir)
  contents, verified = _contents(path, archive, accept_unverified)
  batches = []
  for name, content in contents.items():
    parse = parse_binary if name.endswith('.bin') else parse_python
    batches.append(parse(content, f'{path}/{name}'))
  verification.check_counts(
    path,
    {name: len(labels) for name, (_, labels) in zip(contents, batches, strict=True)},
    dict.fromkeys(contents, BATCH),
    accept_unverified=accept_unverified,
    accept_incomplete=accept_incomplete,
  )
  train = tuple(np.concatenate(arrays) for arrays in zip(*batches[:-1], strict=True))
  return Images(path, {'train': train, 'test': batches[-1]}, verified)


def source(original: Images, description: str, files: Files) -> builders.Source:
  """The source of a set with these files, from the images of `read`."""

  def examples(file):
    images, labels = files[file]
    return zip(images, labels.tolist(), strict=True)

  verified = ('SHA256' if original.path.is_file() else 'MD5') if original.verified else 'none'
  return builders.Source(
    description=description,
    citation='Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.',
    files={file: functools.partial(examples, file) for file in files},
    counts={file: len(labels) for file, (_, labels) in files.items()},
    classes=len(catalogue.SETS['cifar10'].class_names),
    shape=files['train'][0].shape[1:],
    origin=f'files {original.path.name}',
    verified=original.verified,
    extra={'verification': verified},
  )


def prepare_cifar10(
  data_dir,
  *,
  raw_dir=None,
  accept_unverified: bool = False,
  accept_incomplete: bool = False,
  dataset: str = 'cifar10',
):
  """Imports CIFAR-10.

  Args:
    data_dir: folder for prepared sets.
    raw_dir: folder that holds an official archive or unpacked folder, or is the unpacked folder.
    accept_unverified: import files that differ from the official ones or have no official checksum (the
      unpacked binary form has none).
    accept_incomplete: import batches of fewer images than the official ones.
    dataset: name of the set.

  Returns:
    The folder of the set.

  Raises:
    MissingFile, DataError, InUse: see `builders.prepare_set`; the message says where to get a missing file.
  """

  def load(work):
    del work  # takes seconds, not worth resuming
    images = read(raw_dir, accept_unverified, accept_incomplete)
    description = 'CIFAR-10: 32 x 32 colour images of ten classes, 1,024 RGB pixels row by row.'
    return source(images, description, images.files)

  return builders.prepare_set(dataset, data_dir, {'from': 'files'}, load)
