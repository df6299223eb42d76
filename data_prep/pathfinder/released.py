"""Pathfinder from Long Range Arena's released images.

As in the published code, only the hardest difficulty is read (`curv_contour_length_14`), with metadata files
sorted by number and their lines in order, so that the published random split selects the same images. A
`.npy` file of metadata is text there: folder, file name, number, label and settings, separated by blanks. The
binary arrays that the original generator writes under the same name are read too.

No checksums are published, so a set is never verified; a complete one has 200,000 readable images. The
official archive contains Path-X twice, as pathfinder128 and as lra_release/pathfinder128 (google-research/
long-range-arena, issue 38). The complete one of several copies is taken; complete ones that differ are
refused.
"""

import concurrent.futures
import io
import os
import pathlib
import re

import numpy as np
import tqdm

from data_prep import builders, catalogue, finding, raw_files, verification
from data_prep.pathfinder import png
from data_prep.pathfinder.generated import CITATION, RESOLUTIONS, describe
from lra_spt.errors import DataError, FileAccessError, MissingFile, UserError

IMAGES = catalogue.SETS['pathfinder32'].counts['train']
DIFFICULTY = 'curv_contour_length_14'
# Names may not lead out of the tree.
_FOLDER = re.compile(r'imgs/\w+', flags=re.ASCII)
_IMAGE = re.compile(r'[\w-]+\.png', flags=re.ASCII)
# Network storage answers many threads at once; decoding such small images is no faster with more threads.
_THREADS, _AHEAD = 16, 2048
# Largest number of bytes of a metadata file (some 100,000) and of an image (200,000 with 256 pixels).
MOST, MOST_IMAGE = 2**24, 2**20


class DamagedImage(DataError):
  """A listed PNG that is missing, empty or unreadable."""


def _find(raw_dir, resolution) -> list[pathlib.Path]:
  """All trees of that resolution in raw_dir, or raw_dir itself if it is one."""
  dataset = f'pathfinder{resolution}'
  (archive,) = catalogue.SETS[dataset].archives
  raw = pathlib.Path(raw_dir).expanduser()
  places = [raw, *(tree for outer in finding.folders(raw, archive) for tree in (outer, outer / dataset))]
  trees = [tree for tree in places if (tree / DIFFICULTY / 'metadata').is_dir()]
  if not trees:
    raise MissingFile(f'There is no {dataset}/{DIFFICULTY}/metadata in {raw}: {finding.advice(dataset)}.')
  # The innermost come first; links to one tree count once.
  return list({tree.resolve(): tree for tree in trees}.values())[::-1]


def parse_metadata(content: bytes, where: str) -> list[tuple[str, int]]:
  """The images of one metadata file, text or array of strings, in order.

  Args:
    content: bytes of the file.
    where: the file, for messages.

  Returns:
    [('imgs/<batch>/<file name>', label 0 or 1)].

  Raises:
    DataError: the file has another content; the message names the file and the row, from 1.
  """
  if content.startswith(b'\x93NUMPY'):
    try:
      file = io.BytesIO(content)
      if raw_files.array_size(file) != len(content) - file.tell():
        raise ValueError
      array = np.load(io.BytesIO(content), allow_pickle=False)
      rows = array.astype(str).tolist() if array.ndim == 2 and array.dtype.kind in 'SU' else None
    except Exception:  # a damaged array can raise almost any error
      rows = None
    if rows is None:
      raise DataError(f'{where} is not a readable array of rows of strings; get it again.')
  else:
    rows = [line.split() for line in content.decode('utf-8', 'replace').splitlines()]
  images = []
  for number, row in enumerate(rows, 1):
    if len(row) < 4 or not (_FOLDER.fullmatch(row[0]) and _IMAGE.fullmatch(row[1]) and row[3] in ('0', '1')):
      raise DataError(
        f'{where}, row {number}, does not begin with imgs/<batch>, <name>.png, a number and a label of 0 or '
        '1; get it again.'
      )
    images.append((f'{row[0]}/{row[1]}', int(row[3])))
  if not images:
    raise DataError(f'{where} is empty; get it again.')
  return images


def _read_metadata(tree) -> dict[str, int]:
  """Returns {path of an image below the folder DIFFICULTY: label}, in the order of the set."""
  folder = tree / DIFFICULTY / 'metadata'
  paths = [path for path in folder.glob('*.npy') if not path.name.startswith('.')]
  if not paths:
    raise MissingFile(f'{folder} has no .npy files; get it again.')
  for path in paths:
    if not re.fullmatch('[0-9]+', path.stem):
      raise DataError(f'{path} is not called <number>.npy like a metadata file; remove it.')
  labels = {}
  for path in sorted(paths, key=lambda path: int(path.stem)):
    for number, (image, label) in enumerate(parse_metadata(raw_files.read(path, MOST), str(path)), 1):
      if image in labels:
        raise DataError(f'{path}, row {number}, lists {image} a second time; get it again.')
      labels[image] = label
  return labels


def _survey(tree):
  """Lists (image, label, bytes of its PNG or None if it is missing), to compare copies of a tree."""

  def size(image):
    try:
      return os.path.getsize(tree / DIFFICULTY / image)
    except OSError:
      return None

  return [(image, label, size(image)) for image, label in _read_metadata(tree).items()]


