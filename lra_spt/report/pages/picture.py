"""The picture of a table: per column the score of every model and arm, and gains, with their intervals."""

import math
from html import escape

from lra_spt.errors import counted
from lra_spt.report.pages import charts, styles
from lra_spt.report.runs.arm_key import model_name
from lra_spt.report.study.arms import constant_score

WIDTH = 340
SCORES, GAINS = (10, 206), (228, 332)  # from left to right
LANE, NAME = 14, 17  # heights of an arm and of a model's name


def panels(table) -> list[dict]:
  """{'column', 'svg', 'alt'} per column with a finished run."""
  pairs = {}
  for pair in table.findings.pairs:
    if pair.main:
      pairs[pair.pretrained] = pair
  shown = []
  for column in table.columns:
    cells = [cell for row in table.rows if (cell := table.cells.get((row, column))) and cell.arm]
    for score in dict.fromkeys(cell.score for cell in cells):
      alike = [cell for cell in cells if cell.score is score]
      shown.append({'column': column, 'svg': _panel(alike, pairs, score), 'alt': _alt(column, alike)})
  return shown


def key(table) -> list[tuple[str, styles.Style]]:
  """(name, Style) of every way of training in the picture."""
  looks = {}
  for cell in table.cells.values():
    if cell.arm:
      looks.setdefault(_style(cell), _way(cell))
  return [(name, style) for style, name in looks.items()]


def _style(cell):
  return styles.of_regime(cell.regime, cell.causal, cell.training)


def _way(cell):
  tied = ', compute-tied' if 'compute-tied' in cell.training else ''
  return cell.key.name + tied


def _panel(cells, pairs, score):
  scale = 100 if score.in_percent else 1
  constants = [constant for cell in cells if (constant := constant_score(cell.arm.first)) is not None]
  values = [v for cell in cells for v in _limits(cell.arm.score)] + constants * score.in_percent
  x = charts.axis(values, *SCORES, bounds=score.bounds)
  gains = [pairs[cell] for cell in cells if cell in pairs]
  g = charts.axis([0.0, *(v for pair in gains for v in _limits(pair.interval))], *GAINS)
  drawn, y, dots = [], 26, {}
  by_model = {}
  for cell in cells:
    by_model.setdefault(cell.arm.model, []).append(cell)
  titled = {model: len(set(map(_style, same))) < len(same) for model, same in by_model.items()}
  height = y + sum(NAME + (LANE + NAME * titled[model]) * len(same) for model, same in by_model.items())
  drawn.append(_scale(x, score.title + (', %' if score.in_percent else ''), SCORES, height, scale, 4))
  if gains:
    drawn.append(_scale(g, 'Gain' + (', points' if score.in_percent else ''), GAINS, height, scale, 3))
    drawn.append(f'<path d="M{g(0.0):.1f} 20V{height}" stroke="var(--faint)" stroke-width="1"/>')
  if constants and score.in_percent:
    at = x(sum(constants) / len(constants))
    drawn.append(
      f'<path d="M{at:.1f} 20V{height}" stroke="var(--faint)" stroke-dasharray="2 3">'
      f'<title>{score.constant}</title></path>'
    )
  for model, same in by_model.items():
    drawn.append(f'<text class="name" x="0" y="{y + 12}">{escape(model_name(model))}</text>')
    y += NAME
    for cell in same:
      if titled[model]:  # colours do not tell these rows apart
        y += NAME
        title = cell.row.removeprefix(f'{model_name(model)}, ')
        drawn.append(f'<text class="row" x="10" y="{y - 3}">{escape(title)}</text>')
      middle, colour = y + LANE / 2 - 1, f'var(--line-{_style(cell).colour})'
      dots[cell] = x(cell.arm.score.estimate), middle
      label = (
        f'{cell.row}: {cell.text} ({score.limits(cell.arm.score)}, {counted(len(cell.arm.runs), "seed")})'
      )
      drawn.append(_bar(x, cell.arm.score, middle, colour, label))
      if pair := pairs.get(cell):
        direction = {'better': 'var(--good)', 'worse': 'var(--bad)', '': 'var(--faint)'}[pair.direction]
        if pair.scratch in dots and not titled[model]:
          drawn.append(_arrow(dots[pair.scratch], dots[cell], direction))
        label = f'{cell.row} over {pair.scratch.row}: {score.gain(pair.interval)}; {pair.verdict}'
        drawn.append(_bar(g, pair.interval, middle, direction, label))
      y += LANE
  return f'<svg class="picture" viewBox="0 0 {WIDTH} {height + 20}" role="img">{"".join(drawn)}</svg>'


def _limits(interval):
  return [v for v in (interval.low, interval.estimate, interval.high) if math.isfinite(v)]


def _scale(x, title, ends, height, scale, most):
  drawn = [f'<text class="axis" x="{ends[0]}" y="12">{title}</text>']
  for value in x.ticks(most):
    at = f'{x(value):.1f}'
    drawn.append(f'<path d="M{at} 20V{height}" stroke="var(--rule)" stroke-width=".8"/>')
    shown = charts.short_number(round(scale * value, 6))
    drawn.append(f'<text x="{at}" y="{height + 14}" text-anchor="middle">{shown}</text>')
  return ''.join(drawn)


def _bar(x, interval, y, colour, label):
  limits = (interval.low, interval.high) if interval.known else (interval.estimate, interval.estimate)
  low, high = (x(min(max(limit, x.low), x.high)) for limit in limits)
  return (
    f'<g><title>{escape(label)}</title>'
    f'<path d="M{low:.1f} {y:.1f}H{high:.1f}" stroke="{colour}" stroke-width="2.2" opacity=".55"/>'
    f'<circle cx="{x(interval.estimate):.1f}" cy="{y:.1f}" r="3.6" fill="{colour}"/></g>'
  )


def _arrow(start, end, colour):
  """A line from dot to dot that ends in a head before the second one."""
  (a, b), (c, d) = start, end
  length = math.hypot(c - a, d - b)
  u, v = (c - a) / length, (d - b) / length
  a, b, c, d = a + 4 * u, b + 4 * v, c - 5 * u, d - 5 * v
  left, right = (f'{c - 5 * u + s * 2.8 * v:.1f} {d - 5 * v - s * 2.8 * u:.1f}' for s in (1, -1))
  return (
    f'<path d="M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}M{left}L{c:.1f} {d:.1f}L{right}" fill="none" '
    f'stroke="{colour}" stroke-width="1.3"/>'
  )


def _alt(column, cells):
  return f'{column}: ' + '; '.join(f'{cell.row} {cell.text}' for cell in cells)
