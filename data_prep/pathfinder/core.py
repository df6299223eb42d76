"""The compiled part of the Pathfinder generator: random numbers, placement, drawing.

Everything is in one file because Numba's cache notices a change only in the file of the called function.
Arrays and settings come as `Tables` and `Scalars` of `rendering`, here `t` and `p`.
"""

import math

import numpy as np

from data_prep.compiled import jit

_COLLISION = 1.8  # two paddles collide from this sum of occupancies on
_FREE = 0.3  # a pixel of at most this occupancy is free for a first paddle
_FREE_SHARE = 0.01  # share of free pixels that a distractor needs
_WEIGHT = 1e-4  # a contour is stuck if the total weight of the next heads is below this
_PATCH, _Y, _X = range(3)  # columns of an array of paddles: number of the patch, tail


@jit
def _mix(x):
  """splitmix64's output function."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


@jit
def start_random(state, seed, resolution, contour_length, index):
  """Fills xoshiro256++'s state, uint64 [4], for one image."""
  golden = np.uint64(0x9E3779B97F4A7C15)
  key = _mix(seed + golden)
  key = _mix((key ^ (np.uint64(resolution) << np.uint64(32)) ^ np.uint64(contour_length)) + golden)
  key = _mix((key ^ np.uint64(index)) + golden)
  for i in range(4):
    key += golden
    state[i] = _mix(key)


