"""Pathfinder at 16 x 16 pixels: do the two marked ends belong to one curve?

The released placement (`core`) needs more room: at 16 pixels its contours touch, and the distance between the
marks reveals too much of the label. Here there are two smooth dashed curves, and a short one where there is
room. They are `APART` pixels, more than twice the gap between dashes, from each other and from themselves.
Curves are used only if some pair of ends of one curve looks like some pair of ends of different curves
(`_alike`); a coin decides which of the two pairs is marked. The curves therefore say nothing about the label,
and the positions of the marks almost nothing; the lit pixels between them decide.

Image i of a file is a pure function of (seed, file, i).
"""

import math

import numba
import numpy as np

from data_prep.pathfinder.core import integer, start_random, uniform

# Not cached, because Numba would not notice a change in `core`; compiling takes seconds.
jit = numba.njit(nogil=True)

SIDE = 16
FILES = ('train', 'validation', 'test')
# In pixels: length of the two curves and of the short one, their distance from each other and from the edge.
LENGTH, SHORT, APART, EDGE = 9, 5, 4.0, 1.0
PIXELS = 0.5  # largest difference of pairs of ends
# Largest turn of a curve per pixel, in radians, and the share of a turn that continues in the next pixel.
_TURN, _KEPT = 0.4, 0.7
# Number of attempts at a next point, at a second curve beside a first, and at a short one beside both.
_STEERS, _SECONDS, _SHORTS = 4, 200, 30
# Dashes: pixels on, on and off; least and largest grey level; half of the width; points per pixel.
_ON, _PERIOD, _DARK, _BRIGHT, _HALF, _POINTS = 2.0, 3.6, 110.0, 190.0, 0.5, 4
_MARK = 1.2  # radius in pixels
_CENTRE = (SIDE - 1) / 2
_N = LENGTH + 1  # points of a curve, a pixel apart


@jit
def _free(y, x, points, begin, end):
  """True if a place is far enough from the edge and from the points [begin, end)."""
  if not (EDGE <= y <= SIDE - 1 - EDGE and EDGE <= x <= SIDE - 1 - EDGE):
    return False
  for j in range(begin, end):
    if (y - points[j, 0]) ** 2 + (x - points[j, 1]) ** 2 < APART**2:
      return False
  return True


@jit
def _grow(state, points, begin, end):
  """Tries a curve as points [begin, end) of float64 [n, (y, x)] beside earlier ones; False if it fails."""
  y, x = SIDE * uniform(state), SIDE * uniform(state)
  if not _free(y, x, points, 0, begin):
    return False
  angle, turn = 2 * math.pi * uniform(state), 0.0
  near = math.ceil(2 * APART)  # so many preceding points may be near
  points[begin, 0], points[begin, 1] = y, x
  for i in range(begin + 1, end):
    for attempt in range(_STEERS + 1):
      if attempt == _STEERS:
        return False
      tried = _KEPT * turn + 2 * (1 - _KEPT) * _TURN * (2 * uniform(state) - 1)
      tried = min(max(tried, -_TURN), _TURN)
      next_y, next_x = y + math.sin(angle + tried), x + math.cos(angle + tried)
      if _free(next_y, next_x, points, 0, begin) and _free(next_y, next_x, points, begin, i - near):
        break
    turn, y, x = tried, next_y, next_x
    angle += turn
    points[i, 0], points[i, 1] = y, x
  return True


@jit
def _off(y, x):
  """The distance of a place from the centre."""
  return math.hypot(y - _CENTRE, x - _CENTRE)


@jit
def _alike(points, a, b, c, d):
  """True if the pairs of points (a, b) and (c, d) are alike.

  They are alike in their distance, and in the distances of their middle and of the farther point from the
  centre.
  """
  ay, ax, by, bx = points[a, 0], points[a, 1], points[b, 0], points[b, 1]
  cy, cx, dy, dx = points[c, 0], points[c, 1], points[d, 0], points[d, 1]
  if abs(math.hypot(ay - by, ax - bx) - math.hypot(cy - dy, cx - dx)) > PIXELS:
    return False
  if abs(_off((ay + by) / 2, (ax + bx) / 2) - _off((cy + dy) / 2, (cx + dx) / 2)) > PIXELS:
    return False
  return abs(max(_off(ay, ax), _off(by, bx)) - max(_off(cy, cx), _off(dy, dx))) <= PIXELS


