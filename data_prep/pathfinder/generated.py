"""Pathfinder sets from the generator, in chunks that many processes make and that survive an interruption.

Image i depends only on (seed, resolution, contour length, i).
"""

import functools

import numpy as np

from data_prep import builders, catalogue, chunks
from data_prep.pathfinder import images as images_lib
from lra_spt.errors import DataError

RESOLUTIONS = (32, 64, 128, 256)
# Raise it when the images of a seed change, so that old chunks are not mixed in.
GENERATOR = 2
_CHUNK_BYTES, _CHUNK_IMAGES = 2**20, 256  # least bytes and images of a chunk, which take about a second
CITATION = (
  'Linsley et al., Learning long-range spatial dependencies with horizontal gated recurrent units, '
  'NeurIPS 2018; Tay et al., Long Range Arena, ICLR 2021.'
)


def describe(resolution: int) -> str:
  """The description of a set of that resolution."""
  return (
    f'Pathfinder: {resolution} x {resolution} gray images, row by row; label 1 if one dashed path joins the '
    'marked ends.'
  )


def _draw(resolution, contour_length, seed, start, stop):
  indices = np.arange(start, stop)
  images, labels = images_lib.generate(resolution, seed, indices, contour_length=contour_length)
  return {'images': images, 'labels': labels}


def prepare_pathfinder(
  data_dir,
  *,
  resolution: int = 32,
  dataset: str | None = None,
  examples: int | None = None,
  contour_length: int = 14,
  seed: int = 0,
  workers: int | None = None,
  runner: str = 'local',
  beam_options: str = '',
):
  """Generates a Pathfinder set.

  Args:
    data_dir: folder for prepared sets.
    resolution: pixels per side: 32, 64, 128 (Path-X) or 256.
    dataset: its name; None for pathfinder<resolution>.
    examples: number of images, which the tasks split 80/10/10; None for 200,000.
    contour_length: paddles of a target: 14 (LRA), 9 or 6.
    seed: seed of the generator.
    workers, runner, beam_options: see `chunks.make_chunks`; they do not change the set.

  Returns:
    The folder of the set.

  Raises:
    DataError: the resolution is unknown, or there are too few examples.
    UserError: see `chunks.make_chunks` and `builders.prepare_set`.
  """
  if resolution not in RESOLUTIONS:
    raise DataError(f'There is no Pathfinder of {resolution} pixels; choose one of {RESOLUTIONS}.')
  dataset = dataset or f'pathfinder{resolution}'
  examples = catalogue.SETS[f'pathfinder{resolution}'].counts_for(examples)['train']
  if examples < 10:
    raise DataError(f'{examples} Pathfinder images cannot be split 80/10/10; ask for at least 10.')
  settings = {
    'generator': GENERATOR,
    'resolution': resolution,
    'contour_length': contour_length,
    'seed': seed,
  }

  def load(work):
    size = max(_CHUNK_IMAGES, _CHUNK_BYTES // resolution**2)
    parts = chunks.divide(chunks.open_folder(work, settings), examples, size=size)
    chunks.make_chunks(
      functools.partial(_draw, resolution, contour_length, seed),
      parts,
      workers=workers,
      runner=runner,
      beam_options=beam_options,
      title='drawing Pathfinder images',
      unit=' images',
    )

    def read():
      for part in parts:
        drawn = chunks.read(part)
        images = drawn['images'].reshape(part.stop - part.start, -1)
        yield from zip(images, drawn['labels'].tolist(), strict=True)

    return builders.Source(
      description=describe(resolution),
      citation=CITATION,
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
