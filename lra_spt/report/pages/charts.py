"""Line charts and scatter charts as inline SVG, in the colours of the page."""

import dataclasses
import math
from html import escape

import numpy as np

from lra_spt.report.pages.styles import Style

WIDTH, HEIGHT = 420, 250
WIDE = 860  # of bars
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 8, 40
MOST_POINTS = 200  # of a drawn curve
SEED, MEAN, SINGLE = 0.8, 2.0, 1.7  # widths of lines: a seed among several, their mean, a single one


@dataclasses.dataclass(frozen=True)
class Line:
  """The curves (x [n], y [n]) of one arm, one per seed, and its style."""

  name: str
  style: Style
  curves: tuple


@dataclasses.dataclass(frozen=True)
class Bar:
  """A bar from 0 to a share, with the limits of its interval, and a mark for the published share.

  value, limits, published: None where unknown. A dashed style is a pale bar with a dashed outline.
  """

  name: str
  style: Style
  value: float | None = None
  limits: tuple[float, float] | None = None
  published: float | None = None


@dataclasses.dataclass(frozen=True)
class Axis:
  """A linear or logarithmic scale from values to positions."""

  low: float
  high: float
  start: float
  end: float
  log: bool = False

  @property
  def _span(self):
    """The distance of both ends. If they are equal it is 1, so that their number is drawn at the start."""
    low, high = (math.log10(v) for v in (self.low, self.high)) if self.log else (self.low, self.high)
    return high - low or 1.0

  def __call__(self, value):
    low, value = (math.log10(self.low), np.log10(value)) if self.log else (self.low, value)
    return self.start + (value - low) / self._span * (self.end - self.start)

  def ticks(self, most=6) -> list[float]:
    """Returns round numbers within the scale, two or more even on a logarithmic one of less than a decade."""
    if self.log and len(decades := self._decades(most)) > 1:
      return decades
    size = 10.0 ** math.floor(math.log10((self.high - self.low or 1.0) / most / 2))
    for step in (m * size for m in (1, 2, 5, 10, 20, 50)):
      first, last = math.ceil(self.low / step), math.floor(self.high / step)
      if last - first < most:
        break
    values = [n * step for n in range(first, last + 1)]
    return [value for value in values if self.low <= value <= self.high]

  def _decades(self, most):
    first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
    steps = (1,) if last - first > 3 else (1, 2, 5)
    every = max(1, (last - first) // most)
    values = [m * 10.0**e for e in range(first, last + 1, every) for m in steps]
    return [value for value in values if self.low <= value <= self.high]


def axis(values, start, end, *, log=False, bounds=(-math.inf, math.inf)) -> Axis:
  """The Axis that holds all finite values, cut at bounds.

  Args:
    values: numbers; on a logarithmic axis only positive ones count.
    start, end: positions of its ends.
  """
  values = [float(v) for v in values if math.isfinite(v) and (v > 0 or not log)]
  low, high = (min(values), max(values)) if values else (0.1, 1.0)
  if log:
    return Axis(low / 1.1, high * 1.1, start, end, True)
  pad = 0.04 * (high - low) or abs(high) * 0.05 or 0.01
  return Axis(max(low - pad, bounds[0]), min(high + pad, bounds[1]), start, end)


def line_chart(lines, xlabel, ylabel, *, percent=True, xlog=False, ylog=False, includes=()) -> str | None:
  """An <svg> of lines: a thin one per seed, a thick one for the mean where all seeds have values.

  Names of arms are not drawn (the page's key holds them). `includes`: values that the y axis reaches. None
  when no line has a point.
  """
  lines = [dataclasses.replace(line, curves=_arrays(line, percent)) for line in lines]
  curves = [curve for line in lines for curve in line.curves if len(curve[0])]
  if not curves:
    return None
  x = axis(np.concatenate([x for x, _ in curves]), LEFT, WIDTH - RIGHT, log=xlog)
  if not xlog:
    x = dataclasses.replace(x, low=0.0)
  ys = np.concatenate([*(y for _, y in curves), np.asarray(includes, float)])
  if ylog:  # a value five decades below the largest is cut off
    ys = np.maximum(ys, 1e-5 * ys[np.isfinite(ys)].max(initial=1e-300))
  y = axis(ys, HEIGHT - BOTTOM, TOP, log=ylog)
  drawn = [_frame(x, y, xlabel, ylabel + (' (%)' if percent else ''))]
  for line in lines:
    several = len(line.curves) > 1
    for curve in line.curves:
      drawn.append(_path(x, y, *curve, line.style, SEED if several else SINGLE, 0.35 if several else 1))
    if several:
      drawn.append(_path(x, y, *_mean_curve(line.curves), line.style, MEAN))
  return _svg(drawn)


def scatter(points, xlabel, ylabel, *, percent=True) -> str | None:
  """An <svg> of points (x, y, Style, name) over a logarithmic x axis. A line joins each point that is higher
  than all points with smaller x. None when there are no points."""
  if not points:
    return None
  scale = 100 if percent else 1
  x = axis([point[0] for point in points], LEFT, WIDTH - RIGHT, log=True)
  y = axis([scale * point[1] for point in points], HEIGHT - BOTTOM, TOP)
  drawn, front, best = [_frame(x, y, xlabel, ylabel + (' (%)' if percent else ''))], [], -math.inf
  for a, b, *_ in sorted(points, key=lambda point: (point[0], -point[1])):
    if b > best:
      front += [f'H{x(a):.1f}'] * bool(front) + [f'{"V" if front else f"M{x(a):.1f} "}{y(scale * b):.1f}']
      best = b
  drawn.append(f'<path d="{"".join(front)}" fill="none" stroke="var(--rule)" stroke-width="1.4"/>')
  drawn += [
    f'<circle cx="{x(a):.1f}" cy="{y(scale * b):.1f}" r="3.2" fill="var(--line-{style.colour})"/>'
    for a, b, style, _ in points
  ]
  drawn += _labels([(x(a), y(scale * b), name) for a, b, _, name in points])
  return _svg(drawn)


def _labels(points):
  """Yields a label for each point (x, y, name), beside it where no other point and no earlier label lies."""
  taken = [(a - 3, b - 3, a + 3, b + 3) for a, b, _ in points]
  for a, b, name in points:
    wide = 6.0 * len(name)
    places = [
      (a + right * (6 + wide / 2 * (right != 0)), b + up * 8)
      for up, right in ((0, 1), (-1, 0), (0, -1), (1, 0), (-1, 1), (-1, -1), (1, 1), (1, -1))
    ]
    boxes = [(c - wide / 2, d - 5, c + wide / 2, d + 5) for c, d in places]
    free = (i for i, box in enumerate(boxes) if not any(_overlap(box, other) for other in taken))
    best = next(free, 0)
    taken.append(boxes[best])
    (c, d) = places[best]
    yield f'<text x="{c:.1f}" y="{d:.1f}" dy=".35em" text-anchor="middle">{escape(name)}</text>'


def _overlap(one, other):
  return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def bar_chart(groups, ylabel) -> str | None:
  """An <svg> of bars in per cent, side by side in every group; None when no bar has a number.

  Args:
    groups: (name, [Bar]) each; a Bar without numbers leaves its place empty.
    ylabel: of the y axis.
  """
  bars = [bar for _, group in groups for bar in group]
  ends = [v for bar in bars for v in (bar.value, bar.published, *(bar.limits or ())) if v is not None]
  if not ends:
    return None
  y = Axis(0.0, 100 * min(1.0, 1.05 * max(ends)), HEIGHT - BOTTOM, TOP)
  wide = (WIDE - LEFT - RIGHT) / sum(len(group) + 1 for _, group in groups)
  drawn, left = [_rules(y, ylabel + ' (%)', WIDE)], LEFT + wide / 2
  for name, group in groups:
    middle = left + wide * len(group) / 2
    drawn.append(
      f'<text x="{middle:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{escape(name)}</text>'
    )
    for bar in group:
      drawn.append(_bar(bar, y, left, wide))
      left += wide
    left += wide
  return _svg(drawn, WIDE)


def _bar(bar, y, left, width):
  drawn, colour, middle = [], f'var(--line-{bar.style.colour})', left + width / 2
  if bar.value is not None:
    top, looks = y(100 * bar.value), f'fill="{colour}"'
    if bar.style.dash:
      looks += f' fill-opacity=".25" stroke="{colour}" stroke-dasharray="3 2"'
    drawn.append(
      f'<rect x="{left + 1:.1f}" y="{top:.1f}" width="{width - 2:.1f}" height="{y.start - top:.1f}" {looks}/>'
    )
  if bar.limits:
    low, high = (y(min(max(100 * limit, y.low), y.high)) for limit in bar.limits)
    drawn.append(f'<path d="M{middle:.1f} {low:.1f}V{high:.1f}" stroke="var(--ink)" stroke-width="1.2"/>')
  if bar.published is not None:
    at = y(100 * bar.published)
    drawn.append(f'<path d="M{left - 1:.1f} {at:.1f}h{width + 2:.1f}" stroke="var(--ink)" stroke-width="2"/>')
  return f'<g><title>{escape(bar.name)}</title>{"".join(drawn)}</g>'


def _arrays(line, percent):
  curves = ((np.asarray(x, float), np.asarray(y, float) * (100 if percent else 1)) for x, y in line.curves)
  return tuple(envelope(*curve) for curve in curves)


def envelope(x, y):
  """Keeps the smallest and the largest y of each of MOST_POINTS parts of the curve, so no peak is lost."""
  if len(x) <= 2 * MOST_POINTS:
    return x, y
  keep = set()
  for part in np.array_split(np.arange(len(x)), MOST_POINTS):
    keep |= {part[np.argmin(y[part])], part[np.argmax(y[part])]}
  keep = np.array(sorted(keep))
  return x[keep], y[keep]


def _mean_curve(curves):
  """Returns the mean of the curves at the x of the first one, as far as all reach; interpolates linearly."""
  curves = [(x, y) for x, y in curves if len(x)]
  low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
  grid = curves[0][0]
  grid = grid[(grid >= low) & (grid <= high)]
  return grid, np.mean([np.interp(grid, x, y) for x, y in curves], axis=0)


def _path(x, y, xs, ys, style, width, opacity=1.0):
  xs, ys = x(xs), np.clip(y(np.maximum(ys, y.low) if y.log else ys), TOP, HEIGHT)
  points = [f'{a:.1f} {b:.1f}' for a, b in zip(xs, ys, strict=True) if math.isfinite(a) and math.isfinite(b)]
  looks = f'stroke="var(--line-{style.colour})"' + (f' opacity="{opacity}"' if opacity < 1 else '')
  if len(points) == 1:
    return f'<path d="M{points[0]}h0" {looks} stroke-width="5" stroke-linecap="round"/>'
  dash = f' stroke-dasharray="{style.dash}"' if style.dash and opacity == 1 else ''
  return f'<path d="M{"L".join(points)}" fill="none" {looks} stroke-width="{width}"{dash}/>' if points else ''


def _rules(y, ylabel, width):
  """The lines of a y axis, their numbers and its label."""
  drawn = []
  for value in y.ticks(5):
    at = f'{y(value):.1f}'
    drawn.append(f'<path d="M{LEFT} {at}H{width - RIGHT}" stroke="var(--rule)" stroke-width=".8"/>')
    drawn.append(f'<text x="{LEFT - 5}" y="{at}" dy=".35em" text-anchor="end">{short_number(value)}</text>')
  height = (TOP + HEIGHT - BOTTOM) / 2
  drawn.append(
    f'<text transform="translate(12 {height}) rotate(-90)" text-anchor="middle">{escape(ylabel)}</text>'
  )
  return ''.join(drawn)


def _frame(x, y, xlabel, ylabel):
  drawn = [_rules(y, ylabel, WIDTH)]
  for value in x.ticks():
    drawn.append(
      f'<text x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{short_number(value)}</text>'
    )
  middle = (LEFT + WIDTH - RIGHT) / 2
  drawn.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(xlabel)}</text>')
  return ''.join(drawn)


def _svg(drawn, width=WIDTH):
  return f'<svg class="chart" viewBox="0 0 {width} {HEIGHT}" aria-hidden="true">{"".join(drawn)}</svg>'


def short_number(value: float) -> str:
  """1200 -> '1.2 k'."""
  for factor, suffix in ((1e18, 'E'), (1e15, 'P'), (1e12, 'T'), (1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    if abs(value) >= factor:
      return f'{value / factor:g} {suffix}'
  return f'{value:.4g}'.replace('-', '\u2212')