@jit
def uniform(state):
  """The next xoshiro256++ number as float64 in [0, 1)."""
  s0, s1, s2, s3 = state[0], state[1], state[2], state[3]
  total = s0 + s3
  result = ((total << np.uint64(23)) | (total >> np.uint64(41))) + s0
  shifted = s1 << np.uint64(17)
  s2 ^= s0
  s3 ^= s1
  s1 ^= s2
  s0 ^= s3
  s2 ^= shifted
  s3 = (s3 << np.uint64(45)) | (s3 >> np.uint64(19))
  state[0], state[1], state[2], state[3] = s0, s1, s2, s3
  return (result >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@jit
def integer(state, n):
  """A uniform integer in [0, n)."""
  return int(uniform(state) * n)


@jit
def _move(y, x, theta, distance):
  """`distance` along `theta` (y downwards), each coordinate rounded up."""
  return math.ceil(y + distance * math.sin(theta)), math.ceil(x + distance * math.cos(theta))


@jit
def _clip(y, x, side, size):
  """First and end row and column of a patch of `side`, centred on (y, x), in an image of `size`."""
  half = side // 2
  return max(y - half, 0), min(y + half + 1, size), max(x - half, 0), min(x + half + 1, size)


@jit
def _merge(image, patch, y, x, scale):
  """Combines `scale * patch`, centred on (y, x), into the image by maximum."""
  side = patch.shape[0]
  top, bottom, left, right = _clip(y, x, side, image.shape[0])
  for row in range(top, bottom):
    target = image[row, left:right]
    source = patch[row - y + side // 2, left - x + side // 2 : right - x + side // 2]
    for i in range(target.shape[0]):
      value = scale * source[i]
      target[i] = value if value > target[i] else target[i]


@jit
def _collides(mask, patch, y, x):
  """True if the mask plus the patch centred on (y, x) reaches the collision level anywhere."""
  side = patch.shape[0]
  top, bottom, left, right = _clip(y, x, side, mask.shape[0])
  for row in range(top, bottom):
    target = mask[row, left:right]
    source = patch[row - y + side // 2, left - x + side // 2 : right - x + side // 2]
    hits = 0
    for i in range(target.shape[0]):
      hits += target[i] + source[i] >= np.float32(_COLLISION)
    if hits:
      return True
  return False


@jit
def _dilated(mask, disc, y, x):
  """The greatest mask value within the margin of (y, x)."""
  size = mask.shape[0]
  greatest = np.float32(0)
  for i in range(disc.shape[0]):
    row, column = y + disc[i, 0], x + disc[i, 1]
    if 0 <= row < size and 0 <= column < size:
      value = mask[row, column]
      greatest = value if value > greatest else greatest
  return greatest


@jit
def _start_snake(t, p, degree, y, x, snake, paddle):
  """Puts a first paddle of direction `degree - 180` on tail (y, x); False if head or pivot leaves the image.

  `snake` float64 [3] receives pivot y, pivot x and direction, `paddle` int32 [3] the paddle.
  """
  theta = math.radians(degree - 180.0)
  head_y, head_x = _move(y, x, theta, p.paddle_length)
  pivot_y, pivot_x = _move(head_y, head_x, theta + math.pi, p.paddle_length + p.margin)
  n = p.resolution
  if not (0 <= head_y < n and 0 <= head_x < n and 0 <= pivot_y < n and 0 <= pivot_x < n):
    return False
  snake[0], snake[1], snake[2] = pivot_y, pivot_x, theta
  paddle[_PATCH], paddle[_Y], paddle[_X] = t.degree_patch[degree], y, x
  return True


@jit
def _grow(state, t, p, mask, snake, last, paddle, cumulative):
  """Adds one paddle to a snake and merges the snake's `last` paddle into the mask; False if there is no room.

  The newest paddle enters the mask one step later, so that it does not forbid its own continuation.
  `cumulative` float64 [Q] is scratch space.
  """
  n = p.resolution
  pivot_y, pivot_x = _move(snake[0], snake[1], snake[2], p.paddle_length + 2 * p.margin)
  total = 0.0
  for i in range(t.step.shape[0]):
    y, x = pivot_y + t.step[i, 0], pivot_x + t.step[i, 1]
    if 0 <= y < n and 0 <= x < n:
      turn = abs(t.step_angle[i] - snake[2])
      turn = p.continuity * min(turn, 2 * math.pi - turn)
      if turn < math.pi / 2:
        # Ringing lifts occupancies above 1, and such weights stay negative. Crowded places then fail more
        # often, which the number of distractors in the real images shows.
        total += math.cos(turn) ** 2 * (1.0 - _dilated(mask, t.disc, y, x))
    cumulative[i] = total
  if total < _WEIGHT:
    return False
  for _ in range(p.paddle_attempts):
    i, wanted = 0, uniform(state) * total
    while i < cumulative.shape[0] - 1 and cumulative[i] <= wanted:  # not sorted: weights may be negative
      i += 1
    y, x, patch = pivot_y + t.step[i, 0], pivot_x + t.step[i, 1], t.step_patch[i]
    if not _collides(mask, t.occupancy[patch], y, x):
      _merge(mask, t.occupancy[last[_PATCH]], last[_Y], last[_X], np.float32(1))
      snake[0], snake[1], snake[2] = pivot_y, pivot_x, t.step_angle[i]
      paddle[_PATCH], paddle[_Y], paddle[_X] = patch, y, x
      return True
  return False


@jit
def _clear(mask, padding):
  """Empties the mask except for a border of ones."""
  n = mask.shape[0]
  mask[:] = 1
  mask[padding : n - padding, padding : n - padding] = 0


@jit
def _place_targets(state, t, p, mask, paddles, cumulative):
  """Tries once to place both targets, `paddles` int32 [2, N, 3], on a fresh mask; False if it fails.

  The last paddle of the first snake is not merged into the mask, as in the original.
  """
  n = p.resolution
  snakes = np.empty((2, 3))
  border = max(2 * p.seed_distance, p.padding)
  for attempt in range(p.paddle_attempts + 1):
    if attempt == p.paddle_attempts:
      return False
    # The mask is empty, so the tails that leave room for a paddle inside the border are a rectangle.
    degree = integer(state, 360)
    patch = t.degree_patch[degree]
    top, left = border - min(t.extent[patch, 0], 0), border - min(t.extent[patch, 2], 0)
    rows = n - border - max(t.extent[patch, 1], 0) - top
    columns = n - border - max(t.extent[patch, 3], 0) - left
    if rows <= 0 or columns <= 0 or not t.seedable[patch]:
      return False
    tail_y, tail_x = top + integer(state, rows), left + integer(state, columns)
    if _start_snake(t, p, degree, tail_y, tail_x, snakes[0], paddles[0, 0]):
      break
  for attempt in range(p.paddle_attempts + 1):
    if attempt == p.paddle_attempts:
      return False
    degree = integer(state, 360)
    bearing = math.radians(integer(state, 360) - 180.0)
    y = int(np.rint(tail_y + p.seed_distance * math.sin(bearing)))
    x = int(np.rint(tail_x + p.seed_distance * math.cos(bearing)))
    if 0 <= y < n and 0 <= x < n and _start_snake(t, p, degree, y, x, snakes[1], paddles[1, 0]):
      break
  _clear(mask, p.padding)
  for j in range(1, paddles.shape[1]):
    for i in range(2):
      if not _grow(state, t, p, mask, snakes[i], paddles[i, j - 1], paddles[i, j], cumulative):
        return False
  last = paddles[1, -1]
  _merge(mask, t.occupancy[last[_PATCH]], last[_Y], last[_X], np.float32(1))
  return True


@jit
def _mark_blocked(mask, blocked):
  """Sets blocked uint8 [R, R] where the mask is not free, and on the outermost pixels.

  Returns the number of pixels that the mask leaves free.
  """
  n = mask.shape[0]
  count = n * n
  for y in range(n):
    for x in range(n):
      blocked[y, x] = mask[y, x] > np.float32(_FREE)
      count -= blocked[y, x]
  blocked[0], blocked[-1], blocked[:, 0], blocked[:, -1] = 1, 1, 1, 1
  return count


@jit
def _mark_taken(blocked, footprint, taken):
  """Sets taken uint8 [R, R] where a paddle of this footprint would hit a blocked pixel.

  Returns the number of the other pixels.
  """
  n = blocked.shape[0]
  taken[:] = 0
  for i in range(footprint.shape[0]):
    dy, dx = footprint[i, 0], footprint[i, 1]
    left, right = max(0, -dx), min(n, n - dx)
    for y in range(max(0, -dy), min(n, n - dy)):
      source, target = blocked[y + dy, left + dx : right + dx], taken[y, left:right]
      for x in range(target.shape[0]):
        target[x] |= source[x]
  count = n * n
  for y in range(n):
    for x in range(n):
      count -= taken[y, x]
  return count


@jit
def _free_point(state, taken, count):
  """Draws one of the `count` pixels (y, x) where taken uint8 [R, R] is 0, uniformly."""
  wanted = integer(state, count)
  for y in range(taken.shape[0]):
    free = 0
    for x in range(taken.shape[1]):
      free += 1 - taken[y, x]
    if wanted < free:
      for x in range(taken.shape[1]):
        if not taken[y, x]:
          if not wanted:
            return y, x
          wanted -= 1
    wanted -= free
  return 0, 0


@jit
def _place_distractor(state, t, p, mask, paddles, cumulative, blocked, taken):
  """Tries once to place a distractor, `paddles` int32 [D, 3]; False if it fails; the mask is then useless."""
  snake = np.empty(3)
  if _mark_blocked(mask, blocked) < _FREE_SHARE * mask.size:
    return False
  for attempt in range(p.paddle_attempts + 1):
    if attempt == p.paddle_attempts:
      return False
    degree = integer(state, 360)
    patch = t.degree_patch[degree]
    if not t.seedable[patch]:
      return False
    footprint = t.footprint[t.footprint_start[patch] : t.footprint_start[patch + 1]]
    count = _mark_taken(blocked, footprint, taken)
    if not count:
      return False
    y, x = _free_point(state, taken, count)
    if _start_snake(t, p, degree, y, x, snake, paddles[0]):
      break
  for j in range(1, paddles.shape[0]):
    if not _grow(state, t, p, mask, snake, paddles[j - 1], paddles[j], cumulative):
      return False
  last = paddles[-1]
  _merge(mask, t.occupancy[last[_PATCH]], last[_Y], last[_X], np.float32(1))
  return True


@jit
def _place(state, t, p, targets, distractors):
  """Draws label and layout of one image.

  Fills `targets` int32 [2, N, 3] and the first rows of `distractors` int32 [K, D, 3]. Returns the label,
  the number of placed distractors, and on which snake's origin and which snake's terminal tip the markers
  sit.
  """
  n = p.resolution
  mask = np.empty((n, n), np.float32)
  trial = np.empty((n, n), np.float32)
  blocked, taken = np.empty((n, n), np.uint8), np.empty((n, n), np.uint8)
  cumulative = np.empty(t.step.shape[0])
  label, origin = integer(state, 2), integer(state, 2)
  while not _place_targets(state, t, p, mask, targets, cumulative):
    pass
  placed = 0
  for _ in range(p.distractors):
    for _ in range(p.distractor_attempts):
      trial[:] = mask
      if _place_distractor(state, t, p, trial, distractors[placed], cumulative, blocked, taken):
        mask, trial = trial, mask
        placed += 1
        break
  return label, placed, origin, origin if label else 1 - origin


@jit
def _draw_marker(image, weights, antialias, radius, y, x):
  """Adds a disc to image float64 [R, R]: filled on the canvas at (a*y, a*x), shrunk by `shrink_weights`.

  It rounds like Pillow: sums are float64, the results of a pass (first along rows) float32.
  """
  n = image.shape[0]
  reach = int(radius * antialias)
  first_row, end_row = max(antialias * y - reach, 0), min(antialias * y + reach + 1, antialias * n)
  first_column, end_column = max(antialias * x - reach, 0), min(antialias * x + reach + 1, antialias * n)
  top, bottom, left, right = _clip(y, x, 2 * (int(radius) + 5) + 1, n)
  for row in range(top, bottom):
    for column in range(left, right):
      value = 0.0
      for i in range(first_row, end_row):
        part = 0.0
        for j in range(first_column, end_column):
          if (i - antialias * y) ** 2 + (j - antialias * x) ** 2 <= (radius * antialias) ** 2:
            part += weights[column, j]
        value += weights[row, i] * np.float32(part)
      image[row, column] = max(image[row, column], np.float32(value))


@jit
def _render(image, t, p, weights, targets, distractors, markers):
  """Draws a layout into image uint8 [R, R].

  Lines are scaled to a maximum of 1, markers are not; all is multiplied by 255, divided by its maximum and
  truncated, in float64 as in the original: in float32 the maximum itself could become 254.
  """
  layer = np.zeros(image.shape, np.float64)
  for i in range(targets.shape[0]):
    for paddle in targets[i]:
      _merge(layer, t.line[paddle[_PATCH]], paddle[_Y], paddle[_X], p.target_contrast)
  for i in range(distractors.shape[0]):
    for paddle in distractors[i]:
      _merge(layer, t.line[paddle[_PATCH]], paddle[_Y], paddle[_X], 1.0)
  layer /= layer.max()
  for i in range(2):
    _draw_marker(layer, weights, p.antialias, p.marker_radius, markers[i, 0], markers[i, 1])
  image[:] = (layer * 255 / layer.max()).astype(np.uint8)


@jit
def fill(images, labels, tips, markers, seed, indices, contour_length, margin, margins, t, p, weights):
  """Fills the rows whose margin is number `margin` of `margins`; the others stay unchanged."""
  state = np.empty(4, np.uint64)
  targets = np.empty((2, contour_length, 3), np.int32)
  distractors = np.empty((p.distractors, contour_length // 3, 3), np.int32)
  for row in range(indices.shape[0]):
    start_random(state, seed, p.resolution, contour_length, indices[row])
    if integer(state, margins) != margin:
      continue
    label, placed, origin, terminal = _place(state, t, p, targets, distractors)
    for i in range(2):
      tips[row, i, 0], tips[row, i, 1] = targets[i, 0, _Y:], targets[i, -1, _Y:]
    markers[row, 0], markers[row, 1] = targets[origin, 0, _Y:], targets[terminal, -1, _Y:]
    _render(images[row], t, p, weights, targets, distractors[:placed], markers[row])
    labels[row] = label
