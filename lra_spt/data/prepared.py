"""Where a prepared set is and whether it is complete.

A prepared set is a TFDS folder `<data_dir>/<dataset>/<VERSION>/` of ArrayRecord files. Its metadata.json
records where the examples come from, and the size and SHA-256 of each file, so that damaged or exchanged
files are noticed before they are read. Files that were verified are recorded beside the set, by size, time
and inode, so that a set is hashed once and not whenever it is opened.

A set in a bucket is read from a copy on this machine, made when it is first opened: ArrayRecord reads only
files, and examples are read one by one. Copies are below LRA_SPT_SETS, or ~/.cache/lra_spt/sets.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

import tqdm

from lra_spt.errors import DataError, InUse, MissingFile, touching
from lra_spt.files import atomic as files_lib
from lra_spt.files import checksums

VERSION = '1.0.0'
METADATA, CHECKED = 'metadata.json', '.checked.json'
INFO, FEATURES = 'dataset_info.json', 'features.json'  # which TFDS writes and reads
COPYING = '.unfinished'  # end of the name of a folder in which a copy is made
# What features.json of `data_prep.builders` says: classes and keys. TFDS imports the module of whatever class
# it names, which other keys may do too.
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
  """The folder of a prepared set, whether it exists or not; of one that is in a bucket, its copy.

  Raises:
    DataError: what is in the bucket is damaged, or noted no digests.
    FileAccessError: it cannot be read, or not be copied to this machine.
  """
  folder = files_lib.place(data_dir).expanduser() / dataset / VERSION
  if not files_lib.is_bucket(data_dir) or not (folder / METADATA).is_file():
    return folder
  copies = pathlib.Path(os.environ.get('LRA_SPT_SETS', '').strip() or '~/.cache/lra_spt/sets').expanduser()
  copy = copies / checksums.of_file(folder / METADATA)[:32]  # which stands for all files of the set
  if not copy.is_dir():
    _make_copy(folder, copy)
  return copy / dataset / VERSION


def _make_copy(folder, copy: pathlib.Path) -> None:
  """Copies a set from a bucket. Of the processes of a machine one does, and the others wait for it."""
  place, told = copy.with_name(f'{copy.name}{COPYING}'), False
  while not copy.is_dir():
    try:
      with files_lib.owned(place, f'copying {folder} to'), touching(place, 'written to'):
        for left in place.glob('copying_*'):  # by a process that was killed
          shutil.rmtree(left)
        if not copy.is_dir():
          with copied(folder, place) as fresh:
            fresh.parent.parent.rename(copy)
    except InUse:
      if not told:
        print(f'Another process is copying {folder} to {copy}; waiting for it.', file=sys.stderr)
      told = True
      time.sleep(0.5)


@contextlib.contextmanager
def copied(folder, into: pathlib.Path):
  """A copy of a set in a bucket, all files compared with their digests; removed at the end if still there.

  Args:
    folder: <bucket>/.../<dataset>/<VERSION>.
    into: an existing folder.

  Raises:
    DataError: a file is not what was prepared, or the set noted no digests.
  """
  remedy = f'copy the set to {folder.parent} again, or prepare it again'
  metadata, digests = checksums.read(folder / METADATA, 'the description of a prepared set', remedy)
  if problem := _problem(metadata):
    raise DataError(f'{folder / METADATA} is not readable ({problem}); {remedy}.')
  if not digests or not _files(dict.fromkeys(digests, 0)):
    raise DataError(f'The data set in {folder} has no checksums; {remedy}.')
  with tempfile.TemporaryDirectory(prefix='copying_', dir=into) as temporary:
    # `temporary` is for its maker only; what is in it, and gets a name later, is not.
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
  """Copies a file of so many bytes (None: not known) from a bucket, once more where not all bytes arrived."""
  if not source.is_file():
    raise DataError(f'{source} is missing; {remedy}.')
  for _ in range(2):
    found, reason = hashlib.sha256(), 'is not the file that was prepared, according to its SHA-256'
    try:
      with touching(target, 'written', size or 0), target.open('wb') as file:
        for piece in [source.read_bytes()] if size is None else source.pieces(size):
          found.update(piece)
          file.write(piece)
      if found.hexdigest() == digest:
        return
    except EOFError:
      reason = f'has fewer than {size:,} bytes'
  raise DataError(f'{source} {reason}; {remedy}.')


def read_metadata(folder, advice: str, *, thorough: bool = False) -> dict:
  """Metadata of a prepared set, after checking that all of its files are those that were written.

  Args:
    folder: from `dataset_folder`.
    advice: what to do when there is no such set, as the end of a sentence ('make it with ...').
    thorough: hash every file, also those that were found whole before and do not look changed.

  Returns:
    metadata.json: source (str), verified (bool), fingerprint (sha256 over the examples in order, hex), counts
    ({file: examples}), shape ([positions] or [positions, channels]; null when lengths differ), dtype (of
    inputs), documents (2 for pairs, else 1), groups ({file: sizes of consecutive runs that belong together}),
    longest (positions), classes (0 for real labels), request (what was asked for), files ({name: bytes}),
    sha256 ({name: hex}), and for tokens vocabulary ([str]). Where the set's source asks for it, statistics
    ({'train': {'mean', 'std'}}, of stored values, per channel); distinct_labels of a set from .npz files;
    class_names and published_vocabulary where the catalogue knows them.

  Raises:
    MissingFile: there is no prepared set.
    DamagedFile, DataError: a file is missing, damaged, of another preparation or unreadable, or the set has
      no checksums.
  """
  folder = files_lib.place(folder)
  metadata = read_undigested(folder, advice)
  digests, names = metadata['sha256'], metadata['files'].keys()
  if not digests:
    raise DataError(f'The data set in {folder} has no checksums; remove {folder} and {advice}.')
  if digests.keys() - {INFO, FEATURES} != names:
    reason = 'files and sha256 name different files'
    raise DataError(f'{folder / METADATA} is not readable ({reason}); remove {folder} and {advice}.')
  for name in _changed(folder, digests, thorough):
    raise DataError(
      f'The data set in {folder} is damaged: {name} is not the file that was prepared; remove {folder} and '
      f'{advice}.'
    )
  return metadata


def read_undigested(folder: pathlib.Path, advice: str) -> dict:
  """Metadata as `read_metadata` returns it, before any file is compared with its checksum."""
  if not (folder / METADATA).is_file() or not (folder / INFO).is_file():
    raise MissingFile(f'There is no prepared data set in {folder}; {advice}.')
  remedy = f'remove {folder} and {advice}'
  metadata, digests = checksums.read(folder / METADATA, 'the description of a prepared set', remedy)
  if problem := _problem(metadata):
    raise DataError(f'{folder / METADATA} is not readable ({problem}); {remedy}.')
  for name, size in metadata['files'].items():
    path = folder / name
    found = path.stat().st_size if path.is_file() else None
    if found != size:
      state = 'is missing' if found is None else f'has {found:,} bytes instead of {size:,}'
      raise DataError(f'The data set in {folder} is damaged: {name} {state}; {remedy}.')
  _check_features(folder / FEATURES, advice)
  return metadata | {'sha256': digests}


def seal(folder: pathlib.Path) -> None:
  """Notes sizes and digests of all files of a set in its metadata.json; the last step of its preparation."""
  metadata, _ = checksums.read(folder / METADATA, 'the description of a prepared set', 'prepare it again')
  with touching(folder, 'read'):
    shards = {path.name: path.stat().st_size for path in sorted(folder.glob('*.array_record-*'))}
  checksums.write(folder / METADATA, metadata | {'files': shards}, (*shards, INFO, FEATURES))


def _whole(value):
  return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _text(value):
  return isinstance(value, str)


def _list_of(kind):
  return lambda value: isinstance(value, list) and all(map(kind, value))


def _dict_of(kind):
  return lambda value: isinstance(value, dict) and all(map(kind, value.values()))


def _number(value):
  return isinstance(value, float) or _whole(value)


def _files(value):
  return _dict_of(_whole)(value) and all(name == pathlib.PurePath(name).name for name in value)


# What is asked of a value of metadata.json, and whether it must be there.
_SCHEMA = {
  'source': (_text, True),
  'verified': (lambda value: isinstance(value, bool), True),
  'fingerprint': (_text, True),
  'counts': (_dict_of(_whole), True),
  'request': (lambda value: isinstance(value, dict), True),
  'files': (_files, True),
  'classes': (_whole, False),
  'distinct_labels': (_whole, False),
  'longest': (_whole, False),
  'shape': (lambda value: value is None or _list_of(_whole)(value), False),
  'dtype': (_text, False),
  'documents': (_whole, False),
  'groups': (_dict_of(_list_of(_whole)), False),
  'vocabulary': (_list_of(_text), False),
  'class_names': (_list_of(_text), False),
  'published_vocabulary': (_whole, False),
  'statistics': (_dict_of(_dict_of(_list_of(_number))), False),
  'verification': (_text, False),
}


def _problem(metadata: dict) -> str | None:
  """What is wrong with the form of metadata.json, or None."""
  for key, (is_right, needed) in _SCHEMA.items():
    if key not in metadata and needed:
      return f'it lacks {key!r}'
    if key in metadata and not is_right(metadata[key]):
      return f'{key} is {metadata[key]!r:.80}'
  for file, sizes in metadata.get('groups', {}).items():
    if sum(sizes) != metadata['counts'].get(file):
      return f'the groups of {file} do not add up to its examples'
  if any({'mean', 'std'} != found.keys() for found in metadata.get('statistics', {}).values()):
    return 'statistics are not mean and std'
  return None


def _changed(folder, expected, thorough):
  """Names of files whose SHA-256 is another; shards that were found whole as they are now are not hashed."""
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
    with contextlib.suppress(OSError, ValueError):  # a folder that cannot be written to is hashed every time
      files_lib.write_json(folder / CHECKED, whole)


def _check_features(path, advice):
  """Refuses a features.json with a class or a key that no prepared set has."""

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
