"""Line charts as inline SVG. Colours are CSS variables of the page: charts follow light, dark and print."""

import dataclasses
import io
import re

import matplotlib
import numpy as np
from matplotlib.figure import Figure

MOST_POINTS = 300
# Matplotlib needs colours; these stand for the page's own and are replaced in the SVG.
_INK, _FAINT, _GRID = '#010101', '#020202', '#030303'
_STAND_IN = {_INK: 'var(--ink)', _FAINT: 'var(--faint)', _GRID: 'var(--rule)'}
# Dashes tell lines apart without colour. The page draws the same ones in the key.
DASHES = ('', '6 2', '2 2', '8 2 2 2', '4 1', '1 2', '10 3', '3 3')


@dataclasses.dataclass(frozen=True)
class Line:
  """One arm: a list of curves (x [n], y [n]), one per seed, and the number of its colour and dash."""
  name: str
  style: int
  curves: tuple


def line_chart(lines, xlabel, ylabel, name, percent=True):
  """An <svg> string of one chart: thin lines are seeds, the thick one their mean where all seeds have values.

  Names of arms are not drawn (the page's key holds them), so no text of users enters the SVG.
  name: unique in the page, keeps the ids of its charts apart. percent: y values are fractions, shown as per
  cent. Returns None when no line has a point.
  """
  lines = [line for line in lines if any(len(x) for x, _ in line.curves)]
  if not lines:
    return None
  settings = {'svg.fonttype': 'none', 'svg.hashsalt': name, 'font.size': 9,
              'font.family': 'DejaVu Sans', 'axes.linewidth': 0.8, 'path.simplify': True}
  with matplotlib.rc_context(settings):
    figure = Figure(figsize=(4.7, 2.9), layout='constrained')
    axes = figure.add_subplot()
    scale = 100 if percent else 1
    for line in lines:
      colour, dash = _colour(line.style), _dash(line.style)
      several = len(line.curves) > 1
      for x, y in line.curves:
        x, y = _thinned(np.asarray(x, float), np.asarray(y, float) * scale)
        axes.plot(x, y, color=colour, alpha=0.3 if several else 1, linewidth=0.8 if several else 1.7,
                  linestyle='solid' if several else dash, marker='o' if len(x) == 1 else None, markersize=4)
      if several:
        x, y = _thinned(*_mean_curve(line.curves))
        axes.plot(x, y * scale, color=colour, linewidth=1.9, linestyle=dash,
                  marker='o' if len(x) == 1 else None, markersize=4)
    axes.set_xlabel(xlabel, color=_FAINT)
    axes.set_ylabel(ylabel + (' (%)' if percent else ''), color=_FAINT)
    axes.tick_params(colors=_FAINT, length=3)
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(_short_number))
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6))
    axes.set_xlim(left=0)
    axes.grid(axis='y', color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[['top', 'right']].set_visible(False)
    axes.spines[['left', 'bottom']].set_color(_GRID)
    out = io.StringIO()
    figure.savefig(out, format='svg', transparent=True,
                   metadata={'Date': None, 'Creator': None, 'Format': None, 'Type': None})
  return _for_page(out.getvalue())


def _for_page(svg):
  svg = svg[svg.index('<svg'):]
  svg = re.sub(r'<metadata>.*?</metadata>|<style.*?</style>', '', svg, flags=re.DOTALL)
  svg = re.sub(r'<g id="[^"]*"', '<g', svg)
  svg = re.sub(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', svg, count=1)
  svg = svg.replace('xlink:href', 'href')
  for stand_in, variable in _STAND_IN.items():
    svg = svg.replace(stand_in, variable)
  return re.sub(r'#0404([0-9a-f]{2})', lambda match: f'var(--arm-{int(match[1], 16)})', svg)


def _colour(style):
  return f'#0404{style % len(DASHES):02x}'


def _dash(style):
  numbers = [float(n) for n in DASHES[style % len(DASHES)].split()]
  return (0, tuple(numbers)) if numbers else 'solid'


def _thinned(x, y):
  if len(x) <= MOST_POINTS:
    return x, y
  keep = np.unique(np.linspace(0, len(x) - 1, MOST_POINTS).astype(int))
  return x[keep], y[keep]


def _mean_curve(curves):
  """Mean of y over the curves on the first one's x, where all curves reach (linear between their points)."""
  curves = [(np.asarray(x, float), np.asarray(y, float)) for x, y in curves if len(x)]
  low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
  grid = curves[0][0]
  grid = grid[(grid >= low) & (grid <= high)]
  return grid, np.mean([np.interp(grid, x, y) for x, y in curves], axis=0)


def _short_number(value, _):
  for factor, suffix in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    if abs(value) >= factor:
      return f'{value / factor:g} {suffix}'
  return f'{value:g}'
