"""Where a prepared set lies and whether it is whole.

A prepared set is a TFDS folder `<data_dir>/<dataset>/<VERSION>/` of ArrayRecord files. Its metadata.json says
where the examples come from and how many bytes each file has, so that a truncated copy is noticed before it
is read.
"""

import json
import pathlib

from lra_spt.errors import DataError, MissingFile

VERSION = '1.0.0'


def dataset_folder(data_dir, dataset: str) -> pathlib.Path:
  """The folder of a prepared set, whether it exists or not."""
  return pathlib.Path(data_dir).expanduser() / dataset / VERSION


def read_metadata(folder, advice: str) -> dict:
  """Metadata of a prepared set, after checking that all of its files have the size they were written with.

  Args:
    folder: from `dataset_folder`.
    advice: what to do when there is no such set, as the end of a sentence ('make it with ...').

  Returns:
    metadata.json: source (str), verified (bool), fingerprint (sha256 over the examples in order, hex), counts
    ({file: examples}), shape ([positions] or [positions, channels]; null when lengths differ), dtype (of
    inputs), documents (2 for pairs, else 1), groups ({file: sizes of consecutive runs that belong together}),
    longest (positions), classes (0 for real labels), request (what was asked for), files ({name: bytes}), and
    for tokens vocabulary ([str]). Where the set's source asks for it, statistics ({'train': {'mean', 'std'}},
    of stored values, per channel); class_names and published_vocabulary where the catalogue knows them.

  Raises:
    FileNotFoundError: there is no prepared set.
    ValueError: there is one, but a file is missing, truncated or unreadable.
  """
  folder = pathlib.Path(folder)
  if not (folder / 'metadata.json').is_file() or not (folder / 'dataset_info.json').is_file():
    raise MissingFile(f'There is no prepared data set in {folder}; {advice}.')
  try:
    metadata = json.loads((folder / 'metadata.json').read_text())
    files = dict(metadata['files'])
    metadata['counts'], metadata['fingerprint'], metadata['request']  # a set made by something else has none
  except (ValueError, KeyError, TypeError) as error:
    raise DataError(
      f'{folder / "metadata.json"} is not readable ({error}); remove {folder} and {advice}.'
    ) from None
  for name, size in files.items():
    path = folder / name
    found = path.stat().st_size if path.is_file() else None
    if found != size:
      state = 'is missing' if found is None else f'has {found:,} bytes instead of {size:,}'
      raise DataError(f'The data set in {folder} is damaged: {name} {state}; remove {folder} and {advice}.')
  return metadata
