"""Pathfinder sets from the generator: parallel, and resumable after an interruption.

Image i depends on (seed, resolution, contour length, i) alone. Images are made in chunks; finished chunks are
saved beside the set and found again by the next attempt, whatever its number of workers.
"""

import concurrent.futures
import os
import pathlib
import shutil
import zipfile
import zlib

import numpy as np
import tqdm

from data_prep import builders, pathfinder_generator

EXAMPLES = 200_000
RESOLUTIONS = (32, 64, 128, 256)
# Raise it when the generator draws other images for the same seed, so that old chunks are not mixed in.
GENERATOR = 1
_CHUNK_BYTES, _CHUNK_IMAGES = 2**20, 64  # a chunk has at least so many bytes and images
_CITATION = (
  'Linsley et al., Learning long-range spatial dependencies with horizontal gated recurrent units, '
  'NeurIPS 2018; Tay et al., Long Range Arena, ICLR 2021.'
)


def _make_chunk(path: pathlib.Path, resolution: int, contour_length: int, seed: int, start: int, stop: int):
  """Generates one chunk unless it is there; the file appears whole or not at all."""
  if _read_chunk(path, resolution, stop - start) is not None:
    return
  images, labels = pathfinder_generator.generate(
    resolution, seed, np.arange(start, stop), contour_length=contour_length
  )
  unfinished = path.with_suffix(f'.{os.getpid()}.part')
  with open(unfinished, 'wb') as file:
    np.savez_compressed(file, images=np.asarray(images, np.uint8), labels=np.asarray(labels, np.int32))
  os.replace(unfinished, path)


def _read_chunk(path, resolution, count):
  """(images uint8 [n, R, R], labels int32 [n]), or None when the file is not there or not whole."""
  try:
    with np.load(path) as chunk:
      images, labels = chunk['images'], chunk['labels']
  except (FileNotFoundError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
    return None
  return (
    (images, labels) if images.shape == (count, resolution, resolution) and labels.shape == (count,) else None
  )


def _chunks(work, resolution, examples):
  size = max(_CHUNK_IMAGES, _CHUNK_BYTES // resolution**2)
  return [
    (work / f'{start:09d}-{min(start + size, examples):09d}.npz', start, min(start + size, examples))
    for start in range(0, examples, size)
  ]


def _generate(chunks, settings, examples, workers):
  arguments = settings['resolution'], settings['contour_length'], settings['seed']
  with tqdm.tqdm(total=examples, desc='drawing Pathfinder images', unit=' images', disable=None) as bar:
    pool = concurrent.futures.ThreadPoolExecutor(workers)
    try:
      running = [
        (pool.submit(_make_chunk, path, *arguments, start, stop), stop - start)
        for path, start, stop in chunks
      ]
      for future, count in running:
        future.result()
        bar.update(count)
    finally:
      pool.shutdown(cancel_futures=True)


def prepare_pathfinder(
  data_dir,
  *,
  resolution: int = 32,
  dataset: str | None = None,
  examples: int | None = None,
  contour_length: int = 14,
  seed: int = 0,
  workers: int | None = None,
):
  """Generates a Pathfinder set.

  Args:
    data_dir: folder for prepared sets.
    resolution: pixels per side: 32, 64, 128 (Path-X) or 256.
    dataset: its name; None for pathfinder<resolution>.
    examples: how many, split 80/10/10 by the tasks; None for 200,000.
    contour_length: paddles of a target: 14 (LRA), 9 or 6.
    seed: of the generator.
    workers: threads (the generator is compiled and runs outside the interpreter lock); None for all cores.

  Returns:
    the folder of the set.

  Raises:
    ValueError: unknown resolution, too few examples, or as `builders.prepare_set`.
  """
  examples = EXAMPLES if examples is None else examples
  dataset = dataset or f'pathfinder{resolution}'
  if resolution not in RESOLUTIONS:
    raise ValueError(f'There is no Pathfinder of {resolution} pixels; choose one of {RESOLUTIONS}.')
  if examples < 10:
    raise ValueError(f'{examples} Pathfinder images cannot be split 80/10/10; ask for at least 10.')
  settings = {
    'generator': GENERATOR,
    'resolution': resolution,
    'contour_length': contour_length,
    'seed': seed,
  }

  def load(work):
    # Chunks of other settings cannot be used and would only fill the disk.
    folder = work / '-'.join(f'{key}{value}' for key, value in settings.items())
    for other in work.glob('*') if work.is_dir() else ():
      if other != folder:
        shutil.rmtree(other)
    folder.mkdir(parents=True, exist_ok=True)
    chunks = _chunks(folder, resolution, examples)
    _generate(chunks, settings, examples, workers or os.cpu_count() or 1)

    def read():
      for path, start, stop in chunks:
        images, labels = _read_chunk(path, resolution, stop - start)
        yield from zip(images.reshape(len(images), -1), labels.tolist(), strict=True)

    return builders.Source(
      description=f'Pathfinder: {resolution} x {resolution} gray images, row by row; label 1 if one dashed '
      'path joins the marked ends.',
      citation=_CITATION,
      files={'train': read},
      counts={'train': examples},
      classes=2,
      shape=(resolution**2,),
      origin=f'generated, seed {seed}',
      verified=False,
      extra={'generator': settings},
    )

  return builders.prepare_set(
    dataset, data_dir, {'from': 'generator', 'examples': examples, **settings}, load
  )
