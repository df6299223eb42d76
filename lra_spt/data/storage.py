"""Where a prepared set lies and whether it is whole.

A prepared set is a TFDS folder `<data_dir>/<dataset>/<VERSION>/` of ArrayRecord files. Its metadata.json says
where the examples come from, and the size and SHA-256 of each file, so that a damaged or exchanged one is
noticed before it is read. Which files were found whole is kept beside them, by size, time and inode, so that
a set is hashed once and not whenever it is opened.
"""

import contextlib
import hashlib
import json
import os
import pathlib

from lra_spt import files as files_lib
from lra_spt.errors import DataError, MissingFile, touching

VERSION = '1.0.0'
CHECKED = '.checked.json'
# What `data_prep.builders` writes. TFDS imports whatever module features.json names.
_FEATURES = {
  f'tensorflow_datasets.core.features.{name}'
  for name in (
    'features_dict.FeaturesDict',
    'tensor_feature.Tensor',
    'class_label_feature.ClassLabel',
    'scalar.Scalar',
  )
}


def dataset_folder(data_dir, dataset: str) -> pathlib.Path:
  """The folder of a prepared set, whether it exists or not."""
  return pathlib.Path(data_dir).expanduser() / dataset / VERSION


def read_metadata(folder, advice: str) -> dict:
  """Metadata of a prepared set, after checking that all of its files are those that were written.

  Args:
    folder: from `dataset_folder`.
    advice: what to do when there is no such set, as the end of a sentence ('make it with ...').

  Returns:
    metadata.json: source (str), verified (bool), fingerprint (sha256 over the examples in order, hex), counts
    ({file: examples}), shape ([positions] or [positions, channels]; null when lengths differ), dtype (of
    inputs), documents (2 for pairs, else 1), groups ({file: sizes of consecutive runs that belong together}),
    longest (positions), classes (0 for real labels), request (what was asked for), files ({name: bytes}),
    sha256 ({name: hex}), and for tokens vocabulary ([str]). Where the set's source asks for it, statistics
    ({'train': {'mean', 'std'}}, of stored values, per channel); class_names and published_vocabulary where
    the catalogue knows them.

  Raises:
    FileNotFoundError: there is no prepared set.
    DataError: there is one, but a file is missing, damaged, of another preparation or unreadable.
  """
  folder = pathlib.Path(folder)
  if not (folder / 'metadata.json').is_file() or not (folder / 'dataset_info.json').is_file():
    raise MissingFile(f'There is no prepared data set in {folder}; {advice}.')
  try:
    metadata = json.loads((folder / 'metadata.json').read_text())
    files = dict(metadata['files'])
    # A set made by something else, or an older version, has none of these.
    metadata['counts'], metadata['fingerprint'], metadata['request']
    if dict(metadata['sha256']).keys() != files.keys():
      raise ValueError('files and sha256 name other files')
  except (ValueError, KeyError, TypeError) as error:
    reason = f'it lacks {error}' if isinstance(error, KeyError) else error
    raise DataError(
      f'{folder / "metadata.json"} is not readable ({reason}); remove {folder} and {advice}.'
    ) from None
  for name, size in files.items():
    path = folder / name
    found = path.stat().st_size if path.is_file() else None
    if found != size:
      state = 'is missing' if found is None else f'has {found:,} bytes instead of {size:,}'
      raise DataError(f'The data set in {folder} is damaged: {name} {state}; remove {folder} and {advice}.')
  _check_features(folder / 'features.json', advice)
  for name in _changed(folder, metadata['sha256']):
    raise DataError(
      f'The data set in {folder} is damaged: {name} is not the file that was prepared; remove {folder} and '
      f'{advice}.'
    )
  return metadata


def sha256(path) -> str:
  """SHA-256 of a file in hex; FileAccessError when it cannot be read."""
  with touching(path, 'read'), open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _changed(folder, expected):
  """Names of files whose SHA-256 is another; hashes those that were not found whole as they are now."""
  try:
    known = json.loads((folder / CHECKED).read_text(encoding='utf-8'))
  except (OSError, ValueError):
    known = {}
  whole = {}
  for name, digest in expected.items():
    state = os.stat(folder / name)
    whole[name] = [digest, state.st_size, state.st_mtime_ns, state.st_ino]
    if (not isinstance(known, dict) or known.get(name) != whole[name]) and sha256(folder / name) != digest:
      yield name
  if whole != known:
    with contextlib.suppress(OSError, ValueError):  # a folder that cannot be written to is hashed every time
      files_lib.write_json(folder / CHECKED, whole)


def _check_features(path, advice):
  """Refuses a features.json that names a class which no prepared set has."""

  def names(node):
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
      if key == 'pythonClassName':
        yield value
      elif isinstance(value, (dict, list)):
        yield from names(value)

  content = files_lib.read_json(path, 'a description of features', f'remove {path.parent} and {advice}')
  for name in names(content):
    if not isinstance(name, str) or name not in _FEATURES:
      raise DataError(
        f'{path} names the class {str(name)[:80]!r}, which no prepared set has; remove {path.parent} and '
        f'{advice}.'
      )