def _choose(trees, resolution) -> pathlib.Path:
  """The only tree, or the complete one of several copies."""
  if len(trees) == 1:
    return trees[0]
  surveys = {tree: _survey(tree) for tree in trees}
  whole = [tree for tree in trees if len(surveys[tree]) == IMAGES and all(size for *_, size in surveys[tree])]
  first, *others = whole or trees
  for other in others:
    if surveys[other] != surveys[first]:
      raise DataError(
        f'{first} and {other} both hold images of {resolution} pixels, but not the same ones; name one of '
        'the two with --raw_dir.'
      )
  print(f'Of {len(trees)} copies of pathfinder{resolution}, {first} is imported.')
  return first


def read_image(path, resolution: int) -> np.ndarray:
  """The gray levels of a gray or RGB PNG, row by row, uint8 [resolution ** 2].

  Raises:
    DamagedImage: it is missing, empty or unreadable.
    DataError: it has another size or other pixels than gray or RGB of 8 bits, or is no plain file.
  """
  try:
    content = raw_files.read(path, MOST_IMAGE)
    state = 'missing or empty'
    if content:
      return png.decode(content, resolution)
  except FileAccessError:
    if os.path.exists(path):
      raise
    state = 'missing or empty'
  except png.OtherImage as error:
    raise DataError(f'{path} {error}; are these the images of pathfinder{resolution}?') from None
  except UserError:
    raise
  except Exception as error:  # a damaged PNG can raise almost any error
    state = f'not a readable PNG ({raw_files.shown(str(error))})'
  raise DamagedImage(f'{path} is {state}; get it again, or pass --accept_incomplete to leave it out.')


def _in_threads(function, items):
  """Yields the results of function in order; computes at most _AHEAD of them in advance."""
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
    for start in range(0, len(items), _AHEAD):
      yield from pool.map(function, items[start : start + _AHEAD])


def _check_images(paths, resolution, accept_incomplete):
  """True for each readable path; raises the first damage unless accept_incomplete."""

  def check(path):
    try:
      read_image(path, resolution)
    except DamagedImage:
      if accept_incomplete:
        return False
      raise
    return True

  checks = _in_threads(check, paths)
  return list(tqdm.tqdm(checks, desc='checking images', total=len(paths), unit=' images', disable=None))


def _load(raw_dir, resolution, accept_unverified, accept_incomplete):
  tree = _choose(_find(raw_dir, resolution), resolution)
  labels = _read_metadata(tree)
  verification.check_counts(
    tree / DIFFICULTY,
    {'train': len(labels)},
    {'train': IMAGES},
    accept_unverified=accept_unverified,
    accept_incomplete=accept_incomplete,
  )
  paths = [f'{tree}/{DIFFICULTY}/{image}' for image in labels]
  readable = _check_images(paths, resolution, accept_incomplete)
  items = [(path, label) for path, label, good in zip(paths, labels.values(), readable, strict=True) if good]
  if not items:
    raise DataError(
      f'{tree / DIFFICULTY} has no readable image of the {len(paths):,} that it lists; get it again.'
    )
  if len(items) < len(paths):
    print(
      f'{len(paths) - len(items):,} of {len(paths):,} images are missing, empty or unreadable (first: '
      f'{paths[readable.index(False)]}) and left out; the published split needs all of them.'
    )

  def read():
    images = _in_threads(lambda item: read_image(item[0], resolution), items)
    return zip(images, (label for _, label in items), strict=True)

  return builders.Source(
    description=describe(resolution),
    citation=CITATION,
    files={'train': read},
    counts={'train': len(items)},
    classes=2,
    shape=(resolution**2,),
    origin=f'files {tree.name}/{DIFFICULTY}',
    verified=False,
    extra={
      'verification': f'{len(items):,} images (no official checksums exist)',
      'left_out': len(paths) - len(items),
    },
  )


def prepare_pathfinder(
  data_dir,
  *,
  resolution: int,
  raw_dir,
  accept_unverified: bool = False,
  accept_incomplete: bool = False,
  dataset: str | None = None,
):
  """Imports Long Range Arena's Pathfinder images of one resolution.

  Every image is decoded twice, first to check it before anything is written. Memory holds the list of images
  and a few of them.

  Args:
    data_dir: folder for prepared sets.
    resolution: pixels per side: 32, 64, 128 (Path-X) or 256.
    raw_dir: the folder pathfinder<resolution>, or a folder that contains it, also within lra_release (twice)
      or pathfinder.
    accept_unverified: import more images than the official 200,000.
    accept_incomplete: import fewer of them, and leave damaged ones out (metadata.json counts them as
      left_out).
    dataset: name of the set; None for pathfinder<resolution>, the name of the generated set too.

  Returns:
    The folder of the set.

  Raises:
    MissingFile, DataError, InUse: see `builders.prepare_set`; the message names the file and its error.
  """
  if resolution not in RESOLUTIONS:
    raise DataError(f'There is no Pathfinder of {resolution} pixels; choose one of {RESOLUTIONS}.')
  return builders.prepare_set(
    dataset or f'pathfinder{resolution}',
    data_dir,
    {'from': 'files', 'resolution': resolution},
    lambda work: _load(raw_dir, resolution, accept_unverified, accept_incomplete),
  )
