"""Places and checks of prepared sets.

A prepared set is a TFDS folder `<data_dir>/<dataset>/<VERSION>/` of ArrayRecord files. Its metadata.json
records the origin of the examples and the size and SHA-256 of each file, so that damaged or exchanged files
are noticed before they are read. Verified files are recorded beside the set, by size, time and inode, so that
a set is hashed once and not whenever it is opened.

A set in a bucket is copied to this machine when it is first opened, because ArrayRecord reads only files, and
examples are read one by one. Copies are in the folder LRA_SPT_SETS, else in ~/.cache/lra_spt/sets, or in the
folder for temporary files if there is no home or it cannot be written to.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time

import tqdm

from lra_spt.config.values import problem
from lra_spt.errors import DataError, FieldError, InUse, MissingFile, touching
from lra_spt.files import atomic as files_lib
from lra_spt.files import checksums

VERSION = '1.0.0'
NAME = re.compile('[a-z][a-z0-9_]*')  # of a set
METADATA, CHECKED = 'metadata.json', '.checked.json'
INFO, FEATURES = 'dataset_info.json', 'features.json'  # which TFDS writes and reads
COPYING = '.unfinished'  # suffix of a folder in which a copy is made
# Classes and keys in features.json of `data_prep.builders`. Others are refused, because TFDS imports the
# module of any class that the file names.
_FEATURES = {
  f'tensorflow_datasets.core.features.{name}'
  for name in (
    'features_dict.FeaturesDict',
    'tensor_feature.Tensor',
    'class_label_feature.ClassLabel',
    'scalar.Scalar',
  )
}
_CLASS = 'pythonClassName'
_FEATURE_KEYS = {
  *(_CLASS, 'featuresDict', 'features', 'inputs', 'label', 'second_begins'),
  *('tensor', 'shape', 'dimensions', 'dtype', 'encoding', 'classLabel', 'numClasses'),
}


def dataset_folder(data_dir, dataset: str) -> pathlib.Path:
  """The folder of a prepared set, which may not exist; for a set in a bucket, the folder of its copy.

  Raises:
    DataError: the set in the bucket is damaged or has no checksums.
    FileAccessError: it cannot be read or copied.
  """
  folder = files_lib.place(data_dir).expanduser() / dataset / VERSION
  if not files_lib.is_bucket(data_dir) or not (folder / METADATA).is_file():
    return folder
  name = checksums.of_file(folder / METADATA)[:32]  # it holds the checksums of all files
  copy = _folder_of_copies() / name
  if not copy.is_dir():
    _make_copy(folder, copy)
  return copy / dataset / VERSION


def _folder_of_copies() -> pathlib.Path:
  if named := os.environ.get('LRA_SPT_SETS', '').strip():
    return files_lib.place(named)
  home = pathlib.Path(os.path.expanduser('~'))
  copies = home / '.cache' / 'lra_spt' / 'sets'
  with contextlib.suppress(OSError):
    if home.is_absolute():
      copies.mkdir(parents=True, exist_ok=True)
      if os.access(copies, os.W_OK):
        return copies
  return pathlib.Path(tempfile.gettempdir(), f'lra_spt_sets_{os.getuid()}')


def _make_copy(folder, copy: pathlib.Path) -> None:
  """Copies a set from a bucket. One process of a machine does it, and the others wait."""
  place, announced = copy.with_name(f'{copy.name}{COPYING}'), False
  while not copy.is_dir():
    try:
      with files_lib.owned(place, f'copying {folder} to'), touching(place, 'written to'):
        for leftover in place.glob('copying_*'):  # of a process that was killed
          shutil.rmtree(leftover)
        if not copy.is_dir():
          with copied(folder, place) as fresh:
            fresh.parent.parent.rename(copy)
    except InUse:
      if not announced:
        print(f'Another process is copying {folder} to {copy}; waiting for it.', file=sys.stderr)
      announced = True
      time.sleep(0.5)


@contextlib.contextmanager
def copied(folder, into: pathlib.Path):
  """Copies a set from a bucket and compares all files with their checksums.

  The copy is removed at the end, unless it was moved.

  Args:
    folder: <bucket>/.../<dataset>/<VERSION>.
    into: an existing folder.

  Raises:
    DataError: a file differs from its checksum, or the set has none.
  """
  remedy = f'copy the set to {folder.parent} again, or prepare it again'
  metadata, digests = read_description(folder, remedy)
  if not digests or not all(map(files_lib.is_name, digests)):
    raise DataError(f'The data set in {folder} has no checksums; {remedy}.')
  with tempfile.TemporaryDirectory(prefix='copying_', dir=into) as temporary:
    # Only its maker may read `temporary`; the folder in it, which is moved later, has the usual rights.
    copy = pathlib.Path(temporary, 'copy', folder.parent.name, VERSION)
    copy.mkdir(parents=True)
    (copy / METADATA).write_bytes((folder / METADATA).read_bytes())
    bar = {'total': sum(metadata['files'].values()), 'unit': 'B', 'unit_scale': True, 'disable': None}
    with tqdm.tqdm(desc=f'copying {folder.parent.name}', **bar) as progress:
      for name, digest in digests.items():
        _copy(folder / name, copy / name, digest, metadata['files'].get(name), remedy)
        progress.update(metadata['files'].get(name, 0))
    yield copy


def _copy(source, target, digest, size, remedy) -> None:
  """Copies a file of `size` bytes (None: not known) from a bucket, and tries again if bytes are missing."""
  if not source.is_file():
    raise DataError(f'{source} is missing; {remedy}.')
  for _ in range(2):
    sha256, reason = hashlib.sha256(), 'is not the file that was prepared, according to its SHA-256'
    try:
      with touching(target, 'written', size or 0), target.open('wb') as file:
        for piece in [source.read_bytes()] if size is None else source.pieces(size):
          sha256.update(piece)
          file.write(piece)
      if sha256.hexdigest() == digest:
        return
    except EOFError:
      reason = f'has fewer than {size:,} bytes'
  raise DataError(f'{source} {reason}; {remedy}.')


def read_description(folder, remedy: str) -> tuple[dict, dict[str, str]]:
  """The metadata of a prepared set, see `read_metadata`, and {name: SHA-256} of its files, which stay unread.

  Args:
    folder: from `dataset_folder`, or in a bucket.
    remedy: the end of the sentence of an error.

  Raises:
    DamagedFile, DataError: metadata.json is damaged or unreadable.
  """
  metadata, digests = checksums.read(folder / METADATA, 'the description of a prepared set', remedy)
  if wrong := problem(Metadata, metadata):
    raise DataError(f'{folder / METADATA} is not readable ({wrong}); {remedy}.')
  return metadata, digests


def read_metadata(folder, advice: str, *, thorough: bool = False) -> dict:
  """Reads the metadata of a prepared set and compares all of its files with their checksums.

  Args:
    folder: from `dataset_folder`.
    advice: the remedy if there is no such set, as the end of a sentence ('make it with ...').
    thorough: hash every file, even if it was verified before and looks unchanged.

  Returns:
    metadata.json: source (str), verified (bool), fingerprint (SHA-256 over the examples in order, hex),
    counts ({file: examples}), shape ([positions] or [positions, channels]; if lengths differ null for tokens
    and [0, channels] for values), dtype (of inputs), documents (2 for pairs, else 1), groups ({file: sizes of
    consecutive groups}), longest (positions), classes (0 for real labels), per_position (True if each
    position has a label), label_width (K of several labels or dimensions, 0 for one), labelled (positions of
    training examples with a label; empty if all have one), request (arguments of the preparation), files
    ({name: bytes}), sha256 ({name: hex}), and for tokens vocabulary ([str]). Some sets have statistics of the
    training file ({'train': {'mean', 'std'}} of stored values, per channel, and {'labels': {'mean', 'std',
    'least', 'largest'}} of real labels), distinct_labels and train_labels (from .npz files), class_names and
    published_vocabulary (from the catalogue).

  Raises:
    MissingFile: there is no prepared set.
    DamagedFile, DataError: a file is missing, damaged, of another preparation or unreadable, or the set has
      no checksums.
  """
  folder = files_lib.place(folder)
  if not (folder / METADATA).is_file() or not (folder / INFO).is_file():
    raise MissingFile(f'There is no prepared data set in {folder}; {advice}.')
  remedy = f'remove {folder} and {advice}'
  metadata, digests = read_description(folder, remedy)
  for name, size in metadata['files'].items():
    path = folder / name
    stored = path.stat().st_size if path.is_file() else None
    if stored != size:
      state = 'is missing' if stored is None else f'has {stored:,} bytes instead of {size:,}'
      raise DataError(f'The data set in {folder} is damaged: {name} {state}; {remedy}.')
  _check_features(folder / FEATURES, advice)
  if not digests:
    raise DataError(f'The data set in {folder} has no checksums; {remedy}.')
  if digests.keys() - {INFO, FEATURES} != metadata['files'].keys():
    reason = 'files and sha256 name different files'
    raise DataError(f'{folder / METADATA} is not readable ({reason}); {remedy}.')
  for name in _changed(folder, digests, thorough):
    raise DataError(
      f'The data set in {folder} is damaged: {name} is not the file that was prepared; {remedy}.'
    )
  return metadata | {'sha256': digests}


def seal(folder: pathlib.Path) -> None:
  """Writes sizes and checksums of all files of a set to its metadata.json, the last step of preparation."""
  metadata, _ = checksums.read(folder / METADATA, 'the description of a prepared set', 'prepare it again')
  with touching(folder, 'read'):
    shards = {path.name: path.stat().st_size for path in sorted(folder.glob('*.array_record-*'))}
  checksums.write(folder / METADATA, metadata | {'files': shards}, (*shards, INFO, FEATURES))


@dataclasses.dataclass(frozen=True)
class Statistics:
  """Mean and deviation of stored values, per channel, or of real labels, with the least and the largest."""

  mean: list[float]
  std: list[float]
  least: list[float] = dataclasses.field(default_factory=list)
  largest: list[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metadata:
  """metadata.json, without its checksums; `read_metadata` says what the keys mean."""

  source: str
  verified: bool
  fingerprint: str
  counts: dict[str, int]
  request: dict
  files: dict[str, int]
  classes: int = 0
  distinct_labels: int = 0
  longest: int = 0
  per_position: bool = False
  label_width: int = 0
  labelled: list[int] = dataclasses.field(default_factory=list)
  shape: list[int] | None = None
  dtype: str = ''
  documents: int = 1
  groups: dict[str, list[int]] = dataclasses.field(default_factory=dict)
  train_labels: list[int] = dataclasses.field(default_factory=list)
  vocabulary: list[str] = dataclasses.field(default_factory=list)
  class_names: list[str] = dataclasses.field(default_factory=list)
  published_vocabulary: int = 0
  statistics: dict[str, Statistics] = dataclasses.field(default_factory=dict)
  verification: str = ''

  def __post_init__(self):
    for name in self.files:
      if not files_lib.is_name(name):
        raise FieldError('files', f'has {name!r:.80}, which is no name of a file')
    for file, sizes in self.groups.items():
      if sum(sizes) != self.counts.get(file):
        raise FieldError('groups', f'of {file} do not add up to its examples')


def _changed(folder, expected, thorough):
  """Names of files with another SHA-256. Shards that were verified in their present state are not hashed."""
  try:
    known = json.loads((folder / CHECKED).read_text(encoding='utf-8'))
  except (OSError, ValueError, RecursionError):
    known = None
  known = known if isinstance(known, dict) and not thorough else {}
  whole = {}
  for name, digest in expected.items():
    state = os.stat(folder / name)
    whole[name] = [digest, state.st_size, state.st_mtime_ns, state.st_ino]
    known_whole = known.get(name) == whole[name] and name not in (INFO, FEATURES)
    if not known_whole and checksums.of_file(folder / name) != digest:
      yield name
  if whole != known:
    with contextlib.suppress(OSError, ValueError):  # a read-only folder is hashed every time
      files_lib.write_json(folder / CHECKED, whole)


def _check_features(path, advice):
  """Raises a DataError for a features.json with a class or a key that no prepared set has."""

  def foreign(node):
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
      if isinstance(key, str) and key not in _FEATURE_KEYS:
        yield f'the key {key!r:.80}'
      if key == _CLASS and not (isinstance(value, str) and value in _FEATURES):
        yield f'the class {value!r:.80}'
      if isinstance(value, (dict, list)):
        yield from foreign(value)

  content = files_lib.read_json(path, 'a description of features', f'remove {path.parent} and {advice}')
  for what in foreign(content):
    raise DataError(f'{path} has {what}, which no prepared set has; remove {path.parent} and {advice}.')
