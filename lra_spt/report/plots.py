"""Charts as inline SVG and as PNG.

Colours of an SVG are CSS variables of the page: charts follow light, dark and print.
"""

import dataclasses
import io
import math
import re

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from lra_spt.report.runs import STAGE_NAMES

MOST_POINTS = 300
# Matplotlib needs colours; these stand for the page's own and are replaced in the SVG.
_INK, _FAINT, _GRID = '#010101', '#020202', '#030303'
_STAND_IN = {_INK: 'var(--ink)', _FAINT: 'var(--faint)', _GRID: 'var(--rule)'}
# Dashes tell lines apart without colour. The page draws the same ones in the key.
DASHES = ('', '6 2', '2 2', '8 2 2 2', '4 1', '1 2', '10 3', '3 3')
# The two curves of a kernel chart, and their colours in a page and in a file of its own.
KERNEL_STYLES = {'initial': '5 2', 'learned': ''}
_PAGE_COLOURS = {'ink': _INK, 'faint': _FAINT, 'grid': _GRID, 'initial': _FAINT, 'learned': '#040403'}
_PRINTED_COLOURS = {
  'ink': '#1b1f24',
  'faint': '#57606a',
  'grid': '#d8dee4',
  'initial': '#57606a',
  'learned': '#0b62a4',
}


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
  with _style(name):
    figure = Figure(figsize=(4.7, 2.9), layout='constrained')
    axes = figure.add_subplot()
    scale = 100 if percent else 1
    for line in lines:
      colour, dash = _colour(line.style), _dash(line.style)
      several = len(line.curves) > 1
      for x, y in line.curves:
        x, y = _thinned(np.asarray(x, float), np.asarray(y, float) * scale)
        axes.plot(
          x,
          y,
          color=colour,
          alpha=0.3 if several else 1,
          linewidth=0.8 if several else 1.7,
          linestyle='solid' if several else dash,
          marker='o' if len(x) == 1 else None,
          markersize=4,
        )
      if several:
        x, y = _thinned(*_mean_curve(line.curves))
        axes.plot(
          x,
          y * scale,
          color=colour,
          linewidth=1.9,
          linestyle=dash,
          marker='o' if len(x) == 1 else None,
          markersize=4,
        )
    axes.set_xlabel(xlabel, color=_FAINT)
    axes.set_ylabel(ylabel + (' (%)' if percent else ''), color=_FAINT)
    axes.tick_params(colors=_FAINT, length=3)
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(_short_number))
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6))
    axes.set_xlim(left=0)
    axes.grid(axis='y', color=_GRID, linewidth=0.8)
    _frame(axes, _GRID)
    return _svg(figure)


def kernel_charts(kernels, name):
  """An <svg> string per shown layer: K_max against the lag, as initialised and as learned.

  kernels: a `runs.Kernels`. name: unique in the page. The page's key names the two curves (`KERNEL_STYLES`).
  """
  charts = []
  for layer in kernels.shown:
    with _style(f'{name}l{layer}'):
      figure = Figure(figsize=(4.7, 2.9), layout='constrained')
      axes = figure.add_subplot()
      _draw_kernels(axes, kernels, layer, _PAGE_COLOURS)
      charts.append(_svg(figure))
  return charts


