"""Pathfinder images: do the two marked contour ends belong to one contour?

Our own implementation of the placement of Linsley et al. 2018 (github.com/drewlinsley/pathfinder,
`snakes2.py`) with the parameters of Long Range Arena and the grey levels of its released images. Two target
contours ("snakes") of dashes ("paddles") grow in turn from tails at a fixed distance from each other; any
failure discards both. Shorter distractors follow, and two markers sit on two of the four target tips.

Image i is a pure function of (seed, resolution, contour_length, i): its random numbers are xoshiro256++
whose state is the splitmix64 expansion of a hash of these four. Pillow draws the paddles, so a release of
Pillow that draws lines differently gives other pixels.
"""

import numpy as np

from data_prep.pathfinder.core import fill
from data_prep.pathfinder.rendering import PARAMETERS, scalars, shrink_weights, tables
from lra_spt.errors import DataError

CONTOUR_LENGTHS = (6, 9, 14)  # Long Range Arena's baseline, intermediate and hard sets


def _generate(resolution, seed, indices, contour_length):
  """The result of `generate` and the ends of the contours.

  Returns:
    Images, labels, tips int32 [n, 2 contours, (origin, terminal), (y, x)] and markers int32 [n, 2, (y, x)].
  """
  if resolution not in PARAMETERS:
    raise DataError(f'resolution {resolution!r} is unknown; choose one of {sorted(PARAMETERS)}')
  if contour_length not in CONTOUR_LENGTHS:
    raise DataError(f'contour_length {contour_length!r} is unknown; choose one of {CONTOUR_LENGTHS}')
  indices = np.asarray(indices)
  if indices.size == 0:
    indices = indices.astype(np.int64)  # NumPy takes an empty list for floats
  if indices.ndim != 1 or indices.dtype.kind not in 'iu' or (indices < 0).any():
    raise DataError('indices must be a one-dimensional array of integers >= 0; pass e.g. range(100)')
  n = len(indices)
  images = np.zeros((n, resolution, resolution), np.uint8)
  labels = np.zeros(n, np.int32)
  tips, markers = np.zeros((n, 2, 2, 2), np.int32), np.zeros((n, 2, 2), np.int32)
  margins = PARAMETERS[resolution].margins
  for i, margin in enumerate(margins):
    fill(
      images,
      labels,
      tips,
      markers,
      np.uint64(seed % 2**64),
      indices.astype(np.uint64),
      contour_length,
      i,
      len(margins),
      tables(resolution, margin),
      scalars(resolution, margin),
      shrink_weights(resolution),
    )
  return images, labels, tips, markers


def generate(resolution, seed, indices, *, contour_length=14):
  """Pathfinder images and their labels.

  Args:
    resolution: side R of the images in pixels, one of 32, 64, 128, 256 (`PARAMETERS`).
    seed: integer; other seeds give other images.
    indices: numbers of the images, integers >= 0, [n]; no image depends on another.
    contour_length: paddles of a target: 14 (Long Range Arena's hard set), 9 or 6; a distractor has a third.

  Returns:
    Images uint8 [n, R, R], and labels int32 [n]: 1 if the markers are on the two ends of one contour, else 0.

  Raises:
    ValueError: resolution or contour_length is unknown, or an index is no integer >= 0.
  """
  images, labels, _, _ = _generate(resolution, seed, indices, contour_length)
  return images, labels
