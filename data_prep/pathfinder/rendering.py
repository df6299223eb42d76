"""Parameters of Pathfinder, and tables for the compiled generator.

The stimulus is that of Linsley et al. 2018 (github.com/drewlinsley/pathfinder, as used by Long Range Arena):
paddles are drawn with Pillow on an antialiasing canvas and shrunk with Lanczos in floating point, including
its ringing. A paddle depends only on the place of its end point on the canvas, so every patch is drawn once,
here.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

# The pixels whose occupancy is fully 1 must be free for a first paddle, because the original truncates to
# whole numbers. They lie one pixel down and to the right of the paddle itself, because the original draws
# this footprint off the centre. They are cut to the window that length and margin span.
_FOOTPRINT = 1.0
_FOOTPRINT_SHIFT = 1


@dataclasses.dataclass(frozen=True)
class Parameters:
  """The stimulus of one resolution, lengths in pixels (source: `lra_benchmarks/data/pathfinder.py`).

  `distractors` is the number of placement attempts. It agrees with the known images of Long Range Arena (64,
  128, 256), and follows the same rule at 32.
  """

  resolution: int
  padding: int
  paddle_length: int
  thickness: float
  margins: tuple[int, ...]  # one is drawn per image
  seed_distance: int
  marker_radius: float
  continuity: float  # 1.8 limits turns to 50 degrees, 1.0 to 90 degrees
  target_contrast: float  # relative to the distractors; only the ratio reaches the image
  distractors: int
  antialias: int = 2
  paddle_attempts: int = 3
  distractor_attempts: int = 5


PARAMETERS = {
  32: Parameters(32, 1, 2, 0.5, (1,), 7, 1.5, 1.0, 0.75, 10),
  64: Parameters(64, 1, 5, 1.0, (1,), 12, 2.5, 1.8, 1.0, 11),
  128: Parameters(128, 1, 5, 1.5, (2, 3), 20, 3.0, 1.8, 1.0, 18),
  256: Parameters(256, 22, 5, 2.0, (3,), 27, 5.0, 1.8, 1.0, 7),
}


class Tables(NamedTuple):
  """Tables of one resolution and margin for the compiled core; P patches of side 2w+1, Q next heads."""

  line: np.ndarray  # float32 [P, 2w+1, 2w+1], coverage of a paddle that starts in the centre
  occupancy: np.ndarray  # float32 [P, 2w+1, 2w+1], the paddle dilated by the margin
  footprint: np.ndarray  # int32 [F, 2], (y, x) offsets of the pixels that a paddle needs, patch after patch
  footprint_start: np.ndarray  # int32 [P+1]
  extent: np.ndarray  # int32 [P, 4], least y, greatest y, least x, greatest x of the footprint
  seedable: np.ndarray  # bool [P], True if a first paddle may have this direction
  degree_patch: np.ndarray  # int32 [360], patch of a paddle in direction -180, -179, ..., 179 degrees
  step: np.ndarray  # int32 [Q, 2], (y, x) from a pivot to the next possible heads
  step_angle: np.ndarray  # float64 [Q], radians
  step_patch: np.ndarray  # int32 [Q], patch from the head back to the pivot
  disc: np.ndarray  # int32 [M, 2], (y, x) offsets within the margin


class Scalars(NamedTuple):
  """Numbers of `Parameters` for the compiled core, with the margin of the image."""

  resolution: int
  margin: int
  padding: int
  paddle_length: int
  seed_distance: int
  marker_radius: float
  continuity: float
  target_contrast: float
  distractors: int
  antialias: int
  paddle_attempts: int
  distractor_attempts: int


def scalars(resolution, margin):
  """`Scalars` of a resolution of `PARAMETERS` and one of its margins."""
  p = PARAMETERS[resolution]
  return Scalars(margin=margin, **{name: getattr(p, name) for name in Scalars._fields if name != 'margin'})


def shrink(image, size):
  """Lanczos-resizes a [H, W] array to [size, size] in float32, antialiased, with its ringing."""
  image = Image.fromarray(np.ascontiguousarray(image, np.float32))
  return np.asarray(image.resize((size, size), Image.Resampling.LANCZOS))


def canvas_end(theta, half, scale, length):
  """The end (y, x) of a paddle from the centre of the canvas, in canvas pixels; y grows downwards."""
  centre, reach = half * scale, length * scale
  return math.ceil(centre + reach * math.sin(theta)), math.ceil(centre + reach * math.cos(theta))


def disc_offsets(radius):
  """int32 [n, 2] offsets (y, x) with y*y + x*x <= radius*radius."""
  reach = math.floor(radius)
  grid = np.stack(np.meshgrid(*[np.arange(-reach, reach + 1)] * 2, indexing='ij'), -1).reshape(-1, 2)
  return grid[(grid**2).sum(1) <= radius**2].astype(np.int32)


def _draw_patches(ends, p, margin):
  """Line coverage and occupancy, float32 [P, 2w+1, 2w+1], of paddles from the centre to the canvas `ends`."""
  half = p.paddle_length + math.ceil(p.thickness) + margin
  side = 2 * half * p.antialias + 1
  centre = half * p.antialias
  lines = []
  for y, x in ends:
    canvas = Image.new('L', (side, side))
    ImageDraw.Draw(canvas).line([(centre, centre), (x, y)], fill=1, width=round(p.thickness * p.antialias))
    lines.append(np.asarray(canvas))
  lines = np.stack(lines)
  reach = margin * p.antialias
  padded = np.pad(lines, ((0, 0), (reach, reach), (reach, reach)))
  dilated = np.zeros_like(lines)
  for y, x in disc_offsets(reach):
    dilated |= padded[:, reach + y : reach + y + side, reach + x : reach + x + side]
  line, occupancy = ([shrink(canvas, 2 * half + 1) for canvas in stack] for stack in (lines, dilated))
  return np.stack(line), np.stack(occupancy)


def _reaches_inwards(footprint):
  """True if some offsets of the footprint, int32 [n, 2], stay inside from each corner of an image.

  The original searches for free pixels with OpenCV's dilation. A corner whose whole footprint lies outside
  becomes the most negative number there, and the search then takes the image to be full: such a direction
  never seeds a distractor or the first target. At a margin of 1 only directions up and to the left remain,
  as in the real images.
  """
  y, x = footprint.T
  return all(((sy * y >= 0) & (sx * x >= 0)).any() for sy in (-1, 1) for sx in (-1, 1))


@functools.cache
def tables(resolution, margin):
  """`Tables` of a resolution of `PARAMETERS` and one of its margins; about 0.1 s the first time."""
  p = PARAMETERS[resolution]
  half = p.paddle_length + math.ceil(p.thickness) + margin
  # The possible next heads lie on a circle round the pivot, one point per pixel of its circumference.
  radius = p.paddle_length + margin
  angles = np.deg2rad(np.arange(0, 360, 360 / (2 * math.pi * radius)))
  step = np.unique(np.floor(radius * np.stack([np.sin(angles), np.cos(angles)], 1)).astype(np.int32), axis=0)
  step_angle = np.arctan2(step[:, 0], step[:, 1]).astype(np.float64)
  directions = np.concatenate([np.deg2rad(np.arange(-180, 180)), step_angle + math.pi])
  ends = [canvas_end(theta, half, p.antialias, p.paddle_length) for theta in directions]
  unique, patch = np.unique(np.array(ends), axis=0, return_inverse=True)
  patch = patch.reshape(-1).astype(np.int32)
  line, occupancy = _draw_patches([(int(y), int(x)) for y, x in unique], p, margin)
  footprints = [np.argwhere(o >= _FOOTPRINT).astype(np.int32) - half + _FOOTPRINT_SHIFT for o in occupancy]
  footprints = [f[(np.abs(f) <= radius).all(1)] for f in footprints]
  extent = [[f[:, 0].min(), f[:, 0].max(), f[:, 1].min(), f[:, 1].max()] for f in footprints]
  return Tables(
    line=line,
    occupancy=occupancy,
    footprint=np.concatenate(footprints),
    footprint_start=np.cumsum([0] + [len(f) for f in footprints]).astype(np.int32),
    extent=np.array(extent, np.int32),
    seedable=np.array([_reaches_inwards(f) for f in footprints]),
    degree_patch=patch[:360],
    step=step,
    step_angle=step_angle,
    step_patch=patch[360:],
    disc=disc_offsets(margin),
  )


@functools.cache
def shrink_weights(resolution):
  """Lanczos weights that shrink a*R canvas pixels to R pixels, edges included, float32 [R, a*R]."""
  p = PARAMETERS[resolution]
  identity = Image.fromarray(np.eye(resolution * p.antialias, dtype=np.float32))
  size = (resolution, resolution * p.antialias)
  return np.ascontiguousarray(np.asarray(identity.resize(size, Image.Resampling.LANCZOS)).T)