@jit
def _choose(state, points, pairs):
  """Chooses two pairs of ends that are alike, one for each label, int64 [2 labels, 2]; False if none are."""
  first = integer(state, 8)
  for k in range(8):
    choice = (first + k) % 8
    one = choice // 4 * _N
    c, d = choice % 2 * LENGTH, _N + choice // 2 % 2 * LENGTH
    if _alike(points, one, one + LENGTH, c, d):
      pairs[0, 0], pairs[0, 1], pairs[1, 0], pairs[1, 1] = c, d, one, one + LENGTH
      return True
  return False


@jit
def _place(state, points, pairs):
  """Tries both curves, consecutive in `points`, and `pairs`; False if it fails."""
  while not _grow(state, points, 0, _N):
    pass
  for _ in range(_SECONDS):
    if _grow(state, points, _N, 2 * _N) and _choose(state, points, pairs):
      return True
  return False


@jit
def _dot(image, y, x, half, level):
  """Brightens image float64 [SIDE, SIDE] around a place, with an edge one pixel wide."""
  for row in range(SIDE):
    for column in range(SIDE):
      cover = min(0.5 + half - math.hypot(row - y, column - x), 1.0)
      image[row, column] = max(image[row, column], level * cover)


@jit
def _draw(state, image, points, begin, end):
  """Draws a curve in dashes of differing brightness; the first one begins at a random point."""
  along, level = _PERIOD * uniform(state), _DARK + (_BRIGHT - _DARK) * uniform(state)
  for i in range((end - begin - 1) * _POINTS + 1):
    if along >= _PERIOD:
      along, level = along - _PERIOD, _DARK + (_BRIGHT - _DARK) * uniform(state)
    if along < _ON:
      k = min(begin + i // _POINTS, end - 2)
      part = i / _POINTS - (k - begin)
      y = (1 - part) * points[k, 0] + part * points[k + 1, 0]
      x = (1 - part) * points[k, 1] + part * points[k + 1, 1]
      _dot(image, y, x, _HALF, level)
    along += 1 / _POINTS


@jit
def _fill(images, labels, marks, seed, file, start):
  state, image = np.empty(4, np.uint64), np.empty((SIDE, SIDE))
  points, pairs = np.empty((2 * _N + SHORT + 1, 2)), np.empty((2, 2), np.int64)
  for index in range(images.shape[0]):
    start_random(state, seed, SIDE, file, start + index)
    while not _place(state, points, pairs):
      pass
    image[:] = 0
    _draw(state, image, points, 0, _N)
    _draw(state, image, points, _N, 2 * _N)
    for _ in range(_SHORTS):
      if _grow(state, points, 2 * _N, points.shape[0]):
        _draw(state, image, points, 2 * _N, points.shape[0])
        break
    label = integer(state, 2)
    for k in range(2):
      y, x = points[pairs[label, k], 0], points[pairs[label, k], 1]
      _dot(image, y, x, _MARK, 255.0)
      marks[index, k, 0], marks[index, k, 1] = y, x
    for row in range(SIDE):
      for column in range(SIDE):
        images[index, row, column] = int(image[row, column] + 0.5)
    labels[index] = label


def generate(seed: int, file: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The images [start, stop) of a file, one of `FILES`.

  Returns:
    Images uint8 [n, 16, 16]; labels int32 [n], 1 if both marks are on one curve; positions of the marks,
    float64 [n, 2, (y, x)].
  """
  n = stop - start
  images, labels, marks = np.empty((n, SIDE, SIDE), np.uint8), np.empty(n, np.int32), np.empty((n, 2, 2))
  _fill(images, labels, marks, np.uint64(seed % 2**64), FILES.index(file), start)
  return images, labels, marks