def kernel_png(kernels, title, path):
  """Writes the shown layers, a panel each, as a PNG; `title` is plain text."""
  columns = 2 if len(kernels.shown) == 4 else min(3, len(kernels.shown))
  rows = -(-len(kernels.shown) // columns)
  ink = _PRINTED_COLOURS['ink']
  with _style('kernels'), matplotlib.rc_context({'text.parse_math': False}):
    figure = Figure(figsize=(max(4.2 * columns, 5), 2.9 * rows + 0.7), layout='constrained')
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for layer, axes in zip(kernels.shown, panels, strict=False):
      _draw_kernels(axes, kernels, layer, _PRINTED_COLOURS)
      axes.set_title(f'Layer {layer}', loc='left', color=ink, fontsize=9)
    for axes in list(panels):  # the rest of the last row
      axes.remove()
    figure.suptitle(title, x=0.01, ha='left', color=ink, fontsize=10)
    figure.legend(
      *figure.axes[0].get_legend_handles_labels(),
      loc='outside lower left',
      ncols=2,
      frameon=False,
      labelcolor=ink,
    )
    figure.savefig(path, format='png', dpi=160, facecolor='white')


def _draw_kernels(axes, kernels, layer, colours):
  both = np.stack([kernels.initial, kernels.learned])[:, [n - 1 for n in kernels.shown], : kernels.lags]
  for name, curves in zip(('initial', 'learned'), both, strict=True):
    x, y = _envelope(np.arange(kernels.lags), curves[kernels.shown.index(layer)])
    label = {
      'initial': f'{kernels.initialisation} initialisation',
      'learned': f'after {STAGE_NAMES[kernels.stage]}',
    }[name]
    axes.plot(
      x,
      y,
      color=colours[name],
      linestyle=_dash_of(KERNEL_STYLES[name]),
      linewidth=1.2,
      label=label,
      marker='o' if len(x) == 1 else None,
      markersize=4,
    )
  positive = both[np.isfinite(both) & (both > 0)]
  if positive.size:  # all layers share the scale; what lies five decades below the largest value is cut off
    largest = positive.max()
    axes.set_yscale('log')
    axes.set_ylim(max(positive.min(), 1e-5 * largest) / 1.3, 1.3 * largest)
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f'{value:g}'))
    axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
  axes.set_xlim(0, kernels.lags)
  axes.set_xlabel('lag', color=colours['faint'])
  axes.set_ylabel('largest |K|', color=colours['faint'])
  axes.tick_params(which='both', colors=colours['faint'], length=3)
  axes.grid(axis='y', color=colours['grid'], linewidth=0.8)
  _lag_grid(axes, kernels.row, kernels.lags, colours['grid'])
  _frame(axes, colours['grid'])


def _lag_grid(axes, row, lags, colour):
  """Vertical lines at multiples of the image rows, thinned by powers of two where they would touch."""
  if not 0 < row < lags:
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6, integer=True))
    return
  line = row * 2 ** max(0, math.ceil(math.log2(lags / row / 32)))
  tick = line * 2 ** max(0, math.ceil(math.log2(lags / line / 6)))
  axes.xaxis.set_major_locator(matplotlib.ticker.MultipleLocator(tick))
  axes.xaxis.set_minor_locator(matplotlib.ticker.MultipleLocator(line))
  axes.tick_params(axis='x', which='minor', length=0)
  axes.grid(axis='x', which='both', color=colour, linewidth=0.6)


def _envelope(x, y):
  """At most two points per MOST_POINTS-th of the curve, its smallest and largest y: no peak is lost."""
  if len(x) <= 2 * MOST_POINTS:
    return x, y
  keep = set()
  for part in np.array_split(np.arange(len(x)), MOST_POINTS):
    keep |= {part[np.argmin(y[part])], part[np.argmax(y[part])]}
  keep = np.array(sorted(keep))
  return x[keep], y[keep]


def _style(name):
  """Settings of every chart; `name` keeps the ids of one apart from those of others."""
  return matplotlib.rc_context(
    {
      'svg.fonttype': 'none',
      'svg.hashsalt': name,
      'font.size': 9,
      'font.family': 'DejaVu Sans',
      'axes.linewidth': 0.8,
      'path.simplify': True,
    }
  )


def _frame(axes, colour):
  axes.set_axisbelow(True)
  axes.spines[['top', 'right']].set_visible(False)
  axes.spines[['left', 'bottom']].set_color(colour)


def _svg(figure):
  out = io.StringIO()
  figure.savefig(
    out,
    format='svg',
    transparent=True,
    metadata={'Date': None, 'Creator': None, 'Format': None, 'Type': None},
  )
  return _for_page(out.getvalue())


def _for_page(svg):
  svg = svg[svg.index('<svg') :]
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
  return _dash_of(DASHES[style % len(DASHES)])


def _dash_of(text):
  numbers = [float(n) for n in text.split()]
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
